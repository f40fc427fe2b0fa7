"""Tables of the standard set, from bench/results/inference: of the machine that was measured last, and one of all; and
of training steps, from bench/results/train_step.

Documents own a table by `<!-- subbit:bench NAME -->` and `<!-- /subbit:bench -->`; what stands between is replaced.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import train_step
from bench.inference import RESULTS, SLIM_WIDTHS
from subbit import zoo
from subbit.experiments.report import replace_marked
from subbit.experiments.spec import load_spec
from subbit.experiments.table import build_table, size

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "training.md")
PLOT = ROOT / "docs" / "images" / "inference.svg"

PACKED, PACKED_INT8 = "subbit packed fp32", "subbit packed int8"
DENSE, DENSE_INT8 = "onnxruntime dense fp32", "onnxruntime dense int8"
STACKED, STACKED_INT8 = "onnxruntime stacked fp32", "onnxruntime stacked int8"
AVX2 = "subbit avx2 packed fp32"

# Networks of the form that is timed, trained on CIFAR-10: rows of this spec. Timed ones have random weights.
SPEC = "cifar10-fast"
TRAINED = {
    "(1/2, 1/2)": "slbf-0.5-0.5-grown-taught-twice",
    "(1/2, 1/4)": "slbf-0.5-0.25-taught-twice",
    "(1/2, 1/8)": "slbf-0.5-0.125-taught-twice",
    "BWN": "bwn-hardened",
    "dense": "dense-muon-full",
    "dense, width 1/2": "dense-muon-half",
    "dense, width 1/4": "dense-muon-quarter",
}

Json = dict[str, Any]


def load_results(folder: Path = RESULTS) -> list[Json]:
    """Of all machines, the one that was measured last first."""
    results: list[Json] = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(results, key=lambda result: str(result.get("date", "")), reverse=True)


def update_documents(results: Sequence[Json], documents: Sequence[Path] = DOCUMENTS) -> None:
    for document in documents:
        document.write_text(fresh(document, results), encoding="utf-8")


def fresh(document: Path, results: Sequence[Json]) -> str:
    """The text of a document with its tables generated anew."""

    def table(name: str) -> str:
        of_all = {
            "processors": lambda: processors(results),
            "steps": lambda: steps(load_results(train_step.RESULTS)),
            "ways": lambda: ways(load_results(train_step.RESULTS)),
        }
        return of_all[name]() if name in of_all else TABLES[name](results[0])

    return replace_marked(document.read_text(encoding="utf-8"), "bench", table, document.name)


def setting(case: Json, batch: int) -> Json | None:
    """The contestants of a case at this batch size; None where it was not measured."""
    return next((one["contestants"] for one in case["settings"] if one["batch"] == batch), None)


def ratios(result: Json) -> str:
    """How many times as long others take."""
    rows = []
    for case in result["cases"]:
        cells = [_quotient(case, 1, DENSE), _quotient(case, 32, DENSE), _quotient(case, 1, DENSE_INT8)]
        cells += [_quotient(case, 1, STACKED), _quotient(case, 1, STACKED_INT8), _quotient(case, 1, AVX2)]
        rows.append([f"{case['network']} {case['label']}", *cells])
    headings = ["", "dense fp32", "same, batch 32", "dense int8", "stacked fp32", "stacked int8", "packed on AVX2"]
    return _markdown(headings, rows)


def integers(result: Json) -> str:
    """The same beside the packed network in integers."""
    rows = []
    for case in result["cases"]:
        if PACKED_INT8 not in (setting(case, 1) or {}):
            continue
        cells = [_quotient(case, 1, DENSE_INT8, "int8"), _quotient(case, 32, DENSE_INT8, "int8")]
        cells += [_quotient(case, 1, STACKED_INT8, "int8"), _quotient(case, 1, PACKED, "int8")]
        rows.append([f"{case['network']} {case['label']}", *cells])
    return _markdown(["", "dense int8", "same, batch 32", "stacked int8", "packed fp32"], rows)


def processors(results: Sequence[Json]) -> str:
    """The ratios to the dense network, of every machine that was measured."""
    columns = [("fp32", DENSE, ""), ("integers", DENSE_INT8, "int8")]
    named = [f"{title}, {_processor(result)}" for result in results for title, _, _ in columns]
    names = dict.fromkeys(case["name"] for result in results for case in result["cases"])
    rows = []
    for name in names:
        found = [next((case for case in result["cases"] if case["name"] == name), None) for result in results]
        about = next(case for case in found if case)
        cells = [_medians(case, other, to) if case else "" for case in found for _, other, to in columns]
        rows.append([f"{about['network']} {about['label']}", *cells])
    return _markdown(["", *named], rows)


def steps(results: Sequence[Json]) -> str:
    """Images per second of a training step on every processor that was measured, each network in its faster layout."""
    measured = [(result, name) for result in results for name in train_step.DTYPES if name in result]
    rows = []
    for network in measured[0][0][measured[0][1]]:
        found = [result[name][network] for result, name in measured]
        rows.append(
            [network, *(f"{max(one['images_per_second'].values()):.0f} ({one['of_dense']:.2f}×)" for one in found)]
        )
    return _markdown(["VGG-16", *(f"{name}, {_processor({'machine': result})}" for result, name in measured)], rows)


def ways(results: Sequence[Json]) -> str:
    """Images per second of one network whose training step is taken in several ways."""
    measured = [(result, name) for result in results for name in train_step.DTYPES if name in result.get("ways", {})]
    rows = []
    for way in dict.fromkeys(way for result, name in measured for way in result["ways"][name]):
        found = [(result["ways"][name].get(way), result["ways"][name][train_step.AS_FIT]) for result, name in measured]
        rows.append([way, *(f"{rate:.0f} ({rate / usual:.2f}×)" if rate else "" for rate, usual in found)])
    return _markdown(["", *(f"{name}, {_processor({'machine': result})}" for result, name in measured)], rows)


def latency(result: Json) -> str:
    """Milliseconds, bytes and accuracy beside each other, VGG-16 and its slimmer dense forms."""
    cases = [case for case in result["cases"] if case["network"] == "VGG-16"]
    forms = [("subbit packed", f"subbit {case['label']}, packed", case["label"], case) for case in cases]
    for runtime, title in (("subbit", "subbit"), ("onnxruntime", "ONNX Runtime")):
        forms.append((f"{runtime} dense", f"{title}, dense", "dense", cases[0]))
        for width in SLIM_WIDTHS:
            slim = f"dense, width {width}"
            forms.append((f"{runtime} width {width} dense", f"{title}, {slim}", slim, cases[0]))
    reached = accuracies()
    rows = []
    for name, title, label, case in forms:
        for precision in ("fp32", "int8"):
            taken = _bytes(case).get(f"{name} {precision}")
            if taken is not None:
                times = [_milliseconds(case, batch, f"{name} {precision}") for batch in (1, 32)]
                rows.append([f"{title}, {precision}", *times, size(taken), reached.get((label, precision), "")])
    return _markdown(["VGG-16, 32×32", "ms, batch 1", "ms per image, batch 32", "file", "accuracy"], rows)


def accuracies() -> dict[tuple[str, str], str]:
    """Of trained networks, by the label of the timed ones and precision: of packed ones that of the zoo's file."""
    files = {card.name: card for card in zoo.cards()}
    rows = {row.row.name: row for row in build_table(load_spec(ROOT / "experiments" / f"{SPEC}.toml")).rows}
    found: dict[tuple[str, str], str] = {}
    for label, name in TRAINED.items():
        wanted, measured = rows[name].row.epochs, rows[name].measured
        if label.startswith("dense") and measured:
            found[label, "fp32"] = _reached(measured.accuracy, measured.epochs, wanted)
        for precision, ending in (("fp32", ""), ("int8", "-int8")):
            card = files.get(f"vgg16-cifar10-{name}{ending}")
            if card is not None:
                found[label, precision] = _reached(card.accuracy, card.epochs, wanted)
    return found


def _reached(accuracy: float, epochs: int, wanted: int) -> str:
    return f"{accuracy:.2f}" + (f", {epochs} of {wanted} epochs" if epochs < wanted else "")


def costs(result: Json) -> str:
    """What a packed network takes besides time per image."""
    rows = []
    for case in result["cases"]:
        resident = case["resident_bytes"]
        threads = case.get("two_threads")
        rows.append(
            [
                f"{case['network']} {case['label']}",
                size(case["bytes"]),
                f"{1e3 * case['load_seconds']:.1f}",
                "" if resident is None else size(resident),
                "" if threads is None else f"{threads:.2f}×",
            ]
        )
    return _markdown(["", "file", "ms to load", "memory added", "two threads, batch 32"], rows)


def machine(result: Json) -> str:
    about = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    limits = result["cases"][0]["limits"]
    rounds = [one["rounds"] for case in result["cases"] for one in case["settings"]]
    apart = [case["limit_over_avx2"] for case in result["cases"] if "limit_over_avx2" in case]
    narrow = f"With AVX2 the latter is {statistics.median(apart):.2f} times lower. " if apart else ""
    return (
        f"{_processor(result)}, kernels for {about['isa']}, one thread. Python {about['python']}, {versions}. One core "
        f"reaches {limits['multiply_adds'] / 1e9:.0f} GMAC/s with fp32 multiply-adds and "
        f"{limits['look_ups'] / 1e9:.0f} with look-ups of ±1 sums. {narrow}"
        f"{min(rounds)} to {max(rounds)} rounds; on a busy machine, or with few rounds, runs differ from "
        "each other by more than the quartiles within one.\n"
    )


TABLES: dict[str, Callable[[Json], str]] = {
    "ratios": ratios,
    "integers": integers,
    "latency": latency,
    "costs": costs,
    "machine": machine,
}


def _processor(result: Json) -> str:
    about = result["machine"]
    model = about.get("cpu_model")
    return f"{about['cpu']} ({model})" if model else str(about["cpu"])


def _medians(case: Json, name: str, to: str) -> str:
    """At batch 1, and at 32 in brackets."""
    found = [(setting(case, batch) or {}).get(name) for batch in (1, 32)]
    key = "times_packed_int8" if to else "times_packed"
    single, batch = (f"{one[key]['median']:.2f}" if one and key in one else "" for one in found)
    return f"{single} ({batch})" if batch else single


def _bytes(case: Json) -> dict[str, int]:
    return {one["name"]: one["bytes"] for one in case["contestants"]}


def _quotient(case: Json, batch: int, name: str, to: str = "") -> str:
    contestants = setting(case, batch)
    if contestants is None or name not in contestants:
        return ""
    spread = contestants[name]["times_packed_int8" if to else "times_packed"]
    return f"{spread['median']:.2f} ({spread['low']:.2f}–{spread['high']:.2f})"


def _milliseconds(case: Json, batch: int, name: str) -> str:
    contestants = setting(case, batch)
    if contestants is None or name not in contestants:
        return ""
    return f"{1e3 * contestants[name]['seconds']['median'] / batch:.2f}"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"

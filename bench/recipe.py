"""The search for a recipe: short trainings at an equal budget, judged on held-out training images.

    python -m bench.recipe                    runs the tries that have no result yet, in the order of recipe.toml
    python -m bench.recipe --tries muon-*     only these
    python -m bench.recipe --tables           table and plot of docs/training.md from the kept results

A try is a line of settings over a common base (bench/recipe.toml). CIFAR-10 is scaled down to 24×24 and the network is
half as wide, so that a try takes minutes; a tenth of the training images is held out, and the test images are not
looked at. Results are kept in bench/results/recipe.jsonl. A try that learns from the network of another one names it
(`teacher` or `init_from`); trained networks stay in runs/recipe.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from bench import selections
from subbit import data as datasets
from subbit.data.dataset import DataSet, Part
from subbit.experiments.figures import PALETTE, STYLE, as_svg
from subbit.experiments.report import replace_marked
from subbit.host import commit
from subbit.train import Settings, fit, read_config

HERE = Path(__file__).parent
TRIES, RESULT = HERE / "recipe.toml", HERE / "results" / "recipe.jsonl"
DOCUMENT = HERE.parent / "docs" / "training.md"
PLOT = HERE.parent / "docs" / "images" / "recipe.svg"
RUNS = HERE.parent / "runs" / "recipe"
SIDE = 24  # pixels


@dataclass(frozen=True)
class Try:
    """One line of the search: what is asked, and the settings that ask it."""

    name: str
    group: str
    about: str
    settings: Settings


def read_tries(path: Path = TRIES) -> list[Try]:
    """The tries in their order; each changes some values of the base, tables key by key."""
    content = read_config(path)
    base: dict[str, Any] = content["base"]
    return [
        Try(one["name"], one["group"], one["about"], Settings.resolve(_changed(base, one["settings"])))
        for one in content["tries"]
    ]


def _changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    if "method" in changes:  # the base's options are those of its own
        base = {key: value for key, value in base.items() if key not in ("f1", "f2", "method_options")}
    tables = {key: {**base.get(key, {}), **value} for key, value in changes.items() if isinstance(value, dict)}
    return {**base, **changes, **tables}


def read_results(path: Path = RESULT) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def run(one: Try, data: DataSet) -> dict[str, Any]:
    """Train as the try says, from the start."""
    # What would be the test images is the held-out part here too: nothing else is looked at.
    held_out = data.hold_out(one.settings.validation, one.settings.seed)
    assert held_out.validation is not None
    data = replace(held_out, test=held_out.validation, validation=None)
    others: dict[str, Any] = {"teacher": [str(RUNS / name) for name in one.settings.teacher]}
    if one.settings.init_from:
        others["init_from"] = str(RUNS / one.settings.init_from)
    shutil.rmtree(RUNS / one.name, ignore_errors=True)
    with selections.known():
        result = fit(one.settings.but(validation=0, test_each_epoch=True, **others), out=RUNS / one.name, data=data)
    return {
        "name": one.name,
        "validation": round(100 * result.test_accuracy, 2),
        "curve": [round(100 * epoch["test_accuracy"], 2) for epoch in result.epochs],
        "loss": [round(epoch["loss"], 4) for epoch in result.epochs],
        "flipped_signs": [round(epoch.get("flipped_signs", 0.0), 4) for epoch in result.epochs],
        "seconds": round(result.seconds, 1),
        "commit": commit(),
        "settings": one.settings.to_dict(),
    }


def small_images() -> DataSet:
    """CIFAR-10 at `SIDE` pixels."""
    whole = datasets.load("cifar10", os.environ.get("SUBBIT_DATA", ""))
    return replace(whole, train=_smaller(whole.train), test=_smaller(whole.test))


def _smaller(part: Part) -> Part:
    images = torch.split(torch.from_numpy(part.images), 5000)
    scaled = [F.interpolate(some.float(), (SIDE, SIDE), mode="bilinear", antialias=True) for some in images]
    return replace(part, images=torch.cat(scaled).round_().clamp_(0, 255).byte().numpy())


def chosen(tries: Sequence[Try], patterns: Iterable[str], results: Sequence[dict[str, Any]]) -> list[Try]:
    """The tries that are asked for and have no result."""
    done = {line["name"] for line in results}
    wanted = list(patterns) or ["*"]
    return [one for one in tries if one.name not in done and any(fnmatch.fnmatch(one.name, p) for p in wanted)]


# ------------------------------------------------------------------------------------------- table and plot


def _grouped(results: Sequence[dict[str, Any]], tries: Sequence[Try]) -> list[tuple[Try, dict[str, Any]]]:
    """The tries that have a result, those of a group side by side, whenever they were run."""
    by_name = {line["name"]: line for line in results}
    groups = list(dict.fromkeys(one.group for one in tries))
    ordered = sorted(tries, key=lambda one: groups.index(one.group))
    return [(one, by_name[one.name]) for one in ordered if one.name in by_name]


def table(results: Sequence[dict[str, Any]], tries: Sequence[Try]) -> str:
    """What was tried, group by group, with the accuracy on held-out images."""
    lines = ["| | what | held-out accuracy | seconds | version |", "|---|---|---:|---:|---|"]
    group = ""
    for one, line in _grouped(results, tries):
        shown = "" if one.group == group else one.group
        group = one.group
        lines.append(
            f"| {shown} | {one.about} | {line['validation']:.1f} | {line['seconds']:.0f} | {line['commit'][:7]} |"
        )
    return "\n".join(lines) + "\n"


def plot(results: Sequence[dict[str, Any]], tries: Sequence[Try]) -> str:
    """One bar per try, groups in colours, as SVG."""
    shown = _grouped(results, tries)
    groups = list(dict.fromkeys(one.group for one, _ in shown))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 0.6 + 0.24 * len(shown)), layout="constrained")
        axes: Any = figure.add_subplot()
        for place, (one, line) in enumerate(shown):
            value = line["validation"]
            color = PALETTE[groups.index(one.group) % len(PALETTE)]
            axes.barh(place, value, color=color, height=0.7)
            axes.text(value, place, f" {value:.1f}", va="center", fontsize=8)
        axes.set_yticks(range(len(shown)), [one.about for one, _ in shown], fontsize=8)
        axes.invert_yaxis()
        lowest = min(line["validation"] for _, line in shown)
        axes.set_xlim(left=max(0, lowest - 5))
        axes.set_xlabel("accuracy on held-out training images, %")
        return as_svg(figure)


def fresh(document: Path = DOCUMENT) -> str:
    """The text of the document with its table generated anew."""
    text = document.read_text(encoding="utf-8")
    return replace_marked(text, "recipe", lambda _: table(read_results(), read_tries()), document.name)


def publish() -> None:
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    PLOT.write_text(plot(read_results(), read_tries()), encoding="utf-8")
    DOCUMENT.write_text(fresh(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recipe", description="the search for a recipe")
    parser.add_argument("--tries", nargs="+", default=[], help="names or globs; all by default")
    parser.add_argument("--tables", action="store_true", help="train nothing: table and plot from the kept results")
    arguments = parser.parse_args()
    todo = [] if arguments.tables else chosen(read_tries(), arguments.tries, read_results())
    data = small_images() if todo else None
    for one in todo:
        assert data is not None
        line = run(one, data)
        print(f"{one.name}: {line['validation']:.2f} % in {line['seconds']:.0f} s", flush=True)
        with RESULT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    publish()


if __name__ == "__main__":
    main()

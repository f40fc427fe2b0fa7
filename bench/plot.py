"""Latency over bytes, batch 1: packed networks, the same in ONNX Runtime, and slimmer dense ones."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench import tables
from subbit.experiments.figures import PALETTE, STYLE, as_svg, byte_axis

SERIES = {
    tables.PACKED: ("subbit, shared filters", "o"),
    tables.PACKED_INT8: ("subbit, shared filters, integers", "h"),
    "kept": ("subbit, shared filters, linear layers dense", "*"),
    "bwn": ("subbit, BWN", "v"),
    tables.DENSE: ("ONNX Runtime, dense fp32", "s"),
    tables.DENSE_INT8: ("ONNX Runtime, dense int8", "D"),
    tables.STACKED: ("ONNX Runtime, stacked fp32", "^"),
    "slim fp32": ("ONNX Runtime, slimmer dense fp32", "P"),
    "slim int8": ("ONNX Runtime, slimmer dense int8", "X"),
}

PACKED = (tables.PACKED, tables.PACKED_INT8)


def draw(result: tables.Json, network: str = "VGG-16") -> str:
    """The plot as SVG: lower left is better."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in SERIES}
    for case in result["cases"]:
        contestants = tables.setting(case, 1) if case["network"] == network else None
        stored = {one["name"]: one["bytes"] for one in case["contestants"]}
        for name, measured in (contestants or {}).items():
            if (series := _series(name, case["label"])) is not None:
                points[series].append((stored[name], 1e3 * measured["seconds"]["median"]))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes: Any = figure.add_subplot()
        for color, (name, (label, marker)) in zip(PALETTE[1:], SERIES.items(), strict=False):
            places = sorted(points[name]) if name in PACKED else _fewer(points[name])
            if places:
                line = "-" if name in (*PACKED, tables.STACKED) else "none"
                axes.plot(
                    *zip(*places, strict=True), linestyle=line, marker=marker, color=color, label=label, markersize=7
                )
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        byte_axis(axes)
        axes.set_title(f"{network}, 32×32, batch 1, one thread")
        axes.set_xlabel("bytes of the file")
        axes.set_ylabel("milliseconds")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left")
        return as_svg(figure)


def _series(name: str, label: str) -> str | None:
    if name == tables.PACKED_INT8 and not label.endswith(")"):
        return None
    if name == tables.PACKED and not label.endswith(")"):
        return "bwn" if label == "BWN" else "kept"
    if name.startswith("onnxruntime width"):
        return f"slim {name.rsplit(' ', 1)[1]}"
    return name if name in SERIES else None


def _fewer(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """One point for each size: the dense network is the same in every case, so its median over cases counts."""
    by_size: dict[float, list[float]] = {}
    for stored, latency in places:
        by_size.setdefault(round(stored, -4), []).append(latency)
    return [(stored, sorted(values)[len(values) // 2]) for stored, values in sorted(by_size.items())]

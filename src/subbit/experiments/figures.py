"""The drawings of the report, as SVG text: the same numbers give the same bytes.

Colours belong to series (methods), full markers are ours, hollow ones are the paper's.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from subbit.experiments.ledger import Layer
from subbit.experiments.table import Measured, Table, TableRow, size


class Point(NamedTuple):
    """A mark. Rows that stand beside the same published row are the same `network`, trained in several ways."""

    x: float
    accuracy: float
    spread: float
    network: str


# Eight hues that stay apart for colour-blind readers (Okabe and Ito), black for the dense network.
PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_ACCURACY_TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 96, 97, 98, 98.5, 99, 99.2, 99.4, 99.6, 99.8, 99.9)
STYLE: Any = {  # Matplotlib's types would have every key spelt out as a literal
    "svg.hashsalt": "subbit",  # element ids would be random otherwise
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def draw(table: Table) -> str | None:
    """The figure that the spec asks for; None where there is nothing to draw yet."""
    if not table.measured and not (table.spec.figure == "size" and table.published.rows):
        return None
    return {"size": _accuracy_over_bytes, "ratio": _accuracy_over_ratio, "curves": learning_curves}[table.spec.figure](
        table
    )


def learning_curves(table: Table) -> str | None:
    """Accuracy after each epoch: the mean over seeds as a line, their range as a band."""
    if not any(measured.last.curve for _, measured in table.measured):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        seen: list[float] = []
        for number, (row, measured) in enumerate(table.measured):
            curves = [entry.curve for entry in measured.entries]
            epochs = range(1, min(map(len, curves)) + 1)
            columns = [[curve[epoch - 1] for curve in curves] for epoch in epochs]
            color = PALETTE[number % len(PALETTE)]
            mean = [sum(column) / len(column) for column in columns]
            dashes = "-" if number < len(PALETTE) else "--"
            marker = "o" if len(epochs) == 1 else None  # a line of one point would not show
            axes.plot(epochs, mean, dashes, marker=marker, color=color, linewidth=1.7, label=_legend(row, measured))
            if len(curves) > 1:
                axes.fill_between(
                    epochs, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.15, linewidth=0
                )
            seen += mean
        split = table.measured[0][1].last.curve_split
        axes.set(xlabel="epoch", ylabel=f"{split} accuracy (%)", title="Accuracy after each epoch")
        _error_axis(axes, seen)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return as_svg(figure)


def layer_bits(row: TableRow, measured: Measured) -> str | None:
    """Bits per weight of each layer in the file, over the share of the file that the layer takes."""
    layers = [layer for layer in measured.last.layers if layer.weights]
    if not layers:
        return None
    total = 8 * measured.last.stored_bytes
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 0.9 + 0.26 * len(layers)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        places = range(len(layers))
        per_weight = [layer.bits / layer.weights for layer in layers]
        left.barh(places, per_weight, color=["#0072B2" if bits < 1 else "#9DB8CC" for bits in per_weight], height=0.66)
        left.axvline(1, color="#D55E00", linewidth=1)
        left.set_xscale("log", base=2)
        left.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
        )
        left.set(yticks=places, title=f"{row.row.label}: bits per weight")
        left.set_yticklabels([layer.name for layer in layers])
        left.invert_yaxis()
        for place, bits in zip(places, per_weight, strict=True):
            left.annotate(f" {bits:.3g}", (bits, place), va="center", fontsize=8, color="#333333")
        left.set_xlim(right=left.get_xlim()[1] * 2)
        share = [100 * layer.bits / total for layer in layers]
        right.barh(places, share, color="#009E73", height=0.66)
        for place, part in zip(places, share, strict=True):
            right.annotate(f" {part:.1f}", (part, place), va="center", fontsize=8, color="#333333")
        right.set(title="share of the file (%)", xlim=(0, max(share) * 1.18))
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
        return as_svg(figure)


def filter_use(row: TableRow, measured: Measured) -> str | None:
    """How often each shared filter is used, per layer, most used first."""
    layers = [layer for layer in measured.last.layers if layer.usage]
    if not layers:
        return None
    with matplotlib.rc_context(STYLE):
        across = min(4, len(layers))
        down = -(-len(layers) // across)
        figure = Figure(figsize=(7.6, 0.4 + 1.75 * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        for axes, layer in zip(grid.flat, layers, strict=False):
            _draw_use(axes, layer)
        for axes in list(grid.flat)[len(layers) :]:
            axes.set_axis_off()
        figure.supylabel("blocks", fontsize=9, color="#333333")
        figure.suptitle(f"{row.row.label}: blocks per shared filter, most used first", fontsize=10.5, x=0.01, ha="left")
        return as_svg(figure)


def _draw_use(axes: Axes, layer: Layer) -> None:
    counts = sorted(layer.usage, reverse=True)
    axes.bar(range(1, len(counts) + 1), counts, width=1.0, color="#56B4E9", edgecolor="white", linewidth=0.2)
    axes.axhline(sum(counts) / len(counts), color="#D55E00", linewidth=1)  # equal use
    unused = counts.count(0)
    axes.set_title(f"{layer.name}\n{len(counts)} filters, {unused} unused", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(labelsize=7.5)
    axes.grid(axis="x", visible=False)


def _accuracy_over_bytes(table: Table) -> str:
    """Left, the convolutions by the paper's count, published and ours; right, our whole files."""
    with matplotlib.rc_context(STYLE):
        dense_bytes = 4 * table.published.convolution_weights
        figure = Figure(figsize=(9.2 if dense_bytes else 7.6, 4.4), layout="constrained")
        panels = figure.subplots(1, 2 if dense_bytes else 1, squeeze=False)[0]
        left, right = panels[0], panels[-1]
        seen: list[float] = []
        for number, series in enumerate(_series(table)):
            rows = [row for row in table.rows if row.row.series == series]
            paper = {
                Point(
                    dense_bytes / row.published.ratio,
                    row.published.accuracy[table.spec.column],
                    0.0,
                    row.row.published,
                )
                for row in rows
                if row.published and dense_bytes and table.spec.column in row.published.accuracy
            }
            ours = [(row, row.measured) for row in rows if row.measured]
            counted = [  # ratios are to a row's own dense network: of another width, it is not the one of the paper
                _point(dense_bytes / m.last.paper_ratio, row, m)
                for row, m in ours
                if row.published and m.last.paper_ratio and dense_bytes
            ]
            files = [_point(m.last.stored_bytes, row, m) for row, m in ours]
            seen += _plot(left, sorted(paper), number, hollow=True)
            seen += _plot(left, counted, number)
            seen += _plot(right, files, number, label=series)
        right.set(title="Whole file, classifier and all (ours)")
        left.set_ylabel("test accuracy (%)")
        if dense_bytes:
            left.set(title="Convolutions only, by the paper's count")
            left.plot([], [], "o", color="#777777", markerfacecolor="white", label="paper")
            left.plot([], [], "o", color="#777777", label="ours")
            left.legend(loc="lower right")
        for axes in panels:
            axes.set_xlabel("bytes")
            _zoom(axes, seen)
            byte_axis(axes)
        if right.get_legend_handles_labels()[0]:
            right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return as_svg(figure)


def _accuracy_over_ratio(table: Table) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        seen: list[float] = []
        for number, series in enumerate(_series(table), start=1):
            ours = [(row, m) for row, m in table.measured if row.row.series == series]
            points = [_point(m.last.paper_ratio, row, m) for row, m in ours if m.last.paper_ratio]
            seen += _plot(axes, points, number, label=series)
        axes.set(xlabel="compression ratio, by the paper's count", ylabel="test accuracy (%)", title=table.spec.title)
        _zoom(axes, seen)
        axes.legend(loc="best")
        return as_svg(figure)


def _point(x: float, row: TableRow, measured: Measured) -> Point:
    return Point(x, measured.accuracy, measured.spread or 0.0, row.row.published)


def _plot(axes: Axes, points: Sequence[Point], number: int, *, hollow: bool = False, label: str = "") -> list[float]:
    """One series as marks, spread as bars, a line through the best of each network; gives the accuracies shown."""
    best, others = _best_of_each_network(points)
    for some, line, name in ((best, ":" if hollow else "-", label), (others, "none", "")):
        if some:
            spread = [point.spread for point in some]
            axes.errorbar(
                [point.x for point in some],
                [point.accuracy for point in some],
                yerr=spread if any(spread) else None,
                linestyle=line,
                marker=_MARKERS[number % len(_MARKERS)],
                color=PALETTE[number % len(PALETTE)],
                markerfacecolor="white" if hollow else None,
                alpha=1 if some is best else 0.45,
                markersize=6.5,
                linewidth=1.2,
                capsize=3,
                label=name or None,
            )
    return [edge for one in points for edge in (one.accuracy - one.spread, one.accuracy + one.spread)]


def _best_of_each_network(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Of the trainings of each network the most accurate one, in the order of x; and the others."""
    best: dict[str, Point] = {}
    for point in points:
        if point.network not in best or point.accuracy > best[point.network].accuracy:
            best[point.network] = point
    return sorted(best.values()), [point for point in points if point not in best.values()]


def _series(table: Table) -> list[str]:
    return list(dict.fromkeys(row.row.series for row in table.rows))


def _legend(row: TableRow, measured: Measured) -> str:
    return row.row.label + (f"\n({measured.epochs_note})" if measured.epochs_note else "")


def _zoom(axes: Axes, values: Sequence[float]) -> None:
    """Spends the height on the values there are."""
    if values:
        low, high = min(values), max(values)
        margin = max(0.06 * (high - low), 0.02)
        axes.set_ylim(max(low - margin, 0), min(high + margin, 100.05))


def _error_axis(axes: Axes, values: Sequence[float]) -> None:
    """Accuracy drawn by the logarithm of the error, so that the first epoch and the last tenths both show."""

    def place(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
        return -np.log10(np.maximum(100.0 - accuracy, 1e-3))

    def back(height: NDArray[np.float64]) -> NDArray[np.float64]:
        return 100.0 - np.power(10.0, -height)

    axes.set_yscale("function", functions=(place, back))
    low, high = place(np.array([min(values), max(values)]))
    margin = 0.05 * (high - low) + 0.01
    bottom, top = back(np.array([low - margin, high + margin]))
    axes.set_ylim(max(bottom, 0.0), top)
    axes.set_yticks([tick for tick in _ACCURACY_TICKS if bottom <= tick <= top])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def byte_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: size(round(value)).replace(".0 ", " ").replace(".00 ", " "))
    )
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelrotation=30)


def as_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return buffer.getvalue()

"""A `Report` for people: a table for the terminal, as text, or as HTML for a notebook. Needs rich."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from subbit.accounting import Bits, Operations
from subbit.inspection import LayerReport, OtherReport, Report, Row

_MAX_REMARK = 48  # characters before the last column wraps


def render(report: Report) -> Group:
    """The table of layers and the lines below it."""
    return Group(_table(report), *(Text(line) for line in _summary(report)))


def as_text(report: Report) -> str:
    """The table as it is printed, in its natural width."""
    console = _console(report)
    console.print(render(report))
    return "\n".join(line.rstrip() for line in console.export_text(styles=False).splitlines())


def as_html(report: Report) -> str:
    console = _console(report)
    console.print(render(report))
    style = "font-family:monospace;line-height:normal"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def whole_console(content: RenderableType) -> Console:
    """A console for standard output in which no cell of `content` is cut short, however narrow the terminal."""
    console = Console(highlight=False)
    console.width = max(console.width, _natural_width(content))
    return console


def _natural_width(content: RenderableType) -> int:
    """Characters that the widest line takes."""
    console = Console(width=10_000)
    return Measurement.get(console, console.options, content).maximum


def _console(report: Report) -> Console:
    return Console(record=True, file=io.StringIO(), width=_natural_width(render(report)), color_system="truecolor")


def _table(report: Report) -> Table:
    title = f"{report.name}, input {' × '.join(map(str, report.input_shape))}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("type")
    numbers = (
        "filters", "indices", "scales", "rest", "stored bits", "bits/weight", "dense bits",
        "dense MACs", "transform", "merge",
    )  # fmt: skip
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("method, or why kept", max_width=_MAX_REMARK)

    def add(*cells: str, style: str = "") -> None:
        table.add_row(*map(Text, cells), style=style)  # Text: a name may look like markup

    for layer in report.layers:
        cells = _cells(layer, f"{layer.bits_per_weight:.3f}")
        add(layer.name, layer.kind, *cells, _remark(layer), style="" if layer.method else "dim")
    for kind, rows in _by_kind(report.others).items():
        merged = _merged(rows)
        name = f"{len(rows)} modules" if len(rows) > 1 else _own_name(rows[0])
        add(name, kind, *_cells(merged), "" if merged.stored_bits else "folded into the layers")
    overhead = "header, graph, names" if not report.pack_error else "last byte"
    add(overhead, "", *_bit_cells(Bits()), f"{report.overhead_bits:,}")
    table.add_section()
    total = _merged(list(report.rows))
    weights = sum(layer.weights for layer in report.layers)
    sums = list(_cells(total, f"{report.stored_bits / weights:.3f}" if weights else ""))
    sums[4] = f"{report.stored_bits:,}"
    add("total", "", *sums, style="bold")
    return table


def _summary(report: Report) -> Iterator[str]:
    operations = report.operations
    yield f"stored      {report.stored_bits:>15,} bits / 8 = {report.stored_bytes:,} bytes"
    dense_bits = sum(row.dense_bits for row in report.rows)
    yield f"dense       {dense_bits:>15,} bits / 8 = {report.dense_bytes:,} bytes (fp32)"
    yield f"ratio       {report.dense_bytes:,} / {report.stored_bytes:,} = {report.ratio:.2f}"
    if report.paper_ratio is not None:
        yield f"paper ratio {report.paper_ratio:.2f} (convolution weights only, P at 96 bits per entry)"
    needed = f"{operations.transform:,} transform + {operations.merge:,} merge"
    yield f"speedup     {operations.dense:,} dense MACs / ({needed}) = {report.speedup:.2f}"
    if report.peak_memory is not None:
        yield f"memory      {report.peak_memory:,} bytes to load and run in one thread, the file included"
    if report.work is not None:
        yield f"work        {report.work:,} multiply-adds for one input at most, every element counted"
    if report.pack_error:
        yield f"not packed  {report.pack_error}; the bits above are those of the records it would store"
    for note in report.notes:
        yield f"note        {note}"


def _cells(row: Row, per_weight: str = "") -> tuple[str, ...]:
    operations = (row.operations.dense, row.operations.transform, row.operations.merge)
    return (
        *_bit_cells(row.stored), f"{row.stored_bits:,}", per_weight, f"{row.dense_bits:,}", *map(_number, operations),
    )  # fmt: skip


def _bit_cells(bits: Bits) -> tuple[str, ...]:
    return tuple(map(_number, (bits.filters, bits.indices, bits.scales, bits.rest)))


def _number(value: int) -> str:
    return f"{value:,}" if value else "·"


def _remark(layer: LayerReport) -> str:
    how = layer.method or (f"kept: {layer.kept_because}" if layer.kept_because else "dense")
    return "; ".join((how, *layer.notes))


def _by_kind(rows: tuple[OtherReport, ...]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.kind].append(row)
    return groups


def _own_name(row: Row) -> str:
    return row.name or "(the model itself)"


def _merged(rows: list[Row]) -> Row:
    return Row(
        name="",
        kind="",
        dense_bits=sum(row.dense_bits for row in rows),
        stored=sum((row.stored for row in rows), Bits()),
        operations=sum((row.operations for row in rows), Operations()),
    )

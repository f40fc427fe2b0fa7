"""A `Result` for people: tables for the terminal. Needs rich."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from subbit.benchmark.layers import LayerTime
from subbit.benchmark.session import Entrant, Result, Setting
from subbit.tables import whole_console


def print_result(result: Result) -> None:
    """To standard output, as wide as the tables are."""
    group = render(result)
    whole_console(group).print(group)


def render(result: Result) -> Group:
    """Machine, one table per batch size and number of threads, the layers, and who did not take part."""
    parts: list[RenderableType] = [Text(line) for line in _machine_lines(result)]
    entrants = {entrant.name: entrant for entrant in result.entrants}
    parts += [_setting_table(setting, entrants) for setting in result.settings]
    if result.layers:
        parts.append(_layer_table(result.layers))
    parts += [Text(f"skipped {skipped.name}: {skipped.reason}") for skipped in result.skipped]
    return Group(*parts)


def _machine_lines(result: Result) -> Iterator[str]:
    machine, limits = result.machine, result.limits
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield f"{machine['cpu']}, {machine['cores']} cores, kernels for {machine['isa']}"
    yield f"subbit {machine['subbit']}, Python {machine['python']}, {versions}"
    if limits.multiply_adds:
        yield (
            f"one core reaches {limits.multiply_adds / 1e9:.0f} GMAC/s with fp32 multiply-adds, "
            f"{limits.look_ups / 1e9:.0f} with look-ups of ±1 sums and "
            f"{limits.popcounts / 1e9:.0f} with counts of signs that differ"
        )


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _setting_table(setting: Setting, entrants: dict[str, Entrant]) -> Table:
    rounds = len(next(iter(setting.seconds.values())))
    threads = f"{setting.threads} thread{'s' if setting.threads > 1 else ''}"
    title = f"batch {setting.batch}, {threads}, {rounds} rounds"
    columns = ["ms/image", "quartiles", "× packed", "quartiles", "bytes", "difference"]
    shown = [entrants[name] for name in setting.seconds if name in entrants]
    with_accuracy = any(entrant.accuracy is not None for entrant in shown)
    table = _table(title, ("contestant",), (*columns, *(["accuracy"] if with_accuracy else [])))
    for entrant in shown:
        latency, ratio = setting.latency(entrant.name), setting.ratio(entrant.name)
        scale = 1e3 / setting.batch
        cells = [
            f"{latency.median * scale:.3f}",
            f"{latency.low * scale:.3f}–{latency.high * scale:.3f}",
            f"{ratio.median:.2f}",
            f"{ratio.low:.2f}–{ratio.high:.2f}",
            f"{entrant.bytes:,}",
            "" if entrant.difference is None else f"{entrant.difference:.1e}",
        ]
        if with_accuracy:
            cells.append("" if entrant.accuracy is None else f"{100 * entrant.accuracy:.2f} %")
        table.add_row(entrant.name, *cells)
    return table


def _layer_table(layers: list[LayerTime]) -> Table:
    title = "layers, µs per image (median)"
    columns = ("time", "build", "look-ups", "merge", "rest", "GMAC/s", "of limit")
    table = _table(title, ("layer", "operation", "kernel"), columns)
    for layer in layers:
        times = (*layer.times, layer.rest)
        rate = f"{layer.rate / 1e9:.1f}" if layer.operations else ""
        share = f"{layer.share:.0%}" if layer.share else ""
        table.add_row(Text(layer.name), layer.kind, layer.kernel, *map(_microseconds, times), rate, share)
    table.add_section()
    sums = [sum(column) for column in zip(*((*layer.times, layer.rest) for layer in layers), strict=True)]
    table.add_row("total", "", "", *map(_microseconds, sums), "", "", style="bold")
    return table


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds >= 5e-8 else "·"

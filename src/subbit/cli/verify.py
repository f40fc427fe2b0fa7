"""`subbit verify`: every operation of a file against the PyTorch model it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from subbit.cli.options import JsonOption
from subbit.errors import ConfigError
from subbit.tables import whole_console

if TYPE_CHECKING:
    from torch import Tensor

    from subbit.verify import Difference, Verification


def command(
    file: Annotated[Path, typer.Argument(help="A .sbit file.")],
    run: Annotated[Path, typer.Argument(help="The run it was packed from: its folder, or its model.pt.")],
    inputs: Annotated[int, typer.Option("--inputs", min=1, help="How many inputs to compare.")] = 4,
    random: Annotated[
        bool, typer.Option("--random/--images", help="Random inputs, or test images of the run's data set.")
    ] = True,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where the data set is, for --images.")] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Allowed relative error.")] = 1e-4,
    seed: Annotated[int, typer.Option("--seed", help="Of the random inputs.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare a packed network with its model, layer by layer; exit code 1 names the first layer that departs."""
    if not 0 < tolerance < 1:
        raise ConfigError(f"--tolerance {tolerance}: give a relative error between 0 and 1")
    from subbit.runtime import load
    from subbit.train import open_run
    from subbit.verify import compare

    trained = open_run(run)
    net = load(file)
    x = _random_inputs(net.input_shape, inputs, seed) if random else _test_images(trained, inputs, data_dir)
    result = compare(net, trained.model, x, tolerance=tolerance)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result, str(file), inputs)
    if not result.ok:
        raise typer.Exit(1)


def _random_inputs(shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    import torch

    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def _test_images(run: Any, count: int, data_dir: Path | None) -> Tensor:
    import torch

    from subbit.train.images import images_of

    return torch.from_numpy(images_of(run, "test", count, folder=data_dir))


def _print(result: Verification, file: str, inputs: int) -> None:
    table = Table(title=f"{file}, {inputs} inputs", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("value", "operation", "layer", "kernel"):
        table.add_column(heading)
    integers = any(check.levels is not None for check in result.checks)
    columns = ("packing", "storage", "levels", "core") if integers else ("packing", "storage", "core")
    for heading in columns:
        table.add_column(f"{heading} abs", justify="right", no_wrap=True)
        table.add_column("rel", justify="right", no_wrap=True)
    table.add_column("")
    for check in result.checks:
        numbers = [cell for column in columns for cell in _cells(getattr(check, column))]
        remark = f"[red]{', '.join(check.departs)}[/]" if check.departs else ""
        table.add_row(str(check.value), check.kind, check.name, check.kernel, *numbers, remark)
    console = whole_console(table)
    console.print(table)
    agreement = "" if result.agreement is None else f", same class for {result.agreement:.0%}"
    console.print(f"output: {result.output.absolute:.1e} absolute, {result.output.relative:.1e} relative{agreement}")
    first = result.first_departure
    if first is None:
        console.print(f"all operations agree within {result.tolerance:g} (storage {result.storage_tolerance:g})")
    else:
        console.print(f"departs first at {first.title}: {', '.join(first.departs)}", style="bold red")


def _cells(difference: Difference | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    return f"{difference.absolute:.1e}", f"{difference.relative:.1e}"

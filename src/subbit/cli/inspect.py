"""`subbit inspect`: what every layer of a packed file, or of a built-in model under a method, costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subbit import zoo
from subbit.cli import options
from subbit.errors import ConfigError

if TYPE_CHECKING:
    from subbit.inspection import Report
    from subbit.methods.base import Method
    from subbit.nn.rules import Keep


def command(
    file: Annotated[
        Path | None, typer.Argument(help="A .sbit file or a name of the zoo; leave it out for a built-in model.")
    ] = None,
    model: options.ModelOption = None,
    method: options.MethodOption = "slbf",
    f1: options.F1Option = None,
    f2: options.F2Option = None,
    depth: options.DepthOption = None,
    filters: options.FiltersOption = None,
    scale: options.ScaleOption = None,
    selection: options.SelectionOption = None,
    keep: options.KeepOption = None,
    classes: options.ClassesOption = 10,
    input_shape: options.InputOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what every layer costs in bits and operations, and how the sums come about."""
    if (file is None) == (model is None):
        raise ConfigError("give either a .sbit file or --model, for example: subbit inspect --model resnet18")
    if file is not None:
        shaping: dict[str, object] = {"f1": f1, "f2": f2, "depth": depth, "filters": filters}
        shaping |= {"scale": scale, "selection": selection, "keep": keep or None, "input": input_shape}
        given = [f"--{name}" for name, value in shaping.items() if value is not None]
        if given:
            raise ConfigError(f"{', '.join(given)}: only with --model; what {file} holds is settled")
        from subbit.inspection import inspect_file

        report = inspect_file(zoo.find(file))
    else:
        assert model is not None
        chosen = options.build_method(
            method, f1=f1, f2=f2, depth=depth, filters=filters, scale=scale, selection=selection
        )
        report = _inspect_built_in(model, chosen, options.parse_keep(keep), classes, input_shape)
    typer.echo(report.to_json() if as_json else str(report))


def _inspect_built_in(
    name: str, method: Method | None, keep: list[Keep], classes: int, input_shape: str | None
) -> Report:
    from subbit.inspection import inspect
    from subbit.nn.compress import compress

    shape = options.parse_shape(input_shape, model=name)
    network = options.build_model(name, classes=classes, in_channels=shape[0])
    if method is not None:
        network = compress(network, method, keep=keep)
    return inspect(network, shape)

"""The options that several commands share, and what they mean: a built-in model, a method, an input shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from subbit.errors import ConfigError
from subbit.experiments.spec import nearest

if TYPE_CHECKING:
    from torch import nn

    from subbit.methods.base import Method
    from subbit.nn.rules import Keep

DENSE = "dense"  # the uncompressed network: the seventh row of every table

ModelOption = Annotated[
    str | None, typer.Option("--model", help="A built-in network: lenet5, vgg16, vgg16-lego, resnet18.")
]
MethodOption = Annotated[
    str, typer.Option("--method", help="slbf, legonet, binaryconnect, bwn, bnn, xnornet, or dense for none.")
]
F1Option = Annotated[str | None, typer.Option("--f1", help="Depth of a shared filter over input channels, e.g. 1/2.")]
F2Option = Annotated[str | None, typer.Option("--f2", help="Shared filters over output channels, e.g. 1/4.")]
DepthOption = Annotated[int | None, typer.Option("--depth", help="Depth of a shared filter, instead of --f1.")]
FiltersOption = Annotated[int | None, typer.Option("--filters", help="Shared filters per layer, instead of --f2.")]
ScaleOption = Annotated[
    bool | None, typer.Option("--scale/--no-scale", help="Scaling factors in P, or zeros and ones only.")
]
SelectionOption = Annotated[
    str | None, typer.Option("--selection", help="learned (as in the paper) or fixed (indices cost no bits).")
]
ClassesOption = Annotated[int, typer.Option("--classes", min=1, help="Classes of the network.")]
InputOption = Annotated[str | None, typer.Option("--input", help="Shape of one input without the batch, e.g. 3,32,32.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
KeepOption = Annotated[
    list[str] | None,
    typer.Option("--keep", help="Layers to leave as they are: a name, a glob or Conv1d, Conv2d, Linear. May repeat."),
]

# model -> (function in subbit.models, its arguments, shape of one input)
_MODELS: dict[str, tuple[str, dict[str, str], tuple[int, ...]]] = {
    "lenet5": ("lenet5", {}, (1, 28, 28)),
    "vgg16": ("vgg16", {}, (3, 32, 32)),
    "vgg16-lego": ("vgg16", {"variant": "lego"}, (3, 32, 32)),
    "resnet18": ("resnet18", {}, (3, 32, 32)),
}


def build_method(
    name: str,
    *,
    f1: str | None = None,
    f2: str | None = None,
    depth: int | None = None,
    filters: int | None = None,
    scale: bool | None = None,
    selection: str | None = None,
) -> Method | None:
    """The method that the options describe; None for "dense".

        build_method("slbf", f1="1/2", f2="1/4") == SLBF(f1=1/2, f2=1/4)

    Options left at None take the method's default; an option the method does not have is an error.
    """
    options = {"f1": f1, "f2": f2, "depth": depth, "filters": filters, "scale": scale, "selection": selection}
    given = {key: value for key, value in options.items() if value is not None}
    if name == DENSE:
        _check_options(name, given, known=())
        return None
    from subbit.methods import METHODS

    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}: {nearest(name, [*METHODS, DENSE])}")
    config = METHODS[name]
    has = {f.name for f in fields(config)}  # type: ignore[arg-type]  # every method is a dataclass
    _check_options(name, given, known=[key for key in options if key in has])
    return config(**given)


def build_model(name: str, *, classes: int = 10, in_channels: int | None = None) -> nn.Module:
    """The built-in model of this name, in its default initialisation."""
    function, arguments, shape = _model(name)
    from subbit import models

    channels = shape[0] if in_channels is None else in_channels
    network: nn.Module = getattr(models, function)(num_classes=classes, in_channels=channels, **arguments)
    return network


def parse_shape(text: str | None, *, model: str) -> tuple[int, ...]:
    """The shape "3,32,32" (or "3x32x32") of one input, or the usual one of the built-in model."""
    if text is None:
        return _model(model)[2]
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"--input {text!r} is not a shape: give positive numbers without the batch, such as 3,32,32")
    return shape


def parse_keep(patterns: Iterable[str] | None) -> list[Keep]:
    """`--keep` values: layer types by their class name, anything else a name or glob."""
    from torch import nn

    types: dict[str, type[nn.Module]] = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d, "Linear": nn.Linear}
    return [types.get(pattern, pattern) for pattern in patterns or ()]


def _model(name: str) -> tuple[str, dict[str, str], tuple[int, ...]]:
    if name not in _MODELS:
        raise ConfigError(f"unknown model {name!r}: {nearest(name, _MODELS)}")
    return _MODELS[name]


def _check_options(method: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = [f"--{key}" for key in given if key not in known]
    if unknown:
        allowed = ", ".join(f"--{key}" for key in known) or "none"
        raise ConfigError(f"method {method} has no {', '.join(unknown)}; its options: {allowed}")

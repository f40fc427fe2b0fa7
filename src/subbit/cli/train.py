"""subbit train: a network, a method, a data set, a recipe."""

from __future__ import annotations

import inspect
import typing
from copy import copy
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from subbit.cli.options import DepthOption, FiltersOption, JsonOption, ScaleOption, SelectionOption
from subbit.errors import ConfigError
from subbit.train.settings import Options, Settings, parse_value, read_config

# Options of the stacking methods that have a flag of their own; all others go through --method-options.
_METHOD_FLAGS = {"depth": DepthOption, "filters": FiltersOption, "scale": ScaleOption, "selection": SelectionOption}
# The help shows the settings in their order, in panels that begin with these fields.
_PANELS = {
    "model": "What",
    "recipe": "How long",
    "optimizer": "Optimiser",
    "label_smoothing": "Loss",
    "shift": "Augmentation",
    "start_size": "Resolution",
    "freeze_selection": "End of training",
    "validation": "Measuring",
    "precision": "Machine",
}


def command(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; named after its settings in runs/ by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run in this folder was stopped.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of the settings; flags win over it.")
    ] = None,
    as_json: JsonOption = False,
    **flags: Any,
) -> None:
    """Train a network. Values that are neither given nor in the config file come from the recipe.

    The data sets are read from --data-dir or SUBBIT_DATA, and downloaded there if they are absent; `digits` is
    always there.
    """
    values = read_config(config) if config else {}
    folder, resume = values.pop("out", None), bool(values.pop("resume", False)) or resume
    settings = resolve(values, flags)
    out = out or Path(folder or default_folder(settings))
    from subbit.train import fit
    from subbit.train.machine import rank

    follows = settings.devices * settings.nodes > 1 and rank() > 0
    console = Console(quiet=follows, stderr=as_json)
    result = fit(settings, out=out, resume=resume, console=console)
    if as_json:
        if not follows:
            typer.echo(result.to_json())
        return
    measured = f"test {result.test_accuracy:.2%}"
    if result.validation_accuracy is not None:
        measured += f", validation {result.validation_accuracy:.2%}"
    console.print(
        f"{measured} after {len(result.epochs)} epochs in {result.seconds:.0f} s "
        f"({result.input_share:.1%} of it on making batches); {result.model}",
        highlight=False,
        soft_wrap=True,
    )


def resolve(config: dict[str, Any], flags: dict[str, Any]) -> Settings:
    """Settings from a config file and from flags, which win; flags left out are None."""
    given = {key: value for key, value in flags.items() if value is not None}
    values: dict[str, Any] = {**config}
    for key in ("model_options", "method_options"):
        table = dict(_pair(key, text) for text in given.pop(key, ()))
        if table:
            values[key] = {**values.get(key, {}), **table}
    method_options = {key: given.pop(key) for key in _METHOD_FLAGS if key in given}
    if method_options:
        values["method_options"] = {**values.get("method_options", {}), **method_options}
    return Settings.resolve(values, **given)


def default_folder(settings: Settings) -> Path:
    """runs/lenet5-mnist-slbf-1-0.25-fast-8-seed0"""
    shares = [f"{float(Fraction(share)):g}" for share in (settings.f1, settings.f2) if share]
    what = [settings.model, Path(settings.data).name, settings.method, *shares]
    return Path("runs", "-".join([*what, settings.recipe, str(settings.epochs), f"seed{settings.seed}"]))


def _pair(option: str, text: str) -> tuple[str, bool | int | float | str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--{option.replace('_', '-')} {text!r}: give name=value")
    return name, parse_value(value)


def _signature() -> inspect.Signature:
    """The fixed parameters of `command`, then a flag for every field of `Settings`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    fixed = [parameter.replace(kind=keyword) for parameter in parameters if parameter.name != "flags"]
    kinds = typing.get_type_hints(Settings)
    added, panel = [], ""
    for spec in fields(Settings):
        panel = _PANELS.get(spec.name, panel)
        options = {spec.name: _flag(spec.name, spec.metadata, kinds[spec.name])}
        if spec.name == "f2":
            options |= _METHOD_FLAGS
        for name, option in options.items():
            added.append(inspect.Parameter(name, keyword, default=None, annotation=_in_panel(option, panel)))
    return inspect.Signature([*fixed, *added])


def _flag(name: str, about: typing.Mapping[str, Any], kind: Any) -> Any:
    dashed = name.replace("_", "-")
    several = kind == Options or typing.get_origin(kind) is tuple
    names = [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]
    help_text = about["help"] + (f" One of {', '.join(about['choices'])}." if about["choices"] else "")
    shown = list[str] if several else bool if kind is bool else str
    return Annotated[shown | None, typer.Option(*names, help=help_text, metavar=_metavar(kind))]


def _metavar(kind: Any) -> str | None:
    return {int: "INTEGER", float: "NUMBER", bool: None}.get(kind, "TEXT")


def _in_panel(annotation: Any, panel: str) -> Any:
    kind, option = typing.get_args(annotation)
    option = copy(option)  # those of cli.options are shared with other commands
    option.rich_help_panel = panel
    return Annotated[kind, option]


command.__signature__ = _signature()  # type: ignore[attr-defined]

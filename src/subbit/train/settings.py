"""Every value that defines a training run, as one frozen value with a TOML form.

    settings = Settings.resolve(model="lenet5", data="mnist", method="slbf", f1="1", f2="1/4", recipe="fast")
    Settings.from_toml(settings.to_toml()) == settings

`resolve` fills what is not given from the recipe, so a `Settings` never depends on a recipe that changes later.
This module imports neither torch nor Lightning.
"""

from __future__ import annotations

import difflib
import functools
import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from subbit.errors import ConfigError
from subbit.train.recipes import RECIPES, defaults

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Options = Mapping[str, bool | int | float | str]
T = TypeVar("T")


def _about(
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    positive: bool = False,
    run: bool = True,
) -> dict[str, Any]:
    """Help text and rule of a field; `run=False`: it does not change what is computed."""
    return {"help": help, "choices": choices, "low": low, "high": high, "positive": positive, "run": run}


def _value(default: T, help: str, **rule: Any) -> T:
    return field(default=default, metadata=_about(help, **rule))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All of a run. Every field is a flag of `subbit train` (`--weight-decay`) and a key of its config files."""

    # what is trained
    model: str = _value("lenet5", "A built-in network: lenet5, vgg16, vgg16-lego, resnet18.")
    model_options: Options = field(
        default_factory=dict, metadata=_about("An argument of the network, as name=value. May repeat.")
    )
    data: str = _value("digits", "digits, mnist, fashion-mnist, cifar10, cifar100, or a folder of images.")
    image_size: int = _value(32, "Side to which the images of a folder are scaled and cropped.", low=1)
    method: str = _value("slbf", "slbf, legonet, binaryconnect, bwn, bnn, xnornet, or dense for none.")
    f1: str = _value("", "Depth of a shared filter over input channels, e.g. 1/2.")
    f2: str = _value("", "Shared filters over output channels, e.g. 1/4.")
    method_options: Options = field(
        default_factory=dict, metadata=_about("A further option of the method, as name=value. May repeat.")
    )
    keep: tuple[str, ...] = _value((), "Layers to leave as they are: a name, a glob or a layer type. May repeat.")
    init_from: str = _value(
        "",
        "A finished run (folder or model.pt) to start from: dense, of the same method, or for SLBF a LegoNet; or a "
        "packed file or network of the zoo: dense, or of the same structure.",
    )

    whiten: bool = _value(False, "Give the first convolution filters that whiten the images, and freeze it.")

    # for how long, and in which order
    recipe: str = _value("fast", "Where values that are not given come from.", choices=tuple(RECIPES))
    epochs: int = _value(8, "Passes over the training images.", low=1)
    seed: int = _value(0, "Initial weights, order, augmentation and split follow from it.", low=0)
    batch: int = _value(128, "Images of one step, over all processes together.", low=1)

    # the optimiser
    optimizer: str = _value("adamw", "How gradients become steps.", choices=("sgd", "adam", "adamw"))
    latent_optimizer: str = _value(
        "", "The same for the latents, where it is another.", choices=("", "sgd", "adam", "adamw", "muon")
    )
    weight_optimizer: str = _value(
        "", "The same for ordinary weights of layers.", choices=("", "sgd", "adam", "adamw", "muon")
    )
    lr: float = _value(2e-3, "Highest learning rate.", positive=True)
    latent_lr: float = _value(1.0, "Rate of the latents, as a multiple of lr.", positive=True)
    selector_lr: float = _value(1.0, "Rate of what chooses and scales shared filters, likewise.", positive=True)
    norm_lr: float = _value(1.0, "Rate of BatchNorm and biases, likewise.", positive=True)
    momentum: float = _value(0.9, "Momentum of SGD and Muon, beta1 of Adam.", low=0, high=0.999999)
    nesterov: bool = _value(False, "Nesterov's momentum, with SGD and Muon.")
    weight_decay: float = _value(0.0, "Decay of ordinary weights.", low=0)
    latent_decay: float = _value(0.0, "Decay of the real proxies whose signs are used.", low=0)
    selector_decay: float = _value(0.0, "Decay of what chooses and scales shared filters.", low=0)
    norm_decay: float = _value(0.0, "Decay of BatchNorm and biases.", low=0)
    schedule: str = _value("onecycle", "Course of the learning rate.", choices=("constant", "cosine", "onecycle"))
    warmup: float = _value(0.0, "Epochs of linear warm-up (one-cycle brings its own).", low=0)

    # the loss
    label_smoothing: float = _value(0.0, "Share of the target spread over all classes.", low=0, high=0.999999)
    balance: float = _value(0.0, "Weight of LegoNet's penalty on uneven use of the shared filters.", low=0)
    teacher: tuple[str, ...] = _value(
        (), "What to distil from: a finished run, a packed file, or a network of the zoo. May repeat: their mean."
    )
    distill_weight: float = _value(0.5, "Share of the teacher in the loss.", low=0, high=1)
    distill_temperature: float = _value(4.0, "Temperature of both softmaxes.", positive=True)

    # augmentation
    shift: int = _value(0, "Random shifts by up to this many pixels.", low=0)
    shift_fill: str = _value("zero", "What shifts in at the edge.", choices=("zero", "reflect"))
    flip: bool = _value(False, "Mirror half of the images.")
    alternate: bool = _value(False, "Mirror each image in every other epoch instead of by chance; needs flip.")
    cutout: int = _value(0, "Side of a square that is blanked out of each image.", low=0)
    rotate: float = _value(0.0, "Random turns by up to this many degrees.", low=0, high=180)
    zoom: float = _value(0.0, "Random change of width and height by up to this share.", low=0, high=0.9)

    # resolution
    start_size: int = _value(0, "Side of the images at first; it grows to the full one (0: full throughout).", low=0)
    grown: float = _value(0.7, "Share of the steps after which images have their full size.", low=0, high=1)

    # the end of training
    freeze_selection: float = _value(0.0, "Last share of the steps with fixed choices.", low=0, high=1)
    batchnorm_batches: int = _value(0, "Batches to re-estimate BatchNorm statistics from after training.", low=0)

    # what is measured
    validation: float = _value(0.0, "Share of the training images held out.", low=0, high=0.9)
    test_each_epoch: bool = _value(False, "Test after each epoch too, for the learning curve; it decides nothing.")

    # the machine, as far as it changes bits
    precision: str = _value("fp32", "Arithmetic of training.", choices=("fp32", "bf16"))
    channels_last: bool = _value(False, "Keep images with the channel innermost.")
    threads: int = _value(0, "CPU threads per process (0: as torch chooses).", low=0)
    accelerator: str = _value("cpu", "Where to train.", choices=("cpu", "gpu", "auto"))
    devices: int = _value(1, "Processes on this machine.", low=1)
    nodes: int = _value(1, "Machines.", low=1)

    # what changes no bit of the result
    data_dir: str = _value("", "Where data sets are, or are downloaded to; SUBBIT_DATA otherwise.", run=False)
    checkpoint_minutes: float = _value(5.0, "Longest time between two checkpoints.", low=0, run=False)
    log_every: int = _value(50, "Steps between two lines of the logs.", low=1, run=False)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            _check_type(spec.name, value, _types()[spec.name])
            _check_rule(spec, value)
        if self.method == "dense" and (self.f1 or self.f2 or self.method_options):
            raise ConfigError("method dense has no options: leave out f1, f2 and method_options")

    @classmethod
    def resolve(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Settings:
        """Settings with what is given, and the rest from the recipe and the data set.

            Settings.resolve(data="cifar10", recipe="paper", epochs=10).shift    # 4

        Numbers may be strings as on a command line; f1 and f2 may be fractions or numbers.
        """
        given = {**(values or {}), **more}
        check_keys(given)
        plain = {key: _convert(key, value) for key, value in given.items()}
        recipe = plain.get("recipe", "fast")
        if recipe not in RECIPES:
            raise ConfigError(f"recipe is {recipe!r}: {_choices(str(recipe), list(RECIPES))}")
        usual = defaults(recipe, plain.get("data", "digits"), plain.get("method", "slbf"))
        if "method_options" in usual:  # what is given adds to it, option by option
            plain["method_options"] = {**usual["method_options"], **plain.get("method_options", {})}
        return cls(**{**usual, **plain})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from a complete mapping, as `to_dict` makes it; recipes are not consulted."""
        check_keys(values)
        return cls(**{key: _convert(key, value) for key, value in values.items()})

    @classmethod
    def from_toml(cls, text: str) -> Settings:
        return cls.from_dict(tomllib.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Plain values only: strings, numbers, lists, and two flat tables."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def to_toml(self) -> str:
        values = self.to_dict()
        tables = {key: values.pop(key) for key in ("model_options", "method_options")}
        lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
        for key, table in tables.items():
            if table:
                lines += ["", f"[{key}]", *(f"{_toml(k)} = {_toml(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"

    def differences(self, other: Settings) -> list[str]:
        """The fields that change what is computed, and in which `other` has another value."""
        return [
            f"{spec.name} = {getattr(self, spec.name)!r} and {getattr(other, spec.name)!r}"
            for spec in fields(self)
            if spec.metadata["run"] and getattr(self, spec.name) != getattr(other, spec.name)
        ]

    def but(self, **changes: Any) -> Settings:
        """A copy with some values changed."""
        return replace(self, **{key: _convert(key, value) for key, value in changes.items()})


def read_config(path: Path) -> dict[str, Any]:
    """The values of a TOML file; which keys it may have is for the caller to say."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    return values


def parse_value(text: str) -> bool | int | float | str:
    """A value as a config file writes it: true, 3 and 0.5 are what they look like, anything else is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text


def check_keys(values: Mapping[str, Any]) -> None:
    """Refuse keys that no setting has."""
    known = [spec.name for spec in fields(Settings)]
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}: {_choices(key, known)}")


# ------------------------------------------------------------------------------------------ conversion


@functools.cache
def _types() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def _convert(key: str, value: Any) -> Any:
    """A value of a TOML file, of a command line, or of Python code as the type of the field."""
    kind = _types().get(key)
    if key in ("f1", "f2"):
        return _fraction(key, value)
    if kind == tuple[str, ...] and isinstance(value, str | Path | list | tuple):
        several = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert("", item) for item in several if item != "")
    if kind == Options and isinstance(value, Mapping):
        return dict(value)
    if kind in (int, float) and isinstance(value, str):
        try:
            return kind(Fraction(value)) if kind is float else int(value)
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"{key} is {value!r}, which is not a number") from None
    if kind is float and type(value) is int:
        return float(value)
    return str(value) if isinstance(value, Path) else value


def _fraction(key: str, value: Any) -> str:
    """ "1/4" for 0.25, "1/4" and Fraction(1, 4), so that equal settings are equal."""
    if value in ("", None):
        return ""
    try:
        exact = Fraction(str(value)).limit_denominator(1 << 16)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{key} is {value!r}: give a fraction such as 1/4") from None
    if not 0 < exact <= 1:
        raise ConfigError(f"{key} is {value!r}: it must lie above 0 and be at most 1")
    return str(exact)


def _check_type(key: str, value: Any, kind: Any) -> None:
    origin = typing.get_origin(kind)
    if origin is tuple:
        good = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    elif origin is not None and not isinstance(kind, types.UnionType):
        good = isinstance(value, Mapping) and all(
            isinstance(k, str) and isinstance(v, bool | int | float | str) for k, v in value.items()
        )
    else:
        good = type(value) is kind  # a bool is not an int here
    if not good:
        name = (
            getattr(kind, "__name__", str(kind))
            if origin is None
            else "list of strings"
            if origin is tuple
            else "table"
        )
        raise ConfigError(f"{key} is {value!r}: it must be a {name}")


def _check_rule(spec: Field[Any], value: Any) -> None:
    rule = spec.metadata
    if rule.get("choices") and value not in rule["choices"]:
        raise ConfigError(f"{spec.name} is {value!r}: {_choices(str(value), rule['choices'])}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = rule["low"], rule["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        upper = f" and at most {high}" if high is not None else ""
        raise ConfigError(f"{spec.name} is {value}: it must be at least {low or 0}{upper}")
    if rule["positive"] and not 0 < value < float("inf"):
        raise ConfigError(f"{spec.name} is {value}: it must be positive")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)


def _choices(name: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"

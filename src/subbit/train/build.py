"""From settings to a network, and from a finished run back to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from subbit import zoo
from subbit.data.augment import derive
from subbit.data.dataset import DataSet
from subbit.errors import ConfigError, ModelError, TrainingError
from subbit.format import decode
from subbit.methods import from_config
from subbit.methods.base import CompressedLayer, Method
from subbit.methods.slbf import SLBF, SLBFLayer
from subbit.methods.stacking import StackedLayer
from subbit.models import MODELS
from subbit.nn.compress import compress
from subbit.nn.unpack import unpack
from subbit.records import Dense, Preprocessing
from subbit.runtime import Network, load
from subbit.train import checkpoint
from subbit.train.batches import Normalise
from subbit.train.settings import Settings

MODEL_FILE = "model.pt"
_KIND = "subbit run 1"  # what a model.pt says it is
_STATISTICS_IMAGES = 512  # for the statistics of an unpacked network
_TYPES: dict[str, type[nn.Module]] = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d, "Linear": nn.Linear}


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: the trained network, and what is needed to use it."""

    model: nn.Module
    settings: Settings
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # of one image
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def preprocessing(self) -> Preprocessing:
        """How a picture becomes an input, as it goes into a packed file."""
        return Preprocessing(tuple(self.mean.tolist()), tuple(self.std.tolist()), self.shape[1:])


def method_of(settings: Settings) -> Method | None:
    """The method that the settings name; None for the dense network."""
    if settings.method == "dense":
        return None
    shares = {key: value for key, value in (("f1", settings.f1), ("f2", settings.f2)) if value}
    return from_config({"name": settings.method, **shares, **settings.method_options})


def dense_model(settings: Settings, classes: int, channels: int) -> nn.Module:
    """The uncompressed network in its default initialisation, which follows from the seed alone."""
    name, _, variant = settings.model.partition("-")  # vgg16-lego: the variant "lego" of vgg16
    if name not in MODELS:
        raise ConfigError(f"unknown model {settings.model!r}: choose from {', '.join(MODELS)}")
    options = {**settings.model_options, **({"variant": variant} if variant else {})}
    with _seeded(settings.seed, "dense weights"):
        try:
            return MODELS[name](num_classes=classes, in_channels=channels, **options)
        except TypeError as error:
            raise ConfigError(f"model {settings.model}: {error}") from error


def build_model(settings: Settings, classes: int, channels: int, data: DataSet | None = None) -> nn.Module:
    """The network to train, compressed as the settings say, with its initial weights.

    To start from a packed file takes `data` besides, for the statistics of BatchNorm.
    """
    method = method_of(settings)
    packed = packed_start(settings)
    source = _starting_point(settings) if settings.init_from and packed is None else None
    if source is not None and source.settings.method == "dense":
        start = source.model.train()  # a finished run comes in evaluation mode, which would freeze BatchNorm
        return _compressed(start, method, settings, "dense") if method else start
    dense = dense_model(settings, classes, channels)
    model = _compressed(dense, method, settings, "random") if method else dense
    if packed is not None and method and _is_dense(packed):
        sizes = {
            name: layer.unpacked_size for name, layer in model.named_modules() if isinstance(layer, CompressedLayer)
        }
        _start_from_packed(dense, packed, data, sizes)
        return _compressed(dense, method, settings, "dense")
    if source is not None and source.settings.method == settings.method:
        _start_alike(model, source.model, settings)
    elif source is not None:
        _start_from_legonet(model, source.model, settings)
    elif packed is not None:
        _start_from_packed(model, packed, data)
    return model


def _compressed(dense: nn.Module, method: Method, settings: Settings, init: Any) -> nn.Module:
    with _seeded(settings.seed, "compressed weights"):
        return compress(dense, method, keep=[_TYPES.get(name, name) for name in settings.keep], init=init)


def packed_start(settings: Settings) -> Path | None:
    """The packed file that a run starts from; None where that is a run, or nothing."""
    if not settings.init_from or Path(settings.init_from).is_dir():
        return None
    file = zoo.find(settings.init_from)
    return file if file.suffix == ".sbit" else None


def _is_dense(file: Path) -> bool:
    """Whether a packed file has no weights but plain ones."""
    return all(isinstance(op.weight, Dense) for op in decode(load(file).data).weighted())


def _start_from_packed(
    model: nn.Module, file: Path, data: DataSet | None, sizes: Mapping[str, float] | None = None
) -> None:
    """The weights of a packed file in a new network; BatchNorm gets its statistics from training images."""
    if data is None:
        raise ConfigError(f"init_from = {str(file)!r}: to unpack a file, the data set is needed as well")
    network = load(file)
    check_packed_fits(str(file), data, network)
    some = np.random.default_rng(0).permutation(len(data.train))[:_STATISTICS_IMAGES]  # of all classes
    try:
        images = Normalise(data)(torch.from_numpy(data.train.images[some]))
        unpack(model, network.data, images=images, sizes=sizes)
    except ModelError as error:
        raise ConfigError(f"init_from = {str(file)!r}: {error}") from error


def check_packed_fits(name: str, data: DataSet, network: Network) -> None:
    """A ConfigError unless a packed network is for this data set."""
    if not network.labels and network.output_shape != (len(data.classes),):
        raise ConfigError(f"{name} gives {network.output_shape} numbers, {data.name} has {len(data.classes)} classes")
    check_fits(name, data, network.labels or data.classes, network.input_shape, network.preprocessing)


def check_fits(
    name: str, data: DataSet, classes: tuple[str, ...], shape: tuple[int, ...], expected: Preprocessing | None
) -> None:
    """A ConfigError unless a network of these classes and images is for this data set."""
    if classes != data.classes or shape != data.shape:
        raise ConfigError(f"{name} was trained on other classes or image sizes than {data.name}")
    if expected is not None and not (
        np.allclose(expected.mean, data.mean, rtol=1e-3) and np.allclose(expected.std, data.std, rtol=1e-3)
    ):
        raise ConfigError(f"{name} expects images of another mean and spread than {data.name} has")


def _starting_point(settings: Settings) -> Run:
    source = open_run(settings.init_from)
    possible = {"dense", settings.method, *(("legonet",) if settings.method == "slbf" else ())}
    if source.settings.method not in possible or source.settings.model != settings.model:
        needed = " or ".join(f"a {method} {settings.model}" for method in sorted(possible))
        raise ConfigError(
            f"init_from = {settings.init_from!r} is a {source.settings.method} {source.settings.model}: "
            f"to start from, {needed} is needed"
        )
    return source


def _start_alike(model: nn.Module, source: nn.Module, settings: Settings) -> None:
    """All weights of a run of the same method, to train them further in another way. Selections learn again.

    Those of a run that had fixed ones can begin to learn, from where they are.
    """
    trained = dict(source.named_modules())
    selecting = {
        name: (layer, start)
        for name, layer in model.named_modules()
        if isinstance(layer, SLBFLayer) and isinstance(start := trained.get(name), SLBFLayer)
        if start.fixed and layer.can_select_from(start)
    }
    try:
        _load_outside(model, source, selecting)
        for layer, start in selecting.values():
            layer.start_selecting(start)
    except RuntimeError as error:
        raise ConfigError(
            f"init_from = {settings.init_from!r} has other parameters than this network: classes, f1, f2, keep, "
            "model_options and options of the method that add parameters must be equal"
        ) from error
    for module in model.modules():
        if isinstance(module, StackedLayer) and not module.fixed:
            module.frozen.fill_(False)


def _start_from_legonet(model: nn.Module, source: nn.Module, settings: Settings) -> None:
    """Stacked layers as `SLBF.from_legonet` makes them of their namesakes, everything else as it was trained."""
    trained = dict(source.named_modules())
    stacked = {name: layer for name, layer in model.named_modules() if isinstance(layer, SLBFLayer)}
    try:
        _load_outside(model, source, stacked)
        for name, layer in stacked.items():
            options = {key: getattr(layer.method, key) for key in ("scale", "selection", "estimator")}
            layer.load_state_dict(SLBF.from_legonet(trained[name], **options).state_dict())
    except (RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"init_from = {settings.init_from!r} has other shared filters than this network: "
            "f1, f2 and keep must be equal"
        ) from error


def _load_outside(model: nn.Module, source: nn.Module, layers: Iterable[str]) -> None:
    """Everything of `source` but what is inside the named layers; a RuntimeError where it does not fit."""
    inside = tuple(f"{name}." for name in layers)
    state = source.state_dict()
    own = {key: value for key, value in model.state_dict().items() if key.startswith(inside)}
    model.load_state_dict({key: value for key, value in state.items() if not key.startswith(inside)} | own)


@contextlib.contextmanager
def _seeded(seed: int, purpose: str) -> Iterator[None]:
    """Global random numbers from the seed inside the block, as before behind it."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(derive(seed, purpose))
    try:
        yield
    finally:
        torch.set_rng_state(before)


# --------------------------------------------------------------------------------------------- model.pt


def save_run(path: Path, model: nn.Module, settings: Settings, data: DataSet) -> None:
    """The trained network as plain data: no pickle, nothing but tensors, numbers and names."""
    content = {
        "kind": _KIND,
        "settings": settings.to_dict(),
        "classes": list(data.classes),
        "shape": list(data.shape),
        "mean": data.mean.tolist(),
        "std": data.std.tolist(),
        "state": {key: value.detach().cpu() for key, value in model.state_dict().items()},
    }
    checkpoint.write(path, content)


def open_run(path: str | Path) -> Run:
    """The finished run in this folder, or in this model.pt.

    run = open_run("runs/lenet5")
    subbit.pack(run.model, "net.sbit", example=torch.zeros(1, *run.shape), labels=run.classes)
    """
    path = Path(path)
    file = path / MODEL_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        unfinished = (path / checkpoint.NEWEST).exists()
        advice = "it is not finished, continue it with --resume" if unfinished else "no run was made in it"
        raise TrainingError(f"{path} has no {MODEL_FILE}: {advice}")
    content = checkpoint.read(file)
    if content.get("kind") != _KIND:
        raise TrainingError(f"{file} is not the model of a run of subbit")
    settings = Settings.from_dict(content["settings"]).but(init_from="")
    model = build_model(settings, len(content["classes"]), content["shape"][0])
    _load_state(model, content["state"], file)
    original = Settings.from_dict(content["settings"])
    mean, std = (np.array(content[key], dtype=np.float32) for key in ("mean", "std"))
    return Run(model.eval(), original, tuple(content["classes"]), _triple(content["shape"]), mean, std)


def load_run(path: str | Path) -> tuple[nn.Module, Settings]:
    """The trained network of a finished run, in evaluation mode, and its settings."""
    run = open_run(path)
    return run.model, run.settings


def _load_state(model: nn.Module, state: dict[str, Any], file: Path) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise TrainingError(f"{file} does not fit the network that its settings describe: {error}") from error


def _triple(shape: Sequence[int]) -> tuple[int, int, int]:
    channels, height, width = shape
    return channels, height, width

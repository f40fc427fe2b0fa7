"""Unpacking: the weights of a `.sbit` file back in a PyTorch model, to be trained further.

    model = subbit.compress(subbit.models.vgg16(), SLBF(f1=1/2, f2=1/8, selection="fixed"))
    subbit.unpack(model, "net.sbit", images=batch)

A file holds what a network computes, not how it was trained. Signs get latents of one size, about that of trained ones,
so that all are as far from turning; where the scales of a method are the size of its latents, only before a BatchNorm,
which takes any. BatchNorm was folded into a gain and a shift per channel: its statistics are taken from `images` again,
and its weight and bias such that it does to these what the file does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from subbit.calibration import without_levels
from subbit.errors import InputError, ModelError
from subbit.format import decode, encode
from subbit.methods.base import CompressedLayer, Plain
from subbit.methods.stacking import StackedLayer
from subbit.nn.lowering.tracing import OutputKey, evaluating, module_path, single_output, unwrapped
from subbit.nn.pack import to_packed
from subbit.nn.reference import run
from subbit.records import Affine, Conv, Dense, Linear, Op, Program
from subbit.runtime import load

# Of the largest output. Rounding gives some 1e-5; a layer that did not take its weights gives far more.
TOLERANCE = 1e-3
CHECKED_IMAGES = 16

Gain = tuple[Tensor, Tensor]  # scale and shift per channel


@torch.no_grad()
def unpack(
    model: nn.Module,
    file: str | os.PathLike[str] | bytes,
    *,
    images: Tensor,
    output: OutputKey = None,
    sizes: Mapping[str, float] | None = None,
) -> None:
    """Give `model` the weights of a packed network of the same structure.

        subbit.unpack(model, "net.sbit", images=train_images[:512])

    `images` are inputs as the network takes them, a few hundred, from which BatchNorm gets its statistics; `output` is
    the one of `pack`. The model, in fp32, is changed in place and stays in its mode; afterwards it answers as the file
    does, which is checked. Where it cannot, it is as it was before.

    Stacked layers whose selections are learned may have more shared filters than those of the file (a larger f2, or a
    bank of which the file left unused ones out): the file's are there several times then, for fewer blocks each.

    `sizes` asks for filters of another size (root mean square) in plain layers, by name, which a BatchNorm behind them
    makes up for: latents that start from these shall move as easily as others of their method.
    """
    program = without_levels(decode(load(file).data))
    if not isinstance(images, Tensor) or tuple(images.shape[1:]) != program.input_shape or not len(images):
        shape = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images are {shape}: a tensor of (N, {', '.join(map(str, program.input_shape))}) is needed")
    model = unwrapped(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        gains = _fill_layers(model, program, output, sizes or {})
        _settle_norms(model, gains, images)
        _check_answers(model, program, images[:CHECKED_IMAGES], output)
    except BaseException:
        model.load_state_dict(before)
        raise


def _fill_layers(
    model: nn.Module, program: Program, output: OutputKey, sizes: Mapping[str, float]
) -> dict[nn.Module, Gain]:
    """All layers with their weights; and what every BatchNorm has to do in all to what reaches it."""
    gains: dict[nn.Module, Gain] = {}
    seen: set[str | nn.Module] = set()
    modules = dict(model.named_modules())
    for here, there, origin in list(_aligned(model, program, output)):
        path = module_path(origin) if origin is not None else ""
        found = modules.get(path)
        norm = found if isinstance(found, _BatchNorm) else None
        if isinstance(there, Conv | Linear):
            if origin is not None and norm is None and path != here.name:
                raise ModelError(f"{here.name}: what follows it was folded into it, and is no BatchNorm")
            _once(here.name, here.name, seen)
            layer = modules.get(here.name)
            if not isinstance(layer, CompressedLayer | nn.Conv1d | nn.Conv2d | nn.Linear) or not _owns_weight(layer):
                raise ModelError(f"{here.name} ({type(layer).__name__}) is no layer whose weights can be unpacked")
            rest = _fill(layer, replace(there, name=here.name), norm, sizes.get(here.name))
        elif isinstance(there, Affine) and norm is not None:
            rest = _gain(there, norm.num_features)
        elif _same_arrays(here, there):
            continue
        else:
            raise ModelError(f"{path or 'the model'} ({type(there).__name__}) has numbers of its own, which are others")
        if norm is not None:
            _once(norm, path, seen)
            gains[norm] = rest
    return gains


def _once(what: str | nn.Module, name: str, seen: set[str | nn.Module]) -> None:
    if what in seen:
        raise ModelError(f"{name} is used more than once: its weights cannot be unpacked")
    seen.add(what)


def _owns_weight(layer: CompressedLayer | Plain) -> bool:
    return isinstance(layer, CompressedLayer) or isinstance(layer.weight, nn.Parameter)  # and does not derive it


def _aligned(model: nn.Module, program: Program, output: OutputKey) -> Iterator[tuple[Op, Op, fx.Node | None]]:
    """Operations of the model and of the file in pairs, and the node of the model that gives the same value."""
    packed = to_packed(model, program.input_shape, program.storage, output=output)
    mine, theirs = decode(encode(packed.program)).ops, program.ops  # numbers rounded alike
    modules = dict(model.named_modules())
    for value, (here, there) in enumerate(zip(mine, theirs, strict=False), start=1):
        if _form(here) != _form(there):
            raise ModelError(
                f"the file holds another network: operation {value} is {_form(there)} there, and "
                f"{_form(here)}{f' ({here.name})' if here.name else ''} in the model"
            )
        origin = packed.origins.get(value)
        if origin is not None and not isinstance(here, Conv | Linear | Affine):
            path = module_path(origin)
            if isinstance(modules.get(path), _BatchNorm):
                raise ModelError(
                    f"{path} (BatchNorm) was folded into the layer before {type(here).__name__}, which it follows"
                )
        yield here, there, origin
    if len(mine) != len(theirs):
        raise ModelError(f"the file holds another network: it has {len(theirs)} operations, the model {len(mine)}")


def _form(op: Op) -> str:
    """What has to be equal of an operation, for people too."""
    learned = {"name", "weight", "levels", "scale", "shift"}
    values = {f.name: getattr(op, f.name) for f in fields(op) if f.name not in learned}
    options = ", ".join(f"{name}={value}" for name, value in values.items() if not isinstance(value, np.ndarray))
    if not isinstance(op, Conv | Linear):
        return f"{type(op).__name__}({options})"
    record = type(op.weight).__name__.lower()
    return f"{type(op).__name__} of {'×'.join(map(str, op.weight.shape))} {record} weights ({options})"


def _same_arrays(here: Op, there: Op) -> bool:
    """Whether all numbers of an operation are those of the file already."""
    mine, theirs = dict(here.arrays()), dict(there.arrays())
    return mine.keys() == theirs.keys() and all(
        mine[key].shape == theirs[key].shape and np.allclose(mine[key], theirs[key], rtol=1e-2) for key in mine
    )


def _fill(layer: CompressedLayer | Plain, op: Conv | Linear, norm: _BatchNorm | None, size: float | None) -> Gain:
    """A layer with the weights of `op`; what of its gain and shift is left to a BatchNorm behind it."""
    if isinstance(layer, CompressedLayer):
        size = layer.unpacked_size if layer.has_scales else None
    filters = op.weight.shape[0]
    gain, shift = _gain(op, filters)
    own = torch.ones(filters)  # the part of the gain that the layer takes
    if norm is None:
        own = gain
    elif norm.affine and size is not None:  # BatchNorm takes any positive factor
        stored = torch.from_numpy(op.weight.weight()).flatten(1).square().mean(1).sqrt()
        own = size / stored.clamp_min(torch.finfo(stored.dtype).tiny)
        if isinstance(layer, StackedLayer):  # whose scales have signs
            own = torch.where(gain < 0, -own, own)
    if isinstance(layer, CompressedLayer):
        layer.start_record(op.weight, own)
    else:
        assert isinstance(op.weight, Dense)  # or the model would have been packed otherwise
        values = torch.from_numpy(op.weight.values) * own.reshape(-1, *[1] * (op.weight.values.ndim - 1))
        layer.weight.copy_(values.reshape(layer.weight.shape))
    if layer.bias is not None:
        layer.bias.copy_(shift if norm is None else torch.zeros(filters))
    elif norm is None and bool(shift.any()):
        raise ModelError(f"the file has a bias for {op.name}, the model has none")
    return gain / own, shift


def _gain(op: Conv | Linear | Affine, channels: int) -> Gain:
    scale = np.ones(channels, np.float32) if op.scale is None else op.scale
    shift = np.zeros(channels, np.float32) if op.shift is None else op.shift
    return torch.from_numpy(scale.copy()), torch.from_numpy(shift.copy())


def _settle_norms(model: nn.Module, gains: dict[nn.Module, Gain], images: Tensor) -> None:
    """Statistics of `images` in every BatchNorm, layer after layer, and weights such that the whole is as in the file.

    One that the file has no operation for was folded into a layer before or behind it, and does nothing here.
    """

    def settle(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, _BatchNorm)
        scale, shift = (value.to(inputs[0]) for value in gains.get(norm, (torch.ones(1), torch.zeros(1))))
        over = [dim for dim in range(inputs[0].ndim) if dim != 1]
        variance, mean = torch.var_mean(inputs[0], over, correction=0)
        if norm.affine:
            norm.weight.copy_(scale * (variance + norm.eps).sqrt())
            norm.bias.copy_(shift + scale * mean)
        else:  # statistics are all that it has
            variance, mean = scale**-2 - norm.eps, -shift / scale
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.fill_(1)
        handles.pop(norm).remove()  # used again, it stays as it is

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    handles = {norm: norm.register_forward_pre_hook(settle) for norm in norms}
    try:
        with evaluating(model):
            model(images)
    finally:
        for handle in handles.values():
            handle.remove()


def _check_answers(model: nn.Module, program: Program, images: Tensor, output: OutputKey) -> None:
    with evaluating(model):
        got = single_output(model(images), output).float().cpu()
    expected = run(program, images.float().cpu())[program.output_value]
    difference = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
    if not difference <= TOLERANCE:
        raise ModelError(
            f"the model cannot take the weights of this file: its answers differ by {difference:.1e} of the largest"
        )

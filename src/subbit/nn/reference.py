"""A packed network in plain PyTorch: the independent reference that the C core is compared with.

    values = run(program, x)        # (N, *input_shape) -> every value, the input first
    logits = values[program.output_value]

Nothing here is fast, and nothing is shared with the core: each operation is one or a few torch functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from subbit import records
from subbit.errors import ModelError
from subbit.records import Binary, Levels, Op, Program, Stacked


def run(program: Program, x: Tensor) -> list[Tensor]:
    """All values of a network for a batch: the input, then one per operation."""
    values = [x]
    for op in program.ops:
        values.append(run_op(op, [values[i] for i in op.inputs], len(x)))
    return values


def run_op(op: Op, inputs: Sequence[Tensor], batch: int) -> Tensor:
    """One operation on values that have their batch in front."""
    handler = _OPERATIONS.get(type(op))
    if handler is None:
        raise ModelError(f"no reference for {type(op).__name__}")
    result: Tensor = handler(op, *inputs, batch=batch) if isinstance(op, records.Constant) else handler(op, *inputs)
    return result


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(values.copy())


def _along(numbers: Any, x: Tensor, dim: int) -> Tensor:
    """A vector shaped to broadcast along `dim` of x (counted with the batch)."""
    shape = [1] * x.dim()
    shape[dim] = -1
    return _tensor(numbers).reshape(shape)


def _signs(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0)


def _scaled(op: records.Conv | records.Linear | records.Affine, y: Tensor, dim: int) -> Tensor:
    if op.scale is not None:
        y = y * _along(op.scale, y, dim)
    return y if op.shift is None else y + _along(op.shift, y, dim)


def _conv(op: records.Conv, x: Tensor) -> Tensor:
    weight = op.weight
    flat = x.dim() == 3  # (N, C, L) as (N, C, 1, L)
    if flat:
        x = x.unsqueeze(2)
    if op.binary_input:
        x = _signs(x)
    if op.levels is not None:
        x = round_to_levels(op.levels, x).double()
    top, bottom, left, right = op.padding
    x = F.pad(x, (left, right, top, bottom))

    def convolve(filters: Tensor, groups: int) -> Tensor:
        kernel = filters.unsqueeze(2) if flat else filters
        return F.conv2d(x, kernel.to(x.dtype), None, op.stride, 0, op.dilation, groups)

    if op.levels is None:
        y = _scaled(op, convolve(_tensor(weight.weight()), op.groups), 1)
    elif isinstance(weight, Stacked):  # every shared filter over every block: (N, groups, k, m, H, W)
        blocks = op.groups * weight.blocks
        maps = convolve(_tensor(np.tile(weight.bank, (blocks, *[1] * (weight.bank.ndim - 1)))), blocks)
        y = _merged(op, op.levels, maps.reshape(len(x), op.groups, weight.blocks, weight.filters, *maps.shape[2:]))
    else:
        assert isinstance(weight, Binary)
        y = _merged(op, op.levels, convolve(_tensor(weight.signs), op.groups))
    return y.squeeze(2) if flat else y


def _linear(op: records.Linear, x: Tensor) -> Tensor:
    if op.levels is not None:  # a convolution of one tap: rows are columns of a plane of height 1
        features = x.shape[-1]
        columns = x.reshape(len(x), -1, features).transpose(1, 2).unsqueeze(2)
        y = _conv(_one_by_one(op), columns).squeeze(2).transpose(1, 2)
        return y.reshape(*x.shape[:-1], -1)
    if op.binary_input:
        x = _signs(x)
    return _scaled(op, F.linear(x, _tensor(op.weight.weight())), -1)


def _one_by_one(op: records.Linear) -> records.Conv:
    weight = op.weight
    if isinstance(weight, Stacked):
        weight = replace(weight, bank=weight.bank[:, :, None, None])
    elif isinstance(weight, Binary):
        weight = replace(weight, signs=weight.signs[:, :, None, None])
    return records.Conv(inputs=op.inputs, weight=weight, scale=op.scale, shift=op.shift, levels=op.levels)


def round_to_levels(levels: Levels, x: Tensor) -> Tensor:
    """The nearest levels, as whole fp32 numbers; ties go to the even one and NaN to the highest."""
    factor = np.float32(1) / np.float32(levels.step)
    return (x * float(factor)).nan_to_num(levels.highest).round().clamp(levels.lowest, levels.highest)


def _merged(op: records.Conv, levels: Levels, maps: Tensor) -> Tensor:
    """Scales and shifts in fp32, every product and every sum rounded by itself, blocks in their order.

    `maps` are sums of levels, exact in fp64: (N, groups, k, m, H, W) of a stack, (N, c_out, H, W) of plain filters.
    """
    folded = records.fold_scales(op)
    weight = folded.weight
    maps = maps.float()
    if isinstance(weight, Stacked):
        stack = op.weight
        assert isinstance(stack, Stacked)  # not compacted: the maps are those of all filters
        group = torch.arange(len(stack.index)) // (len(stack.index) // op.groups)
        index = torch.from_numpy(stack.index)
        total = maps[:, group, 0, index[:, 0]]
        for i in range(1, stack.blocks):
            term = maps[:, group, i, index[:, i]]
            total = total + (term if weight.scale is None else term * _along(weight.scale[:, i], term, 1))
    else:
        total = maps
    step = np.float32(levels.step)
    scale = np.full(weight.shape[0], step) if folded.scale is None else folded.scale * step
    shift = np.zeros_like(scale) if folded.shift is None else folded.shift
    return total * _along(scale, total, 1) + _along(shift, total, 1)


_FUNCTIONS: dict[str, Callable[[records.Activation, Tensor], Tensor]] = {
    "relu": lambda op, x: F.relu(x),
    "relu6": lambda op, x: F.relu6(x),
    "leaky_relu": lambda op, x: F.leaky_relu(x, op.a),
    "hardtanh": lambda op, x: x.clamp(op.a, op.b),
    "sigmoid": lambda op, x: torch.sigmoid(x),
    "hard_sigmoid": lambda op, x: F.hardsigmoid(x),
    "silu": lambda op, x: F.silu(x),
    "hard_swish": lambda op, x: F.hardswish(x),
    "gelu": lambda op, x: F.gelu(x),
    "gelu_tanh": lambda op, x: F.gelu(x, approximate="tanh"),
    "tanh": lambda op, x: torch.tanh(x),
    "sign": lambda op, x: torch.sign(x),
    "abs": lambda op, x: torch.abs(x),
    "elu": lambda op, x: F.elu(x, op.a),
    "softplus": lambda op, x: F.softplus(x, op.a, op.b),
    "mish": lambda op, x: F.mish(x),
    "exp": lambda op, x: torch.exp(x),
    "log": lambda op, x: torch.log(x),
    "sqrt": lambda op, x: torch.sqrt(x),
}

_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
}


def _arithmetic(op: records.Arithmetic, a: Tensor, b: Tensor) -> Tensor:
    rank = max(a.dim(), b.dim())  # shapes are aligned at the end, behind the batch
    a, b = (v.reshape(len(v), *[1] * (rank - v.dim()), *v.shape[1:]) for v in (a, b))
    return _ARITHMETIC[op.function](a, b)


def _as_map(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of (N, C, H, W) applied to values of any rank: (N, C, L) has height 1."""
    if x.dim() == 3:
        return function(x.unsqueeze(2)).squeeze(2)
    if x.dim() == 4:
        return function(x)
    y = function(x.flatten(1, -3))
    return y.reshape(*x.shape[:-2], *y.shape[-2:])


def _pool(op: records.Pool, x: Tensor) -> Tensor:
    def pool(x: Tensor) -> Tensor:
        if op.kind == "max":
            return F.max_pool2d(x, op.kernel, op.stride, op.padding, op.dilation, op.ceil_mode)
        return F.avg_pool2d(x, op.kernel, op.stride, op.padding, op.ceil_mode, op.count_include_pad, op.divisor or None)

    return _as_map(pool, x)


def _adaptive_pool(op: records.AdaptivePool, x: Tensor) -> Tensor:
    def pool(x: Tensor) -> Tensor:
        size = (op.output[0] or x.shape[-2], op.output[1] or x.shape[-1])
        return F.adaptive_max_pool2d(x, size) if op.kind == "max" else F.adaptive_avg_pool2d(x, size)

    return _as_map(pool, x)


def _upsample(op: records.Upsample, x: Tensor) -> Tensor:
    def resize(x: Tensor) -> Tensor:
        align = op.align_corners if op.mode == "bilinear" else None
        wanted = [
            size or math.floor(have * factor)
            for size, have, factor in zip(op.output, x.shape[-2:], op.factor, strict=True)
        ]
        if not all(op.factor):
            return F.interpolate(x, size=wanted, mode=op.mode, align_corners=align)
        return F.interpolate(x, scale_factor=list(op.factor), mode=op.mode, align_corners=align)

    return _as_map(resize, x)


def _pad(op: records.Pad, x: Tensor) -> Tensor:
    top, bottom, left, right = op.amounts

    def pad(x: Tensor) -> Tensor:
        if op.mode == "constant":
            return F.pad(x, (left, right, top, bottom), value=op.value)
        return F.pad(x, (left, right, top, bottom), mode=op.mode)

    return _as_map(pad, x)


def _layer_norm(op: records.LayerNorm, x: Tensor) -> Tensor:
    moved = x.movedim(op.dim + 1, -1)
    scale = None if op.scale is None else _tensor(op.scale)
    shift = None if op.shift is None else _tensor(op.shift)
    return F.layer_norm(moved, moved.shape[-1:], scale, shift, op.eps).movedim(-1, op.dim + 1)


def _slice(op: records.Slice, x: Tensor) -> Tensor:
    return x[(slice(None),) * (op.dim + 1) + (slice(op.start, op.stop, op.step),)]


_OPERATIONS: dict[type[Op], Callable[..., Tensor]] = {
    records.Conv: _conv,
    records.Linear: _linear,
    records.Affine: lambda op, x: _scaled(op, x, 1),
    records.Activation: lambda op, x: _FUNCTIONS[op.function](op, x),
    records.PReLU: lambda op, x: torch.where(x >= 0, x, x * _along(op.slope, x, 1)),
    records.Pool: _pool,
    records.AdaptivePool: _adaptive_pool,
    records.Mean: lambda op, x: x.mean([d + 1 for d in op.dims], op.keepdim),
    records.Arithmetic: _arithmetic,
    records.Constant: lambda op, batch: _tensor(op.value).expand(batch, *op.value.shape),
    records.Concat: lambda op, *parts: torch.cat(parts, op.dim + 1),
    records.Slice: _slice,
    records.Reshape: lambda op, x: x.reshape(len(x), *op.shape),
    records.Permute: lambda op, x: x.permute(0, *(d + 1 for d in op.dims)),
    records.LayerNorm: _layer_norm,
    records.Pad: _pad,
    records.Upsample: _upsample,
    records.Softmax: lambda op, x: torch.softmax(x, op.dim + 1),
}

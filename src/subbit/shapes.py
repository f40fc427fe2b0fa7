"""Shapes of all values of a `Program`, from its input shape and its operations. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, prod

import numpy as np

from subbit.errors import ModelError
from subbit.records import (
    AdaptivePool,
    Concat,
    Constant,
    Conv,
    Linear,
    Mean,
    Op,
    Pad,
    Permute,
    Pool,
    Program,
    Reshape,
    Shape,
    Slice,
    Upsample,
)


def value_shapes(program: Program) -> list[Shape]:
    """The shape of value 0 (the input), 1 (of the first operation), …, without the batch."""
    shapes = [program.input_shape]
    for number, op in enumerate(program.ops):
        try:
            shape = output_shape(op, [shapes[i] for i in op.inputs])
        except (ValueError, IndexError) as error:
            where = f"operation {number} ({type(op).__name__} {op.name})"
            raise ModelError(f"{where}: the shapes of its inputs do not fit: {error}") from error
        shapes.append(shape)
    return shapes


def output_shape(op: Op, inputs: Sequence[Shape]) -> Shape:
    """The shape that an operation gives for inputs of these shapes; element-wise ones broadcast."""
    if isinstance(op, Constant):
        return op.value.shape
    first = inputs[0]
    if isinstance(op, Conv):
        return _conv(op, first)
    if isinstance(op, Linear):
        return (*first[:-1], op.weight.shape[0])
    if isinstance(op, Pool):
        sides = zip(_plane(first), op.kernel, op.stride, op.padding, op.dilation, strict=True)
        return _with_plane(first, [_pooled(*side, op.ceil_mode) for side in sides])
    if isinstance(op, AdaptivePool):
        return _with_plane(first, [want or have for want, have in zip(op.output, _plane(first), strict=True)])
    if isinstance(op, Upsample):
        scaled = [floor(have * factor) for have, factor in zip(_plane(first), op.factor, strict=True)]
        return _with_plane(first, [want or instead for want, instead in zip(op.output, scaled, strict=True)])
    if isinstance(op, Pad):
        top, bottom, left, right = op.amounts
        height, width = _plane(first)
        return _with_plane(first, (height + top + bottom, width + left + right))
    if isinstance(op, Mean):
        kept = [1 if i in op.dims else extent for i, extent in enumerate(first)]
        return tuple(kept) if op.keepdim else tuple(e for i, e in enumerate(first) if i not in op.dims)
    if isinstance(op, Concat):
        return _replaced(first, op.dim, sum(shape[op.dim] for shape in inputs))
    if isinstance(op, Slice):
        return _replaced(first, op.dim, len(range(op.start, min(op.stop, first[op.dim]), op.step)))
    if isinstance(op, Reshape):
        return _reshaped(op.shape, prod(first))
    if isinstance(op, Permute):
        return tuple(first[dim] for dim in op.dims)
    return np.broadcast_shapes(*inputs)


def _conv(op: Conv, shape: Shape) -> Shape:
    kernel = op.weight.shape[2:]
    kernel = (1,) * (2 - len(kernel)) + kernel
    top, bottom, left, right = op.padding
    plane = []
    for i, (size, padding) in enumerate(zip(_plane(shape), (top + bottom, left + right), strict=True)):
        reach = op.dilation[i] * (kernel[i] - 1) + 1
        plane.append((size + padding - reach) // op.stride[i] + 1)
    return (op.weight.shape[0], *_with_plane(shape, plane)[1:])


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    # a window that would start in the padding behind the end is left out, as in PyTorch
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _plane(shape: Shape) -> tuple[int, int]:
    """Height and width; (C, L) has height 1."""
    return (1, shape[1]) if len(shape) == 2 else (shape[-2], shape[-1])


def _with_plane(shape: Shape, plane: Sequence[int]) -> Shape:
    return (shape[0], plane[1]) if len(shape) == 2 else (*shape[:-2], plane[0], plane[1])


def _replaced(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


def _reshaped(shape: Shape, size: int) -> Shape:
    if -1 not in shape:
        return shape
    rest = prod(extent for extent in shape if extent != -1)
    return tuple(size // rest if extent == -1 else extent for extent in shape)

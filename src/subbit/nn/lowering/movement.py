"""Reshaping, permuting, cutting and joining; means, maxima and softmax along dimensions.

A packed network has no batch dimension. A handler takes the shape that the traced value really has, without its
batch, so it does not matter how a model spells it: `x.view(x.size(0), -1)`, `flatten(1)`, `view(-1, 400)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subbit.nn.lowering.builder import Builder, Value
from subbit.nn.lowering.pointwise import activation, clamp, combine, neg
from subbit.nn.lowering.spatial import extreme
from subbit.records import Mean, Softmax

Handler = Callable[..., Any]


# ------------------------------------------------------------------------------------------------- shapes


def reshape(b: Builder, input: Value, *args: Any, **kwargs: Any) -> Value:
    """view, reshape, flatten, squeeze, …: all that matters is the shape that comes out."""
    return b.reshape(input, b.shape)


def permute(b: Builder, input: Value, *order: Any, dims: Any = None) -> Value:
    order = _listed(order, dims)
    return _permute(b, input, [d % (input.rank + 1) for d in order])


def transpose(b: Builder, input: Value, dim0: int, dim1: int) -> Value:
    order = list(range(input.rank + 1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(b, input, order)


def matrix_transpose(b: Builder, input: Value) -> Value:
    return transpose(b, input, -2, -1)


def movedim(b: Builder, input: Value, source: Any, destination: Any) -> Value:
    numbered = torch.empty(tuple(range(1, input.rank + 2)), device="meta")  # every dimension as large as its place
    return _permute(b, input, [size - 1 for size in torch.movedim(numbered, source, destination).shape])


def _permute(b: Builder, x: Value, order: list[int]) -> Value:
    b.require(order[0] == 0, "moves the batch dimension: supported are permutations behind it")
    return b.permute(x, [d - 1 for d in order[1:]])


def _listed(given: tuple[Any, ...], named: Any) -> tuple[Any, ...]:
    """Numbers that were given one by one, as one list, or by name."""
    if named is None:
        named = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
    return (named,) if isinstance(named, int) else tuple(named)


def expand(b: Builder, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Dimensions of size 1 repeated; new ones come in front of the old, where the batch is."""
    b.require(len(b.shape) == input.rank, "adds dimensions in front of the batch")
    return _repeat(b, input, [want // have for want, have in zip(b.shape, input.shape, strict=True)])


def repeat(b: Builder, input: Value, *sizes: Any, repeats: Any = None, dims: Any = None) -> Value:
    """repeat and tile, which may name the last dimensions only."""
    counts = list(_listed(sizes, repeats if dims is None else dims))
    counts = [1] * (input.rank + 1 - len(counts)) + counts
    b.require(len(counts) == input.rank + 1 and counts[0] == 1, "repeats the batch")
    return _repeat(b, input, counts[1:])


def _repeat(b: Builder, x: Value, counts: Sequence[int]) -> Value:
    for dim, count in enumerate(counts):
        x = b.concat([x] * count, dim)
    return x


def pixel_shuffle(b: Builder, input: Value, upscale_factor: int) -> Value:
    c, h, w = input.shape
    r = upscale_factor
    x = b.reshape(input, (c // r**2, r, r, h, w))
    return b.reshape(b.permute(x, (0, 3, 1, 4, 2)), b.shape)


def pixel_unshuffle(b: Builder, input: Value, downscale_factor: int) -> Value:
    c, h, w = input.shape
    r = downscale_factor
    x = b.reshape(input, (c, h // r, r, w // r, r))
    return b.reshape(b.permute(x, (0, 2, 4, 1, 3)), b.shape)


def channel_shuffle(b: Builder, input: Value, groups: int) -> Value:
    c, *rest = input.shape
    x = b.reshape(input, (groups, c // groups, prod(rest)))
    return b.reshape(b.permute(x, (1, 0, 2)), input.shape)


# --------------------------------------------------------------------------------------- cutting, joining


def cat(b: Builder, tensors: Sequence[Any], dim: int = 0) -> Value:
    values = _values(b, tensors)
    return b.concat(values, b.dim(dim, values[0].rank))


def stack(b: Builder, tensors: Sequence[Any], dim: int = 0) -> Value:
    values = _values(b, tensors)
    at = b.dim(dim, values[0].rank + 1)
    shape = (*values[0].shape[:at], 1, *values[0].shape[at:])
    return b.concat([b.reshape(value, shape) for value in values], at)


def _values(b: Builder, parts: Sequence[Any]) -> list[Value]:
    """Constants among the parts become values of their own."""
    rank = next(part.rank for part in parts if isinstance(part, Value))
    return [part if isinstance(part, Value) else b.constant(b.without_batch(part, rank)) for part in parts]


def _cuts(b: Builder, x: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(b.slice(x, dim, start, start + size))
        start += size
    return tuple(parts)


def split(b: Builder, tensor: Value, split_size_or_sections: Any = None, dim: int = 0, **kwargs: Any) -> Any:
    size = kwargs.get("split_size", split_size_or_sections)
    axis = b.dim(dim, tensor.rank)
    return _cuts(b, tensor, axis, _split_sizes(tensor.shape[axis], size))


def _split_sizes(total: int, size: int | Sequence[int]) -> Sequence[int]:
    if not isinstance(size, int):
        return size
    return [min(size, total - start) for start in range(0, total, size)]


def chunk(b: Builder, input: Value, chunks: int, dim: int = 0) -> Any:
    axis = b.dim(dim, input.rank)
    total = input.shape[axis]
    return _cuts(b, input, axis, _split_sizes(total, -(-total // chunks)))


def tensor_split(b: Builder, input: Value, indices_or_sections: Any, dim: int = 0) -> Any:
    axis = b.dim(dim, input.rank)
    total = input.shape[axis]
    if isinstance(indices_or_sections, int):
        small, larger = divmod(total, indices_or_sections)
        sizes = [small + (i < larger) for i in range(indices_or_sections)]
    else:
        edges = [0, *indices_or_sections, total]
        sizes = [stop - start for start, stop in pairwise(edges)]
    return _cuts(b, input, axis, sizes)


def unbind(b: Builder, input: Value, dim: int = 0) -> Any:
    axis = b.dim(dim, input.rank)
    return tuple(_select(b, input, axis, i) for i in range(input.shape[axis]))


def narrow(b: Builder, input: Value, dim: int, start: int, length: int) -> Value:
    axis = b.dim(dim, input.rank)
    start %= input.shape[axis]
    return b.slice(input, axis, start, start + length)


def select(b: Builder, input: Value, dim: int, index: int) -> Value:
    return _select(b, input, b.dim(dim, input.rank), index)


def _select(b: Builder, x: Value, dim: int, index: int) -> Value:
    index %= x.shape[dim]
    return b.reshape(b.slice(x, dim, index, index + 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


def index_select(b: Builder, input: Value, dim: int, index: Any) -> Value:
    b.require(isinstance(index, Tensor), "indices that depend on the input have no packed form")
    return _gather(b, input, b.dim(dim, input.rank), [int(i) for i in index.tolist()])


def flip(b: Builder, input: Value, *axes: Any, dims: Any = None) -> Value:
    for axis in b.dims(_listed(axes, dims), input.rank):
        input = _gather(b, input, axis, list(reversed(range(input.shape[axis]))))
    return input


def roll(b: Builder, input: Value, shifts: Any, dims: Any = None) -> Value:
    b.require(dims is not None, "rolls the flattened batch")
    amounts = [shifts] if isinstance(shifts, int) else list(shifts)
    for axis, amount in zip(b.dims(dims, input.rank), amounts, strict=True):
        size = input.shape[axis]
        input = _gather(b, input, axis, [(i - amount) % size for i in range(size)])
    return input


def _gather(b: Builder, x: Value, dim: int, indices: list[int]) -> Value:
    """Entries of one dimension in a given order: runs of consecutive entries, joined."""
    runs: list[list[int]] = []
    for index in (i % x.shape[dim] for i in indices):
        if runs and runs[-1][1] == index:
            runs[-1][1] += 1
        else:
            runs.append([index, index + 1])
    return b.concat([b.slice(x, dim, start, stop) for start, stop in runs], dim)


def getitem(b: Builder, input: Any, index: Any) -> Any:
    """Part of a tuple, or a tensor indexed by slices, numbers, None, … and one list of entries."""
    if not isinstance(input, Value):
        return operator.getitem(input, index)
    items = _items(b, input, index)
    lists = sum(isinstance(item, list | Tensor) for item in items)
    b.require(lists <= 1, "an index of several lists of numbers has no packed form: supported is one list")
    x, dim = input, 0
    for item in items[1:]:
        x, dim = _index(b, x, dim, item)
    return x


def _items(b: Builder, x: Value, index: Any) -> list[Any]:
    """An index as a list that begins with the whole batch, without an ellipsis."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [i for i in items if not isinstance(i, Tensor)]:
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        missing = x.rank + 1 - sum(i is not None and i is not Ellipsis for i in items)
        items[at : at + 1] = [slice(None)] * missing
    b.require(items[0] == slice(None) or _whole_batch(b, items[0]), "indexes the batch: images must stay apart")
    return items


def setitem(b: Builder, input: Value, index: Any, value: Any) -> Value:
    """What `input` is after input[index] = value: the parts around the value, joined with it."""
    items = _items(b, input, index)[1:]
    b.require(all(isinstance(i, slice | int) for i in items), "assigns to entries chosen by a list: use torch.cat")
    return _assigned(b, input, 0, items, value)


def _assigned(b: Builder, x: Value, dim: int, items: Sequence[slice | int], value: Any) -> Value:
    if dim == len(items):
        return _filling(b, x, value)
    size, item = x.shape[dim], items[dim]
    taken = range(size)[item if isinstance(item, slice) else slice(item % size, item % size + 1)]
    b.require(len(taken) > 0 and taken.step == 1, "assigns to entries that do not lie side by side: use torch.cat")
    middle = _assigned(b, b.slice(x, dim, taken.start, taken.stop), dim + 1, items, value)
    around = [(0, taken.start), (taken.stop, size)]
    before, after = ([b.slice(x, dim, start, stop)] if start < stop else [] for start, stop in around)
    return b.concat([*before, middle, *after], dim)


def _filling(b: Builder, x: Value, value: Any) -> Value:
    """`value` in the shape of x."""
    if not isinstance(value, Value):
        numbers = b.without_batch(torch.as_tensor(value, dtype=torch.float32), x.rank)
        return b.constant(np.ascontiguousarray(np.broadcast_to(numbers, x.shape)))
    if prod(value.shape) == prod(x.shape):
        return b.reshape(value, x.shape)
    b.require(value.rank == x.rank, f"assigns a value of shape {value.shape} to a part of shape {x.shape}")
    return _repeat(b, value, [want // have for want, have in zip(x.shape, value.shape, strict=True)])


def _whole_batch(b: Builder, item: Any) -> bool:
    return isinstance(item, slice) and range(b.batch)[item] == range(b.batch)


def _index(b: Builder, x: Value, dim: int, item: Any) -> tuple[Value, int]:
    """One index applied at `dim`; the value and the dimension that the next index applies to."""
    if item is None:
        return b.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:])), dim + 1
    if isinstance(item, slice):
        taken = range(*item.indices(x.shape[dim]))
        return b.slice(x, dim, taken.start, taken.stop, taken.step), dim + 1
    if isinstance(item, int):
        return _select(b, x, dim, item), dim
    indices = item.tolist() if isinstance(item, Tensor) and item.dtype != torch.bool else item
    simple = isinstance(indices, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in indices)
    b.require(simple, "an index that is not made of numbers, slices and stored lists of numbers has no packed form")
    return _gather(b, x, dim, indices), dim + 1


# --------------------------------------------------------------------------------------------- reductions


def mean(b: Builder, input: Value, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
    b.require(dim is not None, "takes the mean over the batch: name the dimensions")
    return _mean(b, input, b.dims(dim, input.rank), keepdim)


def total(b: Builder, input: Value, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
    b.require(dim is not None, "sums over the batch: name the dimensions")
    return _sum(b, input, b.dims(dim, input.rank), keepdim)


def _mean(b: Builder, x: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    shape = [1 if d in dims else s for d, s in enumerate(x.shape) if keepdim or d not in dims]
    return b.emit(Mean(inputs=(x.id,), dims=tuple(sorted(dims)), keepdim=keepdim), shape)


def _sum(b: Builder, x: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    """The mean times the number of entries; summed with its dimensions kept, so that there is one to scale along."""
    count = prod(x.shape[d] for d in dims)
    scaled = b.scalar(_mean(b, x, dims, keepdim=True), float(count))
    return scaled if keepdim else b.reshape(scaled, tuple(s for d, s in enumerate(x.shape) if d not in dims))


def variance(
    b: Builder,
    input: Value,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value:
    """Σ (x − mean)² / (n − correction)."""
    b.require(dim is not None and not isinstance(dim, bool), "takes the variance over the batch: name the dimensions")
    dims = b.dims(dim, input.rank)
    count = prod(input.shape[d] for d in dims)
    fewer = count - (float(unbiased) if correction is None else correction)
    b.require(fewer > 0, f"a variance of {count} numbers is not defined: pass correction=0")
    above = b.arithmetic("sub", input, _mean(b, input, dims, keepdim=True))
    scaled = b.scalar(_mean(b, b.arithmetic("mul", above, above), dims, keepdim=True), count / fewer)
    return scaled if keepdim else b.reshape(scaled, b.shape)


def deviation(b: Builder, input: Value, *args: Any, **kwargs: Any) -> Value:
    return activation(b, variance(b, input, *args, **kwargs), "sqrt")


def amax(b: Builder, input: Value, dim: Any = (), keepdim: bool = False) -> Value:
    b.require(dim != () and dim is not None, "takes the maximum over the batch: name the dimensions")
    return extreme(b, input, b.dims(dim, input.rank), keepdim)


def amin(b: Builder, input: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return neg(b, amax(b, neg(b, input), dim, keepdim))


def maximum_along(b: Builder, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    other = dim if other is None else other
    if isinstance(other, Value | Tensor):  # torch.max(a, b)
        return combine(b, "max", input, other)
    return (amax(b, input, dim, keepdim), None)  # the indices have no packed form


def minimum_along(b: Builder, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    other = dim if other is None else other
    if isinstance(other, Value | Tensor):
        return combine(b, "min", input, other)
    return (amin(b, input, dim, keepdim), None)


def softmax(b: Builder, input: Value, dim: int | None = None, *args: Any, **kwargs: Any) -> Value:
    b.require(dim is not None, "softmax without a dimension: name it")
    assert dim is not None
    return b.emit(Softmax(inputs=(input.id,), dim=b.dim(dim, input.rank)), input.shape)


def log_softmax(b: Builder, input: Value, dim: int | None = None, *args: Any, **kwargs: Any) -> Value:
    """x − max − log Σ exp(x − max)."""
    b.require(dim is not None, "log_softmax without a dimension: name it")
    below = b.arithmetic("sub", input, amax(b, input, dim, keepdim=True))
    total = _sum(b, activation(b, below, "exp"), b.dims(dim or -1, input.rank), keepdim=True)
    return b.arithmetic("sub", below, activation(b, total, "log"))


def norm(b: Builder, input: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Value:
    """Length of vectors along dimensions: √Σ x² or Σ |x|."""
    order = kwargs.get("ord", p)
    b.require(dim is not None and order in (1, 2, 2.0, "fro", None), "supported are norms 1 and 2 along dimensions")
    dims = b.dims(dim, input.rank)
    if order == 1:
        return _sum(b, activation(b, input, "abs"), dims, keepdim)
    return activation(b, _sum(b, b.arithmetic("mul", input, input), dims, keepdim), "sqrt")


def normalize(b: Builder, input: Value, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Value:
    return b.arithmetic("div", input, clamp(b, norm(b, input, p, dim, keepdim=True), min=eps))


def new_constant(fill: float | None) -> Handler:
    """zeros_like, new_full, …: values that depend on nothing but a shape."""

    def handler(b: Builder, input: Value, *args: Any, **kwargs: Any) -> Value:
        number = fill if fill is not None else float(kwargs.get("fill_value", args[-1] if args else 0.0))
        return b.constant(torch.full(b.shape, number).numpy())

    return handler


MOVEMENT: dict[str, Handler] = {
    **dict.fromkeys(
        ["view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel"], reshape),
    "permute": permute, "transpose": transpose, "swapaxes": transpose, "swapdims": transpose, "movedim": movedim,
    "moveaxis": movedim, "mT": matrix_transpose, "expand": expand, "expand_as": expand, "broadcast_to": expand,
    "repeat": repeat, "tile": repeat, "pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle,
    "channel_shuffle": channel_shuffle, "native_channel_shuffle": channel_shuffle,
    "cat": cat, "concat": cat, "concatenate": cat, "stack": stack, "split": split, "split_with_sizes": split,
    "chunk": chunk, "tensor_split": tensor_split, "unbind": unbind, "narrow": narrow, "select": select,
    "index_select": index_select, "flip": flip, "roll": roll, "getitem": getitem, "setitem": setitem,
    "mean": mean, "sum": total, "var": variance, "std": deviation, "amax": amax, "amin": amin, "max": maximum_along,
    "min": minimum_along,
    "softmax": softmax, "log_softmax": log_softmax, "norm": norm, "vector_norm": norm,
    "linalg_vector_norm": norm, "normalize": normalize, "zeros_like": new_constant(0.0), "ones_like": new_constant(1.0),
    "new_zeros": new_constant(0.0), "new_ones": new_constant(1.0), "new_full": new_constant(None),
    "full_like": new_constant(None),
}  # fmt: skip

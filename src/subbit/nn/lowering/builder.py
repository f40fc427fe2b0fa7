"""What the handlers of operations write to: a growing list of operations over values without a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from subbit.errors import ModelError, PackError
from subbit.methods.base import CompressedLayer, as_float32
from subbit.nn.lowering.tracing import module_path, place
from subbit.records import (
    Affine,
    Arithmetic,
    Concat,
    Constant,
    Dense,
    Op,
    Pad,
    Permute,
    Reshape,
    Shape,
    Slice,
    Weight,
)

Float32 = NDArray[np.float32]


Records = dict[
    object, tuple[object, Weight]
]  # by layer, or place of a tensor in memory; these are kept alive beside it


@dataclass(frozen=True)
class Value:
    """A value of the program: its number, and its shape without the batch."""

    id: int
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)


class Builder:
    """Operations so far, and the node that is being lowered."""

    def __init__(self, model: nn.Module, input_shape: Shape, batch: int, records: Records) -> None:
        self.ops: list[Op] = []
        self.shapes: list[Shape] = [input_shape]  # of every value
        self.batch = batch
        self.node: fx.Node | None = None
        self.shape: Shape = ()  # of the result of `node`, where it is a single tensor
        self._layers = {path: m for path, m in model.named_modules() if isinstance(m, CompressedLayer)}
        self._owners = _owners(model)
        self._records = records

    # -- errors

    def error(self, problem: str) -> PackError:
        return PackError(f"{place(self.node)}: {problem}" if self.node is not None else problem)

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise self.error(problem)

    # -- emitting

    def emit(self, op: Op, shape: Iterable[int]) -> Value:
        self.ops.append(op)
        self.shapes.append(tuple(shape))
        return Value(len(self.ops), self.shapes[-1])

    @property
    def name(self) -> str:
        return module_path(self.node) if self.node is not None else ""

    def owner(self, tensor: Tensor | None) -> str:
        """Path of the module that a tensor belongs to, also where another module hands it to a functional."""
        if tensor is None:
            return self.name
        paths = self._owners.get(id(tensor if tensor._base is None else tensor._base), ())
        return self.name if not paths or self.name in paths else paths[0]

    def reshape(self, x: Value, shape: Shape) -> Value:
        if shape == x.shape:
            return x
        self.require(prod(shape) == prod(x.shape), f"cannot reshape {x.shape} to {shape}: the batch is mixed in")
        return self.emit(Reshape(inputs=(x.id,), shape=shape), shape)

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        if tuple(dims) == tuple(range(x.rank)):
            return x
        return self.emit(Permute(inputs=(x.id,), dims=tuple(dims)), (x.shape[d] for d in dims))

    def slice(self, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        size = len(range(start, stop, step))
        if size == x.shape[dim]:
            return x
        self.require(size > 0, f"an empty slice {start}:{stop}:{step} of dimension {dim + 1}")
        shape = [*x.shape[:dim], size, *x.shape[dim + 1 :]]
        return self.emit(Slice(inputs=(x.id,), dim=dim, start=start, stop=stop, step=step), shape)

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        first = parts[0].shape
        shape = [*first[:dim], sum(p.shape[dim] for p in parts), *first[dim + 1 :]]
        return self.emit(Concat(inputs=tuple(p.id for p in parts), dim=dim), shape)

    def pad(self, x: Value, amounts: tuple[int, int, int, int], mode: str = "constant", value: float = 0.0) -> Value:
        """Padding (top, bottom, left, right) of the last two dimensions; of (C, L) only left and right."""
        if not any(amounts):
            return x
        top, bottom, left, right = amounts
        shape = [*x.shape[:-1], x.shape[-1] + left + right]
        if x.rank >= 3:
            shape[-2] += top + bottom
        self.require(min(shape) > 0, f"padding by {amounts} leaves nothing of {x.shape}")
        return self.emit(Pad(inputs=(x.id,), mode=mode, amounts=amounts, value=value), shape)  # type: ignore[arg-type]

    def affine(
        self, x: Value, scale: Float32 | None = None, shift: Float32 | None = None, name: str | None = None
    ) -> Value:
        """scale · x + shift along dimension 0; a single number serves all of it.

        What folds is decided by the length of these arrays, one or the number of channels, and never by their values.
        """
        for numbers in (scale, shift):
            finite = numbers is None or bool(np.isfinite(numbers).all())
            self.require(finite, "its scale or shift is NaN or infinite (a negative variance?)")
        owner = self.name if name is None else name
        return self.emit(Affine(inputs=(x.id,), name=owner, scale=scale, shift=shift), x.shape)

    def scalar(self, x: Value, scale: float = 1.0, shift: float = 0.0) -> Value:
        """scale · x + shift for numbers that are written in the model, so that x · 1 is known to be x."""
        factor, summand = (
            None if number == neutral else np.array([number], np.float32)
            for number, neutral in ((scale, 1), (shift, 0))
        )
        return x if factor is None and summand is None else self.affine(x, factor, summand)

    def constant(self, values: Float32) -> Value:
        self.require(bool(np.isfinite(values).all()), "a constant contains NaN or infinity")
        return self.emit(Constant(inputs=(), name=self.name, value=np.ascontiguousarray(values)), values.shape)

    def arithmetic(self, function: Any, a: Value, b: Value) -> Value:
        self.require(a.rank == b.rank or not a.rank or not b.rank, f"{a.shape} and {b.shape} broadcast over the batch")
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self.emit(Arithmetic(inputs=(a.id, b.id), function=function), shape)

    # -- arguments

    def dim(self, dim: int, rank: int) -> int:
        """A dimension counted with the batch, as one without it; `rank` is without it too."""
        self.require(-rank - 1 <= dim <= rank, f"dimension {dim} of a value with {rank + 1} dimensions")
        counted = dim % (rank + 1)
        self.require(counted != 0, "works along the batch: images must not depend on each other")
        return counted - 1

    def dims(self, dims: int | Sequence[int], rank: int) -> tuple[int, ...]:
        return tuple(self.dim(d, rank) for d in ([dims] if isinstance(dims, int) else dims))

    def flag(self, name: str, value: Any, allowed: Any) -> None:
        self.require(value == allowed, f"{name}={value!r} has no packed form: only {name}={allowed!r} is supported")

    def vector(self, tensor: Tensor | None, what: str) -> Float32 | None:
        """A parameter as a flat array, if there is one."""
        return None if tensor is None else self.numbers(tensor, what)

    def numbers(self, tensor: Tensor, what: str) -> Float32:
        self.require(isinstance(tensor, Tensor), f"{what} depends on the input: only stored parameters are supported")
        return self._array(tensor, what).reshape(-1)

    def _array(self, tensor: Tensor, what: str) -> Float32:
        try:
            return as_float32(tensor)
        except ModelError as error:
            raise self.error(f"its {what} cannot be stored: {error}") from error

    def without_batch(self, tensor: Tensor, rank: int) -> Float32:
        """A constant as it meets a value of `rank` dimensions: its batch dimension, if it has one, taken away."""
        values = self._array(tensor, "constant")
        self.require(values.ndim <= rank + 1, f"a constant of {values.ndim} dimensions meets one of {rank + 1}")
        if values.ndim == rank + 1:
            rows = values.shape[0]
            same = rows == 1 or (rows == self.batch and bool((values == values[:1]).all()))
            self.require(same, f"a constant of shape {values.shape} differs from image to image")
            values = values[0]
        return values

    # -- weights

    def layer_record(self, layer: CompressedLayer) -> Weight:
        if id(layer) not in self._records:
            try:
                self._records[id(layer)] = (layer, layer.record())
            except ModelError as error:
                raise self.error(f"its weight cannot be stored: {error}") from error
        return self._records[id(layer)][1]

    def weight_record(self, weight: Any) -> tuple[Weight, str]:
        """The record of a weight given to a functional, and the path of the layer whose weight it is."""
        self.require(isinstance(weight, Tensor), "its weight depends on the input: only stored weights are supported")
        key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
        if key not in self._records:
            path = None if isinstance(weight, nn.Parameter) else self._layer_of(weight)
            if path is not None:
                return self.layer_record(self._layers[path]), path
            self._records[key] = (weight, Dense(self._array(weight, "weight")))
        return self._records[key][1], self.owner(weight)

    def _layer_of(self, weight: Tensor) -> str | None:
        """Path of the compressed layer that made this weight."""
        for path, layer in self._layers.items():
            if tuple(weight.shape) == layer.weight_shape and torch.equal(layer.effective_weight(), weight):
                return str(path)
        return None


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Paths of the modules that hold each parameter and buffer, by its id."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(id(tensor), []).append(path)
    return owners

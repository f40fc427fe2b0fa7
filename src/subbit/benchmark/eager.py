"""A packed network in eager PyTorch with weights prepared once: a fair contestant, which `nn.reference` is not."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from subbit.nn.reference import run_op
from subbit.records import Conv, Float32, Linear, Program, Stacked

Step = Callable[[list[Tensor]], Tensor]


class EagerNetwork:
    """The network of a program, `dense` (all weights written out) or `stacked` (shared filters, then the merge)."""

    def __init__(self, program: Program, form: Literal["dense", "stacked"]) -> None:
        self.program = program
        self.bytes = 0  # of the weights, in fp32
        self._steps = [self._step(number, form) for number in range(len(program.ops))]

    @torch.inference_mode()
    def __call__(self, x: Float32) -> Float32:
        values = [torch.from_numpy(x)]
        for step in self._steps:
            values.append(step(values))
        result: Float32 = values[self.program.output_value].numpy()
        return result

    def _step(self, number: int, form: str) -> Step:
        op = self.program.ops[number]
        flat = isinstance(op, Conv) and len(op.weight.shape) == 3  # 1-d: rare, and left to the reference
        if not isinstance(op, Conv | Linear) or op.binary_input or flat:
            self.bytes += sum(array.nbytes for _, array in op.arrays())
            if isinstance(op, Conv | Linear):
                self.bytes += 4 * prod(op.weight.shape)
            return lambda values: run_op(op, [values[i] for i in op.inputs], len(values[0]))
        layer = _WEIGHTED[type(op), form if isinstance(op.weight, Stacked) else "dense"]
        tensors = [None if array is None else torch.from_numpy(array) for array in layer.prepare(op)]
        self.bytes += sum(tensor.nbytes for tensor in tensors if tensor is not None)
        return lambda values: layer.run(op, values[op.inputs[0]], *tensors)


class _Layer(NamedTuple):
    prepare: Callable[[Any], tuple[Float32 | None, ...]]
    run: Callable[..., Tensor]


def _contiguous(array: NDArray[Any]) -> Float32:
    return np.ascontiguousarray(array, dtype=np.float32)


def _dense_weight(op: Conv | Linear) -> tuple[Float32 | None, ...]:
    return _channel_scaled(op, op.weight.weight()), op.shift


def _channel_scaled(op: Conv | Linear, weight: Float32) -> Float32:
    return _contiguous(weight if op.scale is None else weight * op.scale.reshape(-1, *[1] * (weight.ndim - 1)))


def _shared_weights(op: Conv | Linear) -> tuple[Float32 | None, ...]:
    """The bank, the matrix P times the channel scale (c_out, k·m), and the shift."""
    stack = op.weight
    assert isinstance(stack, Stacked)
    merged = _channel_scaled(op, stack.merge_matrix())
    if isinstance(op, Linear):
        return _contiguous(stack.bank), merged, op.shift
    return _contiguous(np.tile(stack.bank, (op.groups * stack.blocks, 1, 1, 1))), merged[:, :, None, None], op.shift


def _conv(op: Conv, x: Tensor, weight: Tensor, shift: Tensor | None, groups: int | None = None) -> Tensor:
    top, bottom, left, right = op.padding
    x, padding = (x, (top, left)) if (top, left) == (bottom, right) else (F.pad(x, (left, right, top, bottom)), (0, 0))
    return F.conv2d(x, weight, shift, op.stride, padding, op.dilation, groups or op.groups)


def _stacked_conv(op: Conv, x: Tensor, bank: Tensor, merge: Tensor, shift: Tensor | None) -> Tensor:
    assert isinstance(op.weight, Stacked)
    features = _conv(op, x, bank, None, op.groups * op.weight.blocks)
    return F.conv2d(features, merge, shift, groups=op.groups)


def _stacked_linear(op: Linear, x: Tensor, bank: Tensor, merge: Tensor, shift: Tensor | None) -> Tensor:
    features = F.linear(x.reshape(*x.shape[:-1], -1, bank.shape[1]), bank).flatten(-2)
    return F.linear(features, merge, shift)


_WEIGHTED = {
    (Conv, "dense"): _Layer(_dense_weight, _conv),
    (Conv, "stacked"): _Layer(_shared_weights, _stacked_conv),
    (Linear, "dense"): _Layer(_dense_weight, lambda op, x, weight, shift: F.linear(x, weight, shift)),
    (Linear, "stacked"): _Layer(_shared_weights, _stacked_linear),
}

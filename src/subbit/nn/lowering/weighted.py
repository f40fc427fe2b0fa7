"""Convolutions, linear layers and normalisations; a handler has the signature of the torch function it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from subbit.methods.base import CompressedLayer
from subbit.nn.lowering.builder import Builder, Float32, Value
from subbit.records import Conv, LayerNorm, Linear, Weight

Numbers = int | Sequence[int]


def conv2d(
    b: Builder,
    input: Value,
    weight: Any,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    return _convolution(b, input, b.weight_record(weight), bias, 2, stride, padding, dilation, groups)


def conv1d(
    b: Builder,
    input: Value,
    weight: Any,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    return _convolution(b, input, b.weight_record(weight), bias, 1, stride, padding, dilation, groups)


def linear(b: Builder, input: Value, weight: Any, bias: Tensor | None = None) -> Value:
    return _linear(b, input, b.weight_record(weight), bias)


def matmul(b: Builder, input: Any, other: Any) -> Value:
    b.require(
        isinstance(input, Value) and isinstance(other, Tensor) and other.dim() == 2,
        "a product of two computed values has no packed form: supported is a value times a stored matrix",
    )
    return _linear(b, input, b.weight_record(other.t().contiguous()), None)


def addmm(b: Builder, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    b.require(isinstance(input, Tensor) and beta == alpha == 1, "supported is addmm of a stored bias, alpha = beta = 1")
    product = matmul(b, mat1, mat2)
    return b.affine(product, shift=b.vector(input, "bias"))


def compressed(b: Builder, layer: CompressedLayer, x: Value) -> Value:
    """A layer of subbit, as its record."""
    record, binary = b.layer_record(layer), layer.method.binary_input
    if layer.kind == "linear":
        return _linear(b, x, record, layer.bias, binary)
    dims = len(layer.kernel_size)
    padding: Numbers | str = layer.padding
    if layer.padding_mode != "zeros":
        mode = {"reflect": "reflect", "replicate": "replicate", "circular": "circular"}[layer.padding_mode]
        x = b.pad(x, _sides(b, padding, layer.kernel_size, layer.dilation), mode)
        padding = 0
    return _convolution(b, x, record, layer.bias, dims, layer.stride, padding, layer.dilation, layer.groups, binary)


def batch_norm(
    b: Builder,
    input: Value,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    if training or running_mean is None or running_var is None:
        raise b.error(
            "normalises with the statistics of the batch; supported is BatchNorm with running statistics "
            "(track_running_stats=True)"
        )
    scale = 1 / np.sqrt(b.numbers(running_var, "running_var").astype(np.float64) + eps)
    if weight is not None:
        scale = scale * b.numbers(weight, "weight")
    shift = -b.numbers(running_mean, "running_mean").astype(np.float64) * scale
    if bias is not None:
        shift = shift + b.numbers(bias, "bias")
    return b.affine(input, scale.astype(np.float32), shift.astype(np.float32))


def aten_batch_norm(
    b: Builder,
    input: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    """torch.batch_norm, which orders its arguments in another way than F.batch_norm."""
    return batch_norm(b, input, running_mean, running_var, weight, bias, training, momentum, eps)


def layer_norm(
    b: Builder,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    count = len(normalized_shape)
    b.require(count <= input.rank, "normalises over the batch")
    lead = input.shape[: input.rank - count]
    flat = b.reshape(input, (*lead, prod(normalized_shape)))
    op = LayerNorm(
        inputs=(flat.id,),
        name=b.name,
        dim=len(lead),
        eps=eps,
        scale=b.vector(weight, "weight"),
        shift=b.vector(bias, "bias"),
    )
    return b.reshape(b.emit(op, flat.shape), input.shape)


def group_norm(
    b: Builder,
    input: Value,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    """Every group of channels as one row, normalised along it; gain and shift per channel follow."""
    rows = b.reshape(input, (num_groups, prod(input.shape) // num_groups))
    normal = b.emit(LayerNorm(inputs=(rows.id,), dim=1, eps=eps), rows.shape)
    normal = b.reshape(normal, input.shape)
    if weight is None and bias is None:
        return normal
    return b.affine(normal, b.vector(weight, "weight"), b.vector(bias, "bias"))


def instance_norm(
    b: Builder,
    input: Value,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    if not use_input_stats:
        return batch_norm(b, input, running_mean, running_var, weight, bias, eps=eps)
    return group_norm(b, input, input.shape[0], weight, bias, eps)


def _convolution(
    b: Builder,
    x: Value,
    weight: Weight,
    bias: Tensor | None,
    dims: int,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    binary_input: bool = False,
) -> Value:
    b.require(x.rank == dims + 1, f"a Conv{dims}d of an input without a batch: supported are batches of (C, …) values")
    op = Conv(
        inputs=(x.id,),
        name=b.name,
        weight=weight,
        shift=b.vector(bias, "bias"),
        stride=pair(stride, 1),
        padding=_sides(b, padding, weight.shape[2:], dilation),
        dilation=pair(dilation, 1),
        groups=groups,
        binary_input=binary_input,
    )
    return b.emit(op, b.shape)


def _linear(b: Builder, x: Value, weight: Weight, bias: Tensor | None, binary_input: bool = False) -> Value:
    shift: Float32 | None = b.vector(bias, "bias")
    op = Linear(inputs=(x.id,), name=b.name, weight=weight, shift=shift, binary_input=binary_input)
    return b.emit(op, (*x.shape[:-1], weight.shape[0]))


def pair(numbers: Numbers, fill: int) -> tuple[int, int]:
    """(height, width) of an argument for one or two dimensions; the height of a single dimension is `fill`."""
    if isinstance(numbers, int):
        return (numbers, numbers)
    values = tuple(int(n) for n in numbers)
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def _sides(b: Builder, padding: Numbers | str, kernel: Sequence[int], dilation: Numbers) -> tuple[int, int, int, int]:
    """Padding per side; "same" puts the odd one behind, as PyTorch does."""
    dims = len(kernel)
    if padding == "same":
        steps = [dilation] * dims if isinstance(dilation, int) else list(dilation)
        totals = [d * (k - 1) for d, k in zip(steps * dims, kernel, strict=False)]
        sides = [(t // 2, t - t // 2) for t in totals]
    elif isinstance(padding, str):
        sides = [(0, 0)] * dims  # "valid"
    else:
        amounts = [padding] * dims if isinstance(padding, int) else list(padding) * (dims if len(padding) == 1 else 1)
        sides = [(p, p) for p in amounts]
    (top, bottom), (left, right) = sides if dims == 2 else [(0, 0), sides[0]]
    return (top, bottom, left, right)

"""Convolutions, linear layers and normalisations; a handler has the signature of the torch function it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from subbit.methods.base import CompressedLayer
from subbit.nn.lowering.builder import Builder, Float32, Value
from subbit.nn.lowering.pointwise import activation, combine, power
from subbit.records import Activation, Conv, Dense, LayerNorm, Linear, Mean, Pool, Shape, Weight

Numbers = int | Sequence[int]


def conv(dims: int) -> Callable[..., Value]:
    """Handler of F.conv1d or F.conv2d."""

    def handler(
        b: Builder,
        input: Value,
        weight: Any,
        bias: Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> Value:
        record, name = b.weight_record(weight)
        return _convolution(b, name, input, record, bias, dims, stride, padding, dilation, groups)

    return handler


def linear(b: Builder, input: Value, weight: Any, bias: Tensor | None = None) -> Value:
    record, name = b.weight_record(weight)
    return _linear(b, name, input, record, bias)


def matmul(b: Builder, input: Any, other: Any) -> Value:
    b.require(
        isinstance(input, Value) and isinstance(other, Tensor) and other.dim() == 2,
        "a product of two computed values has no packed form: supported is a value times a stored matrix",
    )
    record, name = b.weight_record(other.t())
    return _linear(b, name, input, record, None)


def addmm(b: Builder, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    b.require(isinstance(input, Tensor) and beta == alpha == 1, "supported is addmm of a stored bias, alpha = beta = 1")
    product = matmul(b, mat1, mat2)
    return b.affine(product, shift=b.vector(input, "bias"))


def compressed(b: Builder, layer: CompressedLayer, input: Value) -> Value:
    """A layer of subbit, as its record."""
    record = b.layer_record(layer)
    if not layer.input_scale:
        return _like_layer(b, layer, input, record, layer.bias, layer.method.binary_input)
    signed = _like_layer(b, layer, input, record, None, layer.method.binary_input)
    scaled = b.arithmetic("mul", signed, _input_scale(b, layer, input))
    if layer.bias is None:
        return scaled
    bias = b.numbers(layer.bias, "bias")
    if layer.kind != "linear" or scaled.rank == 1:
        return b.affine(scaled, shift=bias)
    return b.arithmetic("add", scaled, b.constant(bias.reshape((1,) * (scaled.rank - 1) + (-1,))))


def _like_layer(
    b: Builder, layer: CompressedLayer, x: Value, weight: Weight, bias: Tensor | None, binary_input: bool
) -> Value:
    """A weight of any kind with the geometry of `layer`."""
    if layer.kind == "linear":
        return _linear(b, b.name, x, weight, bias, binary_input)
    dims = len(layer.kernel_size)
    padding: Numbers | str = layer.padding
    if layer.padding_mode != "zeros":
        x = b.pad(x, _sides(padding, layer.kernel_size, layer.dilation), layer.padding_mode)
        padding = 0
    shape = (weight.shape[0], *b.shape[1:])
    return _convolution(
        b, b.name, x, weight, bias, dims, layer.stride, padding, layer.dilation, layer.groups, binary_input, shape
    )


def _input_scale(b: Builder, layer: CompressedLayer, x: Value) -> Value:
    """K of XNOR-Net: |x| averaged over the channels of a group, then over the kernel."""
    size = b.emit(Activation(inputs=(x.id,), function="abs"), x.shape)
    if layer.kind == "linear":
        mean = Mean(inputs=(size.id,), dims=(x.rank - 1,), keepdim=True)
        return b.emit(mean, (*x.shape[:-1], 1))
    groups, place = layer.groups, x.shape[1:]
    if groups == 1:
        return _box_average(b, layer, b.emit(Mean(inputs=(size.id,), dims=(0,), keepdim=True), (1, *place)))
    rows = b.reshape(size, (groups, x.shape[0] // groups, *place))
    scale = _box_average(b, layer, b.emit(Mean(inputs=(rows.id,), dims=(1,)), (groups, *place)))
    repeated = b.concat([b.reshape(scale, (groups, 1, *scale.shape[1:]))] * (layer.out_channels // groups), 1)
    return b.reshape(repeated, (layer.out_channels, *scale.shape[1:]))


def _box_average(b: Builder, layer: CompressedLayer, x: Value) -> Value:
    """The average under the kernel of `layer`, wherever it is applied: an average pooling, if there is one like it."""
    top, bottom, left, right = sides = _sides(layer.padding, layer.kernel_size, layer.dilation)
    dims = len(layer.kernel_size)
    kernel, stride = plane(layer.kernel_size, dims, 1), plane(layer.stride, dims, 1)
    if kernel == stride == (1, 1) and not any(sides):
        return x
    is_pooling = (top, left) == (bottom, right) and 2 * top <= kernel[0] and 2 * left <= kernel[1]
    if is_pooling and set(layer.dilation) == {1} and layer.padding_mode == "zeros":
        pool = Pool(inputs=(x.id,), kind="avg", kernel=kernel, stride=stride, padding=(top, left))
        return b.emit(pool, (x.shape[0], *b.shape[1:]))
    box = np.full((x.shape[0], 1, *layer.kernel_size), 1 / prod(layer.kernel_size), np.float32)
    return _like_layer(b, layer, x, Dense(box), None, binary_input=False)


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
    with np.errstate(invalid="ignore"):  # a negative variance is found as a scale of NaN
        scale = 1 / np.sqrt(b.numbers(running_var, "running_var").astype(np.float64) + eps)
    if weight is not None:
        scale = scale * b.numbers(weight, "weight")
    shift = -b.numbers(running_mean, "running_mean").astype(np.float64) * scale
    if bias is not None:
        shift = shift + b.numbers(bias, "bias")
    return b.affine(input, scale.astype(np.float32), shift.astype(np.float32), b.owner(running_mean))


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
        name=b.owner(weight),
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
    return b.affine(normal, b.vector(weight, "weight"), b.vector(bias, "bias"), b.owner(weight))


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


def rms_norm(
    b: Builder, input: Value, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Value:
    """x / √(mean of x² + eps) over the last dimensions, times a gain of their shape."""
    b.require(len(normalized_shape) <= input.rank, "normalises over the batch")
    dims = tuple(range(input.rank - len(normalized_shape), input.rank))
    squares = b.emit(
        Mean(inputs=(b.arithmetic("mul", input, input).id,), dims=dims, keepdim=True),
        (*input.shape[: dims[0]], *[1] * len(dims)),
    )
    smallest = float(np.finfo(np.float32).eps) if eps is None else eps
    normal = b.arithmetic("div", input, activation(b, b.scalar(squares, shift=smallest), "sqrt"))
    return normal if weight is None else combine(b, "mul", normal, weight)


def local_response_norm(
    b: Builder, input: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Value:
    """x / (k + alpha · mean of x² over `size` neighbouring channels) ** beta; channels beyond the ends count as 0."""
    b.require(k > 0, f"k={k}: supported is a positive one, so that the power is real")
    channels, places = input.shape[0], prod(input.shape[1:])
    view = b.reshape(b.arithmetic("mul", input, input), (1, channels, places))
    padded = b.pad(view, (size // 2, (size - 1) // 2, 0, 0))
    pool = Pool(inputs=(padded.id,), kind="avg", kernel=(size, 1), stride=(1, 1))
    means = b.reshape(b.emit(pool, view.shape), input.shape)
    return b.arithmetic("div", input, power(b, b.scalar(means, alpha, k), beta))


def _convolution(
    b: Builder,
    name: str,
    x: Value,
    weight: Weight,
    bias: Tensor | None,
    dims: int,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    binary_input: bool = False,
    shape: Shape | None = None,
) -> Value:
    b.require(x.rank == dims + 1, f"a Conv{dims}d of an input without a batch: supported are batches of (C, …) values")
    op = Conv(
        inputs=(x.id,),
        name=name,
        weight=weight,
        shift=b.vector(bias, "bias"),
        stride=plane(stride, dims, 1),
        padding=_sides(padding, weight.shape[2:], dilation),
        dilation=plane(dilation, dims, 1),
        groups=groups,
        binary_input=binary_input,
    )
    return b.emit(op, b.shape if shape is None else shape)


def _linear(b: Builder, name: str, x: Value, weight: Weight, bias: Tensor | None, binary_input: bool = False) -> Value:
    shift: Float32 | None = b.vector(bias, "bias")
    op = Linear(inputs=(x.id,), name=name, weight=weight, shift=shift, binary_input=binary_input)
    return b.emit(op, (*x.shape[:-1], weight.shape[0]))


def plane(numbers: Numbers, dims: int, fill: int) -> tuple[int, int]:
    """(height, width) of an argument for one or two dimensions; the height of a single dimension is `fill`."""
    values = _each(numbers, dims)
    return (values[0], values[1]) if dims == 2 else (fill, values[0])


def _sides(padding: Numbers | str, kernel: Sequence[int], dilation: Numbers) -> tuple[int, int, int, int]:
    """Padding per side; "same" puts the odd one behind, as PyTorch does."""
    dims = len(kernel)
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(_each(dilation, dims), kernel, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(amount, amount) for amount in _each(0 if isinstance(padding, str) else padding, dims)]
    (top, bottom), (left, right) = sides if dims == 2 else [(0, 0), sides[0]]
    return (top, bottom, left, right)


def _each(numbers: Numbers, dims: int) -> list[int]:
    """One number per dimension; a single one serves all."""
    values = [numbers] if isinstance(numbers, int) else list(numbers)
    return values * dims if len(values) == 1 else values

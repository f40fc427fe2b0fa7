"""Element-wise operations: activations, arithmetic, and what is the identity in eval mode."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Any, Literal

import numpy as np
from torch import Tensor

from subbit.nn.lowering.builder import Builder, Float32, Value
from subbit.records import Activation, ActivationKind, PReLU

Handler = Callable[..., Any]
Operand = Value | Tensor | float


# ------------------------------------------------------------------------------------------- activations


def activation(b: Builder, x: Value, function: ActivationKind, a: float = 0.0, c: float = 0.0) -> Value:
    return b.emit(Activation(inputs=(x.id,), function=function, a=float(a), b=float(c)), x.shape)


def simple(function: ActivationKind) -> Handler:
    """Handler of a function without parameters."""

    def handler(b: Builder, input: Value, inplace: bool = False) -> Value:
        return activation(b, input, function)

    return handler


def leaky_relu(b: Builder, input: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return activation(b, input, "leaky_relu", negative_slope)


def rrelu(
    b: Builder, input: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Value:
    return activation(b, input, "leaky_relu", (lower + upper) / 2)


def hardtanh(b: Builder, input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return clamp(b, input, min_val, max_val)


def elu(b: Builder, input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    return activation(b, input, "elu", alpha)


def selu(b: Builder, input: Value, inplace: bool = False) -> Value:
    """scale · elu(x, alpha), with the constants of the paper that PyTorch uses."""
    return b.scalar(activation(b, input, "elu", 1.6732632423543772), 1.0507009873554805)


def celu(b: Builder, input: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    """alpha · elu(x / alpha)."""
    if alpha == 1:
        return activation(b, input, "elu", 1.0)
    return b.scalar(activation(b, b.scalar(input, 1 / alpha), "elu", 1.0), alpha)


def softplus(b: Builder, input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    return activation(b, input, "softplus", beta, threshold)


def gelu(b: Builder, input: Value, *, approximate: str = "none") -> Value:
    return activation(b, input, "gelu_tanh" if approximate == "tanh" else "gelu")


def logsigmoid(b: Builder, input: Value) -> Value:
    """−softplus(−x), which does not overflow."""
    return neg(b, activation(b, neg(b, input), "softplus", 1.0, 20.0))


def rsqrt(b: Builder, input: Value) -> Value:
    return reciprocal(b, activation(b, input, "sqrt"))


def softsign(b: Builder, input: Value) -> Value:
    return b.arithmetic("div", input, b.scalar(activation(b, input, "abs"), 1.0, 1.0))


def tanhshrink(b: Builder, input: Value) -> Value:
    return b.arithmetic("sub", input, activation(b, input, "tanh"))


def glu(b: Builder, input: Value, dim: int = -1) -> Value:
    axis = b.dim(dim, input.rank)
    half = input.shape[axis] // 2
    gate = activation(b, b.slice(input, axis, half, 2 * half), "sigmoid")
    return b.arithmetic("mul", b.slice(input, axis, 0, half), gate)


def prelu(b: Builder, input: Value, weight: Tensor) -> Value:
    slope = b.numbers(weight, "slope")
    return b.emit(PReLU(inputs=(input.id,), name=b.owner(weight), slope=slope), input.shape)


def clamp(b: Builder, input: Value, min: Any = None, max: Any = None) -> Value:
    min, max = (None if isinstance(bound, float) and isinf(bound) else bound for bound in (min, max))
    numbers = all(bound is None or isinstance(bound, int | float) for bound in (min, max))
    if numbers and min is not None and max is not None:
        return activation(b, input, "hardtanh", min, max)
    if min is not None:
        input = activation(b, input, "relu") if numbers and min == 0 else combine(b, "max", input, min)
    return input if max is None else combine(b, "min", input, max)


def clamp_min(b: Builder, input: Value, min: Any) -> Value:
    return clamp(b, input, min=min)


def clamp_max(b: Builder, input: Value, max: Any) -> Value:
    return clamp(b, input, max=max)


# -------------------------------------------------------------------------------------------- arithmetic


def add(b: Builder, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return combine(b, "add", input, _times(b, other, alpha))


def sub(b: Builder, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return combine(b, "sub", input, _times(b, other, alpha))


def rsub(b: Builder, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return sub(b, other, input, alpha=alpha)


def rtruediv(b: Builder, input: Operand, other: Operand) -> Value:
    return div(b, other, input)


def div(b: Builder, input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Value:
    b.flag("rounding_mode", rounding_mode, None)
    return combine(b, "div", input, other)


def neg(b: Builder, input: Value) -> Value:
    return b.scalar(input, -1.0)


def power(b: Builder, input: Operand, exponent: Operand) -> Value:
    """x to a number: products for whole ones, with a root for halves, exp(p · log x) for the rest."""
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        if exponent.requires_grad and isinstance(input, Value):  # GeM pooling learns it: its form must not depend on it
            return activation(b, b.scalar(activation(b, input, "log"), exponent.item()), "exp")
        exponent = exponent.item()
    if not isinstance(input, Value) or not isinstance(exponent, int | float):
        raise b.error("a power that is not a number has no packed form: supported is a value to a power of 1/2, 2, …")
    p = float(exponent)
    b.require(0 < abs(p) <= 64, f"power {exponent}: supported are powers from -64 to 64, not 0")
    if not (2 * p).is_integer():
        return activation(b, b.scalar(activation(b, input, "log"), p), "exp")
    if p < 0:
        return reciprocal(b, power(b, input, -p))
    if p.is_integer():
        return _product(b, input, int(p))
    root = activation(b, input, "sqrt")
    return root if p == 0.5 else b.arithmetic("mul", _product(b, input, int(p)), root)


def _product(b: Builder, x: Value, times: int) -> Value:
    """x · x · …, by squaring."""
    if times == 1:
        return x
    half = _product(b, x, times // 2)
    even = b.arithmetic("mul", half, half)
    return b.arithmetic("mul", even, x) if times % 2 else even


def square(b: Builder, input: Value) -> Value:
    return b.arithmetic("mul", input, input)


def reciprocal(b: Builder, input: Value) -> Value:
    return combine(b, "div", 1.0, input)


def lerp(b: Builder, input: Operand, end: Operand, weight: Operand) -> Value:
    return add(b, input, combine(b, "mul", sub(b, end, input), weight))


def addcmul(b: Builder, input: Operand, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Value:
    return add(b, input, combine(b, "mul", tensor1, tensor2), alpha=value)


Function = Literal["add", "sub", "mul", "div", "max", "min"]


def combine(b: Builder, function: Function, input: Operand, other: Operand) -> Value:
    """An operation on two operands of which at least one is a value."""
    if isinstance(input, Value) and isinstance(other, Value):
        return b.arithmetic(function, input, other)
    if isinstance(input, Value):
        assert not isinstance(other, Value)
        return _with_constant(b, function, input, other)
    assert isinstance(other, Value)
    return _constant_first(b, function, input, other)


def binary(function: Function) -> Handler:
    def handler(b: Builder, input: Operand, other: Operand) -> Value:
        return combine(b, function, input, other)

    return handler


def _times(b: Builder, operand: Operand, factor: float) -> Operand:
    if factor == 1:
        return operand
    return b.scalar(operand, factor) if isinstance(operand, Value) else operand * factor


def _numbers(b: Builder, operand: Operand, rank: int) -> Float32:
    """A constant operand as an array that broadcasts against values of `rank`, both without the batch."""
    if isinstance(operand, Tensor):
        return b.without_batch(operand, rank)
    if not isinstance(operand, int | float):
        raise b.error(f"arithmetic with {type(operand).__name__} has no packed form")
    return np.array(operand, np.float32)


_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}


def _with_constant(b: Builder, function: Function, x: Value, operand: Tensor | float) -> Value:
    """x ∘ constant: along dimension 0 an affine map, which can fold into a layer; elsewhere a stored operand."""
    if not isinstance(operand, Tensor) and operand == _NEUTRAL.get(function):
        return x
    numbers = _numbers(b, operand, x.rank)
    channels = _per_channel(x, numbers)
    if channels is not None and function in ("add", "sub"):
        return b.affine(x, shift=channels if function == "add" else -channels)
    if channels is not None and function in ("mul", "div"):
        return b.affine(x, scale=channels if function == "mul" else np.float32(1) / channels)
    return b.arithmetic(function, x, b.constant(_aligned(numbers, x.rank)))


def _constant_first(b: Builder, function: Function, operand: Tensor | float, x: Value) -> Value:
    if function in ("add", "mul", "max", "min"):
        return _with_constant(b, function, x, operand)
    if function == "sub":
        return _with_constant(b, "add", b.scalar(x, -1.0), operand)
    return b.arithmetic(function, b.constant(_aligned(_numbers(b, operand, x.rank), x.rank)), x)


def _aligned(numbers: Float32, rank: int) -> Float32:
    return numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)


def _per_channel(x: Value, numbers: Float32) -> Float32 | None:
    """One number per entry of dimension 0, if the constant is no more than that."""
    if numbers.size == 1:
        return numbers.reshape(1) if x.rank else None
    if numbers.ndim == x.rank and numbers.size == numbers.shape[0] == x.shape[0]:
        return numbers.reshape(-1)
    return None


# ---------------------------------------------------------------------------------------------- identity


def identity(b: Builder, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Copies, moves and changes of type: the packed network computes in fp32 throughout."""
    return input


def dropout(b: Builder, input: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    b.require(not training or p == 0, "drops activations in eval mode: pass training=self.training to the function")
    return input


ELEMENTWISE: dict[str, Handler] = {
    "relu": simple("relu"), "relu6": simple("relu6"), "sigmoid": simple("sigmoid"), "silu": simple("silu"),
    "hardsigmoid": simple("hard_sigmoid"), "hardswish": simple("hard_swish"), "tanh": simple("tanh"),
    "sign": simple("sign"), "abs": simple("abs"), "absolute": simple("abs"), "mish": simple("mish"),
    "exp": simple("exp"), "log": simple("log"), "sqrt": simple("sqrt"), "rsqrt": rsqrt, "logsigmoid": logsigmoid,
    "log_sigmoid": logsigmoid,
    "leaky_relu": leaky_relu, "rrelu": rrelu, "hardtanh": hardtanh, "elu": elu, "selu": selu, "celu": celu,
    "softplus": softplus,
    "gelu": gelu, "softsign": softsign, "tanhshrink": tanhshrink, "glu": glu, "prelu": prelu,
    "clamp": clamp, "clip": clamp, "clamp_min": clamp_min, "clamp_max": clamp_max,
    "add": add, "sub": sub, "subtract": sub, "rsub": rsub, "mul": binary("mul"), "multiply": binary("mul"),
    "div": div, "divide": div, "true_divide": div, "truediv": div, "rtruediv": rtruediv, "rdiv": rtruediv,
    "maximum": binary("max"), "minimum": binary("min"), "neg": neg, "negative": neg, "pow": power, "square": square,
    "reciprocal": reciprocal, "lerp": lerp, "addcmul": addcmul,
    **dict.fromkeys(
        ["contiguous", "clone", "detach", "to", "float", "half", "double", "bfloat16", "type", "type_as", "cpu", "cuda",
         "alias", "positive", "pos", "requires_grad", "pin_memory", "data"], identity),
    **dict.fromkeys(
        ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"],
        dropout),
}  # fmt: skip

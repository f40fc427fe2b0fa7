"""Pooling, padding and resampling of the last two dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

from subbit.nn.lowering.builder import Builder, Value
from subbit.nn.lowering.weighted import Numbers, plane
from subbit.records import AdaptivePool, Op, Pool, Upsample

Handler = Callable[..., Any]
Kind = Literal["max", "avg"]


# ----------------------------------------------------------------------------------------------- pooling


def max_pool(dims: int) -> Handler:
    def handler(
        b: Builder,
        input: Value,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Value:
        b.flag("return_indices", return_indices, False)
        x = _with_channels(b, input, dims)
        kernel = plane(kernel_size, dims, 1)
        op = Pool(
            inputs=(x.id,),
            kind="max",
            kernel=kernel,
            stride=plane(stride, dims, 1) if stride else kernel,
            padding=plane(padding, dims, 0),
            dilation=plane(dilation, dims, 1),
            ceil_mode=ceil_mode,
        )
        return _resized(b, x, dims, op)

    return handler


def avg_pool(dims: int) -> Handler:
    def handler(
        b: Builder,
        input: Value,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        x = _with_channels(b, input, dims)
        kernel = plane(kernel_size, dims, 1)
        op = Pool(
            inputs=(x.id,),
            kind="avg",
            kernel=kernel,
            stride=plane(stride, dims, 1) if stride else kernel,
            padding=plane(padding, dims, 0),
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            divisor=divisor_override or 0,
        )
        return _resized(b, x, dims, op)

    return handler


def adaptive_pool(kind: Kind, dims: int) -> Handler:
    def handler(b: Builder, input: Value, output_size: Any, return_indices: bool = False) -> Value:
        b.flag("return_indices", return_indices, False)
        wanted = [output_size] * dims if output_size is None or isinstance(output_size, int) else list(output_size)
        return _adaptive(b, input, kind, [size or 0 for size in wanted])

    return handler


def _adaptive(b: Builder, x: Value, kind: Kind, wanted: Sequence[int]) -> Value:
    """Adaptive pooling to the sizes `wanted` of the last dimensions; 0 keeps the input's, whatever it is."""
    output = (wanted[0], wanted[1]) if len(wanted) == 2 else (1, wanted[0])
    x = _with_channels(b, x, len(wanted))
    return _resized(b, x, len(wanted), AdaptivePool(inputs=(x.id,), kind=kind, output=output))


def _with_channels(b: Builder, x: Value, dims: int) -> Value:
    """PyTorch pools (N, H, W) as well, taking N for channels: in a packed network each of them is one channel."""
    return x if x.rank > dims else b.reshape(x, (1, *x.shape))


def _resized(b: Builder, x: Value, dims: int, op: Op) -> Value:
    """An operation that changes the last `dims` dimensions of `x` to those of the result."""
    return b.reshape(b.emit(op, (*x.shape[:-dims], *b.shape[-dims:])), b.shape)


def extreme(b: Builder, x: Value, dims: tuple[int, ...], keepdim: bool) -> Value:
    """Maximum over dimensions: max pooling over each of them, seen as the height of (before, size, after)."""
    kept = x.shape
    for dim in dims:
        before, size, after = prod(kept[:dim]), kept[dim], prod(kept[dim + 1 :])
        view = b.reshape(x, (before, size, after))
        pool = Pool(inputs=(view.id,), kind="max", kernel=(size, 1), stride=(size, 1))
        kept = (*kept[:dim], 1, *kept[dim + 1 :])
        x = b.reshape(b.emit(pool, (before, 1, after)), kept)
    return x if keepdim else b.reshape(x, tuple(s for d, s in enumerate(kept) if d not in dims))


# ----------------------------------------------------------------------------------------------- padding


def pad(b: Builder, input: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    """F.pad: amounts come in pairs, the last dimension first."""
    b.require(not any(pad[2 * input.rank :]), "pads the batch")
    x = _with_channels(b, input, len(pad) // 2)
    amounts = [*(int(p) for p in pad)] + [0] * (2 * x.rank - len(pad))
    number = float(value or 0)
    last = (amounts[2], amounts[3]) if x.rank >= 3 else (0, 0)
    around = (*last, amounts[0], amounts[1])
    if mode == "circular" and min(around) < 0:  # what is cut off does not come back at the other end
        x, around = b.pad(x, _all_four(min, around)), _all_four(max, around)
    result = b.pad(x, around, mode, number)
    for dim in range(x.rank - (2 if x.rank >= 3 else 1)):
        before, behind = amounts[2 * (x.rank - 1 - dim) :][:2]
        result = _pad_dim(b, result, dim, before, behind, mode, number)
    return b.reshape(result, b.shape)


def _all_four(of: Callable[[int, int], int], around: tuple[int, ...]) -> tuple[int, int, int, int]:
    top, bottom, left, right = (of(amount, 0) for amount in around)
    return top, bottom, left, right


def _pad_dim(b: Builder, x: Value, dim: int, before: int, behind: int, mode: str, value: float) -> Value:
    """Padding of a dimension before the last two, seen as the height of (…, size, after)."""
    if not before and not behind:
        return x
    b.require(mode == "constant", f"padding mode {mode!r} of channels")
    lead, size, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    view = b.pad(b.reshape(x, (prod(lead), size, prod(after))), (before, behind, 0, 0), mode, value)
    return b.reshape(view, (*lead, size + before + behind, *after))


# -------------------------------------------------------------------------------------------- resampling

_MODES: dict[str, Literal["nearest", "bilinear"]] = {"nearest": "nearest", "bilinear": "bilinear", "linear": "bilinear"}


def interpolate(
    b: Builder,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    b.flag("antialias", antialias, False)
    dims = input.rank - 1
    b.require(dims in (1, 2), "resampling of (C, L) and (C, H, W) values is supported")
    if mode == "area":
        return _adaptive(b, input, "avg", b.shape[-dims:])
    b.require(mode in _MODES, f"mode {mode!r} has no packed form: supported are nearest, bilinear, linear and area")
    factor = (0.0, 0.0)  # 0: coordinates are mapped by output size over input size
    if scale_factor is not None and not recompute_scale_factor:
        factors = (
            [float(f) for f in scale_factor] if isinstance(scale_factor, Sequence) else [float(scale_factor)] * dims
        )
        factor = (factors[0], factors[1]) if dims == 2 else (1.0, factors[0])
    sizes = (b.shape[-2], b.shape[-1]) if dims == 2 else (1, b.shape[-1])
    output = sizes if factor == (0.0, 0.0) else (0, 0)  # 0: by the factor, for inputs of any size
    op = Upsample(
        inputs=(input.id,), mode=_MODES[mode], output=output, factor=factor, align_corners=bool(align_corners)
    )
    return b.emit(op, b.shape)


def upsample_nearest(b: Builder, input: Value, size: Any = None, scale_factor: Any = None) -> Value:
    return interpolate(b, input, size, scale_factor, "nearest")


def upsample_bilinear(b: Builder, input: Value, size: Any = None, scale_factor: Any = None) -> Value:
    return interpolate(b, input, size, scale_factor, "bilinear", align_corners=True)


SPATIAL: dict[str, Handler] = {
    "max_pool1d": max_pool(1), "max_pool2d": max_pool(2), "avg_pool1d": avg_pool(1), "avg_pool2d": avg_pool(2),
    "adaptive_avg_pool1d": adaptive_pool("avg", 1), "adaptive_avg_pool2d": adaptive_pool("avg", 2),
    "adaptive_max_pool1d": adaptive_pool("max", 1), "adaptive_max_pool2d": adaptive_pool("max", 2),
    "pad": pad, "interpolate": interpolate, "upsample": interpolate,
    "upsample_nearest": upsample_nearest, "upsample_bilinear": upsample_bilinear,
}  # fmt: skip

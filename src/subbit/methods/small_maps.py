"""Convolutions on maps of a few pixels as matrix products.

    i, o    positions of the input map and of the output map
    T       (d², i, o), one where an input position lies under a tap of the filter for an output position, else zero

A 3×3 filter on a map of 2×2 spends most of its taps on padding. With W·T, the weight of every pair of positions, the
layer is a single product (N, c_in·i) · (c_in·i, c_out·o) without these: the same function, and for batches on a CPU
several times as fast, since convolutions fill their registers with pixels that are not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from subbit.errors import ModelError

_LARGEST = 1 << 24  # numbers of W·T: with many channels and wide kernels it would be far larger than W


def pays(x: Tensor, shape: Sequence[int]) -> bool:
    """Whether filters of this shape (c_out, c_in, *kernel) are better applied by a product to these maps.

    The product must have at most half of the multiplications: with as many, both take equally long, with more, the
    convolution wins (AVX2, 3×3, 64 to 512 filters). And there must be enough images to make up for building W·T.
    """
    filters, depth, *kernel = shape
    if x.ndim != len(shape) or x.device.type != "cpu":
        return False
    taps, i, images = math.prod(kernel), math.prod(x.shape[2:]), x.shape[0] * x.shape[1] // depth
    return 0 < 2 * i <= taps and images * (taps - i) >= taps * i and filters * depth * i * i <= _LARGEST


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Tensor:
    """What a convolution in any number of dimensions gives, without groups; `padding` is (before, behind) of each."""
    inside, kernel = tuple(x.shape[2:]), tuple(weight.shape[2:])
    outside = tuple(
        (size + sum(pads) - step * (taps - 1) - 1) // stride_ + 1
        for size, pads, step, taps, stride_ in zip(inside, padding, dilation, kernel, stride, strict=True)
    )
    if min(outside) < 1:
        raise ModelError(f"a filter of {kernel} does not fit into a map of {inside} with a padding of {tuple(padding)}")
    pairs = torch.ones(1, 1, 1, dtype=weight.dtype, device=weight.device)
    for size, out, taps, stride_, pads, step in zip(inside, outside, kernel, stride, padding, dilation, strict=True):
        tap, place, to = (torch.arange(count, device=weight.device) for count in (taps, size, out))
        under = to * stride_ + tap[:, None, None] * step - pads[0] == place[:, None]  # (taps, size, out)
        pairs = torch.einsum("tio,TIO->tTiIoO", pairs, under.to(pairs.dtype))
        pairs = pairs.flatten(4).flatten(2, 3).flatten(0, 1)
    filters, depth, (_, i, o) = weight.shape[0], weight.shape[1], pairs.shape
    # (c_out, c_in, d²) · (d², i·o) -> (c_out·o, c_in·i)
    spread = (weight.flatten(2) @ pairs.flatten(1)).view(filters, depth, i, o).permute(0, 3, 1, 2)
    wide_bias = None if bias is None else bias.repeat_interleave(o)
    result = F.linear(x.flatten(1), spread.reshape(filters * o, depth * i), wide_bias)
    return result.view(-1, filters, *outside)

"""Convolutions on maps of a few pixels as matrix products.

    i, o    positions of the input map and of the output map
    T       (d², i·o), one where an input position lies under a tap of the filter for an output position, else zero

A 3×3 filter on a map of 2×2 spends most of its taps on padding. With W·T, the weight of every pair of positions, the
layer is a single product (N, c_in·i) · (c_in·i, c_out·o) without these: the same function, and on a CPU several times
as fast, since convolutions fill their registers with pixels that are not there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from subbit.errors import ModelError

Sizes = tuple[int, ...]


def pays(x: Tensor, kernel: Sequence[int]) -> bool:
    """Whether maps are so small that the product has at most half of the multiplications.

    With as many the two take equally long, with more the convolution wins (AVX2, 3×3, 64 to 512 filters).
    """
    batched = x.ndim == 2 + len(kernel)
    return batched and x.device.type == "cpu" and 0 < 2 * math.prod(x.shape[2:]) <= math.prod(kernel)


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
    before = tuple(pads[0] for pads in padding)
    pairs = _pairs(inside, outside, kernel, tuple(stride), before, tuple(dilation)).to(weight.dtype)
    filters, depth = weight.shape[:2]
    i, o = math.prod(inside), math.prod(outside)
    # (c_out, c_in, d²) · (d², i·o) -> (c_out·o, c_in·i)
    spread = (weight.flatten(2) @ pairs).view(filters, depth, i, o).permute(0, 3, 1, 2).reshape(filters * o, depth * i)
    wide_bias = None if bias is None else bias.repeat_interleave(o)
    return F.linear(x.reshape(len(x), depth * i), spread, wide_bias).view(len(x), filters, *outside)


@lru_cache(maxsize=64)
def _pairs(inside: Sizes, outside: Sizes, kernel: Sizes, stride: Sizes, before: Sizes, dilation: Sizes) -> Tensor:
    """T of the module's description."""
    pairs = torch.zeros(*kernel, *inside, *outside)
    for tap in itertools.product(*map(range, kernel)):
        for to in itertools.product(*map(range, outside)):
            place = tuple(p * s + t * d - b for p, s, t, d, b in zip(to, stride, tap, dilation, before, strict=True))
            if all(0 <= p < size for p, size in zip(place, inside, strict=True)):
                pairs[(*tap, *place, *to)] = 1
    return pairs.view(math.prod(kernel), -1)

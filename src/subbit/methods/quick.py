"""Which convolutions are better computed another way than by PyTorch's convolution, on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from subbit.methods import small_maps, winograd


def pads(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Padding before and behind, of each dimension, from what a convolution of PyTorch has in `padding`."""
    if not isinstance(padding, str):
        return [(amount, amount) for amount in padding]
    totals = [step * (taps - 1) if padding == "same" else 0 for taps, step in zip(kernel, dilation, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]  # "same" puts the odd one behind, as PyTorch does


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    training: bool,
) -> Tensor | None:
    """What a convolution with zero padding and without groups gives, or None where PyTorch's is the better one."""
    if x.ndim != weight.ndim or x.shape[1] != weight.shape[1]:
        return None  # to be refused in PyTorch's words
    if small_maps.pays(x, weight.shape):
        return small_maps.convolution(x, weight, bias, stride, padding, dilation)
    if training and winograd.pays(x, weight, stride, padding, dilation):
        return winograd.convolution(x, weight, bias, padding)
    return None

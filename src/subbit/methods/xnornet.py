"""XNOR-Net: weights of ±α and inputs of ±1.

Rastegari et al., "XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks", ECCV 2016, section
3.2. Weights as in BWN; the layer takes the signs of its input, and the paper scales the output by K:

    y = (W̃ ∗ sign(x)) ⊙ K        K = A ∗ k,  A = mean |x| over the channels,  k = a box filter of the kernel's size

The order of a block is BatchNorm – sign – convolution – (pooling). Zero padding comes after the sign. With groups, A is
the mean over the channels of a group.

The original code leaves K out, so `input_scale` is off by default. A packed layer with it needs the real input beside
its signs, and some more operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from subbit.methods.base import LikeConv1d, LikeConv2d, LikeLinear, LikePlain, check_flags
from subbit.methods.bwn import BWN, BWNLayer


@dataclass(frozen=True, repr=False)
class XNORNet(BWN):
    """Weights of ±α and inputs of ±1; `input_scale` multiplies the output by K."""

    name = "xnornet"
    binary_input = True

    input_scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(self, "input_scale")

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return XNORNetConv1d, XNORNetConv2d, XNORNetLinear


class XNORNetLayer(BWNLayer):
    """As BWN's on the signs of the input, and maybe times K."""

    method: XNORNet

    @property
    def input_scale(self) -> bool:
        return self.method.input_scale

    def forward(self, x: Tensor) -> Tensor:
        if not self.method.input_scale:
            return super().forward(x)
        y = self.plain(self.receive(x), self.effective_weight())
        y = y * self._input_scale(x).to(y.dtype)
        if self.bias is None:
            return y
        return y + self.bias.to(y.dtype).reshape(-1, *[1] * (len(self.weight_shape) - 2))

    def _input_scale(self, x: Tensor) -> Tensor:
        """K, in the shape of the output or broadcast to it."""
        if self.kind == "linear":
            return x.abs().mean(-1, keepdim=True)
        channel = 1 - len(self.weight_shape)
        groups = x.abs().chunk(self.groups, channel)
        mean = torch.cat([group.mean(channel, keepdim=True) for group in groups], channel)  # (N, g, H, W)
        kernel = self.weight_shape[2:]
        box = x.new_full((self.groups, 1, *kernel), 1 / math.prod(kernel))
        return self.plain(mean, box).repeat_interleave(self.out_channels // self.groups, channel)


class XNORNetConv1d(LikeConv1d, XNORNetLayer):
    """nn.Conv1d by XNOR-Net."""


class XNORNetConv2d(LikeConv2d, XNORNetLayer):
    """nn.Conv2d by XNOR-Net."""


class XNORNetLinear(LikeLinear, XNORNetLayer):
    """nn.Linear by XNOR-Net."""

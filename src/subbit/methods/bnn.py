"""BNN: weights and activations that are signs.

Hubara et al., "Binarized Neural Networks", NeurIPS 2016. Weights as in BinaryConnect; the layer takes the signs of
its input:

    y = sign(W) ∗ sign(x)        ∂L/∂x = ∂L/∂sign(x) · 1[|x| ≤ 1]

The order of a block is convolution – (pooling) – BatchNorm – sign, so the sign belongs to the layer that comes next,
and the first convolution of a network, which sees the real input, stays plain. Zero padding comes after the sign and
adds zeros, not signs. Clipping of the latent weight as in BinaryConnect.
"""

from __future__ import annotations

from dataclasses import dataclass

from subbit.methods.base import LikeConv1d, LikeConv2d, LikeLinear, LikePlain
from subbit.methods.binaryconnect import BinaryConnect, BinaryConnectLayer


@dataclass(frozen=True, repr=False)
class BNN(BinaryConnect):
    """Weights and inputs of ±1."""

    name = "bnn"
    binary_input = True

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return BNNConv1d, BNNConv2d, BNNLinear


class BNNLayer(BinaryConnectLayer):
    """As BinaryConnect's; that the input is replaced by its signs follows from `BNN.binary_input`."""

    method: BNN


class BNNConv1d(LikeConv1d, BNNLayer):
    """nn.Conv1d by BNN."""


class BNNConv2d(LikeConv2d, BNNLayer):
    """nn.Conv2d by BNN."""


class BNNLinear(LikeLinear, BNNLayer):
    """nn.Linear by BNN."""

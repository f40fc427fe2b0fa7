"""What the networks are made of."""

from __future__ import annotations

from torch import nn


def convolution(in_channels: int, out_channels: int, size: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """A convolution without bias, with He's initialisation for the ReLU behind it."""
    module = nn.Conv2d(in_channels, out_channels, size, stride, padding, bias=False)
    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return module

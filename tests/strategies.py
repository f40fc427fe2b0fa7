"""Hypothesis strategies that several test files share: plain layers, inputs for them, and methods."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet, Method, XNORNet
from subbit.methods.base import Plain

# every method, with every option that changes what a layer computes; the contract suite runs over all of them
EVERY_METHOD: tuple[Method, ...] = (
    SLBF(f1=1 / 2, f2=1 / 4),
    SLBF(f1=1 / 2, f2=1 / 4, scale=False),
    SLBF(f1=1 / 4, f2=1 / 2, selection="fixed"),
    SLBF(f1=1 / 2, f2=1 / 2, selection="fixed", scale=False),
    SLBF(depth=2, filters=3, estimator="identity", form="weight"),
    LegoNet(f1=1 / 2, f2=1 / 4),
    BinaryConnect(),
    BWN(),
    BWN(centre=True, clamp=True),
    BNN(),
    XNORNet(),
    XNORNet(input_scale=True),
)


def plain_layer(kind: str, in_channels: int = 8, out_channels: int = 12, **options: Any) -> tuple[Plain, Tensor]:
    """A plain layer of a kind, and an input for it."""
    if kind == "linear":
        return nn.Linear(in_channels, out_channels, **options), torch.randn(3, in_channels)
    options = {"kernel_size": 3, "padding": 1} | options
    if kind == "conv1d":
        return nn.Conv1d(in_channels, out_channels, **options), torch.randn(2, in_channels, 11)
    return nn.Conv2d(in_channels, out_channels, **options), torch.randn(2, in_channels, 9, 8)


@st.composite
def plain_layers(draw: st.DrawFn) -> tuple[Plain, Tensor]:
    """Layers of every kind over channels, groups, kernels, strides, dilation and padding, and an input for each."""
    kind = draw(st.sampled_from(["conv1d", "conv2d", "linear"]))
    bias = draw(st.booleans())
    if kind == "linear":
        return plain_layer(kind, draw(st.integers(1, 24)), draw(st.integers(1, 16)), bias=bias)
    groups = draw(st.integers(1, 3))
    stride = draw(st.integers(1, 3))
    padding: Any = draw(st.integers(0, 3))
    if stride == 1:
        padding = draw(st.sampled_from([padding, "same", "valid"]))
    return plain_layer(
        kind,
        groups * draw(st.integers(1, 8)),
        groups * draw(st.integers(1, 6)),
        kernel_size=draw(st.integers(1, 4)),
        stride=stride,
        padding=padding,
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        bias=bias,
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )


def shares() -> st.SearchStrategy[str]:
    """Fractions in (0, 1], many of which divide nothing."""
    return st.integers(1, 8).flatmap(lambda d: st.integers(1, d).map(lambda n: f"{n}/{d}"))


@st.composite
def stacking_methods(draw: st.DrawFn) -> SLBF | LegoNet:
    f1, f2 = draw(shares()), draw(shares())
    if draw(st.booleans()):
        return LegoNet(f1=f1, f2=f2)
    return SLBF(f1=f1, f2=f2, scale=draw(st.booleans()), selection=draw(st.sampled_from(["learned", "fixed"])))


def methods() -> st.SearchStrategy[Method]:
    return st.one_of(stacking_methods(), st.sampled_from(EVERY_METHOD[6:]))

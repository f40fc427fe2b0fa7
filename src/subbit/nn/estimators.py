"""Estimators: the sign function, and what passes for its gradient.

With r a latent, g the gradient that reaches its sign, and p the progress of the training from 0 to 1:

    identity   g                                   straight-through, as BinaryConnect uses it
    clipped    g · 1[|r| ≤ 1]                      eq. 11, as SLBF, BNN, BWN and XNOR-Net use it
    ede        g · k·t·(1 − tanh²(t·r))            t = 10^(2p−1), k = max(1/t, 1)    (IR-Net, Qin et al. 2020)
    reste      g · 1/o · |r|^((1−o)/o)             o = 1 + 2p, at most the value at |r| = 0.01  (Wu et al. 2023)
    soft       g                                   and clip(r/ρ, −1, 1) instead of the sign  (PARQ, Jin et al. 2025)

The forward of all but the last is sign(r), with sign(0) = +1, in the dtype of its argument. `soft` begins with real
values, ρ = 2·mean|r|, and lets ρ fall to 0 at four fifths of the training; from then on it has signs too.

A further estimator is one function here and one line in `ESTIMATORS`. None of them keeps its argument for the
backward pass (at most a function of it), so a latent weight may be clipped in place between two uses of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from subbit.errors import ConfigError

Estimator = Callable[[Tensor, float], Tensor]  # of a latent and the progress of the training

_SMALLEST = 0.01  # |r| below which the slope of ReSTE rises no further
_HARD_FROM = 0.8  # progress from which `soft` gives signs


def signs(values: Tensor) -> Tensor:
    """sign with sign(0) = +1, without a gradient."""
    return (values >= 0).to(values.dtype).mul_(2).sub_(1)


class _Weighted(torch.autograd.Function):
    """`result` forwards; backwards the gradient of `values` is that of the result times `slope` (1 where None)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, result: Tensor, slope: Tensor | None) -> Tensor:
        ctx.save_for_backward(slope)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        slope: Tensor | None = ctx.saved_tensors[0]
        return (grads[0] if slope is None else grads[0] * slope), None, None


def _weighted(values: Tensor, result: Tensor, slope: Tensor | None = None) -> Tensor:
    weighted: Tensor = _Weighted.apply(values, result, slope)  # type: ignore[no-untyped-call]
    return weighted


def identity(values: Tensor, progress: float = 1.0) -> Tensor:
    """Signs whose gradient reaches `values` unchanged."""
    return _weighted(values, signs(values.detach()))


def clipped(values: Tensor, progress: float = 1.0) -> Tensor:
    """Signs whose gradient reaches `values` where |values| ≤ 1."""
    return _weighted(values, signs(values.detach()), values.detach().abs() <= 1)


def ede(values: Tensor, progress: float = 1.0) -> Tensor:
    """Signs with the gradient of a tanh that grows from nearly linear to nearly a step."""
    t = 10 ** (2 * progress - 1)
    slope = (1 - torch.tanh(t * values.detach()).square()) * (max(1 / t, 1) * t)
    return _weighted(values, signs(values.detach()), slope)


def reste(values: Tensor, progress: float = 1.0) -> Tensor:
    """Signs with the gradient of a power function that grows from linear to a cubic root."""
    o = 1 + 2 * progress
    slope = values.detach().abs().clamp_min(_SMALLEST).pow((1 - o) / o) / o
    return _weighted(values, signs(values.detach()), slope)


def soft(values: Tensor, progress: float = 1.0) -> Tensor:
    """Values that harden to signs, with a gradient that reaches `values` unchanged."""
    latent = values.detach()
    width = 2 * latent.abs().mean() * max(0.0, 1 - progress / _HARD_FROM)
    result = (latent / width).clamp(-1, 1) if progress < _HARD_FROM and bool(width > 0) else signs(latent)
    return _weighted(values, result)


ESTIMATORS: dict[str, Estimator] = {
    "identity": identity,
    "clipped": clipped,
    "ede": ede,
    "reste": reste,
    "soft": soft,
}


def estimator(name: str) -> Estimator:
    """The estimator called `name`.

    >>> estimator("clipped")(torch.tensor([-2.0, 0.0]), 0.0)
    tensor([-1.,  1.])
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"unknown estimator {name!r}: choose one of {', '.join(map(repr, ESTIMATORS))}")
    return ESTIMATORS[name]

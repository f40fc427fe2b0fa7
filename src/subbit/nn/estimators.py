"""Estimators: the sign function, and what passes for its gradient.

The forward is always the same, sign(0) = +1, in the dtype of its argument; the estimators differ backwards.

    identity   g                 straight-through, as BinaryConnect uses it
    clipped    g · 1[|r| ≤ 1]    eq. 11, as SLBF, BNN, BWN and XNOR-Net use it

A further estimator is one function here and one line in `ESTIMATORS`. None of them keeps its argument for the
backward pass (at most a mask of it), so a latent weight may be clipped in place between two uses of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from subbit.errors import ConfigError

Estimator = Callable[[Tensor], Tensor]


def signs(values: Tensor) -> Tensor:
    """sign with sign(0) = +1, without a gradient."""
    return (values >= 0).to(values.dtype).mul_(2).sub_(1)


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return signs(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values.abs() <= 1)
        return signs(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate: Tensor = ctx.saved_tensors[0]
        return grads[0] * gate


def identity(values: Tensor) -> Tensor:
    """Signs whose gradient reaches `values` unchanged."""
    return _apply(_Identity, values)


def clipped(values: Tensor) -> Tensor:
    """Signs whose gradient reaches `values` where |values| ≤ 1."""
    return _apply(_Clipped, values)


ESTIMATORS: dict[str, Estimator] = {"identity": identity, "clipped": clipped}


def estimator(name: str) -> Estimator:
    """The estimator called `name`.

    >>> estimator("clipped")(torch.tensor([-2.0, 0.0]))
    tensor([-1.,  1.])
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"unknown estimator {name!r}: choose one of {', '.join(map(repr, ESTIMATORS))}")
    return ESTIMATORS[name]


def _apply(function: type[torch.autograd.Function], values: Tensor) -> Tensor:
    result: Tensor = function.apply(values)  # type: ignore[no-untyped-call]
    return result

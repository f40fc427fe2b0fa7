"""Estimators: the sign of zero, exact values, and each one's gradient."""

from __future__ import annotations

import pytest
import torch

from subbit.errors import ConfigError
from subbit.nn.estimators import ESTIMATORS, clipped, estimator, identity

VALUES = [-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_signs_are_exact_and_zero_is_positive(name: str, dtype: torch.dtype) -> None:
    signs = estimator(name)(torch.tensor(VALUES, dtype=dtype))
    assert signs.dtype == dtype
    assert signs.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]


def test_gradients() -> None:
    gradient = torch.arange(1.0, 9.0)
    values = torch.tensor(VALUES, requires_grad=True)
    (passed,) = torch.autograd.grad(identity(values), values, gradient)
    assert torch.equal(passed, gradient)
    (gated,) = torch.autograd.grad(clipped(values), values, gradient)
    assert gated.tolist() == [0, 2, 3, 4, 5, 6, 7, 0]  # closed at ±1


@pytest.mark.parametrize("name", ESTIMATORS)
def test_argument_may_change_between_forward_and_backward(name: str) -> None:
    values = torch.tensor(VALUES, requires_grad=True)
    signs = estimator(name)(values)
    with torch.no_grad():
        values.clamp_(-1, 1)
    (gradient,) = torch.autograd.grad(signs.sum(), values)
    assert gradient.abs().sum() > 0


def test_unknown_estimator_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'identity', 'clipped'"):
        estimator("softsign")

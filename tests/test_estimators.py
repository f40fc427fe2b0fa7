"""Estimators: the sign of zero, exact values, and each one's gradient."""

from __future__ import annotations

import pytest
import torch

from subbit.errors import ConfigError
from subbit.methods import BWN, SLBF, BinaryConnect, Method
from subbit.nn.estimators import ESTIMATORS, clipped, estimator, identity, signs, soft

VALUES = [-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_signs_are_exact_and_zero_is_positive(name: str, dtype: torch.dtype) -> None:
    result = estimator(name)(torch.tensor(VALUES, dtype=dtype), 1.0)
    assert result.dtype == dtype
    assert result.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"soft"}))
@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_signs_do_not_depend_on_progress(name: str, progress: float) -> None:
    values = torch.tensor(VALUES)
    assert torch.equal(estimator(name)(values, progress), signs(values))


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
    result = estimator(name)(values, 0.5)
    with torch.no_grad():
        values.clamp_(-1, 1)
    (gradient,) = torch.autograd.grad(result.sum(), values)
    assert gradient.abs().sum() > 0


def slope(by: str, values: list[float], progress: float) -> torch.Tensor:
    latent = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(estimator(by)(latent, progress).sum(), latent)
    return gradient


def test_ede_is_the_slope_of_a_growing_tanh() -> None:
    near_zero, far = [0.0, 1e-4], [2.0]
    assert torch.allclose(slope("ede", near_zero, 0.0), torch.ones(2, dtype=torch.float64), atol=1e-6)  # k·t = 1
    for progress, t in ((0.25, 10**-0.5), (0.5, 1.0), (1.0, 10.0)):
        values = torch.tensor([-0.3, 0.1, 0.7], dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad((max(1 / t, 1) * torch.tanh(t * values)).sum(), values)
        assert torch.allclose(slope("ede", [-0.3, 0.1, 0.7], progress), expected)
    assert slope("ede", far, 0.0) > 0.9
    assert slope("ede", far, 1.0) < 1e-6  # only what is near its turning point still moves


def test_reste_is_the_slope_of_a_root() -> None:
    assert torch.equal(slope("reste", [-3.0, 0.5], 0.0), torch.ones(2, dtype=torch.float64))
    values = torch.tensor([0.2, 0.9], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(values.pow(1 / 3).sum(), values)
    assert torch.allclose(slope("reste", [0.2, -0.9], 1.0), expected)
    assert torch.equal(slope("reste", [0.0], 1.0), slope("reste", [0.01], 1.0))


def test_soft_begins_with_the_values_and_ends_with_their_signs() -> None:
    values = torch.tensor([-0.2, -0.1, 0.05, 0.25], requires_grad=True)
    reach = 2 * values.abs().mean()
    assert torch.allclose(soft(values, 0.0), values / reach)
    middle = soft(values, 0.4)
    assert torch.allclose(middle, (2 * values / reach).clamp(-1, 1))
    assert middle[3] == 1
    assert torch.equal(soft(values, 0.8), signs(values))
    (gradient,) = torch.autograd.grad(middle.sum(), values)
    assert torch.equal(gradient, torch.ones(4))
    assert torch.equal(soft(torch.zeros(3), 0.1), torch.ones(3))  # no scale to begin with


@pytest.mark.parametrize(
    "method", [SLBF(f1=1, f2=1, estimator="soft"), BWN(estimator="soft"), BinaryConnect(estimator="soft")]
)
def test_layers_harden_with_the_training_and_are_hard_outside_of_it(method: Method) -> None:
    torch.manual_seed(0)
    layer = method.layer(torch.nn.Conv2d(4, 4, 3)).train()

    def magnitudes() -> int:
        return len(set(layer.effective_weight().detach().abs()[0].round(decimals=5).flatten().tolist()))

    assert magnitudes() == 1  # outside of a training loop: signs and a scale
    layer.progress = 0.1
    assert magnitudes() > 1
    layer.eval()
    assert magnitudes() == 1


def test_unknown_estimator_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'identity', 'clipped'"):
        estimator("softsign")

"""SLBF against its equations, Proposition 1, sizes of the bank, selection and initialisation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor, nn

from subbit.errors import ConfigError
from subbit.methods import SLBF, LegoNet, SLBFConv2d, SLBFLinear
from subbit.methods.base import Plain
from subbit.methods.slbf import SLBFLayer
from subbit.methods.stacking import Form, StackedLayer
from subbit.selection import fixed_selection, spread
from tests.strategies import plain_layer, plain_layers, stacking_methods


def layer_of(method: SLBF | LegoNet, plain: Plain, init: Any = "random") -> Any:
    layer = method.layer(plain, init=init)
    assert isinstance(layer, StackedLayer)
    return layer


# ----------------------------------------------------------------------------------- equations 8 to 13


def test_forward_follows_equations_8_and_9() -> None:
    layer: Any = SLBFLinear(4, 2, bias=False, method=SLBF(depth=2, filters=3))
    with torch.no_grad():
        layer.R.copy_(torch.tensor([[0.5, -0.2], [0.0, 3.0], [-1.0, -0.1]]))
        layer.Q.copy_(torch.tensor([[[0.1, -0.9, 0.8], [0.3, 0.2, 0.1]], [[0.0, 0.0, -0.5], [-0.7, 0.6, 0.5]]]))
    assert layer.bank().tolist() == [[1, -1], [1, 1], [-1, -1]]  # sign(0) = +1
    assert layer.selected_index().tolist() == [[1, 0], [2, 0]]  # argmax of |Q|
    expected = torch.tensor([[-0.9, -0.9, 0.3, -0.3], [0.5, 0.5, -0.7, 0.7]])
    assert torch.equal(layer.effective_weight(), expected)


def test_without_scaling_factors_a_one_stands_where_the_magnitude_is_largest() -> None:
    layer: Any = SLBFLinear(4, 2, bias=False, method=SLBF(depth=2, filters=3, scale=False))
    with torch.no_grad():
        layer.Q.copy_(torch.tensor([[[0.1, -0.9, 0.8], [0.3, 0.2, 0.1]], [[0.0, 0.0, -0.5], [-0.7, 0.6, 0.5]]]))
    stacking = layer.stacking(layer.selected_index())
    assert stacking.tolist() == [[[0, 1, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]]]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("form", ["feature", "weight"])
def test_backward_follows_equations_12_and_13(form: Any, scale: bool) -> None:
    """Against gradients of the loss with respect to B and P themselves, which are ordinary tensors."""
    layer: Any = SLBFConv2d(8, 6, 3, padding=1, bias=False, method=SLBF(depth=4, filters=3, form=form, scale=scale))
    with torch.no_grad():
        layer.R.mul_(8)  # some beyond 1
    assert (layer.R.abs() > 1).any()
    assert (layer.R.abs() <= 1).any()
    x = torch.randn(2, 8, 5, 5)
    layer(x).square().sum().backward()

    B = layer.bank().detach().requires_grad_()
    P = layer.stacking(layer.selected_index()).detach().requires_grad_()
    W = torch.einsum("tim,mshw->tishw", P, B).reshape(6, 8, 3, 3)
    to_B, to_P = torch.autograd.grad(F.conv2d(x, W, padding=1).square().sum(), (B, P))
    torch.testing.assert_close(layer.R.grad, to_B * (layer.R.abs() <= 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.Q.grad, to_P, rtol=1e-4, atol=1e-4)
    assert (layer.Q.grad != 0).all(), "every entry of Q gets a gradient, not only the chosen one"


# -------------------------------------------------------------------------------------- Proposition 1


@given(plain_layers(), stacking_methods())
def test_feature_and_weight_form_agree(case: tuple[Plain, Tensor], method: SLBF | LegoNet) -> None:
    plain, x = case
    try:
        plain(x)
    except RuntimeError:  # kernel larger than the input, or reflection beyond it
        return
    torch.manual_seed(1)
    results: list[tuple[Any, ...]] = []
    forms: tuple[Form, ...] = ("feature", "weight")
    for form in forms:
        layer = layer_of(replace(method, form=form), plain)
        if results:
            layer.load_state_dict(results[0][0].state_dict())
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
        results.append((layer, y, inputs.grad))
    (a, ya, xa), (b, yb, xb) = results
    # 1e-5 of the largest value: sums of up to fan_in terms in another order
    _close(ya, yb)
    _close(xa, xb)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        _close(p.grad, q.grad)


@pytest.mark.parametrize("size", [3, 8], ids=["small_image", "large_image"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", ["feature", "weight"])
def test_channels_last_computes_the_same_and_stays(form: Any, groups: int, size: int) -> None:
    layer = layer_of(SLBF(f1=1 / 2, f2=1 / 4, form=form), nn.Conv2d(16, 24, 3, padding=1, groups=groups))
    x = torch.randn(4, 16, size, size)
    expected = layer(x)
    assert expected.is_contiguous(), "plain memory stays plain, so that .view() behind the layer works"
    gradients = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    layer = layer.to(memory_format=torch.channels_last)
    y = layer(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    _close(y, expected)
    for a, b in zip(torch.autograd.grad(y.square().sum(), list(layer.parameters())), gradients, strict=True):
        _close(a, b)


@pytest.mark.parametrize(
    ("method", "plain", "shape", "form"),
    [
        (SLBF(f1=1 / 2, f2=1 / 4), nn.Conv2d(64, 64, 3, padding=1), (8, 64, 16, 16), "feature"),
        (SLBF(f1=1 / 2, f2=1), nn.Conv2d(64, 64, 3, padding=1), (8, 64, 16, 16), "weight"),
        (SLBF(f1=1 / 8, f2=1 / 2), nn.Conv2d(64, 64, 1), (8, 64, 16, 16), "weight"),
        (SLBF(f1=1, f2=1 / 4), nn.Conv2d(64, 64, 3, groups=64), (8, 64, 16, 16), "weight"),
        (SLBF(f1=1 / 2, f2=1 / 4), nn.Linear(256, 256), (64, 256), "feature"),
        (SLBF(f1=1 / 2, f2=1), nn.Linear(256, 256), (4096, 256), "weight"),
    ],
    ids=["few_filters", "full_bank", "pointwise_many_blocks", "depthwise", "linear", "linear_full_bank"],
)
def test_auto_takes_the_cheaper_form(method: SLBF, plain: Plain, shape: tuple[int, ...], form: str) -> None:
    assert layer_of(method, plain).cheaper_form(torch.empty(shape)) == form


def _close(a: Tensor, b: Tensor) -> None:
    tolerance = 1e-5 * max(1.0, float(a.detach().abs().max()) if a.numel() else 0.0)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=tolerance)


# --------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize("value", [0.25, "1/4", "0.25", Fraction(1, 4)])
def test_shares_are_exact_however_written(value: Any) -> None:
    assert SLBF(f1=value, f2=value) == SLBF(f1=Fraction(1, 4), f2=Fraction(1, 4))


def test_float_third_is_a_third() -> None:
    assert SLBF(f1=1 / 3, f2=2 / 3).f1 == Fraction(1, 3)
    assert repr(SLBF(f1=1 / 3, f2=1)) == "SLBF(f1=1/3, f2=1)"


@pytest.mark.parametrize(
    "options",
    [
        {"f1": 0, "f2": 0.5},
        {"f1": 0.5, "f2": 1.5},
        {"f1": -0.5, "f2": 0.5},
        {"f1": float("nan"), "f2": 0.5},
        {"f1": float("inf"), "f2": 0.5},
        {"f1": "half", "f2": 0.5},
        {"f1": "1/0", "f2": 0.5},
        {"f1": True, "f2": 0.5},
        {"f1": 0.5},
        {"f2": 0.5},
        {},
        {"f1": 0.5, "depth": 4, "f2": 0.5},
        {"f1": 0.5, "f2": 0.5, "filters": 4},
        {"depth": 0, "filters": 4},
        {"depth": 4.0, "filters": 4},
        {"f1": 0.5, "f2": 0.5, "form": "fourier"},
        {"f1": 0.5, "f2": 0.5, "selection": "random"},
        {"f1": 0.5, "f2": 0.5, "estimator": "ste"},
        {"f1": 0.5, "f2": 0.5, "scale": 1},
    ],
)
def test_impossible_configurations(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="SLBF"):
        SLBF(**options)


def test_share_that_does_not_divide_takes_the_nearest_depth_and_says_so() -> None:
    layer = layer_of(SLBF(f1=1 / 3, f2=1 / 2), nn.Conv2d(64, 8, 3))
    assert layer.depth == 16  # 21.3 lies nearer to 16 than to 32
    assert layer.notes == ("f1 = 1/3 does not divide 64 channels: depth 16 instead",)
    assert layer_of(SLBF(f1=1 / 2, f2=1 / 2), nn.Conv2d(64, 8, 3)).notes == ()


def test_of_two_equally_near_depths_the_deeper_one() -> None:
    assert layer_of(SLBF(f1="3/8", f2=1), nn.Conv2d(8, 8, 1)).depth == 4  # 3 lies between 2 and 4


def test_filters_round_to_the_nearest_and_never_to_none() -> None:
    assert layer_of(SLBF(f1=1, f2=1 / 4), nn.Linear(4, 10)).filters == 3  # 2.5
    assert layer_of(SLBF(f1=1, f2=1 / 16), nn.Linear(4, 4)).filters == 1


def test_explicit_depth_that_does_not_divide_names_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match="1, 2, 3, 4, 6, 12"):
        SLBF(depth=5, filters=2).layer(nn.Conv2d(24, 8, 3, groups=2))


def test_more_filters_than_blocks() -> None:
    with pytest.raises(ConfigError, match="16 blocks"):
        SLBF(depth=4, filters=17).layer(nn.Conv2d(8, 8, 3))


# ------------------------------------------------------------------------------------------- selection


def test_fixed_selection_follows_the_rule_and_stores_nothing() -> None:
    layer = layer_of(SLBF(f1=1 / 4, f2=1 / 4, selection="fixed"), nn.Conv2d(16, 32, 3, bias=False))
    assert layer.selected_index().tolist() == fixed_selection(32, 4, 8).tolist()
    assert set(layer.state_dict()) == {"R", "scale"}
    assert layer.record().fixed
    bare = layer_of(SLBF(f1=1 / 4, f2=1 / 4, selection="fixed", scale=False), nn.Conv2d(16, 32, 3, bias=False))
    assert set(bare.state_dict()) == {"R"}
    assert bare.record().scale is None


def test_fixed_selection_that_must_repeat_says_so() -> None:
    layer = layer_of(SLBF(f1=1, f2=1 / 4, selection="fixed"), nn.Conv2d(8, 16, 3))
    assert "4 combinations" in layer.notes[0]
    assert layer_of(SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"), nn.Conv2d(8, 16, 3)).notes == ()


def test_larger_bank_divides_the_blocks_of_each_position() -> None:
    index = fixed_selection(32, 2, 8)
    larger, origin = spread(index, 8, 16)
    assert np.array_equal(origin[larger], index)
    assert sorted(origin) == sorted([*range(8), *range(8)])
    for position in range(2):
        assert np.bincount(larger[:, position], minlength=16).tolist() == [2] * 16


def test_larger_bank_copies_the_filters_that_most_blocks_share() -> None:
    index = np.array([[0, 0], [0, 0], [0, 2], [1, 2]])
    larger, origin = spread(index, 3, 5)
    assert origin.tolist() == [0, 1, 2, 0, 0]  # five blocks share the first: it takes both
    assert np.array_equal(origin[larger], index)
    assert sorted(np.bincount(larger.ravel())) == [1, 1, 2, 2, 2]
    larger, origin = spread(index, 3, 20)
    assert len(origin) == index.size  # no more copies than blocks
    assert np.bincount(larger.ravel()).tolist() == [1] * index.size
    assert np.array_equal(origin[larger], index)


@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 2), LegoNet(f1=1 / 2, f2=1 / 2)], ids=repr)
@pytest.mark.parametrize("form", ["feature", "weight"])
def test_frozen_selection_stays_while_scales_learn(method: SLBF | LegoNet, form: Any) -> None:
    plain, x = plain_layer("conv2d")
    layer = layer_of(replace(method, form=form), plain)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer.freeze_selection()
    index, weight = layer.selected_index().clone(), layer.effective_weight().detach().clone()
    for _ in range(5):
        optimiser.zero_grad()
        layer(x).square().mean().neg().backward()
        optimiser.step()
    assert torch.equal(layer.selected_index(), index)
    assert not torch.equal(layer.effective_weight(), weight)
    chosen = F.one_hot(index, layer.filters).bool()
    proxy: Any = layer.Q if isinstance(layer, SLBFLayer) else layer.coefficient
    assert (proxy.grad[~chosen] == 0).all()
    assert (proxy.grad[chosen] != 0).any()

    other = layer_of(method, plain)
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(torch.randn_like(parameter))
    assert torch.equal(other.selected_index(), index), "a frozen selection survives the state dict"


def test_learned_selection_can_change() -> None:
    plain, x = plain_layer("conv2d")
    layer = layer_of(SLBF(f1=1 / 2, f2=1 / 2), plain)
    before = layer.selected_index().clone()
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(5):
        optimiser.zero_grad()
        layer(x).square().mean().backward()
        optimiser.step()
    assert not torch.equal(layer.selected_index(), before)


def test_balance_penalty_is_zero_when_balanced_and_pushes_towards_it() -> None:
    layer: Any = LegoNet(depth=4, filters=4).layer(nn.Linear(4, 8))
    with torch.no_grad():
        layer.proxy.copy_(F.one_hot(torch.arange(8) % 4, 4).float().unsqueeze(1))
    assert layer.balance_penalty().item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        layer.proxy.copy_(torch.tensor([1.0, 0.9, 0.9, 0.9]).expand(8, 1, 4))
    penalty = layer.balance_penalty()
    assert penalty.item() == pytest.approx(3)
    penalty.backward()
    assert (layer.proxy.grad[..., 0] > 0).all(), "the filter that all blocks use is pushed down"
    assert (layer.proxy.grad[..., 1:] == 0).all()


# -------------------------------------------------------------------------------------- initialisation


@pytest.mark.parametrize(
    "method",
    [
        SLBF(f1=1 / 2, f2=1 / 4),
        SLBF(f1=1 / 4, f2=1 / 8),
        SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"),
        LegoNet(f1=1 / 4, f2=1 / 4),
    ],
    ids=repr,
)
def test_random_start_keeps_the_scale_of_activations(method: SLBF | LegoNet) -> None:
    x = torch.randn(4, 64, 12, 12)
    for _ in range(10):
        x = method.layer(nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular", bias=False))(x.relu())
    # ten layers without BatchNorm: the second moment may drift by chance, not by a factor per layer
    assert 1 / 6 < float(x.detach().square().mean()) < 6


def test_random_start_leaves_room_for_signs_to_turn() -> None:
    for plain in (nn.Conv2d(1, 8, 1), nn.Conv2d(512, 64, 3)):
        assert layer_of(SLBF(f1=1, f2=1 / 2), plain).R.abs().max() <= 1

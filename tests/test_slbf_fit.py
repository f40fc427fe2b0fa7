"""Starting from trained weights: every step of the fit lowers the error, and known structure is found again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from subbit.methods import SLBF, BinaryConnect, CompressedLayer, LegoNet
from subbit.methods.fit import fit_blocks
from subbit.methods.stacking import StackedLayer
from subbit.selection import fixed_selection


def from_dense(method: SLBF | LegoNet, plain: Any) -> Any:
    layer = method.from_dense(plain)
    assert isinstance(layer, StackedLayer)
    return layer


def relative_error(layer: StackedLayer, plain: nn.Conv2d | nn.Linear) -> float:
    difference = layer.effective_weight().detach() - plain.weight.detach()
    return float(difference.square().sum() / plain.weight.detach().square().sum())


METHODS: list[SLBF | LegoNet] = [
    SLBF(f1=1 / 2, f2=1 / 4),
    SLBF(f1=1 / 4, f2=1 / 2, scale=False),
    SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"),
    SLBF(f1=1 / 2, f2=1 / 4, selection="fixed", scale=False),
    LegoNet(f1=1 / 2, f2=1 / 4),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_step_raises_the_error(method: SLBF | LegoNet) -> None:
    layer = from_dense(method, nn.Conv2d(16, 32, 3))
    errors = layer.fit_errors
    assert len(errors) >= 3
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(errors))
    assert errors[-1] < errors[0]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_layer_has_the_error_that_the_fit_reports(method: SLBF | LegoNet) -> None:
    plain = nn.Conv2d(16, 32, 3, groups=2)
    layer = from_dense(method, plain)
    assert relative_error(layer, plain) == pytest.approx(layer.fit_errors[-1], rel=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_fit_points_where_the_weights_point(method: SLBF | LegoNet) -> None:
    plain = nn.Conv2d(16, 32, 3)

    def similarity(layer: CompressedLayer) -> float:
        flat = layer.effective_weight().detach().flatten()
        return float(torch.cosine_similarity(flat, plain.weight.detach().flatten(), dim=0))

    chance = max(abs(similarity(method.layer(plain))) for _ in range(5))
    assert chance < 0.1
    assert similarity(method.from_dense(plain)) > 0.25


def test_fit_finds_a_stacked_weight_again() -> None:
    source: Any = SLBF(f1=1 / 2, f2=1 / 4).layer(nn.Conv2d(16, 64, 3, bias=False))
    plain = source.to_plain()
    errors = [from_dense(SLBF(f1=1 / 2, f2=1 / 4), plain).fit_errors[-1] for _ in range(3)]
    assert min(errors) < 0.02


def test_fit_with_fixed_selection_finds_a_stacked_weight_again() -> None:
    method = SLBF(f1=1 / 2, f2=1 / 4, selection="fixed")
    plain: Any = method.layer(nn.Conv2d(16, 64, 3, bias=False)).to_plain()
    assert from_dense(method, plain).fit_errors[-1] < 1e-10


def test_one_filter_per_block_is_optimal() -> None:
    """With as many filters as blocks, what remains is the error of a scaled sign: 1 − (Σ|w|)² / (n·Σw²)."""
    blocks = torch.randn(12, 18)
    fit = fit_blocks(blocks, 12, binary=True)
    best = blocks.abs().sum(1).square() / 18
    assert fit.errors[-1] == pytest.approx(1 - float(best.sum() / blocks.square().sum()), rel=1e-5)
    assert fit_blocks(blocks, 12, binary=False).errors[-1] < 1e-10


def test_zero_and_repeated_weights() -> None:
    plain = nn.Conv2d(8, 8, 3)
    with torch.no_grad():
        plain.weight.zero_()
    for method in METHODS:
        layer = from_dense(method, plain)
        assert torch.isfinite(layer.effective_weight()).all()
        if getattr(method, "scale", True):
            assert torch.equal(layer.effective_weight(), torch.zeros_like(plain.weight))
    with torch.no_grad():
        plain.weight.fill_(0.3)
    assert from_dense(SLBF(f1=1 / 2, f2=1 / 4), plain).fit_errors[-1] < 1e-10


def test_signs_survive_small_dtypes() -> None:
    plain = nn.Conv2d(16, 32, 3)
    expected = from_dense(SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"), plain).bank()
    half = from_dense(SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"), plain.to(torch.bfloat16))
    assert half.R.dtype == torch.bfloat16
    agreement = (half.bank().float() == expected).float().mean()
    assert agreement > 0.9  # bfloat16 weights are others, and a few signs are near zero


def test_fixed_index_is_used_as_given() -> None:
    index = torch.from_numpy(fixed_selection(8, 2, 4)).flatten()
    fit = fit_blocks(torch.randn(16, 9), 4, binary=True, index=index)
    assert torch.equal(fit.index, index)


def test_start_from_a_legonet() -> None:
    lego: Any = LegoNet(f1=1 / 2, f2=1 / 4).layer(nn.Conv2d(16, 32, 3, stride=2, padding=1))
    layer = SLBF.from_legonet(lego)
    assert (layer.depth, layer.filters, layer.stride) == (lego.depth, lego.filters, lego.stride)
    assert torch.equal(layer.bank() > 0, lego.shared >= 0)
    assert layer.R.abs().max() <= 1
    assert layer.bias is not None
    assert torch.equal(layer.bias, lego.bias)
    # Gaussian filters lose 1 − 2/π of their square to the sign; choosing again can only improve on that
    difference = layer.effective_weight() - lego.effective_weight()
    assert difference.square().sum() / lego.effective_weight().square().sum() < 0.4
    unscaled = SLBF.from_legonet(lego, scale=False, selection="learned")
    assert torch.equal(unscaled.effective_weight().abs(), torch.ones_like(lego.weight))


def test_binary_connect_takes_the_signs() -> None:
    plain = nn.Conv2d(8, 8, 3)
    layer = BinaryConnect().from_dense(plain)
    assert torch.equal(layer.effective_weight() > 0, plain.weight >= 0)

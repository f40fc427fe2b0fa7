"""3×3 convolutions by minimal filtering: in training alone, and equal to plain ones in value and in every gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbit.methods import BWN, SLBF, quick, small_maps, winograd
from subbit.train import convolutions, fit, runner
from subbit.train.evaluate import accuracy
from tests import tiny

# Height, width and (before, behind) of both: every tile of 2, 3 and 4 outputs, whole and cut, one and several of them.
MAPS: dict[str, tuple[int, int, list[tuple[int, int]]]] = {
    "one_tile_of_four": (4, 4, [(1, 1), (1, 1)]),
    "four_tiles_of_four": (8, 8, [(1, 1), (1, 1)]),
    "tiles_of_three": (6, 3, [(1, 1), (1, 1)]),
    "tiles_of_two": (2, 2, [(1, 1), (1, 1)]),
    "cut_tiles": (5, 7, [(1, 1), (1, 1)]),
    "no_padding": (6, 10, [(0, 0), (0, 0)]),
    "uneven_padding": (4, 9, [(0, 2), (3, 1)]),
    "single_output": (3, 1, [(0, 0), (1, 1)]),
}


def always(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Minimal filtering wherever it can be done, and a record of its use."""
    spy = Mock(wraps=winograd.pixels_first)
    monkeypatch.setattr(winograd, "pixels_first", spy)
    monkeypatch.setattr(winograd, "_MAP_COST", 0)
    monkeypatch.setattr(winograd, "_FILTER_COST", 0)
    monkeypatch.setattr(winograd, "_LARGEST", 32)
    monkeypatch.setattr(small_maps, "pays", lambda *args: False)
    return spy


def all_gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    layer.zero_grad()
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3)))
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def assert_close(mine: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().item()
    torch.testing.assert_close(mine, expected, rtol=0, atol=5e-5 * scale)


@pytest.mark.parametrize("name", MAPS)
def test_value(name: str) -> None:
    height, width, padding = MAPS[name]
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 5, height, width), torch.randn(7, 5, 3, 3), torch.randn(7)
    (top, bottom), (left, right) = padding
    expected = F.conv2d(F.pad(x.double(), (left, right, top, bottom)), weight.double(), bias.double()).float()
    assert_close(winograd.convolution(x, weight, bias, padding), expected)


@pytest.mark.parametrize("padding", [0, 1, 2, "same"])
@pytest.mark.parametrize(
    "method", [SLBF(f1=1 / 2, f2=1 / 2, form="feature"), SLBF(f1=1, f2=1 / 2), BWN(), None], ids=str
)
def test_gradients(method: Any, padding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain: nn.Module = nn.Conv2d(8, 12, 3, padding=padding)
    layer = plain if method is None else method.layer(plain)
    x = torch.randn(6, 8, 7, 6)
    expected = all_gradients(layer, x)
    spy = always(monkeypatch)
    convolutions.quicken(layer)
    results = all_gradients(layer, x.contiguous(memory_format=torch.channels_last))
    assert spy.called
    assert len(results) == len(expected) == 2 + sum(p.requires_grad for p in layer.parameters())
    for mine, wanted in zip(results, expected, strict=True):
        assert_close(mine, wanted)


@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 2, form="feature"), BWN(), None], ids=str)
@pytest.mark.parametrize(
    "case", ["evaluation", "no_gradients", "strided", "dilated", "grouped", "reflected", "five_by_five", "float64"]
)
def test_everything_else_is_a_plain_convolution(case: str, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, dict[str, Any]] = {
        "strided": {"stride": (1, 2)},
        "dilated": {"dilation": (2, 1)},
        "grouped": {"groups": 2},
        "reflected": {"padding_mode": "reflect"},
        "five_by_five": {"kernel_size": 5},
    }
    spy = always(monkeypatch)
    plain = nn.Conv2d(8, 12, **{"kernel_size": 3, "padding": 1, **options.get(case, {})})
    layer: nn.Module = plain if method is None else method.layer(plain)
    convolutions.quicken(layer)
    x = torch.randn(4, 8, 8, 8)
    if case == "float64":
        layer, x = layer.double(), x.double()
    layer.train(case != "evaluation")
    with torch.set_grad_enabled(case != "no_gradients"):
        layer(x)
    assert not spy.called


def test_autocast_has_plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = always(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        BWN().layer(nn.Conv2d(8, 8, 3, padding=1))(torch.randn(4, 8, 8, 8))
    assert not spy.called


# What the module has with the registers of AVX-512, and with narrower ones.
WIDE, NARROW = {"_MAP_COST": 130, "_LARGEST": 32}, {"_MAP_COST": 90, "_LARGEST": 16}


@pytest.mark.parametrize("registers", [WIDE, NARROW], ids=["wide", "narrow"])
def test_layers_it_is_meant_for(registers: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name: getattr(winograd, name) for name in registers} in (WIDE, NARROW)
    for name, value in registers.items():
        monkeypatch.setattr(winograd, name, value)

    def pays(channels: int, filters: int, size: int, images: int = 128) -> bool:
        weight = torch.empty(filters, channels, 3, 3)
        return winograd.pays(torch.empty(images, channels, size, size), weight, (1, 1), [(1, 1), (1, 1)], (1, 1))

    assert [pays(512, 512, 4), pays(256, 256, 8), pays(128, 128, 16), pays(256, 128, 4)] == [True] * 4
    assert [pays(64, 64, 32), pays(3, 64, 32), pays(16, 16, 8), pays(512, 512, 4, images=0)] == [False] * 4
    assert not pays(512, 512, 4, images=1)  # bringing the filters to the points would take longer
    assert pays(512, 512, 14, images=16)  # they are brought there once for all tiles of a map
    assert not pays(512, 512, 56)  # sums over pixels are products with matrices of that size
    assert [pays(64, 64, 8), pays(64, 128, 16)] == [registers is NARROW] * 2  # where multiply-adds take longer
    assert pays(128, 128, 32) == (registers is WIDE)


def test_second_derivatives() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)

    def penalty(y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (result,) = torch.autograd.grad(slope.square().sum(), weight)
        return result

    mine = penalty(winograd.convolution(x, weight, None, [(1, 1), (1, 1)]))
    assert_close(mine, penalty(F.conv2d(x, weight, padding=1)))


def test_restored_convolutions_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = always(monkeypatch)
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    convolutions.quicken(model)
    model(torch.randn(2, 8, 4, 4))
    assert spy.call_count == 1
    convolutions.restore(model)
    model(torch.randn(2, 8, 4, 4))
    assert spy.call_count == 1
    assert "forward" not in vars(model[0])


def test_subclasses_keep_their_own_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    spy = always(monkeypatch)
    layer = Doubled(8, 8, 3, padding=1)
    convolutions.quicken(layer)
    layer(torch.randn(2, 8, 4, 4))
    assert not spy.called


def test_same_padding_has_the_odd_one_behind() -> None:
    assert quick.pads("same", (3, 4), (1, 1)) == [(1, 1), (1, 2)]
    assert quick.pads("valid", (3, 4), (1, 1)) == [(0, 0), (0, 0)]
    assert quick.pads((1, 2), (3, 4), (1, 1)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 2, form="feature"), BWN(), None], ids=str)
def test_memory_formats_are_those_of_a_plain_convolution(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models may flatten by `view`, which wants contiguous memory."""
    spy = always(monkeypatch)
    plain = nn.Conv2d(8, 12, 3, padding=1)
    layer: nn.Module = plain if method is None else method.layer(plain)
    convolutions.quicken(layer)
    x = torch.randn(4, 8, 8, 8)
    assert F.max_pool2d(layer(x).relu(), 2).view(4, -1).shape == (4, 12 * 16)
    assert layer(x.contiguous(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)
    assert spy.call_count == 2


def test_a_forward_of_its_own_stays() -> None:
    layer = nn.Conv2d(8, 8, 3)
    layer.forward = own = Mock(return_value=torch.zeros(1))  # type: ignore[method-assign]
    convolutions.quicken(layer)
    convolutions.restore(layer)
    assert layer.forward is own
    quickened = nn.Conv2d(8, 8, 3)
    convolutions.quicken(quickened)
    assert quickened(input=torch.zeros(1, 8, 4, 4)).shape == (1, 8, 2, 2)


def test_fit_quickens_and_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain convolutions compute this way in every step, and as PyTorch does when the network is judged."""
    calls: list[bool] = []
    quickened: list[bool] = []

    def judge(model: nn.Module, *rest: Any, **options: Any) -> float:
        quickened.append(any("forward" in vars(module) for module in model.modules()))
        return accuracy(model, *rest, **options)

    monkeypatch.setattr(quick, "convolution", lambda x, weight, *rest: calls.append(torch.is_grad_enabled()))
    monkeypatch.setattr(runner, "accuracy", judge)
    fit(tiny.settings(method="dense", epochs=1), out=tmp_path / "run", data=tiny.digits())
    assert calls
    assert all(calls)
    assert quickened == [False]

"""Convolutions on maps of a few pixels: the matrix product equals the convolution, in value and in every gradient."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbit.errors import ModelError
from subbit.methods import BWN, SLBF, small_maps
from subbit.methods.base import CompressedLayer

GEOMETRIES: dict[str, dict[str, Any]] = {
    "one_pixel": {"size": (1, 1), "kernel_size": 3, "padding": 1},
    "two_by_two": {"size": (2, 2), "kernel_size": 3, "padding": 1},
    "one_row": {"size": (1, 4), "kernel_size": 3, "padding": 1},
    "strided_to_one": {"size": (2, 2), "kernel_size": 3, "padding": 1, "stride": 2},
    "dilated": {"size": (2, 2), "kernel_size": 3, "padding": 2, "dilation": 2},
    "five_by_five": {"size": (3, 4), "kernel_size": 5, "padding": 2},
    "wide_kernel": {"size": (1, 3), "kernel_size": (1, 7), "padding": (0, 3)},
    "uneven_padding": {"size": (2, 1), "kernel_size": (3, 4), "padding": "same"},
    "grows": {"size": (1, 1), "kernel_size": 3, "padding": 2},
    "valid": {"size": (2, 2), "kernel_size": (2, 4), "padding": (0, 1)},
    "reflected": {"size": (2, 2), "kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


def all_gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    layer.zero_grad()
    y.backward(direction)
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    "method", [SLBF(f1=1 / 2, f2=1 / 2, form="feature"), SLBF(f1=1, f2=1 / 2, form="feature"), BWN()], ids=str
)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_product_equals_convolution(name: str, groups: int, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = dict(GEOMETRIES[name])
    size = geometry.pop("size")
    torch.manual_seed(0)
    layer = method.layer(nn.Conv2d(8, 12, groups=groups, **geometry).double())
    x = torch.randn(64, 8, *size, dtype=torch.float64)
    spy = Mock(wraps=small_maps.convolution)
    monkeypatch.setattr(small_maps, "convolution", spy)
    product = all_gradients(layer, x)
    assert spy.called == ((groups == 1 or isinstance(method, SLBF)) and name != "reflected")  # padded it is larger
    assert len(product) == 2 + sum(p.requires_grad for p in layer.parameters())
    monkeypatch.setattr(small_maps, "pays", lambda *args: False)
    for mine, expected in zip(product, all_gradients(layer, x), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


def test_product_in_one_dimension() -> None:
    x, weight, bias = torch.randn(2, 3, 2), torch.randn(4, 3, 5), torch.randn(4)
    product = small_maps.convolution(x, weight, bias, (1,), [(2, 2)], (1,))
    torch.testing.assert_close(product, F.conv1d(x, weight, bias, padding=2), rtol=1e-5, atol=1e-5)


def test_maps_it_is_meant_for() -> None:
    def pays(*size: int, images: int = 16, shape: tuple[int, ...] = (4, 3, 3, 3)) -> bool:
        return small_maps.pays(torch.empty(images, 3, *size), shape)

    assert [pays(2, 2), pays(1, 1), pays(4, 1), pays(1, 1, images=2)] == [True] * 4
    assert [pays(3, 3), pays(2, 3), pays(32, 32), pays(0, 2), pays(2, 2, images=0)] == [False] * 5
    assert not pays(2, 2, images=1)  # building the weight would take longer
    assert not pays(2, 2, shape=(1 << 20, 3, 3, 3))  # and be too large
    assert not small_maps.pays(torch.empty(3, 2, 2), (4, 3, 3, 3))  # a single image without a batch
    assert not small_maps.pays(torch.empty(16, 3, 2, 2, device="meta"), (4, 3, 3, 3))


@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 2, form="feature"), BWN()], ids=str)
def test_what_ran_before_without_gradients_does_not_matter(method: Any) -> None:
    layer = method.layer(nn.Conv2d(8, 8, 3, padding=1))
    x = torch.randn(16, 8, 2, 2)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_empty_batches() -> None:
    for method in (SLBF(f1=1 / 2, f2=1 / 2, form="feature"), BWN()):
        assert method.layer(nn.Conv2d(8, 6, 3, padding=1))(torch.empty(0, 8, 2, 2)).shape == (0, 6, 2, 2)


def test_a_filter_larger_than_its_map_is_named() -> None:
    layer = BWN().layer(nn.Conv2d(2, 2, 5))
    with pytest.raises(ModelError, match=r"a filter of \(5, 5\) does not fit into a map of \(3, 3\)"):
        layer(torch.zeros(64, 2, 3, 3))


def test_channels_that_do_not_fit_are_named_by_torch() -> None:
    layer = BWN().layer(nn.Conv2d(4, 2, 3, padding=1))
    assert isinstance(layer, CompressedLayer)
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3 channels"):
        layer(torch.zeros(16, 3, 2, 2))

"""The paper's networks: layer counts, sizes and shapes that the published numbers rest on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from subbit.errors import ConfigError
from subbit.models import MODELS, lenet5, resnet18, vgg16


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]


def fp32_bytes(model: nn.Module) -> int:
    """Parameters and BatchNorm statistics."""
    numbers = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return 4 * sum(t.numel() for t in numbers)


def test_lenet5_has_the_weights_that_the_mnist_ratios_count() -> None:
    model = lenet5()
    assert sum(m.weight.numel() for m in convolutions(model)) == 25_500
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(800, 500), (500, 10)]
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(("variant", "count", "linear"), [("paper", 13, 3), ("lego", 15, 1)])
def test_vgg16_variants(variant: str, count: int, linear: int) -> None:
    model = vgg16(variant=variant)  # type: ignore[arg-type]
    assert len(convolutions(model)) == count
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == linear
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vgg16_width_scales_every_layer() -> None:
    whole, half = vgg16(), vgg16(width=0.5)
    assert [m.out_channels for m in convolutions(half)] == [m.out_channels // 2 for m in convolutions(whole)]
    assert [m.out_features for m in half.modules() if isinstance(m, nn.Linear)] == [256, 256, 10]
    with pytest.raises(ConfigError, match="width=0"):
        vgg16(width=0)


@pytest.mark.parametrize("size", [16, 17, 20, 24, 28, 31])
def test_vgg16_takes_smaller_images(size: int) -> None:
    assert vgg16(width=1 / 16).eval()(torch.zeros(2, 3, size, size)).shape == (2, 10)


def test_vgg16_lego_has_the_weights_that_the_ratios_count() -> None:
    assert sum(m.weight.numel() for m in convolutions(vgg16(variant="lego"))) == 14_894_784


def test_resnet18_has_the_weights_and_bytes_that_the_ratios_count() -> None:
    model = resnet18()
    assert len(convolutions(model)) == 20
    assert sum(m.weight.numel() for m in convolutions(model)) == 11_159_232
    assert fp32_bytes(model) == 44_734_248
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_arguments(name: str) -> None:
    model = MODELS[name](num_classes=7, in_channels=4, affine=False).eval()
    size = 28 if name == "lenet5" else 32
    assert model(torch.zeros(1, 4, size, size)).shape == (1, 7)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == len(convolutions(model))
    assert not any(m.affine for m in norms)
    assert all(m.affine for m in MODELS[name]().modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("name", MODELS)
def test_activations_keep_their_scale_at_the_start(name: str) -> None:
    model = MODELS[name](in_channels=3).train()
    size = 28 if name == "lenet5" else 32
    assert 0.05 < float(model(torch.randn(16, 3, size, size)).detach().std()) < 5


def test_unknown_vgg_variant() -> None:
    with pytest.raises(ConfigError, match="'paper', 'lego'"):
        vgg16(variant="torchvision")  # type: ignore[arg-type]

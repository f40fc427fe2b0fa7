"""The networks of the paper: `lenet5`, `vgg16` and `resnet18`, by name in `MODELS`.

All take `num_classes`, `in_channels`, and `affine` (BatchNorm with or without its scale and shift, which the paper
studies). Convolutions have no bias, since a BatchNorm follows every one of them; all activations are modules.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from subbit.models.lenet import LeNet5, lenet5
from subbit.models.resnet import ResNet, resnet18
from subbit.models.vgg import VGG, vgg16

MODELS: dict[str, Callable[..., nn.Module]] = {"lenet5": lenet5, "vgg16": vgg16, "resnet18": resnet18}

__all__ = ["MODELS", "VGG", "LeNet5", "ResNet", "lenet5", "resnet18", "vgg16"]

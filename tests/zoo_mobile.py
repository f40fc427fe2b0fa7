"""Test networks in the style of the mobile families and ConvNeXt; see zoo_models.py, which lists them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


def conv_bn(
    in_channels: int,
    out_channels: int,
    kernel: int | tuple[int, int] = 3,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] | None = None,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution without bias, BatchNorm, and an activation if there is one."""
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return conv_bn(in_channels, out_channels, 1, stride=stride, activation=None)


class SqueezeExcitation(nn.Module):
    """Channel weights from 1×1 convolutions on the pooled input."""

    def __init__(
        self,
        channels: int,
        squeeze: int,
        activation: Callable[[], nn.Module] = nn.ReLU,
        gate: Callable[[], nn.Module] = nn.Sigmoid,
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)
        self.activation = activation()
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return cast(Tensor, weights * x)


class StochasticDepth(nn.Module):
    """Drops whole rows of the batch in training; the identity otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0.0:
            return x
        survival = 1.0 - self.probability
        noise = torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(survival)
        return x * noise.div_(survival)


class InvertedResidual(nn.Module):
    """Expand by 1×1, filter depthwise, optionally excite, project by 1×1."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        *,
        expand: int = 2,
        kernel: int = 3,
        activation: Callable[[], nn.Module] = nn.ReLU6,
        excitation: Callable[[int], nn.Module] | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = in_channels * expand
        layers: list[nn.Module] = [
            conv_bn(in_channels, hidden, 1, activation=activation),
            conv_bn(hidden, hidden, kernel, stride=stride, groups=hidden, activation=activation),
        ]
        if excitation is not None:
            layers.append(excitation(hidden))
        layers.append(conv_bn(hidden, out_channels, 1, activation=None))
        self.conv = nn.Sequential(*layers)
        self.use_residual = stride == 1 and in_channels == out_channels
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return x + self.stochastic_depth(out) if self.use_residual else cast(Tensor, out)


class MobileNet(nn.Module):
    """A stem, inverted residuals, a 1×1 head and a pooled classifier."""

    def __init__(
        self, blocks: list[nn.Module], activation: Callable[[], nn.Module], classifier: nn.Sequential, last: int = 64
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 16, 3, stride=2, activation=activation), *blocks, conv_bn(32, last, 1, activation=activation)
        )
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return cast(Tensor, self.classifier(torch.flatten(x, 1)))


def mobilenet_v2() -> MobileNet:
    blocks: list[nn.Module] = [InvertedResidual(16, 16, 1), InvertedResidual(16, 32, 2), InvertedResidual(32, 32, 1)]
    return MobileNet(blocks, nn.ReLU6, nn.Sequential(nn.Dropout(0.2), nn.Linear(64, CLASSES)))


def mobilenet_v3() -> MobileNet:
    def excite(channels: int) -> nn.Module:
        return SqueezeExcitation(channels, channels // 4, gate=nn.Hardsigmoid)

    blocks: list[nn.Module] = [
        InvertedResidual(16, 16, 1, activation=nn.ReLU, excitation=excite),
        InvertedResidual(16, 32, 2, kernel=5, activation=nn.Hardswish, excitation=excite),
        InvertedResidual(32, 32, 1, kernel=5, activation=nn.Hardswish),
    ]
    classifier = nn.Sequential(nn.Linear(64, 64), nn.Hardswish(inplace=True), nn.Dropout(0.2), nn.Linear(64, CLASSES))
    return MobileNet(blocks, nn.Hardswish, classifier)


def efficientnet() -> MobileNet:
    def excite(channels: int) -> nn.Module:
        return SqueezeExcitation(channels, 8, activation=nn.SiLU)

    block = partial(InvertedResidual, activation=nn.SiLU, excitation=excite, drop=0.2)
    blocks: list[nn.Module] = [block(16, 16, 1), block(16, 32, 2, kernel=5), block(32, 32, 1)]
    return MobileNet(blocks, nn.SiLU, nn.Sequential(nn.Dropout(0.2), nn.Linear(64, CLASSES)))


class MNASNet(nn.Module):
    """Depthwise-separable stem in one flat Sequential and a mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8),
            InvertedResidual(8, 16, 2, expand=3, kernel=5, activation=nn.ReLU),
            InvertedResidual(16, 16, 1, expand=3, activation=nn.ReLU),
            nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(64, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.layers(x).mean([2, 3])))


class ShuffleNetV2(nn.Module):
    """Channel split by chunk, channel shuffle by view and transpose."""

    class Unit(nn.Module):
        def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
            super().__init__()
            half = out_channels // 2
            self.stride = stride
            self.branch1 = nn.Sequential()
            if stride > 1:
                self.branch1 = nn.Sequential(
                    conv_bn(in_channels, in_channels, 3, stride=stride, groups=in_channels, activation=None),
                    conv_bn(in_channels, half, 1),
                )
            self.branch2 = nn.Sequential(
                conv_bn(in_channels if stride > 1 else half, half, 1),
                conv_bn(half, half, 3, stride=stride, groups=half, activation=None),
                conv_bn(half, half, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            if self.stride == 1:
                x1, x2 = x.chunk(2, dim=1)
                out = torch.cat((x1, self.branch2(x2)), dim=1)
            else:
                out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
            batch, channels, height, width = out.size()
            out = out.view(batch, 2, channels // 2, height, width)
            return torch.transpose(out, 1, 2).contiguous().view(batch, channels, height, width)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16, 3, stride=2)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stage2 = nn.Sequential(ShuffleNetV2.Unit(16, 32, 2), ShuffleNetV2.Unit(32, 32, 1))
        self.conv5 = conv_bn(32, 64, 1)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv5(self.stage2(self.maxpool(self.conv1(x))))
        return cast(Tensor, self.fc(x.mean([2, 3])))


class RegNet(nn.Module):
    """Grouped bottlenecks with excitation, stages in an OrderedDict."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, width: int, stride: int, group_width: int) -> None:
            super().__init__()
            self.proj = shortcut(in_channels, width, stride)
            self.f = nn.Sequential(
                OrderedDict(
                    a=conv_bn(in_channels, width, 1),
                    b=conv_bn(width, width, 3, stride=stride, groups=width // group_width),
                    se=SqueezeExcitation(width, 8),
                    c=conv_bn(width, width, 1, activation=None),
                )
            )
            self.activation = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            identity = x if self.proj is None else self.proj(x)
            return cast(Tensor, self.activation(identity + self.f(x)))

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, stride=2)
        stages: OrderedDict[str, nn.Module] = OrderedDict(
            block1=nn.Sequential(OrderedDict({"block1-0": RegNet.Block(16, 16, 2, 8)})),
            block2=nn.Sequential(
                OrderedDict({"block2-0": RegNet.Block(16, 32, 2, 8), "block2-1": RegNet.Block(32, 32, 1, 8)})
            ),
        )
        self.trunk_output = nn.Sequential(stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.trunk_output(self.stem(x)))
        return cast(Tensor, self.fc(x.flatten(start_dim=1)))


# ------------------------------------------------------------------------------------------------- ConvNeXt


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of an (N, C, H, W) value."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class ConvNeXt(nn.Module):
    """Depthwise 7×7, LayerNorm and linear layers on channels-last values, and a learned layer scale."""

    class Block(nn.Module):
        def __init__(self, width: int, drop: float) -> None:
            super().__init__()
            self.block = nn.Sequential(
                nn.Conv2d(width, width, 7, padding=3, groups=width, bias=True),
                Permute((0, 2, 3, 1)),
                nn.LayerNorm(width, eps=1e-6),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
                Permute((0, 3, 1, 2)),
            )
            self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 0.1))
            self.stochastic_depth = StochasticDepth(drop)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.stochastic_depth(self.layer_scale * self.block(x)) + x)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), LayerNorm2d(16, eps=1e-6)),
            ConvNeXt.Block(16, 0.0),
            nn.Sequential(LayerNorm2d(16, eps=1e-6), nn.Conv2d(16, 32, 2, stride=2)),
            ConvNeXt.Block(32, 0.1),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(32, eps=1e-6), nn.Flatten(1), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.avgpool(self.features(x))))

"""Small networks with the structure of the families in torchvision and timm, written for the tests.

Each has a few channels and the constructs that make its family hard to convert, trace or pack: grouped and
depthwise convolutions, channel shuffles, dense concatenation, branches, squeeze-and-excitation, auxiliary heads,
layer scales, channels-last linear layers, modules used twice. `FAMILIES` maps a name to a constructor and
`INPUTS` to the shape of one input without the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo_mobile import (
    CLASSES,
    ConvNeXt,
    MNASNet,
    RegNet,
    ShuffleNetV2,
    conv_bn,
    efficientnet,
    mobilenet_v2,
    mobilenet_v3,
    shortcut,
)

# ------------------------------------------------------------------------------------------------- plain nets


class VGG(nn.Module):
    """Stages of convolutions with bias, adaptive pooling, and a classifier with dropout."""

    def __init__(self, batch_norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for entry in (8, "pool", 16, 16, "pool", 32, "pool"):
            if entry == "pool":
                layers.append(nn.MaxPool2d(2, 2))
                continue
            width = cast(int, entry)
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(32 * 4, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(True), nn.Dropout(),
            nn.Linear(64, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        return cast(Tensor, self.classifier(x))


class AlexNet(nn.Module):
    """Large strided kernels and overlapping pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(16, 16, 3, padding="same"), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(16 * 9, 32), nn.ReLU(inplace=True), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return cast(Tensor, self.classifier(x.view(x.size(0), -1)))


class SqueezeNet(nn.Module):
    """Fire modules that concatenate two expansions; the classifier is a convolution."""

    class Fire(nn.Module):
        def __init__(self, in_channels: int, squeeze: int, expand: int) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(in_channels, squeeze, 1)
            self.activation = nn.ReLU(inplace=True)  # used for all three convolutions
            self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
            self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.activation(self.squeeze(x))
            return torch.cat([self.activation(self.expand1x1(x)), self.activation(self.expand3x3(x))], 1)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, ceil_mode=True),
            SqueezeNet.Fire(16, 8, 16), SqueezeNet.Fire(32, 8, 16), nn.MaxPool2d(3, stride=2, ceil_mode=True),
            SqueezeNet.Fire(32, 16, 32),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Conv2d(64, CLASSES, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


# ------------------------------------------------------------------------------------------------- residual nets


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int = 1, groups: int = 1, base: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return cast(Tensor, self.relu(out))


class Bottleneck(nn.Module):
    """1×1, 3×3 (grouped in ResNeXt, wide in Wide ResNet), 1×1."""

    expansion = 2

    def __init__(self, in_channels: int, width: int, stride: int = 1, groups: int = 1, base: int = 1) -> None:
        super().__init__()
        inner = width * base
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        identity = x if self.downsample is None else self.downsample(x)
        return cast(Tensor, self.relu(out + identity))


class ResNet(nn.Module):
    """The ImageNet form: a 7×7 stem, pooling, stages of blocks."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], groups: int = 1, base: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 16
        for number, (width, stride) in enumerate(((16, 1), (32, 2)), start=1):
            blocks = [
                block(channels, width, stride, groups, base),
                block(width * block.expansion, width, 1, groups, base),
            ]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            channels = width * block.expansion
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.get_submodule("layer2")(self.get_submodule("layer1")(x))
        return cast(Tensor, self.fc(torch.flatten(self.avgpool(x), 1)))


class PreActivationResNet(nn.Module):
    """BatchNorm and ReLU before the convolution, so that neither folds backwards."""

    class Block(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out = self.conv1(F.relu(self.bn1(x)))
            out = self.conv2(F.relu(self.bn2(out)))
            return cast(Tensor, out + x)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(PreActivationResNet.Block(16), nn.AvgPool2d(2), PreActivationResNet.Block(16))
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return cast(Tensor, self.head(x.mean(dim=(2, 3))))


class DenseNet(nn.Module):
    """Every layer sees the concatenation of all earlier ones, passed around as a list."""

    class Layer(nn.Module):
        def __init__(self, in_channels: int, growth: int) -> None:
            super().__init__()
            self.norm1 = nn.BatchNorm2d(in_channels)
            self.relu1 = nn.ReLU(inplace=True)
            self.conv1 = nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(4 * growth)
            self.relu2 = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
            self.drop_rate = 0.0

        def forward(self, features: list[Tensor]) -> Tensor:
            out = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
            out = self.conv2(self.relu2(self.norm2(out)))
            if self.drop_rate > 0:
                out = F.dropout(out, p=self.drop_rate, training=self.training)
            return cast(Tensor, out)

    class Block(nn.ModuleDict):
        def __init__(self, layers: int, in_channels: int, growth: int) -> None:
            super().__init__()
            for i in range(layers):
                self.add_module(f"denselayer{i + 1}", DenseNet.Layer(in_channels + i * growth, growth))

        def forward(self, x: Tensor) -> Tensor:
            features = [x]
            for layer in self.values():
                features.append(layer(features))
            return torch.cat(features, 1)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv0=nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False),
                norm0=nn.BatchNorm2d(16),
                relu0=nn.ReLU(inplace=True),
                pool0=nn.MaxPool2d(3, stride=2, padding=1),
                denseblock1=DenseNet.Block(2, 16, 8),
                transition1=nn.Sequential(
                    OrderedDict(
                        norm=nn.BatchNorm2d(32),
                        relu=nn.ReLU(inplace=True),
                        conv=nn.Conv2d(32, 16, 1, bias=False),
                        pool=nn.AvgPool2d(2, stride=2),
                    )
                ),
                denseblock2=DenseNet.Block(2, 16, 8),
                norm5=nn.BatchNorm2d(32),
            )
        )
        self.classifier = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x), inplace=True)
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return cast(Tensor, self.classifier(x))


# ------------------------------------------------------------------------------------------------- inception


class GoogLeNetOutput(NamedTuple):
    logits: Tensor
    aux: Tensor | None


class GoogLeNet(nn.Module):
    """Four branches per block, an input transform by indexing, and a head that only training uses."""

    class Inception(nn.Module):
        def __init__(self, in_channels: int, width: int) -> None:
            super().__init__()
            self.branch1 = conv_bn(in_channels, width, 1)
            self.branch2 = nn.Sequential(conv_bn(in_channels, width // 2, 1), conv_bn(width // 2, width, 3))
            self.branch3 = nn.Sequential(conv_bn(in_channels, width // 2, 1), conv_bn(width // 2, width, 3))
            self.branch4 = nn.Sequential(
                nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), conv_bn(in_channels, width, 1)
            )

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)

    def __init__(self, transform_input: bool = True) -> None:
        super().__init__()
        self.transform_input = transform_input
        self.conv1 = conv_bn(3, 16, 7, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3a = GoogLeNet.Inception(16, 8)
        self.inception3b = GoogLeNet.Inception(32, 16)
        self.aux: nn.Module | None = nn.Sequential(
            nn.AdaptiveAvgPool2d((2, 2)), conv_bn(32, 16, 1), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(inplace=True),
            nn.Dropout(0.7), nn.Linear(32, CLASSES),
        )  # fmt: skip
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutput:
        if self.transform_input:
            red = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
            green = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
            blue = torch.unsqueeze(x[:, 2], 1) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5
            x = torch.cat((red, green, blue), 1)
        x = self.inception3a(self.maxpool1(self.conv1(x)))
        aux: Tensor | None = None
        if self.aux is not None and self.training:
            aux = self.aux(x)
        x = self.inception3b(x)
        x = self.dropout(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))
        x = self.fc(x)
        return GoogLeNetOutput(x, aux) if aux is not None else x


class InceptionV3(nn.Module):
    """Asymmetric 1×7 and 7×1 kernels, average-pooled branches, strided reductions without padding."""

    class Mixed(nn.Module):
        def __init__(self, in_channels: int, width: int) -> None:
            super().__init__()
            self.branch1x1 = conv_bn(in_channels, width, 1)
            self.branch7x7_1 = conv_bn(in_channels, width, 1)
            self.branch7x7_2 = conv_bn(width, width, (1, 7))
            self.branch7x7_3 = conv_bn(width, width, (7, 1))
            self.branch_pool = conv_bn(in_channels, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            branch7x7 = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
            branch_pool = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
            return torch.cat([self.branch1x1(x), branch7x7, branch_pool], 1)

    class Reduction(nn.Module):
        def __init__(self, in_channels: int, width: int) -> None:
            super().__init__()
            self.branch3x3 = conv_bn(in_channels, width, 3, stride=2, padding=0)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.branch3x3(x), F.max_pool2d(x, kernel_size=3, stride=2)], 1)

    def __init__(self) -> None:
        super().__init__()
        self.conv_1a = conv_bn(3, 16, 3, stride=2, padding=0)
        self.conv_2a = conv_bn(16, 16, 3, padding=1)
        self.mixed_a = InceptionV3.Mixed(16, 8)
        self.reduction = InceptionV3.Reduction(24, 8)
        self.mixed_b = InceptionV3.Mixed(32, 16)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed_b(self.reduction(self.mixed_a(self.conv_2a(self.conv_1a(x)))))
        return cast(Tensor, self.fc(torch.flatten(self.dropout(self.avgpool(x)), 1)))


# ------------------------------------------------------------------------------------------------- other shapes


class AudioNet(nn.Module):
    """Dilated and strided Conv1d over raw samples (C, L)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 9, stride=4, padding=4, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(16, 16, 3, padding=2, dilation=2), nn.BatchNorm1d(16), nn.LeakyReLU(0.1),
            nn.Conv1d(16, 32, 3, stride=2, padding=1, groups=2), nn.BatchNorm1d(32), nn.PReLU(32), nn.AvgPool1d(2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x))


class UsedTwice(nn.Module):
    """One convolution object at two paths, applied three times; its BatchNorms differ."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.shared = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.alias = self.shared
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.norms[0](self.shared(x)))
        x = F.relu(self.norms[1](self.alias(x)))
        x = F.relu(self.norms[2](self.shared(F.max_pool2d(x, 2))))
        return cast(Tensor, self.fc(x.mean((2, 3))))


class Containers(nn.Module):
    """Modules in lists and dicts, registered in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, CLASSES)  # registered first, runs last
        self.branches = nn.ModuleDict({"small": nn.Conv2d(16, 16, 1), "large": nn.Conv2d(16, 16, 5, padding=2)})
        self.blocks = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)])
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        x = torch.cat([branch(x) for branch in self.branches.values()], dim=1)
        return cast(Tensor, self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class Functional(nn.Module):
    """Layers whose weights are passed to a functional, and a plain tensor as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.linear = nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES)
        self.gain = nn.Parameter(torch.full((1, 16, 1, 1), 1.5))
        self.raw = nn.Parameter(torch.randn(16, 16, 3, 3) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x)) * self.gain
        x = F.relu(F.conv2d(x, self.conv.weight, self.conv.bias, padding=1))
        x = F.relu(F.conv2d(x, self.raw, padding=1, stride=2))
        x = F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), self.linear.weight, self.linear.bias)
        return cast(Tensor, self.head(torch.tanh(x)))


class Untraceable(nn.Module):
    """Control flow on values: runs, but torch.fx cannot read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        if float(x.detach().abs().mean()) > 1e6:
            x = x / 2
        return cast(Tensor, self.head(x.mean((2, 3))))


class MLP(nn.Module):
    """Linear layers on a flat input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x))


IMAGE = (3, 32, 32)

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "vgg": VGG,
    "vgg_plain": partial(VGG, batch_norm=False),
    "alexnet": AlexNet,
    "squeezenet": SqueezeNet,
    "resnet": partial(ResNet, BasicBlock),
    "resnet_bottleneck": partial(ResNet, Bottleneck),
    "resnext": partial(ResNet, Bottleneck, groups=4),
    "wide_resnet": partial(ResNet, Bottleneck, base=2),
    "resnet_preactivation": PreActivationResNet,
    "densenet": DenseNet,
    "googlenet": GoogLeNet,
    "inception_v3": InceptionV3,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "efficientnet": efficientnet,
    "mnasnet": MNASNet,
    "shufflenet_v2": ShuffleNetV2,
    "regnet": RegNet,
    "convnext": ConvNeXt,
    "audio": AudioNet,
    "used_twice": UsedTwice,
    "containers": Containers,
    "functional": Functional,
    "untraceable": Untraceable,
    "mlp": MLP,
}

INPUTS: dict[str, tuple[int, ...]] = dict.fromkeys(FAMILIES, IMAGE) | {"audio": (1, 400), "mlp": (64,)}

UNTRACEABLE = frozenset({"untraceable"})  # torch.fx cannot read these


def build(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The network of that name in eval mode with BatchNorm statistics that are not trivial, and two inputs."""
    torch.manual_seed(seed)
    model = FAMILIES[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval(), torch.randn(2, *INPUTS[name])

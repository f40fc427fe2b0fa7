"""ResNet-18 in its CIFAR form: a 3×3 stem of stride 1 and no pooling before the first stage."""

from __future__ import annotations

from torch import Tensor, nn

from subbit.models.blocks import convolution


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.conv1 = convolution(in_channels, channels, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(channels, affine=affine)
        self.relu1 = nn.ReLU()
        self.conv2 = convolution(channels, channels, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(channels, affine=affine)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                convolution(in_channels, channels, 1, stride),
                nn.BatchNorm2d(channels, affine=affine),
            )
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        result: Tensor = self.relu2(y)
        return result


class ResNet(nn.Module):
    """Stem, four stages of two blocks with 64, 128, 256 and 512 channels, mean over the image, linear layer."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, affine: bool = True) -> None:
        super().__init__()
        self.conv1 = convolution(in_channels, 64, 3, 1, 1)
        self.bn1 = nn.BatchNorm2d(64, affine=affine)
        self.relu = nn.ReLU()
        stages = []
        channels = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages.append(
                nn.Sequential(BasicBlock(channels, width, stride, affine), BasicBlock(width, width, 1, affine))
            )
            channels = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(self.relu(self.bn1(self.conv1(x))))
        result: Tensor = self.linear(self.flatten(self.pool(y)))
        return result


def resnet18(num_classes: int = 10, in_channels: int = 3, affine: bool = True) -> ResNet:
    """ResNet-18 for images of 32×32, with 20 convolutions."""
    return ResNet(num_classes, in_channels, affine)

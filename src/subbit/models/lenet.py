"""LeNet-5 for 28×28 images, in the size that the published MNIST ratios fit: 20 and 50 filters of 5×5."""

from __future__ import annotations

from torch import Tensor, nn

from subbit.models.blocks import convolution


class LeNet5(nn.Module):
    """Convolution – 2×2 max pooling – BatchNorm – ReLU, twice; then 800 → 500 → classes with a ReLU between.

    Pooling comes before BatchNorm, the order of the binary networks that this one is compared with.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, affine: bool = True) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolution(in_channels, 20, 5),  # 28 -> 24
            nn.MaxPool2d(2),  # 24 -> 12
            nn.BatchNorm2d(20, affine=affine),
            nn.ReLU(),
            convolution(20, 50, 5),  # 12 -> 8
            nn.MaxPool2d(2),  # 8 -> 4
            nn.BatchNorm2d(50, affine=affine),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(50 * 4 * 4, 500),
            nn.ReLU(),
            nn.Linear(500, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(x))
        return y


def lenet5(num_classes: int = 10, in_channels: int = 1, affine: bool = True) -> LeNet5:
    """LeNet-5 for images of 28×28."""
    return LeNet5(num_classes, in_channels, affine)

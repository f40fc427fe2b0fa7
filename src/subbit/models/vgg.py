"""VGG-16 for 32×32 images, in the two forms that the paper's text and its ratios imply."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from subbit.errors import ConfigError
from subbit.models.blocks import convolution

Variant = Literal["paper", "lego"]

# stages of (channels, convolutions), each followed by 2×2 max pooling; then the widths of the hidden linear layers
_VARIANTS: dict[str, tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = {
    "paper": (((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), (512, 512)),
    "lego": (((64, 3), (128, 3), (256, 3), (512, 3), (512, 3)), ()),
}


class VGG(nn.Module):
    """Convolution – BatchNorm – ReLU throughout, pooling behind each stage, ReLU between linear layers."""

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        affine: bool = True,
        variant: Variant = "paper",
        width: float = 1.0,
    ) -> None:
        super().__init__()
        if variant not in _VARIANTS:
            raise ConfigError(f"vgg16(variant={variant!r}): choose one of {', '.join(map(repr, _VARIANTS))}")
        if not 0 < width <= 8:
            raise ConfigError(f"vgg16(width={width!r}): must lie above 0 and be at most 8; 1 is the paper's network")
        stages, hidden = _VARIANTS[variant]
        features: list[nn.Module] = []
        channels = in_channels
        for wide, depth in stages:
            for _ in range(depth):
                out_channels = _scaled(wide, width)
                features += [
                    convolution(channels, out_channels, 3, padding=1),
                    nn.BatchNorm2d(out_channels, affine=affine),
                    nn.ReLU(),
                ]
                channels = out_channels
            # Rounding up changes nothing at 32×32, and lets smaller images through, which are trained on first.
            features.append(nn.MaxPool2d(2, ceil_mode=True))
        classifier: list[nn.Module] = [nn.Flatten()]  # 32×32, or less, has become 1×1
        for wide in hidden:
            classifier += [nn.Linear(channels, _scaled(wide, width)), nn.ReLU()]
            channels = _scaled(wide, width)
        classifier.append(nn.Linear(channels, num_classes))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(x))
        return y


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def vgg16(
    num_classes: int = 10, in_channels: int = 3, affine: bool = True, variant: Variant = "paper", width: float = 1.0
) -> VGG:
    """VGG-16 for images of up to 32×32.

    "paper" has 13 convolutions and linear layers 512 → 512 → 512 → classes, as the paper's text says; "lego" has 15
    convolutions, three per stage, and one linear layer, which the paper's ratios fit. `width` multiplies the channels
    of all layers.
    """
    return VGG(num_classes, in_channels, affine, variant, width)

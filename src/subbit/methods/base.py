"""What all methods share: the configuration's interface and a layer with the geometry of the layer it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from subbit.records import Weight

Init = Literal["random", "dense"]
Plain = nn.Conv1d | nn.Conv2d | nn.Linear


class Method:
    """A configuration: a frozen dataclass that validates itself, prints, compares, and can build layers."""

    name: ClassVar[str]  # as on the command line
    binary_input: ClassVar[bool] = False  # layers take the signs of their input

    def layer(self, module: Plain, *, init: Init = "random") -> CompressedLayer:
        """A layer of this method with the geometry, bias, dtype and device of `module`."""
        raise NotImplementedError


class CompressedLayer(nn.Module):
    """A layer that stands where a Conv1d, Conv2d or Linear stood.

    It carries the attributes of the layer it replaces (in_channels, kernel_size, stride, …, or in_features), so
    code that reads those goes on working, and `weight` gives the effective weight, so code that passes
    `layer.weight` to a functional works too.
    """

    method: Method

    def effective_weight(self) -> Tensor:
        """The weight with which a plain convolution gives the same output, differentiable."""
        raise NotImplementedError

    def record(self) -> Weight:
        """What is stored of this layer: exactly the effective weight, in record form."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        return self.effective_weight()

"""Ways to learn a selection that the search tries and the library does not have; docs/training.md says how they do.

Each is SLBF with another idea of how a block comes to its filter, and packs to the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subbit.methods import METHODS, SLBF
from subbit.methods.base import LikeConv1d, LikeConv2d, LikeLinear, LikePlain, Method, new_parameter
from subbit.methods.fit import projections
from subbit.methods.slbf import SLBFLayer
from subbit.nn.estimators import signs

_HARD_FROM = 0.8  # progress from which a block of `Annealed` takes one filter
_COLDEST = 1e-3  # temperature just before, in units of the mean |Q|

# -------------------------------------------------------------------------------------------- annealed softmax


@dataclass(frozen=True, repr=False)
class Annealed(SLBF):
    """Every block is a mixture of all filters, P = Q · softmax(|Q| / τ), that cools down to one of them."""

    name = "slbf-annealed"

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return AnnealedConv1d, AnnealedConv2d, AnnealedLinear


class AnnealedLayer(SLBFLayer):
    """τ falls from the mean |Q| by a constant factor per step; the gradient is that of the mixture."""

    @property
    def mixing(self) -> bool:
        return self.training and self.progress < _HARD_FROM and not bool(self.frozen)

    def stacking(self, index: Tensor) -> Tensor:
        if not self.mixing or self.Q is None:
            return super().stacking(index)
        size = self.Q.abs()
        temperature = size.detach().mean() * _COLDEST ** (self.progress / _HARD_FROM)
        return self.Q * torch.softmax(size / temperature, 2)

    def effective_weight(self) -> Tensor:
        if not self.mixing:
            return super().effective_weight()
        mixed = self.stacking(self.selected_index()).flatten(0, 1) @ self.bank().flatten(1)
        return mixed.reshape(self.weight_shape)


class AnnealedConv1d(LikeConv1d, AnnealedLayer):
    pass


class AnnealedConv2d(LikeConv2d, AnnealedLayer):
    pass


class AnnealedLinear(LikeLinear, AnnealedLayer):
    pass


# --------------------------------------------------------------------------------- assignment in weight space


@dataclass(frozen=True, repr=False)
class Nearest(SLBF):
    """A whole weight is trained; each block is the shared filter, with its best scale, that is nearest to it."""

    name = "slbf-nearest"

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return NearestConv1d, NearestConv2d, NearestLinear


class NearestLayer(SLBFLayer):
    """Trains R, and the weight that is approximated, whose gradient is that of the approximation."""

    latent: nn.Parameter  # (c_out, c_in / groups, *kernel)

    def make_parameters(self, dtype: torch.dtype, device: torch.device) -> None:
        self.settle_size(device)
        self.R = new_parameter(self.bank_shape, dtype, device)
        self.Q = self.scale = None
        self.latent = new_parameter(self.weight_shape, dtype, device)

    def start_random(self) -> None:
        super().start_random()
        nn.init.kaiming_normal_(self.latent, nonlinearity="relu")

    def start_dense(self, weight: Tensor) -> None:
        raise NotImplementedError("the search starts it from random weights")

    def scales(self) -> Tensor:
        """The best scale of every filter for every block, (c_out, k, m)."""
        blocks = self.latent.detach().reshape(-1, self.R[0].numel())
        return projections(blocks, signs(self.R.detach()).flatten(1)).reshape(self.stacking_shape)

    def choice(self) -> Tensor:
        return self.scales().abs().argmax(2)

    def stacking(self, index: Tensor) -> Tensor:
        return self.scales() * self.one_hot(index)

    def effective_weight(self) -> Tensor:
        return super().effective_weight() + (self.latent - self.latent.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x, self.effective_weight(), self.bias)  # the other form has no gradient for the latent


class NearestConv1d(LikeConv1d, NearestLayer):
    pass


class NearestConv2d(LikeConv2d, NearestLayer):
    pass


class NearestLinear(LikeLinear, NearestLayer):
    pass


# ------------------------------------------------------------------------------------------------- for settings

TRIED: dict[str, type[Method]] = {method.name: method for method in (Annealed, Nearest)}


@contextmanager
def known() -> Iterator[None]:
    """Settings may name these methods inside the block."""
    METHODS.update(TRIED)
    try:
        yield
    finally:
        for name in TRIED:
            METHODS.pop(name, None)

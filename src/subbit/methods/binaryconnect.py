"""BinaryConnect: weights that are signs.

Courbariaux, Bengio & David, "BinaryConnect: Training Deep Neural Networks with binary weights during propagations",
NeurIPS 2015.

    W_b = sign(W)            no scale
    ∂L/∂W = ∂L/∂W_b          unchanged
    W ← clip(W, −1, 1)       after every step of the optimiser

Where this departs from the paper: W is clipped when the next forward in training mode uses it instead of after the
step. Nothing reads W in between, so training is the same, and there is no call to forget. The paper's stochastic
binarisation is left out, as in its own best runs on CIFAR-10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from subbit.methods.base import (
    SETTLED,
    LatentLayer,
    LikeConv1d,
    LikeConv2d,
    LikeLinear,
    LikePlain,
    Method,
    as_signs,
    check_choice,
)
from subbit.nn.estimators import ESTIMATORS
from subbit.records import Binary, Weight


@dataclass(frozen=True, repr=False)
class BinaryConnect(Method):
    """Weights of ±1."""

    name = "binaryconnect"

    estimator: str = "identity"

    def __post_init__(self) -> None:
        check_choice(self, "estimator", ESTIMATORS)

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return BinaryConnectConv1d, BinaryConnectConv2d, BinaryConnectLinear


class BinaryConnectLayer(LatentLayer):
    """Trains a latent weight in [−1, 1], of which only the signs are used."""

    method: BinaryConnect

    def effective_weight(self) -> Tensor:
        return self.binarise(self.clipped_latent(), self.method.estimator)

    def record(self) -> Binary:
        return Binary(as_signs(self.latent))

    @property
    def has_scales(self) -> bool:
        return False

    def start_random(self) -> None:
        reach = min(1.0, math.sqrt(6 / self.fan_in))  # He's variance; forwards only the signs count
        self.latent.uniform_(-reach, reach)

    def start_dense(self, weight: Tensor) -> None:
        self.latent.copy_(weight.clamp(-1, 1))

    def start_record(self, record: Weight, gain: Tensor) -> None:
        super().start_record(record, gain * SETTLED)  # forwards only the signs count


class BinaryConnectConv1d(LikeConv1d, BinaryConnectLayer):
    """nn.Conv1d by BinaryConnect."""


class BinaryConnectConv2d(LikeConv2d, BinaryConnectLayer):
    """nn.Conv2d by BinaryConnect."""


class BinaryConnectLinear(LikeLinear, BinaryConnectLayer):
    """nn.Linear by BinaryConnect."""

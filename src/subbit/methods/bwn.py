"""BWN: weights that are signs, with a scale per filter.

Rastegari et al., "XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks", ECCV 2016, section
3.1. For filter t of n weights

    W̃_t = α_t · sign(W_t),  α_t = mean |W_t|
    ∂L/∂W_i = sign(W_i)/n · Σ_j ∂L/∂W̃_j·sign(W_j)  +  α · 1[|W_i| ≤ 1] · ∂L/∂W̃_i

The first term is the gradient through α, the second that of the sign (estimator "clipped").

Options of the original code, off by default: `clamp` clips the latent weights to [−1, 1], as BinaryConnect does, and
`centre` subtracts from each filter its mean over the input channels before it is binarised. The original centres the
latent weights themselves and then clips them; here clipping comes first and centring is part of the function, which
is the same step for the optimiser, and makes the result the same however often the layer is used between two steps.
The gate lets |W| = 1 pass, so that clipped weights can come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from subbit.methods.base import (
    SETTLED,
    LatentLayer,
    LikeConv1d,
    LikeConv2d,
    LikeLinear,
    LikePlain,
    Method,
    as_float32,
    as_signs,
    check_choice,
    check_flags,
)
from subbit.nn.estimators import ESTIMATORS, signs
from subbit.records import Binary, Weight

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, repr=False)
class BWN(Method):
    """Weights of ±α, with one α per filter."""

    name = "bwn"

    centre: bool = False
    clamp: bool = False
    estimator: str = "clipped"

    def __post_init__(self) -> None:
        check_flags(self, "centre", "clamp")
        check_choice(self, "estimator", ESTIMATORS)

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return BWNConv1d, BWNConv2d, BWNLinear


class BWNLayer(LatentLayer):
    """Trains a latent weight; signs and scales follow from it."""

    method: BWN

    def effective_weight(self) -> Tensor:
        latent = self._constrained()
        binary = self.binarise(latent, self.method.estimator)
        return binary * _scale(latent, binary).reshape(-1, *[1] * (binary.ndim - 1))

    @torch.no_grad()
    def record(self) -> Binary:
        latent = self._constrained()
        return Binary(as_signs(latent), as_float32(_scale(latent, signs(latent))))

    def _constrained(self) -> Tensor:
        latent = self.clipped_latent() if self.method.clamp else self.latent
        return latent - latent.mean(1, keepdim=True) if self.method.centre else latent

    def start_random(self) -> None:
        # |W| uniform in 0 … r makes α = r/2, and α² has to be 2/fan_in for activations to keep their scale
        reach = math.sqrt(8 / self.fan_in)
        self.latent.uniform_(-reach, reach)

    def start_dense(self, weight: Tensor) -> None:
        self.latent.copy_(weight)  # α·sign(W) is the nearest there is to W

    @property
    def unpacked_size(self) -> float:
        return SETTLED  # it is that of the latents

    def start_record(self, record: Weight, gain: Tensor) -> None:
        super().start_record(record, gain)
        if self.method.centre:  # takes a part of W away, of each filter another one
            wanted = self.latent.flatten(1).abs().mean(1)
            latent = self._constrained()
            scale = _scale(latent, signs(latent)).clamp_min(torch.finfo(latent.dtype).tiny)
            self.latent.mul_((wanted / scale).reshape(-1, *[1] * (latent.ndim - 1)))


def _scale(latent: Tensor, binary: Tensor) -> Tensor:
    """α (c_out,): mean |W|, as the mean of W·sign(W).

    While `soft` has values b that are no signs yet, the factor that brings them nearest to W: mean W·b over mean b².
    """
    binary = binary.detach()
    return (latent * binary).flatten(1).mean(1) / binary.square().flatten(1).mean(1).clamp_min(_TINY)


class BWNConv1d(LikeConv1d, BWNLayer):
    """nn.Conv1d by BWN."""


class BWNConv2d(LikeConv2d, BWNLayer):
    """nn.Conv2d by BWN."""


class BWNLinear(LikeLinear, BWNLayer):
    """nn.Linear by BWN."""

"""SLBF: filters stacked from low-dimensional binary filters.

Lan & Lan, "Compressing Deep Convolutional Neural Networks by Stacking Low-dimensional Binary Convolution
Filters", AAAI 2021. Filter t of a layer is k blocks, each one of m shared filters of depth s, times a scale:

    W_t = [Σ_j P_j1·B_j, …, Σ_j P_jk·B_j]      P = P^t, of whose every column one entry is not zero     (eq. 3, 4)

    B   (m, s, d, d)    = sign(R), sign(0) = +1                                                          (eq. 8)
    P   (c_out, k, m)   keeps of every column of Q the entry of largest magnitude, its value and sign     (eq. 9)
                        — or a 1 in its place, without scaling factors (`scale=False`)
    R, Q                real-valued proxies; these are trained
    ∂L/∂R = ∂L/∂B · 1[|R| ≤ 1]                                                                          (eq. 11, 12)
    ∂L/∂Q = ∂L/∂P, for every entry, not only the chosen one                                              (eq. 13)

Where this departs from the paper:

* `selection="fixed"` takes the indices from a rule (`subbit.selection`) instead of learning them; then a scale per
  block is all that remains of Q, and no index is stored.
* The paper does not say how R and Q start. Here every weight is ±α, and a sum over fan_in of them keeps the
  scale of activations behind a ReLU if α² averages 2/fan_in. Q is uniform in ±a; the largest of m magnitudes has
  the mean square a²·m/(m + 2), so a² = 2/fan_in · (m + 2)/m. Signs of Q are random, so that blocks which meet
  twice in one filter do not add up. Without scaling factors Q starts positive: the gradient then moves
  magnitudes and values the same way. Only the sign of R matters forwards, so its magnitude sets how many steps a
  sign takes to turn; it is that of a He-initialised filter of the bank, at most 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from subbit.methods.base import (
    SETTLED,
    LikeConv1d,
    LikeConv2d,
    LikeLinear,
    LikePlain,
    as_float32,
    as_signs,
    check_choice,
    check_flags,
    new_parameter,
)
from subbit.methods.fit import fit_blocks, projections
from subbit.methods.stacking import StackedLayer, StackingMethod
from subbit.nn.estimators import ESTIMATORS, signs
from subbit.records import Stacked, Weight

if TYPE_CHECKING:
    from subbit.methods.legonet import LegoNetLayer

_ABOVE_ZERO = 1e-3


@dataclass(frozen=True, repr=False)
class SLBF(StackingMethod):
    """Stacked low-dimensional binary filters.

    >>> SLBF(f1=1/2, f2=1/4)
    SLBF(f1=1/2, f2=1/4)

    Shares may be floats, Fractions or strings ("1/4"); `depth` and `filters` give s and m as numbers instead.
    """

    name = "slbf"

    scale: bool = True
    selection: Literal["learned", "fixed"] = "learned"
    estimator: str = "clipped"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(self, "scale")
        check_choice(self, "selection", ("learned", "fixed"))
        check_choice(self, "estimator", ESTIMATORS)

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return SLBFConv1d, SLBFConv2d, SLBFLinear

    @classmethod
    def from_legonet(cls, layer: LegoNetLayer, **options: Any) -> SLBFLayer:
        """A layer that starts from a trained LegoNet layer, as in the paper's appendix.

        >>> SLBF.from_legonet(legonet_layer, selection="learned")

        R takes the LegoNet's filters, so B their signs; Q is each block's best scale for each of these signs. Size
        of the bank and form are the LegoNet's; `options` are the other options of SLBF.
        """
        method = cls(depth=layer.depth, filters=layer.filters, form=layer.method.form, **options)
        new = cast(SLBFLayer, method.layer(layer.to_plain()))
        with torch.no_grad():
            new.start_from(new.split(layer.effective_weight()), layer.bank().flatten(1).to("cpu", torch.float64))
        return new


class SLBFLayer(StackedLayer):
    """Trains R and Q; with a fixed selection R and a scale per block; without scales and selection R alone."""

    method: SLBF
    R: nn.Parameter  # (m, s, *kernel)
    Q: nn.Parameter | None  # (c_out, k, m), where the selection is learned
    scale: nn.Parameter | None  # (c_out, k), where it is fixed

    def make_parameters(self, dtype: torch.dtype, device: torch.device) -> None:
        fixed = self.method.selection == "fixed"
        self.settle_size(device, fixed)
        self.R = new_parameter(self.bank_shape, dtype, device)
        self.Q = None if fixed else new_parameter(self.stacking_shape, dtype, device)
        self.scale = new_parameter(self.index_shape, dtype, device) if fixed and self.method.scale else None

    # -- forward

    def bank(self) -> Tensor:
        return self.binarise(self.R, self.method.estimator)

    def choice(self) -> Tensor:
        return self.frozen_index if self.Q is None else self.Q.abs().argmax(2)

    def stacking(self, index: Tensor) -> Tensor:
        chosen = self.one_hot(index)
        if self.Q is None:
            ones = chosen.to(self.R.dtype)
            return ones if self.scale is None else ones * self.scale.unsqueeze(2)
        passing = self.passing(self.Q)
        if self.method.scale:
            return torch.where(chosen, self.Q, passing)
        return chosen.to(self.Q.dtype) + passing

    def record(self) -> Stacked:
        index = self.selected_index()
        scale = as_float32(self.chosen_scale(index)) if self.method.scale else None
        return Stacked(as_signs(self.R), index.cpu().numpy(), scale, fixed=self.method.selection == "fixed")

    # -- initialisation

    @property
    def selector(self) -> nn.Parameter | None:
        return self.Q

    @property
    def has_scales(self) -> bool:
        return self.method.scale

    def start_random(self) -> None:
        he = 2 / self.fan_in
        self.R.uniform_(-self._reach, self._reach)
        if self.Q is not None:
            a = math.sqrt(he * (self.filters + 2) / self.filters)
            self.Q.uniform_(-a if self.method.scale else 0, a)
        if self.scale is not None:
            self.scale.copy_(signs(torch.rand_like(self.scale) - 0.5) * math.sqrt(he))

    def start_dense(self, weight: Tensor) -> None:
        """The bank that k-means finds, and every block's best scale for every filter of it."""
        blocks = self.split(weight)
        fixed = self.frozen_index.flatten().cpu() if self.Q is None else None
        fit = fit_blocks(blocks, self.filters, binary=True, scaled=self.method.scale, index=fixed)
        self.fit_errors = fit.errors
        self.start_from(blocks, fit.bank * fit.means.abs())

    def start_from(self, blocks: Tensor, filters: Tensor) -> None:
        """R in proportion to `filters`, and Q or the scales as they fit `blocks` best."""
        bank = signs(filters)
        magnitude = filters.abs()
        relative = magnitude / magnitude.mean().clamp_min(torch.finfo(magnitude.dtype).tiny)
        # no proxy so small that its sign could get lost in a smaller dtype
        self.R.copy_((bank * relative.clamp_min(1e-3) * self._reach / 2).clamp(-1, 1).reshape(self.R.shape))
        scales = projections(blocks, bank).reshape(self.stacking_shape)
        if self.Q is not None:
            # without scaling factors the order is what counts; magnitudes have to follow it, above zero
            lowest = scales.amin(2, keepdim=True) - _ABOVE_ZERO * self._reach
            self.Q.copy_(scales if self.method.scale else scales - lowest)
        if self.scale is not None:
            self.scale.copy_(scales.gather(2, self.frozen_index.unsqueeze(2).cpu()).squeeze(2))

    def start_record(self, record: Weight, gain: Tensor) -> None:
        super().start_record(record, gain)
        self.R.copy_(signs(self.R) * SETTLED)

    def can_select_from(self, trained: SLBFLayer) -> bool:
        """Whether `start_selecting` takes that layer."""
        alike = self.stacking_shape == trained.stacking_shape and self.has_scales == trained.has_scales
        return alike and self.weight_shape == trained.weight_shape and not self.fixed

    @torch.no_grad()
    def start_selecting(self, trained: SLBFLayer) -> None:
        """As `trained`, a layer of this size with a fixed selection, which learns here from now on."""
        self.start_record(trained.record(), torch.ones(self.weight_shape[0]))
        self.R.copy_(trained.R)
        if self.bias is not None and trained.bias is not None:
            self.bias.copy_(trained.bias)

    @property
    def _reach(self) -> float:
        """R starts uniform in ± this: the variance 2/(s·d²) of He's rule for one filter of the bank, at most 1."""
        return min(1.0, math.sqrt(6 * self.blocks / self.fan_in))


class SLBFConv1d(LikeConv1d, SLBFLayer):
    """nn.Conv1d by SLBF: `SLBFConv1d(16, 32, 3, method=SLBF(f1=1/2, f2=1/4))`."""


class SLBFConv2d(LikeConv2d, SLBFLayer):
    """nn.Conv2d by SLBF: `SLBFConv2d(16, 32, 3, padding=1, method=SLBF(f1=1/2, f2=1/4))`."""


class SLBFLinear(LikeLinear, SLBFLayer):
    """nn.Linear by SLBF: `SLBFLinear(512, 512, method=SLBF(f1=1/2, f2=1/4))`."""

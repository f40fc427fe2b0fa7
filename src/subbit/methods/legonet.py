"""LegoNet: filters stacked from shared real-valued filters.

Yang et al., "LegoNet: Efficient Convolutional Neural Networks with Lego Filters", ICML 2019. Block i of filter t is
one of m shared filters of depth s, times a coefficient:

    W_t = [Σ_j C_1j·M_1j·B_j, …, Σ_j C_kj·M_kj·B_j]      M is one-hot along j, at argmax_j of a proxy

    B   (m, s, d, d)    the shared filters, real
    C   (c_out, k, m)   coefficients; only the chosen one of a block counts
    M   (c_out, k, m)   one-hot of `proxy`; ∂L/∂proxy = ∂L/∂M for every entry (straight-through)

`balance_penalty` grows with the imbalance between the shared filters' use. It belongs to the loss, so a training
loop adds it, times a small factor:  loss + 1e-2 · Σ layer.balance_penalty()  over the layers.

Where this departs from the paper: the penalty is m·Σ_j u_j² − 1, with u_j the share of blocks that chose filter j,
0 for an even use; the published code adds a term in proportion to u_j to the gradient of the proxy, which is the
gradient of this penalty. Filters start with He's variance for the whole stacked filter and coefficients at ±1, so
that activations keep their scale from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subbit.methods.base import (
    LikeConv1d,
    LikeConv2d,
    LikeLinear,
    LikePlain,
    as_float32,
    new_parameter,
)
from subbit.methods.fit import fit_blocks, projections
from subbit.methods.stacking import StackedLayer, StackingMethod
from subbit.nn.estimators import signs
from subbit.records import Stacked


@dataclass(frozen=True, repr=False)
class LegoNet(StackingMethod):
    """Stacked real-valued filters.

    >>> LegoNet(f1=1/4, f2=1/4)
    LegoNet(f1=1/4, f2=1/4)
    """

    name = "legonet"

    def layer_classes(self) -> tuple[type[LikePlain], ...]:
        return LegoNetConv1d, LegoNetConv2d, LegoNetLinear


class LegoNetLayer(StackedLayer):
    """Trains the shared filters, the coefficients and the proxy of the selection."""

    method: LegoNet
    shared: nn.Parameter  # (m, s, *kernel)
    coefficient: nn.Parameter  # (c_out, k, m)
    proxy: nn.Parameter  # (c_out, k, m)

    def make_parameters(self, dtype: torch.dtype, device: torch.device) -> None:
        self.settle_size(device)
        self.shared = new_parameter(self.bank_shape, dtype, device)
        self.coefficient = new_parameter(self.stacking_shape, dtype, device)
        self.proxy = new_parameter(self.stacking_shape, dtype, device)

    # -- forward

    def bank(self) -> Tensor:
        return self.shared

    def choice(self) -> Tensor:
        return self.proxy.argmax(2)

    def selection(self, index: Tensor) -> Tensor:
        """M (c_out, k, m): one-hot, with a straight-through gradient to the whole proxy."""
        return self.one_hot(index).to(self.proxy.dtype) + self.passing(self.proxy)

    def stacking(self, index: Tensor) -> Tensor:
        return self.coefficient * self.selection(index)

    def record(self) -> Stacked:
        index = self.selected_index()
        return Stacked(as_float32(self.shared), index.cpu().numpy(), as_float32(self.chosen_scale(index)))

    # -- training

    def balance_penalty(self) -> Tensor:
        """m·Σ_j u_j² − 1 over the shares u of blocks that chose filter j: 0 when all are used alike, at most m − 1."""
        use = self.selection(self.selected_index()).mean((0, 1))
        return self.filters * use.square().sum() - 1

    # -- initialisation

    @property
    def selector(self) -> nn.Parameter:
        return self.proxy

    def start_random(self) -> None:
        self.shared.normal_(std=math.sqrt(2 / self.fan_in))
        self.coefficient.copy_(signs(torch.rand_like(self.coefficient) - 0.5))
        self.proxy.normal_(std=math.sqrt(2 / (self.weight_shape[0] * self.filters)))

    def start_dense(self, weight: Tensor) -> None:
        """The bank that k-means finds, every block's best coefficients, and a proxy in order of what they explain."""
        blocks = self.split(weight)
        fit = fit_blocks(blocks, self.filters, binary=False)
        self.fit_errors = fit.errors
        self.start_from(blocks, fit.bank)

    def start_from(self, blocks: Tensor, filters: Tensor) -> None:
        coefficients = projections(blocks, filters)
        explained = coefficients.abs() * filters.square().sum(1).sqrt()  # (c_out·k, m)
        self.shared.copy_(filters.reshape(self.bank_shape))
        self.coefficient.copy_(coefficients.reshape(self.stacking_shape))
        self.proxy.copy_(explained.reshape(self.stacking_shape))


class LegoNetConv1d(LikeConv1d, LegoNetLayer):
    """nn.Conv1d by LegoNet."""


class LegoNetConv2d(LikeConv2d, LegoNetLayer):
    """nn.Conv2d by LegoNet."""


class LegoNetLinear(LikeLinear, LegoNetLayer):
    """nn.Linear by LegoNet."""

"""Muon: momentum whose matrix is made orthogonal before it becomes a step.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. For a weight of m rows (filters) and n
columns, with momentum M = U·S·Vᵀ, the step is about U·Vᵀ: every direction of the matrix moves alike, however small
its gradient. A few Newton–Schulz steps with an odd polynomial drive all singular values near 1 without an SVD.

The step is scaled by √max(m, n), which makes its entries about 1 in the mean square, as Adam's are, so that learning
rates of both mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the odd polynomial a·x + b·x³ + c·x⁵, which lifts small x fastest


# The momentum of a unit that has died shrinks to numbers too small for the usual format, with which processors take a
# hundred times as long. Beside a matrix of norm 1, five steps lift this one to a millionth at most; and alone:
_NOTHING, _NO_MOMENTUM = 1e-10, 1e-30


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for parameters of two and more dimensions, the first against all others."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        momentum.copy_(F.hardshrink(momentum, _NO_MOMENTUM))
        wanted = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        matrix = wanted.reshape(len(wanted), -1)
        step = orthogonal(matrix) * math.sqrt(max(matrix.shape))
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(step.view(parameter.shape), alpha=group["lr"])


def orthogonal(matrix: Tensor) -> Tensor:
    """U·Vᵀ of `matrix` = U·S·Vᵀ, roughly: singular values end between about 0.7 and 1.2."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x: Tensor = F.hardshrink(wide / wide.norm().clamp_min(1e-7), _NOTHING)
    x = _through_gram(x) if x.shape[1] > 2 * x.shape[0] else _directly(x)
    return x.T if wide is not matrix else x


def _directly(x: Tensor) -> Tensor:
    for _ in range(_STEPS):
        x = _polynomial(x @ x.T) @ x
    return x


def _through_gram(x: Tensor) -> Tensor:
    """The same, up to rounding, for matrices much wider than high.

    All steps happen on the Gram matrix x·xᵀ, and their product meets x once: a step multiplies x by a polynomial p of
    it, and makes it p·gram·p.
    """
    gram = x @ x.T
    product = p = _polynomial(gram)
    for _ in range(_STEPS - 1):
        gram = p @ gram @ p
        p = _polynomial(gram)
        product = p @ product
    return product @ x


def _polynomial(gram: Tensor) -> Tensor:
    """a + b·gram + c·gram², which a step multiplies by."""
    p = _B * gram + _C * gram @ gram
    p.diagonal().add_(_A)
    return p

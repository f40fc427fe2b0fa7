"""Parameter groups, optimisers, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from subbit.methods.base import CompressedLayer
from subbit.train.muon import Muon
from subbit.train.settings import Settings

# Names of parameters of compressed layers: real proxies of signs, and what chooses or scales shared filters.
_LATENTS, _SELECTORS = ("R", "latent"), ("Q", "scale", "coefficient", "proxy")

# One-cycle: a rise from lr/25 over the first three tenths, then a cosine down to nearly nothing.
_RISE, _FIRST, _LAST = 0.3, 1 / 25, 1e-5


def learning_rate(settings: Settings, step: int, steps: int, steps_per_epoch: int) -> float:
    """The rate of step 0 … steps - 1, whatever happened before: nothing to restore when a run resumes."""
    if settings.schedule == "onecycle":
        return settings.lr * _one_cycle(step / max(1, steps - 1))
    warmup = round(settings.warmup * steps_per_epoch)
    if step < warmup:
        return settings.lr * (step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * _cosine((step - warmup) / max(1, steps - warmup))


def _one_cycle(progress: float) -> float:
    if progress < _RISE:
        return 1 + (_FIRST - 1) * _cosine(progress / _RISE)
    return _LAST + (1 - _LAST) * _cosine((progress - _RISE) / (1 - _RISE))


def _cosine(progress: float) -> float:
    """From 1 down to 0."""
    return (1 + math.cos(math.pi * min(1.0, progress))) / 2


def parameter_groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """The parameters by their kind: ordinary weights, latents, selectors, and BatchNorm with biases.

    Each group has its decay, and in "rate" what to multiply the learning rate with.
    """
    groups: dict[str, list[nn.Parameter]] = {"weight": [], "latent": [], "selector": [], "norm": []}
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:  # a parameter may be shared by modules
                seen.add(id(parameter))
                groups[_kind(module, name, parameter)].append(parameter)
    rates = {"latent": settings.latent_lr, "selector": settings.selector_lr, "norm": settings.norm_lr}
    return [
        {
            "params": parameters,
            "weight_decay": getattr(settings, f"{kind}_decay"),
            "rate": rates.get(kind, 1.0),
            "name": kind,
        }
        for kind, parameters in groups.items()
        if parameters
    ]


def _kind(module: nn.Module, name: str, parameter: nn.Parameter) -> str:
    if isinstance(module, CompressedLayer) and name in _LATENTS:
        return "latent"
    if isinstance(module, CompressedLayer) and name in _SELECTORS:
        return "selector"
    return "weight" if parameter.ndim > 1 else "norm"


def optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser of the settings; several in one where a kind of parameter has its own."""
    own = {"latent": settings.latent_optimizer, "weight": settings.weight_optimizer}
    groups = parameter_groups(model, settings)
    common = [group for group in groups if not own.get(group["name"])]
    parts = [_optimizer(settings.optimizer, common, settings)] if common else []
    for kind, name in own.items():  # the order is that of saved states
        parts += [_optimizer(name, [group], settings) for group in groups if name and group["name"] == kind]
    return parts[0] if len(parts) == 1 else Several(parts)


def _optimizer(name: str, groups: list[dict[str, Any]], settings: Settings) -> torch.optim.Optimizer:
    lr, momentum = settings.lr, settings.momentum
    if name == "sgd":
        return torch.optim.SGD(groups, lr, momentum, nesterov=settings.nesterov)
    if name == "muon":
        return Muon(groups, lr, momentum, nesterov=settings.nesterov)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(groups, lr=lr, betas=(momentum, 0.999))


class Several(torch.optim.Optimizer):
    """Optimisers that step together, each on its own parameters: one optimiser for whoever uses it.

    Groups and state are one list and one dictionary that the parts share, so saving and loading are those of any
    optimiser.
    """

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            first = last

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

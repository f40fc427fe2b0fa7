"""Parameter groups, optimisers, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from subbit.methods.base import CompressedLayer
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
    """The parameters by their decay: ordinary weights, latents, selectors, and BatchNorm with biases."""
    groups: dict[str, list[nn.Parameter]] = {"weight": [], "latent": [], "selector": [], "norm": []}
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:  # a parameter may be shared by modules
                seen.add(id(parameter))
                groups[_kind(module, name, parameter)].append(parameter)
    return [
        {"params": parameters, "weight_decay": getattr(settings, f"{kind}_decay"), "name": kind}
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
    groups = parameter_groups(model, settings)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=settings.lr, betas=(settings.momentum, 0.999))

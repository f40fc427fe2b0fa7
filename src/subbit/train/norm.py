"""BatchNorm over the whole batch when CPU processes share it.

PyTorch's SyncBatchNorm wants a GPU. Without it every process would normalise its part of the batch by itself, and a
run on two processes would be another experiment than the same run on one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def synchronise(model: nn.Module) -> None:
    """Let every BatchNorm of the model take its statistics over all processes; its parameters and state stay."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = partial(_forward, module, type(module).forward)  # type: ignore[method-assign]


def separate(model: nn.Module) -> None:
    """Undo `synchronise`."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            vars(module).pop("forward", None)


def _forward(norm: _BatchNorm, plain: Callable[[_BatchNorm, Tensor], Tensor], x: Tensor) -> Tensor:
    if not norm.training:
        return plain(norm, x)
    world = dist.get_world_size()
    over = [dimension for dimension in range(x.ndim) if dimension != 1]
    shape = (1, -1, *[1] * (x.ndim - 2))
    # Two passes, mean before variance: the difference of large squares would lose digits.
    mean = _sum(x.mean(over)) / world
    centred = x - mean.view(shape)
    variance = _sum(centred.square().mean(over)) / world
    if norm.track_running_stats:
        count = x.numel() // x.shape[1] * world
        _update(norm, mean.detach(), variance.detach() * count / max(1, count - 1))
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    return y if norm.weight is None else y * norm.weight.view(shape) + norm.bias.view(shape)


class _Sum(torch.autograd.Function):
    """The sum over all processes; so is its gradient, since every process's loss depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.forward(ctx, grads[0])


def _sum(x: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def _update(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    tracked = norm.num_batches_tracked
    assert tracked is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    tracked += 1
    momentum = 1 / float(tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, momentum)
    norm.running_var.lerp_(variance, momentum)

"""Accuracy of a network on one part of a data set, and BatchNorm statistics estimated anew."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subbit.data.dataset import DataSet, Part
from subbit.train.batches import Batches, plain_batches


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet, part: Part, *, rank: int = 0, world: int = 1) -> float:
    """Share of `part` that the network gets right, in evaluation mode and fp32, as the packed network computes.

    With several processes each counts its share; all get the same answer.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    if world > 1:  # running statistics differ between processes until their next forward; those of rank 0 count
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    hits = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in plain_batches(data, part, rank=rank, world=world):
        hits += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    if world > 1:
        dist.all_reduce(hits)
    model.train(training)
    return int(hits) / len(part)


@torch.no_grad()
def reestimate_batchnorm(model: nn.Module, batches: Batches, count: int) -> None:
    """Replace running statistics by plain means over `count` training batches with the final weights.

    During training they trail behind weights whose signs still flip. Only BatchNorm is in training mode here, so
    nothing else moves.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    device = next(model.parameters()).device
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative mean
        norm.train()
    # Epochs behind the last one of the training: batches of the same kind that no step has seen.
    for step in range(count):
        epoch, place = divmod(step, len(batches))
        epoch += batches.settings.epochs
        model(batches.make(batches.order(epoch), epoch, place)[0].to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()

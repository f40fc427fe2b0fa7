"""The Lightning module: a network, its loss, its optimiser, and its place in the run.

It carries its own count of epochs and steps. All that is random in a step (order, augmentation, dropout) and the
learning rate are pure functions of that count, so weights, optimiser and the count are all that a checkpoint needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from subbit.data.augment import derive
from subbit.errors import TrainingError
from subbit.methods.base import CompressedLayer
from subbit.methods.legonet import LegoNetLayer
from subbit.methods.stacking import StackedLayer
from subbit.train import optim
from subbit.train.batches import Batch, Batches
from subbit.train.settings import Settings


class Learner(LightningModule):
    """Trains `model` on `batches` as `settings` say."""

    def __init__(
        self, model: nn.Module, batches: Batches, settings: Settings, teachers: Sequence[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.batches = batches
        self._teachers = [teacher.eval().requires_grad_(False) for teacher in teachers]  # no part of this module
        self.compressed = [module for module in model.modules() if isinstance(module, CompressedLayer)]
        self._optimizer = optim.optimizer(model, settings)
        self.epoch, self.step = 0, 0  # finished epochs, finished steps of the next one
        self.loss_sum, self.correct, self.seen = 0.0, 0, 0  # of the present epoch
        self.last_epoch: dict[str, float] = {}  # averages of the epoch before

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batches)

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    @property
    def done(self) -> int:
        """Finished steps of the whole run."""
        return self.epoch * self.steps_per_epoch + self.step

    @property
    def lr(self) -> float:
        return optim.learning_rate(self.settings, self.done, self.total_steps, self.steps_per_epoch)

    # -- state

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on exactly."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
            "epoch_sums": [self.loss_sum, self.correct, self.seen],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step = state["epoch"], state["step"]
        self.loss_sum, self.correct, self.seen = state["epoch_sums"]
        self.batches.seek(self.epoch, self.step)

    # -- what Lightning calls

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def train_dataloader(self) -> Batches:
        return self.batches

    def on_fit_start(self) -> None:
        self.batches.move_to(self.device)
        for teacher in self._teachers:
            teacher.to(self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr * group["rate"]
        for layer in self.compressed:
            layer.progress = self.done / self.total_steps
        if self.settings.freeze_selection and self.done >= self.first_frozen_step:
            self.freeze_selection()
        # Dropout and the like; other processes draw other numbers.
        torch.manual_seed(derive(self.settings.seed, "step", self.done, self.global_rank))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels, whole = batch
        logits = self.model(images)
        loss = self.loss(whole, logits, labels)
        self._count(loss, logits, labels)
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.step += 1
        if self.step == self.steps_per_epoch:
            self.last_epoch = self.averages()
            self.epoch, self.step = self.epoch + 1, 0
            self.loss_sum, self.correct, self.seen = 0.0, 0, 0

    def averages(self) -> dict[str, float]:
        """Mean loss and accuracy over the training images of the present epoch so far, as they were met."""
        return {"loss": self.loss_sum / max(1, self.seen), "train_accuracy": self.correct / max(1, self.seen)}

    # -- loss

    def loss(self, whole: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        settings = self.settings
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=settings.label_smoothing)
        if self._teachers:
            with torch.no_grad():
                wanted = [teacher(whole).float() for teacher in self._teachers]  # what shrinks is the student's work
            taught = distillation(logits.float(), wanted, settings.distill_temperature)
            loss = (1 - settings.distill_weight) * loss + settings.distill_weight * taught
        if settings.balance:
            for layer in self.model.modules():
                if isinstance(layer, LegoNetLayer):
                    loss = loss + settings.balance * layer.balance_penalty()
        return loss

    def _count(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add up loss and hits over all processes, and stop as soon as a loss is no number."""
        hits = (logits.detach().argmax(1) == labels).sum()
        sums = torch.stack([loss.detach().double() * len(labels), hits.double()])
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        loss_sum, correct = sums.tolist()
        if not math.isfinite(loss_sum):
            raise Diverged(self.done + 1, self.epoch + 1)
        self.loss_sum += loss_sum
        self.correct += int(correct)
        self.seen += len(labels) * self.trainer.world_size

    # -- selection

    @property
    def first_frozen_step(self) -> int:
        """The step from which on selections stand still."""
        return self.total_steps - round(self.settings.freeze_selection * self.total_steps)

    def freeze_selection(self) -> None:
        for layer in self.model.modules():
            if isinstance(layer, StackedLayer) and not bool(layer.frozen):
                layer.freeze_selection()


class Diverged(TrainingError):
    """The loss, or a weight, is no number any more."""

    def __init__(self, step: int, epoch: int, what: str = "the loss") -> None:
        self.step = step
        super().__init__(f"{what} is not a number since step {step} (epoch {epoch})")


def distillation(logits: Tensor, wanted: Sequence[Tensor], temperature: float) -> Tensor:
    """T²·KL(teacher ‖ student) of both softmaxes at temperature T (Hinton et al., 2015).

    `wanted` has the logits of every teacher; the mean of their softmaxes is what the student shall give.
    """
    student = F.log_softmax(logits / temperature, dim=1)
    teachers = torch.stack([F.log_softmax(one / temperature, dim=1) for one in wanted])
    mean = teachers.logsumexp(dim=0) - math.log(len(wanted))
    return F.kl_div(student, mean, reduction="batchmean", log_target=True) * temperature**2

"""`fit`: one run from settings to a trained network, in a folder that can be resumed at any moment.

    settings = Settings.resolve(model="lenet5", data="digits", method="slbf", f1=1, f2=1/4, epochs=3)
    result = fit(settings, out=Path("runs/lenet5"))
    result.test_accuracy

The folder afterwards: settings.toml and environment.json (all that defines the run), metrics.csv and tensorboard/,
checkpoint.pt and the one before it, model.pt (see `open_run`) and result.json.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from torch import nn

from subbit import data as datasets
from subbit.data.dataset import DataSet
from subbit.errors import ConfigError, TrainingError
from subbit.nn.lowering.tracing import evaluating
from subbit.train import checkpoint, convolutions, norm
from subbit.train.batches import Batches
from subbit.train.build import MODEL_FILE, build_model, packed_start, save_run
from subbit.train.evaluate import accuracy, reestimate_batchnorm
from subbit.train.learner import Diverged, Learner
from subbit.train.logs import Live, Logs
from subbit.train.machine import environment, exact, quiet, rank
from subbit.train.settings import Settings
from subbit.train.teacher import fingerprint, open_teacher
from subbit.train.watch import Watch
from subbit.train.whiten import whiten_first

SETTINGS_FILE, ENVIRONMENT_FILE, RESULT_FILE = "settings.toml", "environment.json", "result.json"


@dataclass(frozen=True)
class Result:
    """What came out of a run. Accuracies are shares of 1; `epochs` has one entry per epoch, with what was measured."""

    test_accuracy: float
    validation_accuracy: float | None
    epochs: list[dict[str, float]]
    steps: int
    seconds: float  # of training, over all resumptions
    input_share: float  # of the time, spent on making batches
    model: Path

    @classmethod
    def read(cls, folder: Path) -> Result:
        """The result of a finished run."""
        try:
            values = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
            return cls(**{**values, "model": folder / values["model"]})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TrainingError(f"{folder / RESULT_FILE} cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        checkpoint.write_bytes(folder / RESULT_FILE, replace(self, model=Path(self.model.name)).to_json().encode())

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "model": str(self.model)}, indent=1)


def fit(
    settings: Settings,
    *,
    out: Path,
    resume: bool = False,
    data: DataSet | None = None,
    console: Console | None = None,
) -> Result:
    """Train as `settings` say, in the folder `out`; with `resume`, go on where a killed run stopped.

    `data` replaces the data set that the settings name. `console` is where progress goes (None: nowhere).
    A finished run is not run again: its result is returned.
    """
    out = Path(out)
    if (out / RESULT_FILE).exists() and resume:
        _check_same_run(settings, out)
        return Result.read(out)
    if data is None:
        data = datasets.load(settings.data, settings.data_dir, image_size=settings.image_size, seed=settings.seed)
    if settings.validation:
        data = data.hold_out(settings.validation, settings.seed)
    with exact(settings.threads):
        run = _Run(settings, out, data, console or Console(quiet=True))
        run.prepare(resume)
        run.train()
        return run.result()


class _Run(Callback):
    """One call of `fit`: the learner in its folder, with logs and checkpoints around it."""

    def __init__(self, settings: Settings, out: Path, data: DataSet, console: Console) -> None:
        self.settings, self.out, self.data, self.console = settings, out, data, console
        world = settings.devices * settings.nodes
        model = build_model(settings, len(data.classes), data.shape[0], data)
        if settings.whiten and not settings.init_from:  # a finished run has better filters
            whiten_first(model, data)
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = True  # a layer less to fetch memory for; model.pt does not know of it
        batches = Batches(data, settings, world=world)
        _check_sizes(model, batches)
        teachers = [open_teacher(name, data) for name in settings.teacher]
        self.learner = Learner(model, batches, settings, teachers)
        self.history: list[dict[str, float]] = []
        self.seconds, self.input_seconds = 0.0, 0.0  # before this start
        self.writes = world == 1 or rank() == 0

    # -- before

    def prepare(self, resume: bool) -> None:
        """The folder of a new run, or the state of a resumed one."""
        started = (self.out / SETTINGS_FILE).exists()
        if started and not resume and self.writes:
            raise TrainingError(f"{self.out} already holds a run: continue it with --resume, or choose another folder")
        if started and resume:
            _check_same_run(self.settings, self.out)
            _check_same_sources(self.settings, self.out)
            self._restore()
        if left := self.settings.epochs - self.learner.epoch:
            self.trainer = self._trainer(left)  # before there is a folder: may refuse
        if not started and self.writes:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TrainingError(f"cannot make the folder {self.out}: {error.strerror}") from error
            described = json.dumps({**environment(), **_sources(self.settings)}, indent=1)
            checkpoint.write_bytes(self.out / ENVIRONMENT_FILE, described.encode())
            checkpoint.write_bytes(self.out / SETTINGS_FILE, self.settings.to_toml().encode())

    def _restore(self) -> None:
        state, problems = checkpoint.load(self.out)
        for problem in problems:
            self.console.print(f"{problem}; going on from the checkpoint before", style="yellow", highlight=False)
        if state is None:
            return
        self.learner.restore(state)
        self.history = state["history"]
        self.seconds, self.input_seconds = state["seconds"], state["input_seconds"]
        self.console.print(f"resumed behind step {self.learner.done} of {self.learner.total_steps}", highlight=False)

    # -- training

    def train(self) -> None:
        if self.learner.epoch == self.settings.epochs:
            if self.writes:
                self.finish()
            return
        try:
            with quiet():
                self.trainer.fit(self.learner)
        except Diverged as error:
            raise TrainingError(f"{error}. {self._last_good()}") from error
        except MisconfigurationException as error:
            raise _does_not_fit(error) from error
        finally:
            self._restore_modules()  # a run that failed, too
        if self.trainer.interrupted:
            raise KeyboardInterrupt

    def _restore_modules(self) -> None:
        """The modules compute again as those of any other program."""
        norm.separate(self.learner.model)
        convolutions.restore(self.learner.model)

    def _trainer(self, epochs: int) -> Trainer:
        settings = self.settings
        several = settings.devices * settings.nodes > 1
        # Lightning counts the epochs of this start only. Its own resume in the middle of an epoch restores a loop
        # state that differs between its releases; ours has nothing to restore but two numbers.
        try:
            with quiet():
                return Trainer(
                    accelerator=settings.accelerator,
                    devices=settings.devices,
                    num_nodes=settings.nodes,
                    strategy="ddp" if several else "auto",
                    precision="bf16-mixed" if settings.precision == "bf16" else "32-true",
                    max_epochs=epochs,
                    callbacks=[self],
                    logger=False,
                    enable_checkpointing=False,
                    enable_progress_bar=False,
                    enable_model_summary=False,
                    use_distributed_sampler=False,
                    sync_batchnorm=several and settings.accelerator != "cpu" and torch.cuda.is_available(),
                )
        except MisconfigurationException as error:
            raise _does_not_fit(error) from error

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batches = self.learner.batches
        batches.rank, batches.world = trainer.global_rank, trainer.world_size
        self.writes = trainer.is_global_zero
        place = trainer.strategy.broadcast(self.learner.done)
        if place != self.learner.done:
            raise TrainingError(
                f"process {trainer.global_rank} does not see the checkpoints in {self.out}: use a shared folder"
            )
        self.started = self.saved_at = self.lap_at = time.monotonic()
        self.lap_step = self.learner.done
        self.lap_input = 0.0
        if trainer.world_size > 1 and self.learner.device.type == "cpu":
            norm.synchronise(self.learner.model)
        convolutions.quicken(self.learner.model)
        if self.writes:
            self.watch = Watch(self.learner.model)
            self.logs = Logs(self.out, self.learner.done)
            self.live = Live(self.settings.epochs, self.learner.steps_per_epoch, self.console)
            if self.learner.done == 0:
                self.save()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        learner = self.learner
        if not self.writes or learner.step == 0:  # the end of an epoch is reported and saved as such
            return
        self.live.step(learner.done, learner.averages())
        if learner.done % self.settings.log_every == 0:
            self.report({**learner.averages(), "epoch": learner.epoch + 1})
        if time.monotonic() - self.saved_at >= 60 * self.settings.checkpoint_minutes:
            self.save()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        row = {"epoch": self.learner.epoch, **self.learner.last_epoch}
        parts = {"validation": self.data.validation, "test": self.data.test if self.settings.test_each_epoch else None}
        for name, part in parts.items():
            if part is not None:
                place = {"rank": trainer.global_rank, "world": trainer.world_size}
                row[f"{name}_accuracy"] = accuracy(self.learner.model, self.data, part, **place)
        if self.writes:
            row = self.report(row)
            self.history.append(row)
            self.live.epoch(row)
            self.save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_modules()
        if self.writes and self.learner.epoch == self.settings.epochs:
            self.live.close()
            self.logs.close()
            self.finish()
        trainer.strategy.barrier()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if hasattr(self, "live"):
            self.live.close()
            self.logs.close()
        if isinstance(exception, KeyboardInterrupt) and self.writes:
            self.console.print("stopped; the same command with --resume goes on from the last checkpoint")

    def report(self, values: dict[str, float]) -> dict[str, float]:
        """Log these values together with the health of the network and the speed since the last report."""
        now, learner = time.monotonic(), self.learner
        elapsed = max(1e-9, now - self.lap_at)
        values = {
            **values,
            "lr": learner.lr,
            **self.watch.look().values(),
            "input_share": (learner.batches.seconds - self.lap_input) / elapsed,
            "steps_per_second": (learner.done - self.lap_step) / elapsed,
        }
        self.lap_at, self.lap_step, self.lap_input = now, learner.done, learner.batches.seconds
        self.logs.write(learner.done, values)
        self.live.health(values)
        return values

    # -- state

    def save(self) -> None:
        """A checkpoint of this moment, unless the network is beyond repair."""
        state = self.learner.state()
        if not all(bool(torch.isfinite(value).all()) for value in state["model"].values() if value.is_floating_point()):
            raise Diverged(self.learner.done, self.learner.epoch + 1, "a weight")
        state |= {"history": self.history, "seconds": self._seconds(), "input_seconds": self._input_seconds()}
        checkpoint.save(self.out, state)
        self.saved_at = time.monotonic()

    def _seconds(self) -> float:
        return self.seconds + (time.monotonic() - self.started if hasattr(self, "started") else 0.0)

    def _input_seconds(self) -> float:
        return self.input_seconds + self.learner.batches.seconds

    def _last_good(self) -> str:
        state, _ = checkpoint.load(self.out)
        step = state["epoch"] * self.learner.steps_per_epoch + state["step"] if state else 0
        return (
            f"The last good state, of step {step}, is {self.out / checkpoint.NEWEST}. "
            "Try a smaller lr or a longer warmup, in another folder"
        )

    # -- after

    def finish(self) -> None:
        """What happens once, at the end: statistics, the test, and the files that make the run a finished one."""
        model, settings = self.learner.model, self.settings
        seconds = self._seconds()
        if settings.batchnorm_batches:
            batches = Batches(self.data, settings)
            reestimate_batchnorm(model, batches, settings.batchnorm_batches)
        validation = None
        if self.data.validation is not None:
            validation = accuracy(model, self.data, self.data.validation)
        test = accuracy(model, self.data, self.data.test)
        save_run(self.out / MODEL_FILE, model, settings, self.data)
        steps = self.learner.done
        share = self._input_seconds() / max(seconds, 1e-9)
        Result(test, validation, self.history, steps, seconds, share, self.out / MODEL_FILE).write(self.out)

    def result(self) -> Result:
        return Result.read(self.out)


def _does_not_fit(error: MisconfigurationException) -> ConfigError:
    return ConfigError(f"accelerator, devices or nodes do not fit this machine: {error}")


def _check_sizes(model: nn.Module, batches: Batches) -> None:
    """A ConfigError unless the network takes images of the smallest and of the full size, before a folder is made."""
    for size in (*batches.sizes.smaller[:1], batches.sizes.full):
        x = torch.zeros(1, batches.images.shape[1], *size)
        try:
            with evaluating(model), torch.no_grad():
                model(x)
        except (RuntimeError, ValueError) as error:
            smaller = (
                "" if size == batches.sizes.full else ", with which start_size begins: 0 is the full size throughout"
            )
            raise ConfigError(
                f"the network does not take images of shape {tuple(x.shape[1:])}{smaller}: {error}"
            ) from error


def _check_same_run(settings: Settings, out: Path) -> None:
    try:
        stored = Settings.from_toml((out / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{out / SETTINGS_FILE} cannot be read: {error}") from error
    differences = stored.differences(settings)
    if differences:
        raise ConfigError(f"the run in {out} has other settings: {'; '.join(differences)} (there and here)")


def _sources(settings: Settings) -> dict[str, Any]:
    """What a run notes of the files that it learns from: its teachers, and the packed network that it starts from."""
    noted: dict[str, Any] = {}
    if settings.teacher:
        noted["teacher_sha256"] = [fingerprint(name) for name in settings.teacher]
    if packed_start(settings) is not None:
        noted["init_sha256"] = fingerprint(settings.init_from)
    return noted


def _check_same_sources(settings: Settings, out: Path) -> None:
    """A name of the zoo or of a folder may have got another network since."""
    try:
        noted = json.loads((out / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        before = {key: noted[key] for key in ("teacher_sha256", "init_sha256") if key in noted}
    except (OSError, ValueError, TypeError):
        return  # nothing to compare with
    now = _sources(settings)
    for key, kind, names in (
        ("teacher_sha256", "other teachers", ", ".join(settings.teacher)),
        ("init_sha256", "another start", settings.init_from),
    ):
        if key in before and before[key] != now.get(key):
            raise ConfigError(f"the run in {out} had {kind}: {names} changed since")

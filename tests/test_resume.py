"""Exact resume: whatever kills a run, the same command with --resume ends with the same bits."""

from __future__ import annotations

import csv
import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from subbit.errors import ConfigError, TrainingError
from subbit.train import Result, Settings, fit
from subbit.train import checkpoint as checkpoints
from tests import tiny

# Everything that could differ behind a resume: dropout-like randomness, augmentation, warm-up, frozen selections,
# statistics at the end, a held-out part.
EVENTFUL: dict[str, Any] = {
    "epochs": 3,
    "optimizer": "sgd",
    "lr": 0.05,
    "schedule": "cosine",
    "warmup": 0.5,
    "shift": 2,
    "cutout": 6,
    "freeze_selection": 0.3,
    "batchnorm_batches": 3,
    "validation": 0.1,
    "checkpoint_minutes": 0,  # after every step, so that kills hit the writing of checkpoints too
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = checkpoints.read(folder / "model.pt")["state"]
    return state


def assert_same_bits(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert not [key for key in first if not torch.equal(first[key], second[key])]


def logged_steps(folder: Path) -> list[int]:
    if not (folder / "metrics.csv").exists():
        return []
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if (row["step"] or "").isdigit()]


def kill_at_step(pid: int, folder: Path, step: int) -> None:
    """kill -9 as soon as the logs show the step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (logged_steps(folder) or [0])[-1] >= step:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.002)
    raise AssertionError(f"step {step} was not reached")


@pytest.fixture(scope="module")
def spawn() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["subbit.train.runner", "torch.utils.tensorboard", "tests.tiny"])
    return context


def run_in_child(settings: Settings, out: Path) -> None:
    fit(settings, out=out, resume=True, data=tiny.digits())


@pytest.mark.parametrize(("method", "kills"), [("slbf", (1, 9, 17, 25)), ("bnn", (12,))])
def test_killed_again_and_again(spawn: Any, tmp_path: Path, method: str, kills: tuple[int, ...]) -> None:
    settings = tiny.settings(**EVENTFUL, method=method)
    expected = fit(settings, out=tmp_path / "whole", data=tiny.digits())
    out = tmp_path / "killed"
    for step in kills:
        child = spawn.Process(target=run_in_child, args=(settings, out))
        child.start()
        kill_at_step(child.pid, out, step)
        child.join()
        assert child.exitcode == -signal.SIGKILL
    result = fit(settings, out=out, resume=True, data=tiny.digits())
    assert_same_bits(tmp_path / "whole", out)
    for mine, theirs in zip(result.epochs, expected.epochs, strict=True):
        same = ("epoch", "loss", "train_accuracy", "validation_accuracy", "lr")
        assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}
    assert result.test_accuracy == expected.test_accuracy
    assert logged_steps(out) == logged_steps(tmp_path / "whole")  # no step twice, none missing


def test_killed_with_all_that_the_fast_recipes_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny.settings(
        model="vgg16",
        model_options={"width": 1 / 16},
        method_options={"selection": "fixed", "estimator": "soft"},
        f1="1/2",
        f2="1/2",
        latent_optimizer="muon",
        nesterov=True,
        latent_lr=2.0,
        norm_lr=2.0,
        start_size=20,
        flip=True,
        alternate=True,
        whiten=True,
        channels_last=True,
        checkpoint_minutes=0,
    )
    fit(settings, out=tmp_path / "whole", data=tiny.digits())
    real = checkpoints.save
    for place in ((0, 3), (1, 0), (1, 7)):  # in the midst of the first and the second epoch, and between them

        def save(folder: Path, content: dict[str, Any], place: tuple[int, int] = place) -> None:
            real(folder, content)
            if (content["epoch"], content["step"]) == place:
                raise RuntimeError("stopped by the test")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "save", save)
            with pytest.raises(RuntimeError, match="stopped by the test"):
                fit(settings, out=tmp_path / "killed", resume=True, data=tiny.digits())
    fit(settings, out=tmp_path / "killed", resume=True, data=tiny.digits())
    assert_same_bits(tmp_path / "whole", tmp_path / "killed")


def test_killed_command_line(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    tiny.write_idx_files(data, tiny.digits())
    network = ["--data", "mnist", "--f1", "1", "--f2", "1/8", "--epochs", "2", "--lr", "2e-3", "--batch", "32"]
    around = ["--threads", "1", "--log-every", "1", "--checkpoint-minutes", "0.0005"]
    command = [sys.executable, "-m", "subbit", "train", *network, *around, "--data-dir", str(data), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    kill_at_step(child.pid, out, 13)
    assert child.wait() == -signal.SIGKILL
    resumed = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed behind step" in resumed.stderr  # all that is no JSON
    said, kept = json.loads(resumed.stdout), json.loads((out / "result.json").read_text())
    assert said == {**kept, "model": str(out / kept["model"])}
    fit(tiny.settings(data_dir=str(data)), out=tmp_path / "whole")
    assert_same_bits(tmp_path / "whole", out)


# ------------------------------------------------------------------------------------------- the folder


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, Path]:
    """A run that stopped in its second epoch, at step 15, with checkpoints of steps 14 and 15."""
    settings = tiny.settings(checkpoint_minutes=0)
    real = checkpoints.save

    def save(folder: Path, content: dict[str, Any]) -> None:
        real(folder, content)
        if content["epoch"] == 1 and content["step"] == 5:
            raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", save)
        with pytest.raises(RuntimeError, match="stopped by the test"):
            fit(settings, out=tmp_path / "run", data=tiny.digits())
    return settings, tmp_path / "run"


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "one bit":
        content[len(content) // 2] ^= 1
    elif how == "empty":
        content = bytearray()
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "one bit", "empty"])
def test_damaged_newest_falls_back_to_previous(stopped: tuple[Settings, Path], tmp_path: Path, how: str) -> None:
    from rich.console import Console

    settings, out = stopped
    damage(out / "checkpoint.pt", how)
    console = Console(record=True, width=400, file=(tmp_path / "log").open("w"))
    fit(settings, out=out, resume=True, data=tiny.digits(), console=console)
    said = console.export_text()
    assert "checkpoint.pt is damaged" in said
    assert "resumed behind step 14" in said
    fit(settings, out=tmp_path / "whole", data=tiny.digits())
    assert_same_bits(tmp_path / "whole", out)


def test_all_damaged_is_an_error_and_starts_nothing(stopped: tuple[Settings, Path]) -> None:
    settings, out = stopped
    damage(out / "checkpoint.pt", "one bit")
    damage(out / "checkpoint-previous.pt", "truncated")
    with pytest.raises(TrainingError, match=r"checkpoint\.pt is damaged.*checkpoint-previous\.pt is damaged.*whole"):
        fit(settings, out=out, resume=True, data=tiny.digits())
    assert not (out / "model.pt").exists()


def test_crash_between_the_renames_of_a_save(stopped: tuple[Settings, Path]) -> None:
    _, out = stopped
    (out / "checkpoint.pt").rename(out / "checkpoint.pt.new")
    state, problems = checkpoints.load(out)
    assert state is not None
    assert (state["epoch"], state["step"], problems) == (1, 5, [])


def test_other_settings_are_refused(stopped: tuple[Settings, Path]) -> None:
    settings, out = stopped
    with pytest.raises(ConfigError, match=r"lr = 0\.002 and 0\.1"):
        fit(settings.but(lr=0.1), out=out, resume=True, data=tiny.digits())
    fit(settings.but(log_every=7), out=out, resume=True, data=tiny.digits())  # changes no bit


def test_a_run_is_not_overwritten(stopped: tuple[Settings, Path]) -> None:
    settings, out = stopped
    with pytest.raises(TrainingError, match="already holds a run: continue it with --resume"):
        fit(settings, out=out, data=tiny.digits())


def test_finished_run_is_not_run_again(tmp_path: Path) -> None:
    settings = tiny.settings(epochs=1)
    first = fit(settings, out=tmp_path / "run", data=tiny.digits())
    before = (tmp_path / "run" / "model.pt").stat().st_mtime_ns
    assert (
        fit(settings, out=tmp_path / "run", resume=True, data=tiny.digits()) == first == Result.read(tmp_path / "run")
    )
    assert (tmp_path / "run" / "model.pt").stat().st_mtime_ns == before


def test_killed_between_last_epoch_and_model(tmp_path: Path) -> None:
    settings, out = tiny.settings(epochs=1, batchnorm_batches=2), tmp_path / "run"
    fit(settings, out=out, data=tiny.digits())
    finished = weights(out)
    (out / "model.pt").unlink()
    (out / "result.json").unlink()
    fit(settings, out=out, resume=True, data=tiny.digits())
    assert all(torch.equal(finished[key], value) for key, value in weights(out).items())


# -------------------------------------------------------------------------------------------- full disk


def test_full_disk_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    """A real limit on the size of files: the write fails half-way, as on a full disk."""
    checkpoints.save(tmp_path, {"epoch": 1, "values": torch.zeros(100)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(TrainingError, match=r"cannot write .*still good: make room and continue with --resume"):
            checkpoints.save(tmp_path, {"epoch": 2, "values": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    state, problems = checkpoints.load(tmp_path)
    assert state is not None
    assert state["epoch"] == 1
    assert not problems
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]  # no half-written rest


def test_full_disk_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, out = tiny.settings(checkpoint_minutes=0), tmp_path / "run"
    real, calls = os.fsync, iter(range(1000))

    def fsync(handle: int) -> None:
        if next(calls) > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(TrainingError, match="No space left on device"):
            fit(settings, out=out, data=tiny.digits())
    fit(settings, out=out, resume=True, data=tiny.digits())
    fit(settings, out=tmp_path / "whole", data=tiny.digits())
    assert_same_bits(tmp_path / "whole", out)


def test_a_checkpoint_cannot_execute(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"epoch": Hostile()}, tmp_path / "checkpoint.pt")
    with pytest.raises(TrainingError, match="damaged or not a checkpoint"):
        checkpoints.load(tmp_path)
    assert not (tmp_path / "executed").exists()


# -------------------------------------------------------------------------------------------- divergence


def test_nan_stops_with_its_step_and_the_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from subbit.train.learner import Learner

    real = Learner.loss

    def loss(self: Learner, *args: Any) -> torch.Tensor:
        value = real(self, *args)
        return value * float("nan") if self.done >= 12 else value

    monkeypatch.setattr(Learner, "loss", loss)
    message = (
        r"the loss is not a number since step 13 \(epoch 2\)\. The last good state, of step 10, is .*checkpoint\.pt"
    )
    with pytest.raises(TrainingError, match=message):
        fit(tiny.settings(), out=tmp_path / "run", data=tiny.digits())
    state, _ = checkpoints.load(tmp_path / "run")
    assert state is not None
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    settings = tiny.settings(method="dense", optimizer="sgd", lr=1e30, schedule="constant", checkpoint_minutes=0)
    with pytest.raises(TrainingError, match="not a number since step"):
        fit(settings, out=tmp_path / "run", data=tiny.digits())
    state, _ = checkpoints.load(tmp_path / "run")
    assert state is not None
    assert all(torch.isfinite(value).all() for value in state["model"].values() if value.is_floating_point())

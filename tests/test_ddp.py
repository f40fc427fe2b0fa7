"""Two processes train as one does: the same global batches, augmentation and BatchNorm statistics.

Losses of the first steps agree to 1e-5 (sums are taken in another order); behind them rounding grows, and signs that
flip one step earlier or later make the runs differ by chance, so whole epochs agree to 2 %.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from subbit.errors import ConfigError
from subbit.train import Result, Settings, fit
from subbit.train.batches import Batches
from tests import tiny
from tests.test_resume import assert_same_bits, kill_at_step

FLAGS = (
    "--data mnist --f1 1 --f2 1/8 --epochs 2 --batch 32 --threads 1 --log-every 1 --shift 2 --cutout 4 "
    "--validation 0.1 --test-each-epoch --checkpoint-minutes 0 --devices 2"
)


def command(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "subbit",
        "train",
        *FLAGS.split(),
        "--data-dir",
        str(folder),
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.write_idx_files(folder, tiny.digits())
    return folder


@pytest.fixture(scope="module")
def two_processes(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "run"
    done = subprocess.run(command(data, out), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test ") == 3  # two epochs and the end, said once: the other process is quiet
    return out


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_same_metrics_as_one_process(two_processes: Path, data: Path, tmp_path: Path) -> None:
    settings = Settings.from_toml((two_processes / "settings.toml").read_text()).but(devices=1)
    fit(settings, out=tmp_path / "one")
    one, two = rows(tmp_path / "one"), rows(two_processes)
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for mine, theirs in list(zip(one, two, strict=True))[:5]:
        assert float(mine["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-5)
        assert mine["train_accuracy"] == theirs["train_accuracy"]
        assert mine["lr"] == theirs["lr"]
    result_one, result_two = Result.read(tmp_path / "one"), Result.read(two_processes)
    for mine_, theirs_ in zip(result_one.epochs, result_two.epochs, strict=True):
        assert mine_["loss"] == pytest.approx(theirs_["loss"], rel=0.02)
        assert mine_["train_accuracy"] == pytest.approx(theirs_["train_accuracy"], abs=0.02)


def test_measured_in_parts_as_in_whole(two_processes: Path) -> None:
    """Per-epoch accuracies were counted by two processes, the final ones by the first alone, on the same weights."""
    result = Result.read(two_processes)
    assert result.epochs[-1]["test_accuracy"] == result.test_accuracy
    assert result.epochs[-1]["validation_accuracy"] == result.validation_accuracy


def test_killed_and_resumed(two_processes: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command(data, out), stdout=quiet, stderr=quiet, start_new_session=True)
    kill_at_step(child.pid, out, 12)
    assert child.wait() == -signal.SIGKILL
    _end_group(child.pid)
    resumed = subprocess.run(command(data, out, "--resume", "--json"), capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["model"] == str(out / "model.pt")  # said by one of the two
    assert_same_bits(two_processes, out)


def _end_group(group: int) -> None:
    """The second process notices that the first is gone; do not wait for its timeout."""
    for _ in range(100):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------ batches


def test_processes_share_the_global_batch() -> None:
    settings = tiny.settings(shift=2, flip=True, cutout=5)
    whole = Batches(tiny.digits(), settings)
    parts = [Batches(tiny.digits(), settings, rank=rank, world=2) for rank in range(2)]
    for (images, labels, _), (first, second) in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(images, torch.cat([first[0], second[0]]))
        assert torch.equal(labels, torch.cat([first[1], second[1]]))


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="a batch of 32 images cannot be split over 3 processes"):
        Batches(tiny.digits(), tiny.settings(), world=3)

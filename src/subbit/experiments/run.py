"""Runs what the ledger does not have yet, and writes a line for every run that ends."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subbit.errors import ConfigError, DataError
from subbit.experiments import ledger
from subbit.experiments.ledger import Entry, Layer
from subbit.experiments.spec import Row, Spec, nearest

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from subbit.train import Result

_VERSIONS = ("python", "subbit", "torch", "lightning", "numpy")


@dataclass(frozen=True)
class Job:
    """One run to do: a row with a seed, for some epochs."""

    spec: Spec
    row: Row
    seed: int
    epochs: int

    @property
    def folder(self) -> Path:
        """Below the folder of runs; a changed definition or length never resumes another run."""
        return Path(self.spec.name) / f"{self.row.name}-seed{self.seed}-epochs{self.epochs}-{self.row.hash}"

    @property
    def command(self) -> str:
        """What to type for this run and no other."""
        epochs = "" if self.epochs == self.row.epochs else f" --epochs {self.epochs}"
        return f"subbit reproduce {self.spec.name} --rows {self.row.name} --seeds {self.seed}{epochs}"

    def inputs(self) -> dict[str, Job]:
        """Setting -> the job whose run folder it needs."""
        found = {}
        for setting, name in self.row.inputs.items():
            row = self.spec.row(name)
            seed = self.seed if self.seed in row.seeds else row.seeds[0]
            # A run that is shortened shortens its inputs by the same share; one that is lengthened leaves them.
            share = min(1.0, self.epochs / self.row.epochs)
            found[setting] = replace(self, row=row, seed=seed, epochs=max(1, round(share * row.epochs)))
        return found


def select_rows(spec: Spec, patterns: Sequence[str]) -> list[Row]:
    """The rows that any of the patterns (names or globs) matches, in the spec's order; all without patterns."""
    if not patterns:
        return list(spec.rows)
    names = [row.name for row in spec.rows]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(f"{spec.name}: no row is named {pattern!r}; {nearest(pattern, names)}")
    return [row for row in spec.rows if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]


def missing_jobs(
    spec: Spec,
    entries: Sequence[Entry],
    rows: Sequence[Row],
    *,
    epochs: int | None = None,
    seeds: Sequence[int] = (),
) -> list[Job]:
    """The (row, seed) pairs without a ledger line for the row as it is defined now, with as many epochs."""
    return [job for job in all_jobs(spec, rows, epochs=epochs, seeds=seeds) if find_entry(job, entries) is None]


def all_jobs(spec: Spec, rows: Sequence[Row], *, epochs: int | None = None, seeds: Sequence[int] = ()) -> list[Job]:
    """Every row with each of its seeds, or with the ones given."""
    return [Job(spec, row, seed, epochs or row.epochs) for row in rows for seed in seeds or row.seeds]


def run_job(job: Job, runs: Path, *, data_dir: str = "", console: Console | None = None) -> Entry | None:
    """Trains (or resumes) a job after the jobs it needs, and appends its line to the ledger; gives that line.

    A job that the ledger has already is only run for its folder, and None is given.
    """
    from subbit.train import fit

    inputs = {}
    for setting, needed in job.inputs().items():
        run_job(needed, runs, data_dir=data_dir, console=console)
        inputs[setting] = str(runs / needed.folder)
    if console:
        console.rule(f"{job.row.label}, seed {job.seed}, {job.epochs} epochs", align="left")
    folder = runs / job.folder
    settings = job.row.resolve(seed=job.seed, epochs=job.epochs, data_dir=data_dir, **inputs)
    result = fit(settings, out=folder, resume=folder.exists(), console=console)
    if find_entry(job, ledger.read(job.spec.ledger).entries):
        return None
    entry = describe(job, folder, result)
    ledger.append(job.spec.ledger, entry)
    return entry


def find_entry(job: Job, entries: Iterable[Entry]) -> Entry | None:
    """The line that a job left in the ledger."""
    wanted = (job.row.name, job.row.hash, job.seed, job.epochs)
    return next((e for e in entries if (e.row, e.row_hash, e.seed, e.epochs) == wanted), None)


def describe(job: Job, folder: Path, result: Result) -> Entry:
    """The ledger line of the finished run in `folder`."""
    from subbit import inspect
    from subbit.train import open_run

    run = open_run(folder)
    report = inspect(run.model, run.shape, labels=run.classes, preprocessing=run.preprocessing)
    usage = filter_usage(run.model)
    split, curve = _curve(result)
    machine = _environment(folder)
    commit = str(machine["commit"])
    places = ("data_dir", *job.row.inputs)  # settings that say where something lies on this machine
    return Entry(
        spec=job.spec.name,
        row=job.row.name,
        row_hash=job.row.hash,
        seed=job.seed,
        epochs=job.epochs,
        spec_epochs=job.row.epochs,
        accuracy=100 * result.test_accuracy,
        curve=curve,
        curve_split=split,
        stored_bytes=report.stored_bytes,
        dense_bytes=report.dense_bytes,
        ratio=report.ratio,
        paper_ratio=report.paper_ratio,
        seconds=round(result.seconds, 1),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit.rstrip("+"),
        dirty=commit.endswith("+"),
        versions={name: str(machine[name]) for name in _VERSIONS},
        cpu=str(machine["cpu"]),
        threads=int(machine["threads"]),
        command=job.command,
        settings={
            **{key: value for key, value in run.settings.to_dict().items() if key not in places},
            **{key: machine[key] for key in ("teacher_sha256", "init_sha256") if key in machine},
        },
        layers=tuple(
            Layer(layer.name, layer.weights, layer.stored_bits, usage.get(layer.name, ())) for layer in report.layers
        ),
    )


def _curve(result: Result) -> tuple[str, tuple[float, ...]]:
    """Accuracy (percent) after each epoch, on the test images where they were looked at, else on the best there is."""
    for split in ("test", "validation", "train"):
        curve = [epoch.get(f"{split}_accuracy") for epoch in result.epochs]
        if all(value is not None for value in curve):
            return split, tuple(round(100 * value, 3) for value in curve if value is not None)
    return "", ()


def _environment(folder: Path) -> dict[str, Any]:
    """What the run noted of its surroundings when it began."""
    from subbit.train.runner import ENVIRONMENT_FILE

    path = folder / ENVIRONMENT_FILE
    try:
        noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; delete the folder to run this row again") from error
    return noted


def filter_usage(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Layer -> how many blocks chose each of its shared filters, for the stacked layers of a model."""
    import numpy as np

    from subbit.methods.base import CompressedLayer
    from subbit.records import Stacked

    found = {}
    for name, module in model.named_modules():
        if isinstance(module, CompressedLayer) and isinstance(record := module.record(), Stacked):
            found[name] = tuple(np.bincount(record.index.ravel(), minlength=record.filters).tolist())
    return found

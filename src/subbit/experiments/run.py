"""Runs what the ledger does not have yet, and writes a line for every run that ends."""

from __future__ import annotations

import fnmatch
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from subbit.errors import ConfigError
from subbit.experiments import ledger
from subbit.experiments.ledger import Entry, Layer
from subbit.experiments.spec import Row, Spec, nearest

if TYPE_CHECKING:
    from torch import nn

    from subbit.train import Result

_PATHS = ("data_dir", "init_from", "teacher")  # settings that say where something lies on this machine


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
            # A run that is shortened shortens its inputs alike, but never lengthens them.
            found[setting] = replace(self, row=row, seed=seed, epochs=min(self.epochs, row.epochs))
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
    wanted = [Job(spec, row, seed, epochs or row.epochs) for row in rows for seed in seeds or row.seeds]
    return [job for job in wanted if not _is_done(job, entries)]


def run_job(
    job: Job, runs: Path, *, data_dir: str = "", announce: Callable[[Job], None] = lambda job: None
) -> Entry | None:
    """Trains (or resumes) a job after the jobs it needs, and appends its line to the ledger; gives that line.

    A job that the ledger has already is only run for its folder, and None is given.
    """
    from subbit.train import fit

    inputs = {}
    for setting, needed in job.inputs().items():
        run_job(needed, runs, data_dir=data_dir, announce=announce)
        inputs[setting] = str(runs / needed.folder)
    announce(job)
    code = Code.of(job.spec.path.parent)
    settings = job.row.resolve(seed=job.seed, epochs=job.epochs, data_dir=data_dir, **inputs)
    result = fit(settings, out=runs / job.folder, resume=(runs / job.folder).exists())
    if _is_done(job, ledger.read(job.spec.ledger).entries):
        return None
    entry = describe(job, result, code)
    ledger.append(job.spec.ledger, entry)
    return entry


def _is_done(job: Job, entries: Iterable[Entry]) -> bool:
    wanted = (job.row.name, job.row.hash, job.seed, job.epochs)
    return any((entry.row, entry.row_hash, entry.seed, entry.epochs) == wanted for entry in entries)


def describe(job: Job, result: Result, code: Code) -> Entry:
    """The ledger line of a finished run."""
    import torch

    from subbit import inspect

    report = inspect(result.model, result.input_shape)
    usage = filter_usage(result.model)
    settings = {key: value for key, value in result.settings.to_dict().items() if key not in _PATHS}
    return Entry(
        spec=job.spec.name,
        row=job.row.name,
        row_hash=job.row.hash,
        seed=job.seed,
        epochs=job.epochs,
        spec_epochs=job.row.epochs,
        accuracy=result.accuracy,
        curve=result.curve,
        curve_split=result.curve_split,
        stored_bytes=report.stored_bytes,
        dense_bytes=report.dense_bytes,
        ratio=report.ratio,
        paper_ratio=report.paper_ratio,
        seconds=result.seconds,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=code.commit,
        dirty=code.dirty,
        versions=_versions(),
        cpu=_cpu(),
        threads=torch.get_num_threads(),
        command=job.command,
        settings=settings,
        layers=tuple(
            Layer(layer.name, layer.weights, layer.bits.total, usage.get(layer.name, ())) for layer in report.layers
        ),
    )


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


@dataclass(frozen=True)
class Code:
    """The commit a run was made with, and whether files had been changed since; empty outside a checkout."""

    commit: str = ""
    dirty: bool = False

    @classmethod
    def of(cls, folder: Path) -> Code:
        commit = _git(folder, "rev-parse", "HEAD")
        # Ledgers grow by every run, so their own changes say nothing about the code.
        changed = _git(folder, "status", "--porcelain", "--", ":/", ":(top,exclude,glob)**/results/*.jsonl")
        return cls(commit, bool(changed)) if commit else cls()


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _versions() -> dict[str, str]:
    from subbit import __version__

    installed = {package: version(package) for package in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "subbit": __version__, **installed}


def _cpu() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

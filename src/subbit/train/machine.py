"""What a result depends on besides its settings: versions, processor, commit, and how torch computes."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

import subbit

_PACKAGES = ("torch", "lightning", "numpy")


def environment() -> dict[str, str | int]:
    """Versions, processor, threads and commit, for the record."""
    return {
        "subbit": subbit.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Of the working copy this package is used from; empty for an installed one. "+" marks local changes."""
    folder = Path(subbit.__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD") if _git(folder, "ls-files", "__init__.py") else ""
    return f"{head}+" if head and _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@contextlib.contextmanager
def exact(threads: int) -> Iterator[None]:
    """Deterministic algorithms and the asked number of threads inside; everything as before behind it.

    Sums depend on how they are split over threads: bits are equal for equal thread counts.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    random = torch.get_rng_state()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid that costs time
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_num_threads(before)
        torch.set_rng_state(random)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's hints about loaders and loggers, which do not apply to this loop."""
    loggers = [
        logging.getLogger(name)
        for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def rank() -> int:
    """The number of this process among all of them, before Lightning has connected them."""
    for key in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if os.environ.get(key, "").isdigit():
            return int(os.environ[key])
    return 0

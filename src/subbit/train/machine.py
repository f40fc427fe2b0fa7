"""What a result depends on besides its settings: versions, processor, commit, and how torch computes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import warnings
from collections.abc import Iterator

import torch

import subbit
from subbit.host import commit, processor, versions

_PACKAGES = ("torch", "lightning", "numpy")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def environment() -> dict[str, str | int]:
    """Versions, processor, threads and commit, for the record."""
    return {
        "subbit": subbit.__version__,
        "python": platform.python_version(),
        **versions(_PACKAGES),
        "platform": platform.platform(),
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


@contextlib.contextmanager
def exact(threads: int) -> Iterator[None]:
    """Deterministic algorithms and the asked number of threads inside; both as before behind it.

    Sums depend on how they are split over threads: bits are equal for equal thread counts.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    random = torch.get_rng_state()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _keep_memory()
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


def _keep_memory() -> None:
    """Let the C library keep freed memory for the next step instead of handing it back and fetching it anew.

    Every step frees and allocates the same activations, and fetching their pages anew costs a good part of its time.
    Only glibc has the call, it holds for the rest of the process, and no result depends on it.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


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

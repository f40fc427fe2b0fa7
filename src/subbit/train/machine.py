"""What a result depends on besides its settings: versions, processor, commit."""

from __future__ import annotations

import platform
import subprocess
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

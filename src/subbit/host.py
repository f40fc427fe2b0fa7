"""What a measurement depends on besides the code: processor, versions and commit. Standard library only."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import subbit


def processor() -> str:
    """The name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processor_model() -> str:
    """Which one of its vendor's it is, where names say little (virtual machines): "family 26, model 2"; or empty."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        return ""
    names = {"cpu family": "family", "model": "model"}
    return ", ".join(f"{name} {found[key]}" for key, name in names.items() if key in found)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those `packages` that are installed."""
    return {name: version for name in packages if (version := _version(name))}


def commit() -> str:
    """Of the working copy this package is used from; empty for an installed one. "+" marks local changes."""
    folder = Path(subbit.__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD") if _git(folder, "ls-files", "__init__.py") else ""
    return f"{head}+" if head and _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else head


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

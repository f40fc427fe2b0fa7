"""Checkpoints that are whole or absent: written beside, flushed, renamed; the one before is kept.

A checkpoint is an ordinary PyTorch file of tensors and plain values, read with `weights_only=True`, so that no file
can make the reader execute anything. Its checksums (those of the zip container) are verified before it is used.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from subbit.errors import TrainingError

NEWEST, PREVIOUS = "checkpoint.pt", "checkpoint-previous.pt"
FRESH = f"{NEWEST}.new"  # whole, but not yet the newest


def write(path: Path, content: dict[str, Any]) -> None:
    """Write `content` to `path`, atomically: after a crash at any moment the old file or the new one is there."""
    buffer = io.BytesIO()
    torch.save(content, buffer)  # to memory first, so that a full disk is a plain OSError below
    write_bytes(path, buffer.getbuffer())


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """The same for any content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _reporting(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def save(folder: Path, content: dict[str, Any]) -> None:
    """Write the newest checkpoint of a run; the one that was the newest becomes the previous one."""
    newest = folder / NEWEST
    write(folder / FRESH, content)
    with _reporting(newest):
        if newest.exists():
            os.replace(newest, folder / PREVIOUS)
        os.replace(folder / FRESH, newest)
        _sync_folder(folder)


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"cannot write {path}: {error.strerror}. The checkpoint before is still good: "
            "make room and continue with --resume"
        ) from error


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint of a run, or None where there is none; and what was wrong with newer ones.

    If there are checkpoints but all of them are damaged, that is an error: a run must not start over in silence.
    """
    problems: list[str] = []
    # A crash between the renames of `save` leaves the fresh one under its first name; it is whole.
    for name in (FRESH, NEWEST, PREVIOUS):
        if (folder / name).exists():
            try:
                return read(folder / name), problems
            except TrainingError as error:
                problems.append(str(error))
    if problems:
        raise TrainingError(f"{'; '.join(problems)}. No checkpoint of {folder} is whole: start again in another folder")
    return None, []


def read(path: Path) -> dict[str, Any]:
    """The content of one file, its checksums verified."""
    try:
        with zipfile.ZipFile(path) as container:
            damaged = container.testzip()
        if damaged is not None:
            raise TrainingError(f"{path} is damaged (checksum of {damaged})")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except TrainingError:
        raise
    except FileNotFoundError as error:
        raise TrainingError(f"there is no file {path}") from error
    except Exception as error:  # a damaged container can fail in any way
        raise TrainingError(f"{path} is damaged or not a checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise TrainingError(f"{path} is not a checkpoint of subbit")
    return content


def _sync_folder(folder: Path) -> None:
    """Make renames durable; not every system can open a folder for that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The ledger: one JSON line per finished run, appended, never rewritten.

A line says what was run (spec, row, hash of the row's definition, seed, epochs), what came out (accuracy per epoch
and at the end, bytes of the file, both ratios, bits and filter use per layer) and under which circumstances (commit,
versions, CPU, threads, seconds, date, command).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from subbit.errors import DataError


@dataclass(frozen=True)
class Layer:
    """What one weighted layer costs in the file, and how often each of its shared filters is used."""

    name: str
    weights: int
    bits: int
    usage: tuple[int, ...] = ()  # blocks that chose filter j; empty for layers that are not stacked


@dataclass(frozen=True)
class Entry:
    """One finished run. Accuracies in percent, times in seconds."""

    spec: str
    row: str
    row_hash: str
    seed: int
    epochs: int
    spec_epochs: int  # what the spec asked for when this was run
    accuracy: float  # on the test set, after the last epoch
    curve: tuple[float, ...]  # accuracy after each epoch, on `curve_split`
    curve_split: str
    stored_bytes: int
    dense_bytes: int
    ratio: float
    paper_ratio: float | None  # None for a network without convolutions, which the paper's count leaves out
    seconds: float
    date: str  # UTC, ISO 8601
    commit: str  # empty outside a checkout
    dirty: bool  # the checkout had uncommitted changes
    versions: Mapping[str, str]
    cpu: str
    threads: int
    command: str
    settings: Mapping[str, Any]  # as resolved, without what lies in folders of runs; files of teachers
    layers: tuple[Layer, ...] = ()

    def to_line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Ledger:
    """What could be read of a ledger, and a message for every line that could not."""

    entries: tuple[Entry, ...] = ()
    damaged: tuple[str, ...] = field(default=())


def append(path: Path, entry: Entry) -> None:
    """Adds one line: a single write in append mode, on disk when this returns.

    Where a crash left the last line without its end, the new one starts on a line of its own.
    """
    line = (entry.to_line() + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.fstat(descriptor).st_size:
                os.lseek(descriptor, -1, os.SEEK_END)
                if os.read(descriptor, 1) != b"\n":
                    line = b"\n" + line
            written = os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"cannot append to {path}: {error.strerror}") from error
    if written != len(line):
        raise DataError(f"{path}: the line could not be written whole; free some space and run the command again")


def read(path: Path) -> Ledger:
    """All entries of a ledger; a file that is not there is an empty one, a damaged line is named and left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    entries: list[Entry] = []
    damaged: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_entry(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            damaged.append(f"{path}, line {number} is damaged and left out: {_reason(error)}")
    return Ledger(tuple(entries), tuple(damaged))


def _entry(content: object) -> Entry:
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    known = {f.name for f in fields(Entry)}
    values = {key: value for key, value in content.items() if key in known}  # a later version may write more
    values["curve"] = tuple(float(value) for value in values["curve"])
    values["layers"] = tuple(
        Layer(**{**layer, "usage": tuple(layer.get("usage", ()))}) for layer in values.get("layers", ())
    )
    for name in ("seed", "epochs", "spec_epochs", "stored_bytes", "dense_bytes", "threads"):
        if type(values[name]) is not int:
            raise TypeError(f"{name} is not a whole number")
    for name in ("accuracy", "ratio", "seconds"):
        values[name] = float(values[name])
    return Entry(**values)


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)

"""CIFAR-10 and CIFAR-100 in their python and binary versions, unpacked or still in their .tar.gz.

The python version is made of pickles. They are read with an unpickler that knows how to rebuild NumPy arrays and
refuses every other name, so nothing in a file can be executed.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subbit.data.dataset import DataSet, Part
from subbit.errors import DataError

_PIXELS = 3 * 32 * 32
_MAX_MEMBER = 1 << 28  # bytes; the largest real one has 155 million


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one version of a CIFAR keeps what."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    names: str  # the file with the names of the classes
    names_key: str = ""  # its key, in a pickle
    labels_key: str = ""  # of the labels, in a pickle
    label_bytes: int = 0  # in front of the pixels of a binary record, the last one the label; 0: pickles

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (
        Layout(
            folder="cifar-10-batches-py",
            archive="cifar-10-python.tar.gz",
            train=tuple(f"data_batch_{i}" for i in range(1, 6)),
            test="test_batch",
            names="batches.meta",
            names_key="label_names",
            labels_key="labels",
        ),
        Layout(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test="test_batch.bin",
            names="batches.meta.txt",
            label_bytes=1,
        ),
    ),
    "cifar100": (
        Layout(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            train=("train",),
            test="test",
            names="meta",
            names_key="fine_label_names",
            labels_key="fine_labels",
        ),
        Layout(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            train=("train.bin",),
            test="test.bin",
            names="fine_label_names.txt",
            label_bytes=2,  # coarse, fine
        ),
    ),
}


def find(name: str, root: Path) -> Callable[[], DataSet] | None:
    """A function that reads this CIFAR from `root`, or None if no version of it is there."""
    for layout in LAYOUTS[name]:
        for folder in (root / layout.folder, root / name / layout.folder, root):
            if all((folder / file).is_file() for file in layout.files):
                return partial(_read, name, layout, _Folder(folder))
    for layout in LAYOUTS[name]:
        for archive in (root / layout.archive, root / name / layout.archive):
            if archive.is_file():
                return partial(_read, name, layout, _Archive(archive))
    return None


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, file: str) -> tuple[str, bytes]:
        """The name for messages, and the content."""
        try:
            return str(self.path / file), (self.path / file).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.path / file}: {error.strerror}") from error


class _Archive:
    """Members are read into memory by their base name; nothing is written to disk, whatever paths they carry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def content(self) -> dict[str, bytes]:
        content = {}
        try:
            with tarfile.open(self.path) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isfile() and member.size < _MAX_MEMBER else None
                    if file is not None:
                        content[Path(member.name).name] = file.read()
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise DataError(f"{self.path} is damaged or not complete: {error}; fetch it again") from error
        return content

    def read(self, file: str) -> tuple[str, bytes]:
        if file not in self.content:
            raise DataError(f"{self.path} has no file {file}: fetch it again")
        return f"{self.path}:{file}", self.content[file]


def _read(name: str, layout: Layout, source: _Folder | _Archive) -> DataSet:
    read = _binary if layout.label_bytes else _pickled
    train = [read(layout, *source.read(file)) for file in layout.train]
    test = read(layout, *source.read(layout.test))
    return DataSet.of(name, _joined(train), test, _names(layout, *source.read(layout.names)))


def _joined(parts: list[Part]) -> Part:
    return Part(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _names(layout: Layout, where: str, data: bytes) -> tuple[str, ...]:
    if layout.label_bytes:
        return tuple(line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip())
    names = load_pickle(where, data).get(layout.names_key)
    if not isinstance(names, list) or not names:
        raise DataError(f"{where} has no list {layout.names_key!r}")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)


# ---------------------------------------------------------------------------------------- both versions


def _binary(layout: Layout, where: str, data: bytes) -> Part:
    record = layout.label_bytes + _PIXELS
    if not data or len(data) % record:
        raise DataError(
            f"{where} holds {len(data)} bytes, not a multiple of {record}: damaged or not complete, fetch it again"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = rows[:, layout.label_bytes - 1].astype(np.int64)
    return Part(rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32), labels)


def _pickled(layout: Layout, where: str, data: bytes) -> Part:
    content = load_pickle(where, data)
    pixels, labels = content.get("data"), content.get(layout.labels_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise DataError(f"{where} has no uint8 array 'data' of {_PIXELS} pixels a row: not a batch of this CIFAR")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise DataError(f"{where} has no list {layout.labels_key!r} with a number for each of its {len(pixels)} images")
    return Part(pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64))


def load_pickle(where: str, data: bytes) -> dict[str, Any]:
    """The dictionary in a CIFAR pickle; anything but plain values and arrays is refused, not executed."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{where} is damaged or not complete ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{where} holds a {type(content).__name__}, not a dictionary")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _empty_array(subtype: Any, shape: Any, typecode: Any) -> NDArray[Any]:
    # How NumPy pickles begin an array; its shape and content follow with __setstate__.
    if subtype is not np.ndarray:
        raise DataError("the pickle builds an array of an unknown kind")
    return np.ndarray((0,), dtype="u1")


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes into an old-style pickle.
    if encoding != "latin1":
        raise DataError(f"the pickle uses the encoding {encoding!r}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    _ALLOWED: dict[tuple[str, str], Any] = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise DataError(f"the pickle asks for {module}.{name}, which a data set has no need of; refused")
        return self._ALLOWED[module, name]

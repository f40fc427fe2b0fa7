"""The idx files of MNIST and its kin: a magic number, dimensions, then bytes, everything big-endian."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from subbit.data.dataset import Part
from subbit.errors import DataError

_UBYTE = 8  # type code of unsigned bytes, the only one these data sets use
_MAX_BYTES = 1 << 31  # far above any of these files; keeps a bomb of a .gz from filling the memory


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an idx file, compressed or not; magic number, dimensions and length are checked."""
    data = _read(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:2] != b"\0\0":
        raise DataError(f"{path} is not an idx file: it does not start with the magic number")
    if data[2] != _UBYTE or data[3] != dimensions:
        raise DataError(
            f"{path} holds type {data[2]} in {data[3]} dimensions; expected unsigned bytes in {dimensions} "
            "(images and labels swapped?)"
        )
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    count = 1
    for extent in shape:
        count *= extent
    if len(data) - header != count:
        raise DataError(
            f"{path} announces {'×'.join(map(str, shape))} bytes but holds {len(data) - header}: "
            "the file is damaged or not complete, fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_pair(images: Path, labels: Path) -> Part:
    """Images and labels of one part of the data set."""
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        raise DataError(
            f"{images} holds {len(pixels)} images but {labels} {len(classes)} labels: they do not belong together"
        )
    return Part(pixels[:, None], classes.astype(np.int64))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # by content: a .gz may have been unpacked without being renamed
        with gzip.open(path) if packed else path.open("rb") as file:
            data: bytes = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; fetch it again") from error
    if len(data) > _MAX_BYTES:
        raise DataError(f"{path} unpacks to more than {_MAX_BYTES} bytes: not a data set file")
    return data

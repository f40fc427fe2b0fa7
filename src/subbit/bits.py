"""±1 arrays to packed bits and back: the one place that knows bit order and sign(0) = +1.

A set bit means +1, a clear bit −1. Bits fill a byte from its least significant end, bytes follow each
other without gaps, and the last byte is padded with clear bits. The same order holds for unsigned
integers of any width up to 32 bits (`pack_uints`), least significant bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from subbit.errors import FormatError

Int8 = NDArray[np.int8]
UInt8 = NDArray[np.uint8]


def signs(values: NDArray[Any]) -> Int8:
    """sign with sign(0) = +1, as int8."""
    return np.where(values >= 0, np.int8(1), np.int8(-1)).astype(np.int8)


def packed_size(count: int, width: int = 1) -> int:
    """Bytes taken by `count` values of `width` bits."""
    return (count * width + 7) // 8


def pack_signs(values: NDArray[Any]) -> bytes:
    """Bits of a ±1 array in C order."""
    return np.packbits(values.ravel() > 0, bitorder="little").tobytes()


def unpack_signs(data: bytes, shape: tuple[int, ...]) -> Int8:
    """The ±1 array of `shape` whose bits are `data`; the length and the padding are checked."""
    bits = _unpack_bits(data, int(np.prod(shape, dtype=np.int64)))
    return (bits.astype(np.int8) * 2 - 1).reshape(shape)


def index_width(count: int) -> int:
    """Bits of an index into `count` things: ⌈log2 count⌉, 0 for a single one."""
    if count < 1:
        raise ValueError(f"an index needs something to point at, got {count}")
    return (count - 1).bit_length()


def pack_uints(values: NDArray[Any], width: int) -> bytes:
    """Unsigned integers of `width` bits each, without gaps."""
    flat = values.ravel().astype(np.uint64)
    if width == 0:
        if np.any(flat):
            raise ValueError("only zeros fit into 0 bits")
        return b""
    if np.any(flat >> np.uint64(width)):
        raise ValueError(f"a value does not fit into {width} bits")
    bits = (flat[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def unpack_uints(data: bytes, count: int, width: int) -> NDArray[np.int64]:
    """`count` unsigned integers of `width` bits."""
    bits = _unpack_bits(data, count * width).reshape(count, width).astype(np.int64)
    values: NDArray[np.int64] = (bits << np.arange(width, dtype=np.int64)).sum(axis=1, dtype=np.int64)
    return values


def _unpack_bits(data: bytes, count: int) -> UInt8:
    if len(data) != packed_size(count):
        raise FormatError(f"{count} bits take {packed_size(count)} bytes, got {len(data)}")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if np.any(bits[count:]):
        raise FormatError("padding bits behind packed values must be clear")
    return bits[:count]

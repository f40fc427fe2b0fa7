"""Files written byte by byte, as the encoder would never write them; docs/format.md describes the bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from subbit import records as r
from subbit.format.limits import CHECKED_FROM, HEADER_SIZE, MAGIC
from subbit.format.ops import BY_TYPE
from subbit.records import Op

F32, F16 = 0, 1  # number formats


@dataclass(frozen=True)
class Hostile:
    """A file and the name of the error that the C core must give; `decodes` says that only the core can see it."""

    data: bytes
    status: str
    decodes: bool = False


def uint(value: int) -> bytes:
    """Seven bits per byte, least significant first."""
    more = value >> 7
    return bytes([value & 0x7F | 0x80]) + uint(more) if more else bytes([value])


def raw(*fields: int | float | bytes) -> bytes:
    """Integers as `uint` (which a byte below 128 is as well), floats as f32, bytes as they are."""
    return b"".join(
        field if isinstance(field, bytes) else uint(field) if isinstance(field, int) else struct.pack("<f", field)
        for field in fields
    )


def op(kind: type[Op], *fields: int | float | bytes) -> bytes:
    return raw(BY_TYPE[kind].code, *fields)


def sections(program: bytes, names: bytes = b"", metadata: bytes = b"", payload: bytes = b"", minor: int = 0) -> bytes:
    """A file of these sections with a header that fits."""
    parts = (program, names, metadata, payload)
    return seal(bytes(CHECKED_FROM) + struct.pack("<4I", *map(len, parts)) + b"".join(parts), minor)


def seal(data: bytes, minor: int = 0) -> bytes:
    """The same bytes with the right magic, version, length and checksum in front."""
    version = bytes([1, minor])
    head = MAGIC + b"\xff\xfe" + version + struct.pack("<II", len(data), zlib.crc32(data[CHECKED_FROM:]))
    return head + data[CHECKED_FROM:]


def network(
    *ops: bytes,
    shape: tuple[int, ...] = (4, 4, 4),
    storage: int = F32,
    count: int | None = None,
    output: int | None = None,
    payload: bytes = b"",
    names: bytes = b"",
    metadata: bytes = b"",
    minor: int = 0,
) -> bytes:
    """A file of these operations; `count` and `output` lie about them."""
    head = raw(storage, len(shape), *shape, len(ops) if count is None else count)
    program = head + uint(len(ops) if output is None else output) + b"".join(ops)
    return sections(program, names, metadata, payload, minor=minor)


def numbers(*values: float) -> bytes:
    """An f32 array of the payload."""
    return struct.pack(f"<{len(values)}f", *values)


RELU = op(r.Activation, 1, 0, 0)

# ------------------------------------------------------------------------------------------------- damage


def truncations(data: bytes) -> Iterator[Hostile]:
    """The file cut at every byte."""
    for size in range(len(data)):
        yield Hostile(data[:size], "magic" if size < len(MAGIC) else "length")


def flips(data: bytes) -> Iterator[Hostile]:
    """Every bit flipped, nothing repaired: each one is noticed, and named by where it is."""
    for bit in range(8 * len(data)):
        where = bit // 8
        status = (
            "magic" if where < 4
            else "byte order" if where < 6
            else "version" if where < 8
            else "length" if where < 12
            else "checksum"
        )  # fmt: skip
        yield Hostile(_flipped(data, bit), status)


def sealed_flips(data: bytes, every: int = 1) -> Iterator[bytes]:
    """Bits behind the header's start flipped, with a checksum that fits again: all but those of the payload, where
    every so many-th is enough (any bits are numbers)."""
    payload = 8 * (len(data) - len(_parts(data)[-1]))
    for bit in (*range(8 * CHECKED_FROM, payload), *range(payload, 8 * len(data), every)):
        yield seal(_flipped(data, bit), data[7])


def sealed_truncations(data: bytes) -> Iterator[bytes]:
    """Every section shortened by every amount, with a header that fits again."""
    parts = _parts(data)
    for i, part in enumerate(parts):
        for size in range(len(part)):
            program, names, metadata, payload = (part[:size] if i == j else other for j, other in enumerate(parts))
            yield sections(program, names, metadata, payload, minor=data[7])


def _parts(data: bytes) -> list[bytes]:
    """The sections of a sound file."""
    start = HEADER_SIZE
    parts = []
    for length in struct.unpack_from("<4I", data, CHECKED_FROM):
        parts.append(data[start : start + length])
        start += length
    return parts


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

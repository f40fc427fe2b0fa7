"""The `.sbit` file: a `Program` as bytes and back. NumPy only; docs/format.md is the normative description.

data = encode(program)
assert len(data) * 8 == sizes(program).total
same = decode(data)                             # in stored form: scales folded, numbers rounded to fp16
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from subbit.errors import FormatError, PackError
from subbit.format.limits import (
    BYTE_ORDER_MARK,
    CHECKED_FROM,
    HEADER_SIZE,
    MAGIC,
    MAJOR,
    MAX_DIM,
    MAX_FILE,
    MAX_LABEL,
    MAX_LABELS,
    MAX_NAME,
    MAX_OPS,
    MAX_RANK,
    MINOR,
    MINOR_OF_LEVELS,
)
from subbit.format.ops import read_op, write_op
from subbit.format.stream import Part, Reader, Writer
from subbit.records import Conv, Linear, Op, Preprocessing, Program, Storage, Weight, fold_scales

__all__ = ["OpSize", "Sizes", "decode", "encode", "sizes"]

_STORAGES: tuple[Storage, ...] = ("f32", "f16")


@dataclass(frozen=True)
class OpSize:
    """Bits of payload of one operation."""

    filters: int = 0  # bits or values of filters
    indices: int = 0
    scales: int = 0  # of blocks and of channels
    rest: int = 0  # shifts, slopes, constants

    @property
    def total(self) -> int:
        return self.filters + self.indices + self.scales + self.rest


@dataclass(frozen=True)
class Sizes:
    """Where every bit of a file goes; `ops` has one entry per operation of the program."""

    ops: tuple[OpSize, ...]
    header: int
    program: int  # operations and their attributes
    names: int
    metadata: int  # labels and preprocessing
    padding: int  # clear bits that fill the last byte of a packed array

    @property
    def payload(self) -> int:
        return sum(op.total for op in self.ops)

    @property
    def overhead(self) -> int:
        """Everything that is not payload."""
        return self.header + self.program + self.names + self.metadata + self.padding

    @property
    def total(self) -> int:
        return self.payload + self.overhead


def encode(program: Program) -> bytes:
    """The file of a network."""
    writer, names, metadata = _write(program)
    return _assemble(writer.minor, bytes(writer.program), names, metadata, bytes(writer.payload))


def sizes(program: Program) -> Sizes:
    """What each operation takes of the file, counted while encoding it."""
    writer, names, metadata = _write(program)
    parts: tuple[Part, ...] = ("filters", "indices", "scales", "rest")
    ops = tuple(OpSize(*(writer.used[i, part] for part in parts)) for i in range(len(program.ops)))
    return Sizes(
        ops=ops,
        header=8 * HEADER_SIZE,
        program=8 * len(writer.program),
        names=8 * len(names),
        metadata=8 * len(metadata),
        padding=8 * len(writer.payload) - sum(writer.used.values()),
    )


def decode(data: bytes) -> Program:
    """The network of a file; raises `FormatError` for anything but a sound file of a known version."""
    program, names, metadata, payload = _sections(memoryview(data))
    reader = Reader("f32", program, payload)
    reader.minor = data[7]
    storage = reader.byte()
    if storage >= len(_STORAGES):
        raise FormatError(f"number format {storage} is unknown to this version")
    reader.storage = _STORAGES[storage]
    rank = reader.byte()
    if not 1 <= rank <= MAX_RANK:
        raise FormatError(f"the input has {rank} dimensions, possible are 1..{MAX_RANK}")
    input_shape = reader.dims(rank)
    count = reader.uint(MAX_OPS)
    output = reader.uint(count)
    ops = []
    for i in range(count):
        reader.op, reader.where = i, f"operation {i}"
        ops.append(read_op(reader, i + 1))
    reader.finish()
    needed = max((MINOR_OF_LEVELS for op in ops if isinstance(op, Conv | Linear) and op.levels), default=0)
    if reader.minor != needed:
        raise FormatError(f"version {MAJOR}.{reader.minor}, but nothing in it is newer than {MAJOR}.{needed}")
    labels, preprocessing = _read_metadata(metadata)
    return Program(input_shape, tuple(_named(ops, names)), output, reader.storage, labels, preprocessing)


# ------------------------------------------------------------------------------------------------ parts


def _write(program: Program) -> tuple[Writer, bytes, bytes]:
    if len(program.ops) > MAX_OPS:
        raise PackError(f"{len(program.ops)} operations, at most {MAX_OPS} fit into a file")
    if not 1 <= len(program.input_shape) <= MAX_RANK or not all(1 <= d <= MAX_DIM for d in program.input_shape):
        raise PackError(f"input shape {program.input_shape}: 1..{MAX_RANK} dimensions of 1..{MAX_DIM} are possible")
    if program.output_value > len(program.ops):
        raise PackError(f"output value {program.output_value}, but the last is {len(program.ops)}")
    writer = Writer(program.storage)
    writer.where = "program"
    writer.byte(_STORAGES.index(program.storage))
    writer.byte(len(program.input_shape))
    for size in program.input_shape:
        writer.uint(size)
    writer.uint(len(program.ops))
    writer.uint(program.output_value)
    for i, op in enumerate(_stored_form(program)):
        writer.op = i
        writer.where = op.name or f"operation {i} ({type(op).__name__})"
        write_op(writer, op, i + 1)
    return writer, _write_names(program.weighted()), _write_metadata(program)


def _stored_form(program: Program) -> list[Op]:
    """Operations with their scales folded; a weight that several of them share is still one object."""
    weights: dict[int, Weight] = {}
    ops: list[Op] = []
    for op in program.ops:
        if isinstance(op, Conv | Linear):
            folded = fold_scales(op)
            op = replace(folded, weight=weights.setdefault(id(op.weight), folded.weight))
        ops.append(op)
    return ops


def _assemble(minor: int, program: bytes, names: bytes, metadata: bytes, payload: bytes) -> bytes:
    sections = (program, names, metadata, payload)
    total = HEADER_SIZE + sum(map(len, sections))
    if total > MAX_FILE:
        raise PackError(f"the file would have {total} bytes, at most {MAX_FILE} are possible")
    checked = struct.pack("<4I", *map(len, sections)) + b"".join(sections)
    start = MAGIC + BYTE_ORDER_MARK + struct.pack("<BBII", MAJOR, minor, total, zlib.crc32(checked))
    return start + checked


def _sections(data: memoryview) -> tuple[memoryview, memoryview, memoryview, memoryview]:
    if bytes(data[:4]) != MAGIC:
        raise FormatError(f"not a .sbit file: it starts with {bytes(data[:4])!r} instead of {MAGIC!r}")
    if len(data) < HEADER_SIZE:
        raise FormatError(f"truncated: {len(data)} bytes are less than a header of {HEADER_SIZE}")
    if bytes(data[4:6]) == BYTE_ORDER_MARK[::-1]:
        raise FormatError("a big-endian file: .sbit files are little-endian, pack the network again")
    if bytes(data[4:6]) != BYTE_ORDER_MARK:
        raise FormatError(f"damaged: byte-order mark {bytes(data[4:6]).hex()}")
    major, minor, total, checksum = struct.unpack_from("<BBII", data, 6)
    if major != MAJOR:
        raise FormatError(f"version {major}.{minor}: this subbit reads version {MAJOR}; install the one that wrote it")
    if minor > MINOR:
        raise FormatError(f"version {major}.{minor}: this subbit reads up to {MAJOR}.{MINOR}; install a newer one")
    if total != len(data):
        raise FormatError(f"{'truncated' if len(data) < total else 'trailing bytes'}: {len(data)} of {total} bytes")
    if zlib.crc32(data[CHECKED_FROM:]) != checksum:
        raise FormatError("damaged: the checksum does not fit the content")
    lengths = struct.unpack_from("<4I", data, CHECKED_FROM)
    if HEADER_SIZE + sum(lengths) != total:
        raise FormatError(f"sections of {lengths} bytes do not fill a file of {total}")
    start = HEADER_SIZE
    parts = []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    return parts[0], parts[1], parts[2], parts[3]


def _write_names(ops: Iterable[Conv | Linear]) -> bytes:
    """Front-coded: how many bytes a name shares with the one before, then what follows."""
    writer = Writer("f32")
    before = b""
    names = [_text_bytes(op.name, MAX_NAME, "module path") for op in ops]
    for name in names if any(names) else ():
        shared = 0
        while shared < min(len(name), len(before)) and name[shared] == before[shared]:
            shared += 1
        writer.uint(shared)
        writer.uint(len(name) - shared)
        writer.program += name[shared:]
        before = name
    return bytes(writer.program)


def _named(ops: list[Op], names: memoryview) -> Iterable[Op]:
    reader = Reader("f32", names, names[:0])
    reader.where = "names"
    stored = len(names) > 0
    before = b""
    for op in ops:
        if stored and isinstance(op, Conv | Linear):
            shared = reader.uint(len(before))
            before = before[:shared] + _read_bytes(reader, MAX_NAME - shared)
            object.__setattr__(op, "name", _text(before, reader.where))
        yield op
    if len(reader.program):
        raise FormatError(f"{len(reader.program)} bytes are left over at the end of the names section")


def _write_metadata(program: Program) -> bytes:
    if not program.labels and program.preprocessing is None:
        return b""
    writer = Writer("f32")
    writer.where = "labels"
    if len(program.labels) > MAX_LABELS:
        raise PackError(f"{len(program.labels)} labels, at most {MAX_LABELS} are possible")
    writer.uint(len(program.labels))
    for label in program.labels:
        data = _text_bytes(label, MAX_LABEL, "label")
        writer.uint(len(data))
        writer.program += data
    writer.where = "preprocessing"
    if program.preprocessing is None:
        writer.byte(0)
        return bytes(writer.program)
    mean, std, size = program.preprocessing.mean, program.preprocessing.std, program.preprocessing.size
    if not 1 <= len(mean) == len(std) <= 255 or 0 in std:
        raise PackError(f"preprocessing needs as many means as deviations, none of them 0: {mean}, {std}")
    writer.byte(len(mean))
    for value in (*mean, *std):
        writer.real(value)
    for value in size:
        if not 1 <= value <= MAX_DIM:
            raise PackError(f"preprocessing to a picture of size {size}")
        writer.uint(value)
    return bytes(writer.program)


def _read_metadata(section: memoryview) -> tuple[tuple[str, ...], Preprocessing | None]:
    if not len(section):
        return (), None
    reader = Reader("f32", section, section[:0])
    reader.where = "labels"
    labels = tuple(_text(_read_bytes(reader, MAX_LABEL), "labels") for _ in range(reader.uint(MAX_LABELS)))
    reader.where = "preprocessing"
    channels = reader.byte()
    preprocessing = None
    if channels:
        mean = tuple(reader.real() for _ in range(channels))
        std = tuple(reader.real() for _ in range(channels))
        height, width = reader.dims(1)[0], reader.dims(1)[0]
        if 0 in std:
            raise FormatError("preprocessing: a standard deviation of 0")
        preprocessing = Preprocessing(mean, std, (height, width))
    if len(reader.program):
        raise FormatError(f"{len(reader.program)} bytes are left over at the end of the metadata section")
    if not labels and preprocessing is None:
        raise FormatError("a metadata section without content")
    return labels, preprocessing


def _read_bytes(reader: Reader, longest: int) -> bytes:
    return bytes(reader.byte() for _ in range(reader.uint(longest)))


def _text(data: bytes, where: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: text that is not UTF-8") from error
    if "\0" in text:
        raise FormatError(f"{where}: text with a NUL")
    return text


def _text_bytes(text: str, longest: int, what: str) -> bytes:
    data = text.encode()
    if len(data) > longest or 0 in data:
        raise PackError(f"{what} {text[:60]!r}: at most {longest} bytes of UTF-8 without NUL are possible")
    return data

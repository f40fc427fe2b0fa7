"""The two streams of a file being written or read: the program's small integers and the payload's arrays.

`Writer` remembers for every bit of payload which operation it belongs to and what it is for, so that
`sizes` reports what was written instead of a formula.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from subbit import bits
from subbit.errors import FormatError, PackError
from subbit.format.limits import MAX_DIM, MAX_ELEMENTS, MAX_UINT, MINOR
from subbit.records import Float32, Int8, Int64, Shape, Storage, Weight

Part = Literal["filters", "indices", "scales", "rest"]

_HALF_TOP = 15  # the largest magnitude of an fp16 array is stored in [2¹⁴, 2¹⁵)


def _exponent_and_halves(values: Float32) -> tuple[int, NDArray[np.float16]]:
    """A power of two 2ᵉ and fp16 numbers with values ≈ 2ᵉ · halves that use fp16's whole range.

    Storing small BatchNorm scales as they are would push them into fp16's subnormals.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return 0, values.astype(np.float16)
    exponent = max(int(np.frexp(largest)[1]) - _HALF_TOP, -128)
    halves = np.ldexp(values.astype(np.float64), -exponent).astype(np.float16)
    if np.abs(halves).max() == 2**_HALF_TOP:  # rounded up to the next power of two
        exponent += 1
        halves = np.ldexp(values.astype(np.float64), -exponent).astype(np.float16)
    return exponent, halves


class Writer:
    """Collects the program and the payload of one file."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.program = bytearray()
        self.payload = bytearray()
        self.used: Counter[tuple[int, Part]] = Counter()  # bits of payload per operation and part
        self.op = 0
        self.where = ""  # for messages: the operation being written
        self.channels = 0  # c_out of the weight written last
        self.blocks = 0  # of all stacked weights so far
        self.weights: dict[int, int] = {}  # id of a stored weight -> the operation that stores it
        self.shared = 0  # numbers of the filters of shared weights so far
        self.minor = 0  # the lowest minor version that has everything written

    # -- program ------------------------------------------------------------------------------------

    def byte(self, value: int) -> None:
        self.program.append(value)

    def uint(self, value: int) -> None:
        """Seven bits per byte, least significant first; the top bit says that more follow."""
        if not 0 <= value <= MAX_UINT:
            raise PackError(f"{self.where}: {value} is outside 0..{MAX_UINT}")
        while value >= 0x80:
            self.program.append(value & 0x7F | 0x80)
            value >>= 7
        self.program.append(value)

    def sint(self, value: int) -> None:
        self.uint(2 * value if value >= 0 else -2 * value - 1)

    def real(self, value: float, code: Literal["<f", "<d"] = "<f") -> None:
        if not np.isfinite(value):
            raise PackError(f"{self.where}: {value} is not a finite number")
        try:
            self.program += struct.pack(code, value)
        except OverflowError as error:
            raise PackError(f"{self.where}: {value} does not fit into 32 bits") from error

    # -- payload ------------------------------------------------------------------------------------

    def signs(self, values: Int8) -> None:
        """±1 filters (m, s, *kernel), stored with the channel innermost."""
        self._append(bits.pack_signs(np.moveaxis(values, 1, -1)), values.size, "filters")

    def indices(self, values: Int64, width: int) -> None:
        self._append(bits.pack_uints(values, width), values.size * width, "indices")

    def reals(self, values: NDArray[Any], part: Part) -> None:
        exact = np.ascontiguousarray(values, dtype=np.float32)
        if not np.isfinite(exact).all():
            raise PackError(
                f"{self.where}: its stored numbers contain NaN or infinity; a diverged training run or a BatchNorm "
                "that never saw data looks like this, so look at the checkpoint before packing it"
            )
        if self.storage == "f32":
            data = exact.astype("<f4").tobytes()
        else:
            exponent, halves = _exponent_and_halves(exact)
            data = struct.pack("b", exponent) + halves.astype("<f2").tobytes()
        self._append(data, 8 * len(data), part)

    def _append(self, data: bytes, used: int, part: Part) -> None:
        self.payload += data
        self.used[self.op, part] += used


class Reader:
    """Walks through the program and the payload of one file; every length is checked before it is used."""

    def __init__(self, storage: Storage, program: memoryview, payload: memoryview) -> None:
        self.storage = storage
        self.program = program
        self.payload = payload
        self.where = "program"
        self.op = 0
        self.channels = 0
        self.blocks = 0
        self.weights: dict[int, Weight] = {}  # stored weights by operation
        self.shared = 0
        self.minor = MINOR  # of the file

    # -- program ------------------------------------------------------------------------------------

    def byte(self) -> int:
        return self._take_program(1)[0]

    def uint(self, highest: int = MAX_UINT) -> int:
        value = 0
        for position in range(5):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                if byte == 0 and position > 0:
                    raise FormatError(f"{self.where}: an integer with a superfluous zero byte")
                if value > highest:
                    raise FormatError(f"{self.where}: {value} is over the limit of {highest}")
                return value
        raise FormatError(f"{self.where}: an integer of more than five bytes")

    def sint(self) -> int:
        value = self.uint()
        return -(value + 1) // 2 if value & 1 else value // 2

    def dims(self, count: int) -> Shape:
        shape = tuple(self.uint(MAX_DIM) for _ in range(count))
        if 0 in shape:
            raise FormatError(f"{self.where}: a dimension of size 0 in {shape}")
        size = 1
        for dim in shape:
            size *= dim
        if size > MAX_ELEMENTS:
            raise FormatError(f"{self.where}: shape {shape} has more than {MAX_ELEMENTS} elements")
        return shape

    def real(self, code: Literal["<f", "<d"] = "<f") -> float:
        (value,) = struct.unpack(code, self._take_program(struct.calcsize(code)))
        if not np.isfinite(value):
            raise FormatError(f"{self.where}: a number that is NaN or infinite")
        return float(value)

    # -- payload ------------------------------------------------------------------------------------

    def signs(self, shape: Shape) -> Int8:
        stored = (shape[0], *shape[2:], shape[1])
        data = self._take_payload(bits.packed_size(_product(shape)))
        return np.ascontiguousarray(np.moveaxis(bits.unpack_signs(bytes(data), stored), -1, 1))

    def indices(self, shape: Shape, width: int) -> Int64:
        count = _product(shape)
        data = self._take_payload(bits.packed_size(count, width))
        return bits.unpack_uints(bytes(data), count, width).reshape(shape)

    def reals(self, shape: Shape) -> Float32:
        count = _product(shape)
        if self.storage == "f32":
            values = np.frombuffer(self._take_payload(4 * count), "<f4").astype(np.float32)
        else:
            (exponent,) = struct.unpack("b", self._take_payload(1))
            halves = np.frombuffer(self._take_payload(2 * count), "<f2").astype(np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                values = np.ldexp(halves, exponent).astype(np.float32)
        if not np.isfinite(values).all():
            raise FormatError(f"{self.where}: NaN or infinity among its stored numbers")
        return values.reshape(shape)

    def finish(self) -> None:
        for name, rest in (("program", self.program), ("payload", self.payload)):
            if len(rest):
                raise FormatError(f"{len(rest)} bytes are left over at the end of the {name} section")

    def _take_program(self, count: int) -> memoryview:
        taken, self.program = _split(self.program, count, self.where, "program")
        return taken

    def _take_payload(self, count: int) -> memoryview:
        taken, self.payload = _split(self.payload, count, self.where, "payload")
        return taken


def _split(view: memoryview, count: int, where: str, section: str) -> tuple[memoryview, memoryview]:
    if count > len(view):
        raise FormatError(f"{where}: needs {count} bytes of the {section} section, {len(view)} are left")
    return view[:count], view[count:]


def _product(shape: Iterable[int]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product

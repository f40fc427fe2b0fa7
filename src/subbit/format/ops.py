"""How each operation is laid out: one row per operation, read and written by the same table.

An operation is stored as

    opcode, inputs, [mask], required attributes, optional attributes that differ from their default

Inputs are distances back from the operation's own value (1 is the value just before). The mask has bit i set
when optional attribute i is present; an operation without optional attributes has no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from subbit import bits, records
from subbit.errors import FormatError, ModelError, PackError
from subbit.format.limits import (
    MAX_BLOCKS,
    MAX_DIM,
    MAX_FACTOR,
    MAX_FILTER,
    MAX_FILTERS,
    MAX_INPUTS,
    MAX_OPS,
    MAX_RANK,
    MAX_SHARED,
    MAX_STEP,
    MAX_WEIGHTS,
    MIN_FACTOR,
    MIN_STEP,
    MINOR_OF_LEVELS,
)
from subbit.format.stream import Reader, Writer
from subbit.records import Binary, Dense, Levels, Op, Shape, Stacked, Weight
from subbit.selection import fixed_selection


@dataclass(frozen=True)
class Codec:
    """One attribute in the file: how it is written and how it is read back."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]


def _write_tuple(writer: Writer, values: tuple[int, ...]) -> None:
    """Equal values are stored once: first · 2 + (they differ), then the others if they differ."""
    first, *others = values
    differ = any(other != first for other in others)
    writer.uint(2 * first + differ)
    if differ:
        for other in others:
            writer.uint(other)


def _tuple_of(count: int) -> Codec:
    def read(reader: Reader) -> tuple[int, ...]:
        first, differ = divmod(reader.uint(2 * MAX_DIM + 1), 2)
        if not differ:
            return (first,) * count
        values = (first, *(reader.uint(MAX_DIM) for _ in range(count - 1)))
        if values == (first,) * count:
            raise FormatError(f"{reader.where}: equal values stored one by one")
        return values

    return Codec(_write_tuple, read)


def _choice(*options: str) -> Codec:
    def write(writer: Writer, value: str) -> None:
        if value not in options:
            raise PackError(f"{writer.where}: {value!r} is not one of {', '.join(options)}")
        writer.byte(options.index(value))

    def read(reader: Reader) -> str:
        number = reader.byte()
        if number >= len(options):
            raise FormatError(f"{reader.where}: choice {number} is unknown to this version")
        return options[number]

    return Codec(write, read)


def _write_shape(writer: Writer, shape: Shape) -> None:
    """Sizes plus one, so that the −1 of a reshape has a code."""
    _check_rank(writer, len(shape))
    writer.byte(len(shape))
    for size in shape:
        if size == 0 or size < -1:
            raise PackError(f"{writer.where}: a dimension of size {size} in {shape}")
        writer.uint(size + 1)


def _read_shape(reader: Reader) -> Shape:
    shape = tuple(reader.uint(MAX_DIM + 1) - 1 for _ in range(_read_rank(reader)))
    if 0 in shape or shape.count(-1) > 1:
        raise FormatError(f"{reader.where}: impossible shape {shape}")
    return shape


def _write_dims(writer: Writer, dims: tuple[int, ...]) -> None:
    _check_rank(writer, len(dims))
    writer.byte(len(dims))
    for dim in dims:
        _write_dim(writer, dim)


def _read_dims(reader: Reader) -> tuple[int, ...]:
    dims = tuple(_read_dim(reader) for _ in range(_read_rank(reader)))
    if len(set(dims)) != len(dims):
        raise FormatError(f"{reader.where}: dimensions {dims} repeat")
    return dims


def _write_dim(writer: Writer, dim: int) -> None:
    if not 0 <= dim < MAX_RANK:
        raise PackError(f"{writer.where}: dimension {dim} is outside 0..{MAX_RANK - 1} (batch not counted)")
    writer.byte(dim)


def _read_dim(reader: Reader) -> int:
    dim = reader.byte()
    if dim >= MAX_RANK:
        raise FormatError(f"{reader.where}: dimension {dim} is over the limit of {MAX_RANK - 1}")
    return dim


def _check_rank(writer: Writer, rank: int) -> None:
    if rank > MAX_RANK:
        raise PackError(f"{writer.where}: {rank} dimensions, at most {MAX_RANK} are possible")


def _read_rank(reader: Reader) -> int:
    rank = reader.byte()
    if rank > MAX_RANK:
        raise FormatError(f"{reader.where}: {rank} dimensions, at most {MAX_RANK} are possible")
    return rank


def _write_array(writer: Writer, value: records.Float32) -> None:
    _check_rank(writer, value.ndim)
    writer.byte(value.ndim)
    for size in value.shape:
        writer.uint(size)
    writer.reals(value, "rest")


def _read_vector(reader: Reader) -> records.Float32:
    return reader.reals(reader.dims(1))


def _write_vector(writer: Writer, value: records.Float32) -> None:
    writer.uint(value.size)
    writer.reals(value.ravel(), "rest")


def _channels(part: Literal["scales", "rest"]) -> Codec:
    """One number per output channel of the weight written just before; its length is known."""

    def write(writer: Writer, value: records.Float32) -> None:
        if value.shape != (writer.channels,):
            raise PackError(f"{writer.where}: {value.shape} numbers for {writer.channels} output channels")
        writer.reals(value, part)

    return Codec(write, lambda reader: reader.reals((reader.channels,)))


def _write_factor(writer: Writer, factor: tuple[float, float]) -> None:
    for value in factor:
        if not _possible_factor(value):
            raise PackError(f"{writer.where}: an upsampling factor of {value}")
        writer.real(value, "<d")


def _read_factor(reader: Reader) -> tuple[float, float]:
    factor = reader.real("<d"), reader.real("<d")
    if not all(map(_possible_factor, factor)):
        raise FormatError(f"{reader.where}: upsampling factors of {factor}")
    return factor


def _possible_factor(value: float) -> bool:
    return value == 0 or MIN_FACTOR <= value <= MAX_FACTOR


def _write_levels(writer: Writer, levels: Levels) -> None:
    _check_step(PackError, writer.where, levels.step)
    writer.minor = max(writer.minor, MINOR_OF_LEVELS)
    writer.byte(levels.signed)
    writer.real(levels.step)


def _read_levels(reader: Reader) -> Levels:
    signed = reader.byte()
    if signed > 1:
        raise FormatError(f"{reader.where}: choice {signed} is unknown to this version")
    step = reader.real()
    _check_step(FormatError, reader.where, step)
    return Levels(step, bool(signed))


def _check_step(failure: Failure, where: str, step: float) -> None:
    if not MIN_STEP <= step <= MAX_STEP:
        raise failure(f"{where}: levels {step} apart, possible are {MIN_STEP} to {MAX_STEP}")


def _write_offsets(writer: Writer, offsets: tuple[int, ...]) -> None:
    for value in offsets:
        writer.sint(value)


UINT = Codec(Writer.uint, Reader.uint)
SIZE = Codec(Writer.uint, lambda reader: reader.uint(MAX_DIM))
REAL = Codec(Writer.real, Reader.real)
FLAG = Codec(lambda writer, value: None, lambda reader: True)  # its bit in the mask says it all
PAIR = _tuple_of(2)
SIDES = _tuple_of(4)
OFFSETS = Codec(_write_offsets, lambda reader: tuple(reader.sint() for _ in range(4)))
DIM = Codec(_write_dim, _read_dim)
DIMS = Codec(_write_dims, _read_dims)
SHAPE = Codec(_write_shape, _read_shape)
ARRAY = Codec(_write_array, lambda reader: reader.reals(reader.dims(_read_rank(reader))))
VECTOR = Codec(_write_vector, _read_vector)
FACTOR = Codec(_write_factor, _read_factor)
LEVELS = Codec(_write_levels, _read_levels)


# ---------------------------------------------------------------------------------------------- weights
# One byte of bits: 0–1 kind, 2 ratios of block scales are stored, 3 fixed selection, 4–5 kernel dimensions; or 6 alone:
# the weight is that of an earlier operation.

_DENSE, _BINARY, _STACKED_BITS, _STACKED_VALUES = range(4)
_RATIOS, _FIXED, _KERNEL_RANK, _SHARED = 0x04, 0x08, 4, 0x40


def _weight(*ranks: int) -> Codec:
    """The weight of an operation whose kernel may have so many dimensions."""
    return Codec(
        lambda writer, weight: _write_weight(writer, weight, ranks), lambda reader: _read_weight(reader, ranks)
    )


def _write_weight(writer: Writer, weight: Weight, ranks: tuple[int, ...]) -> None:
    shape = weight.shape
    rank = len(shape) - 2
    if rank not in ranks:
        raise PackError(f"{writer.where}: a weight of shape {shape}; linear, 1-d and 2-d convolutions are supported")
    writer.channels = shape[0]
    if id(weight) in writer.weights and writer.shared + _stored_numbers(weight) <= MAX_SHARED:
        writer.byte(_SHARED)
        writer.uint(writer.op - writer.weights[id(weight)])
        _count_shared(PackError, writer, weight)
        return
    writer.weights.setdefault(id(weight), writer.op)
    if isinstance(weight, Stacked):
        flags = (_STACKED_BITS if weight.binary else _STACKED_VALUES) | rank << _KERNEL_RANK
        flags |= _RATIOS * (weight.scale is not None) | _FIXED * weight.fixed
        sizes = (shape[0], weight.filters, weight.blocks, weight.depth, *shape[2:])
        _check_weight(PackError, writer.where, shape, weight.filters)
        _count_blocks(PackError, writer, shape[0] * weight.blocks)
    else:
        flags = (_BINARY if isinstance(weight, Binary) else _DENSE) | rank << _KERNEL_RANK
        sizes = shape
        _check_weight(PackError, writer.where, shape, 1)
    writer.byte(flags)
    for size in sizes:
        writer.uint(size)
    if isinstance(weight, Dense):
        writer.reals(weight.values, "filters")
    elif isinstance(weight, Binary):
        writer.signs(weight.signs)
    else:
        _write_stack(writer, weight)


def _write_stack(writer: Writer, weight: Stacked) -> None:
    if weight.bank.dtype == np.int8:
        writer.signs(weight.bank.astype(np.int8))
    else:
        writer.reals(weight.bank, "filters")
    if not weight.fixed:
        writer.indices(weight.index, bits.index_width(weight.filters))
    if weight.scale is not None:
        writer.reals(weight.scale[:, 1:], "scales")


def _read_weight(reader: Reader, ranks: tuple[int, ...]) -> Weight:
    flags = reader.byte()
    if flags == _SHARED:
        return _read_shared(reader, ranks)
    weight = reader.weights[reader.op] = _read_stored(reader, ranks, flags)
    return weight


def _read_shared(reader: Reader, ranks: tuple[int, ...]) -> Weight:
    weight = reader.weights.get(reader.op - reader.uint(MAX_OPS))
    if weight is None or len(weight.shape) - 2 not in ranks:
        raise FormatError(
            f"{reader.where}: shares the weight of an operation that is not an earlier one of its kind, or does not "
            "store it itself"
        )
    _count_shared(FormatError, reader, weight)
    reader.channels = weight.shape[0]
    return weight


def _read_stored(reader: Reader, ranks: tuple[int, ...], flags: int) -> Weight:
    kind, rank = flags & 3, flags >> _KERNEL_RANK
    stacked = kind in (_STACKED_BITS, _STACKED_VALUES)
    if rank not in ranks or (not stacked and flags & (_RATIOS | _FIXED)):
        raise FormatError(f"{reader.where}: impossible weight flags {flags:#04x}")
    out = reader.uint(MAX_DIM)
    filters = reader.uint(MAX_FILTERS) if stacked else 1
    blocks = reader.uint(MAX_DIM) if stacked else 1
    depth = reader.uint(MAX_DIM)
    kernel = tuple(reader.uint(MAX_DIM) for _ in range(rank))
    _check_weight(FormatError, reader.where, (out, blocks * depth, *kernel), filters)
    _count_blocks(FormatError, reader, out * blocks if stacked else 0)
    reader.channels = out
    if kind == _DENSE:
        return Dense(reader.reals((out, depth, *kernel)))
    if kind == _BINARY:
        return Binary(reader.signs((out, depth, *kernel)))
    bank = (filters, depth, *kernel)
    return _read_stack(
        reader, flags, (out, blocks), reader.signs(bank) if kind == _STACKED_BITS else reader.reals(bank)
    )


def _read_stack(reader: Reader, flags: int, size: Shape, bank: records.Int8 | records.Float32) -> Stacked:
    filters = int(bank.shape[0])
    fixed = bool(flags & _FIXED)
    width = bits.index_width(filters)
    index = fixed_selection(size[0], size[1], filters) if fixed else reader.indices(size, width)
    scale = None
    if flags & _RATIOS:
        if size[1] == 1:
            raise FormatError(f"{reader.where}: a single block has no ratio to store")
        scale = np.ones(size, np.float32)
        scale[:, 1:] = reader.reals((size[0], size[1] - 1))
    try:
        return Stacked(bank, index, scale, fixed)
    except ModelError as error:
        raise FormatError(f"{reader.where}: {error}") from error


Failure = type[FormatError] | type[PackError]


def _check_weight(failure: Failure, where: str, shape: Shape, filters: int) -> None:
    taps = 1  # numbers of one filter
    for size in shape[1:]:
        taps *= size
    if 0 in (shape[0], taps, filters):
        raise failure(f"{where}: a weight with a dimension of size 0: {shape} from a bank of {filters}")
    largest = taps * max(shape[0], filters)
    if shape[0] > MAX_DIM or filters > MAX_FILTERS or taps > MAX_FILTER or largest > MAX_WEIGHTS:
        raise failure(f"{where}: weight {shape} from a bank of {filters} is over the limits")


def _count_blocks(failure: Failure, stream: Reader | Writer, blocks: int) -> None:
    """Indices may take nothing in the file, so their number needs a limit of its own."""
    stream.blocks += blocks
    if stream.blocks > MAX_BLOCKS:
        raise failure(f"{stream.where}: more than {MAX_BLOCKS} blocks in all stacked weights together")


def _count_shared(failure: Failure, stream: Reader | Writer, weight: Weight) -> None:
    """A shared weight takes nothing in the file, but memory where it runs."""
    stream.shared += _stored_numbers(weight)
    if stream.shared > MAX_SHARED:
        raise failure(f"{stream.where}: more than {MAX_SHARED} numbers in all shared weights together")
    if isinstance(weight, Stacked):
        _count_blocks(failure, stream, weight.index.size)


def _stored_numbers(weight: Weight) -> int:
    return weight.bank.size if isinstance(weight, Stacked) else prod(weight.shape)


# ------------------------------------------------------------------------------------------------ table

Attributes = tuple[tuple[str, Codec], ...]


@dataclass(frozen=True)
class Layout:
    """The row of one operation; `inputs` is None where the number of inputs is stored."""

    code: int
    type: type[Op]
    inputs: int | None
    required: Attributes = ()
    optional: Attributes = ()


_WEIGHTED: Attributes = (("scale", _channels("scales")), ("shift", _channels("rest")))
_LEVELS: Attributes = (("levels", LEVELS),)  # the last attribute, which version 1.0 does not have
_POOL_KIND = _choice("max", "avg")

LAYOUTS = (
    Layout(1, records.Conv, 1, (("weight", _weight(1, 2)),),
           (*_WEIGHTED, ("stride", PAIR), ("padding", SIDES), ("dilation", PAIR), ("groups", SIZE),
            ("binary_input", FLAG), *_LEVELS)),
    Layout(2, records.Linear, 1, (("weight", _weight(0)),),
           (*_WEIGHTED, ("binary_input", FLAG), *_LEVELS)),
    Layout(3, records.Affine, 1, (), (("scale", VECTOR), ("shift", VECTOR))),
    Layout(4, records.Activation, 1, (("function", _choice(*get_args(records.ActivationKind))),),
           (("a", REAL), ("b", REAL))),
    Layout(5, records.PReLU, 1, (("slope", VECTOR),)),
    Layout(6, records.Pool, 1, (("kind", _POOL_KIND), ("kernel", PAIR), ("stride", PAIR)),
           (("padding", PAIR), ("dilation", PAIR), ("ceil_mode", FLAG), ("exclude_pad", FLAG), ("divisor", UINT))),
    Layout(7, records.AdaptivePool, 1, (("kind", _POOL_KIND), ("output", PAIR))),
    Layout(8, records.Mean, 1, (("dims", DIMS),), (("keepdim", FLAG),)),
    Layout(9, records.Arithmetic, 2, (("function", _choice("add", "sub", "mul", "div", "max", "min")),)),
    Layout(10, records.Constant, 0, (("value", ARRAY),)),
    Layout(11, records.Concat, None, (("dim", DIM),)),
    Layout(12, records.Slice, 1, (("dim", DIM), ("start", UINT), ("stop", UINT)), (("step", UINT),)),
    Layout(13, records.Reshape, 1, (("shape", SHAPE),)),
    Layout(14, records.Permute, 1, (("dims", DIMS),)),
    Layout(15, records.LayerNorm, 1, (("dim", DIM), ("eps", REAL)), (("scale", VECTOR), ("shift", VECTOR))),
    Layout(16, records.Pad, 1, (("mode", _choice("constant", "reflect", "replicate", "circular")),
                                ("amounts", OFFSETS)), (("value", REAL),)),
    Layout(17, records.Upsample, 1, (("mode", _choice("nearest", "bilinear")), ("output", PAIR)),
           (("factor", FACTOR), ("align_corners", FLAG))),
    Layout(18, records.Softmax, 1, (("dim", DIM),)),
)  # fmt: skip

BY_CODE = {layout.code: layout for layout in LAYOUTS}
BY_TYPE = {layout.type: layout for layout in LAYOUTS}


def write_op(writer: Writer, op: Op, own: int) -> None:
    """Append the operation that writes value `own`."""
    layout = BY_TYPE.get(type(op))
    if layout is None:
        raise PackError(f"{writer.where}: no stored form for {type(op).__name__}")
    if len(op.inputs) != layout.inputs and (layout.inputs is not None or not 1 <= len(op.inputs) <= MAX_INPUTS):
        raise PackError(f"{writer.where}: {len(op.inputs)} inputs")
    writer.byte(layout.code)
    if layout.inputs is None:
        writer.uint(len(op.inputs))
    for value in op.inputs:
        if not 0 <= value < own:
            raise PackError(f"{writer.where}: reads value {value}, but only 0..{own - 1} exist at that point")
        writer.uint(own - value)
    _check_numbers(PackError, writer.where, op)
    attributes = _stored_attributes(op)
    present = [name for name, _ in layout.optional if not _is_default(op, name, attributes[name])]
    if layout.optional:
        writer.byte(sum(1 << i for i, (name, _) in enumerate(layout.optional) if name in present))
    for name, codec in (*layout.required, *layout.optional):
        if name in present or (name, codec) in layout.required:
            codec.write(writer, attributes[name])


def read_op(reader: Reader, own: int) -> Op:
    code = reader.byte()
    layout = BY_CODE.get(code)
    if layout is None:
        raise FormatError(f"{reader.where}: operation {code} is unknown to this version")
    reader.where += f" ({layout.type.__name__})"
    count = layout.inputs if layout.inputs is not None else reader.uint(MAX_INPUTS)
    if count == 0 and layout.inputs is None:
        raise FormatError(f"{reader.where}: no inputs")
    distances = [reader.uint() for _ in range(count)]
    if any(not 1 <= distance <= own for distance in distances):
        raise FormatError(f"{reader.where}: an input that does not exist yet (a cycle, or a value out of range)")
    mask = reader.byte() if layout.optional else 0
    known = len(layout.optional) - (reader.minor < MINOR_OF_LEVELS and layout.optional[-1:] == _LEVELS)
    if mask >> known:
        raise FormatError(f"{reader.where}: attributes unknown to this version (mask {mask:#04x})")
    attributes: dict[str, Any] = {name: codec.read(reader) for name, codec in layout.required}
    for i, (name, codec) in enumerate(layout.optional):
        if mask >> i & 1:
            attributes[name] = codec.read(reader)
    if attributes.pop("exclude_pad", False):
        attributes["count_include_pad"] = False
    op = layout.type(inputs=tuple(own - distance for distance in distances), **attributes)
    _check_numbers(FormatError, reader.where, op)
    return op


def _check_numbers(failure: Failure, where: str, op: Op) -> None:
    """Attributes that make no sense whatever the shapes are."""
    sizes: tuple[int, ...] = ()
    if isinstance(op, records.Conv):
        sizes = (*op.stride, *op.dilation, op.groups)
    elif isinstance(op, records.Pool):
        sizes = (*op.kernel, *op.stride, *op.dilation)
    if 0 in sizes:
        raise failure(f"{where}: a stride, dilation, window or number of groups of 0")
    if isinstance(op, records.Conv | records.Linear):
        if op.scale is None and _has_ratios(op.weight):
            raise failure(f"{where}: ratios without a scale that they refer to")
        if op.levels is not None:
            _check_levels(failure, where, op)
    if isinstance(op, records.Slice) and op.step == 0:
        raise failure(f"{where}: a slice with step 0")
    if isinstance(op, records.LayerNorm) and op.eps < 0:
        raise failure(f"{where}: a negative eps of {op.eps}")
    if isinstance(op, records.Activation) and op.function == "softplus" and op.a == 0:
        raise failure(f"{where}: softplus with beta 0")


def _check_levels(failure: Failure, where: str, op: records.Conv | records.Linear) -> None:
    signs = isinstance(op.weight, Binary) or (isinstance(op.weight, Stacked) and op.weight.binary)
    if not signs or op.binary_input:
        raise failure(f"{where}: levels of the input go with ±1 filters, and not with the signs of the input")
    if op.levels is not None and op.scale is not None:
        with np.errstate(over="ignore"):
            if not np.isfinite(op.scale * np.float32(op.levels.step)).all():
                raise failure(f"{where}: the scale of a channel times the step between levels overflows")


def _has_ratios(weight: Weight) -> bool:
    return isinstance(weight, Stacked) and weight.scale is not None


def _stored_attributes(op: Op) -> dict[str, Any]:
    attributes = {field.name: getattr(op, field.name) for field in fields(op)}
    if isinstance(op, records.Pool):  # a flag is stored when it is set, and the default here is True
        attributes["exclude_pad"] = not op.count_include_pad
    return attributes


def _is_default(op: Op, name: str, value: Any) -> bool:
    if value is None or value is False:
        return True
    default = next((field.default for field in fields(op) if field.name == name), MISSING)
    return not isinstance(value, np.ndarray) and bool(value == default)

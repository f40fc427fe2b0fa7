"""Packing: a PyTorch model as a `Program`, and that as a `.sbit` file.

    subbit.pack(model, "net.sbit", example=torch.zeros(1, 3, 32, 32), labels=["cat", "dog"])
    program = to_program(model, (3, 32, 32))     # the same without a file

The model is read in eval mode and not changed. Numbers are stored in fp16 unless `storage="f32"` asks for all of them.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from subbit.calibration import calibrated
from subbit.errors import PackError, SubbitError
from subbit.format import encode
from subbit.nn.lowering.lower import Lowered, lower, lower_for, same
from subbit.nn.lowering.simplify import numbered, simplify
from subbit.nn.lowering.tracing import (
    ONE_AT_A_TIME,
    VALUE,
    OutputKey,
    Trace,
    as_input,
    evaluating,
    place,
    run_graph,
    single_output,
    unchanged,
    unwrapped,
)
from subbit.nn.reference import run_op
from subbit.records import (
    Activation,
    Concat,
    Conv,
    Linear,
    Op,
    Pad,
    Permute,
    Pool,
    Preprocessing,
    Program,
    Reshape,
    Shape,
    Slice,
    Storage,
)
from subbit.shapes import value_shapes

Example = Tensor | Sequence[int]


@dataclass(frozen=True)
class PackResult:
    """What was written, and where."""

    path: Path
    bytes: int
    program: Program


@dataclass(frozen=True)
class Packed:
    """A program with what it was made from, for those who compare the two."""

    program: Program
    trace: Trace
    origins: dict[int, fx.Node]  # value of the program -> node of the trace that gives the same


def pack(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Example,
    storage: Storage = "f16",
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    output: OutputKey = None,
    int8: bool = False,
    calibrate: Any = None,
) -> PackResult:
    """Write `model` as a `.sbit` file.

        subbit.pack(model, "net.sbit", example=torch.zeros(1, 3, 32, 32)).bytes
        subbit.pack(model, "net.sbit", example=images[:1], int8=True, calibrate=images[:256])

    `example` is an input with its batch, or the shape of one image without it. `output` names the output of a model
    that gives several. With `int8` layers of ±1 filters compute in integers; `calibrate` are a few hundred inputs, an
    array or batches, from which the ranges of the activations are taken. The file appears complete or not at all: it
    is written beside `path` and then renamed.
    """
    if int8 != (calibrate is not None):
        raise PackError("int8=True needs calibrate=images to take the ranges of the activations from, and only it does")
    packed = to_packed(model, input_shape(example), storage, labels, preprocessing, output)
    check_packed(model, packed, output)
    program = packed.program
    if int8:
        program = calibrated(program, calibrate)
    data = encode(program)
    target = Path(path)
    _write_atomically(target, data)
    return PackResult(target, len(data), program)


def to_program(
    model: nn.Module,
    example: Example,
    storage: Storage = "f16",
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    output: OutputKey = None,
) -> Program:
    """`model` in eval mode as a program, BatchNorm folded."""
    return to_packed(model, input_shape(example), storage, labels, preprocessing, output).program


def to_packed(
    model: nn.Module,
    shape: Shape,
    storage: Storage = "f16",
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    output: OutputKey = None,
    batch: int | None = None,
) -> Packed:
    """The program of `model`, with its trace for batches of `batch`."""
    if not isinstance(model, nn.Module):
        raise PackError(f"only an nn.Module can be packed, got {type(model).__name__}")
    if isinstance(labels, str):
        raise PackError(f"labels={labels!r} is one string: give a sequence of names")
    if storage not in ("f16", "f32"):
        raise PackError(f"storage={storage!r}: choose 'f16' or 'f32'")
    lowered = lower(model, shape, output, batch)
    ops, result, origins = numbered(simplify(lowered))
    program = Program(
        input_shape=shape,
        ops=ops,
        output=-1 if result == len(ops) else result,
        storage=storage,
        labels=tuple(labels),
        preprocessing=preprocessing,
    )
    _check_metadata(program)
    _warn_of_gelu(program)
    if _accepts_too_much(model, lowered, program, output):
        program, origins = _pinned(program, origins)
    return Packed(program, lowered.trace, origins)


def _check_metadata(program: Program) -> None:
    """A PackError unless labels and preprocessing can be those of this network."""
    labels, preprocessing, shape = program.labels, program.preprocessing, program.input_shape
    if wrong := [label for label in labels if not isinstance(label, str)]:
        raise PackError(f"labels: {wrong[0]!r} is not a name; give a string for each class")
    outputs = value_shapes(program)[program.output_value]
    if labels and outputs[:1] != (len(labels),):
        raise PackError(f"labels: {len(labels)} names for an output of shape {outputs}; give one for each class")
    if preprocessing is None:
        return
    try:
        numbers = [float(number) for number in (*preprocessing.mean, *preprocessing.std)]
        height, width = preprocessing.size
    except (AttributeError, TypeError, ValueError):
        raise PackError(
            f"preprocessing={preprocessing!r}: give a subbit.records.Preprocessing with a mean and a std for each "
            "channel and the (height, width) of the input"
        ) from None
    if len(shape) != 3 or len(numbers) != 2 * shape[0] or (height, width) != shape[1:]:
        raise PackError(
            f"preprocessing has {len(preprocessing.mean)} means, {len(preprocessing.std)} deviations and the size "
            f"{preprocessing.size}: an input of shape {shape} needs other ones"
        )


_HANDS_ON = (Reshape, Permute, Slice, Concat, Pool, Pad)  # signs of the result are signs of the inputs


def _warn_of_gelu(program: Program) -> None:
    """Where signs are taken of a GELU: below about -5 PyTorch rounds it to zero, whose sign is +1, a file does not."""
    curved = [False]
    for op in program.ops:
        if isinstance(op, Conv | Linear) and op.binary_input and curved[op.inputs[0]]:
            warnings.warn(
                f"{op.name or type(op).__name__} takes the signs of a GELU, which PyTorch rounds to zero (+1) below "
                "about -5 and a packed file leaves below zero (-1): their outputs differ; put a BatchNorm or another "
                "function in between",
                stacklevel=4,
            )
        is_gelu = isinstance(op, Activation) and op.function in ("gelu", "gelu_tanh")
        curved.append(is_gelu or (isinstance(op, _HANDS_ON) and any(curved[i] for i in op.inputs)))


def _accepts_too_much(model: nn.Module, lowered: Lowered, program: Program, output: OutputKey) -> bool:
    """Whether the file would run on inputs of another size without computing what the model does there.

    A sum, or a slice up to the end, is stored with the size that it has here.
    """
    shape = program.input_shape
    others = [(*shape[:dim], 2 * shape[dim], *shape[dim + 1 :]) for dim in range(len(shape))]
    others.append((*shape[:1], *(2 * size for size in shape[1:])))  # some models take squares alone,
    others.append((*shape[:1], *(size + 1 for size in shape[1:])))  # and some pad what is odd
    for other in dict.fromkeys(others):
        if other == shape or not _infers(replace(program, input_shape=other)):
            continue
        try:
            there = lower_for(model, lowered, other, output)
        except PackError:  # the model does what the file does not
            return True
        # as they are, or once simplified: either may name a size that does not matter in the end
        if there is not None and not _alike(lowered.ops, there.ops) and not _alike(program.ops, _simplified(there)):
            return True
    return False


def _simplified(lowered: Lowered) -> Sequence[Op]:
    return numbered(simplify(lowered))[0]


def _alike(some: Sequence[Op], others: Sequence[Op]) -> bool:
    return len(some) == len(others) and all(map(same, some, others))


def _infers(program: Program) -> bool:
    """Whether the shapes of all values fit together, as far as sizes are concerned."""
    try:
        shapes = value_shapes(program)
    except SubbitError:
        return False
    reshaped = ((op, shape) for op, shape in zip(program.ops, shapes[1:], strict=True) if isinstance(op, Reshape))
    return all(prod(shapes[op.inputs[0]]) == prod(shape) for op, shape in reshaped)


def _pinned(program: Program, origins: dict[int, fx.Node]) -> tuple[Program, dict[int, fx.Node]]:
    """The same behind a reshape of the input to its own shape, which an input of another size does not have."""
    first: Op = Reshape(inputs=(0,), shape=program.input_shape)
    ops = (first, *(replace(op, inputs=tuple(i + 1 for i in op.inputs)) for op in program.ops))
    output = program.output if program.output < 0 else program.output + 1
    return replace(program, ops=ops, output=output), {value + 1: node for value, node in origins.items()}


def check_packed(model: nn.Module, packed: Packed, output: OutputKey = None) -> None:
    """A PackError unless a program computes what its model does, for random numbers: operation by operation.

    Each is given what the model has there, so that differences do not add up, and a sign does not turn for a rounding.
    """
    program, tolerance = packed.program, _tolerance(model, packed.trace)
    x = _random_input(packed.trace)
    values = check_trace(model, packed.trace, x, output, packed.origins.values())
    if values is None:
        return
    exact = [as_input(unwrapped(model), x).to("cpu", torch.float32)]
    for number, op in enumerate(program.ops, start=1):
        node = packed.origins.get(number)
        plain = run_op(op, [exact[i] for i in op.inputs], len(x))
        if node is not None and not _agree(plain, values[node], tolerance):
            raise PackError(
                f"{place(node)} computes something else than its packed form, {type(op).__name__}, so the file would "
                "be wrong: this is a mistake of subbit, or a tensor is changed in place while others read it; use "
                "operations that are not in place there"
            )
        exact.append(plain if node is None else values[node])


def check_trace(
    model: nn.Module,
    trace: Trace,
    x: Tensor | None = None,
    output: OutputKey = None,
    wanted: Iterable[fx.Node] = (),
) -> dict[fx.Node, Tensor] | None:
    """The values of `wanted` nodes, for `x` or for random numbers.

    A PackError unless the trace of a model computes what the model does: it may take another path while it is traced,
    where it asks for types or for something else than shapes. None where that cannot be found out: traced, the tensors
    that a forward makes have the type of fp32, which a model of half the precision does not always take.
    """
    model = unwrapped(model)
    result = next(node for node in trace.graph.nodes if node.op == "output")
    x = _random_input(trace) if x is None else x
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]), evaluating(model), unchanged(model), torch.no_grad():
        try:
            answer = single_output(model(as_input(model, x).clone()), output).detach().to("cpu", torch.float32)
            values = run_graph(trace, model, x, [*wanted, result])
        except SubbitError:
            raise
        except Exception as error:
            if as_input(model, x).dtype in (torch.float16, torch.bfloat16):
                return None
            raise PackError(
                f"{type(model).__name__} fails on an input of shape {tuple(x.shape)}: {error}; run the model on such "
                "an input yourself to find the place"
            ) from error
    if not _agree(values[result], answer, _tolerance(model, trace)):
        raise PackError(
            f"{type(model).__name__} computes something else when it is traced than when it runs, so the file would be "
            "wrong: its forward asks for the type of a tensor, changes a tensor of its own in place, or depends on "
            "chance or on earlier inputs; change that part"
        )
    return values


def _random_input(trace: Trace) -> Tensor:
    given = next(node for node in trace.graph.nodes if node.op == "placeholder").meta[VALUE].shape
    return torch.randn(given, generator=torch.Generator().manual_seed(0))


def _tolerance(model: nn.Module, trace: Trace) -> float:
    """Of the largest value: some roundings of the model's own type."""
    dtype = torch.bfloat16 if trace.autocast else as_input(unwrapped(model), torch.zeros(())).dtype
    return max(1e-3, 20 * torch.finfo(dtype).eps)


def _agree(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    if found.shape != wanted.shape:
        return False
    return torch.allclose(found, wanted, tolerance, tolerance * _largest(wanted), equal_nan=True)


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def input_shape(example: Example) -> Shape:
    """The shape of one input without the batch, from an example with it or from the shape itself."""
    if isinstance(example, Tensor):
        shape = tuple(example.shape[1:])
    else:
        try:
            shape = tuple(int(size) for size in example)
        except (TypeError, ValueError):
            raise PackError(
                f"example is {type(example).__name__}: give an input tensor with its batch, or a shape such as "
                "(3, 32, 32)"
            ) from None
        if len(shape) == 4:  # a value has at most three dimensions beside the batch: this one counts it
            shape = shape[1:]
    if not shape or min(shape) < 1:
        raise PackError(
            f"example of shape {tuple(getattr(example, 'shape', example))}: expected is a batch, such as "
            "torch.zeros(1, 3, 32, 32), or the shape of one input, such as (3, 32, 32)"
        )
    return shape


def _write_atomically(path: Path, data: bytes) -> None:
    """A reader of `path` sees the old file or the new one, also after a crash."""
    if not path.parent.is_dir():
        raise PackError(f"cannot write {path}: there is no folder {path.parent}")
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _usual_mode(path))
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise PackError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _usual_mode(path: Path) -> int:
    """Permissions that the file has, or that open() would have given it; mkstemp keeps others out."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

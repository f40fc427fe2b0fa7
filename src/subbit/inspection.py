"""`inspect`: what every layer of a network costs, in bits and operations, and how the sums come about.

A model is packed in memory and the bytes are counted, so that the size in a report is the size of the file. This
module needs NumPy alone; looking at a model, rather than at a file, imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from subbit.accounting import FLOAT_BITS, STORAGE_BITS, Bits, Operations, operations
from subbit.errors import ConfigError, FormatError, MissingDependency, ModelError
from subbit.records import Conv, Dense, Linear, Preprocessing, Program, Shape, Storage

if TYPE_CHECKING:
    from rich.console import Group
    from torch import nn

    from subbit.format import OpSize, Sizes


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one module costs."""

    name: str
    kind: str  # class of the module in the dense network
    dense_bits: int  # its parameters, and BatchNorm statistics, at 32 bits each
    stored: Bits
    operations: Operations  # for one input; what runs twice counts twice

    @property
    def stored_bits(self) -> int:
        return self.stored.total


@dataclass(frozen=True, kw_only=True)
class LayerReport(Row):
    """One convolution or linear layer."""

    method: str  # what compresses it; empty for a layer that was kept
    kept_because: str  # empty for a converted layer
    weights: int  # of the dense layer, without bias
    paper_bits: int | None  # in the paper's accounting; None: it does not count this layer
    notes: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> float:
        return self.stored.total / self.weights if self.weights else 0.0


@dataclass(frozen=True, kw_only=True)
class OtherReport(Row):
    """A module with parameters that is no convolution or linear layer: BatchNorm, LayerNorm, a learned token."""


@dataclass(frozen=True)
class Report:
    """What a network costs. `print(report)` shows a table whose rows add up to the totals below it.

        report = subbit.inspect(model, (3, 32, 32))
        report.stored_bytes, report.ratio, report.layers[3].bits_per_weight

    If the model has no packed form, `pack_error` says why and the stored bits are those of the records that a file
    would hold, without a graph around them.
    """

    name: str
    input_shape: Shape  # without the batch
    layers: tuple[LayerReport, ...]
    others: tuple[OtherReport, ...]
    overhead_bits: int  # header, graph, names, padding
    pack_error: str = ""
    notes: tuple[str, ...] = ()
    peak_memory: int | None = None  # bytes to load and run it in one thread, the file included; None: not known
    work: int | None = None  # multiply-adds of the core for one input, at most, everything counted; None: not known

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.layers, *self.others)

    @property
    def stored_bits(self) -> int:
        return sum(row.stored_bits for row in self.rows) + self.overhead_bits

    @property
    def stored_bytes(self) -> int:
        """Size of the file."""
        return self.stored_bits // 8

    @property
    def dense_bytes(self) -> int:
        """All parameters and BatchNorm statistics of the dense network in fp32."""
        return sum(row.dense_bits for row in self.rows) // 8

    @property
    def ratio(self) -> float:
        """Dense bytes over stored bytes, everything counted."""
        return self.dense_bytes / self.stored_bytes

    @property
    def paper_ratio(self) -> float | None:
        """Compression of the convolutions' weights alone, in the paper's accounting; None where it has no meaning."""
        counted = [(row.weights, row.paper_bits) for row in self.layers if row.paper_bits is not None]
        if not counted:
            return None
        return FLOAT_BITS * sum(weights for weights, _ in counted) / sum(bits for _, bits in counted)

    @property
    def operations(self) -> Operations:
        return sum((row.operations for row in self.rows), Operations())

    @property
    def speedup(self) -> float:
        """Operations of the dense network over those of this one (transform and merge)."""
        total = self.operations
        needed = total.transform + total.merge
        return total.dense / needed if needed else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        values = asdict(self)
        for row, layer in zip(values["layers"], self.layers, strict=True):
            row["bits_per_weight"] = layer.bits_per_weight
        totals = ("stored_bytes", "dense_bytes", "ratio", "paper_ratio", "speedup")
        return {name: getattr(self, name) for name in totals} | {"operations": asdict(self.operations)} | values

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __rich__(self) -> Group:
        from subbit.tables import render

        return render(self)

    def __str__(self) -> str:
        from subbit.tables import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from subbit.tables import as_html

        return as_html(self)


def inspect(
    model: nn.Module | Program | str | os.PathLike[str],
    input_shape: Sequence[int] | None = None,
    *,
    storage: Storage = "f16",
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
    output: str | int | None = None,
) -> Report:
    """What a model, or a `.sbit` file, costs.

        print(subbit.inspect(model, (3, 32, 32)))       # a batch dimension in front is fine, too
        print(subbit.inspect("net.sbit"))               # without torch

    The model is not changed: a copy of it runs once on zeros to count operations. `storage`, `labels`,
    `preprocessing` and `output` are those of `pack`; with the same ones the report has the size of the file.
    """
    if isinstance(model, Program | str | os.PathLike) and (labels or preprocessing or output is not None):
        raise ConfigError("labels, preprocessing and output are for models: a packed network already has its own")
    if storage not in STORAGE_BITS:
        raise ConfigError(f"storage={storage!r}: choose one of {', '.join(map(repr, STORAGE_BITS))}")
    if isinstance(model, Program):
        from subbit.format import encode

        return inspect_program(model, "program", encode(model))
    if isinstance(model, str | os.PathLike):
        return inspect_file(Path(model))
    try:
        from torch import nn

        from subbit.nn.measure import measure
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "subbit":
            raise
        raise MissingDependency(
            f"inspecting a model needs {error.name}, which is not installed: pip install 'subbit[train]'"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"inspect takes a torch.nn.Module or the path of a .sbit file, got {type(model).__name__}")
    if input_shape is None:
        raise ConfigError("inspect needs the shape of one input for a model, for example inspect(model, (3, 32, 32))")
    return measure(model, input_shape, storage, labels, preprocessing, output)


def inspect_file(path: Path) -> Report:
    """The report of a packed network."""
    from subbit.format import decode

    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        program = decode(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    return inspect_program(program, path.name, data)


def inspect_program(program: Program, name: str, data: bytes) -> Report:
    """The report of a network in stored form, and of the file that it is in.

    Another writer may spend bytes on what goes without saying (a stride of 1, filters that nobody uses): overhead.

    BatchNorm is folded, so the dense network beside it has a bias per channel in its place; which scales the method
    had is no longer known, so there is no ratio in the paper's accounting.
    """
    from subbit.format import sizes
    from subbit.shapes import value_shapes

    size = sizes(program)
    shapes = value_shapes(program)[1:]
    layers, others = [], []
    seen: set[int] = set()  # a weight that several operations share is one of the dense network, too
    for number, (op, bits, shape) in enumerate(zip(program.ops, map(_bits, size.ops), shapes, strict=True)):
        if isinstance(op, Conv | Linear):
            layers.append(_layer(op, op.name or f"op {number}", bits, shape, shared=id(op.weight) in seen))
            seen.add(id(op.weight))
        elif bits.total:
            numbers = sum(array.size for _, array in op.arrays())
            others.append(_other(op.name or f"op {number}", type(op).__name__, numbers, bits))
    cost = cost_to_run(data)
    notes = ("BatchNorm is folded: the dense network beside this file has a bias per channel in its place",)
    return Report(
        name=name,
        input_shape=program.input_shape,
        layers=tuple(layers),
        others=tuple(others),
        overhead_bits=8 * len(data) - size.payload,
        notes=notes,
        peak_memory=cost.memory,
        work=cost.work,
    )


class Cost(NamedTuple):
    """What it takes to run a file: `Network.memory` and `Network.work`."""

    memory: int | None = None
    work: int | None = None


def cost_to_run(data: bytes) -> Cost:
    """What the runtime needs to load and run a file; nothing is known where the runtime is not built."""
    try:
        from subbit.runtime import load

        net = load(data)
    except (ImportError, OSError):  # a source tree without the compiled core can still count bits
        return Cost()
    return Cost(net.memory, net.work)


def stored_by_name(program: Program, size: Sizes) -> dict[str, Bits]:
    """Stored bits of the operations of a program, summed by the module they came from."""
    total: dict[str, Bits] = {}
    for op, bits in zip(program.ops, map(_bits, size.ops), strict=True):
        total[op.name] = total.get(op.name, Bits()) + bits
    return total


def _bits(size: OpSize) -> Bits:
    return Bits(size.filters, size.indices, size.scales, size.rest)


def _other(name: str, kind: str, numbers: int, bits: Bits) -> OtherReport:
    return OtherReport(name=name, kind=kind, dense_bits=FLOAT_BITS * numbers, stored=bits, operations=Operations())


def _layer(op: Conv | Linear, name: str, bits: Bits, shape: Shape, shared: bool) -> LayerReport:
    weights = 0 if shared else prod(op.weight.shape)
    shifts = 0 if op.shift is None else op.shift.size
    positions = prod(shape) // op.weight.shape[0]
    dense = isinstance(op.weight, Dense)
    return LayerReport(
        name=name,
        kind=type(op).__name__,
        method="" if dense else _record_name(op),
        kept_because="stored dense" if dense else "",
        weights=weights,
        dense_bits=FLOAT_BITS * (weights + shifts),
        stored=bits,
        operations=operations(op.weight, positions, op.groups if isinstance(op, Conv) else 1),
        paper_bits=None,
    )


def _record_name(op: Conv | Linear) -> str:
    return f"{type(op.weight).__name__.lower()}{', binary input' if op.binary_input else ''}"

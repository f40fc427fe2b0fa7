"""From a traced graph to operations: every node goes to the handler of its name."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from subbit.errors import PackError, SubbitError
from subbit.nn.lowering import weighted
from subbit.nn.lowering.builder import Builder, Records, Value
from subbit.nn.lowering.movement import MOVEMENT
from subbit.nn.lowering.pointwise import ELEMENTWISE, Handler, dropout, identity
from subbit.nn.lowering.spatial import SPATIAL
from subbit.nn.lowering.tracing import VALUE, OutputKey, Trace, trace, unwrapped
from subbit.records import Binary, Dense, Op, Shape, Stacked

HANDLERS: dict[str, Handler] = {
    "conv1d": weighted.conv(1), "conv2d": weighted.conv(2), "linear": weighted.linear, "matmul": weighted.matmul,
    "mm": weighted.matmul, "addmm": weighted.addmm, "batch_norm": weighted.batch_norm,
    "layer_norm": weighted.layer_norm, "group_norm": weighted.group_norm, "instance_norm": weighted.instance_norm,
    "rms_norm": weighted.rms_norm, "local_response_norm": weighted.local_response_norm,
    **ELEMENTWISE, **SPATIAL, **MOVEMENT,
}  # fmt: skip

# Operators spell the same operation in several ways: in place, and with the operands turned round.
_ALIASES = {
    "iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "isub": "sub", "itruediv": "div", "idiv": "div",
    "rmatmul": "matmul", "invert": "bitwise_not",
}  # fmt: skip

_KEYWORDS = {"keepdims": "keepdim", "axis": "dim"}  # as NumPy has them

_STALE = "uses a value that was changed in place through a view of it: use the operation that is not in place"

# Batch sizes of the two traces. Whatever depends on the batch comes out differently and is found.
_BATCHES = (3, 5)


@dataclass(frozen=True)
class Lowered:
    """Operations of a model before anything is folded."""

    ops: list[Op]
    shapes: list[Shape]  # of every value
    output: int
    origins: dict[int, fx.Node]  # value -> the node of `trace` that gives it
    trace: Trace
    records: Records


def lower(model: nn.Module, shape: Shape, output: OutputKey = None, batch: int | None = None) -> Lowered:
    """The operations of `model` for inputs (any batch, *shape).

    The model is read twice, with different batch sizes, and both must give the same operations. `batch` replaces the
    first of the two, for those who want to run the traced graph.
    """
    model = unwrapped(model)
    records: Records = {}
    sizes = _BATCHES if batch is None else (batch, batch + 2)
    first, second = (_lower(model, shape, trace(model, shape, size, output), records) for size in sizes)
    if len(first.ops) != len(second.ops) or first.output != second.output:
        raise PackError("the model computes something else for a batch of another size: images must not mix")
    for value, (one, other) in enumerate(zip(first.ops, second.ops, strict=True), start=1):
        if not same(one, other):
            where = f"{one.name or 'an operation'} ({type(one).__name__}, value {value})"
            raise PackError(f"{where} depends on the size of the batch: a packed network runs any batch alike")
    return first


def lower_for(model: nn.Module, lowered: Lowered, shape: Shape, output: OutputKey = None) -> Lowered | None:
    """The operations of a model that was lowered, for inputs of another shape; None where it does not take them.

    A PackError: it takes them, and does something that has no packed form.
    """
    model = unwrapped(model)
    try:
        traced = trace(model, shape, lowered.trace.batch, output)
    except SubbitError:
        return None
    return _lower(model, shape, traced, lowered.records)


def _lower(model: nn.Module, shape: Shape, traced: Trace, records: Records) -> Lowered:
    lowering = _Lowering(model, shape, traced, records)
    for node in _needed(traced.graph):
        lowering.visit(node)
    return Lowered(lowering.builder.ops, lowering.builder.shapes, lowering.output, lowering.origins, traced, records)


def _needed(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that the output depends on; what a model gives or keeps besides needs no packed form.

    An operation in place is needed where somebody reads, behind it, the memory that it wrote to.
    """
    needed: dict[fx.Node, None] = {}
    read: set[int] = set()
    for node in reversed(graph.nodes):
        written = _in_place(node) and (node.kwargs.get("out") is not None or _memories(node) & read)
        if node.op in ("output", "placeholder") or written or any(user in needed for user in node.users):
            needed[node] = None
            read = read.union(*map(_memories, node.all_input_nodes))
    return list(reversed(needed))


def _memories(node: fx.Node) -> set[int]:
    value = node.meta[VALUE]
    several = value if isinstance(value, list | tuple) else (value,)
    return {_memory(tensor) for tensor in several if isinstance(tensor, Tensor)}


def _in_place(node: fx.Node) -> bool:
    """Whether a node gives a tensor that it was given, changed."""
    if node.op not in ("call_function", "call_method") or HANDLERS.get(_operation(node.target)) in (identity, dropout):
        return False
    if node.kwargs.get("out") is not None:
        return True
    return any(node.meta[VALUE] is source.meta[VALUE] for source in node.all_input_nodes)


class _Lowering:
    """One walk over a graph.

    Values are found by the identity of the traced tensor, not by node. An operation in place gives the very tensor it
    was given, so from then on every name of that tensor means the new value, just as in PyTorch.
    """

    def __init__(self, model: nn.Module, shape: Shape, traced: Trace, records: Records) -> None:
        self.builder = Builder(model, shape, traced.batch, records)
        self.trace = traced
        self.origins: dict[int, fx.Node] = {}
        self.output = 0
        self._values: dict[int, tuple[Tensor, Value | str]] = {}  # or why nobody may use it
        self._tuples: dict[fx.Node, Any] = {}

    def visit(self, node: fx.Node) -> None:
        if node.op == "output":
            self.output = self._output(node)
            return
        if node.op == "get_attr":
            return
        b, traced = self.builder, node.meta[VALUE]
        b.node = node
        if node.op == "placeholder":
            self._values[id(traced)] = (traced, Value(0, b.shapes[0]))
            return
        single = isinstance(traced, Tensor)
        if single:
            b.shape = self._without_batch(traced)
        result = self._handle(node)
        if not single:
            self._tuples[node] = result
            return
        if not isinstance(result, Value):
            self._values[id(traced)] = (traced, "indices (of a maximum) have no packed form")
            return
        b.require(traced.is_floating_point(), f"gives {traced.dtype}: values of a packed network are real numbers")
        b.require(result.shape == b.shape, f"internal error: lowered to {result.shape}, PyTorch gives {b.shape}")
        self._bind(traced, result)
        self.origins.setdefault(result.id, node)  # not the dropout behind it, which gives the same

    def _handle(self, node: fx.Node) -> Any:
        b = self.builder
        args: Any = map_aggregate(node.args, self._argument)
        given = {_KEYWORDS.get(k, k): v for k, v in node.kwargs.items() if k != "out" or v is not None}
        kwargs: Any = map_aggregate(given, self._argument)
        if node.op == "call_module":
            return weighted.compressed(b, self.trace.layers[str(node.target)], *args, **kwargs)
        if node.target is getattr:
            name, args = args[1], args[:1]
        else:
            name = _operation(node.target)
        handler = weighted.aten_batch_norm if node.target is torch.batch_norm else HANDLERS.get(name)
        if handler is None:
            raise b.error(_unsupported(name))
        try:
            inspect.signature(handler).bind(b, *args, **kwargs)
            return handler(b, *args, **kwargs)
        except SubbitError:
            raise
        except Exception as error:
            raise b.error(f"{name} with these arguments has no packed form ({error})") from error

    def _argument(self, argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        if argument.op == "get_attr":
            return self.trace.constants[str(argument.target)]
        if argument in self._tuples:
            return self._tuples[argument]
        value = self._values[id(argument.meta[VALUE])][1]
        if isinstance(value, str):
            raise self.builder.error(value)
        return value

    def _bind(self, traced: Tensor, value: Value) -> None:
        before = self._values.get(id(traced))
        if before is not None and before[1] != value:
            memory = _memory(traced)
            for key, (other, _) in list(self._values.items()):
                if other is not traced and _memory(other) == memory:
                    self._values[key] = (other, _STALE)
        self._values[id(traced)] = (traced, value)

    def _without_batch(self, traced: Tensor) -> Shape:
        shape = tuple(traced.shape)
        self.builder.require(
            len(shape) > 0 and shape[0] == self.trace.batch,
            "mixes the batch with other dimensions: the first dimension of every value must stay the batch",
        )
        return shape[1:]

    def _output(self, node: fx.Node) -> int:
        argument = self._argument(node.args[0])
        if isinstance(argument, Value):
            return argument.id
        raise PackError("the output does not depend on the input")


def _memory(tensor: Tensor) -> int:
    """What a tensor shares with its views, and with what `detach` and `data` give."""
    return int(tensor.untyped_storage()._cdata)


def _operation(target: Any) -> str:
    """The name that all spellings of an operation share: relu for F.relu, torch.relu_, Tensor.relu and nn.ReLU."""
    name = (target if isinstance(target, str) else target.__name__).strip("_")
    return _ALIASES.get(name, name)


def _unsupported(name: str) -> str:
    near = difflib.get_close_matches(name, HANDLERS, n=1, cutoff=0.75)
    hint = f"; the nearest supported is {near[0]}" if near else ""
    return (
        f"the operation {name} has no packed form{hint}. Supported are convolutions (1-d, 2-d), linear layers, "
        "normalisations, activations, pooling, arithmetic, reshaping, slicing, concatenation, padding, resampling and "
        "softmax: docs/packing.md lists them all"
    )


def same(one: Op, other: Op) -> bool:
    """Whether two operations are equal, arrays included."""
    return type(one) is type(other) and all(
        _equal(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Dense | Binary | Stacked):
        return one is other or (type(one) is type(other) and np.array_equal(one.weight(), other.weight()))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    return bool(operator.eq(one, other))

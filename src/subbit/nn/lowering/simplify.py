"""Folding: the operations of a model with everything gone that need not be an operation.

Every rule looks at one operation and its neighbours, keeps the output exactly (up to rounding), and says whether it
changed something; they run until none does. BatchNorm arrives here as `Affine`, a bias as the `shift` of its layer.

Rules decide by structure, never by the values of parameters: the size of a file is the same before and after training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import fx

from subbit.errors import PackError
from subbit.nn.lowering.builder import Float32
from subbit.nn.lowering.lower import Lowered
from subbit.records import (
    Activation,
    AdaptivePool,
    Affine,
    Arithmetic,
    Concat,
    Constant,
    Conv,
    Dense,
    LayerNorm,
    Linear,
    Mean,
    Op,
    Pad,
    Permute,
    Pool,
    Reshape,
    Shape,
    Weight,
)
from subbit.shapes import output_shape

Layer = Conv | Linear


@dataclass
class Graph:
    """Operations by the value they give, in order; rules rewrite it in place."""

    ops: dict[int, Op]
    shapes: dict[int, Shape]
    origins: dict[int, fx.Node]
    output: int

    def users(self, value: int) -> list[int]:
        return [user for user, op in self.ops.items() if value in op.inputs]

    def only_user(self, value: int) -> bool:
        """Nobody but one operation sees this value."""
        return value != self.output and len(self.users(value)) == 1

    def source(self, op: Op) -> Op | None:
        """The operation that gives the first input, if nobody else reads it."""
        return self.ops.get(op.inputs[0]) if self.only_user(op.inputs[0]) else None

    def bypass(self, value: int, instead: int) -> None:
        """Let everyone who reads `value` read `instead`, and drop the operation."""
        for user in self.users(value):
            inputs = tuple(instead if i == value else i for i in self.ops[user].inputs)
            self.ops[user] = replace(self.ops[user], inputs=inputs)
        if self.output == value:
            self.output = instead
        del self.ops[value]

    def absorb(self, value: int, layer: Op) -> None:
        """`layer` takes the place of `value` and of the operation before it, which it already contains."""
        before = self.ops[value].inputs[0]
        self.ops[value] = layer
        del self.ops[before]


Rule = Callable[[Graph, int, Op], bool]


def simplify(lowered: Lowered) -> Graph:
    """The operations of a model, folded."""
    graph = Graph(
        ops=dict(enumerate(lowered.ops, start=1)),
        shapes=dict(enumerate(lowered.shapes)),
        origins=dict(lowered.origins),
        output=lowered.output,
    )
    remove_dead(graph)
    while _apply_rules(graph):
        remove_dead(graph)
    for value, op in list(graph.ops.items()):
        if isinstance(op, Conv | Linear):
            graph.ops[value] = _scale_into_values(graph, op)
    return graph


def _apply_rules(graph: Graph) -> bool:
    """Every rule at every operation once; whether anything changed."""
    changed = False
    for value in list(graph.ops):
        for rule in RULES:
            changed |= value in graph.ops and rule(graph, value, graph.ops[value])
    return changed


def remove_dead(graph: Graph) -> None:
    needed = {graph.output}
    for value in sorted(graph.ops, reverse=True):
        if value in needed:
            needed.update(graph.ops[value].inputs)
    for value in [v for v in graph.ops if v not in needed]:
        del graph.ops[value]


def numbered(graph: Graph) -> tuple[tuple[Op, ...], int, dict[int, fx.Node]]:
    """Operations that write values 1, 2, 3, …; the value that is the output; and where values come from."""
    ops: list[Op] = []
    place = {0: 0}
    origins: dict[int, fx.Node] = {}
    for value in sorted(graph.ops):
        op = graph.ops[value]
        _check_shape(graph, value, op)
        op = replace(op, inputs=tuple(place[i] for i in op.inputs))
        ops += _stored_form(op, len(ops), graph.shapes[value])
        place[value] = len(ops)
        if value in graph.origins:
            origins[len(ops)] = graph.origins[value]
    return tuple(ops), place[graph.output], origins


def _check_shape(graph: Graph, value: int, op: Op) -> None:
    """What the file will say about the shape of a value is what PyTorch gave."""
    shape = output_shape(op, [graph.shapes[i] for i in op.inputs])
    if shape != graph.shapes[value]:
        where = f"{op.name or 'the model'} ({type(op).__name__}, value {value})"
        raise PackError(f"{where}: PyTorch gives {graph.shapes[value]}, its packed form {shape}")


def _stored_form(op: Op, last: int, shape: Shape) -> list[Op]:
    """x · 2 + 1 that found no layer to fold into keeps two numbers, not two per channel."""
    if not isinstance(op, Affine):
        return [op]
    if shape[0] <= 16 or not (_uniform(op.scale) and _uniform(op.shift)):
        return [replace(op, scale=_spread(op.scale, shape[0]), shift=_spread(op.shift, shape[0]))]
    parts: list[Op] = []
    x = op.inputs[0]
    for function, numbers in (("mul", op.scale), ("add", op.shift)):
        if numbers is not None:
            number = last + len(parts) + 1
            parts.append(Constant(inputs=(), value=numbers[0].reshape((1,) * len(shape))))
            parts.append(Arithmetic(inputs=(x, number), function=function))  # type: ignore[arg-type]
            x = number + 1
    return parts


# ------------------------------------------------------------------------------------------------- affine


def fold_affine_behind(graph: Graph, value: int, op: Op) -> bool:
    """An affine map behind a layer, or behind another affine map, becomes its scale and shift.

    Dimension 0 of a convolution's output are its filters, and so it is for the flat output of a linear layer.
    """
    if not isinstance(op, Affine):
        return False
    layer = graph.source(op)
    rows = isinstance(layer, Linear) and len(graph.shapes[value]) > 1
    if not isinstance(layer, Conv | Linear | Affine) or rows:
        return False
    graph.absorb(value, _composed(layer, op))
    return True


def fold_affine_through(graph: Graph, value: int, op: Op) -> bool:
    """An affine map behind an operation that it commutes with, behind a layer, becomes the layer's scale and shift.

    It commutes with averages, and with a permutation that brings the outputs of a channels-last linear layer to the
    front. A maximum lets shifts through, but no scale: it might be negative, if not today then after training. There
    the layer's shift moves behind the maximum instead, so that two shifts are stored as one.
    """
    if not isinstance(op, Affine):
        return False
    between = graph.source(op)
    if not isinstance(between, Pool | AdaptivePool | Mean | Permute):
        return False
    layer = graph.source(between)
    if not isinstance(layer, Conv | Linear | Affine):
        return False
    front = between.dims[0] if isinstance(between, Permute) else 0
    outputs = len(graph.shapes[between.inputs[0]]) - 1 if isinstance(layer, Linear) else 0
    if front != outputs:
        return False
    moved = between.inputs[0]
    if _commutes(op, between):
        graph.ops[moved] = _composed(layer, op)
        graph.absorb(value, between)
    elif _is_maximum(between) and layer.shift is not None:
        graph.ops[value] = _composed(Affine(inputs=op.inputs, name=op.name, shift=layer.shift), op)
        graph.ops[moved] = replace(layer, shift=None)
    else:
        return False
    for changed in (moved, op.inputs[0]):
        graph.origins.pop(changed, None)
    return True


def _is_maximum(op: Op) -> bool:
    return isinstance(op, Pool | AdaptivePool) and op.kind == "max"


def _commutes(affine: Affine, op: Op) -> bool:
    if _is_maximum(op):
        return affine.scale is None
    if isinstance(op, Pool):
        zeros_count = any(op.padding) and op.count_include_pad
        return affine.shift is None or not (zeros_count or op.divisor)
    return not (isinstance(op, Mean) and 0 in op.dims)


def fold_affine_before(graph: Graph, value: int, op: Op) -> bool:
    """An affine map whose users are all layers goes into their weights, where that is exact."""
    if not isinstance(op, Affine) or value == graph.output:
        return False
    users = graph.users(value)
    folded = {user: _with_input_affine(graph, graph.ops[user], op) for user in users}
    if not users or any(layer is None for layer in folded.values()):
        return False
    for user, layer in folded.items():
        assert layer is not None
        graph.ops[user] = replace(layer, inputs=op.inputs)
    del graph.ops[value]
    return True


def _with_input_affine(graph: Graph, layer: Op, affine: Affine) -> Layer | None:
    """`layer` as it reads the input of `affine` itself; None where that would not be exact.

    Signs are taken of the input as it is. Zero padding is not shifted, so a shift folds only without padding.
    A binary or stacked weight takes a scale only if it is the same for all input channels.
    """
    if not isinstance(layer, Conv | Linear) or layer.binary_input:
        return None
    scale, shift = affine.scale, affine.shift
    if shift is not None and isinstance(layer, Conv) and any(layer.padding):
        return None
    rows = isinstance(layer, Linear) and len(graph.shapes[affine.inputs[0]]) > 1
    if rows and not (_uniform(scale) and _uniform(shift)):
        return None
    channels = layer.weight.shape[1]
    groups = layer.groups if isinstance(layer, Conv) else 1
    new_shift = layer.shift
    if shift is not None:
        added = _channel_sums(layer.weight, groups, np.broadcast_to(shift, groups * channels))
        added = added if layer.scale is None else added * layer.scale
        new_shift = (added if new_shift is None else added + new_shift).astype(np.float32)
    if scale is None:
        return replace(layer, shift=new_shift)
    if _uniform(scale):
        new_scale = np.full(layer.weight.shape[0], scale[0]) if layer.scale is None else layer.scale * scale[0]
        return replace(layer, scale=new_scale.astype(np.float32), shift=new_shift)
    if not isinstance(layer.weight, Dense) or _shared(graph, layer.weight):
        return None
    values = layer.weight.values * _per_input_channel(layer.weight.shape, groups, scale)
    return replace(layer, weight=Dense(values.astype(np.float32)), shift=new_shift)


def _channel_sums(weight: Weight, groups: int, per_input: Float32) -> Float32:
    """What a constant per input channel adds to each output channel: Σ W[t, c, …] · constant[c]."""
    per_weight = _per_input_channel(weight.shape, groups, per_input).astype(np.float64)
    total: Float32 = (weight.weight() * per_weight).reshape(weight.shape[0], -1).sum(axis=1)
    return total


def _per_input_channel(shape: Shape, groups: int, per_input: Float32) -> Float32:
    """A number per input channel, spread over a weight: the filters of group g read the channels of group g."""
    c_out, depth = shape[:2]
    spread = per_input.reshape(groups, 1, depth).repeat(c_out // groups, axis=1).reshape(c_out, depth)
    return spread.reshape(c_out, depth, *[1] * (len(shape) - 2))


def _composed(inner: Conv | Linear | Affine, outer: Affine) -> Conv | Linear | Affine:
    """`inner` with the scale and shift of outer(scale · x + shift), computed in double precision."""
    scale, shift = inner.scale, inner.shift
    size = 1 if isinstance(inner, Affine) else inner.weight.shape[0]
    new_scale, new_shift = scale, None if shift is None else shift.astype(np.float64)
    if outer.scale is not None:
        factor = outer.scale.astype(np.float64)
        new_scale = (factor if scale is None else factor * scale).astype(np.float32)
        new_shift = None if new_shift is None else new_shift * factor
    if outer.shift is not None:
        new_shift = outer.shift.astype(np.float64) if new_shift is None else new_shift + outer.shift
    rounded = None if new_shift is None else new_shift.astype(np.float32)
    return replace(inner, scale=_spread(new_scale, size), shift=_spread(rounded, size))


def _uniform(values: Float32 | None) -> bool:
    return values is None or values.size == 1


def _spread(values: Float32 | None, size: int) -> Float32 | None:
    """A single number as `size` equal ones."""
    return values.repeat(size) if values is not None and values.size == 1 else values


def _shared(graph: Graph, weight: Weight) -> bool:
    return sum(isinstance(op, Conv | Linear) and op.weight is weight for op in graph.ops.values()) > 1


def _scale_into_values(graph: Graph, layer: Layer) -> Layer:
    """A dense weight takes the scale of its filters, unless it is shared.

    Even in fp16 a small filter keeps its digits beside a large one: the whole array has one exponent, chosen such that
    numbers of 2⁻²⁸ of the largest are still stored with full precision.
    """
    if not isinstance(layer.weight, Dense) or layer.scale is None or _shared(graph, layer.weight):
        return layer
    values = layer.weight.values * layer.scale.reshape(-1, *[1] * (layer.weight.values.ndim - 1))
    return replace(layer, weight=Dense(values.astype(np.float32)), scale=None)


# ------------------------------------------------------------------------------------------------ padding


def fold_zero_padding(graph: Graph, value: int, op: Op) -> bool:
    """Zero padding in front of a convolution becomes its own. (Not for signs: they are taken before padding.)"""
    if not isinstance(op, Conv) or op.binary_input:
        return False
    pad = graph.ops.get(op.inputs[0])
    if not isinstance(pad, Pad) or pad.mode != "constant" or pad.value != 0 or min(pad.amounts) < 0:
        return False
    top, bottom, left, right = (own + more for own, more in zip(op.padding, pad.amounts, strict=True))
    graph.ops[value] = replace(op, inputs=pad.inputs, padding=(top, bottom, left, right))
    return True


# -------------------------------------------------------------------------------------------------- signs


def drop_sign_preserving(graph: Graph, value: int, op: Op) -> bool:
    """Before layers that take signs, a function with the sign of its argument (0 counting as +) does nothing."""
    if not isinstance(op, Activation) or value == graph.output or not _keeps_signs(op):
        return False
    users = [graph.ops[user] for user in graph.users(value)]
    if not users or not all(isinstance(user, Conv | Linear) and user.binary_input for user in users):
        return False
    graph.bypass(value, op.inputs[0])
    return True


def _keeps_signs(op: Activation) -> bool:
    if op.function == "hardtanh":
        return op.a < 0 <= op.b
    return op.function in ("tanh", "sign") or (op.function == "leaky_relu" and op.a > 0)


# ----------------------------------------------------------------------------------------------- movement


def merge_reshapes(graph: Graph, value: int, op: Op) -> bool:
    if not isinstance(op, Reshape):
        return False
    if graph.shapes[op.inputs[0]] == op.shape:
        graph.bypass(value, op.inputs[0])
        return True
    before = graph.ops.get(op.inputs[0])
    if not isinstance(before, Reshape):
        return False
    graph.ops[value] = replace(op, inputs=before.inputs)
    return True


def merge_permutes(graph: Graph, value: int, op: Op) -> bool:
    if not isinstance(op, Permute):
        return False
    before = graph.ops.get(op.inputs[0])
    dims = tuple(before.dims[d] for d in op.dims) if isinstance(before, Permute) else op.dims
    start = before.inputs[0] if isinstance(before, Permute) else op.inputs[0]
    if dims == tuple(range(len(dims))):
        graph.bypass(value, start)
        return True
    graph.ops[value] = replace(op, inputs=(start,), dims=dims)
    return isinstance(before, Permute)


def permute_as_reshape(graph: Graph, value: int, op: Op) -> bool:
    """Moving dimensions of size 1 does not move any number."""
    if not isinstance(op, Permute):
        return False
    shape = graph.shapes[op.inputs[0]]
    real = [d for d in op.dims if shape[d] != 1]
    if real != sorted(real):
        return False
    graph.ops[value] = Reshape(inputs=op.inputs, name=op.name, shape=graph.shapes[value])
    return True


def normalise_in_place(graph: Graph, value: int, op: Op) -> bool:
    """permute – LayerNorm – permute back: the normalisation works along any dimension by itself."""
    if not isinstance(op, Permute):
        return False
    norm = graph.source(op)
    if not isinstance(norm, LayerNorm):
        return False
    there = graph.ops.get(norm.inputs[0])
    if not isinstance(there, Permute):
        return False
    if tuple(there.dims[d] for d in op.dims) != tuple(range(len(op.dims))):
        return False
    graph.absorb(value, replace(norm, inputs=there.inputs, dim=there.dims[norm.dim]))
    return True


def broadcast_in_arithmetic(graph: Graph, value: int, op: Op) -> bool:
    """A value that was expanded for an addition or product need not be: these broadcast."""
    if not isinstance(op, Arithmetic):
        return False
    inputs = tuple(_unexpanded(graph, i) for i in op.inputs)
    if inputs == op.inputs:
        return False
    ranks = {len(graph.shapes[i]) for i in inputs}
    if len(ranks) > 1 or np.broadcast_shapes(*(graph.shapes[i] for i in inputs)) != graph.shapes[value]:
        return False
    graph.ops[value] = replace(op, inputs=inputs)
    return True


def _unexpanded(graph: Graph, value: int) -> int:
    while True:
        op = graph.ops.get(value)
        if not isinstance(op, Concat) or len(set(op.inputs)) > 1 or graph.shapes[op.inputs[0]][op.dim] != 1:
            return value
        value = op.inputs[0]


RULES: tuple[Rule, ...] = (
    fold_affine_behind,
    fold_affine_through,
    fold_affine_before,
    fold_zero_padding,
    drop_sign_preserving,
    merge_reshapes,
    merge_permutes,
    permute_as_reshape,
    normalise_in_place,
    broadcast_in_arithmetic,
)

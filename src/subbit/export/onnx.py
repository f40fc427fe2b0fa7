"""A `Program` as an ONNX model, so that other runtimes can run what a .sbit file holds.

    onnx.save(to_onnx(subbit.format.decode(data)), "net.onnx")

`form="dense"` writes every weight out in full: the network that was compressed, as far as any runtime can tell.
`form="stacked"` keeps the structure: a convolution of every block with the shared filters, then a 1×1 convolution that
merges. Both take a batch of any size. Values of the program have no batch; here it is dimension 0.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from subbit import records
from subbit.errors import ConfigError, ModelError
from subbit.records import Op, Program, Shape, Stacked, fold_scales
from subbit.shapes import value_shapes

Form = Literal["dense", "stacked"]

OPSET = 17


def to_onnx(program: Program, form: Form = "dense") -> onnx.ModelProto:
    """The network as an ONNX model with input "input" and output "output", both float32."""
    if form not in get_args(Form):
        raise ConfigError(f"form={form!r}: choose one of {', '.join(map(repr, get_args(Form)))}")
    graph = _Graph(value_shapes(program), Counter(id(op.weight) for op in program.weighted()))
    names = ["input"]
    for number, op in enumerate(program.ops):
        graph.prefix = op.name or f"{type(op).__name__}_{number}"
        handler = _HANDLERS.get(type(op))
        if handler is None:
            raise ModelError(f"operation {number} ({type(op).__name__}) has no ONNX form")
        graph.in_shapes = [graph.shapes[i] for i in op.inputs]
        graph.out_shape = graph.shapes[number + 1]
        inputs = [names[i] for i in op.inputs]
        if isinstance(op, records.Conv | records.Linear) and form == "stacked" and isinstance(op.weight, Stacked):
            names.append(_stacked(graph, op, inputs[0]))
        else:
            names.append(handler(graph, op, *inputs))
    graph.nodes.append(helper.make_node("Identity", [names[program.output_value]], ["output"]))
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("input", program.input_shape), ("output", graph.shapes[program.output_value]))
    ]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "subbit", tensors[:1], tensors[1:], graph.initializers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="subbit",
    )
    onnx.checker.check_model(model)
    return model


class _Graph:
    """Nodes and constants under construction; names are the module path and a running number."""

    def __init__(self, shapes: list[Shape], uses: Counter[int]) -> None:
        self.shapes = shapes
        self.uses = uses  # of every weight, by id
        self.written: dict[tuple[object, ...], str] = {}  # constants by content
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.prefix = ""
        self.in_shapes: list[Shape] = []
        self.out_shape: Shape = ()

    def name(self) -> str:
        return f"{self.prefix}/{len(self.nodes) + len(self.initializers)}"

    def constant(self, values: NDArray[Any] | Sequence[int]) -> str:
        array = np.asarray(values, dtype=np.int64 if isinstance(values, list | tuple) else values.dtype)  # type: ignore[union-attr]
        array = np.ascontiguousarray(array)
        content = array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()
        if content not in self.written:
            self.written[content] = self.name()
            self.initializers.append(numpy_helper.from_array(array, self.written[content]))
        return self.written[content]

    def keeps_scale(self, op: records.Conv | records.Linear) -> bool:
        """Scales go into the weights, with two exceptions.

        Sums of signs are whole numbers, often exactly zero, and stay so. A weight that several operations share has the
        same values in all of them, and is written once.
        """
        return op.binary_input or self.uses[id(op.weight)] > 1

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """To `shape` behind the batch; −1 stands for what is left."""
        if -1 in shape:  # the batch cannot be −1 too: copy it
            return self.node("Reshape", x, self.constant([0, *shape]))
        return self.node("Reshape", x, self.constant([-1, *shape]))

    def along(self, numbers: NDArray[Any], rank: int, dim: int) -> str:
        """A vector shaped to broadcast along `dim` of a value of `rank`, both without the batch."""
        shape = [1] * (rank + 1)
        shape[dim + 1] = -1
        return self.constant(numbers.astype(np.float32).reshape(shape))

    def scaled(self, x: str, op: Any, rank: int, dim: int) -> str:
        if op.scale is not None:
            x = self.node("Mul", x, self.along(op.scale, rank, dim))
        return x if op.shift is None else self.node("Add", x, self.along(op.shift, rank, dim))

    def signs(self, x: str) -> str:
        positive = self.node("GreaterOrEqual", x, self.number(0))
        return self.node("Where", positive, self.number(1), self.number(-1))

    def as_map(self, x: str, function: Callable[[str], str]) -> str:
        """A function of (N, C, H, W) on a value of any rank: (C, L) has height 1, leading dimensions are channels."""
        shape = self.in_shapes[0]
        if len(shape) == 3:
            return function(x)
        plane = (1, shape[-1]) if len(shape) == 2 else shape[-2:]
        return self.reshape(function(self.reshape(x, (math.prod(shape) // math.prod(plane), *plane))), self.out_shape)


# ------------------------------------------------------------------------------------- layers with weights


def _pads(padding: tuple[int, int, int, int]) -> list[int]:
    top, bottom, left, right = padding
    return [top, left, bottom, right]


def _channel_scaled(op: records.Conv | records.Linear, weight: NDArray[Any]) -> NDArray[Any]:
    if op.scale is None:
        return weight
    return weight * op.scale.reshape(-1, *[1] * (weight.ndim - 1))


def _conv_node(
    graph: _Graph, op: records.Conv, x: str, weight: NDArray[Any], groups: int, shift: NDArray[Any] | None
) -> str:
    bias = [] if shift is None else [graph.constant(shift.astype(np.float32))]
    return graph.node(
        "Conv",
        x,
        graph.constant(weight.astype(np.float32)),
        *bias,
        strides=op.stride,
        pads=_pads(op.padding),
        dilations=op.dilation,
        group=groups,
    )


def _with_plane(weight: NDArray[Any]) -> NDArray[Any]:
    """A weight of a 1-d convolution with a kernel of height 1."""
    return weight[:, :, None] if weight.ndim == 3 else weight


def _conv(graph: _Graph, op: records.Conv, x: str) -> str:
    if graph.keeps_scale(op):
        x = graph.signs(x) if op.binary_input else x
        op = fold_scales(op)
        sums = graph.as_map(x, lambda x: _conv_node(graph, op, x, _with_plane(op.weight.weight()), op.groups, None))
        return graph.scaled(sums, op, len(graph.out_shape), 0)
    weight = _with_plane(_channel_scaled(op, op.weight.weight()))
    return graph.as_map(x, lambda x: _conv_node(graph, op, x, weight, op.groups, op.shift))


def _linear(graph: _Graph, op: records.Linear, x: str) -> str:
    if graph.keeps_scale(op):
        x = graph.signs(x) if op.binary_input else x
        op = fold_scales(op)
        sums = graph.node("MatMul", x, graph.constant(op.weight.weight().T))
        return graph.scaled(sums, op, len(graph.out_shape), len(graph.out_shape) - 1)
    weight = _channel_scaled(op, op.weight.weight()).astype(np.float32)
    if len(graph.in_shapes[0]) == 1:
        bias = [] if op.shift is None else [graph.constant(op.shift)]
        return graph.node("Gemm", x, graph.constant(weight), *bias, transB=1)
    y = graph.node("MatMul", x, graph.constant(weight.T))
    return y if op.shift is None else graph.node("Add", y, graph.constant(op.shift))


def _merge_matrix(op: records.Conv | records.Linear) -> NDArray[np.float32]:
    """P times the channel scale, (c_out, k·m)."""
    weight = op.weight
    assert isinstance(weight, Stacked)
    return _channel_scaled(op, weight.merge_matrix())


def _stacked(graph: _Graph, op: records.Conv | records.Linear, x: str) -> str:
    """Split, transform with the shared filters, merge."""
    weight = op.weight
    assert isinstance(weight, Stacked)
    x = graph.signs(x) if op.binary_input else x
    bank, merge = weight.bank.astype(np.float32), _merge_matrix(op)
    if isinstance(op, records.Linear):
        rows = graph.in_shapes[0][:-1]
        x = graph.reshape(x, (*rows, weight.blocks, weight.depth))
        x = graph.reshape(graph.node("MatMul", x, graph.constant(bank.T)), (*rows, weight.blocks * weight.filters))
        y = graph.node("MatMul", x, graph.constant(merge.T))
        return y if op.shift is None else graph.node("Add", y, graph.constant(op.shift))
    copies = op.groups * weight.blocks
    repeated = np.tile(_with_plane(bank), (copies, 1, 1, 1))
    shift = [] if op.shift is None else [op.shift]

    def transform_and_merge(x: str) -> str:
        features = _conv_node(graph, op, x, repeated, copies, None)
        constants = [graph.constant(values) for values in (merge[:, :, None, None], *shift)]
        return graph.node("Conv", features, *constants, group=op.groups)

    return graph.as_map(x, transform_and_merge)


# ------------------------------------------------------------------------------------ element-wise functions


def _softplus(graph: _Graph, op: records.Activation, x: str) -> str:
    # PyTorch goes over to the identity above a threshold, where the two differ by less than fp32 can show
    beta = graph.number(op.a)
    return graph.node("Div", graph.node("Softplus", graph.node("Mul", x, beta)), beta)


def _gelu(graph: _Graph, op: records.Activation, x: str) -> str:
    erf = graph.node("Erf", graph.node("Mul", x, graph.number(math.sqrt(0.5))))
    return graph.node("Mul", graph.node("Mul", x, graph.number(0.5)), graph.node("Add", erf, graph.number(1)))


def _gelu_tanh(graph: _Graph, op: records.Activation, x: str) -> str:
    cube = graph.node("Mul", graph.node("Mul", x, x), x)
    inner = graph.node("Add", x, graph.node("Mul", cube, graph.number(0.044715)))
    tanh = graph.node("Tanh", graph.node("Mul", inner, graph.number(math.sqrt(2 / math.pi))))
    return graph.node("Mul", graph.node("Mul", x, graph.number(0.5)), graph.node("Add", tanh, graph.number(1)))


def _clip(graph: _Graph, x: str, low: float, high: float) -> str:
    return graph.node("Clip", x, graph.number(low), graph.number(high))


_FUNCTIONS: dict[str, Callable[[_Graph, records.Activation, str], str]] = {
    "relu": lambda g, op, x: g.node("Relu", x),
    "relu6": lambda g, op, x: _clip(g, x, 0, 6),
    "leaky_relu": lambda g, op, x: g.node("LeakyRelu", x, alpha=op.a),
    "hardtanh": lambda g, op, x: _clip(g, x, op.a, op.b),
    "sigmoid": lambda g, op, x: g.node("Sigmoid", x),
    "hard_sigmoid": lambda g, op, x: g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "silu": lambda g, op, x: g.node("Mul", x, g.node("Sigmoid", x)),
    "hard_swish": lambda g, op, x: g.node("HardSwish", x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": lambda g, op, x: g.node("Tanh", x),
    "sign": lambda g, op, x: g.node("Sign", x),
    "abs": lambda g, op, x: g.node("Abs", x),
    "elu": lambda g, op, x: g.node("Elu", x, alpha=op.a),
    "softplus": _softplus,
    "mish": lambda g, op, x: g.node("Mul", x, g.node("Tanh", g.node("Softplus", x))),
    "exp": lambda g, op, x: g.node("Exp", x),
    "log": lambda g, op, x: g.node("Log", x),
    "sqrt": lambda g, op, x: g.node("Sqrt", x),
}

_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"}


def _arithmetic(graph: _Graph, op: records.Arithmetic, a: str, b: str) -> str:
    rank = max(map(len, graph.in_shapes))  # shapes are aligned at the end, behind the batch
    sides = [
        name if len(shape) == rank else graph.reshape(name, (*[1] * (rank - len(shape)), *shape))
        for name, shape in zip((a, b), graph.in_shapes, strict=True)
    ]
    return graph.node(_ARITHMETIC[op.function], *sides)


# ------------------------------------------------------------------------------------------ spatial operations


def _pool(graph: _Graph, op: records.Pool, x: str) -> str:
    shape, out = graph.in_shapes[0], graph.out_shape
    plane, out_plane = ((1, s[-1]) if len(s) == 2 else s[-2:] for s in (shape, out))
    # Padding behind the end that makes the last window fit: no runtime's reading of ceil_mode matters then.
    ends = [
        max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - size - before)
        for count, stride, dilation, kernel, size, before in zip(
            out_plane, op.stride, op.dilation, op.kernel, plane, op.padding, strict=True
        )
    ]
    pads = [*op.padding, *ends]
    if op.kind == "max":
        attributes: dict[str, Any] = {
            "kernel_shape": op.kernel,
            "strides": op.stride,
            "pads": pads,
            "dilations": op.dilation,
        }
        return graph.as_map(x, lambda x: graph.node("MaxPool", x, **attributes))
    overhang = any(end > before for end, before in zip(ends, op.padding, strict=True))
    if op.divisor or (overhang and op.count_include_pad and any(op.padding)):
        raise ModelError("average pooling with divisor_override, or with windows over the end of padding, in ONNX")
    count = int(op.count_include_pad and any(op.padding))
    attributes = {"kernel_shape": op.kernel, "strides": op.stride, "pads": pads, "count_include_pad": count}
    return graph.as_map(x, lambda x: graph.node("AveragePool", x, **attributes))


def _adaptive_pool(graph: _Graph, op: records.AdaptivePool, x: str) -> str:
    shape, out = graph.in_shapes[0], graph.out_shape
    sizes = list(zip((1, *shape)[-2:] if len(shape) == 2 else shape[-2:], out[-2:], strict=True))
    if len(shape) == 2:
        sizes = [(1, 1), (shape[-1], out[-1])]
    if all(size % count == 0 for size, count in sizes):
        window = [size // count for size, count in sizes]
        kind = "MaxPool" if op.kind == "max" else "AveragePool"
        return graph.as_map(x, lambda x: graph.node(kind, x, kernel_shape=window, strides=window))
    if op.kind == "max":
        raise ModelError("adaptive max pooling to a size that does not divide the input, in ONNX")
    rows, columns = (_averages(size, count) for size, count in sizes)

    def average(x: str) -> str:
        return graph.node("MatMul", graph.node("MatMul", graph.constant(rows), x), graph.constant(columns.T))

    return graph.as_map(x, average)


def _averages(size: int, count: int) -> NDArray[np.float32]:
    """(count, size): row i averages the window ⌊i·size/count⌋ … ⌈(i+1)·size/count⌉."""
    matrix = np.zeros((count, size), dtype=np.float32)
    for i in range(count):
        start, stop = i * size // count, -(-(i + 1) * size // count)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix


def _scale(before: int, after: int) -> np.float32:
    """Of a side, with which ONNX, which rounds the product down, comes to `after`."""
    scale = np.float32(after / before)
    while before * float(scale) < after:
        scale = np.nextafter(scale, np.float32(np.inf))
    return scale


def _upsample(graph: _Graph, op: records.Upsample, x: str) -> str:
    coordinates = "asymmetric" if op.mode == "nearest" else "align_corners" if op.align_corners else "half_pixel"
    attributes = {
        "mode": "nearest" if op.mode == "nearest" else "linear",
        "coordinate_transformation_mode": coordinates,
    }
    if op.mode == "nearest":
        attributes["nearest_mode"] = "floor"
    if all(op.factor):
        scales = graph.constant(np.array([1, 1, *op.factor], dtype=np.float32))
        return graph.as_map(x, lambda x: graph.node("Resize", x, "", scales, **attributes))
    shape, out = graph.in_shapes[0], graph.out_shape
    before, after = ((1, s[-1]) if len(s) == 2 else s[-2:] for s in (shape, out))
    scales = graph.constant(np.array([1, 1, *map(_scale, before, after)], dtype=np.float32))
    return graph.as_map(x, lambda x: graph.node("Resize", x, "", scales, **attributes))


def _pad(graph: _Graph, op: records.Pad, x: str) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if op.mode not in modes:
        raise ModelError(f"{op.mode} padding has no form in ONNX opset {OPSET}")
    top, bottom, left, right = op.amounts
    amounts = [0, 0, top, left, 0, 0, bottom, right]
    return graph.as_map(
        x,
        lambda x: graph.node("Pad", x, graph.constant(amounts), graph.number(op.value), mode=modes[op.mode]),
    )


# -------------------------------------------------------------------------------------------------- the rest


def _mean(graph: _Graph, op: records.Mean, x: str) -> str:
    return graph.node("ReduceMean", x, axes=[dim + 1 for dim in op.dims], keepdims=int(op.keepdim))


def _layer_norm(graph: _Graph, op: records.LayerNorm, x: str) -> str:
    rank = len(graph.in_shapes[0])
    axes = [op.dim + 1]
    centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=axes, keepdims=1))
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes=axes, keepdims=1)
    deviation = graph.node("Sqrt", graph.node("Add", variance, graph.number(op.eps)))
    return graph.scaled(graph.node("Div", centred, deviation), op, rank, op.dim)


def _slice(graph: _Graph, op: records.Slice, x: str) -> str:
    bounds = [[op.start], [op.stop], [op.dim + 1], [op.step]]
    return graph.node("Slice", x, *(graph.constant(values) for values in bounds))


def _constant(graph: _Graph, op: records.Constant) -> str:
    # every value has a batch; a constant broadcasts along it
    return graph.constant(op.value[None])


_HANDLERS: dict[type[Op], Callable[..., str]] = {
    records.Conv: _conv,
    records.Linear: _linear,
    records.Affine: lambda g, op, x: g.scaled(x, op, len(g.in_shapes[0]), 0),
    records.Activation: lambda g, op, x: _FUNCTIONS[op.function](g, op, x),
    records.PReLU: lambda g, op, x: g.node("PRelu", x, g.along(op.slope, len(g.in_shapes[0]), 0)),
    records.Pool: _pool,
    records.AdaptivePool: _adaptive_pool,
    records.Mean: _mean,
    records.Arithmetic: _arithmetic,
    records.Constant: _constant,
    records.Concat: lambda g, op, *parts: g.node("Concat", *parts, axis=op.dim + 1),
    records.Slice: _slice,
    records.Reshape: lambda g, op, x: g.reshape(x, g.out_shape),
    records.Permute: lambda g, op, x: g.node("Transpose", x, perm=[0, *(dim + 1 for dim in op.dims)]),
    records.LayerNorm: _layer_norm,
    records.Pad: _pad,
    records.Upsample: _upsample,
    records.Softmax: lambda g, op, x: g.node("Softmax", x, axis=op.dim + 1),
}

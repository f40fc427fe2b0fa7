"""The narrow waist: what a trained network is once no method's name matters any more.

A weight is one of three records: `Dense` (values), `Binary` (signs, a scale per filter) or `Stacked` (a bank of
shared filters, an index and a scale per block). A network is a `Program`: a list of operations over values
without the batch dimension, in order of execution. Value 0 is the input; operation i writes value i + 1.

File format, C core, exporters and accounting know these types and nothing else. NumPy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from subbit.errors import ModelError
from subbit.selection import fixed_selection

Float32 = NDArray[np.float32]
Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Shape = tuple[int, ...]


# ---------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, eq=False)
class Dense:
    """Plain values, (c_out, c_in/groups, *kernel) or (out, in)."""

    values: Float32

    @property
    def shape(self) -> Shape:
        return self.values.shape

    def weight(self) -> Float32:
        """The weight that a plain convolution would use."""
        return self.values


@dataclass(frozen=True, eq=False)
class Binary:
    """±1 weights of the full shape, and a scale per filter (None: all ones)."""

    signs: Int8
    scale: Float32 | None = None  # (c_out,)

    @property
    def shape(self) -> Shape:
        return self.signs.shape

    def weight(self) -> Float32:
        w = self.signs.astype(np.float32)
        if self.scale is None:
            return w
        return w * self.scale.reshape(-1, *[1] * (w.ndim - 1))


@dataclass(frozen=True, eq=False)
class Stacked:
    """Filters stacked from a shared bank: block i of filter t is scale[t, i] · bank[index[t, i]].

    `bank` is (m, s, *kernel): int8 ±1 (SLBF) or float32 (LegoNet). `index` is (c_out, k); `fixed` says that it
    follows `fixed_selection` and need not be stored. `scale` is (c_out, k), None for all ones.
    """

    bank: Int8 | Float32
    index: Int64
    scale: Float32 | None
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.index.size and not 0 <= int(self.index.min()) <= int(self.index.max()) < self.filters:
            raise ModelError(f"indices must lie in 0..{self.filters - 1}")
        if self.fixed and not np.array_equal(
            self.index, fixed_selection(self.index.shape[0], self.blocks, self.filters)
        ):
            raise ModelError("these indices do not follow the fixed selection rule")

    @property
    def filters(self) -> int:
        """m, the number of shared filters."""
        return int(self.bank.shape[0])

    @property
    def depth(self) -> int:
        """s, the channels of a shared filter."""
        return int(self.bank.shape[1])

    @property
    def blocks(self) -> int:
        """k, the blocks of a filter."""
        return int(self.index.shape[1])

    @property
    def binary(self) -> bool:
        return self.bank.dtype == np.int8

    @property
    def shape(self) -> Shape:
        return (int(self.index.shape[0]), self.blocks * self.depth, *self.bank.shape[2:])

    def weight(self) -> Float32:
        w = self.bank.astype(np.float32)[self.index]  # (c_out, k, s, *kernel)
        if self.scale is not None:
            w = w * self.scale.reshape(*self.scale.shape, *[1] * (w.ndim - 2))
        return np.ascontiguousarray(w.reshape(self.shape))

    def merge_matrix(self) -> Float32:
        """P, (c_out, k·m): how the results of all filters over all blocks mix to one of each output filter."""
        matrix = np.zeros((*self.index.shape, self.filters), dtype=np.float32)
        scale = np.ones(self.index.shape, np.float32) if self.scale is None else self.scale
        np.put_along_axis(matrix, self.index[:, :, None], scale[:, :, None], axis=2)
        return matrix.reshape(len(matrix), -1)

    def compact(self) -> Stacked:
        """The same weight without the filters that no block uses."""
        used, index = np.unique(self.index, return_inverse=True)
        if len(used) == self.filters:
            return self
        return Stacked(self.bank[used], index.reshape(self.index.shape).astype(np.int64), self.scale)


Weight = Dense | Binary | Stacked


@dataclass(frozen=True)
class Levels:
    """Seven bits for the input of a layer of ±1 filters: x counts as step · its nearest level.

    Levels are 0…127, or −64…63 where `signed`. A layer with levels adds up whole numbers; docs/format.md says how, to
    the last bit.
    """

    step: float  # rounded to fp32, as the file has it
    signed: bool = False

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            object.__setattr__(self, "step", float(np.float32(self.step)))

    @property
    def lowest(self) -> int:
        return -64 if self.signed else 0

    @property
    def highest(self) -> int:
        return 63 if self.signed else 127


# ------------------------------------------------------------------------------------------- operations
# Shapes never contain the batch. Spatial attributes are (height, width); a 1-d convolution or pooling over a
# value (C, L) has height 1 and treats it as (C, 1, L), which is the same memory.


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operation: reads the values `inputs`, writes one value."""

    inputs: tuple[int, ...]
    name: str = ""  # path of the module it came from; kept in the file for operations with weights

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The real-valued arrays of this operation that are not a weight record (scales, shifts, slopes)."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                yield f.name, value


@dataclass(frozen=True, eq=False, kw_only=True)
class Conv(Op):
    """y[t] = scale[t] · (weight ∗ x)[t] + shift[t].

    Zero padding, per side: (top, bottom, left, right). With `binary_input` the input is replaced by its signs
    (sign(0) = +1) *before* it is padded with zeros, and the sum is an integer. The record's own scales still hold;
    `scale` and `shift` come on top (folded BatchNorm and bias); None means ones and zeros. With `levels` the input is
    rounded to them first; that is for ±1 filters, and not together with `binary_input`.
    """

    weight: Weight
    scale: Float32 | None = None  # (c_out,)
    shift: Float32 | None = None  # (c_out,)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    binary_input: bool = False
    levels: Levels | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Op):
    """Like `Conv` on the last dimension of the input; leading dimensions are rows."""

    weight: Weight
    scale: Float32 | None = None
    shift: Float32 | None = None
    binary_input: bool = False
    levels: Levels | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Affine(Op):
    """scale[c] · x[c] + shift[c] along dimension 0: a BatchNorm that could not fold, a layer scale."""

    scale: Float32 | None = None
    shift: Float32 | None = None


ActivationKind = Literal[
    "relu", "relu6", "leaky_relu", "hardtanh", "sigmoid", "hard_sigmoid", "silu", "hard_swish",
    "gelu", "gelu_tanh", "tanh", "sign", "abs", "elu", "softplus", "mish", "exp", "log", "sqrt",
]  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Activation(Op):
    """Element-wise function. `a`, `b`: leaky_relu slope; hardtanh min, max; elu alpha; softplus beta, threshold.

    "sign" is torch.sign, with sign(0) = 0. "gelu" is the exact form with erf.
    """

    function: ActivationKind
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class PReLU(Op):
    """x ≥ 0 ? x : slope[c] · x along dimension 0; a slope of length 1 serves all channels."""

    slope: Float32


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool(Op):
    """Max or average pooling over the last two dimensions (height 1 for (C, L)).

    `output` is the (height, width) that PyTorch's ceil_mode arithmetic gives; windows may hang over the end.
    """

    kind: Literal["max", "avg"]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int = 0  # divisor_override of average pooling; 0: none


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptivePool(Op):
    """Adaptive max or average pooling to (height, width); 0 keeps the input's size."""

    kind: Literal["max", "avg"]
    output: tuple[int, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Mean(Op):
    """Mean over dimensions (batch not counted), kept as ones or dropped."""

    dims: tuple[int, ...]
    keepdim: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Arithmetic(Op):
    """Two values, with broadcasting as in NumPy (shapes aligned at the end)."""

    function: Literal["add", "sub", "mul", "div", "max", "min"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Constant(Op):
    """A stored array as a value (learned tokens, grids, scalars)."""

    value: Float32


@dataclass(frozen=True, eq=False, kw_only=True)
class Concat(Op):
    dim: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Slice(Op):
    """start, start + step, … < stop along one dimension; the dimension stays."""

    dim: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Reshape(Op):
    """Row-major reshape to `shape`; one entry may be −1."""

    shape: Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Permute(Op):
    dims: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerNorm(Op):
    """Normalisation over the dimension `dim`, then gain and shift along it."""

    dim: int
    eps: float
    scale: Float32 | None = None
    shift: Float32 | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Pad(Op):
    """Padding of the last two dimensions, (top, bottom, left, right); negative amounts crop."""

    mode: Literal["constant", "reflect", "replicate", "circular"]
    amounts: tuple[int, int, int, int]
    value: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Upsample(Op):
    """Resampling of the last two dimensions to `output`, or where that is 0 to ⌊input · factor⌋.

    `factor` is what PyTorch maps coordinates with when a scale factor was passed; 0 means output/input.
    """

    mode: Literal["nearest", "bilinear"]
    output: tuple[int, int]
    factor: tuple[float, float] = (0.0, 0.0)
    align_corners: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Softmax(Op):
    dim: int


# ---------------------------------------------------------------------------------------------- program


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """How a picture becomes the input: cover `size`, keep its centre, scale to 0..1, subtract mean, divide by std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]


Storage = Literal["f16", "f32"]


@dataclass(frozen=True, eq=False)
class Program:
    """A whole network, ready to be stored or run. A record that is one object in several operations is stored once."""

    input_shape: Shape  # without the batch: (C, H, W), (C, L) or (F,)
    ops: tuple[Op, ...]
    output: int = -1  # value that is the result; −1: of the last operation
    storage: Storage = "f16"  # of every real number in the file
    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None

    MAX_RANK: ClassVar[int] = 6

    @property
    def output_value(self) -> int:
        return len(self.ops) if self.output < 0 else self.output

    def weighted(self) -> Iterator[Conv | Linear]:
        for op in self.ops:
            if isinstance(op, Conv | Linear):
                yield op


_Layer = TypeVar("_Layer", bound=Conv | Linear)


def fold_scales(op: _Layer) -> _Layer:
    """The same operation in stored form: one scale per filter moved from the record into `op.scale`.

    A `Binary` loses its scale. A `Stacked` keeps scale[t, i] / scale[t, 0], whose first column is 1 and is
    not stored. What is stored depends on the shapes alone, never on the values. A first scale that is tiny beside
    the others is raised to 2⁻¹⁵ of the largest, an error below the resolution of fp16 that keeps every stored ratio
    finite.
    """
    weight = op.weight
    if isinstance(weight, Stacked):
        weight = weight.compact()
    if isinstance(weight, Dense) or weight.scale is None:
        return replace(op, weight=weight)
    if isinstance(weight, Binary):
        own = weight.scale
        folded: Weight = Binary(weight.signs)
    else:
        own = weight.scale[:, 0].astype(np.float32)
        largest = np.abs(weight.scale).max(axis=1)
        floor = np.where(largest > 0, largest * np.float32(2**-15), np.float32(1))
        own = np.where(np.abs(own) < floor, np.where(own < 0, -floor, floor), own).astype(np.float32)
        ratios = (weight.scale / own[:, None]).astype(np.float32)
        ratios[:, 0] = 1
        zero = largest == 0  # a filter that is zero altogether: the channel scale says so
        ratios[zero] = 1
        folded = replace(weight, scale=None if weight.blocks == 1 else ratios)
        own = np.where(zero, np.float32(0), own).astype(np.float32)
    scale = own if op.scale is None else (op.scale * own).astype(np.float32)
    return replace(op, weight=folded, scale=scale)

"""Bits and operations, counted from records: what is stored and computed, never a formula beside it.

Two accountings live here. `weight_bits` counts what a file holds. `paper_bits` counts as the paper's tables do:
32-bit numbers, three of them per entry of P.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from subbit import bits
from subbit.records import Binary, Dense, Shape, Stacked, Storage, Weight

STORAGE_BITS: dict[Storage, int] = {"f16": 16, "f32": 32}
FLOAT_BITS = 32  # of a number in the dense network, and in the paper's count
PAPER_ENTRY_BITS = 3 * FLOAT_BITS  # one non-zero of P: row, column and value


@dataclass(frozen=True)
class Bits:
    """Stored bits of one layer or of all."""

    filters: int = 0  # signs, bank or dense values
    indices: int = 0  # which shared filter each block takes
    scales: int = 0  # scaling factors, per block or per filter
    rest: int = 0  # biases, BatchNorm, everything else

    @property
    def total(self) -> int:
        return self.filters + self.indices + self.scales + self.rest

    def __add__(self, other: Bits) -> Bits:
        return Bits(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def weight_bits(weight: Weight, storage: Storage = "f16") -> Bits:
    """Bits of a weight record with real numbers in `storage`.

        weight_bits(Binary(signs)).total == signs.size

    Of a `Stacked` record, the first scale of every filter is not counted: it folds into the channel's scale.
    """
    real = STORAGE_BITS[storage]
    if isinstance(weight, Dense):
        return Bits(filters=real * weight.values.size)
    if isinstance(weight, Binary):
        return Bits(filters=weight.signs.size, scales=0 if weight.scale is None else real * weight.scale.size)
    c_out, k = weight.shape[0], weight.blocks
    return Bits(
        filters=weight.bank.size * (1 if weight.binary else real),
        indices=0 if weight.fixed else bits.index_width(weight.filters) * weight.index.size,
        scales=0 if weight.scale is None else real * (k - 1) * c_out,
    )


def paper_bits(weight: Weight) -> int:
    """Bits of a convolution's weight in the accounting of the paper's tables.

    A binary bank costs d²·s·m and each non-zero of P three 32-bit numbers; without scaling factors P is k·m bits per
    filter. A real-valued bank (LegoNet) has its coefficient tensor counted densely, as its published ratio does.
    """
    if isinstance(weight, Dense):
        return FLOAT_BITS * weight.values.size
    if isinstance(weight, Binary):
        return weight.signs.size + (0 if weight.scale is None else FLOAT_BITS * weight.scale.size)
    c_out, k = weight.shape[0], weight.blocks
    dense_p = k * weight.filters * c_out
    if not weight.binary:
        return FLOAT_BITS * (weight.bank.size + dense_p)
    return weight.bank.size + (dense_p if weight.scale is None else PAPER_ENTRY_BITS * k * c_out)


@dataclass(frozen=True)
class Operations:
    """Multiply-adds, or additions where weights are ±1, of one layer for one input."""

    dense: int = 0  # of the plain convolution
    transform: int = 0  # input blocks with shared filters; the whole convolution if nothing is shared
    merge: int = 0  # choosing, scaling and adding the results

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def operations(weight: Weight, positions: int, groups: int = 1) -> Operations:
    """Operations of a layer whose output has `positions` places (1 for a linear layer on one row).

    A group of the convolution needs no more results per block than it has filters, so a bank that is larger than
    that (depthwise layers) is not charged in full.
    """
    dense = _size(weight.shape) * positions
    if not isinstance(weight, Stacked):
        return Operations(dense, transform=dense)
    c_out, k = weight.shape[0], weight.blocks
    filters = min(weight.filters, c_out // groups)
    filter_size = _size(weight.bank.shape[1:])
    return Operations(dense, transform=groups * k * filters * filter_size * positions, merge=k * c_out * positions)


def _size(shape: Shape) -> int:
    size = 1
    for extent in shape:
        size *= int(extent)
    return size

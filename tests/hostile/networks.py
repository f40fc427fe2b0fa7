"""Sound networks of random geometry, for kernels that must stay inside their buffers whatever the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from subbit import records as r
from subbit.format import encode

Layer = TypeVar("Layer", bound=r.Conv | r.Linear)


class Networks:
    """An endless choice of single operations, the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def files(self, count: int) -> Iterator[bytes]:
        for i in range(count):
            yield encode(self.pooling() if i % 5 == 0 else self.linear() if i % 5 == 1 else self.convolution())

    def pick(self, *choices: int) -> int:
        return int(self.rng.choice(choices))

    def pair(self, *choices: int) -> tuple[int, int]:
        return self.pick(*choices), self.pick(*choices)

    def sides(self) -> tuple[int, int]:
        """Around the widths of registers, and around nothing."""
        return self.pair(1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33)

    def weight(self, out: int, channels: int, *kernel: int) -> r.Weight:
        shape = (out, channels, *kernel)
        kind = self.pick(0, 1, 2, 3)
        if kind == 0:
            return r.Dense(self.rng.standard_normal(shape).astype(np.float32))
        if kind == 1:
            return r.Binary(self.signs(*shape))
        divisors = [blocks for blocks in range(1, channels + 1) if channels % blocks == 0]
        blocks, filters = self.pick(*divisors), self.pick(1, 2, 3, 5, 8, 17)
        bank = self.signs(filters, channels // blocks, *kernel)
        index = self.rng.integers(0, filters, (out, blocks))
        scale = self.rng.standard_normal((out, blocks)).astype(np.float32) if self.pick(0, 1) else None
        return r.Stacked(bank if kind == 2 else bank.astype(np.float32), index, scale)

    def signs(self, *shape: int) -> r.Int8:
        return np.where(self.rng.standard_normal(shape) >= 0, 1, -1).astype(np.int8)

    def convolution(self) -> r.Program:
        kernel, stride, dilation = self.pair(1, 1, 2, 3, 3, 5), self.pair(1, 1, 2, 3), self.pair(1, 1, 1, 2)
        padding = (*self.pair(0, 1, 2), *self.pair(0, 1, 2, 4))
        ordinary = self.pick(0, 1, 3)  # what most networks are made of, and kernels have short cuts for
        if ordinary:
            kernel, stride, dilation, padding = (ordinary,) * 2, (1, 1), (1, 1), (ordinary // 2,) * 4
        reach = [dilation[i] * (kernel[i] - 1) + 1 - padding[2 * i] - padding[2 * i + 1] for i in range(2)]
        height, width = (max(side, least) for side, least in zip(self.sides(), reach, strict=True))
        groups = self.pick(1, 1, 2, 3)
        channels, out = self.pick(1, 2, 3, 4, 6, 8, 17, 33), groups * self.pick(1, 2, 3, 6, 9)
        op = r.Conv(
            inputs=(0,), weight=self.weight(out, channels, *kernel), stride=stride, padding=padding, dilation=dilation,
            groups=groups, binary_input=bool(self.pick(0, 0, 1)),
            shift=self.rng.standard_normal(out).astype(np.float32),
        )  # fmt: skip
        op = self.rounded(op)
        ops: tuple[r.Op, ...] = (op, r.Activation(inputs=(1,), function="relu6"))
        return r.Program((groups * channels, height, width), (*ops, *self.behind(op)))

    def rounded(self, op: Layer) -> Layer:
        """The layer, or, where its filters allow that, perhaps the same on levels."""
        signs = isinstance(op.weight, r.Binary) or (isinstance(op.weight, r.Stacked) and op.weight.binary)
        if not signs or op.binary_input or self.pick(0, 1):
            return op
        return replace(op, levels=r.Levels(0.05, bool(self.pick(0, 1))))

    def behind(self, op: r.Conv) -> tuple[r.Op, ...]:
        """Behind a layer on levels perhaps another one, so that bytes are all that lies between; and a sum with it."""
        if op.levels is None or self.pick(0, 1):
            return ()
        channels = op.weight.shape[0]
        pool = r.Pool(inputs=(2,), kind="max", kernel=(1, 1), stride=self.pair(1, 2))
        first = r.Conv(inputs=(3,), weight=r.Binary(self.signs(channels, channels, 1, 1)), levels=op.levels)
        last = r.Conv(inputs=(4,), weight=r.Binary(self.signs(channels, channels, 1, 1)), levels=op.levels)
        return pool, first, last, r.Arithmetic(inputs=(5, 3), function="add")

    def huge_files(self, count: int) -> Iterator[bytes]:
        """Geometries up to the limits of the format, most of them too large to run: only their plans are made."""
        for _ in range(count):
            yield encode(self.huge())

    def huge(self) -> r.Program:
        kernel = self.pick(1, 3, 64, 128), self.pick(1, 3, 64)
        reach = [self.pick(1, 1, 2, 32, 33), self.pick(1, 1, 32, 33)]  # dilations
        stride = self.pair(1, 1, 2, 16, 17)
        rest = self.pick(0, 1, 7), self.pick(0, 1, 7)  # what padding leaves beyond one window
        padding = [max(0, reach[i] * (kernel[i] - 1) + rest[i]) // 2 for i in range(2)]
        groups = self.pick(1, 1, 2, 2**12)
        channels, out = self.pick(1, 3, 16), groups * self.pick(1, 3)
        room = 2**28 // max(groups * channels, out)  # elements of a plane
        width = min(self.pick(1, 7, 2**12, 2**20, 2**24), room)
        height = min(self.pick(1, 7, 2**12, 2**24), room // width)
        weight = self.weight(out, channels, *kernel) if groups < 3 else r.Binary(self.signs(out, channels, 1, 1))
        op = r.Conv(
            inputs=(0,), weight=weight, stride=stride, padding=(padding[0],) * 2 + (padding[1],) * 2,
            dilation=(reach[0], reach[1]), groups=groups, binary_input=bool(self.pick(0, 1)),
        )  # fmt: skip
        return r.Program((groups * channels, height, width), (self.rounded(op),))

    def linear(self) -> r.Program:
        features, rows = self.pick(1, 3, 4, 15, 16, 17, 64, 65, 130), self.pick(1, 1, 2, 5, 16, 17)
        weight = self.weight(self.pick(1, 2, 5, 16, 17, 40), features)
        op = r.Linear(inputs=(0,), weight=weight, binary_input=bool(self.pick(0, 0, 1)))
        return r.Program((rows, features) if rows > 1 else (features,), (self.rounded(op),))

    def pooling(self) -> r.Program:
        kernel = self.pair(1, 2, 2, 3, 5)
        padding = kernel[0] // 2 * self.pick(0, 1), kernel[1] // 2 * self.pick(0, 1)
        height, width = (max(side, least) for side, least in zip(self.sides(), kernel, strict=True))
        op = r.Pool(
            inputs=(0,), kind="max" if self.pick(0, 1) else "avg", kernel=kernel, stride=self.pair(1, 2, 2, 3),
            padding=padding, ceil_mode=bool(self.pick(0, 1)), count_include_pad=bool(self.pick(0, 1)),
        )  # fmt: skip
        return r.Program((self.pick(1, 2, 3, 4), height, width), (op,))

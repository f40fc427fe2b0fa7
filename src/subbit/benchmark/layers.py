"""Where the time of a packed network goes, layer by layer and stage by stage, beside what the machine could do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from subbit.accounting import operations
from subbit.format import decode
from subbit.records import Binary, Conv, Float32, Linear, Op, Shape, Stacked
from subbit.runtime import Limits, Network, Times
from subbit.shapes import value_shapes

MIN_ROUNDS = 5


@dataclass(frozen=True)
class LayerTime:
    """One operation: its seconds per image, and the arithmetic that it stands for."""

    name: str
    kind: str
    kernel: str
    times: Times
    operations: int  # multiply-adds, or additions of ±1 weights, of the transform; 0 where there are no weights
    limit: float  # of these per second on this machine; 0 where unknown

    @property
    def rest(self) -> float:
        """Seconds outside the named stages."""
        return max(0.0, self.times.total - self.times.build - self.times.look_up - self.times.merge)

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.times.total if self.times.total else 0.0

    @property
    def share(self) -> float:
        """Of the machine's limit; 0 where that is unknown."""
        return self.rate / self.limit if self.limit else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "kernel": self.kernel,
            "seconds": self.times._asdict() | {"rest": self.rest},
            "operations": self.operations,
            "limit": self.limit,
            "share": self.share,
        }


def layer_times(net: Network, x: Float32, limits: Limits, seconds: float = 1.0) -> list[LayerTime]:
    """Medians over images, for about `seconds`; `x` is a batch."""
    rounds: list[list[Times]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < MIN_ROUNDS or time.perf_counter() < end:
        rounds.extend(net.times(image) for image in x)
    medians = np.median(np.asarray(rounds), axis=0)
    program = decode(net.data)
    shapes = value_shapes(program)
    return [
        LayerTime(
            name=done.name,
            kind=done.kind,
            kernel=done.kernel,
            times=Times(*map(float, spent)),
            operations=_operations(op, shapes[i + 1]),
            limit=_limit(op, limits),
        )
        for i, (op, done, spent) in enumerate(zip(program.ops, net.operations, medians, strict=True))
    ]


def _operations(op: Op, shape: Shape) -> int:
    if not isinstance(op, Conv | Linear):
        return 0
    groups = op.groups if isinstance(op, Conv) else 1
    return operations(op.weight, prod(shape) // op.weight.shape[0], groups).transform


def _limit(op: Op, limits: Limits) -> float:
    if not isinstance(op, Conv | Linear):
        return 0.0
    if op.binary_input:
        return limits.popcounts
    signs = isinstance(op.weight, Binary) or (isinstance(op.weight, Stacked) and op.weight.binary)
    if op.levels is not None:
        return 2 * limits.look_ups  # sums of 16 bits instead of 32
    return limits.look_ups if signs else limits.multiply_adds

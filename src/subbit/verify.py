"""Is this file that model? Every operation of a packed network, compared with PyTorch one by one.

    result = compare(subbit.load("net.sbit"), model, x)
    assert result.ok, result.first_departure

A packed network departs from its model for a few reasons, and each has its own column. All are local: an
operation gets the values that its inputs should have, so an error shows where it arises, not in all that follows.

* **packing**: the operation with exact numbers against the value in the PyTorch model. Folding costs a few roundings.
* **storage**: the operation with the numbers of the file against the same with exact ones. With fp16 that is its
  rounding; a file of another checkpoint shows here.
* **levels**: of a layer that computes in integers, the operation on rounded inputs against the same in fp32. What is
  too much depends on the network, so nothing departs here: look at the classes, with `--images`.
* **core**: what the C core computed from its own inputs against the plain PyTorch reference of the operation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from subbit.errors import ModelError
from subbit.format import decode
from subbit.nn.lowering.tracing import OutputKey, evaluating, run_graph
from subbit.nn.pack import Packed, check_trace, to_packed
from subbit.nn.reference import run_op
from subbit.records import Conv, Linear, Op, Program, Storage
from subbit.runtime import Network

TOLERANCE = 1e-4  # of the largest value: packing and core
STORAGE_TOLERANCE: dict[Storage, float] = {"f32": 1e-4, "f16": 2e-2}


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference, and the same relative to the largest expected value."""

    absolute: float
    relative: float

    @classmethod
    def between(cls, expected: Tensor, got: Tensor) -> Difference:
        absolute = float((expected - got).abs().max())
        if absolute == 0:
            return cls(0.0, 0.0)
        # A value that is zero throughout has no scale of its own; a NaN anywhere makes both numbers NaN.
        return cls(absolute, absolute / max(float(expected.abs().max()), 1e-6))


@dataclass(frozen=True)
class Check:
    """One operation."""

    value: int  # that it writes
    kind: str
    name: str  # module path, "" for operations without one
    kernel: str  # that the core chose
    packing: Difference | None  # None: PyTorch has no such value, for instance between two folded operations
    storage: Difference
    levels: Difference | None  # None: the operation computes in fp32
    core: Difference
    departs: tuple[str, ...]  # the columns beyond their tolerance

    @property
    def title(self) -> str:
        return f"{self.name} ({self.kind})" if self.name else f"value {self.value} ({self.kind})"


@dataclass(frozen=True)
class Verification:
    """The comparison of a file with a model."""

    checks: tuple[Check, ...]
    output: Difference  # of a normal run of the core against the model, everything included
    agreement: float | None  # share of inputs with the same largest output, for networks that give one row
    tolerance: float
    storage_tolerance: float

    @property
    def first_departure(self) -> Check | None:
        return next((check for check in self.checks if check.departs), None)

    @property
    def ok(self) -> bool:
        return self.first_departure is None

    def to_dict(self) -> dict[str, Any]:
        first = self.first_departure
        return {"ok": self.ok, "first_departure": first.title if first else None, **asdict(self)}


def compare(
    net: Network, model: nn.Module, x: Tensor, *, tolerance: float = TOLERANCE, output: OutputKey = None
) -> Verification:
    """Run `x` through the model, the reference and the core, and compare all values.

        compare(subbit.load("net.sbit"), model, torch.randn(2, 3, 32, 32)).ok

    `x` is a batch; a few inputs are enough. `output` names the output that was packed, of a model that gives several.
    The model is taken in eval mode and not changed.
    """
    if tuple(x.shape[1:]) != net.input_shape or not len(x):
        raise ModelError(
            f"inputs of shape {tuple(x.shape)}: the file takes (N, {', '.join(map(str, net.input_shape))})"
        )
    stored = decode(net.data)
    packed = to_packed(model, stored.input_shape, stored.storage, output=output, batch=len(x))
    _check_structure(stored, packed.program)
    x = x.detach().to("cpu", torch.float32)
    check_trace(model, packed.trace, x, output)
    with torch.no_grad():
        sides = _Sides(net, stored, packed, model, x)
        limits = {"packing": tolerance, "storage": STORAGE_TOLERANCE[stored.storage], "core": tolerance}
        checks = tuple(sides.check(number, limits) for number in range(1, len(stored.ops) + 1))
        given = torch.from_numpy(net(x.numpy()))
    wanted = sides.exact[packed.program.output_value]
    agreement = float((given.argmax(1) == wanted.argmax(1)).float().mean()) if given.dim() == 2 else None
    return Verification(checks, Difference.between(wanted, given), agreement, tolerance, limits["storage"])


class _Sides:
    """All values of a batch: as PyTorch has them, and as the core computes them."""

    def __init__(self, net: Network, stored: Program, packed: Packed, model: nn.Module, x: Tensor) -> None:
        self.stored, self.own, self.batch = stored.ops, packed.program.ops, len(x)
        self.operations = net.operations
        self.core = [x, *(torch.from_numpy(value) for value in net.values(x.numpy()))]
        with evaluating(model):
            found = run_graph(packed.trace, model, x, packed.origins.values())
        self.torch = {value: found[node] for value, node in packed.origins.items()}
        self.exact = [x]  # PyTorch's values, and those of the reference where PyTorch has none
        for number, op in enumerate(self.own, start=1):
            value = self.torch.get(number)
            self.exact.append(self._run(op, self.exact) if value is None else value)

    def check(self, number: int, limits: dict[str, float]) -> Check:
        op, own = self.stored[number - 1], self.own[number - 1]
        plain = self._run(own, self.exact)
        packing = Difference.between(self.torch[number], plain) if number in self.torch else None
        rounds = isinstance(op, Conv | Linear) and op.levels is not None
        stored = self._run(replace(op, levels=None) if rounds else op, self.exact)  # type: ignore[call-arg]
        storage = Difference.between(plain, stored)
        levels = Difference.between(stored, self._run(op, self.exact)) if rounds else None
        core = Difference.between(self._run(op, self.core), self.core[number])
        columns = {"packing": packing, "storage": storage, "core": core}
        # "not ≤" rather than ">", so that NaN departs
        departs = tuple(name for name, d in columns.items() if d is not None and not d.relative <= limits[name])
        kernel = self.operations[number - 1].kernel
        return Check(number, type(op).__name__, op.name or own.name, kernel, packing, storage, levels, core, departs)

    def _run(self, op: Op, values: list[Tensor]) -> Tensor:
        return run_op(op, [values[i] for i in op.inputs], self.batch)


def _check_structure(stored: Program, own: Program) -> None:
    """A file of another architecture has nothing to compare."""
    for number, (left, right) in enumerate(zip(stored.ops, own.ops, strict=False), start=1):
        if _structure(left) != _structure(right):
            raise ModelError(
                f"the file is not of this network: operation {number} is {_describe(left)} in the file and "
                f"{_describe(right)} in the model"
            )
    if len(stored.ops) != len(own.ops) or stored.output_value != own.output_value:
        raise ModelError(
            f"the file is not of this network: it has {len(stored.ops)} operations, the model {len(own.ops)}"
        )


def _structure(op: Op) -> tuple[Any, ...]:
    weight = op.weight if isinstance(op, Conv | Linear) else None
    shape = () if weight is None else (type(weight).__name__, weight.shape)
    return type(op).__name__, op.inputs, *shape


def _describe(op: Op) -> str:
    weight = f" {type(op.weight).__name__} {op.weight.shape}" if isinstance(op, Conv | Linear) else ""
    return f"{type(op).__name__}{weight} {op.name}".rstrip()

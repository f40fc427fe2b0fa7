"""Convolutions that also do the addition and the activation behind them: the same values as one operation at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from subbit.format import encode
from subbit.records import (
    Activation,
    Arithmetic,
    Constant,
    Conv,
    Dense,
    Float32,
    Levels,
    Op,
    Pool,
    Program,
    Reshape,
    Stacked,
)
from subbit.runtime import load
from tests.test_kernels import CASES, KINDS, ROWS, TOLERANCE, Case, Kind, check


def _conv(case: Case, kind: Kind, inputs: tuple[int, ...] = (0,)) -> Conv:
    conv = case.program(kind).ops[0]
    assert isinstance(conv, Conv)
    return replace(conv, inputs=inputs)


def _residual(case: Case, kind: Kind) -> Program:
    """relu(constant + convolution), the constant being of the output's shape."""
    shape = load(encode(Program((case.channels, *case.size), (_conv(case, kind),))), isa="portable").output_shape
    value = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    ops = (
        Constant(inputs=(), value=value),
        _conv(case, kind),
        Arithmetic(inputs=(1, 2), function="add"),
        Activation(inputs=(3,), function="relu"),
    )
    return Program((case.channels, *case.size), ops, storage="f32")


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "kernel", ["table", "table 5", "table 6", "lanes", "direct", "depthwise", "fma", "fma rows", "fma lanes"]
)
def test_every_kernel_adds(kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    for case in CASES.values():
        check(_residual(case, KINDS.get(kernel, "stacked")), row)


def sum_of_two(case: Case, kind: Kind) -> Program:
    """relu(convolution + convolution): what the second one adds is read for the last time, and may be written over."""
    other = _conv(case, kind)
    assert other.scale is not None
    ops = (_conv(case, kind), replace(other, scale=-1.5 * other.scale[::-1]), _add(1, 2), _relu(3))
    return Program((case.channels, *case.size), ops, storage="f32")


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "kernel",
    ["table", "table 5", "table 6", "lanes", "direct", "depthwise", "fma", "fma rows", "fma lanes", "xnor", "linear"],
)
def test_every_kernel_adds_to_what_is_there(kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    for case in CASES.values():
        program = sum_of_two(case, KINDS.get(kernel, "stacked"))
        check(program, row)
        x = np.random.default_rng(0).standard_normal(program.input_shape).astype(np.float32)
        net = load(encode(program), isa=row)
        want = load(encode(program), isa="portable").values(x)
        for got, expected in zip(net.values(x), want, strict=True):
            _same(got, expected)
        np.testing.assert_array_equal(net(x, threads=2), net(x))


@pytest.mark.parametrize("row", ROWS)
def test_signs_of_the_input(row: str) -> None:
    for name in ("seven", "odd_channels", "stride2_odd"):
        program = _residual(CASES[name], "binary")
        ops = tuple(replace(op, binary_input=True) if isinstance(op, Conv) else op for op in program.ops)
        check(replace(program, ops=ops), row)


@pytest.mark.parametrize("row", ROWS)
def test_a_pixel_of_real_values(row: str) -> None:
    case = Case(24, (1, 1), 10, kernel=(1, 1), padding=(0, 0, 0, 0))
    check(_residual(case, "dense"), row)


CASE = Case(16, (9, 11), 16, blocks=2, filters=8)
ONE = Case(16, (9, 11), 16, blocks=1)
STRIDED = replace(CASE, stride=(2, 2))
SHORTCUT = replace(STRIDED, kernel=(1, 1), padding=(0, 0, 0, 0))


def _add(left: int, right: int) -> Arithmetic:
    return Arithmetic(inputs=(left, right), function="add")


def _relu(value: int) -> Activation:
    return Activation(inputs=(value,), function="relu")


NETWORKS: dict[str, tuple[Op, ...]] = {
    "identity": (_conv(CASE, "stacked"), _relu(1), _conv(CASE, "stacked", (2,)), _add(3, 0), _relu(4)),
    "shortcut_behind_the_branch": (
        _conv(STRIDED, "stacked"), _relu(1), _conv(CASE, "stacked", (2,)), _conv(SHORTCUT, "stacked"),
        _add(3, 4), _relu(5),
    ),
    "shortcut_before_the_branch": (
        _conv(SHORTCUT, "stacked"), _conv(STRIDED, "stacked"), _relu(2), _conv(CASE, "stacked", (3,)),
        _add(1, 4), _relu(5),
    ),
    "the_other_comes_later": (_conv(CASE, "stacked"), _relu(0), _add(1, 2), _relu(3)),
    "read_twice": (_conv(CASE, "stacked"), _add(0, 1), _add(1, 2)),
    "with_itself": (_conv(CASE, "stacked"), _add(1, 1), _relu(2)),
    "two_sums": (_conv(CASE, "stacked"), _add(1, 0), _add(2, 0), _relu(3)),
    "activation_before_the_sum": (_conv(CASE, "stacked"), _relu(1), _add(2, 0), _relu(3)),
    "two_activations": (_conv(CASE, "stacked"), _relu(1), Activation(inputs=(2,), function="sigmoid")),
    "not_a_limit": (_conv(CASE, "stacked"), _add(0, 1), Activation(inputs=(2,), function="silu")),
    "a_difference": (_conv(CASE, "stacked"), Arithmetic(inputs=(0, 1), function="sub"), _relu(2)),
    "per_channel": (Constant(inputs=(), value=np.ones((16, 1, 1), np.float32)), _conv(CASE, "stacked"), _add(1, 2)),
    "something_in_between": (
        _conv(CASE, "stacked"), Pool(inputs=(0,), kind="max", kernel=(2, 2), stride=(2, 2)), _add(1, 0), _relu(3),
        _conv(CASE, "stacked", (2,)), _relu(4),
    ),
    "added_is_overwritten_next": (_conv(CASE, "stacked"), _relu(0), _conv(CASE, "stacked", (1,)), _add(2, 3), _relu(2)),
    "the_sum_is_the_result": (_conv(CASE, "stacked"), _add(0, 1)),
    "added_is_read_in_between": (_conv(CASE, "stacked"), _conv(ONE, "stacked"), _relu(1), _add(1, 2), _add(3, 4)),
    "added_is_read_later": (_conv(CASE, "stacked"), _conv(ONE, "stacked"), _add(2, 1), _relu(1), _add(3, 4)),
    "added_is_what_the_convolution_reads": (_relu(0), _conv(CASE, "stacked", (1,)), _add(1, 2), _relu(3)),
    "added_in_another_shape_too": (
        _conv(CASE, "stacked"), Reshape(inputs=(1,), shape=(16, 9, 11)), _conv(ONE, "stacked", (2,)), _add(1, 3),
    ),
    "sums_of_sums": (
        _conv(CASE, "stacked"), _conv(ONE, "stacked"), _add(1, 2), _relu(3), _conv(CASE, "stacked", (4,)), _add(5, 4),
        _conv(ONE, "stacked", (6,)), _add(6, 7), _conv(CASE, "stacked"), _add(8, 9), _relu(10),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ["portable", *ROWS])
@pytest.mark.parametrize("name", NETWORKS)
def test_fused_and_one_by_one(name: str, row: str) -> None:
    program = Program((16, 9, 11), NETWORKS[name], storage="f32")
    x = np.random.default_rng(0).standard_normal(program.input_shape).astype(np.float32)
    net = load(encode(program), isa=row)
    values = net.values(x)
    _same(net(x), values[-1], exact=row == "portable")  # which rounds behind every operation
    for stage, want in zip(values, load(encode(program), isa="portable").values(x), strict=True):
        _same(stage, want)


def _same(got: Float32, want: Float32, *, exact: bool = False) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=0 if exact else TOLERANCE * np.abs(want).max())


@pytest.mark.parametrize("row", ROWS)
def test_a_sum_passes_nan_on(row: str) -> None:
    program = Program((16, 9, 11), NETWORKS["the_sum_is_the_result"], storage="f32")
    x = np.zeros(program.input_shape, np.float32)
    x[3, 4, 5] = np.nan
    assert np.isnan(load(encode(program), isa=row)(x)[3, 4, 5])


def test_dense_stem_adds_as_well() -> None:
    """A first convolution of whole registers, straight to the output."""
    weight = Dense(np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32))
    ops = (
        Constant(inputs=(), value=np.random.default_rng(1).standard_normal((8, 32, 32)).astype(np.float32)),
        Conv(inputs=(0,), weight=weight, padding=(1, 1, 1, 1)),
        _add(1, 2),
    )
    for row in ROWS:
        check(Program((3, 32, 32), ops, storage="f32"), row)


# ------------------------------------------------------------------------- convolutions and maxima in turns

POOLS = {
    "of_residual_networks": Pool(inputs=(2,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    "halves": Pool(inputs=(2,), kind="max", kernel=(2, 2), stride=(2, 2)),
    "overlapping": Pool(inputs=(2,), kind="max", kernel=(5, 3), stride=(1, 1), padding=(2, 1)),
    "with_gaps": Pool(inputs=(2,), kind="max", kernel=(2, 2), stride=(5, 3)),
    "dilated": Pool(inputs=(2,), kind="max", kernel=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(4, 2)),
    "over_the_end": Pool(inputs=(2,), kind="max", kernel=(4, 4), stride=(3, 3), padding=(2, 2), ceil_mode=True),
}


def stem(pool: Pool, height: int, width: int, channels: int, stride: int, size: int, groups: int = 1) -> Program:
    """A dense convolution with so large an output that the maximum behind it is done band by band."""
    random = np.random.default_rng(5)
    weight = Dense(random.standard_normal((channels, 4 // groups, size, size)).astype(np.float32))
    padding = (size // 2,) * 4
    conv = Conv(inputs=(0,), weight=weight, stride=(stride, stride), padding=padding, groups=groups)
    return Program((4, height, width), (conv, _relu(1), pool), storage="f32")


@pytest.mark.parametrize("row", ["portable", *ROWS])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("kernel", ["fma", "fma rows"])
def test_maxima_in_turns(kernel: str, name: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    for program in (stem(POOLS[name], 160, 96, 10, 1, 3), stem(POOLS[name], 424, 203, 8, 2, 7, groups=2)):
        data = encode(program)
        x = np.random.default_rng(0).standard_normal((2, *program.input_shape)).astype(np.float32)
        net = load(data, isa=row)
        assert row == "portable" or net.operations[0].kernel == kernel
        want = net.values(x)[-1]  # one operation after the other
        np.testing.assert_array_equal(net(x), want)
        np.testing.assert_array_equal(net(x, threads=2), want)
        np.testing.assert_array_equal(net(x[1], threads=2), want[1])
        _same(want, load(data, isa="portable").values(x)[-1])
        times = net.times(x[0])
        assert times[0].total > 0
        assert times[2].total > 0


def levels_behind(program: Program, step: float) -> Conv:
    """A layer in integers that reads what a `stem` of eight channels gives."""
    signs = np.where(np.random.default_rng(1).standard_normal((6, 4, 3, 3)) > 0, 1, -1).astype(np.int8)
    index = np.arange(24).reshape(12, 2) % 6
    weight = Stacked(bank=signs, index=index, scale=np.ones((12, 2), np.float32))
    return Conv(inputs=(len(program.ops),), weight=weight, padding=(1, 1, 1, 1), levels=Levels(step))


@pytest.mark.parametrize("row", ["portable", *ROWS])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("kernel", ["fma", "fma rows"])
def test_maxima_of_levels_in_turns(kernel: str, name: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer behind the maximum computes in integers: no fp32 numbers are between the two."""
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    program = stem(POOLS[name], 424, 203, 8, 2, 7)
    layer, other = levels_behind(program, 0.2), levels_behind(program, 0.1)
    for ops in ((*program.ops, layer), (*program.ops, layer, other, _add(4, 5))):
        data = encode(replace(program, ops=ops))
        x = np.random.default_rng(0).standard_normal((2, *program.input_shape)).astype(np.float32)
        net = load(data, isa=row)
        assert row == "portable" or net.operations[0].kernel == kernel
        want = net.values(x)[-1]
        np.testing.assert_array_equal(net(x), want)
        np.testing.assert_array_equal(net(x[1], threads=2), want[1])


def test_a_maximum_of_what_others_read_too() -> None:
    program = stem(POOLS["of_residual_networks"], 160, 96, 10, 1, 3)
    pool = program.ops[-1]
    again = (
        (*program.ops, Pool(inputs=(2,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)), _add(3, 4)),
        (*program.ops[:2], _relu(0), replace(pool, inputs=(2,)), _add(4, 4), replace(pool, inputs=(3,))),
        (*program.ops[:2], replace(pool, inputs=(1,))),
    )
    x = np.random.default_rng(0).standard_normal(program.input_shape).astype(np.float32)
    for ops in again:
        net = load(encode(replace(program, ops=ops)))
        np.testing.assert_array_equal(net(x), net.values(x)[-1])

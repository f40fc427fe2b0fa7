"""Layers on levels: every row of the kernel table gives the numbers of the reference, bit for bit, in every network.

The first convolution of a real network stays in fp32, where rows differ by the order of their sums; networks here have
none, so that whole networks can be compared exactly as well.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import subbit
from subbit import records as r
from subbit.calibration import (
    MOST_LOST,
    Sample,
    best_levels,
    calibrated,
    lost_share,
    non_negative,
    takes_levels,
    without_levels,
)
from subbit.errors import PackError
from subbit.format import decode, encode, sizes
from subbit.methods import BWN, SLBF
from subbit.nn.reference import round_to_levels, run
from subbit.records import Float32, Levels, Program
from subbit.runtime.library import features
from tests.core_cases import CASES as CORE_CASES
from tests.test_kernels import CASES, ROWS, Case

EVERY_ROW = ("portable", *ROWS)
DOTS = ("dot", "dot rows", "dot rows lanes", "dot lanes")
LEVELS = {"unsigned": Levels(0.02), "signed": Levels(0.03, signed=True)}


def with_levels(case: Case, kind: Literal["binary", "stacked"], levels: Levels) -> Program:
    program = case.program(kind)
    layer = program.ops[0]
    assert isinstance(layer, r.Conv)
    return replace(program, ops=(replace(layer, levels=levels), *program.ops[1:]))


def inputs(program: Program, count: int = 2) -> Float32:
    return np.random.default_rng(1).standard_normal((count, *program.input_shape)).astype(np.float32)


def check_exactly(program: Program, row: str, x: Float32 | None = None) -> str:
    """Every value and the result of a normal run equal the reference; the kernel of the first operation."""
    data = encode(program)
    x = inputs(program) if x is None else x
    net = subbit.load(data, isa=row)
    want = [value.numpy() for value in run(decode(data), torch.from_numpy(x))]
    for number, (expected, got) in enumerate(zip(want[1:], net.values(x), strict=True), start=1):
        np.testing.assert_array_equal(got, expected, err_msg=f"value {number} on {row}")
    np.testing.assert_array_equal(net(x), want[program.output_value])
    np.testing.assert_array_equal(net(x, threads=2), want[program.output_value])
    return net.operations[0].kernel


# ------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("kind", ["binary", "stacked"])
@pytest.mark.parametrize("sign", LEVELS)
def test_convolutions_equal_the_reference(sign: str, kind: Literal["binary", "stacked"], row: str) -> None:
    kernels = {check_exactly(with_levels(case, kind, LEVELS[sign]), row) for case in CASES.values()}
    assert kernels == {"portable"} if row == "portable" else "table" in kernels


# what is hard about staging the input of a unit for dot products of bytes
WIDE = {
    "units_beside_each_other": Case(5, (6, 300), 6, blocks=1),
    "strided_units_beside_each_other": Case(8, (5, 601), 6, stride=(2, 2), blocks=2),
    "every_third_column_of_units": Case(4, (4, 800), 5, stride=(1, 3), padding=(0, 1, 2, 3)),
    "several_chunks": Case(520, (9, 9), 6, blocks=2, filters=5),
    "several_chunks_of_whole_registers": Case(800, (6, 32), 6, blocks=2, filters=5),
    "units_whose_rows_do_not_fill_registers": Case(384, (27, 14), 6, groups=2, blocks=2),
    "three_quads_of_every_second_column": Case(12, (9, 10), 5, stride=(1, 2)),
    "one_row_of_pixels_in_chunks": Case(1028, (1, 40), 7, kernel=(1, 9), padding=(0, 0, 4, 4), filters=3),
    "units_of_rows": Case(48, (50, 32), 9, blocks=3, filters=13),
    "filters_of_one_block_only": Case(32, (10, 12), 9, blocks=2, filters=40),
    "chunks_of_blocks_that_share_registers": Case(3600, (4, 4), 6, blocks=3, filters=5),
    "an_odd_number_of_rows_with_odd_padding": Case(12, (10, 20), 5, kernel=(3, 2), padding=(0, 3, 1, 0), blocks=2),
    "columns_apart": Case(8, (6, 33), 6, padding=(2, 0, 1, 2), dilation=(1, 2), groups=2),
}

# and for those of few pixels
FEW = {
    "two_blocks_of_a_register": Case(48, (4, 4), 40, blocks=2, filters=35),
    "two_blocks_of_less": Case(18, (3, 4), 9, blocks=2, filters=5),
    "an_odd_number_of_rows_of_four": Case(7, (7, 4), 40),
    "twelve_places_of_rows_of_four": Case(20, (6, 4), 33, padding=(0, 2, 1, 1)),
    "rows_of_four_padded_on_one_side": Case(8, (4, 4), 6, padding=(1, 1, 0, 2), blocks=2),
    "rows_of_four_under_taps_apart": Case(8, (4, 4), 6, padding=(1, 1, 2, 2), dilation=(1, 2), blocks=2),
    "rows_of_four_of_every_second_column": Case(8, (4, 4), 6, stride=(1, 2), padding=(1, 1, 1, 4), blocks=2),
    "four_columns_of_six": Case(8, (4, 6), 6, padding=(1, 1, 0, 0)),
    "four_columns_of_three": Case(8, (4, 3), 6, padding=(1, 1, 1, 2), blocks=2),
    "more_pixels_than_a_register": Case(13, (4, 8), 70),
    "rows_left_over": Case(7, (5, 5), 6, padding=(0, 1, 2, 0)),
    "an_output_of_several_registers": Case(8, (4, 4), 6, padding=(3, 3, 3, 3), blocks=2),
    "every_second_column": Case(6, (3, 10), 5, stride=(1, 2)),
    "columns_of_taps_apart": Case(6, (3, 10), 5, padding=(1, 1, 2, 2), dilation=(1, 2)),
    "five_columns_of_taps": Case(10, (4, 4), 5, kernel=(3, 5), padding=(1, 1, 2, 2), blocks=2),
    "one_pixel": Case(9, (1, 1), 6),
    "an_output_far_wider_than_the_input": Case(8, (1, 1), 6, padding=(5, 5, 5, 5)),
    "wide_margins_around_a_column": Case(8, (12, 1), 6, kernel=(3, 1), padding=(3, 2, 3, 3)),
    "wide_margins_around_two_columns": Case(16, (20, 2), 8, padding=(5, 5, 5, 5)),
    "many_channels_of_two_blocks": Case(1032, (4, 4), 6, blocks=2, filters=5),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kernel", ["table", "lanes", *DOTS, "portable"])
def test_every_shape_on_every_kernel(kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_where_missing(kernel, row)
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    cases = CASES | FEW | (WIDE if kernel in ("dot", "dot rows") else {})
    used = {check_exactly(with_levels(case, "stacked", LEVELS["unsigned"]), row) for case in cases.values()}
    assert kernel in used


def skip_where_missing(kernel: str, row: str) -> None:
    """What no convolution can use on this row, or on this machine, is not tested by what takes its place."""
    has_dot = row == "avx512" and "avx512vnni" in features().split()
    if (kernel in DOTS and not has_dot) or (kernel == "lanes" and row in ("sse2", "neon")):
        pytest.skip(f"no {kernel} on {row} here")


@pytest.mark.parametrize("kernel", DOTS)
@pytest.mark.parametrize("kind", ["binary", "stacked"])
@pytest.mark.parametrize("sign", LEVELS)
def test_dot_products_of_every_kind(
    sign: str, kind: Literal["binary", "stacked"], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed levels may be raised to unsigned ones and the sums lowered again, under filters of both kinds."""
    skip_where_missing(kernel, ROWS[-1])
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    for case in (CASES | WIDE | FEW).values():
        check_exactly(with_levels(case, kind, LEVELS[sign]), ROWS[-1])


@pytest.mark.parametrize("row", ROWS)
def test_a_kernel_can_be_left_out(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine without the instruction would do."""
    monkeypatch.setenv("SUBBIT_KERNEL", "-dot")
    names = ("stride2", "one_by_one_stride2", "blocks_share_registers")
    used = {check_exactly(with_levels(CASES[name], "stacked", LEVELS["signed"]), row) for name in names}
    assert used <= {"table", "lanes", *DOTS} - {"dot"}


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("levels", [Levels(1.0), Levels(1.0, signed=True)], ids=["unsigned", "signed"])
@pytest.mark.parametrize("positive", [True, False])
def test_the_largest_sums_do_not_overflow(positive: bool, levels: Levels, row: str) -> None:
    """Filters of one sign over inputs at the end of the range: 16 bits hold a chunk, and no more."""
    sign = np.int8(1 if positive else -1)
    weight = r.Stacked(np.full((3, 40, 3, 3), sign), np.array([[0, 1], [2, 0], [1, 1]]), None)
    conv = r.Conv(inputs=(0,), weight=weight, padding=(1, 1, 1, 1), levels=levels)
    for number in (1e9, -1e9):
        x = np.full((1, 80, 9, 17), number, np.float32)
        check_exactly(Program((80, 9, 17), (conv,)), row, x)


@pytest.mark.parametrize("levels", [Levels(1.0), Levels(1.0, signed=True)], ids=["unsigned", "signed"])
@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "width"), [("dot rows", 17), ("dot rows lanes", 3), ("dot rows lanes", 4)])
def test_differences_of_rows_fit_bytes(
    kernel: str, width: int, period: int, levels: Levels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows at one end of the range beside rows at the other: sums and differences of them are taken."""
    skip_where_missing(kernel, ROWS[-1])
    x = np.full((1, 16, 7, width), 1e9, np.float32)
    x[:, :, np.arange(7) // period % 2 == 1] = -1e9
    weight = r.Binary(np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (9, 16, 3, 3)))
    conv = r.Conv(inputs=(0,), weight=weight, padding=(1, 1, 1, 1), levels=levels)
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    assert check_exactly(Program((16, 7, width), (conv,)), ROWS[-1], x) == kernel


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kernel", ["", "dot", "dot rows", "table"])
def test_sums_of_31_bits(kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter of 2^23 numbers and some more: its sum fits 32 bits, twice its sum does not."""
    depth = 2_900_000
    conv = r.Conv(inputs=(0,), weight=r.Binary(np.ones((1, depth, 3, 1), np.int8)), levels=Levels(1.0))
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    net = subbit.load(encode(Program((depth, 3, 1), (conv,))), isa=row)
    assert net(np.full((depth, 3, 1), 1e9, np.float32)).item() == np.float32(127 * 3 * depth)


@pytest.mark.parametrize("levels", [Levels(1.0), Levels(1.0, signed=True)], ids=["unsigned", "signed"])
@pytest.mark.parametrize("middle", [-1, 1])
def test_the_largest_filters_of_two_rows_at_once(middle: int, levels: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^21 numbers, as many as `dot rows` takes: what is added up on the way is several times their sum."""
    skip_where_missing("dot rows", ROWS[-1])
    monkeypatch.setenv("SUBBIT_KERNEL", "dot rows")
    depth = 2**21 // 3
    weight = np.ones((1, depth, 3, 1), np.int8)
    weight[:, :, 1] = middle
    conv = r.Conv(inputs=(0,), weight=r.Binary(weight), padding=(1, 1, 0, 0), levels=levels)
    x = np.full((1, depth, 4, 1), 1e9, np.float32)
    x[:, :, 1::2] = -1e9
    assert check_exactly(Program((depth, 4, 1), (conv,)), ROWS[-1], x) == "dot rows"


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("positive", [True, False])
def test_chunks_are_added_in_16_bits_while_their_sums_fit(
    positive: bool, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """258 signs of a kind reach 32,766 over inputs at the end of the range, and 259 would not fit."""
    monkeypatch.setenv("SUBBIT_KERNEL", "table")
    signs = np.full((16, 560, 1, 1), -1, np.int8)
    for number, filter_signs in enumerate(signs):
        filter_signs[: 250 + number] = 1
    conv = r.Conv(inputs=(0,), weight=r.Binary(signs if positive else -signs), levels=Levels(1.0))
    x = np.zeros((1, 560, 5, 17), np.float32)
    x[:, : 250 + 15] = 127
    assert check_exactly(Program((560, 5, 17), (conv,)), row, x) in ("table", "portable")


@pytest.mark.parametrize("kernel", ["", "table"])
@pytest.mark.parametrize("row", EVERY_ROW)
def test_signed_levels_of_one_sign_add_up_beyond_16_bits(
    row: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """511 times -64 fits 16 bits, and 512 times does not."""
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    for shape in ((508, 1, 1), (512, 1, 1), (520, 1, 1), (64, 2, 4), (1040, 1, 1)):
        conv = r.Conv(inputs=(0,), weight=r.Binary(np.full((16, *shape), -1, np.int8)), levels=Levels(1.0, signed=True))
        x = np.full((1, shape[0], 5, 17), -1e9, np.float32)
        check_exactly(Program((shape[0], 5, 17), (conv,)), row, x)


@pytest.mark.parametrize("row", ROWS)
def test_more_filters_than_16_bits_can_number(row: str) -> None:
    generator = np.random.default_rng(0)
    signs = generator.choice(np.array([-1, 1], np.int8), (66000, 8, 1, 1))
    conv = r.Conv(inputs=(0,), weight=r.Binary(signs), levels=Levels(0.02))
    x = generator.random((1, 8, 3, 3), np.float32)
    check_exactly(Program((8, 3, 3), (conv,)), row, x)


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("kernel", ["", *DOTS, "table"])
@pytest.mark.parametrize("name", [name for name in CORE_CASES if name.startswith("levels")])
def test_whole_networks(name: str, kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, residual blocks, pools, two kinds of levels: between layers the levels alone are kept in a normal run."""
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    program = CORE_CASES[name]()
    if name in ("levels_chain", "levels_behind_a_curve"):  # a dense layer and a curve in fp32 differ between the rows
        data = encode(program)
        net, x = subbit.load(data, isa=row), inputs(program)
        np.testing.assert_array_equal(net(x), net.values(x)[-1])
    else:
        check_exactly(program, row)


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("kernel", ["fma", "fma rows", "direct", "depthwise"])
@pytest.mark.parametrize("floats", [True, False], ids=["floats_too", "levels_alone"])
def test_real_layers_write_the_levels_that_follow(
    floats: bool, kernel: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in which the dense layer rounds by itself equals one in which everything is done on its own."""
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    names = ["one_register_rows", "two_registers_per_row", "seven", "odd_width_in_tiles", "stride2_odd", "groups"]
    if kernel == "fma rows":
        names = [*names[:2], *(name for name in CASES if name.startswith("strips_of"))]
    if kernel == "depthwise":
        names = [name for name in CASES if name.startswith("depthwise")]
    for name in names:
        case = CASES[name]
        for levels in LEVELS.values():
            program = case.program("lego" if kernel == "fma" and case.blocks > 1 else "dense")
            weight = r.Binary(np.ones((3, case.out, 1, 1), np.int8))
            ops: tuple[r.Op, ...] = (*program.ops, r.Conv(inputs=(2,), weight=weight, levels=levels))
            if floats:
                ops += (r.Mean(inputs=(2,), dims=(0,), keepdim=True), r.Arithmetic(inputs=(3, 4), function="add"))
            net = subbit.load(encode(replace(program, ops=ops)), isa=row)
            assert row == "portable" or net.operations[0].kernel == kernel
            x = 20 * inputs(program)
            np.testing.assert_array_equal(net(x), net.values(x)[-1], err_msg=name)


@given(data=st.data())
@settings(max_examples=40)
@pytest.mark.parametrize("row", ROWS)
def test_any_convolution(row: str, data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kernel = pick(1, 5), pick(1, 5)
    blocks, groups = pick(1, 4), pick(1, 2)
    case = Case(
        channels=blocks * groups * pick(1, 18),
        size=(pick(kernel[0], 21), pick(kernel[1], 40)),
        out=groups * pick(1, 12),
        kernel=kernel,
        stride=(pick(1, 3), pick(1, 3)),
        padding=(pick(0, 3), pick(0, 3), pick(0, 3), pick(0, 3)),
        dilation=(1, 1) if max(kernel) > 3 else (pick(1, 2), pick(1, 2)),
        groups=groups,
        blocks=blocks,
        filters=pick(1, 9),
    )
    extent = [(k - 1) * d + 1 for k, d in zip(case.kernel, case.dilation, strict=True)]
    if case.size[0] + sum(case.padding[:2]) < extent[0] or case.size[1] + sum(case.padding[2:]) < extent[1]:
        return
    kind: Literal["binary", "stacked"] = "stacked" if data.draw(st.booleans()) else "binary"
    program = with_levels(case, kind, LEVELS["signed" if data.draw(st.booleans()) else "unsigned"])
    with mock.patch.dict(os.environ, SUBBIT_KERNEL=data.draw(st.sampled_from(["", *DOTS, "lanes", "table"]))):
        check_exactly(program, row)


@pytest.mark.parametrize("row", EVERY_ROW)
def test_golden_file_gives_what_it_always_gave(row: str) -> None:
    golden = Path(__file__).parent / "golden"
    recorded, data = np.load(golden / "v1_1.npz"), (golden / "v1_1.sbit").read_bytes()
    np.testing.assert_array_equal(subbit.load(data, isa=row)(recorded["x"]), recorded["y"])
    assert encode(decode(data)) == data


# ------------------------------------------------------------------------------------------------ rounding

HARD = [0.0, -0.0, 0.5, 1.5, 2.5, 126.5, 127.0, 127.49, 1e30, np.inf, np.nan, -0.5, -1.5, -63.5, -64.0, -64.5, -np.inf]


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("signed", [False, True])
def test_rounding(signed: bool, row: str) -> None:
    """Ties to even, limits, NaN to the highest level; an identity layer shows the levels."""
    numbers = np.resize(np.array(HARD, np.float32), (1, 37))
    identity = r.Linear(inputs=(0,), weight=r.Binary(np.ones((1, 1), np.int8)), levels=Levels(1.0, signed))
    got = subbit.load(encode(Program((37, 1), (identity,))), isa=row)(numbers.reshape(1, 37, 1)).ravel()
    low, high = (-64, 63) if signed else (0, 127)
    want = np.clip(np.rint(np.nan_to_num(numbers.ravel(), nan=1e9)), low, high)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(round_to_levels(Levels(1.0, signed), torch.from_numpy(numbers)).numpy().ravel(), want)


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("limit", ["", "relu", "relu6"])
@pytest.mark.parametrize("size", [(3, 3), (4, 16), (8, 32)], ids=str)
def test_far_numbers_are_rounded_by_the_layer_that_makes_them(
    size: tuple[int, int], limit: Literal["", "relu", "relu6"], signed: bool, row: str
) -> None:
    """Beyond all levels and all integers, on either side; one register at a time, and fours of them."""
    scale = np.array([s * 2.0**power for power in (-16, -3, 0, 7, 15) for s in (1, -1)], np.float32)
    ones = r.Binary(np.ones((len(scale), 8, 1, 1), np.int8))
    ops: list[r.Op] = []
    for step in (2.0**-10, 1.0, 2.0**20, 2.0**60):
        ops = [r.Conv(inputs=(0,), weight=ones, scale=scale, levels=Levels(step, signed=True))]
        if limit:
            ops.append(r.Activation(inputs=(1,), function=limit))
        ops.append(
            r.Conv(
                inputs=(len(ops),),
                weight=r.Binary(np.ones((4, len(scale), 1, 1), np.int8)),
                levels=Levels(2.0**-5, signed),
            )
        )
        program = Program((8, *size), tuple(ops))
        check_exactly(program, row, inputs(program) * np.float32(40 * step))


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("size", [(3, 3), (4, 16), (8, 32)], ids=str)
def test_numbers_that_are_not_finite_are_rounded_behind_a_sum(size: tuple[int, int], signed: bool, row: str) -> None:
    """A residual brings them to the layer that rounds: to the highest level, but for what is below all numbers."""
    square, last = (r.Binary(np.ones((channels, 8, 1, 1), np.int8)) for channels in (8, 4))
    ops = (
        r.Conv(inputs=(0,), weight=square, levels=Levels(0.1, signed=True)),
        r.Arithmetic(inputs=(1, 0), function="add"),
        r.Conv(inputs=(2,), weight=last, levels=Levels(0.5, signed)),
    )
    program = Program((8, *size), ops)
    x = inputs(program)
    x.reshape(-1)[::5] = np.resize(
        np.array([np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32), x.reshape(-1)[::5].shape
    )
    check_exactly(program, row, x)


@pytest.mark.parametrize("row", EVERY_ROW)
@pytest.mark.parametrize("size", [(8, 8), (2, 2), (32, 64), (6, 10), (7, 9), (4, 130), (3, 1100), (3, 2504)], ids=str)
def test_pooling_between_layers(size: tuple[int, int], row: str) -> None:
    """Maxima of bytes are those of the numbers, with windows of any kind."""
    pools = [
        r.Pool(inputs=(1,), kind="max", kernel=(2, 2), stride=(2, 2)),
        r.Pool(inputs=(1,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
        r.Pool(inputs=(1,), kind="max", kernel=(2, 2), stride=(1, 1), ceil_mode=True, padding=(1, 1)),
        r.Pool(inputs=(1,), kind="max", kernel=(3, 2), stride=(3, 3), padding=(1, 1), ceil_mode=True, dilation=(1, 2)),
        r.Pool(inputs=(1,), kind="max", kernel=(1, 4), stride=(1, 4), padding=(0, 2), ceil_mode=True),
    ]
    rng = np.random.default_rng(0)

    def signs(*shape: int) -> r.Int8:
        return (2 * rng.integers(0, 2, shape) - 1).astype(np.int8)

    for pool in pools:
        first = r.Conv(
            inputs=(0,), weight=r.Binary(signs(8, 8, 3, 3)), padding=(1, 1, 1, 1), levels=Levels(0.05, signed=True)
        )
        last = r.Conv(inputs=(2,), weight=r.Binary(signs(4, 8, 1, 1)), levels=Levels(0.1, signed=True))
        check_exactly(Program((8, *size), (first, pool, last)), row)


# --------------------------------------------------------------------------------------------- calibration


def sample_of(numbers: Any) -> Sample:
    array = np.atleast_2d(np.asarray(numbers, np.float32))
    squares = np.square(array, dtype=np.float64).mean(1)
    return Sample(array, squares, np.minimum(array.min(1), 0).astype(float), np.maximum(array.max(1), 0).astype(float))


def test_steps_minimise_what_rounding_takes() -> None:
    numbers = sample_of(np.random.default_rng(0).exponential(1.0, (50, 1000)))
    widest, best = Levels(float(numbers.highest.max()) / 127), best_levels(numbers, signed=False)
    assert best.step < 0.9 * widest.step  # the tail is clipped
    assert lost_share(numbers, best) < lost_share(numbers, widest)
    assert lost_share(numbers, best) < lost_share(numbers, Levels(best.step / 2))
    assert best_levels(sample_of(np.zeros(4)), signed=True) == Levels(1.0, signed=True)
    both = best_levels(sample_of([-1.0, 1.0]), signed=True)
    assert both.step == pytest.approx(1 / 63, rel=0.04)


def test_few_large_images_do_not_take_the_levels_of_the_others() -> None:
    rng = np.random.default_rng(0)
    usual = rng.exponential(1.0, (98, 500))
    some = sample_of(np.concatenate([usual, 30 * rng.exponential(1.0, (2, 500))]))
    step = best_levels(some, signed=False).step
    assert step < 6 * best_levels(sample_of(usual), signed=False).step
    assert step < some.highest.max() / 127 / 5
    assert lost_share(sample_of(usual), Levels(step)) < MOST_LOST
    assert lost_share(some, Levels(step)) > MOST_LOST / 2  # what the two are clipped by counts


def test_one_image_far_outside_and_few_numbers_of_each_change_little() -> None:
    rng = np.random.default_rng(0)
    usual = np.abs(rng.standard_normal((1000, 64)))
    step = best_levels(sample_of(usual), signed=False).step
    for factor in (1e2, 1e4, 1e6):
        far = np.concatenate([usual, usual[:1] * factor])
        assert step / 2 < best_levels(sample_of(far), signed=False).step < 2 * step
        assert lost_share(sample_of(far), best_levels(sample_of(far), signed=False)) < MOST_LOST
    whole = sample_of(rng.lognormal(0, 1.2, (5000, 500)))
    thin = replace(whole, numbers=whole.numbers[:, :3])  # as of a whole data set
    assert best_levels(thin, signed=False).step == pytest.approx(best_levels(whole, signed=False).step, rel=0.25)


def test_layers_whose_inputs_do_not_fit_levels_stay_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Linear(32, 3)]
    small: Any = subbit.compress(nn.Sequential(*layers), BWN()).eval()
    images = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))

    def integers(images: torch.Tensor) -> list[str]:
        packed = subbit.pack(small, tmp_path / "net.sbit", example=(1, 8, 8), int8=True, calibrate=images)
        return [op.name for op in packed.program.weighted() if op.levels is not None]

    assert integers(images) == ["1", "3"]
    images[::8] *= 1000
    with pytest.warns(UserWarning, match="^1: computed in fp32; what reaches them differs too much in size"):
        assert integers(images) == ["3"]
    small[2] = nn.ReLU()
    with pytest.raises(PackError, match="no layer of this network can compute in integers: what reaches them"):
        integers(images)


def test_signs_follow_from_the_operations() -> None:
    ops: tuple[r.Op, ...] = (
        r.Activation(inputs=(0,), function="relu"),
        r.Pool(inputs=(1,), kind="avg", kernel=(2, 2), stride=(2, 2)),
        r.Arithmetic(inputs=(2, 2), function="add"),
        r.Arithmetic(inputs=(3, 2), function="sub"),
        r.Arithmetic(inputs=(4, 3), function="max"),
        r.Activation(inputs=(5,), function="silu"),
        r.Activation(inputs=(4,), function="silu"),
        r.Reshape(inputs=(6,), shape=(-1,)),
    )
    assert non_negative(Program((4, 4, 4), ops)) == [False, True, True, True, False, True, True, False, True]


def small_net(method: SLBF | BWN = SLBF(f1=1 / 2, f2=1 / 2)) -> nn.Module:  # noqa: B008
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    small = subbit.compress(model, method)
    with torch.no_grad():
        small.train()(torch.randn(8, 3, 12, 12))
    return small.eval()


def test_pack_with_int8(tmp_path: Path) -> None:
    images = torch.randn(12, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    model, shape = small_net(), (3, 12, 12)
    plain = subbit.pack(model, tmp_path / "plain.sbit", example=shape)
    packed = subbit.pack(model, tmp_path / "int.sbit", example=shape, int8=True, calibrate=images)
    batches = subbit.pack(model, tmp_path / "same.sbit", example=shape, int8=True, calibrate=[images[:8], images[8:]])
    labelled = [(images[:8], torch.zeros(8)), [images[8:], torch.zeros(len(images) - 8)]]  # as data loaders give them
    subbit.pack(model, tmp_path / "labelled.sbit", example=shape, int8=True, calibrate=labelled)
    assert (tmp_path / "labelled.sbit").read_bytes() == (tmp_path / "same.sbit").read_bytes()
    assert packed.path.read_bytes() == batches.path.read_bytes()
    layers = [op for op in packed.program.weighted() if op.levels is not None]
    assert [op.name for op in layers] == ["3", "7"]
    assert not any(op.levels.signed for op in layers if op.levels)
    # five bytes for the levels of a layer, everything counted, and nothing else changes
    assert packed.bytes == plain.bytes + 5 * len(layers)
    assert 8 * packed.bytes == sizes(packed.program).total
    assert subbit.inspect(packed.path).stored_bytes == packed.bytes
    assert encode(without_levels(decode(packed.path.read_bytes()))) == plain.path.read_bytes()
    assert plain.path.read_bytes()[7] == 0
    assert packed.path.read_bytes()[7] == 1
    want, got = subbit.load(plain.path)(images.numpy()), subbit.load(packed.path)(images.numpy())
    assert 0 < np.abs(want - got).max() < 0.1 * np.abs(want).max()


def test_which_layers_take_levels() -> None:
    net = subbit.load(
        encode(calibrated(decode(encode(_program(small_net(BWN())))), np.zeros((1, 3, 12, 12), np.float32)))
    )
    assert [op.levels is not None for op in decode(net.data).weighted()] == [False, True, True, False]
    depthwise = r.Conv(inputs=(0,), weight=r.Binary(np.ones((16, 1, 3, 3), np.int8)), groups=16)
    large = r.Conv(inputs=(0,), weight=r.Binary(np.ones((4, 16, 9, 9), np.int8)))
    signs = r.Conv(inputs=(0,), weight=r.Binary(np.ones((4, 16, 3, 3), np.int8)), binary_input=True)
    assert not any(map(takes_levels, (depthwise, large, signs)))


def _program(model: nn.Module) -> Program:
    from subbit.nn.pack import to_program

    return to_program(model, (3, 12, 12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"int8": True}, "needs calibrate"),
        ({"calibrate": np.zeros((1, 3, 12, 12), np.float32)}, "needs calibrate"),
        ({"int8": True, "calibrate": np.zeros((0, 3, 12, 12), np.float32)}, "no images"),
        ({"int8": True, "calibrate": []}, "no images"),
        ({"int8": True, "calibrate": 7}, "give an array"),
        ({"int8": True, "calibrate": np.zeros((2, 3, 8, 8), np.float32)}, "of shape"),
        ({"int8": True, "calibrate": np.zeros((2, 3, 12, 12), np.uint8)}, "normalised"),
        ({"int8": True, "calibrate": np.full((2, 3, 12, 12), np.nan, np.float32)}, "NaN"),
    ],
)
def test_impossible_calibrations_are_named(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(subbit.PackError, match=message):
        subbit.pack(small_net(), tmp_path / "net.sbit", example=(3, 12, 12), **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_dense_network_has_nothing_to_round(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    with pytest.raises(subbit.PackError, match="no layer"):
        subbit.pack(model, tmp_path / "n.sbit", example=(3, 8, 8), int8=True, calibrate=torch.zeros(1, 3, 8, 8))


def test_verify_shows_the_error_of_levels(tmp_path: Path) -> None:
    from subbit.verify import compare

    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    model = small_net()
    packed = subbit.pack(model, tmp_path / "n.sbit", example=images, int8=True, calibrate=images)
    result = compare(subbit.load(packed.path), model, images)
    assert result.ok
    for check, op in zip(result.checks, packed.program.ops, strict=True):
        rounds = isinstance(op, r.Conv | r.Linear) and op.levels is not None
        assert (check.levels is not None) == rounds
        if check.levels is not None:
            assert check.core.absolute == 0
            assert 0 < check.levels.relative < 0.1

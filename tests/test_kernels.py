"""Every kernel of every instruction set against the portable one, on shapes named after what is hard about them.

Floats agree to 1e-5 of the largest output: sums run in another order, and products may be fused. Popcounts are equal.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subbit.errors import ConfigError
from subbit.format import encode
from subbit.nn.reference import run as run_reference
from subbit.records import (
    Activation,
    ActivationKind,
    Affine,
    Arithmetic,
    Binary,
    Constant,
    Conv,
    Dense,
    Float32,
    Levels,
    Linear,
    Pool,
    Program,
    Stacked,
    Weight,
)
from subbit.runtime import load
from tests.core_cases import FUNCTIONS

TOLERANCE = 1e-5

Kind = Literal["dense", "binary", "stacked", "lego"]


def _rows() -> list[str]:
    """The rows of the kernel table that this machine can run, besides the portable one."""
    data = encode(Program((4,), (Linear(inputs=(0,), weight=Dense(np.ones((2, 4), np.float32))),)))
    rows = []
    for row in ("sse2", "avx2", "avx512", "neon"):
        try:
            load(data, isa=row)
        except ConfigError:
            continue
        rows.append(row)
    return rows


ROWS = _rows()


@dataclass(frozen=True)
class Case:
    """A convolution; `filters` of depth `channels / groups / blocks` for the stacked kinds."""

    channels: int
    size: tuple[int, int]
    out: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    blocks: int = 1
    filters: int = 4

    def weight(self, kind: Kind, rng: np.random.Generator) -> Weight:
        depth = self.channels // self.groups
        if kind == "dense":
            return Dense(rng.standard_normal((self.out, depth, *self.kernel)).astype(np.float32))
        if kind == "binary":
            return Binary(_signs(rng, (self.out, depth, *self.kernel)), _values(rng, self.out))
        bank = _signs(rng, (self.filters, depth // self.blocks, *self.kernel))
        index = rng.integers(0, self.filters, (self.out, self.blocks))
        values = bank * np.abs(rng.standard_normal(bank.shape)).astype(np.float32)
        return Stacked(values if kind == "lego" else bank, index, _values(rng, self.out, self.blocks))

    def program(self, kind: Kind, *, function: ActivationKind = "relu", binary_input: bool = False) -> Program:
        rng = np.random.default_rng(0)
        conv = Conv(
            inputs=(0,),
            weight=self.weight(kind, rng),
            scale=_values(rng, self.out),
            shift=_values(rng, self.out),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            binary_input=binary_input,
        )
        ops = (conv, Activation(inputs=(1,), function=function, a=-1.0, b=1.5))
        return Program((self.channels, *self.size), ops, storage="f32")


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    return (2 * rng.integers(0, 2, shape) - 1).astype(np.int8)


def _values(rng: np.random.Generator, *shape: int) -> Float32:
    return np.asarray(rng.uniform(0.5, 1.5, shape) * _signs(rng, shape), np.float32)


def run(program: Program, row: str, x: Float32 | None = None) -> tuple[Float32, str]:
    """Output of a program, and the kernel that its first operation used."""
    net = load(encode(program), isa=row)
    if x is None:
        x = np.random.default_rng(1).standard_normal(program.input_shape).astype(np.float32)
    return net(x), net.operations[0].kernel


def check(program: Program, row: str, *, exact: bool = False) -> str:
    want, _ = run(program, "portable")
    got, kernel = run(program, row)
    assert np.isfinite(want).all()
    if exact:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())
    return kernel


CASES = {
    "one_register_rows": Case(16, (16, 16), 24, blocks=2, filters=12),
    "two_registers_per_row": Case(16, (12, 32), 8, blocks=2),
    "narrow_rows_share_registers": Case(32, (8, 8), 40, blocks=2, filters=20),
    "blocks_share_registers": Case(32, (4, 4), 16, blocks=4, filters=8),
    "three_blocks_in_two_segments": Case(24, (8, 8), 8, blocks=3),
    "wide_map_in_tiles": Case(4, (5, 224), 8, blocks=1),
    "odd_width_in_tiles": Case(8, (9, 57), 4, blocks=2),
    "four_rows_in_a_register": Case(32, (4, 4), 16, blocks=2, filters=8),
    "four_rows_of_one_block": Case(16, (8, 4), 12, filters=7),
    "four_rows_of_groups": Case(32, (4, 4), 16, groups=2, blocks=2, filters=6),
    "four_rows_strided": Case(32, (8, 8), 12, stride=(2, 2), blocks=2, filters=9),
    "eight_columns_strided": Case(16, (16, 16), 12, stride=(2, 2), blocks=2, filters=7),
    "columns_alone_strided": Case(8, (9, 16), 10, stride=(1, 2), blocks=2),
    "rows_alone_strided": Case(8, (18, 8), 10, stride=(2, 1), blocks=2),
    "seven": Case(16, (7, 7), 16, blocks=2, filters=8),
    "prime_sizes": Case(12, (13, 11), 5, blocks=2, filters=3),
    "one_pixel": Case(32, (1, 1), 24, blocks=2, filters=16),
    "two_by_two": Case(64, (2, 2), 40, blocks=2, filters=24),
    "three_by_three": Case(20, (3, 3), 18, blocks=2, filters=7),
    "one_row": Case(8, (1, 37), 6, kernel=(1, 5), padding=(0, 0, 2, 2), blocks=2),
    "one_column": Case(8, (29, 1), 6, kernel=(5, 1), padding=(2, 2, 0, 0), blocks=2),
    "odd_channels": Case(7, (10, 10), 9),
    "odd_depth": Case(15, (6, 10), 9, blocks=3),
    "single_channel": Case(1, (9, 17), 5),
    "many_channels": Case(264, (5, 5), 12, blocks=2, filters=9),
    "one_filter": Case(8, (8, 8), 6, blocks=2, filters=1),
    "many_filters": Case(8, (4, 12), 90, blocks=2, filters=70),
    "stride2": Case(16, (32, 32), 12, stride=(2, 2), blocks=2),
    "stride2_odd": Case(8, (15, 31), 12, stride=(2, 2), blocks=2),
    "stride2_part_of_a_register": Case(8, (14, 56), 12, stride=(2, 2), blocks=2),
    "stride2_part_of_a_slot": Case(16, (14, 14), 12, stride=(2, 2), blocks=2),
    "stride2_no_pad": Case(8, (14, 34), 6, stride=(2, 2), padding=(0, 0, 0, 0), blocks=2),
    "stride3_kernel2": Case(8, (17, 19), 6, kernel=(2, 2), stride=(3, 3), padding=(0, 1, 1, 0), blocks=2),
    "stride_across_only": Case(8, (9, 40), 6, stride=(1, 2), blocks=2),
    "stride_down_only": Case(8, (18, 12), 6, stride=(2, 1), blocks=2),
    "one_by_one": Case(24, (14, 14), 20, kernel=(1, 1), padding=(0, 0, 0, 0), blocks=2, filters=10),
    "one_by_one_whole_registers": Case(13, (12, 20), 15, kernel=(1, 1), padding=(0, 0, 0, 0), filters=8),
    "one_by_one_last_overlaps": Case(10, (9, 13), 14, kernel=(1, 1), padding=(0, 0, 0, 0), filters=8),
    "three_rows_of_taps_run_on": Case(10, (23, 21), 14, kernel=(3, 1), padding=(1, 1, 0, 0), filters=8),
    "one_by_one_stride2": Case(16, (16, 16), 20, kernel=(1, 1), stride=(2, 2), padding=(0, 0, 0, 0), blocks=2),
    "five_by_five": Case(12, (12, 12), 10, kernel=(5, 5), padding=(2, 2, 2, 2), blocks=2),
    "seven_by_seven_stride2": Case(3, (40, 40), 10, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    "even_kernel": Case(8, (11, 18), 6, kernel=(4, 2), padding=(1, 2, 0, 1), blocks=2),
    "uneven_padding": Case(8, (10, 10), 6, padding=(0, 3, 2, 0), blocks=2),
    "padding_beyond_kernel": Case(8, (6, 9), 6, padding=(4, 4, 5, 4), blocks=2),
    "dilation2": Case(8, (16, 20), 6, padding=(2, 2, 2, 2), dilation=(2, 2), blocks=2),
    "dilation_wider_than_a_register": Case(8, (21, 40), 6, padding=(18, 18, 18, 18), dilation=(18, 18), blocks=2),
    "dilation3_stride2": Case(8, (21, 25), 6, padding=(3, 3, 3, 3), dilation=(3, 3), stride=(2, 2), blocks=2),
    "groups": Case(24, (10, 10), 12, groups=3, blocks=2),
    "depthwise": Case(10, (11, 13), 10, groups=10),
    "depthwise_stride2": Case(6, (16, 33), 6, groups=6, stride=(2, 2)),
    "depthwise_multiplier": Case(5, (9, 9), 15, groups=5),
    "depthwise_in_bands": Case(3, (70, 90), 3, groups=3, kernel=(5, 3), padding=(2, 2, 1, 1)),
    "depthwise_stride2_in_bands": Case(
        17, (75, 131), 17, groups=17, kernel=(3, 5), stride=(2, 2), padding=(1, 1, 2, 2)
    ),
    "depthwise_stride3": Case(4, (17, 23), 8, groups=4, kernel=(4, 2), stride=(2, 3), padding=(3, 0, 0, 4)),
    "depthwise_one_row": Case(18, (1, 6), 18, groups=18, kernel=(1, 3), padding=(0, 0, 1, 1)),
    "depthwise_dilated": Case(4, (12, 19), 4, groups=4, kernel=(3, 3), padding=(4, 4, 3, 5), dilation=(4, 5)),
    "depthwise_cropped": Case(4, (9, 30), 4, groups=4, kernel=(2, 2), stride=(2, 2), padding=(0, 0, 0, 0)),
    "strips_of_rows": Case(9, (20, 19), 13, padding=(1, 1, 0, 2), dilation=(1, 2)),
    "strips_in_bands": Case(6, (72, 35), 14, kernel=(4, 3), padding=(2, 1, 1, 1), groups=2),
    "strips_of_two_registers": Case(3, (16, 32), 14),
    "strips_of_three_registers": Case(3, (16, 48), 13),
    "strips_of_four_rows_of_taps": Case(3, (64, 64), 8, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    "panels_of_filters": Case(70, (5, 6), 103, filters=103),
    "panels_of_groups": Case(24, (5, 7), 78, groups=2, blocks=2, filters=35),
    "whole_map": Case(20, (4, 4), 70, kernel=(4, 4), padding=(0, 0, 0, 0), blocks=2, filters=40),
    "whole_map_of_groups": Case(12, (3, 3), 42, padding=(0, 0, 0, 0), groups=2, blocks=2, filters=19),
    "strips_of_every_third_row": Case(4, (59, 30), 7, kernel=(10, 2), stride=(3, 2), padding=(4, 4, 0, 1)),
}  # fmt: skip

# weights that a kernel can do; every one of the others takes shared signs
KINDS: dict[str, Kind] = {"fma": "lego", "fma rows": "dense", "fma lanes": "lego", "depthwise": "dense"}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kind", ["binary", "stacked", "lego", "dense"])
@pytest.mark.parametrize("name", CASES)
def test_convolution(name: str, kind: Kind, row: str) -> None:
    check(CASES[name].program(kind), row)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "kernel", ["table", "table 5", "table 6", "lanes", "direct", "depthwise", "fma", "fma rows", "fma lanes"]
)
def test_every_shape_on_every_kernel(kernel: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cost model would take another one."""
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    used = {check(case.program(KINDS.get(kernel, "stacked")), row) for case in CASES.values()}
    assert kernel in used or (kernel == "lanes" and row in ("sse2", "neon"))


@pytest.mark.parametrize("row", ROWS)
def test_dense_layers_with_filters_in_the_lanes(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes banks above; filters that are not shared go to the output a panel at a time."""
    monkeypatch.setenv("SUBBIT_KERNEL", "fma lanes")
    used = [check(case.program("dense"), row) for case in CASES.values()]
    assert used.count("fma lanes") > len(CASES) / 3


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("groups", [1, 2])
def test_panels_of_filters_on_two_threads(groups: int, row: str) -> None:
    program = Case(256, (4, 4), 300, groups=groups).program("dense")
    x = np.random.default_rng(1).standard_normal(program.input_shape).astype(np.float32)
    net = load(encode(program), isa=row)
    assert net.operations[0].kernel == "fma lanes"
    np.testing.assert_array_equal(net(x, threads=2), net(x))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("channels", "kernel"), [(128, (3, 3)), (98, (4, 1)), (8, (7, 7)), (16, (8, 3))])
def test_strips_of_rows_stay_well_inside_the_tolerance(
    channels: int, kernel: tuple[int, int], row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minimal filtering multiplies by other numbers than the weights, which costs accuracy; the largest filters."""
    stride = (2, 1) if kernel[0] > 4 else (1, 1)
    height = 23 * stride[0] + kernel[0] - 6  # for 24 rows of output
    program = Case(channels, (height, 16), 16, kernel=kernel, stride=stride, padding=(3, 3, 1, 1)).program("dense")
    x = np.random.default_rng(2).standard_normal(program.input_shape).astype(np.float32)
    want, _ = run(program, "portable", x)
    monkeypatch.setenv("SUBBIT_KERNEL", "fma rows")
    got, used = run(program, row, x)
    assert used == "fma rows"
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE / 2 * np.abs(want).max())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("kernel", "stride", "above"), [(5, 2, 3), (7, 2, 5), (9, 4, 5), (10, 3, 8), (11, 4, 7)])
def test_strips_of_rows_read_only_what_is_staged(
    kernel: int, stride: int, above: int, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of which not every phase has as many rows, where the row behind them is the first of its plane's next."""
    weight = np.random.default_rng(0).standard_normal((8, 3, kernel, 3)).astype(np.float32)
    below = 15 * stride + kernel - above - 32  # for 16 rows of output
    ops = (  # what the first one wrote lies in the scratch of the last one
        Activation(inputs=(0,), function="exp"),
        Pool(inputs=(1,), kind="max", kernel=(4, 4), stride=(4, 4)),
        Activation(inputs=(2,), function="hardtanh", a=-1.0, b=1.5),
        Conv(inputs=(3,), weight=Dense(weight), stride=(stride, stride), padding=(above, max(below, 0), 1, 1)),
    )
    program = Program((3, 4 * 32 + 4 * max(-below, 0), 4 * 40), ops)
    x = np.full(program.input_shape, 1e3, np.float32)
    want, _ = run(program, "portable", x)
    monkeypatch.setenv("SUBBIT_KERNEL", "fma rows")
    net = load(encode(program), isa=row)
    assert net.operations[3].kernel == "fma rows"
    np.testing.assert_allclose(net(x), want, rtol=0, atol=TOLERANCE * np.abs(want).max())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("storage", ["f16", "f32"])
@pytest.mark.parametrize("kind", ["binary", "stacked", "lego", "dense"])
@pytest.mark.parametrize(
    "features", [(512, 10), (37, 19), (3, 1), (128, 200)], ids=["classifier", "odd", "tiny", "many_outputs"]
)
def test_fully_connected(features: tuple[int, int], kind: Kind, storage: Literal["f16", "f32"], row: str) -> None:
    blocks = 2 if features[0] % 2 == 0 else 1
    case = Case(features[0], (1, 1), features[1], kernel=(1, 1), padding=(0, 0, 0, 0), blocks=blocks, filters=7)
    rng = np.random.default_rng(0)
    weight = case.weight(kind, rng)
    if isinstance(weight, Dense):
        weight = Dense(weight.values[:, :, 0, 0])
    elif isinstance(weight, Binary):
        weight = Binary(weight.signs[:, :, 0, 0], weight.scale)
    else:
        weight = Stacked(weight.bank[:, :, 0, 0], weight.index, weight.scale)
    layer = Linear(inputs=(0,), weight=weight, shift=_values(rng, features[1]))
    check(Program((features[0],), (layer,), storage=storage), row)
    check(Program((5, features[0]), (layer,), storage=storage), row)  # rows


def _signs_only(case: Case, kind: Kind) -> Program:
    """A convolution of signs without scales: its output consists of integers."""
    weight = case.weight(kind, np.random.default_rng(0))
    assert isinstance(weight, Binary | Stacked)
    conv = Conv(
        inputs=(0,), weight=replace(weight, scale=None), stride=case.stride, padding=case.padding,
        dilation=case.dilation, groups=case.groups, binary_input=True,
    )  # fmt: skip
    return Program((case.channels, *case.size), (conv,))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kind", ["binary", "stacked"])
@pytest.mark.parametrize("kernel", ["xnor", "popcount"])
def test_signs_of_the_input(kernel: str, kind: Kind, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    used = {check(_signs_only(case, kind), row, exact=True) for case in CASES.values()}
    assert used == {kernel} or kernel == "popcount"  # which not every machine has


@pytest.mark.parametrize("row", ROWS)
def test_signs_of_zero_and_nan(row: str) -> None:
    program = _signs_only(CASES["odd_channels"], "binary")
    x = np.random.default_rng(0).integers(-1, 2, program.input_shape).astype(np.float32)
    x[0, 0, 0], x[1, 1, 1] = np.nan, -0.0
    np.testing.assert_array_equal(run(program, row, x)[0], run(program, "portable", x)[0])


@pytest.mark.parametrize("row", ROWS)
def test_scaled_signs(row: str) -> None:
    check(CASES["seven"].program("stacked", binary_input=True), row)
    check(CASES["many_channels"].program("binary", binary_input=True), row)


POOLS = {
    "halves": Pool(inputs=(0,), kind="max", kernel=(2, 2), stride=(2, 2)),
    "stem": Pool(inputs=(0,), kind="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    "same": Pool(inputs=(0,), kind="max", kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
    "four_rows": Pool(inputs=(0,), kind="max", kernel=(4, 2), stride=(1, 2)),
    "eight_rows": Pool(inputs=(0,), kind="max", kernel=(8, 3), stride=(2, 1), padding=(3, 1)),
    "hangs_over": Pool(inputs=(0,), kind="max", kernel=(3, 2), stride=(2, 2), ceil_mode=True),
    "dilated": Pool(inputs=(0,), kind="max", kernel=(2, 3), stride=(1, 2), dilation=(2, 2), padding=(1, 1)),
    "stride3": Pool(inputs=(0,), kind="max", kernel=(3, 3), stride=(3, 3)),
    "stride4": Pool(inputs=(0,), kind="max", kernel=(1, 4), stride=(1, 4)),
    "means_of_fours_in_a_row": Pool(
        inputs=(0,), kind="avg", kernel=(1, 5), stride=(1, 4), padding=(0, 2), count_include_pad=False
    ),
    "stride5_with_gaps": Pool(inputs=(0,), kind="max", kernel=(2, 3), stride=(4, 5), padding=(1, 1), ceil_mode=True),
    "means_of_fours": Pool(inputs=(0,), kind="avg", kernel=(4, 4), stride=(4, 4)),
    "one_window_far_apart": Pool(inputs=(0,), kind="max", kernel=(2, 2), stride=(2, 60_000)),
    "windows_far_apart": Pool(inputs=(0,), kind="max", kernel=(2, 2), stride=(1, 700)),
    "means": Pool(inputs=(0,), kind="avg", kernel=(2, 2), stride=(2, 2)),
    "means_of_five_rows": Pool(inputs=(0,), kind="avg", kernel=(5, 5), stride=(1, 1), padding=(2, 2)),
    "means_with_padding": Pool(inputs=(0,), kind="avg", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
    "means_without_padding": Pool(
        inputs=(0,), kind="avg", kernel=(3, 3), stride=(1, 1), padding=(1, 1), count_include_pad=False
    ),
    "means_hang_over": Pool(inputs=(0,), kind="avg", kernel=(3, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True),
    "means_of_own_divisor": Pool(inputs=(0,), kind="avg", kernel=(3, 2), stride=(2, 1), divisor=5),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(
    "size", [(9, 33), (32, 32), (8, 16), (4, 8), (8, 4), (2, 2), (5, 4), (6, 1100), (3, 3001)], ids=str
)
def test_pooling(name: str, size: tuple[int, int], row: str) -> None:
    extent = [
        (k - 1) * d + 1 - 2 * p
        for k, d, p in zip(POOLS[name].kernel, POOLS[name].dilation, POOLS[name].padding, strict=True)
    ]
    if size[0] < extent[0] or size[1] < extent[1]:
        pytest.skip("no window fits")
    program = Program((16, *size), (POOLS[name],))
    check(program, row, exact=POOLS[name].kind == "max")


@pytest.mark.parametrize("row", ROWS)
def test_a_maximum_keeps_nan_and_infinity(row: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 40)).astype(np.float32)
    x[0, 1, 3] = x[0, 2, 3] = x[0, 4, 9] = np.nan
    x[0, 0] = -np.inf
    program = Program((1, 8, 40), (POOLS["stem"],))
    np.testing.assert_array_equal(run(program, row, x)[0], run(program, "portable", x)[0])


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("function", get_args(ActivationKind))
def test_functions(function: ActivationKind, row: str) -> None:
    program = Program((7, 19), (Activation(inputs=(0,), function=function, a=0.3, b=1.5),))
    x = np.linspace(-30, 30, 7 * 19, dtype=np.float32).reshape(7, 19)
    got, want = run(program, row, x)[0], run(program, "portable", x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    x[0, 3], x[1, 4], x[2, 5] = np.nan, np.inf, -np.inf
    got, want = run(program, row, x)[0], run(program, "portable", x)[0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("function", ["add", "sub", "mul", "div", "max", "min"])
@pytest.mark.parametrize("other", [(3, 5, 7), (3, 1, 1), (1,)], ids=["same", "per_channel", "scalar"])
def test_arithmetic(
    function: Literal["add", "sub", "mul", "div", "max", "min"], other: tuple[int, ...], row: str
) -> None:
    value = np.random.default_rng(2).uniform(0.5, 2.0, other).astype(np.float32)
    ops = (Constant(inputs=(), value=value), Arithmetic(inputs=(0, 1), function=function))
    check(Program((3, 5, 7), ops, storage="f32"), row)


@pytest.mark.parametrize("row", ROWS)
def test_affine(row: str) -> None:
    scale, shift = np.array([[0.5, -2.0, 3.0], [1.0, 0.0, -1.0]], np.float32)
    check(Program((3, 5, 7), (Affine(inputs=(0,), scale=scale, shift=shift),), storage="f32"), row)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("function", ["relu6", "hardtanh", "sigmoid", "gelu", "leaky_relu"])
def test_function_behind_a_convolution(function: ActivationKind, row: str) -> None:
    check(CASES["seven"].program("stacked", function=function), row)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_to_some_millionths_of_its_value(function: ActivationKind, row: str) -> None:
    """Of its own value, not of the largest one: tails count, and so does what is near 0."""
    op = Activation(inputs=(0,), function=function, a=FUNCTIONS[function][0], b=FUNCTIONS[function][1])
    small = np.logspace(-30, 3, 331)
    x = np.concatenate([np.linspace(-9, 9, 1801), np.linspace(-90, 88, 357), small, -small]).astype(np.float32)
    wide = torch.from_numpy(x.astype(np.float64))
    if function == "gelu":  # the reference adds 1 to what is almost -1
        want = (0.5 * wide * torch.special.erfc(-wide / 2**0.5)).numpy()
    elif function == "gelu_tanh":
        want = (wide / (1 + (-((8 / np.pi) ** 0.5) * (wide + 0.044715 * wide**3)).exp())).numpy()
    else:
        want = run_reference(Program(x.shape, (op,)), wide[None])[1].numpy()[0]
    got = load(encode(Program(x.shape, (op,))), isa=row)(x[None])[0]
    known = np.isfinite(want) & (np.abs(want) < 3e38)
    # in its tail a rounding of the argument, some hundred at most, is one of so many units; x times what is smaller
    # than the smallest normal number is lost
    np.testing.assert_allclose(got[known], want[known], rtol=3e-5 if function.startswith("gelu") else 1e-5, atol=2e-36)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_of_what_is_not_finite(function: ActivationKind, row: str) -> None:
    op = Activation(inputs=(0,), function=function, a=FUNCTIONS[function][0], b=FUNCTIONS[function][1])
    other_nan = np.array([0x7FC00155, 0x7FC000FF, 0xFFC1FFFF], np.uint32).view(np.float32)
    hard = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 3e-40, -3e-40, -1e-8, -87.2, -95.0]
    x = np.concatenate([np.array(hard, np.float32), other_nan])
    want, got = (load(encode(Program(x.shape, (op,))), isa=isa)(x[None])[0] for isa in ("portable", row))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-36)


@pytest.mark.parametrize("row", ROWS)
def test_table_serves_the_layers_it_is_made_for(row: str) -> None:
    for name in ("one_register_rows", "narrow_rows_share_registers", "stride2", "wide_map_in_tiles"):
        case = replace(CASES[name], out=64, filters=32)
        assert check(case.program("stacked"), row) == "table"


@pytest.mark.parametrize("row", ROWS)
def test_depthwise_layers_have_their_own_kernel(row: str) -> None:
    none, one, three = (0, 0, 0, 0), (1, 1, 1, 1), (3, 3, 3, 3)
    for case in (
        Case(512, (7, 7), 512, kernel=(7, 7), padding=none, groups=512),
        Case(512, (2, 2), 512, padding=one, groups=512),
        Case(256, (8, 8), 256, stride=(2, 2), padding=one, groups=256),
        Case(64, (28, 28), 128, padding=one, groups=64),
        Case(32, (56, 56), 32, kernel=(2, 2), stride=(4, 4), padding=none, groups=32),
        Case(16, (40, 50), 16, kernel=(7, 7), padding=three, groups=16),
    ):
        for kind in ("dense", "binary", "stacked"):
            assert check(case.program(kind), row) == "depthwise"
    single = Case(
        1, (28, 28), 32, kernel=(5, 5), padding=(2, 2, 2, 2), filters=4
    )  # one channel, which all filters read
    assert check(single.program("stacked"), row) == "table"


@pytest.mark.parametrize("row", ROWS)
def test_one_filter_of_many_depthwise_channels_takes_no_memory_for_each(row: str) -> None:
    shared = Stacked(np.ones((1, 1, 63, 63), np.float32), np.zeros((65535, 1), int), None)
    op = Conv(inputs=(0,), weight=shared, padding=(31, 31, 31, 31), groups=65535)
    net = load(encode(Program((65535, 2, 2), (op,), storage="f16")), isa=row)
    assert net.memory < 20e6


@pytest.mark.skipif("avx2" not in ROWS, reason="a choice for registers of 8 lanes")
def test_many_filters_pay_for_larger_tables() -> None:
    many, few = (Case(128, (8, 8), 128, blocks=2, filters=filters) for filters in (128, 4))
    assert check(many.program("stacked"), "avx2") in ("table 5", "table 6")
    assert check(few.program("stacked"), "avx2") == "table"


@given(data=st.data())
@pytest.mark.parametrize("row", ROWS)
def test_any_convolution(row: str, data: st.DataObject) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    kernel, dilation, padding = pair(1, 5), pair(1, 3), (*pair(0, 4), *pair(0, 4))
    extent = [(kernel[i] - 1) * dilation[i] + 1 - padding[2 * i] - padding[2 * i + 1] for i in range(2)]
    groups, blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    case = Case(
        channels=groups * blocks * data.draw(st.integers(1, 9)),
        size=(max(1, extent[0]) + data.draw(st.integers(0, 12)), max(1, extent[1]) + data.draw(st.integers(0, 40))),
        out=groups * data.draw(st.integers(1, 9)),
        kernel=kernel,
        stride=pair(1, 3),
        padding=padding,
        dilation=dilation,
        groups=groups,
        blocks=blocks,
        filters=data.draw(st.integers(1, 6)),
    )
    kind: Kind = data.draw(st.sampled_from(("dense", "binary", "stacked", "lego")))
    check(case.program(kind), row)


ROOT = Path(__file__).parents[1]
CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")


@pytest.mark.skipif(not (CROSS and EMULATOR), reason="needs aarch64-linux-gnu-gcc and qemu-aarch64")
def test_neon_under_emulation(tmp_path: Path) -> None:
    sources = [*(ROOT / "csrc").glob("*.c"), *(ROOT / "csrc/kernels").glob("portable*.c")]
    sources += [ROOT / "csrc/kernels/table_plan.c", ROOT / "csrc/kernels/simd_neon.c", ROOT / "bench/kernels/run.c"]
    flags = ["-std=gnu11", "-O2", "-static", "-pthread", "-DSB_WITH_NEON", f"-I{ROOT / 'csrc'}"]
    subprocess.run([str(CROSS), *flags, *map(str, sources), "-o", str(tmp_path / "run"), "-lm"], check=True)
    cases = ("seven", "two_registers_per_row", "stride2_odd", "dilation2", "two_by_two", "groups", "prime_sizes")
    programs = [CASES[name].program(kind) for name in cases for kind in ("stacked", "binary", "lego")]
    programs += [_signs_only(CASES[name], "binary") for name in cases]
    programs += [
        CASES[name].program("dense")
        for name in CASES
        if name.startswith(("depthwise", "panels", "one_by_one", "whole_map"))
    ]
    programs.append(Program((4, 8, 8), (POOLS["halves"], Activation(inputs=(1,), function="silu"))))
    programs += [Program((4, 9, 14), (POOLS[name],)) for name in ("stride3", "stride4", "means_of_fours")]
    for name, (a, b) in FUNCTIONS.items():  # the logarithm and the root of numbers that have one
        ops = Activation(inputs=(0,), function="abs"), Activation(inputs=(1,), function=name, a=a, b=b)
        programs.append(Program((70,), ops if name in ("log", "sqrt") else (replace(ops[1], inputs=(0,)),)))
    exact = [_on_levels(CASES[name].program(kind)) for name in cases for kind in ("stacked", "binary")]
    for program in (*programs, *exact):
        x = np.random.default_rng(1).standard_normal(program.input_shape).astype(np.float32)
        (tmp_path / "net.sbit").write_bytes(encode(program))
        x.tofile(tmp_path / "in.f32")
        arguments = [str(tmp_path / name) for name in ("run", "net.sbit")]
        arguments += ["neon", str(tmp_path / "in.f32"), str(tmp_path / "out.f32")]
        subprocess.run([str(EMULATOR), *arguments], check=True)
        want, _ = run(program, "portable", x)
        got = np.fromfile(tmp_path / "out.f32", np.float32).reshape(want.shape)
        tolerance = 0 if program in exact else TOLERANCE * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def _on_levels(program: Program) -> Program:
    """The same with seven-bit inputs, and bytes between its layer, a maximum and a layer of one filter behind them."""
    layer = program.ops[0]
    assert isinstance(layer, Conv)
    pool = Pool(inputs=(2,), kind="max", kernel=(2, 2), stride=(2, 2), ceil_mode=True)
    last = Conv(inputs=(3,), weight=Binary(np.ones((1, layer.weight.shape[0], 1, 1), np.int8)), levels=Levels(0.5))
    return replace(program, ops=(replace(layer, levels=Levels(0.03, signed=True)), *program.ops[1:], pool, last))

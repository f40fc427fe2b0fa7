"""Every operation of the C core against the plain PyTorch reference, value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import subbit
from subbit import records as r
from subbit.format import decode, encode
from subbit.nn.reference import run
from subbit.shapes import value_shapes
from tests.core_cases import CASES, FUNCTIONS, conv, program, reals, signs, stacked

ROWS = ("portable", None)  # the readable kernels, and the best that this machine has
TOLERANCE = 2e-5  # of the largest value: sums of a few hundred fp32 numbers in another order


def check(network: r.Program, x: np.ndarray[Any, Any] | None = None, tolerance: float = TOLERANCE) -> None:
    """All values of a program, fused and not fused, in both rows of the kernel table."""
    data = encode(network)
    if x is None:
        x = 2 * reals(2, *network.input_shape)
    expected = run(decode(data), torch.from_numpy(x))
    for isa in ROWS:
        net = subbit.load(data, isa=isa)
        assert value_shapes(network)[1:] == [operation.shape for operation in net.operations]
        for i, value in enumerate(net.values(x)):
            assert_close(value, expected[i + 1].numpy(), tolerance)
        result = expected[network.output_value].numpy()
        assert net.output_shape == result.shape[1:]
        assert_close(net(x), result, tolerance)


def assert_close(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> None:
    assert got.shape == expected.shape
    if tolerance == 0:
        assert np.array_equal(got, expected)
    else:
        assert np.abs(got - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_operation(name: str) -> None:
    check(CASES[name]())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function(function: r.ActivationKind) -> None:
    a, b = FUNCTIONS[function]
    line = np.concatenate([np.linspace(-40, 40, 801), [0.0, -0.0, 1e-30, -1e-30, 3.0, -3.0]]).astype(np.float32)
    small = np.linspace(-2, 2, 401, dtype=np.float32)  # where large values do not hide an error
    for x in (line, small):
        if function in ("log", "sqrt"):
            x = np.abs(x) + np.float32(1e-3)
        check(program(x.shape, r.Activation(inputs=(0,), function=function, a=a, b=b)), x[None])


def test_every_function_is_tried() -> None:
    from typing import get_args

    assert set(FUNCTIONS) == set(get_args(r.ActivationKind))


@pytest.mark.parametrize("function", ["relu", "relu6", "hardtanh", "leaky_relu"])
def test_nan_is_not_hidden(function: r.ActivationKind) -> None:
    a, b = FUNCTIONS[function]
    net = subbit.load(encode(program((3,), r.Activation(inputs=(0,), function=function, a=a, b=b))))
    assert np.isnan(net(np.array([[1, np.nan, -1]], np.float32))).tolist() == [[False, True, False]]


# --------------------------------------------------------------------------------------- along dimensions


@given(st.data())
def test_along_any_dimensions(data: st.DataObject) -> None:
    """Few and many numbers before, along and behind the dimensions that an operation works on."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 65, 130]), min_size=1, max_size=3)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    size = shape[dim]
    start, step = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 3))
    dims = data.draw(st.permutations(range(len(shape))))
    random = np.random.default_rng(size)
    scale = data.draw(st.sampled_from([None, random.standard_normal(size).astype(np.float32)]))
    # of two numbers that are nearly equal PyTorch itself is off by more than the tolerance with a smaller eps
    norm = {"eps": 1e-2, "scale": scale, "shift": random.standard_normal(size).astype(np.float32)}
    op: r.Op = data.draw(
        st.sampled_from([
            r.Softmax(inputs=(0,), dim=dim),
            r.LayerNorm(inputs=(0,), dim=dim, **norm),  # type: ignore[arg-type]
            r.Mean(inputs=(0,), dims=tuple(dims[: data.draw(st.integers(1, len(dims)))]), keepdim=True),
            r.Permute(inputs=(0,), dims=tuple(dims)),
            r.Slice(inputs=(0,), dim=dim, start=start, stop=data.draw(st.integers(start + 1, size)), step=step),
        ])
    )  # fmt: skip
    check(program(shape, op), random.standard_normal((2, *shape)).astype(np.float32))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_line_alone(number: float, dim: int) -> None:
    x = reals(1, 20, 70)
    x[0, 3, 5] = number
    for op in (r.Softmax(inputs=(0,), dim=dim), r.LayerNorm(inputs=(0,), dim=dim, eps=1e-5)):
        want = run(program(x.shape[1:], op), torch.from_numpy(x))[1].numpy()
        got = subbit.load(encode(program(x.shape[1:], op)))(x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------ convolutions

sizes = st.integers(1, 3)


@st.composite
def geometries(draw: st.DrawFn) -> tuple[dict[str, Any], int, tuple[int, int], tuple[int, int]]:
    """Options of a convolution, groups, kernel and input size, such that something comes out."""
    kernel = draw(sizes), draw(sizes)
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    assume(height + padding[0] + padding[1] > dilation[0] * (kernel[0] - 1))
    assume(width + padding[2] + padding[3] > dilation[1] * (kernel[1] - 1))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    stride = draw(sizes), draw(sizes)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return options, groups, kernel, (height, width)


@given(geometries(), st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_dense_convolutions(geometry: Any, channels: int, filters: int, binary_input: bool) -> None:
    options, groups, kernel, size = geometry
    weight = r.Dense(reals(groups * filters, channels, *kernel))
    check(program((groups * channels, *size), conv(weight, binary_input=binary_input, **options)))


@given(geometries(), st.integers(1, 3), st.integers(1, 7), st.integers(1, 6), st.booleans())
def test_stacked_convolutions(geometry: Any, blocks: int, depth: int, filters: int, values: bool) -> None:
    options, groups, kernel, size = geometry
    weight = stacked(groups * 4, blocks, min(filters, 4 * groups), depth, *kernel, values=values)
    check(program((groups * blocks * depth, *size), conv(weight, **options)))


@given(geometries(), st.sampled_from([1, 31, 63, 64, 65, 130]), st.integers(1, 3))
def test_integer_sums_of_binary_input_are_equal(geometry: Any, channels: int, filters: int) -> None:
    options, groups, kernel, size = geometry
    weight = r.Binary(signs(groups * filters, channels, *kernel))
    x = reals(2, groups * channels, *size)
    x[x > 1] = 0  # sign(0) = +1
    check(program(x.shape[1:], conv(weight, binary_input=True, **options)), x, tolerance=0)


@given(geometries(), st.integers(1, 3), st.sampled_from([1, 5, 64]), st.booleans())
def test_integer_sums_of_stacked_binary_input_are_equal(geometry: Any, blocks: int, depth: int, fixed: bool) -> None:
    options, groups, kernel, size = geometry
    weight = stacked(groups * 4, blocks, 3, depth, *kernel, fixed=fixed, scale=False)
    shape = (groups * blocks * depth, *size)
    check(program(shape, conv(weight, binary_input=True, **options)), tolerance=0)


def test_binary_input_runs_on_popcount() -> None:
    net = subbit.load(encode(program((8, 4, 4), conv(r.Binary(signs(4, 8, 3, 3)), binary_input=True))), isa="portable")
    assert net.operations[0].kernel == "portable xnor"


# ----------------------------------------------------------------------------------------------- pooling


@given(
    st.sampled_from(["max", "avg"]), st.tuples(sizes, sizes), st.tuples(sizes, sizes),
    st.tuples(st.booleans(), st.booleans()), st.booleans(), st.booleans(), st.sampled_from([0, 0, 5]),
    st.integers(3, 11), st.integers(3, 11),
)  # fmt: skip
def test_pooling(
    kind: Any, kernel: Any, stride: Any, padded: Any, ceil_mode: bool, include: bool, divisor: int,
    height: int, width: int,
) -> None:  # fmt: skip
    padding = kernel[0] // 2 * padded[0], kernel[1] // 2 * padded[1]
    op = r.Pool(
        inputs=(0,), kind=kind, kernel=kernel, stride=stride, padding=padding, ceil_mode=ceil_mode,
        count_include_pad=include, divisor=divisor,
    )  # fmt: skip
    check(program((3, height, width), op))


@pytest.mark.parametrize("dilation", [(2, 1), (3, 2)])
def test_dilated_max_pooling(dilation: tuple[int, int]) -> None:
    options: Any = {"kernel": (2, 3), "stride": (1, 2), "dilation": dilation, "padding": (1, 1)}
    check(program((3, 9, 10), r.Pool(inputs=(0,), kind="max", **options)))


def test_pooling_of_a_line() -> None:
    options: Any = {"kernel": (1, 3), "stride": (1, 2), "padding": (0, 1)}
    for kind in ("max", "avg"):
        check(program((3, 11), r.Pool(inputs=(0,), kind=kind, **options)))


# ------------------------------------------------------------------------------- broadcasting, resampling


@given(st.data(), st.sampled_from(["add", "sub", "mul", "div", "max", "min"]))
def test_broadcasting(data: st.DataObject, function: Any) -> None:
    full = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    a, b = ([data.draw(st.sampled_from([1, size])) for size in full] for _ in range(2))
    b = b[data.draw(st.integers(0, len(b))) :]
    constant = r.Constant(inputs=(), value=(np.abs(reals(*b)) + 0.5).astype(np.float32))
    order = data.draw(st.sampled_from([(0, 1), (1, 0)]))
    x = np.abs(reals(2, *a)) + np.float32(0.5)
    check(program(a, constant, r.Arithmetic(inputs=order, function=function)), x)


@given(st.sampled_from(["constant", "reflect", "replicate", "circular"]), st.tuples(*[st.integers(-2, 3)] * 4))
def test_padding(mode: Any, amounts: Any) -> None:
    if mode != "constant":  # PyTorch crops and pads at once only with constants
        amounts = tuple(map(abs, amounts))
    check(program((2, 5, 6), r.Pad(inputs=(0,), mode=mode, amounts=amounts, value=0.5 * (mode == "constant"))))


@given(st.sampled_from(["nearest", "bilinear"]), st.booleans(), st.integers(1, 13), st.integers(1, 13))
def test_upsampling_to_a_size(mode: Any, align: bool, height: int, width: int) -> None:
    align = align and mode == "bilinear"
    check(program((2, 5, 6), r.Upsample(inputs=(0,), mode=mode, output=(height, width), align_corners=align)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("factor", [(2.0, 2.0), (1.7, 2.3), (0.5, 0.6), (1.1, 3.0)])
def test_upsampling_by_a_factor(mode: Any, factor: tuple[float, float]) -> None:
    check(program((2, 7, 6), r.Upsample(inputs=(0,), mode=mode, output=(0, 0), factor=factor)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("output", [(5, 700), (2, 613), (9, 230)])
def test_upsampling_of_long_rows(mode: Any, output: tuple[int, int]) -> None:
    check(program((2, 3, 230), r.Upsample(inputs=(0,), mode=mode, output=output)))


# -------------------------------------------------------------------------------------- shapes that do not fit

MISFITS = {
    "channels": ((4, 5, 5), conv(r.Dense(reals(2, 3, 3, 3)))),
    "groups": ((3, 5, 5), conv(r.Dense(reals(4, 1, 1, 1)), groups=3)),
    "input_too_small": ((3, 2, 2), conv(r.Dense(reals(2, 3, 3, 3)))),
    "features": ((3, 4), r.Linear(inputs=(0,), weight=r.Dense(reals(2, 5)))),
    "rank": ((3,), conv(r.Dense(reals(2, 3, 1, 1)))),
    "affine_length": ((3, 4), r.Affine(inputs=(0,), scale=reals(4))),
    "prelu_length": ((3, 4), r.PReLU(inputs=(0,), slope=reals(4))),
    "pool_window": ((3, 2, 2), r.Pool(inputs=(0,), kind="max", kernel=(3, 3), stride=(1, 1))),
    "pool_padding": ((3, 8, 8), r.Pool(inputs=(0,), kind="max", kernel=(3, 3), stride=(1, 1), padding=(2, 0))),
    "mean_dimension": ((3, 4), r.Mean(inputs=(0,), dims=(2,))),
    "reshape": ((3, 4), r.Reshape(inputs=(0,), shape=(5, -1))),
    "permute": ((3, 4), r.Permute(inputs=(0,), dims=(1, 0, 2))),
    "slice": ((3, 4), r.Slice(inputs=(0,), dim=1, start=4, stop=8)),
    "reflect": ((3, 4), r.Pad(inputs=(0,), mode="reflect", amounts=(0, 0, 4, 0))),
    "crop": ((3, 4), r.Pad(inputs=(0,), mode="constant", amounts=(0, 0, -2, -2))),
    "too_many_elements": ((3, 4, 4), r.Upsample(inputs=(0,), mode="nearest", output=(2**14, 2**14))),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfit_is_refused_by_number(name: str) -> None:
    shape, op = MISFITS[name]
    with pytest.raises(subbit.FormatError, match="operation 0: "):
        subbit.load(encode(program(shape, op)))

"""What folding removes, and what has to stay because removing it would not be exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbit
from subbit.errors import PackError
from subbit.format import decode, encode
from subbit.methods import BNN, BWN, SLBF, BinaryConnect
from subbit.methods.base import CompressedLayer, Method
from subbit.nn.lowering.simplify import Graph, numbered
from subbit.nn.pack import to_program
from subbit.records import Affine, Binary, Conv, Dense, LayerNorm, Linear, Pool, Stacked
from tests.parity import assert_parity, kinds, only, randomise_norms

IMAGE = (4, 8, 8)


def norm(channels: int, gain: float | None = None) -> nn.BatchNorm2d:
    """A BatchNorm with statistics; gains of both signs unless `gain` is given."""
    module = nn.BatchNorm2d(channels)
    randomise_norms(module)
    if gain is not None:
        nn.init.constant_(module.weight, gain)
    return module


class Function(nn.Module):
    """Modules and a function of them and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def with_gain(module: nn.Module) -> nn.Module:
    """`module` with a learned factor that still is 1."""
    module.register_parameter("gain", nn.Parameter(torch.ones(1)))
    return module


BEHIND: dict[str, tuple[nn.Module, list[str]]] = {
    "conv_norm": (nn.Sequential(nn.Conv2d(4, 6, 3), norm(6)), ["Conv"]),
    "bias_norm_norm": (nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), norm(6), norm(6)), ["Conv"]),
    "dropout_between": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.Dropout2d(), norm(6)), ["Conv"]),
    "norm_without_affine": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), ["Conv"]),
    "depthwise": (nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), norm(4)), ["Conv"]),
    "numbers": (Function(lambda m, x: m.conv(x) * 0.5 + 0.1 - 3, conv=nn.Conv2d(4, 6, 3)), ["Conv"]),
    "average": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.AvgPool2d(2), norm(6)), ["Conv", "Pool"]),
    "padded_average_that_counts_zeros": (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.AvgPool2d(3, 1, 1), norm(6)),
        ["Conv", "Pool", "Affine"],
    ),
    "padded_average_of_what_is_there": (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.AvgPool2d(3, 1, 1, count_include_pad=False), norm(6)),
        ["Conv", "Pool"],
    ),
    "maximum_rising": (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), norm(6, gain=0.5)),
        ["Conv", "Pool", "Affine"],  # the size of the file must not depend on the sign of a gain
    ),
    "maximum_falling": (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), norm(6, gain=-0.5)),
        ["Conv", "Pool", "Affine"],
    ),
    "maximum_shifted": (
        Function(lambda m, x: F.max_pool2d(m.conv(x), 2) + torch.arange(6.0).reshape(6, 1, 1), conv=nn.Conv2d(4, 6, 3)),
        ["Conv", "Pool"],
    ),
    "norms_around_a_maximum": (nn.Sequential(norm(4), nn.MaxPool2d(2), norm(4)), ["Affine", "Pool", "Affine"]),
    "identity_norm": (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4, eps=0.0)), ["Activation", "Affine"]),
    "one_times": (Function(lambda m, x: 1 * (m.relu(x) * 1.0 + 0) / 1 - 0, relu=nn.ReLU()), ["Activation"]),
    "learned_number": (
        Function(lambda m, x: m.relu(x) * m.relu.gain, relu=with_gain(nn.ReLU())),
        ["Activation", "Affine"],
    ),
    "not_through_relu": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), norm(6)), ["Conv", "Activation", "Affine"]),
    "two_users": (
        Function(lambda m, x: m.norm(m.conv(x)) + m.conv(x), conv=nn.Conv2d(4, 6, 3), norm=norm(6)),
        ["Conv", "Conv", "Arithmetic"],
    ),
    "one_value_two_users": (
        Function(lambda m, x: (lambda y: m.norm(y) + y)(m.conv(x)), conv=nn.Conv2d(4, 6, 3), norm=norm(6)),
        ["Conv", "Affine", "Arithmetic"],
    ),
    "layer_scale_channels_last": (
        Function(
            lambda m, x: (m.layer(x.permute(0, 2, 3, 1)) * 1).permute(0, 3, 1, 2) * torch.arange(6.0).reshape(6, 1, 1),
            layer=nn.Linear(4, 6),
        ),
        ["Permute", "Linear", "Permute"],
    ),
}


@pytest.mark.parametrize("name", BEHIND)
def test_behind_a_layer(name: str) -> None:
    model, expected = BEHIND[name]
    assert kinds(assert_parity(model, IMAGE)) == expected


BEFORE: dict[str, tuple[nn.Module, list[str]]] = {
    "no_padding": (nn.Sequential(norm(4), nn.Conv2d(4, 6, 3)), ["Conv"]),
    "padding": (nn.Sequential(norm(4), nn.Conv2d(4, 6, 3, padding=1)), ["Affine", "Conv"]),
    "padding_without_shift": (
        Function(lambda m, x: m.conv(x * torch.arange(4.0).reshape(4, 1, 1)), conv=nn.Conv2d(4, 6, 3, padding=1)),
        ["Conv"],
    ),
    "groups": (nn.Sequential(norm(4), nn.Conv2d(4, 6, 3, groups=2)), ["Conv"]),
    "all_users_are_layers": (
        Function(
            lambda m, x: (lambda y: m.a(y) + m.b(y))(m.norm(x)),
            norm=norm(4),
            a=nn.Conv2d(4, 6, 3),
            b=nn.Conv2d(4, 6, 3, groups=2),
        ),
        ["Conv", "Conv", "Arithmetic"],
    ),
    "another_user": (
        Function(lambda m, x: (lambda y: m.a(y) + y)(m.norm(x)), norm=norm(4), a=nn.Conv2d(4, 4, 1)),
        ["Affine", "Conv", "Arithmetic"],
    ),
    "numbers_before_rows": (Function(lambda m, x: m.layer(x * 2 + 1), layer=nn.Linear(8, 3)), ["Linear"]),
    "norm_before_rows": (nn.Sequential(norm(4), nn.Linear(8, 3)), ["Affine", "Linear"]),
}


@pytest.mark.parametrize("name", BEFORE)
def test_before_a_layer(name: str) -> None:
    model, expected = BEFORE[name]
    assert kinds(assert_parity(model, IMAGE)) == expected


def test_flat_norms_fold_on_both_sides_of_a_linear_layer() -> None:
    model = randomise_norms(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 7), nn.BatchNorm1d(7)))
    assert kinds(assert_parity(model, (5,))) == ["Linear"]


RECORDS: dict[str, tuple[Method, type]] = {
    "binary": (BWN(), Binary),
    "unscaled": (BinaryConnect(), Binary),
    "stacked": (SLBF(f1=1 / 2, f2=1 / 2), Stacked),
}


@pytest.mark.parametrize("name", RECORDS)
def test_norms_fold_into_any_record(name: str) -> None:
    method, record = RECORDS[name]
    layer = method.layer(nn.Conv2d(8, 8, 3, padding=1))
    program = assert_parity(nn.Sequential(layer, norm(8)), (8, 6, 6))
    conv = only(program, Conv)
    assert isinstance(conv, Conv)
    assert kinds(program) == ["Conv"]
    assert isinstance(conv.weight, record)
    before = assert_parity(nn.Sequential(norm(8), method.layer(nn.Conv2d(8, 8, 3))), (8, 6, 6))
    assert kinds(before) == ["Affine", "Conv"]  # a scale per input channel does not fit into signs
    uniform = assert_parity(Function(lambda m, x: m.conv(x * 3 + 1), conv=method.layer(nn.Conv2d(8, 8, 3))), (8, 6, 6))
    assert kinds(uniform) == ["Conv"]


def test_dense_weights_take_their_scale() -> None:
    conv = only(assert_parity(nn.Sequential(nn.Conv2d(4, 6, 3), norm(6)), IMAGE), Conv)
    assert isinstance(conv, Conv)
    assert conv.scale is None
    assert isinstance(conv.weight, Dense)


def test_a_maximum_leaves_one_shift_to_store() -> None:
    program = to_program(nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), norm(6)), IMAGE)
    conv, affine = only(program, Conv), only(program, Affine)
    assert isinstance(conv, Conv)
    assert isinstance(affine, Affine)
    assert conv.shift is None
    assert affine.shift is not None


def test_a_nearly_dead_channel_keeps_its_digits_in_fp16() -> None:
    normal = norm(6, gain=1.0)
    with torch.no_grad():
        normal.weight[2] = 2.0**-14
    program = to_program(nn.Sequential(nn.Conv2d(4, 6, 3), normal), IMAGE)
    conv, stored = only(program, Conv), only(decode(encode(program)), Conv)
    assert isinstance(conv, Conv)
    assert isinstance(stored, Conv)
    exact, rounded = conv.weight.weight()[2], stored.weight.weight()[2]
    assert np.abs(rounded - exact).max() <= 2.0**-11 * np.abs(exact).max()


def test_a_layer_used_twice_keeps_one_record() -> None:
    model = Function(
        lambda m, x: m.n2(m.conv(F.relu(m.n1(m.conv(x))))),
        conv=nn.Conv2d(4, 4, 3, padding=1),
        n1=norm(4),
        n2=norm(4, gain=2.0),
    )
    assert_parity(model, IMAGE)
    first, second = (op for op in to_program(model, IMAGE).ops if isinstance(op, Conv))
    assert first.weight is second.weight
    assert first.scale is not None
    assert second.scale is not None
    assert not np.array_equal(first.scale, second.scale)


# --------------------------------------------------------------------------------------- binary inputs


def binarised(*before: nn.Module, padding: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3), *before, BNN().layer(nn.Conv2d(8, 8, 3, padding=padding)))


SIGNS: dict[str, tuple[nn.Module, list[str]]] = {
    "hardtanh": (binarised(norm(8), nn.Hardtanh()), ["Conv", "Conv"]),
    "tanh": (binarised(nn.Tanh()), ["Conv", "Conv"]),
    "leaky_relu": (binarised(nn.LeakyReLU()), ["Conv", "Conv"]),
    "lopsided_hardtanh": (binarised(nn.Hardtanh(0.0, 1.0)), ["Conv", "Activation", "Conv"]),
    "relu": (binarised(nn.ReLU()), ["Conv", "Activation", "Conv"]),
    "positive_scale": (
        nn.Sequential(nn.ReLU6(), Function(lambda m, x: x * 0.5), BNN().layer(nn.Conv2d(4, 8, 3))),
        ["Activation", "Affine", "Conv"],  # whether a scale is positive is no matter of structure
    ),
    "norm_alone": (nn.Sequential(norm(4), BNN().layer(nn.Conv2d(4, 8, 3))), ["Affine", "Conv"]),
    "zero_padding_of_values": (nn.Sequential(nn.ZeroPad2d(1), BNN().layer(nn.Conv2d(4, 8, 3))), ["Pad", "Conv"]),
}


@pytest.mark.parametrize("name", SIGNS)
def test_before_layers_that_take_signs(name: str) -> None:
    model, expected = SIGNS[name]
    assert kinds(assert_parity(model, IMAGE)) == expected


def test_hardtanh_with_another_user_stays() -> None:
    model = Function(
        lambda m, x: (lambda y: m.conv(y) + y)(F.hardtanh(x)),
        conv=BNN().layer(nn.Conv2d(4, 4, 3, padding=1, bias=False)),
    )
    assert kinds(assert_parity(model, IMAGE)) == ["Activation", "Conv", "Arithmetic"]


# -------------------------------------------------------------------------------------------- movement


def test_zero_padding_becomes_the_convolution_s_own() -> None:
    program = assert_parity(nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(4, 6, 3, padding=1)), IMAGE)
    conv = only(program, Conv)
    assert isinstance(conv, Conv)
    assert conv.padding == (1, 4, 2, 3)
    assert kinds(program) == ["Conv"]


def test_channels_last_normalisation_needs_no_permutation() -> None:
    model = Function(lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=nn.LayerNorm(4))
    program = assert_parity(model, IMAGE)
    layer_norm = only(program, LayerNorm)
    assert isinstance(layer_norm, LayerNorm)
    assert kinds(program) == ["LayerNorm"]
    assert layer_norm.dim == 0


def test_permutations_and_reshapes_merge() -> None:
    class Moves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.permute(0, 2, 3, 1).permute(0, 3, 1, 2).reshape(-1, 4, 64).reshape(-1, 2, 128).flatten(1)
            return x.reshape(-1, 256, 1, 1).permute(0, 2, 1, 3).flatten(1)

    assert kinds(assert_parity(Moves(), IMAGE)) == ["Reshape"]


def test_what_nobody_needs_is_gone() -> None:
    model = Function(lambda m, x: (m.conv(x), m.other(x))[0], conv=nn.Conv2d(4, 6, 3), other=nn.Conv2d(4, 60, 3))
    assert kinds(assert_parity(model, IMAGE)) == ["Conv"]


def test_expanded_values_are_broadcast() -> None:
    assert kinds(assert_parity(Function(lambda m, x: x * x.mean((2, 3), keepdim=True).expand_as(x)), IMAGE)) == [
        "Mean",
        "Arithmetic",
    ]


def test_uniform_scales_that_cannot_fold_are_one_number() -> None:
    program = assert_parity(Function(lambda m, x: F.relu(x * 0.5 + 1)), (64, 4, 4))
    assert not any(isinstance(op, Affine) for op in program.ops)
    assert sum(array.size for op in program.ops for _, array in op.arrays()) == 2


# ------------------------------------------------------------------------------ weights of compressed layers


def test_the_weight_of_a_compressed_layer_in_a_functional_keeps_its_record() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SLBF(f1=1 / 2, f2=1 / 2).layer(nn.Conv2d(8, 8, 3))
            self.linear = BWN().layer(nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = F.conv2d(x, self.conv.weight, stride=2).mean((2, 3))
            return F.linear(y, self.linear.weight, self.linear.bias)

    program = assert_parity(Outer(), (8, 9, 9))
    conv, linear = only(program, Conv), only(program, Linear)
    assert isinstance(conv, Conv)
    assert isinstance(linear, Linear)
    assert isinstance(conv.weight, Stacked)
    assert isinstance(linear.weight, Binary)


class Functionals(nn.Module):
    """Layers that are never called: another module hands their parameters to functionals."""

    def __init__(self) -> None:
        super().__init__()
        linear = nn.Linear(8, 4)
        self.inner = nn.ModuleDict({"conv": nn.Conv2d(8, 8, 3), "norm": norm(8), "linear": linear})
        self.tied = nn.Linear(8, 4)
        self.tied.weight = linear.weight

    def forward(self, x: Tensor) -> Tensor:
        conv: Any = self.inner["conv"]
        norm: Any = self.inner["norm"]
        linear: Any = self.inner["linear"]
        x = F.relu(F.conv2d(x, conv.weight))
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias).mean((2, 3))
        y: Tensor = F.linear(x, linear.weight, linear.bias) + x @ linear.weight.t() + self.tied(x)
        return y


@pytest.mark.parametrize("method", [None, SLBF(f1=1 / 2, f2=1 / 2)], ids=["dense", "slbf"])
def test_operations_are_named_after_the_layer_whose_weight_they_use(method: Method | None) -> None:
    model = Functionals()
    if method is not None:
        model.inner["conv"] = method.layer(nn.Conv2d(8, 8, 3))
    program = to_program(model, (8, 9, 9))
    names = ["inner.conv", "inner.linear", "inner.linear", "tied"]
    assert [op.name for op in program.weighted()] == names
    assert only(program, Affine).name == "inner.norm"
    rows = {row.name: row for row in subbit.inspect(model, (8, 9, 9)).rows}
    assert rows["inner.conv"].stored.filters > 0
    assert rows["inner.norm"].stored_bits > 0


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("method", [SLBF(f1=1 / 2, f2=1 / 2), BNN()], ids=["slbf", "bnn"])
def test_padding_modes_of_compressed_layers(
    method: Method, mode: Literal["zeros", "reflect", "replicate", "circular"]
) -> None:
    layer = method.layer(nn.Conv2d(4, 4, (4, 3), padding="same", padding_mode=mode, dilation=(1, 2)))
    assert isinstance(layer, CompressedLayer)
    assert_parity(layer, IMAGE)


def test_names_are_the_paths_of_the_user_s_modules() -> None:
    model = subbit.models.resnet18(num_classes=10)
    names = [op.name for op in to_program(model, (3, 32, 32)).weighted()]
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    assert len(names) == len(set(names))
    assert set(names) == layers


def test_a_packed_form_of_another_shape_is_refused() -> None:
    wrong = Graph(
        ops={1: Pool(inputs=(0,), kind="max", kernel=(2, 2), stride=(2, 2))},
        shapes={0: (3, 8, 8), 1: (3, 8, 4)},
        origins={},
        output=1,
    )
    with pytest.raises(PackError, match=r"Pool, value 1\): PyTorch gives \(3, 8, 4\), its packed form \(3, 4, 4\)"):
        numbered(wrong)

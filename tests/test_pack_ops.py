"""Every spelling of every operation, PyTorch against the packed form."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbit.nn.lowering.lower import HANDLERS
from subbit.nn.lowering.pointwise import dropout, identity
from tests.parity import assert_parity, kinds

Function = Callable[[Tensor], Tensor]

IMAGE = (4, 9, 8)
ROW = (6, 11)
FLAT = (12,)


class Wrapped(nn.Module):
    """A function as a model."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(4, 6, 3), IMAGE),
    "stride_and_padding": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 0)), IMAGE),
    "dilation": (nn.Conv2d(4, 6, 3, dilation=(2, 3), padding=3, bias=False), IMAGE),
    "groups": (nn.Conv2d(4, 8, 3, groups=2, padding=1), IMAGE),
    "depthwise": (nn.Conv2d(4, 4, 5, groups=4, padding=2), IMAGE),
    "same_even_kernel": (nn.Conv2d(4, 6, (4, 2), padding="same"), IMAGE),
    "same_dilated": (nn.Conv2d(4, 6, 4, padding="same", dilation=(1, 2)), IMAGE),
    "valid": (nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    "reflect": (nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect"), IMAGE),
    "replicate": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"), IMAGE),
    "circular_same": (nn.Conv2d(4, 6, 4, padding="same", padding_mode="circular"), IMAGE),
    "conv1d": (nn.Conv1d(6, 4, 3, stride=2, padding=1), ROW),
    "conv1d_same_even": (nn.Conv1d(6, 4, 4, padding="same", dilation=2), ROW),
    "conv1d_circular": (nn.Conv1d(6, 4, 3, padding=2, padding_mode="circular"), ROW),
    "conv1d_groups": (nn.Conv1d(6, 6, 3, groups=3, dilation=2), ROW),
    "linear": (nn.Linear(12, 5), FLAT),
    "linear_on_rows": (nn.Linear(8, 5, bias=False), IMAGE),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layers(name: str) -> None:
    assert_parity(*CONVOLUTIONS[name])


WEIGHT = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))
MATRIX = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
GAIN = torch.linspace(-1, 2, 4)

FUNCTIONS: dict[str, tuple[Function, tuple[int, ...]]] = {
    # weights that are passed to functions
    "conv2d": (lambda x: F.conv2d(x, WEIGHT, GAIN.repeat(2)[:6], 2, 1), IMAGE),
    "conv2d_keywords": (lambda x: torch.conv2d(x, weight=WEIGHT, stride=(1, 2), padding=1), IMAGE),
    "conv1d": (lambda x: F.conv1d(x, WEIGHT[:, :, 0].repeat(1, 2, 1)[:, :6], padding=1), ROW),
    "linear": (lambda x: F.linear(x, MATRIX.t()), IMAGE),
    "matmul": (lambda x: x @ MATRIX, IMAGE),
    "matmul_method": (lambda x: x.matmul(MATRIX), IMAGE),
    "addmm": (lambda x: torch.addmm(torch.ones(5), x[:, :8], MATRIX), FLAT),
    "computed_weight": (lambda x: F.conv2d(x, WEIGHT / WEIGHT.std((1, 2, 3), keepdim=True)), IMAGE),
    "batch_norm": (lambda x: F.batch_norm(x, GAIN, GAIN.abs() + 1, GAIN, None), IMAGE),
    "aten_batch_norm": (
        lambda x: torch.batch_norm(x, GAIN, None, GAIN * 2, GAIN.abs() + 1, False, 0.1, 1e-3, False),
        IMAGE,
    ),
    "layer_norm": (lambda x: F.layer_norm(x, (8,), torch.arange(8.0), torch.ones(8), 1e-3), IMAGE),
    "layer_norm_three_dims": (lambda x: F.layer_norm(x, (4, 9, 8)), IMAGE),
    "group_norm": (lambda x: F.group_norm(x, 2, GAIN, GAIN), IMAGE),
    "group_norm_rows": (lambda x: F.group_norm(x, 3), ROW),
    "instance_norm": (lambda x: F.instance_norm(x, weight=GAIN, bias=GAIN), IMAGE),
    "instance_norm_running": (
        lambda x: F.instance_norm(x, GAIN, GAIN.abs() + 1, GAIN, GAIN, use_input_stats=False),
        IMAGE,
    ),
    # activations
    "relu": (lambda x: torch.relu(x) + F.relu(x - 1) + x.relu(), IMAGE),
    "relu6": (lambda x: F.relu6(3 * x), IMAGE),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3), IMAGE),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3, False), IMAGE),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 2.0), IMAGE),
    "sigmoid": (lambda x: torch.sigmoid(x) * x.sigmoid(), IMAGE),
    "swish_by_hand": (lambda x: x * torch.sigmoid(x), IMAGE),
    "hard_sigmoid": (lambda x: F.hardsigmoid(x), IMAGE),
    "hard_swish": (lambda x: F.hardswish(x), IMAGE),
    "hard_swish_by_hand": (lambda x: x * F.relu6(x + 3) / 6, IMAGE),
    "silu": (lambda x: F.silu(x), IMAGE),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), IMAGE),
    "tanh": (lambda x: torch.tanh(x), IMAGE),
    "sign": (lambda x: torch.sign(x) * x.sign(), IMAGE),
    "abs": (lambda x: abs(x) + x.abs() - torch.abs(x), IMAGE),
    "elu": (lambda x: F.elu(x, 0.7), IMAGE),
    "selu": (lambda x: F.selu(x), IMAGE),
    "softplus": (lambda x: F.softplus(x, 2.0, 1.0), IMAGE),
    "mish": (lambda x: F.mish(x), IMAGE),
    "softsign": (lambda x: F.softsign(x), IMAGE),
    "tanhshrink": (lambda x: F.tanhshrink(x), IMAGE),
    "glu": (lambda x: F.glu(x, 1), IMAGE),
    "prelu": (lambda x: F.prelu(x, GAIN), IMAGE),
    "prelu_single": (lambda x: F.prelu(x, torch.tensor([0.2])), IMAGE),
    "clamp": (lambda x: x.clamp(-0.5, 0.25), IMAGE),
    "clamp_one_side": (lambda x: torch.clamp(x, min=-0.5) + x.clamp_max(0.1) + x.clamp(min=0), IMAGE),
    # arithmetic
    "numbers": (lambda x: 1 - (2 * x + 3) / 4 - 0.5, IMAGE),
    "number_divided": (lambda x: 1 / (x.abs() + 1), IMAGE),
    "reversed_subtraction": (lambda x: torch.rsub(x, 2) + GAIN.reshape(4, 1, 1) - x, IMAGE),
    "alpha": (lambda x: torch.add(x, x * x, alpha=0.5).sub(x, alpha=2), IMAGE),
    "per_channel": (lambda x: x * GAIN.reshape(1, 4, 1, 1) + GAIN.reshape(4, 1, 1), IMAGE),
    "per_column": (lambda x: x * torch.linspace(0, 1, 8) + torch.linspace(0, 1, 9).reshape(9, 1), IMAGE),
    "tensor_first": (lambda x: GAIN.reshape(4, 1, 1) / (x.abs() + 1), IMAGE),
    "maximum": (lambda x: torch.maximum(x, -x) + torch.minimum(x, x * 2) + torch.max(x, x * 3), IMAGE),
    "in_place": (lambda x: (x * 1).add_(1).mul_(2).relu_(), IMAGE),
    "powers": (lambda x: x**2 + x.pow(3) + torch.square(x) + x**4 - x**7, IMAGE),
    "powers_below_zero": (lambda x: (x * x + 1) ** -0.5 + (x.abs() + 1).pow(-1) - (x * x + 1) ** -3, IMAGE),
    "powers_between": (lambda x: x.abs() ** 1.5 + torch.pow(F.relu(x), 0.75) + (x * x + 1) ** -0.3, IMAGE),
    "infinite_bounds": (lambda x: x.clamp(0.25, float("inf")) + F.hardtanh(x, -float("inf"), 0.5), IMAGE),
    "broadcast": (lambda x: x * x.mean((2, 3), keepdim=True) + x.mean(1, keepdim=True), IMAGE),
    "negation": (lambda x: -x + torch.neg(x) * 3, IMAGE),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.25), IMAGE),
    # pooling
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool_default_stride": (lambda x: F.max_pool2d(x, (2, 3)), IMAGE),
    "max_pool_ceil_dilated": (lambda x: F.max_pool2d(x, 2, 2, dilation=2, ceil_mode=True), IMAGE),
    "avg_pool": (lambda x: F.avg_pool2d(x, kernel_size=3, stride=1, padding=1), IMAGE),
    "avg_pool_exclude": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, ceil_mode=True), IMAGE),
    "avg_pool_ceil": (lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True), IMAGE),
    "avg_pool_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    "pool_rows": (lambda x: F.max_pool1d(x, 3, 2, 1) + F.avg_pool1d(x, 3, 2, 1), ROW),
    "pool_planes_without_channels": (lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1), ROW),
    "pool_flat": (lambda x: F.max_pool1d(x, 2) + F.avg_pool1d(x, 2) + F.adaptive_avg_pool1d(x, 6), FLAT),
    "adaptive_planes_without_channels": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), ROW),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)) + F.adaptive_max_pool2d(x, (4, 3)), IMAGE),
    "adaptive_none": (lambda x: F.adaptive_avg_pool2d(x, (None, 1)), IMAGE),
    "adaptive_rows": (lambda x: F.adaptive_avg_pool1d(x, 4) + F.adaptive_max_pool1d(x, 4), ROW),
    "mean": (lambda x: x.mean([2, 3]) + torch.mean(x, (-1, -2)) + x.mean(3).mean(2), IMAGE),
    "variance": (lambda x: x.var((2, 3), keepdim=True) * x + torch.var(x, 1, correction=0).unsqueeze(1), IMAGE),
    "deviation": (lambda x: torch.std(x, (2, 3)) + x.std(dim=(-1, -2), unbiased=False), IMAGE),
    "sum": (lambda x: x.sum((2, 3), keepdim=True) * x, IMAGE),
    "amax": (lambda x: torch.amax(x, (2, 3)) + x.amax(dim=(2, 3)) + x.max(3)[0].max(dim=2).values, IMAGE),
    "max_over_channels": (lambda x: torch.max(x, 1, keepdim=True)[0] + x.amin(1, keepdim=True), IMAGE),
    # padding and resampling
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), IMAGE),
    "pad_crops": (lambda x: F.pad(x, (-1, 2, 0, -3)), IMAGE),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), IMAGE),
    "pad_channels": (lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 3)), IMAGE),
    "pad_row": (lambda x: F.pad(x, (2, 1), mode="replicate"), ROW),
    "pad_planes_without_channels": (lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), ROW),
    "pad_flat_replicate": (lambda x: F.pad(x, (2, 1), mode="replicate"), FLAT),
    "pad_flat": (lambda x: F.pad(x, (2, 1), value=1.0), FLAT),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "nearest_to_size": (lambda x: F.interpolate(x, size=(13, 5)), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=(2.0, 1.5), mode="bilinear"), IMAGE),
    "bilinear_corners": (lambda x: F.interpolate(x, (12, 12), mode="bilinear", align_corners=True), IMAGE),
    "bilinear_recomputed": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        IMAGE,
    ),
    "linear_rows": (lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"), ROW),
    "area": (lambda x: F.interpolate(x, (4, 3), mode="area"), IMAGE),
    # movement
    "view_with_size": (lambda x: x.view(x.size(0), -1), IMAGE),
    "view_with_minus_one": (lambda x: x.view(-1, 4 * 9 * 8), IMAGE),
    "reshape_with_shape": (lambda x: x.reshape(x.shape[0], x.shape[1] * 3, -1), IMAGE),
    "flatten": (lambda x: torch.flatten(x, 1) + x.flatten(start_dim=1), IMAGE),
    "unflatten": (lambda x: torch.unflatten(x, 1, (2, 2)).flatten(2), IMAGE),
    "squeeze": (lambda x: x.mean(1, keepdim=True).squeeze(1).unsqueeze(-1).squeeze((1, 3)), IMAGE),
    "permute": (lambda x: x.permute(0, 2, 3, 1) * 2, IMAGE),
    "transpose": (lambda x: x.transpose(1, 2).swapaxes(-1, 2).contiguous(), IMAGE),
    "movedim": (lambda x: torch.movedim(x, 1, -1).moveaxis((1, 2), (3, 1)), IMAGE),
    "matrix_transpose": (lambda x: x.mT * 2, IMAGE),
    "channel_shuffle": (
        lambda x: x.view(x.shape[0], 2, 2, 9, 8).transpose(1, 2).contiguous().view(x.shape[0], -1, 9, 8),
        IMAGE,
    ),
    "channel_shuffle_function": (lambda x: F.channel_shuffle(x, 2), IMAGE),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x[:, :, :8], 2), IMAGE),
    "expand": (lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1), IMAGE),
    "expand_as": (lambda x: x * x.mean((2, 3), keepdim=True).expand_as(x), IMAGE),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), IMAGE),
    "tile": (lambda x: torch.tile(x, (1, 2, 1, 1)) + x.tile((2, 1, 1)), IMAGE),
    "cat": (lambda x: torch.cat([x, x * 2, torch.ones(x.shape[0], 1, 9, 8)], dim=1), IMAGE),
    "stack": (lambda x: torch.stack([x, x * 2], dim=2), IMAGE),
    "chunk": (lambda x: torch.cat(torch.chunk(x, 3, dim=2)[::-1], 2), IMAGE),
    "split": (lambda x: torch.cat([part * i for i, part in enumerate(torch.split(x, [1, 2, 1], 1))], 1), IMAGE),
    "split_equal": (lambda x: torch.split(x, 3, dim=3)[2] + torch.tensor_split(x, 4, 3)[1], IMAGE),
    "unbind": (lambda x: x.unbind(1)[0] - x.select(1, 2), IMAGE),
    "narrow": (lambda x: x.narrow(2, -3, 2), IMAGE),
    "slices": (lambda x: x[:, 1:3, ::2, -5:-1], IMAGE),
    "indices": (lambda x: x[:, 1] + x[:, -1, :, :] + x[..., None][:, 0, ..., 0], IMAGE),
    "unsqueezed_slice": (lambda x: torch.unsqueeze(x[:, 0], 1) * 0.458 + 0.1, IMAGE),
    "gather": (lambda x: x[:, [2, 3, 0]] + x.index_select(1, torch.tensor([0, 0, 1])), IMAGE),
    "flip": (lambda x: x.flip(3) + torch.flip(x, (2,)), IMAGE),
    "roll": (lambda x: x.roll(1, 2) + torch.roll(x, (2, -1), (3, 1)), IMAGE),
    "softmax": (lambda x: F.softmax(x, 1) + x.softmax(dim=-1) + torch.softmax(x, 2), IMAGE),
    "log_softmax": (lambda x: F.log_softmax(10 * x, 1) + x.log_softmax(dim=-1), IMAGE),
    "log_softmax_flat": (lambda x: F.log_softmax(x, dim=1), FLAT),
    "norm": (
        lambda x: x.norm(p=2, dim=(2, 3), keepdim=True) * x + torch.linalg.vector_norm(x, dim=1, keepdim=True),
        IMAGE,
    ),
    "normalize": (lambda x: F.normalize(x) + F.normalize(x, p=1, dim=2), IMAGE),
    "roots": (lambda x: (x * x + 1).sqrt() + (x.abs() + 1).log() + torch.rsqrt(x.exp() + 1), IMAGE),
    "logsigmoid": (lambda x: F.logsigmoid(20 * x), IMAGE),
    # nothing at all
    "dropout": (lambda x: F.dropout(x, 0.5, training=False) + 1, IMAGE),
    "copies": (lambda x: x.clone().detach().float().to(x.device).contiguous() + 1, IMAGE),
    "shape_arithmetic": (lambda x: x[:, : x.shape[1] // 2] if x.dim() == 4 and len(x) > 0 else x * 2, IMAGE),
    "zeros": (lambda x: torch.cat([x, torch.zeros_like(x[:, :1]), x.new_full((x.size(0), 1, 9, 8), 3.0)], 1), IMAGE),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, shape = FUNCTIONS[name]
    assert_parity(Wrapped(function), shape)


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch_norm_2d": (nn.BatchNorm2d(4), IMAGE),
    "batch_norm_1d": (nn.BatchNorm1d(12), FLAT),
    "batch_norm_rows": (nn.BatchNorm1d(6), ROW),
    "group_norm": (nn.GroupNorm(2, 4), IMAGE),
    "instance_norm": (nn.InstanceNorm2d(4, affine=True), IMAGE),
    "layer_norm": (nn.LayerNorm(8), IMAGE),
    "rms_norm": (nn.Sequential(nn.RMSNorm(8), nn.RMSNorm((9, 8), eps=1e-3, elementwise_affine=False)), IMAGE),
    "local_response_norm": (nn.LocalResponseNorm(3, alpha=0.5, k=2.0), IMAGE),
    "local_response_norm_even": (nn.LocalResponseNorm(2, alpha=0.5, beta=0.5), ROW),
    "zero_pad": (nn.ZeroPad2d((1, 2, 3, 0)), IMAGE),
    "reflection_pad": (nn.ReflectionPad2d(2), IMAGE),
    "replication_pad": (nn.ReplicationPad2d((1, 0, 2, 1)), IMAGE),
    "circular_pad": (nn.CircularPad2d(1), IMAGE),
    "circular_pad_that_crops": (
        nn.Sequential(nn.CircularPad2d((2, -1, 0, 1)), nn.CircularPad2d((-2, 2, 1, -3))),
        IMAGE,
    ),
    "constant_pad": (nn.ConstantPad2d(1, -2.0), IMAGE),
    "upsample": (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), IMAGE),
    "upsampling_bilinear": (nn.UpsamplingBilinear2d(scale_factor=2), IMAGE),
    "upsampling_nearest": (nn.UpsamplingNearest2d(size=(5, 5)), IMAGE),
    "prelu": (nn.PReLU(4), IMAGE),
    "softmax2d": (nn.Softmax2d(), IMAGE),
    "flatten": (nn.Flatten(), IMAGE),
    "unflatten": (nn.Unflatten(1, (2, 2)), IMAGE),
    "dropout": (nn.Sequential(nn.Dropout2d(0.5), nn.Tanh(), nn.AlphaDropout(), nn.Identity()), IMAGE),
    "pixel_shuffle": (nn.PixelShuffle(2), IMAGE),
    "hardtanh": (nn.Hardtanh(-2, 0.5), IMAGE),
    "chain": (nn.Sequential(nn.CELU(0.5), nn.Softplus(), nn.Softsign(), nn.Hardswish(inplace=True)), IMAGE),
    "max_pool": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "avg_pool": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "adaptive_max_pool": (nn.AdaptiveMaxPool2d((2, 3)), IMAGE),
    "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 3, 3)), IMAGE),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    model, shape = MODULES[name]
    assert_parity(model, shape)


def test_identity_operations_leave_no_trace() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(), nn.Identity(), nn.Dropout2d(), nn.Flatten(), nn.Flatten())
    assert kinds(assert_parity(model, IMAGE)) == ["Conv", "Reshape"]


def test_a_network_that_does_nothing() -> None:
    program = assert_parity(nn.Identity(), IMAGE)
    assert program.ops == ()
    assert program.output_value == 0


class InPlace(nn.Module):
    """An activation in place changes what its input means for everyone, here for the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        y: Tensor = self.branch(x)
        return y + x


def test_in_place_changes_reach_the_shortcut() -> None:
    assert_parity(InPlace(), IMAGE)


def test_in_place_changes_through_a_view_are_refused() -> None:
    from subbit.errors import PackError

    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[:, :2].relu_()
        return y

    with pytest.raises(PackError, match="in place through a view"):
        assert_parity(Wrapped(function), IMAGE)


SIZES: list[tuple[Any, tuple[int, ...]]] = [
    (nn.AdaptiveAvgPool2d(1), (4, 1, 1)),
    (nn.AdaptiveAvgPool2d(5), (4, 3, 2)),
    (nn.Conv2d(4, 2, 3, padding=1), (4, 1, 1)),
    (nn.Conv2d(4, 2, 3, stride=3), (4, 17, 3)),
    (nn.MaxPool2d(2), (4, 31, 2)),
]


@pytest.mark.parametrize(("model", "shape"), SIZES)
def test_unusual_sizes(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert_parity(model, shape)


def test_the_documented_operations_are_the_supported_ones() -> None:
    page = (Path(__file__).parent.parent / "docs" / "packing.md").read_text()
    table = page.split("<!-- operations: begin -->")[1].split("<!-- operations: end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`(\w+)`", "".join(row.replace("/", " ") for row in rows)))
    assert named - set(HANDLERS) <= {"None"}
    gone = {name for name, handler in HANDLERS.items() if handler in (dropout, identity)}
    assert set(HANDLERS) - gone <= named

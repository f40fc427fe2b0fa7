"""Networks of all families, dense and compressed: PyTorch against the packed network in the C core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import subbit
from subbit.errors import PackError
from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet, XNORNet
from subbit.methods.base import CompressedLayer, Method
from subbit.nn.pack import to_program
from tests.parity import assert_parity, randomise_norms
from tests.zoo_models import FAMILIES, INPUTS, UNTRACEABLE, build

READABLE = [name for name in FAMILIES if name not in UNTRACEABLE]
STACKED = SLBF(f1=1 / 2, f2=1 / 2)

OTHER_METHODS: dict[str, tuple[str, Method]] = {
    "bnn_resnet": ("resnet", BNN()),
    "bnn_vgg": ("vgg", BNN()),
    "bnn_audio": ("audio", BNN()),
    "xnornet_preactivation": ("resnet_preactivation", XNORNet()),
    "xnornet_input_scale": ("resnet_preactivation", XNORNet(input_scale=True)),
    "xnornet_input_scale_grouped": ("resnext", XNORNet(input_scale=True)),
    "xnornet_input_scale_rows": ("audio", XNORNet(input_scale=True)),
    "legonet_resnext": ("resnext", LegoNet(f1=1 / 2, f2=1 / 2)),
    "legonet_inception": ("inception_v3", LegoNet(f1=1 / 2, f2=1 / 4)),
    "binaryconnect_densenet": ("densenet", BinaryConnect()),
    "slbf_fixed_shufflenet": ("shufflenet_v2", SLBF(f1=1 / 2, f2=1 / 2, selection="fixed")),
    "slbf_unscaled_googlenet": ("googlenet", SLBF(f1=1, f2=1 / 2, scale=False)),
}


def compressed(name: str, method: Method) -> nn.Module:
    """A network of the zoo compressed, with BatchNorm gains of both signs; at least one layer must be."""
    model = subbit.compress(build(name)[0], method)
    assert any(isinstance(module, CompressedLayer) for module in model.modules())
    return randomise_norms(model)


@pytest.mark.parametrize("name", READABLE)
def test_dense(name: str) -> None:
    assert_parity(randomise_norms(build(name)[0]), INPUTS[name])


@pytest.mark.parametrize("name", READABLE)
def test_stacked(name: str) -> None:
    assert_parity(compressed(name, STACKED), INPUTS[name])


@pytest.mark.parametrize("name", READABLE)
def test_binary_weights(name: str) -> None:
    assert_parity(compressed(name, BWN()), INPUTS[name], batches=(2,))


@pytest.mark.parametrize("case", OTHER_METHODS)
def test_other_methods(case: str) -> None:
    name, method = OTHER_METHODS[case]
    assert_parity(compressed(name, method), INPUTS[name], batches=(2,))


@pytest.mark.parametrize("name", ["resnet", "mobilenet_v3", "inception_v3", "shufflenet_v2", "convnext", "densenet"])
@pytest.mark.parametrize("size", [(3, 40, 33), (3, 57, 64)], ids=["40x33", "57x64"])
def test_other_input_sizes(name: str, size: tuple[int, int, int]) -> None:
    assert_parity(randomise_norms(build(name)[0]), size, batches=(1,))


@pytest.mark.parametrize("name", sorted(UNTRACEABLE))
def test_control_flow_on_values_is_refused(name: str) -> None:
    with pytest.raises(PackError, match="depends on the values of its input"):
        to_program(build(name)[0], INPUTS[name])


# ------------------------------------------------------------------------------ constructs of their own


class StochasticDepth(nn.Module):
    """Drops whole branches in training; a function for torch.fx to leave alone in the libraries that have it."""

    def forward(self, x: Tensor) -> Tensor:
        return drop_branch(x, 0.5, self.training)


def drop_branch(x: Tensor, p: float, training: bool) -> Tensor:
    if p == 0.0 or not training:
        return x
    return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(1 - p) / (1 - p)


torch.fx.wrap("drop_branch")


class ShapeLogic(nn.Module):
    """Control flow and arithmetic on shapes, assertions, logging: nothing of it reaches the packed network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.depth = StochasticDepth()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        torch._assert(x.dim() == 4, "a batch of pictures")  # type: ignore[no-untyped-call]
        assert x.shape[1] == 3
        n, _, height, width = x.shape
        if height % 4 or width % 4:
            x = nn.functional.pad(x, (0, -width % 4, 0, -height % 4))
        y = self.conv(x)
        for _ in range(y.size(1) // 4):
            y = y + self.depth(torch.relu(y))
        scale = y.shape[1] ** -0.5
        y = (y * scale).view(n, 8, -1).mean(dim=-1)
        return {"logits": self.head(y)}


def test_shape_logic() -> None:
    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ShapeLogic()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)["logits"]
            return logits

    torch.manual_seed(0)
    assert_parity(Logits(), (3, 10, 9))
    program = to_program(ShapeLogic(), (3, 10, 9))  # a dictionary with one tensor needs no choice
    assert program.ops[-1].name == "head"


class TiedAttention(nn.Module):
    """Channel attention with a 1-d convolution over channels, spatial attention with maxima over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.channels = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.places = nn.Conv2d(2, 1, 3, padding=1)
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weights = self.channels(x.mean((2, 3)).view(x.shape[0], 1, -1)).sigmoid()
        x = x * weights.view(x.shape[0], -1, 1, 1).expand_as(x)
        both = torch.cat([x.mean(1, keepdim=True), x.max(dim=1, keepdim=True).values], 1)
        x = x * torch.sigmoid(self.places(both))
        x = x.permute(0, 2, 3, 1) * self.gamma
        return x.permute(0, 3, 1, 2).amax((2, 3))


class EncoderDecoder(nn.Module):
    """Features resampled to the size of earlier ones, padded to fit, and joined with them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2)
        self.deeper = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.down(x))
        coarse = nn.functional.interpolate(torch.relu(self.deeper(fine)), scale_factor=1.5, mode="bilinear")
        missing = [have - got for have, got in zip(fine.shape[2:], coarse.shape[2:], strict=True)]
        coarse = nn.functional.pad(coarse, (0, missing[1], missing[0] // 2, missing[0] - missing[0] // 2))
        result: Tensor = self.up(torch.cat([fine, coarse], 1))
        return result


class Standardised(nn.Conv2d):
    """A convolution that standardises its weight in every pass, mixed with others by learned shares."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.flatten(1).std(1).view(-1, 1, 1, 1) + 1e-5)
        return nn.functional.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choices = nn.ModuleList(
            [Standardised(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 5, padding=2)]
        )
        self.shares = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.shares, 0)
        parts = [shares[i] * choice(x) for i, choice in enumerate(self.choices)]
        return torch.stack(parts, 1).sum(1)


CONSTRUCTS: dict[str, Callable[[], nn.Module]] = {
    "attention_without_products": TiedAttention,
    "encoder_decoder": EncoderDecoder,
    "mixture_of_convolutions": Mixture,
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(name: str) -> None:
    torch.manual_seed(0)
    assert_parity(CONSTRUCTS[name](), (3, 17, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_pack_as_their_values(dtype: torch.dtype) -> None:
    model = randomise_norms(build("resnet")[0])
    rounded = model.to(dtype).to(torch.float32)
    program = to_program(model.to(dtype), INPUTS["resnet"], storage="f32")
    same = to_program(rounded, INPUTS["resnet"], storage="f32")
    assert subbit.format.encode(program) == subbit.format.encode(same)

"""What cannot be packed gets an error that says what, where and why; the user's model stays as it was."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbit
from subbit.errors import PackError
from subbit.methods import BNN, SLBF
from subbit.nn.pack import input_shape, pack, to_program
from tests.zoo_models import INPUTS, build

IMAGE = (4, 8, 8)


class Block(nn.Module):
    """A function inside a named block."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def nested(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sequential(nn.ReLU(), module))


UNSUPPORTED: dict[str, tuple[nn.Module, str]] = {
    "transposed_convolution": (
        nn.ConvTranspose2d(4, 4, 2),
        r"1\.1 \(ConvTranspose2d\): the operation conv_transpose2d",
    ),
    "cubic": (nn.Upsample(scale_factor=2, mode="bicubic"), r"1\.1 \(Upsample\): mode 'bicubic'.*nearest, bilinear"),
    "attention": (Block(lambda x: torch.matmul(x, x.transpose(2, 3))), r"1\.1 \(Block\): a product of two computed"),
    "comparison": (
        Block(lambda x: torch.where(x > 0, x, 0 * x)),
        r"1\.1 \(Block\): the operation gt has no packed form",
    ),
    "sorting": (Block(lambda x: x.sort(dim=1)[0]), r"1\.1 \(Block\): the operation sort"),
    "pooling_indices": (Block(lambda x: F.max_pool2d(x, 2, return_indices=True)[0]), r"1\.1 \(Block\): .*ind"),
    "argmax": (Block(lambda x: x.max(1).indices), r"indices"),
    "whole_numbers": (Block(lambda x: x.to(torch.int64)), r"int64"),
    "batch_statistics": (nn.BatchNorm2d(4, track_running_stats=False), r"1\.1 \(BatchNorm2d\): .*track_running_stats"),
    "dropout_in_eval": (Block(lambda x: F.dropout(x, 0.5)), r"training=self.training"),
    "random": (Block(lambda x: x + torch.rand_like(x)), r"rand_like"),
    "complex": (Block(lambda x: torch.fft.fft(x).real), r"fft"),
    "power_that_is_trained": (
        Block(lambda x: x.abs() ** torch.full((4, 1, 1), 2.0)),
        r"1\.1 \(Block\): a power that is not a number",
    ),
    "power_zero": (Block(lambda x: x**0), r"1\.1 \(Block\): power 0: supported are"),
    "several_lists": (Block(lambda x: x[:, [0, 1], [2, 3]]), r"1\.1 \(Block\): an index of several lists"),
    "private_name": (nn.Threshold(0.1, 20), r"1\.1 \(Threshold\): the operation threshold"),
    "near_miss": (Block(lambda x: torch.erf(x)), r"the operation erf has no packed form"),
}

MIXING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "flattened_batch": (lambda x: x.view(1, -1), "mixes the batch"),
    "mean_over_batch": (lambda x: x - x.mean(0, keepdim=True), "batch"),
    "mean_over_everything": (lambda x: x - x.mean(), "batch"),
    "first_image": (lambda x: x[0:1], "mixes the batch"),
    "reversed_batch": (lambda x: x.flip(0), "batch"),
    "transposed_batch": (lambda x: x.transpose(0, 1), "batch"),
    "batch_into_channels": (lambda x: x.reshape(-1, 2, 8, 8), "mixes the batch"),
    "divided_by_batch": (lambda x: x / x.shape[0], "size of the batch"),
    "padded_batch": (lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0)), "batch"),
    "repeated_batch": (lambda x: x.repeat(2, 1, 1, 1), "batch"),
    "counted_images": (lambda x: x + torch.arange(x.shape[0]).reshape(-1, 1, 1, 1), "image to image"),
}

VALUES: dict[str, Callable[[Tensor], Any]] = {
    "if": lambda x: x if x.sum() > 0 else -x,
    "float": lambda x: x * float(x.abs().max()),
    "item": lambda x: x * x.max().item(),
    "loop": lambda x: [row * 2 for row in x],
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_operations_are_named_with_their_module(name: str) -> None:
    module, message = UNSUPPORTED[name]
    with pytest.raises(PackError, match=message):
        to_program(nested(module), IMAGE)


@pytest.mark.parametrize("name", MIXING)
def test_images_must_not_mix(name: str) -> None:
    function, message = MIXING[name]
    with pytest.raises(PackError, match=message):
        to_program(nested(Block(function)), IMAGE)


@pytest.mark.parametrize("name", VALUES)
def test_control_flow_on_values(name: str) -> None:
    with pytest.raises(PackError, match=r"1\.1 \(Block\) cannot be packed"):
        to_program(nested(Block(VALUES[name])), IMAGE)


def test_the_list_of_what_is_supported_is_in_the_message() -> None:
    with pytest.raises(PackError, match=r"Supported are convolutions .* docs/packing.md"):
        to_program(Block(torch.erf), IMAGE)


def test_a_model_that_does_not_fit_the_input() -> None:
    with pytest.raises(PackError, match=r"0 \(Conv2d\) cannot be packed.*here \(N, 3, 8, 8\)"):
        to_program(nested(nn.Identity()), (3, 8, 8))


def test_diverged_weights() -> None:
    model = nested(nn.Conv2d(4, 4, 3))
    with torch.no_grad():
        model[1][1].weight[0, 0, 0, 0] = float("nan")  # type: ignore[index]
    with pytest.raises(PackError, match=r"1\.1 \(Conv2d\): its weight cannot be stored.*NaN"):
        to_program(model, IMAGE)


def test_a_variance_that_cannot_be() -> None:
    model = nested(nn.BatchNorm2d(4))
    model[1][1].running_var.fill_(-1)  # type: ignore[index]
    with pytest.raises(PackError, match="NaN"):
        pack(model, "never.sbit", example=IMAGE)
    assert not Path("never.sbit").exists()


def test_modules_that_are_not_materialised() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3))
    with pytest.raises(PackError, match="run one batch"):
        to_program(model, IMAGE)
    assert isinstance(model[0].weight, nn.UninitializedParameter)


@pytest.mark.parametrize("part", ["weight", "running_mean"])
def test_values_that_are_nowhere(part: str) -> None:
    model = nested(nn.BatchNorm2d(4))
    setattr(model[1][1], part, getattr(nn.BatchNorm2d(4, device="meta"), part))  # type: ignore[index]
    with pytest.raises(PackError, match=rf"1\.1\.{part} is on the meta device"):
        to_program(model, IMAGE)


def test_scripted_modules() -> None:
    with pytest.raises(PackError, match="is TorchScript: pack the model it was made from"):
        to_program(nested(torch.jit.script(nn.Conv2d(4, 4, 1))), IMAGE)


class Gate(nn.Module):
    """Calls a function that TorchScript compiled."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = scripted_gate(x, 2.0)
        return y


def gate(x: Tensor, slope: float) -> Tensor:
    return x * torch.sigmoid(slope * x)


scripted_gate = torch.jit.script(gate)


def test_scripted_functions() -> None:
    with pytest.raises(PackError, match=r"\(Gate\).* calls gate, a TorchScript function.*plain Python function"):
        to_program(nested(Gate()), IMAGE)


# -------------------------------------------------------------------------------------- inputs, outputs


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
        return x + y


def test_several_inputs() -> None:
    with pytest.raises(PackError, match=r"takes 2 inputs \(x, y\)"):
        to_program(TwoInputs(), IMAGE)


Pair = namedtuple("Pair", ["logits", "aux"])

SEVERAL: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "dictionary": (lambda x: {"out": x + 1, "aux": x * 2}, "aux"),
    "named_tuple": (lambda x: Pair(x + 1, x * 2), "aux"),
    "tuple": (lambda x: (x + 1, x * 2), "1"),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_outputs_need_a_choice(kind: str) -> None:
    function, key = SEVERAL[kind]
    with pytest.raises(PackError, match=r"gives 2 tensors .*output="):
        to_program(Block(function), IMAGE)
    with pytest.raises(PackError, match="has no output 'nothing': choose from"):
        to_program(Block(function), IMAGE, output="nothing")
    program = to_program(Block(function), IMAGE, output=key)
    (op,) = program.ops
    x = torch.randn(2, *IMAGE)
    from subbit.nn.reference import run

    assert torch.equal(run(program, x)[-1], x * 2)
    assert type(op).__name__ == "Affine"


SINGLE: list[Callable[[Tensor], Any]] = [
    lambda x: (x * 2,),
    lambda x: {"out": x * 2},
    lambda x: {"out": x * 2, "loss": None},
    lambda x: Pair(x * 2, None),
]


@pytest.mark.parametrize("function", SINGLE, ids=["tuple", "dictionary", "none_beside_it", "named_tuple"])
def test_a_single_tensor_in_a_container_needs_none(function: Callable[[Tensor], Any]) -> None:
    assert len(to_program(Block(function), IMAGE).ops) == 1


@pytest.mark.parametrize("function", [lambda x: None, lambda x: [], lambda x: "text"], ids=["none", "list", "text"])
def test_no_tensor_at_all(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(PackError, match="supported is an output of one tensor"):
        to_program(Block(function), IMAGE)


def test_an_output_that_ignores_the_input() -> None:
    with pytest.raises(PackError, match="does not depend on the input"):
        to_program(Block(lambda x: torch.ones(x.shape[0], 3)), IMAGE)


def test_examples() -> None:
    assert input_shape(torch.zeros(7, 3, 32, 32)) == (3, 32, 32)
    assert input_shape((3, 32, 32)) == (3, 32, 32)
    assert input_shape([1, 3, 32, 32]) == (3, 32, 32)
    assert input_shape((16,)) == (16,)
    assert input_shape(torch.Size([2, 100])) == (2, 100)


@pytest.mark.parametrize("example", [torch.zeros(3), (), (0, 3), (3, -1, 4), "3x32", None, 7], ids=str)
def test_wrong_examples(example: Any) -> None:
    with pytest.raises(PackError, match=r"example"):
        to_program(nn.ReLU(), example)


def test_wrong_arguments() -> None:
    with pytest.raises(PackError, match=r"nn\.Module"):
        to_program(lambda x: x, IMAGE)  # type: ignore[arg-type]
    with pytest.raises(PackError, match="'f16' or 'f32'"):
        to_program(nn.ReLU(), IMAGE, storage="f8")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ the user's model


def test_the_model_is_left_as_it_was() -> None:
    model = subbit.compress(build("resnet")[0], SLBF(f1=1 / 2, f2=1 / 2)).train()
    model.get_submodule("layer1").eval()  # a mixture of modes, as for frozen stages
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    to_program(model, INPUTS["resnet"])
    assert [module.training for module in model.modules()] == modes
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = nested(Block(torch.erf)).train()
    with pytest.raises(PackError):
        to_program(model, IMAGE)
    assert all(module.training for module in model.modules())
    model(torch.randn(1, *IMAGE)).sum().backward()


def test_wrappers_are_looked_through() -> None:
    model = nested(nn.Conv2d(4, 2, 3)).eval()
    expected = subbit.format.encode(to_program(model, IMAGE))
    wrappers: list[Any] = [torch.compile(model, backend="eager"), nn.DataParallel(model)]
    for wrapped in wrappers:
        assert subbit.format.encode(to_program(wrapped, IMAGE)) == expected


PICTURE = subbit.records.Preprocessing((0.5,), (0.2,), (28, 28))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a"]}, r"labels: 1 names for an output of shape \(3,\)"),
        ({"labels": "abc"}, "is one string"),
        ({"labels": [0, 1, 2]}, "labels: 0 is not a name"),
        ({"preprocessing": replace(PICTURE, mean=(0.5,) * 3, std=(0.2,) * 3)}, "3 means, 3 deviations"),
        ({"preprocessing": replace(PICTURE, size=(32, 32))}, r"the size \(32, 32\)"),
        ({"preprocessing": ((0.5,), (0.2,), (28, 28))}, "give a subbit.records.Preprocessing"),
        ({"preprocessing": replace(PICTURE, size=28)}, "give a subbit.records.Preprocessing"),  # type: ignore[arg-type]
    ],
)
def test_labels_and_pictures_of_another_network(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))
    with pytest.raises(PackError, match=message):
        pack(model, tmp_path / "net.sbit", example=(1, 28, 28), **options)
    assert not list(tmp_path.iterdir())
    pack(model, tmp_path / "net.sbit", example=(1, 28, 28), labels=["a", "b", "c"], preprocessing=PICTURE)


def test_labels_of_a_network_that_gives_single_numbers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 1), nn.Flatten(0))
    pack(model, tmp_path / "net.sbit", example=(1, 28, 28))
    with pytest.raises(PackError, match=r"labels: 1 names for an output of shape \(\)"):
        pack(model, tmp_path / "net.sbit", example=(1, 28, 28), labels=["a"])


def test_signs_of_a_gelu_are_warned_of() -> None:
    layers = [nn.Conv2d(3, 8, 3), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)]
    model = subbit.compress(nn.Sequential(*layers), BNN(), keep=["5"]).eval()
    with pytest.warns(UserWarning, match="3 takes the signs of a GELU"):
        to_program(model, (3, 12, 12))

"""Packed files: their size is the predicted one, they appear whole or not at all, and they are as small as promised."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbit
from subbit.errors import PackError
from subbit.format import decode, encode, sizes
from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet, XNORNet
from subbit.methods.base import Method
from subbit.nn.pack import to_program
from subbit.records import Preprocessing, Storage
from tests.parity import assert_parity, outputs, randomise_norms
from tests.zoo_models import INPUTS, build

METHODS: dict[str, Method | None] = {
    "dense": None,
    "slbf": SLBF(f1=1 / 2, f2=1 / 4),
    "slbf_fixed": SLBF(f1=1 / 4, f2=1 / 4, selection="fixed"),
    "slbf_unscaled": SLBF(f1=1 / 2, f2=1 / 2, scale=False),
    "legonet": LegoNet(f1=1 / 4, f2=1 / 4),
    "binaryconnect": BinaryConnect(),
    "bwn": BWN(),
    "bnn": BNN(),
    "xnornet": XNORNet(),
    "xnornet_input_scale": XNORNet(input_scale=True),
}


def compressed(model: nn.Module, method: Method | None) -> nn.Module:
    return randomise_norms(model if method is None else subbit.compress(model, method))


def small(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name == "lenet5":
        return subbit.models.lenet5(), (1, 28, 28)
    return build(name)[0], INPUTS[name]


@pytest.mark.parametrize(("name", "storage"), [("lenet5", "f16"), ("vgg", "f32"), ("resnet", "f16")])
@pytest.mark.parametrize("method", METHODS)
def test_the_file_has_the_predicted_size(method: str, name: str, storage: Storage, tmp_path: Path) -> None:
    dense, shape = small(name)
    model = compressed(dense, METHODS[method])
    path = tmp_path / "net.sbit"
    result = subbit.pack(model, path, example=torch.zeros(1, *shape), storage=storage)
    assert result.path == path
    assert os.path.getsize(path) == result.bytes == subbit.inspect(model, shape, storage=storage).stored_bytes
    size = sizes(result.program)
    assert size.total == 8 * result.bytes
    assert size.overhead <= 0.01 * size.total + 8 * 512


@pytest.mark.parametrize("method", ["dense", "slbf", "bwn"])
def test_a_weight_used_three_times_is_stored_once(method: str, tmp_path: Path) -> None:
    model, shape = compressed(build("used_twice")[0], METHODS[method]), INPUTS["used_twice"]
    path = tmp_path / "net.sbit"
    subbit.pack(model, path, example=shape)
    report, from_file = subbit.inspect(model, shape), subbit.inspect(path)
    assert path.stat().st_size == report.stored_bytes == from_file.stored_bytes
    assert report.ratio > 1
    assert [row.stored.filters > 0 for row in from_file.layers] == [True, True, False, False, True]
    assert sum(row.weights for row in from_file.layers) == sum(row.weights for row in report.layers)


class Tied(nn.Module):
    """A parameter of one layer used by another, by a functional, and through a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return F.linear(x, self.first.weight) + x @ self.first.weight.t()


def test_tied_weights_are_stored_once() -> None:
    program = assert_parity(Tied(), (8,))
    assert len({id(op.weight) for op in program.weighted()}) == 1
    assert sum(op.filters for op in sizes(program).ops) == 32 * 8 * 8


def with_random_values(model: nn.Module) -> nn.Module:
    """A copy as after some training: other weights, other statistics, gains of both signs."""
    other = randomise_norms(copy.deepcopy(model))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std().nan_to_num(1.0))
    return other


PREDICTED: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "lenet5": lambda: (subbit.models.lenet5(), (1, 28, 28)),
    "vgg16": lambda: (subbit.models.vgg16(), (3, 32, 32)),
    "resnet18": lambda: (subbit.models.resnet18(), (3, 32, 32)),
    "norm_first": lambda: (build("resnet_preactivation")[0], INPUTS["resnet_preactivation"]),
    "norm_behind_maximum": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3),
            nn.MaxPool2d(2), nn.BatchNorm2d(32), nn.Conv2d(32, 32, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(32),
        ),
        (3, 24, 24),
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", ["dense", "slbf_fixed", "bwn"])
@pytest.mark.parametrize("name", PREDICTED)
def test_the_size_before_training_is_that_after_training(name: str, method: str) -> None:
    dense, shape = PREDICTED[name]()
    chosen = METHODS[method]
    model = dense if chosen is None else subbit.compress(dense, chosen)
    assert len(encode(to_program(model, shape))) == len(encode(to_program(with_random_values(model), shape)))


# (f1, f2) -> how many times smaller than fp32 parameters and BatchNorm statistics the whole file has to be
PROMISED = {("1/2", "1/2"): 110, ("1/2", "1/4"): 195, ("1/2", "1/8"): 320}
RESNET18_BYTES = 44_734_248


@pytest.mark.parametrize(("f1", "f2"), PROMISED)
def test_resnet18_is_as_small_as_promised(f1: str, f2: str, tmp_path: Path) -> None:
    model = subbit.compress(subbit.models.resnet18(), SLBF(f1=f1, f2=f2))
    randomise_norms(model)
    size = subbit.pack(model, tmp_path / "net.sbit", example=(3, 32, 32)).bytes
    report = subbit.inspect(model, (3, 32, 32))
    assert report.dense_bytes == RESNET18_BYTES
    assert report.stored_bytes == size
    assert RESNET18_BYTES / size >= PROMISED[f1, f2]


def test_vgg16_packs_and_agrees(tmp_path: Path) -> None:
    model = randomise_norms(subbit.compress(subbit.models.vgg16(), SLBF(f1=1 / 2, f2=1 / 4)))
    size = subbit.pack(model, tmp_path / "net.sbit", example=(3, 32, 32), storage="f32").bytes
    assert size == subbit.inspect(model, (3, 32, 32), storage="f32").stored_bytes
    x = torch.randn(2, 3, 32, 32)
    expected = outputs(model, x).numpy()
    got = subbit.load(tmp_path / "net.sbit")(x.numpy())
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("method", ["slbf", "bwn", "dense"])
def test_fp16_costs_little_accuracy(method: str) -> None:
    model = compressed(build("resnet")[0], METHODS[method])
    x = torch.randn(4, *INPUTS["resnet"])
    expected = outputs(model, x).numpy()
    got = subbit.load(encode(to_program(model, INPUTS["resnet"])))(x.numpy())
    assert np.abs(got - expected).max() <= 5e-3 * np.abs(expected).max()


def test_packing_is_deterministic() -> None:
    model = compressed(build("mobilenet_v3")[0], METHODS["slbf"])
    first, second = (encode(to_program(model, INPUTS["mobilenet_v3"])) for _ in range(2))
    assert first == second


def test_what_was_written_can_be_written_again() -> None:
    data = encode(to_program(compressed(build("resnet")[0], METHODS["slbf"]), INPUTS["resnet"]))
    assert encode(decode(data)) == data


def test_labels_and_preprocessing_travel_with_the_file(tmp_path: Path) -> None:
    preprocessing = Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.25, 0.25, 0.5), size=(32, 32))
    labels = [f"class {i}" for i in range(10)]
    model, shape = build("resnet")[0], INPUTS["resnet"]
    packed = subbit.pack(model, tmp_path / "net.sbit", example=shape, labels=labels, preprocessing=preprocessing)
    report = subbit.inspect(model, shape, labels=labels, preprocessing=preprocessing)
    assert packed.bytes == report.stored_bytes > subbit.inspect(model, shape).stored_bytes
    net = subbit.load(tmp_path / "net.sbit")
    assert net.labels == tuple(labels)
    assert net.preprocessing is not None
    assert net.preprocessing.mean == pytest.approx(preprocessing.mean)
    assert net.preprocessing.size == (32, 32)


def test_inspect_counts_the_output_that_is_packed(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 90)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": self.a(x), "b": self.b(x)}

    packed = subbit.pack(Two(), tmp_path / "net.sbit", example=(4,), output="a")
    assert packed.bytes == subbit.inspect(Two(), (4,), output="a").stored_bytes


@pytest.mark.parametrize("argument", ["labels", "preprocessing", "output"])
def test_inspect_of_a_file_takes_no_metadata(argument: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"labels": ["a"], "preprocessing": Preprocessing((0.5,), (1.0,), (1, 1)), "output": 0}
    subbit.pack(nn.ReLU(), tmp_path / "net.sbit", example=(3, 8, 8))
    with pytest.raises(subbit.ConfigError, match="already has its own"):
        subbit.inspect(tmp_path / "net.sbit", **{argument: given[argument]})


def test_another_input_size_at_load() -> None:
    model = build("resnet")[0]
    data = encode(to_program(model, INPUTS["resnet"], storage="f32"))
    x = torch.randn(1, 3, 48, 40)
    got = subbit.load(data, input_shape=(3, 48, 40))(x.numpy())
    expected = outputs(model, x).numpy()
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


# -------------------------------------------------------------------------------------------- writing


def test_a_failed_packing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net.sbit"
    path.write_bytes(b"what was there")
    with pytest.raises(PackError):
        subbit.pack(nn.ConvTranspose2d(3, 3, 2), path, example=(3, 8, 8))
    assert path.read_bytes() == b"what was there"
    assert os.listdir(tmp_path) == ["net.sbit"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.sbit"
    path.write_bytes(b"what was there")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(PackError, match="No space left"):
        subbit.pack(nn.ReLU(), path, example=(3, 8, 8))
    assert path.read_bytes() == b"what was there"
    assert os.listdir(tmp_path) == ["net.sbit"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="there is no folder"):
        subbit.pack(nn.ReLU(), tmp_path / "missing" / "net.sbit", example=(3, 8, 8))


def test_a_new_file_can_be_read_by_others(tmp_path: Path) -> None:
    path, plain = tmp_path / "net.sbit", tmp_path / "plain"
    plain.touch()
    subbit.pack(nn.ReLU(), path, example=(3, 8, 8))
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)

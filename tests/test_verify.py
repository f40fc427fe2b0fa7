"""`verify` passes what is right, and names the first layer where something is not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import subbit
from subbit.cli import build_app
from subbit.errors import ModelError
from subbit.format import decode, encode
from subbit.methods import BNN, SLBF, XNORNet
from subbit.methods.base import Method
from subbit.records import Conv, Program, Storage
from subbit.verify import Verification, compare
from tests.parity import randomise_norms
from tests.zoo_models import INPUTS, build

METHODS: dict[str, Method] = {"slbf": SLBF(f1=1 / 2, f2=1 / 2), "bnn": BNN(), "xnornet": XNORNet(input_scale=True)}


def network(method: str = "slbf") -> nn.Module:
    return randomise_norms(subbit.compress(build("resnet")[0], METHODS[method]))


def packed_file(model: nn.Module, storage: Storage = "f16") -> bytes:
    return encode(subbit.nn.pack.to_program(model, INPUTS["resnet"], storage))


def verified(data: bytes, model: nn.Module, **options: Any) -> Verification:
    return compare(subbit.load(data), model, torch.randn(2, *INPUTS["resnet"]), **options)


def changed(data: bytes, name: str, **changes: Any) -> bytes:
    """The file with other attributes of one layer."""
    from dataclasses import replace

    program = decode(data)
    ops = tuple(replace(op, **changes) if op.name == name else op for op in program.ops)
    return encode(replace(program, ops=ops))


@pytest.mark.parametrize("storage", ["f16", "f32"])
@pytest.mark.parametrize("method", METHODS)
def test_a_faithful_file_passes(method: str, storage: Storage) -> None:
    model = network(method)
    result = verified(packed_file(model, storage), model)
    assert result.ok, result.first_departure
    assert len(result.checks) == len(decode(packed_file(model, storage)).ops)
    if method != "xnornet":  # whose input scale is many operations for one value of PyTorch
        assert sum(check.packing is not None for check in result.checks) > 0.9 * len(result.checks)
    if storage == "f32":
        assert result.output.relative < 1e-4


def test_in_place_operations_do_not_spoil_what_is_compared() -> None:
    model, _ = build("vgg")  # convolution, BatchNorm, ReLU in place
    result = compare(
        subbit.load(encode(subbit.nn.pack.to_program(model, INPUTS["vgg"]))), model, torch.randn(2, 3, 32, 32)
    )
    assert result.ok, result.first_departure


def test_another_checkpoint_departs_at_the_layer_that_changed() -> None:
    model = network()
    data = packed_file(model)
    trained = copy.deepcopy(model)
    layer = trained.get_submodule("layer2.0.conv2")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    result = verified(data, trained)
    assert not result.ok
    assert result.first_departure is not None
    assert result.first_departure.name == "layer2.0.conv2"
    assert result.first_departure.departs == ("storage",)


def test_a_wrong_attribute_departs_in_its_own_layer_only() -> None:
    model = network()
    data = packed_file(model, "f32")
    (wrong,) = (op for op in decode(data).ops if op.name == "layer1.1.conv1")
    assert isinstance(wrong, Conv)
    assert wrong.shift is not None
    result = verified(changed(data, wrong.name, shift=wrong.shift + 1), model)
    departures = [check.name for check in result.checks if check.departs]
    assert departures == [wrong.name]
    assert result.output.relative > 1e-3


def test_a_core_that_computes_something_else_departs_in_the_core_column(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    net = subbit.load(packed_file(model, "f32"))
    values = net.values

    def off_by_a_bit(x: Any) -> list[Any]:
        found = values(x)
        found[5] = found[5] + 0.01
        return found

    monkeypatch.setattr(net, "values", off_by_a_bit)
    result = compare(net, model, torch.randn(2, *INPUTS["resnet"]))
    assert result.first_departure is not None
    assert (result.first_departure.value, result.first_departure.departs) == (6, ("core",))


def test_nan_departs() -> None:
    model = network()
    x = torch.randn(1, *INPUTS["resnet"])
    x[0, 0, 3, 3] = float("nan")
    assert not compare(subbit.load(packed_file(model)), model, x).ok


def test_another_network_is_refused() -> None:
    data = packed_file(network())
    with pytest.raises(ModelError, match="not of this network: operation"):
        verified(data, randomise_norms(build("resnet")[0]))


def test_wrong_inputs_are_refused() -> None:
    model = network()
    with pytest.raises(ModelError, match="inputs of shape"):
        compare(subbit.load(packed_file(model)), model, torch.randn(2, 3, 8, 8))


# ---------------------------------------------------------------------------------------- command line


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a LeNet-5, without the training."""
    from subbit.data import load
    from subbit.train import Settings, build_model
    from subbit.train.build import MODEL_FILE, save_run

    settings = Settings.resolve(model="lenet5", data="digits", method="slbf", f1="1/2", f2="1/4")
    data = load("digits")
    folder = tmp_path_factory.mktemp("runs") / "lenet5"
    folder.mkdir()
    model = randomise_norms(build_model(settings, len(data.classes), data.shape[0]))
    save_run(folder / MODEL_FILE, model, settings, data)
    return folder


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), list(arguments))
    return result.exit_code, result.output


def test_pack_then_verify_a_run(run_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lenet.sbit"
    code, text = invoke("pack", str(run_folder), "-o", str(file))
    assert code == 0, text
    assert f"{file.stat().st_size:,} bytes" in text
    net = subbit.load(file)
    assert net.labels == tuple("0123456789")
    assert net.preprocessing is not None
    assert net.preprocessing.size == (28, 28)

    code, text = invoke("verify", str(file), str(run_folder), "--inputs", "2")
    assert code == 0, text
    assert "all operations agree" in text
    code, text = invoke("verify", str(file), str(run_folder / "model.pt"), "--images", "--json")
    assert code == 0, text
    report = json.loads(text)
    assert report["ok"] is True
    assert {check["kind"] for check in report["checks"]} >= {"Conv", "Pool", "Linear"}


def test_pack_then_verify_integers(run_folder: Path, tmp_path: Path) -> None:
    """Ranges come from training images of the run's own data set; the table has the error of every rounded layer."""
    file = tmp_path / "lenet.sbit"
    code, text = invoke("pack", str(run_folder), "-o", str(file), "--int8", "--images", "32")
    assert code == 0, text
    assert "2 of 4 layers compute in integers" in text
    code, text = invoke("pack", str(run_folder), "-o", str(file), "--int8", "--images", "32", "--json")
    described = json.loads(text)
    assert (described["bytes"], described["layers"], described["integer_layers"]) == (file.stat().st_size, 4, 2)
    code, text = invoke("verify", str(file), str(run_folder), "--images")
    assert code == 0, text
    assert "levels abs" in text
    code, text = invoke("verify", str(file), str(run_folder), "--json")
    assert [check["levels"] is not None for check in json.loads(text)["checks"]].count(True) == 2
    result = CliRunner().invoke(build_app(), ["pack", str(run_folder), "-o", str(file), "--calibrate", "digits"])
    assert "goes with --int8" in str(result.exception)


def test_verify_fails_with_exit_code_one_and_names_the_layer(run_folder: Path, tmp_path: Path) -> None:
    from subbit.train import load_run

    model, _ = load_run(run_folder)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        model.get_submodule(layers[0]).weight.neg_()  # type: ignore[operator]
    file = tmp_path / "other.sbit"
    subbit.pack(model, file, example=(1, 28, 28))
    code, text = invoke("verify", str(file), str(run_folder))
    assert code == 1
    assert f"departs first at {layers[0]}" in text


def test_pack_refuses_an_unknown_storage(run_folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["pack", str(run_folder), "--storage", "f8"])
    assert result.exit_code != 0
    assert "f16, f32" in str(result.exception)


def test_a_program_without_operations() -> None:
    program = Program(input_shape=(3, 4, 4), ops=())
    assert compare(subbit.load(encode(program)), nn.Identity(), torch.randn(2, 3, 4, 4)).ok


def test_a_file_of_one_of_several_outputs() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"first": self.first(x), "second": self.second(x)}

    model, x = Heads().eval(), torch.randn(2, 3, 8, 8)
    net = subbit.load(encode(subbit.nn.pack.to_program(model, (3, 8, 8), output="second")))
    assert compare(net, model, x, output="second").ok
    with pytest.raises(ModelError, match="not of this network"):
        compare(net, model, x, output="first")

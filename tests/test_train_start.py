"""Where a run starts from: dense runs, runs of the same method, packed files, a LegoNet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from subbit.errors import ConfigError, InputError
from subbit.methods.base import CompressedLayer
from subbit.methods.slbf import SLBFLayer
from subbit.methods.stacking import StackedLayer
from subbit.train import accuracy, build_model, fit, load_run, open_run
from subbit.train.batches import Normalise
from tests import tiny


def test_start_from_a_dense_run(dense: Path) -> None:
    trained, _ = load_run(dense)
    started = build_model(tiny.settings(f2=1, init_from=str(dense)), 10, 1)
    fresh = build_model(tiny.settings(f2=1), 10, 1)

    def distance(model: nn.Module) -> float:
        layers = {name: m for name, m in model.named_modules() if isinstance(m, CompressedLayer)}
        assert layers
        weights = trained.state_dict()
        gaps = [m.effective_weight().detach() - weights[f"{name}.weight"] for name, m in layers.items()]
        return float(sum(gap.norm() for gap in gaps))

    assert distance(started) < 0.8 * distance(fresh)
    kept = [name for name, m in started.named_modules() if isinstance(m, nn.Linear | nn.BatchNorm2d | nn.Conv2d)]
    assert kept
    before, after = trained.state_dict(), started.state_dict()
    assert all(torch.equal(before[f"{name}.weight"], after[f"{name}.weight"]) for name in kept)


@pytest.mark.parametrize("method", ["dense", "bwn"])
def test_start_from_a_dense_run_goes_on_learning_statistics(dense: Path, tmp_path: Path, method: str) -> None:
    trained, _ = load_run(dense)
    settings = tiny.settings(method=method, init_from=str(dense), epochs=1)
    assert all(module.training for module in build_model(settings, 10, 1).modules())
    fit(settings, out=tmp_path / "run", data=tiny.digits())
    before, after = trained.state_dict(), load_run(tmp_path / "run")[0].state_dict()
    statistics = [key for key in before if "running_mean" in key]
    assert statistics
    assert not any(torch.equal(before[key], after[key]) for key in statistics)


def test_start_from_a_run_of_the_same_method(tmp_path: Path) -> None:
    fit(tiny.settings(epochs=1), out=tmp_path / "slbf", data=tiny.digits())
    trained, _ = load_run(tmp_path / "slbf")
    further = tiny.settings(init_from=str(tmp_path / "slbf"), seed=5, method_options={"estimator": "identity"})
    started = build_model(further, 10, 1)
    before, after = trained.state_dict(), started.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(module.training for module in started.modules())
    with pytest.raises(ConfigError, match=r"classes, f1, f2, keep, .* must be equal"):
        build_model(tiny.settings(init_from=str(tmp_path / "slbf"), f2="1/4"), 10, 1)


def test_selections_that_were_frozen_learn_again(tmp_path: Path) -> None:
    fit(tiny.settings(epochs=1, freeze_selection=1.0), out=tmp_path / "slbf", data=tiny.digits())
    trained, _ = load_run(tmp_path / "slbf")
    started = build_model(tiny.settings(init_from=str(tmp_path / "slbf")), 10, 1)
    layers = [(a, b) for a, b in zip(trained.modules(), started.modules(), strict=True) if isinstance(a, StackedLayer)]
    assert layers
    for before, after in layers:
        assert isinstance(after, StackedLayer)
        assert bool(before.frozen)
        assert not bool(after.frozen)


@pytest.mark.parametrize("scale", [True, False])
def test_fixed_selections_can_begin_to_learn(tmp_path: Path, scale: bool) -> None:
    fixed, learned = ({"selection": selection, "scale": scale} for selection in ("fixed", "learned"))
    fit(tiny.settings(epochs=1, method_options=fixed), out=tmp_path / "slbf", data=tiny.digits())
    trained, _ = load_run(tmp_path / "slbf")
    started = build_model(tiny.settings(init_from=str(tmp_path / "slbf"), seed=5, method_options=learned), 10, 1)
    layers = [(a, b) for a, b in zip(trained.modules(), started.modules(), strict=True) if isinstance(a, SLBFLayer)]
    assert layers
    for before, after in layers:
        assert isinstance(after, SLBFLayer)
        assert torch.equal(after.R, before.R)
        assert torch.equal(after.selected_index(), before.selected_index())
        assert not bool(after.frozen)
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(started.eval()(images), trained.eval()(images), rtol=1e-4, atol=1e-5)
    other = {"selection": "learned", "scale": not scale}
    with pytest.raises(ConfigError, match=r"options of the method that add parameters must be equal"):
        build_model(tiny.settings(init_from=str(tmp_path / "slbf"), method_options=other), 10, 1)


def test_starting_point_must_be_dense_or_alike(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a dense resnet18 or a legonet resnet18 or a slbf resnet18 is needed"):
        build_model(tiny.settings(model="resnet18", init_from=str(dense)), 10, 1)
    fit(tiny.settings(epochs=1), out=tmp_path / "slbf", data=tiny.digits())
    with pytest.raises(ConfigError, match="is a slbf lenet5: to start from, a bwn lenet5 or a dense lenet5 is needed"):
        build_model(tiny.settings(method="bwn", init_from=str(tmp_path / "slbf")), 10, 1)


@pytest.mark.parametrize("method", ["slbf", "bwn", "dense"])
def test_start_from_a_packed_file(method: str, tmp_path: Path) -> None:
    import subbit

    fit(tiny.settings(method=method, epochs=3), out=tmp_path / "run", data=tiny.digits())
    run = open_run(tmp_path / "run")
    described = {"labels": run.classes, "preprocessing": run.preprocessing}
    subbit.pack(run.model, tmp_path / "net.sbit", example=run.shape, **described)  # type: ignore[arg-type]
    further = tiny.settings(method=method, init_from=str(tmp_path / "net.sbit"), epochs=1, lr=1e-9, seed=3)
    started = build_model(further, 10, 1, tiny.digits())
    with pytest.raises(ConfigError, match="the data set is needed as well"):
        build_model(further, 10, 1)
    reached = accuracy(run.model, tiny.digits(), tiny.digits().test)
    assert accuracy(started, tiny.digits(), tiny.digits().test) == pytest.approx(reached, abs=0.02)
    result = fit(further, out=tmp_path / "further", data=tiny.digits())
    assert result.test_accuracy > 0.8 * reached  # statistics moved, weights did not
    (tmp_path / "net.sbit").unlink()
    load_run(tmp_path / "further")  # needs the file no more


@pytest.mark.parametrize("method", ["bwn", "binaryconnect", "slbf"])
def test_start_from_a_packed_dense_file(method: str, dense: Path, tmp_path: Path) -> None:
    import subbit

    run = open_run(dense)
    described = {"labels": run.classes, "preprocessing": run.preprocessing}
    subbit.pack(run.model, tmp_path / "dense.sbit", example=run.shape, **described)  # type: ignore[arg-type]
    further = tiny.settings(method=method, init_from=str(tmp_path / "dense.sbit"))
    started = build_model(further, 10, 1, tiny.digits())
    fresh = build_model(tiny.settings(method=method), 10, 1)
    layers = {name: module for name, module in started.named_modules() if isinstance(module, CompressedLayer)}
    assert layers.keys() == {name for name, module in fresh.named_modules() if isinstance(module, CompressedLayer)}
    weights = run.model.state_dict()
    with torch.no_grad():
        for name, layer in layers.items():
            weight = layer.effective_weight()
            angle = torch.cosine_similarity(weight.flatten(1), weights[f"{name}.weight"].flatten(1)).mean()
            assert angle > (0.7 if method != "slbf" else 0.2)  # signs of normal numbers have 0.8, chance 0
        kept = [name for name, m in started.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert kept
        for name in kept:
            assert torch.allclose(started.state_dict()[f"{name}.weight"], weights[f"{name}.weight"], atol=1e-3)


def test_soft_values_of_bwn_start_as_the_dense_file(dense: Path, tmp_path: Path) -> None:
    """While nothing has hardened, clipped values of the right size compute nearly what the dense network does."""
    import subbit

    run = open_run(dense)
    subbit.pack(run.model, tmp_path / "dense.sbit", example=run.shape, labels=run.classes)
    settings = tiny.settings(method="bwn", init_from=str(tmp_path / "dense.sbit"), method_options={"estimator": "soft"})
    started = build_model(settings, 10, 1, tiny.digits())
    for layer in started.modules():
        if isinstance(layer, CompressedLayer):
            layer.progress = 0.0
    images = Normalise(tiny.digits())(torch.from_numpy(tiny.digits().train.images[:200]))
    with torch.no_grad():
        soft, whole = started.train()(images), run.model.train()(images)
        hard = started.eval()(images)
    agreeing = (soft.argmax(1) == whole.argmax(1)).float().mean()
    assert agreeing > 0.9
    assert agreeing > (hard.argmax(1) == whole.argmax(1)).float().mean()


def test_packed_starting_points_that_do_not_fit(dense: Path, tmp_path: Path) -> None:
    import subbit

    run = open_run(dense)
    subbit.pack(run.model, tmp_path / "dense.sbit", example=run.shape, labels=run.classes)
    fit(tiny.settings(method="bwn", epochs=1), out=tmp_path / "bwn", data=tiny.digits())
    subbit.pack(open_run(tmp_path / "bwn").model, tmp_path / "bwn.sbit", example=run.shape, labels=run.classes)
    for start, message in (
        (str(tmp_path / "bwn.sbit"), r"bwn\.sbit': the file holds another network: operation 5 is Conv"),
        ("lenet5-mnist-slbf-0.5-0.25", "expects images of another mean and spread than tiny has"),
        ("vgg16-cifar10-bwn-muon", "was trained on other classes or image sizes than tiny"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit(tiny.settings(init_from=start), out=tmp_path / "run", data=tiny.digits())
    with pytest.raises(InputError, match="there is no file 'lenet', and the zoo has no network"):
        fit(tiny.settings(init_from="lenet"), out=tmp_path / "run", data=tiny.digits())
    assert not (tmp_path / "run").exists()


def test_start_from_a_legonet_run(tmp_path: Path) -> None:
    fit(tiny.settings(method="legonet", epochs=1), out=tmp_path / "lego", data=tiny.digits())
    lego, _ = load_run(tmp_path / "lego")
    started = build_model(tiny.settings(init_from=str(tmp_path / "lego")), 10, 1)
    for name, layer in started.named_modules():
        if isinstance(layer, SLBFLayer):
            trained = lego.get_submodule(name)
            assert isinstance(trained, StackedLayer)
            assert torch.equal(layer.R >= 0, trained.bank() >= 0)
            assert torch.equal(layer.selected_index(), trained.selected_index())
    with pytest.raises(ConfigError, match="f1, f2 and keep must be equal"):
        build_model(tiny.settings(init_from=str(tmp_path / "lego"), f2="1/4"), 10, 1)

"""The selections that the search tries beside those of the library: how they choose, and what is left of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bench import selections
from bench.selections import Annealed, AnnealedLayer, Nearest, NearestLayer
from torch import nn

import subbit
from subbit.errors import ConfigError
from subbit.methods import METHODS, from_config
from subbit.methods.stacking import Form
from subbit.nn.estimators import signs
from subbit.records import Stacked
from subbit.train import fit, load_run
from tests import tiny

CONV = nn.Conv2d(8, 16, 3, padding=1)


def test_a_mixture_cools_down_to_the_choice() -> None:
    torch.manual_seed(0)
    layer = Annealed(f1="1/2", f2="1/4").layer(CONV)
    assert isinstance(layer, AnnealedLayer)
    shares = []
    for layer.progress in (0.0, 0.4, 0.79, 0.8, 1.0):
        size = layer.stacking(layer.selected_index()).abs()
        shares.append(float((size.amax(2) / size.sum(2)).mean()))
    assert shares == sorted(shares)
    assert shares[0] < 0.6
    assert shares[2] > 0.95
    assert shares[3:] == [1.0, 1.0]


@pytest.mark.parametrize("progress", [0.3, 0.9])
@pytest.mark.parametrize("form", ["weight", "feature"])
def test_a_mixture_is_the_same_in_both_forms(progress: float, form: Form) -> None:
    torch.manual_seed(0)
    layer = Annealed(f1="1/2", f2="1/4", form=form).layer(CONV)
    layer.progress = progress
    x = torch.randn(2, 8, 6, 6)
    plain = nn.functional.conv2d(x, layer.effective_weight(), layer.bias, padding=1)
    torch.testing.assert_close(layer(x), plain, rtol=1e-4, atol=1e-5)


def test_blocks_take_the_nearest_filter() -> None:
    torch.manual_seed(0)
    layer = Nearest(f1="1/2", f2="1/4").layer(CONV)
    assert isinstance(layer, NearestLayer)
    weight = layer.effective_weight()
    blocks, found = layer.split(layer.latent), layer.split(weight)
    bank = signs(layer.R.detach()).flatten(1).double()
    every = torch.stack([(blocks - (blocks @ b / len(b))[:, None] * b).square().sum(1) for b in bank])
    torch.testing.assert_close((blocks - found).square().sum(1), every.amin(0), rtol=1e-4, atol=1e-5)
    wanted = torch.randn_like(weight)
    (weight * wanted).sum().backward()  # type: ignore[no-untyped-call]
    assert layer.latent.grad is not None
    torch.testing.assert_close(layer.latent.grad, wanted)
    assert layer.R.grad is not None
    assert float(layer.R.grad.abs().sum()) > 0


@pytest.mark.parametrize("method", selections.TRIED)
def test_they_train_and_pack(method: str, tmp_path: Path) -> None:
    with selections.known():
        fit(tiny.settings(epochs=1, method=method, f1=1, f2="1/8"), out=tmp_path / "run", data=tiny.digits())
        model, _ = load_run(tmp_path / "run")
    subbit.pack(model.eval(), tmp_path / "net.sbit", example=(1, 28, 28), storage="f32")
    images = torch.rand(4, 1, 28, 28)
    network = subbit.load(tmp_path / "net.sbit")
    layers = [layer for layer in model.modules() if isinstance(layer, AnnealedLayer | NearestLayer)]
    assert layers
    assert all(isinstance(layer.record(), Stacked) for layer in layers)
    with torch.no_grad():
        np.testing.assert_allclose(network(images.numpy()), model(images).numpy(), rtol=1e-3, atol=1e-4)


def test_settings_know_them_only_in_the_search() -> None:
    before = dict(METHODS)
    with selections.known():
        assert isinstance(from_config({"name": "slbf-nearest", "f1": "1/2", "f2": "1/4"}), Nearest)
    assert before == METHODS
    with pytest.raises(ConfigError, match="unknown method 'slbf-nearest'"):
        from_config({"name": "slbf-nearest"})

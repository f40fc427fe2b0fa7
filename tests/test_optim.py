"""Muon, optimisers that share a network, rates by kind of parameter, and a whitening first convolution."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from subbit.errors import ConfigError
from subbit.models import vgg16
from subbit.train import build_model, fit
from subbit.train.batches import Normalise
from subbit.train.muon import Muon, orthogonal
from subbit.train.optim import Several, optimizer, parameter_groups
from subbit.train.whiten import whiten_first, whitening_filters
from tests import tiny


@pytest.mark.parametrize("shape", [(8, 40), (40, 8), (16, 16)])
def test_orthogonal_keeps_directions_and_levels_their_sizes(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrix = u @ torch.diag(torch.logspace(0, -1.5, min(shape))) @ v
    sizes = torch.linalg.svdvals(orthogonal(matrix))
    assert float(sizes.min()) > 0.6
    assert float(sizes.max()) < 1.3
    inside = u.T @ orthogonal(matrix) @ v.T
    assert torch.allclose(inside, torch.diag(inside.diagonal()), atol=1e-3)


@pytest.mark.parametrize("shape", [(16, 288), (128, 2304), (8, 17)])
@pytest.mark.parametrize("decay", [0.0, -2.0, -6.0])
def test_the_way_through_the_gram_matrix_is_as_good(shape: tuple[int, int], decay: float) -> None:
    """Wide matrices, down to nearly singular ones, against the plain steps in double precision."""
    torch.manual_seed(0)
    matrix = torch.diag(torch.logspace(0, decay, shape[0])) @ torch.randn(shape)
    plain = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = plain @ plain.T
        plain = 3.4445 * plain + (-4.7750 * gram + 2.0315 * gram @ gram) @ plain
    assert (orthogonal(matrix) - plain).abs().max() < 1e-3 * plain.abs().max()


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_muon_steps_have_the_size_of_the_rate() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 4, 3, 3))
    before = weight.detach().clone()
    muon = Muon([{"params": [weight]}], lr=0.01)
    weight.grad = 1e-4 * torch.randn_like(weight)
    muon.step()
    step = (weight.detach() - before).square().mean().sqrt()
    assert 0.006 < float(step) < 0.013
    assert float(((weight.detach() - before) * weight.grad).sum()) < 0  # downhill


def test_muon_decays_and_leaves_what_has_no_gradient() -> None:
    still, moving = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    muon = Muon([{"params": [still, moving]}], lr=0.1, weight_decay=0.5)
    moving.grad = torch.zeros(2, 2)
    muon.step()
    assert torch.equal(still, torch.ones(2, 2))
    assert torch.allclose(moving, torch.full((2, 2), 0.95))


def test_latents_get_their_own_optimiser() -> None:
    settings = tiny.settings(optimizer="sgd", latent_optimizer="muon", momentum=0.8, nesterov=True)
    made = optimizer(build_model(settings, 10, 1), settings)
    assert isinstance(made, Several)
    kinds = [(type(part), [group["name"] for group in part.param_groups]) for part in made.parts]
    assert kinds == [(torch.optim.SGD, ["weight", "selector", "norm"]), (Muon, ["latent"])]
    assert all(group["momentum"] == 0.8 and group["nesterov"] for group in made.param_groups)


def test_weights_of_layers_get_their_own_optimiser() -> None:
    settings = tiny.settings(latent_optimizer="muon", weight_optimizer="muon")
    made = optimizer(build_model(settings, 10, 1), settings)
    assert isinstance(made, Several)
    kinds = [(type(part), [group["name"] for group in part.param_groups]) for part in made.parts]
    assert kinds == [(torch.optim.AdamW, ["selector", "norm"]), (Muon, ["latent"]), (Muon, ["weight"])]

    dense = tiny.settings(method="dense", weight_optimizer="muon")
    parts = optimizer(build_model(dense, 10, 1), dense).parts  # type: ignore[attr-defined]
    assert [type(part) for part in parts] == [torch.optim.AdamW, Muon]


def test_without_latents_there_is_one_optimiser() -> None:
    settings = tiny.settings(method="dense", latent_optimizer="muon")
    assert type(optimizer(build_model(settings, 10, 1), settings)) is torch.optim.AdamW


def test_several_step_as_each_alone_and_go_on_from_a_saved_state() -> None:
    def parameters() -> list[nn.Parameter]:
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(5))]

    def several(weights: list[nn.Parameter]) -> Several:
        return Several(
            [
                Muon([{"params": [weights[0]]}], lr=0.1),
                torch.optim.AdamW([{"params": [weights[1]]}], lr=0.1),
            ]
        )

    def steps(made: list[torch.optim.Optimizer], weights: list[nn.Parameter], first: int, last: int) -> None:
        for step in range(first, last):
            for number, weight in enumerate(weights):
                torch.manual_seed(10 * step + number)
                weight.grad = torch.randn_like(weight)
            for one in made:
                one.step()

    alone, together, resumed = parameters(), parameters(), parameters()
    steps([Muon([{"params": [alone[0]]}], lr=0.1), torch.optim.AdamW([alone[1]], lr=0.1)], alone, 0, 6)
    before = several(together)
    steps([before], together, 0, 3)
    for mine, theirs in zip(resumed, together, strict=True):
        mine.data.copy_(theirs.data)
    behind = several(resumed)
    behind.load_state_dict(copy.deepcopy(before.state_dict()))
    assert behind.parts[0].param_groups[0] is behind.param_groups[0]  # a schedule reaches the parts behind it
    steps([before], together, 3, 6)
    steps([behind], resumed, 3, 6)
    for one, two, three in zip(alone, together, resumed, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(two, three)


def test_rates_by_kind_of_parameter() -> None:
    settings = tiny.settings(latent_lr=2.0, selector_lr=3.0, norm_lr=4.0)
    groups = parameter_groups(build_model(settings, 10, 1), settings)
    assert {group["name"]: group["rate"] for group in groups} == {"weight": 1, "latent": 2, "selector": 3, "norm": 4}


def test_rates_reach_the_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, float]] = []
    real = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, closure: object = None) -> object:
        used.append({group["name"]: group["lr"] for group in self.param_groups})
        return real(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    fit(tiny.settings(epochs=1, latent_lr=0.5, norm_lr=8.0), out=tmp_path / "run", data=tiny.digits())
    assert len(used) == 10
    for rates in used:
        assert rates["latent"] == pytest.approx(rates["weight"] / 2)
        assert rates["norm"] == pytest.approx(rates["weight"] * 8)
        assert rates["selector"] == rates["weight"]


# ----------------------------------------------------------------------------------------------- whitening


def test_whitened_features_have_variance_one_and_do_not_correlate() -> None:
    data = tiny.digits()
    images = Normalise(data)(torch.from_numpy(data.train.images))
    filters = whitening_filters(images, (2, 2))
    features = F.conv2d(images, filters).transpose(0, 1).flatten(1)
    assert torch.allclose(features @ features.T / features.shape[1], torch.eye(4), atol=1e-3)


def test_whitening_fills_the_first_convolution_and_freezes_it() -> None:
    data = tiny.digits()
    model = vgg16(in_channels=1, width=1 / 2)
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    random = first.weight.detach().clone()
    whiten_first(model, data)
    assert torch.equal(first.weight[:9], -first.weight[9:18])
    assert torch.equal(first.weight[18:], random[18:])  # nine numbers have no more directions
    assert not first.weight.requires_grad
    assert all(p.requires_grad for p in model.parameters() if p is not first.weight)


def test_whitening_of_a_network_without_convolution() -> None:
    with pytest.raises(ConfigError, match="first layer is a plain convolution"):
        whiten_first(nn.Linear(3, 3), tiny.digits())


@pytest.mark.parametrize("shape", [(8, 8), (4, 32), (32, 4)], ids=["square", "wide", "high"])
def test_muon_takes_the_momentum_of_dead_units_for_zero(shape: tuple[int, int]) -> None:
    """It shrinks by a tenth in every step, and would otherwise end among numbers that slow a processor down."""
    torch.manual_seed(0)
    alive = torch.randn(shape)
    alive[1::2] = 0
    dying = alive.clone()
    dying[1::2] = 1e-38 * torch.rand_like(dying[1::2])
    assert torch.equal(orthogonal(dying), orthogonal(alive))

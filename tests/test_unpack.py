"""`unpack`: a model takes the weights of a packed file, answers as the file does, and can be trained further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import subbit
from subbit import zoo
from subbit.data import load_digits
from subbit.errors import FormatError, InputError, ModelError
from subbit.format import encode
from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet, XNORNet
from subbit.methods.base import Method
from subbit.methods.slbf import SLBFLayer
from subbit.methods.stacking import StackedLayer
from subbit.nn.pack import to_program
from subbit.records import Binary, Conv, Linear, Stacked
from tests.parity import outputs, randomise_norms, relative_error

METHODS: dict[str, Method | None] = {
    "dense": None,
    "slbf_learned": SLBF(f1=1 / 2, f2=1 / 2),
    "slbf_fixed": SLBF(f1=1 / 2, f2=1 / 2, selection="fixed"),
    "slbf_one_block": SLBF(f1=1, f2=1 / 2),
    "slbf_without_scales": SLBF(f1=1 / 2, f2=1 / 2, scale=False),
    "legonet": LegoNet(f1=1 / 2, f2=1 / 2),
    "bwn": BWN(),
    "bwn_centred": BWN(centre=True),
    "binaryconnect": BinaryConnect(),
    "bnn": BNN(),
    "xnornet": XNORNet(),
}


class Residual(nn.Module):
    """BatchNorm folded, behind a pool, and before a linear layer; a shortcut; a bias without BatchNorm."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, affine=affine), nn.ReLU()
        )
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=affine), nn.ReLU())
        self.more = nn.Conv2d(8, 12, 3, stride=2, groups=2)
        self.pool = nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(12, affine=affine), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.BatchNorm1d(16), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.head(self.pool(self.more(x + self.deep(x))))
        return y


SHAPE = (3, 10, 10)


def network(method: Method | None, seed: int, affine: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    model = Residual(affine)
    return subbit.compress(model, method) if method else model


def images(count: int = 64) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", METHODS)
def test_model_answers_as_the_file_does(name: str) -> None:
    source = randomise_norms(network(METHODS[name], 0))
    data = encode(to_program(source, SHAPE, storage="f32"))
    model = network(METHODS[name], 1)
    assert relative_error(outputs(source, images()), outputs(model, images())) > 0.1
    subbit.unpack(model, data, images=images())
    assert model.training
    assert relative_error(outputs(source, images()), outputs(model, images())) < 1e-4
    for mine, theirs in zip(to_program(model, SHAPE).weighted(), to_program(source, SHAPE).weighted(), strict=True):
        if isinstance(mine.weight, Binary) and isinstance(theirs.weight, Binary):
            assert np.array_equal(mine.weight.signs, theirs.weight.signs)
        elif isinstance(mine.weight, Stacked) and isinstance(theirs.weight, Stacked) and mine.weight.binary:
            weights = [_signs_of_blocks(op) for op in (mine, theirs)]
            assert np.array_equal(*weights)


def _signs_of_blocks(op: Conv | Linear) -> Any:
    weight = op.weight.weight()
    return np.sign(weight if op.scale is None else weight * op.scale.reshape(-1, *[1] * (weight.ndim - 1)))


def test_statistics_are_those_of_the_images() -> None:
    source = randomise_norms(network(METHODS["slbf_fixed"], 0))
    model = network(METHODS["slbf_fixed"], 1)
    subbit.unpack(model, encode(to_program(source, SHAPE)), images=images())
    evaluated = outputs(model, images())
    with torch.no_grad():  # in training mode BatchNorm takes the statistics of the batch: of the same images
        assert relative_error(evaluated, model.train()(images())) < 1e-4


def test_filters_of_plain_layers_at_a_size_that_is_asked_for() -> None:
    source = randomise_norms(network(None, 0))
    model = network(None, 1)
    sizes = {"deep.0": 0.5, "more": 0.5}
    subbit.unpack(model, encode(to_program(source, SHAPE, storage="f32")), images=images(), sizes=sizes)
    assert relative_error(outputs(source, images()), outputs(model, images())) < 1e-4
    usual = network(None, 1)
    subbit.unpack(usual, encode(to_program(source, SHAPE, storage="f32")), images=images())
    weights, before = model.state_dict(), usual.state_dict()
    rms = weights["deep.0.weight"].flatten(1).square().mean(1).sqrt()
    assert torch.allclose(rms, torch.full_like(rms, 0.5))
    assert torch.allclose(weights["more.weight"], before["more.weight"])  # what follows is no BatchNorm
    assert torch.allclose(weights["stem.0.weight"], before["stem.0.weight"])  # not asked for


def test_filters_start_at_the_size_of_new_ones() -> None:
    source = randomise_norms(network(METHODS["slbf_fixed"], 0))
    for layer in source.modules():
        if isinstance(layer, SLBFLayer):
            assert layer.scale is not None
            layer.scale.data *= 40
    model = network(METHODS["slbf_fixed"], 1)
    fresh = {
        name: float(p.detach().abs().mean()) for name, p in model.named_parameters() if name.endswith(("R", "scale"))
    }
    subbit.unpack(model, encode(to_program(source, SHAPE)), images=images())
    now = dict(model.named_parameters())
    normed = [name for name in fresh if "deep" in name]
    assert len(normed) == 2
    for name in normed:
        wanted = 0.5 if name.endswith("R") else fresh[name]  # latents: as in a trained network
        assert float(now[name].detach().abs().mean()) == pytest.approx(wanted, rel=0.2)


def test_norms_without_weights() -> None:
    source = network(METHODS["bwn"], 0, affine=False)
    for module in source.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    model = network(METHODS["bwn"], 1, affine=False)
    subbit.unpack(model, encode(to_program(source, SHAPE, storage="f32")), images=images())
    assert relative_error(outputs(source, images()), outputs(model, images())) < 1e-3


def test_filters_that_no_block_uses_are_free() -> None:
    source = network(METHODS["slbf_learned"], 0)
    layer = source.get_submodule("deep.0")
    assert isinstance(layer, SLBFLayer)
    assert layer.Q is not None
    layer.Q.data[:, :, 2] = 0  # never the largest
    model = network(METHODS["slbf_learned"], 1)
    program = to_program(source, SHAPE)
    record = next(op.weight for op in program.weighted() if op.name == "deep.0")
    assert isinstance(record, Stacked)
    assert record.compact().filters < layer.filters
    subbit.unpack(model, encode(program), images=images())
    assert relative_error(outputs(source, images()), outputs(model, images())) < 1e-2  # rounded to fp16


def test_fixed_selection_that_leaves_filters_out() -> None:
    method = SLBF(depth=4, filters=12, selection="fixed")  # of which nine are in use
    plain = nn.Conv2d(8, 8, 3)
    source, model = (nn.Sequential(method.layer(plain)) for _ in range(2))
    shape = (8, 5, 5)
    program = to_program(source, shape, storage="f32")
    record = next(program.weighted()).weight
    assert isinstance(record, Stacked)
    assert record.compact().filters == 9
    some = torch.randn(4, *shape)
    subbit.unpack(model, encode(program), images=some)
    assert relative_error(outputs(source, some), outputs(model, some)) < 1e-4


def test_one_filter_without_scale_becomes_several() -> None:
    plain = nn.Conv2d(8, 8, 3)
    source = nn.Sequential(SLBF(depth=4, filters=1, scale=False).layer(plain))
    layer = SLBF(depth=4, filters=4, scale=False).layer(plain)
    assert isinstance(layer, SLBFLayer)
    some = torch.randn(4, 8, 5, 5)
    subbit.unpack(nn.Sequential(layer), encode(to_program(source, (8, 5, 5), storage="f32")), images=some)
    assert set(layer.selected_index().flatten().tolist()) == {0, 1, 2, 3}


GROWTH: dict[str, tuple[Method, Method]] = {
    "fixed_to_learned": (SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"), SLBF(f1=1 / 2, f2=1 / 2)),
    "learned": (SLBF(f1=1 / 2, f2=1 / 4), SLBF(f1=1 / 2, f2=3 / 4)),
    "without_scales": (SLBF(f1=1 / 2, f2=1 / 4, scale=False), SLBF(f1=1 / 2, f2=1 / 2, scale=False)),
    "legonet": (LegoNet(f1=1 / 2, f2=1 / 4), LegoNet(f1=1 / 2, f2=1 / 2)),
}


@pytest.mark.parametrize("name", GROWTH)
def test_larger_bank_has_the_filters_of_the_file_several_times(name: str) -> None:
    there, here = GROWTH[name]
    source = randomise_norms(network(there, 0))
    model = network(here, 1)
    subbit.unpack(model, encode(to_program(source, SHAPE, storage="f32")), images=images())
    assert relative_error(outputs(source, images()), outputs(model, images())) < 1e-4
    small, large = source.get_submodule("deep.0"), model.get_submodule("deep.0")
    assert isinstance(small, StackedLayer)
    assert isinstance(large, StackedLayer)
    assert not bool(large.frozen)
    with torch.no_grad():
        chosen = large.selected_index()
        used = len(set(small.selected_index().flatten().tolist()))
        assert len(torch.unique(large.bank()[chosen].flatten(0, 1), dim=0)) == used  # no filter is new
        assert len(torch.unique(chosen)) == large.filters > small.filters  # and none is without a block


def test_copies_of_a_filter_learn_apart() -> None:
    there, here = GROWTH["fixed_to_learned"]
    model = network(here, 1)
    subbit.unpack(model, encode(to_program(network(there, 0), SHAPE)), images=images())
    layer = model.get_submodule("deep.0")
    assert isinstance(layer, SLBFLayer)
    layer.freeze_selection()
    model(images()).square().sum().backward()
    assert layer.R.grad is not None
    same = (layer.R[:, None] == layer.R[None]).flatten(2).all(2).fill_diagonal_(False)
    assert same.any()
    apart = (layer.R.grad[:, None] != layer.R.grad[None]).flatten(2).any(2)
    assert bool(apart[same].all())
    assert bool(layer.R.grad[same.any(1)].flatten(1).any(1).all())  # none of them is without blocks


def test_latents_that_are_the_scale_start_at_the_size_of_trained_ones() -> None:
    model = network(BWN(), 1)
    subbit.unpack(model, encode(to_program(randomise_norms(network(BWN(), 0)), SHAPE)), images=images())
    before_norm = model.get_parameter("deep.0.latent").detach().abs()
    assert torch.allclose(before_norm, torch.tensor(0.5), rtol=1e-2)
    assert float(model.get_parameter("more.latent").detach().abs().max()) < 0.4  # no BatchNorm: as it is


def test_zoo_network_is_taken_and_trains_on() -> None:
    torch.manual_seed(0)
    file = zoo.path("lenet5-mnist-slbf-0.5-0.25-int8")
    model = subbit.compress(subbit.models.lenet5(), SLBF(f1=1 / 2, f2=1 / 4))
    data = load_digits()
    inputs = torch.from_numpy((data.train.images[:256] / 255 - data.mean[0]) / data.std[0]).float()
    labels = torch.from_numpy(data.train.labels[:256])
    subbit.unpack(model, file, images=inputs)
    assert float((outputs(model, inputs).argmax(1) == labels).float().mean()) > 0.98
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.2
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            SLBF(f1=1 / 2, f2=1),
            SLBF(f1=1 / 2, f2=1 / 2),
            "8 shared filters of depth 4 do not fit a layer of 4 of depth 4",
        ),
        (SLBF(f1=1 / 2, f2=1 / 2), SLBF(f1=1, f2=1 / 2), "do not fit a layer of 4 of depth 8"),
        (
            SLBF(f1=1 / 2, f2=1 / 2),
            SLBF(f1=1 / 2, f2=1 / 2, selection="fixed"),
            "fixed rule for 4 shared filters is not how the file selects from 4: use selection='learned'",
        ),
        (
            SLBF(f1=1 / 2, f2=1 / 4, selection="fixed"),
            SLBF(f1=1 / 2, f2=1 / 2, selection="fixed"),
            "fixed rule for 4 shared filters is not how the file selects from 2: use selection='learned'",
        ),
        (
            BWN(),
            SLBF(f1=1 / 2, f2=1 / 2),
            r"operation 3 is Conv of 8×8×3×3 binary weights .* there, and Conv of 8×8×3×3",
        ),
        (None, BWN(), "operation 3 is Conv of 8×8×3×3 dense weights .* there"),
    ],
    ids=["fewer_filters", "other_depth", "other_selection", "larger_fixed_bank", "other_method", "dense_file"],
)
def test_other_networks_are_refused(there: Method | None, here: Method, message: str) -> None:
    data = encode(to_program(network(there, 0), SHAPE))
    model = network(here, 1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ModelError, match=message):
        subbit.unpack(model, data, images=images())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())  # as it was


def test_longer_and_shorter_networks_are_refused() -> None:
    one = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    two = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    with pytest.raises(ModelError, match="it has 3 operations, the model 2"):
        subbit.unpack(one, encode(to_program(two, SHAPE)), images=images())


def test_what_cannot_be_unpacked_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4))
    data = encode(to_program(model, SHAPE))
    model.get_parameter("1.weight").data += 1
    with pytest.raises(ModelError, match=r"1 \(PReLU\) has numbers of its own, which are others"):
        subbit.unpack(model, data, images=images())
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.AvgPool2d(2), nn.BatchNorm2d(4))
    with pytest.raises(ModelError, match=r"2 \(BatchNorm\) was folded into the layer before Pool"):
        subbit.unpack(randomise_norms(model), encode(to_program(model, SHAPE)), images=images())
    twice = nn.Conv2d(3, 3, 3)
    model = nn.Sequential(twice, nn.ReLU(), twice)
    with pytest.raises(ModelError, match="0 is used more than once"):
        subbit.unpack(model, encode(to_program(model, SHAPE)), images=images())


def test_a_factor_behind_a_layer_is_not_its_own() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self[0](x) * 0.5
            return y

    model = Scaled(nn.Conv2d(3, 4, 3))
    with pytest.raises(ModelError, match="0: what follows it was folded into it, and is no BatchNorm"):
        subbit.unpack(model, encode(to_program(model, SHAPE)), images=images())


class Halved(nn.Module):
    """A constant of the code, dropout behind BatchNorm, a tuple as the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Dropout2d(0.5), nn.ReLU())
        self.second = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Conv2d(4, 2, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.second(self.first(x) * 0.5),)


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel], ids=["bare", "wrapped"])
def test_dropout_constants_and_wrappers(wrap: Any) -> None:
    torch.manual_seed(0)
    source, model = randomise_norms(Halved()), Halved()
    subbit.unpack(wrap(model), encode(to_program(source, SHAPE, storage="f32")), images=images())
    with torch.no_grad():
        assert relative_error(source.eval()(images())[0], model.eval()(images())[0]) < 1e-4


def test_other_options_are_other_networks() -> None:
    def small(*layers: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), *layers)

    for there, here in (
        (nn.ReLU(), nn.LeakyReLU(0.01)),
        (nn.GELU(), nn.GELU("tanh")),
        (nn.MaxPool2d(2), nn.AvgPool2d(2)),
    ):
        with pytest.raises(ModelError, match="the file holds another network: operation 2 is"):
            subbit.unpack(small(here), encode(to_program(small(there), SHAPE)), images=images())


def test_images_that_do_not_fit() -> None:
    model = nn.Conv2d(3, 4, 3)
    data = encode(to_program(model, SHAPE))
    for wrong in (images()[:0], images()[:, :2], images()[0]):
        with pytest.raises(InputError, match=r"a tensor of \(N, 3, 10, 10\) is needed"):
            subbit.unpack(model, data, images=wrong)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*none\.sbit"):
        subbit.unpack(nn.Conv2d(3, 3, 3), tmp_path / "none.sbit", images=images())

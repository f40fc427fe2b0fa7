"""One contract for all methods: what every layer of every method must do, over all kinds of layers."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from subbit.errors import ConfigError, ModelError
from subbit.methods import METHODS, CompressedLayer, Method, from_config
from subbit.methods.base import Init, Plain
from tests.strategies import EVERY_METHOD, methods, plain_layer, plain_layers

INITS: tuple[Init, ...] = ("random", "dense")
KINDS = ["conv1d", "conv2d", "linear"]
every_method = pytest.mark.parametrize("method", EVERY_METHOD, ids=repr)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_init = pytest.mark.parametrize("init", INITS)


def has_input_scale(method: Method) -> bool:
    return bool(getattr(method, "input_scale", False))


def has_scale(method: Method) -> bool:
    """Effective weights are more than signs."""
    return bool(getattr(method, "scale", method.name not in ("binaryconnect", "bnn")))


def reference(layer: CompressedLayer, x: Tensor) -> Tensor:
    """PyTorch's own layer with the effective weight."""
    return layer.to_plain()(layer.receive(x))  # type: ignore[no-any-return]


def test_every_registered_method_is_under_contract() -> None:
    assert {method.name for method in EVERY_METHOD} == set(METHODS)
    assert all(cls.name == name for name, cls in METHODS.items())


@pytest.mark.parametrize("name", [None, "slb", ["slbf"], 3])
def test_a_config_without_a_known_name_is_an_error(name: object) -> None:
    with pytest.raises(ConfigError, match="unknown method"):
        from_config({"name": name})


@every_method
def test_config_round_trip(method: Method) -> None:
    config = json.loads(json.dumps(method.config()))
    assert from_config(config) == method
    assert hash(from_config(config)) == hash(method)
    assert eval(repr(method), {cls.__name__: cls for cls in METHODS.values()}) == method
    with pytest.raises(ConfigError, match=f"method '{method.name}' has no estimatr; its options: "):
        from_config({**config, "estimatr": "soft"})


@every_method
@every_kind
def test_layer_stands_where_the_plain_one_stood(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer = method.layer(plain)
    assert layer.kind == kind
    assert layer.weight.shape == plain.weight.shape
    assert layer.method is method
    names = ["in_features", "out_features"] if kind == "linear" else ["in_channels", "kernel_size", "stride", "padding"]
    for name in names:
        assert getattr(layer, name) == getattr(plain, name)
    assert plain.bias is not None
    assert layer.bias is not None
    assert torch.equal(layer.bias, plain.bias)
    assert layer.bias is not plain.bias
    assert layer(x).shape == plain(x).shape


@every_method
@every_kind
def test_direct_construction_like_the_plain_layer(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    built = method.layer(plain)
    arguments: tuple[Any, ...] = (8, 12) if kind == "linear" else (8, 12, 3)
    options: dict[str, Any] = {} if kind == "linear" else {"padding": 1}
    layer_class: Any = type(built)
    direct = layer_class(*arguments, method=method, bias=False, **options)
    assert direct.bias is None
    assert direct(x).shape == plain(x).shape


@every_method
@every_kind
@every_init
def test_weights_are_binary_where_they_should_be(method: Method, kind: str, init: Init) -> None:
    layer = method.layer(plain_layer(kind)[0], init=init)
    if method.name == "legonet":
        return
    blocks = getattr(layer, "blocks", 1)
    magnitudes = layer.effective_weight().detach().abs().reshape(12 * blocks, -1)
    assert torch.equal(magnitudes, magnitudes[:, :1].expand_as(magnitudes))
    if not has_scale(method):
        assert torch.equal(magnitudes, torch.ones_like(magnitudes))


@every_method
@every_kind
def test_every_parameter_receives_gradient(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer = method.layer(plain)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_method
@every_kind
def test_record_gives_the_effective_weight_to_the_bit(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    for init in INITS:
        layer = method.layer(plain, init=init)
        layer(x).sum().backward()
        with torch.no_grad():
            for parameter in layer.parameters():  # beyond the bounds of latent weights, and away from the start
                parameter.sub_(0.5 * torch.randn_like(parameter))
        record = layer.record()
        assert record.shape == layer.weight_shape
        assert np.array_equal(record.weight(), layer.effective_weight().detach().numpy())
        layer.eval()
        assert np.array_equal(record.weight(), layer.effective_weight().detach().numpy())


@given(plain_layers(), methods())
def test_forward_equals_plain_layer_with_effective_weight(case: tuple[Plain, Tensor], method: Method) -> None:
    plain, x = case
    try:
        expected_shape = plain(x).shape
    except RuntimeError:  # kernel larger than the input, or reflection beyond it
        return
    if getattr(method, "depth", None) is not None:
        return
    layer = method.layer(plain)
    y = layer(x)
    assert y.shape == expected_shape
    if not has_input_scale(method):
        # sums of fan_in terms in another order
        torch.testing.assert_close(y, reference(layer, x), rtol=1e-4, atol=1e-5 * layer.fan_in)
        assert np.array_equal(layer.record().weight(), layer.effective_weight().detach().numpy())


@every_method
@every_kind
def test_state_dict_round_trip(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer, other = method.layer(plain), method.layer(plain)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(layer(x), other(x))


@every_method
@every_kind
def test_copies_and_pickles(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer = method.layer(plain)
    twin = copy.deepcopy(layer)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(layer(x), twin(x))
    assert torch.equal(layer(x), loaded(x))
    assert repr(loaded) == repr(layer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.neg_()
    assert torch.equal(layer(x), loaded(x)), "a copy shares memory with its original"


@every_method
@every_kind
def test_double_precision(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer = method.layer(plain.double(), init="dense")
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    y = layer(x.double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(layer.float()(x), y.float(), rtol=1e-4, atol=1e-4)


@every_method
@every_kind
def test_bfloat16_autocast_trains(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    layer = method.layer(plain)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    # eight bits of mantissa in every factor, averaged over the sum
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05 * float(expected.detach().abs().max()))
    y.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@every_method
def test_compiled_training_is_the_same(method: Method) -> None:
    plain, x = plain_layer("conv2d")
    eager = method.layer(plain)
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.mul_(3)  # latent weights beyond their bounds: the clipping has to survive the compiler
    twin = copy.deepcopy(eager)
    torch.compiler.reset()
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for layer, call in ((eager, eager), (twin, compiled)):
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            call(x).square().mean().backward()
            optimiser.step()
    for (name, a), b in zip(eager.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


@every_method
def test_checkpointed_gradients_are_the_same(method: Method) -> None:
    plain, x = plain_layer("conv2d")
    layer = method.layer(plain)
    layer(x).square().sum().backward()
    expected = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=False).square().sum().backward()
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@every_method
@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel_trains(method: Method) -> None:
    """Without find_unused_parameters, so the second step fails if a parameter got no gradient in the first."""
    plain, x = plain_layer("conv2d")
    alone = method.layer(plain)
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    for module in (alone, parallel):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(2):
            optimiser.zero_grad()
            module(x).square().mean().backward()
            optimiser.step()
    for a, b in zip(alone.parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@every_method
def test_module_used_twice(method: Method) -> None:
    plain, x = plain_layer("conv2d", 8, 8)
    layer = method.layer(plain)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3)
    layer(layer(x)).sum().backward()  # would fail if an update in place touched what the first use saved
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


@every_method
@every_kind
def test_training_lowers_the_loss(method: Method, kind: str) -> None:
    plain, x = plain_layer(kind)
    with torch.no_grad():
        shape = plain(x).shape
    target = torch.randn(shape)
    norm = nn.BatchNorm1d(12) if kind != "conv2d" else nn.BatchNorm2d(12)
    model = nn.Sequential(method.layer(plain), norm)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@every_method
def test_unbatched_input(method: Method) -> None:
    for kind in KINDS:
        plain, x = plain_layer(kind)
        layer = method.layer(plain).eval()
        torch.testing.assert_close(layer(x[0]), layer(x)[0], rtol=1e-4, atol=1e-5)


@every_method
def test_training_mode_is_kept(method: Method) -> None:
    plain, _ = plain_layer("conv2d")
    assert method.layer(plain).training
    assert not method.layer(plain.eval()).training


@every_method
def test_nan_weights_are_refused(method: Method) -> None:
    plain, _ = plain_layer("conv2d")
    with torch.no_grad():
        plain.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        method.layer(plain, init="dense")
    layer = method.layer(plain)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN"):
        layer.record()


@every_method
def test_unsupported_modules_are_refused(method: Method) -> None:
    with pytest.raises(ModelError, match="supported are Conv1d, Conv2d, Linear"):
        method.layer(nn.ConvTranspose2d(8, 8, 3))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="run one batch"):
        method.layer(nn.LazyConv2d(8, 3))
    with pytest.raises(ConfigError, match="init"):
        method.layer(nn.Linear(8, 8), init="trained")  # type: ignore[arg-type]


def test_unknown_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="slbf, legonet, binaryconnect, bwn, bnn, xnornet"):
        from_config({"name": "ternary"})
    with pytest.raises(ConfigError, match="f3"):
        from_config({"name": "slbf", "f1": "1/2", "f2": "1/2", "f3": 1})

"""`subbit.compress`: every layer ends converted or kept with a reason, and the original is never touched."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, prune

import subbit
from subbit.accounting import weight_bits
from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet, XNORNet
from subbit.methods.base import CompressedLayer, Init, Method
from subbit.models import resnet18
from subbit.nn.compress import FIRST, FROZEN, LAST, Conversion, Decision, conversion_of
from tests import zoo_models

SLBF_HALF = SLBF(f1="1/2", f2="1/4")
METHODS: list[Method] = [SLBF_HALF, LegoNet(f1="1/2", f2="1/4"), BinaryConnect(), BWN(), BNN(), XNORNet()]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small(*layers: nn.Module) -> nn.Sequential:
    """A stem that stays, the layers of interest, a head that stays."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def decisions(model: nn.Module) -> dict[str, Decision]:
    return {decision.name: decision for decision in conversion(model).decisions}


def conversion(model: nn.Module) -> Conversion:
    result = conversion_of(model)
    assert result is not None
    return result


def kept(model: nn.Module) -> dict[str, str]:
    return {name: d.kept_because for name, d in decisions(model).items() if d.method is None}


def storages(model: nn.Module) -> set[int]:
    tensors = [*model.parameters(), *model.buffers()]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


# ------------------------------------------------------------------------------------------------- the zoo


@pytest.mark.parametrize("name", list(zoo_models.FAMILIES))
@pytest.mark.filterwarnings("ignore:layers that take signs", "ignore:no layer of")
def test_every_family_converts_runs_and_learns_with_every_method(name: str) -> None:
    model, x = zoo_models.build(name)
    before = copy.deepcopy(model.state_dict())
    for method in METHODS:
        compressed = subbit.compress(model, method)
        found = decisions(compressed)
        for decision in found.values():
            assert (decision.method is None) == bool(decision.kept_because), decision
            layer = compressed.get_submodule(decision.name)
            assert isinstance(layer, CompressedLayer) == (decision.method is not None)
        assert storages(model).isdisjoint(storages(compressed))
        assert compressed(x).shape == (2, 10)
        compressed.train()
        output = compressed(x)
        output = output if isinstance(output, Tensor) else output[0]
        F.cross_entropy(output, torch.tensor([1, 2])).backward()  # type: ignore[no-untyped-call]
        converted = [compressed.get_submodule(d.name) for d in found.values() if d.method is not None]
        ran = [layer for layer in converted if any(p.grad is not None for p in layer.parameters())]
        assert len(ran) == sum(not d.name.startswith("aux") for d in found.values() if d.method is not None)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("resnet", "conv1", "fc"),
        ("containers", "stem", "head"),  # registered last and first, run first and last
        ("googlenet", "conv1.0", "fc"),
        ("convnext", "features.0.0", "classifier.2"),
        ("functional", "stem", "head"),
        ("untraceable", "first", "head"),  # order of registration
        ("squeezenet", "features.0", None),  # its classifier is a convolution
        ("mlp", None, "net.5"),
    ],
)
def test_first_convolution_and_last_linear_layer_stay(name: str, first: str | None, last: str | None) -> None:
    model, _ = zoo_models.build(name)
    reasons = kept(subbit.compress(model, SLBF_HALF))
    assert [n for n, reason in reasons.items() if reason == FIRST] == ([first] if first else [])
    assert [n for n, reason in reasons.items() if reason == LAST] == ([last] if last else [])


def test_resnet18_shortcuts_are_stacked_at_a_quarter_and_an_eighth() -> None:
    # 256 + 2048 + 6144 bits for the first shortcut against 8192 + 2048 of plain binary weights
    compressed = subbit.compress(resnet18(), SLBF(f1="1/4", f2="1/8"))
    assert kept(compressed) == {"conv1": FIRST, "linear": LAST}
    shortcut = compressed.get_submodule("stages.1.0.shortcut.0")
    assert isinstance(shortcut, CompressedLayer)
    assert weight_bits(shortcut.record()).total == 256 + 2048 + 6144


# ------------------------------------------------------------------------------------------------- keep and policy


def block() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.Flatten(2), nn.Linear(16, 16)
    )


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.one = block()
        self.two = block()
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.stem(x)).unflatten(2, (4, 4))
        return cast(Tensor, self.head(self.two(x).mean(2)))


ALL = ["one.0", "one.2", "one.4", "two.0", "two.2", "two.4"]


@pytest.mark.filterwarnings("ignore:no layer of")
@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("one.2", ["one.2"]),
        (["one.2", "two.0"], ["one.2", "two.0"]),
        (["two.*"], ["two.0", "two.2", "two.4"]),
        (["*.[02]"], ["one.0", "one.2", "two.0", "two.2"]),
        (["two"], ["two.0", "two.2", "two.4"]),
        (nn.Linear, ["one.4", "two.4"]),
        ((nn.Conv2d,), ["one.0", "one.2", "two.0", "two.2"]),
        ([nn.Sequential], ALL),
        (["one.1", nn.ReLU], []),  # kept anyway: not a mistake
    ],
    ids=str,
)
def test_keep_takes_names_globs_blocks_and_types(keep: Any, expected: list[str]) -> None:
    compressed = subbit.compress(Blocks(), BWN(), keep=keep)
    asked = [name for name, reason in kept(compressed).items() if reason.startswith("asked to keep")]
    assert [name for name in asked if name not in ("stem", "head")] == expected


def test_policy_is_first_match_and_none_keeps() -> None:
    quarter, half = SLBF(f1="1/4", f2="1/4"), SLBF(f1="1/2", f2="1/2")
    policy = {"two.0": quarter, "two.*": None, "*.4": half}
    found = decisions(subbit.compress(Blocks(), BWN(), policy=policy))
    assert found["two.0"].method == quarter
    assert found["two.2"].kept_because == "asked to keep (policy 'two.*': None)"
    assert found["two.4"].method is None
    assert found["one.4"].method == half
    assert found["one.0"].method == BWN()


def test_policy_reaches_the_first_and_the_last_layer() -> None:
    found = decisions(subbit.compress(Blocks(), BWN(), policy={"stem": BWN(), "he*": BinaryConnect()}))
    assert found["stem"].method == BWN()
    assert found["head"].method == BinaryConnect()


def test_keep_outranks_policy() -> None:
    assert "one.0" in kept(subbit.compress(Blocks(), BWN(), keep="one.0", policy={"one.0": BWN()}))


@pytest.mark.filterwarnings("ignore:no layer of")
def test_layer_that_stacking_makes_larger_is_kept_unless_named_exactly() -> None:
    model = small(nn.Conv2d(16, 16, 1))
    method = SLBF(f1="1/16", f2="1/2")  # depth 1: 16 scales per filter
    assert kept(subbit.compress(model, method, policy={"1*": method}))["1"] == (
        "stacking would cost 4,616 bits, dense 4,096"
    )
    assert decisions(subbit.compress(model, method, policy={"1": method}))["1"].method == method
    dearer_than_binary = SLBF(f1="1/4", f2="1/2")
    assert kept(subbit.compress(model, dearer_than_binary, policy={"1*": dearer_than_binary}))["1"] == (
        "stacking would cost 992 bits, plain binary 512"
    )


@pytest.mark.filterwarnings("ignore:no layer of")
def test_real_valued_bank_is_compared_with_dense_only() -> None:
    model = small(nn.Conv2d(16, 16, 3, padding=1))
    assert "1" not in kept(subbit.compress(model, LegoNet(f1="1/2", f2="1/2")))
    thin = LegoNet(f1="1/16", f2="1")
    assert kept(subbit.compress(small(nn.Conv2d(16, 16, 1)), thin))["1"].startswith("stacking would cost")


def test_fixed_selection_pays_no_indices_in_the_comparison() -> None:
    model = small(nn.Conv2d(16, 16, 1))
    learned, fixed = (SLBF(f1="1/2", f2="1", selection=s) for s in ("learned", "fixed"))  # 128 + 128 + 256, 128 + 256
    assert "1" not in kept(subbit.compress(model, learned))
    record = cast(CompressedLayer, subbit.compress(model, fixed)[1]).record()  # type: ignore[index]
    assert weight_bits(record).indices == 0


# ------------------------------------------------------------------------------------------------- kept with a reason


class SamePadded(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (0, 1, 0, 1)))


class Standardised(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return cast(Tensor, super()._conv_forward(input, weight - weight.mean(), bias))


class Renamed(nn.Conv2d):
    """A subclass that computes what its parent computes."""


class WithState(nn.Linear):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("calls", torch.zeros(1))


def patched() -> nn.Module:
    conv = nn.Conv2d(16, 16, 3, padding=1)
    conv.forward = lambda x: x  # type: ignore[assignment, method-assign]
    return conv


def volume() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (16, 1)), nn.Conv3d(16, 16, 1), nn.Flatten(1, 2))


def old_weight_norm() -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Conv2d(16, 16, 1))


def pruned() -> nn.Module:
    return cast(nn.Module, prune.l1_unstructured(nn.Conv2d(16, 16, 1), "weight", 0.5))  # type: ignore[no-untyped-call]


UNSUPPORTED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "transposed": (lambda: nn.ConvTranspose2d(16, 16, 3, padding=1), "unsupported type ConvTranspose2d"),
    "three_dimensional": (volume, "unsupported type Conv3d"),
    "own_forward": (lambda: SamePadded(16, 16, 2), "unsupported type SamePadded: it has a forward of its own"),
    "own_conv_forward": (lambda: Standardised(16, 16, 3, padding=1), "unsupported type Standardised: it has a forward"),
    "patched_forward": (patched, "unsupported type Conv2d: it has a forward of its own"),
    "parametrised": (lambda: parametrizations.weight_norm(nn.Conv2d(16, 16, 1)), "parametrised (weight)"),
    "old_weight_norm": (old_weight_norm, "parametrised: its weight is computed from weight_g, weight_v"),
    "pruned": (pruned, "parametrised: its weight is computed from weight_orig"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:no layer of")
@pytest.mark.parametrize("case", list(UNSUPPORTED))
def test_unsupported_layer_is_kept_with_its_reason_and_still_runs(case: str) -> None:
    build, reason = UNSUPPORTED[case]
    model = small(build())
    compressed = subbit.compress(model, SLBF_HALF)
    (found,) = [r for name, r in kept(compressed).items() if name.startswith("1")]
    assert found.startswith(reason)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(compressed(x), model(x))
    name = next(name for name in kept(compressed) if name.startswith("1"))
    with pytest.raises(subbit.ModelError, match=rf"{name} .*cannot be compressed as policy asks: .*keep=\['{name}'\]"):
        subbit.compress(model, SLBF_HALF, policy={name: SLBF_HALF})


@pytest.mark.filterwarnings("ignore:no layer of")
def test_layer_with_state_of_its_own_is_kept() -> None:
    model = nn.Sequential(WithState(8, 8), nn.Linear(8, 8))
    assert kept(subbit.compress(model, BWN()))["0"] == "unsupported type WithState: it has state of its own (calls)"


@pytest.mark.filterwarnings("ignore:no layer of", "ignore:Initializing zero-element")
def test_layer_without_weights_is_kept() -> None:
    model = nn.Sequential(nn.Linear(0, 8), nn.Linear(8, 8))
    assert kept(subbit.compress(model, BWN()))["0"] == "its weight is empty: (8, 0)"


def test_plain_subclass_is_converted() -> None:
    compressed = subbit.compress(small(Renamed(16, 16, 3, padding=1)), SLBF_HALF)
    assert decisions(compressed)["1"].method == SLBF_HALF
    assert decisions(compressed)["1"].kind == "Renamed"


@pytest.mark.filterwarnings("ignore:no layer of")
def test_tied_weights_are_kept_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(16, 8)
            self.decoder = nn.Linear(8, 16, bias=False)
            self.head = nn.Linear(16, 2)
            self.decoder.weight = self.embedding.weight

    compressed = cast(Any, subbit.compress(Tied(), BWN()))
    assert kept(compressed)["decoder"] == "weight tied: embedding.weight and decoder.weight are one tensor"
    assert compressed.decoder.weight is compressed.embedding.weight


@pytest.mark.filterwarnings("ignore:no layer of")
def test_complex_weights_are_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.complex64), nn.Linear(8, 8))
    assert kept(subbit.compress(model, BWN()))["0"] == "unsupported type torch.complex64"


def test_compressed_layers_are_left_alone_by_a_second_call() -> None:
    once = subbit.compress(Blocks(), SLBF_HALF, keep=["two"])
    twice = subbit.compress(once, BWN())
    found = decisions(twice)
    assert found["one.0"].kept_because == "already compressed: SLBF(f1=1/2, f2=1/4)"
    assert found["two.0"].method == BWN()
    assert found["stem"].kept_because == FIRST
    one, two = (cast(CompressedLayer, m.get_submodule("one.0")) for m in (once, twice))
    assert torch.equal(one.effective_weight(), two.effective_weight())


# ------------------------------------------------------------------------------------------------- structure survives


@pytest.mark.filterwarnings("ignore:no layer of")
def test_module_at_two_paths_is_converted_once_and_stays_one() -> None:
    model, x = zoo_models.build("used_twice")
    compressed = cast(Any, subbit.compress(model, SLBF_HALF))
    assert compressed.shared is compressed.alias
    assert decisions(compressed)["shared"].aliases == ("alias",)
    assert "alias" not in decisions(compressed)
    assert kept(subbit.compress(model, SLBF_HALF, policy={"alias": None}))["shared"].startswith("asked to keep")
    assert compressed(x).shape == (2, 10)


def test_references_in_plain_lists_and_dicts_follow() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)
            self.c = nn.Linear(8, 8)
            self.steps = [self.a, self.b]
            self.named = {"last": (self.c,)}

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = step(x)
            return cast(Tensor, self.named["last"][0](x))

    compressed = cast(Any, subbit.compress(Listed(), BWN()))
    assert compressed.steps[0] is compressed.a
    assert isinstance(compressed.steps[1], CompressedLayer)
    assert compressed.named["last"][0] is compressed.c


def test_training_flags_requires_grad_and_buffers_of_kept_modules_survive() -> None:
    model, _ = zoo_models.build("resnet")
    model.train()
    cast(Any, model).layer1.eval()
    cast(Any, model).fc.weight.requires_grad_(False)
    compressed = subbit.compress(model, SLBF_HALF)
    flags = {name: module.training for name, module in model.named_modules()}
    assert {n: m.training for n, m in compressed.named_modules() if n in flags} == flags
    assert not compressed.get_parameter("fc.weight").requires_grad
    for name, buffer in model.named_buffers():
        assert torch.equal(compressed.get_buffer(name), buffer)


def test_frozen_layers_stay_unless_asked_for() -> None:
    model = small(nn.Conv2d(16, 16, 3, padding=1).requires_grad_(False))
    assert decisions(subbit.compress(model, SLBF_HALF))["1"].kept_because == FROZEN
    compressed = subbit.compress(model, SLBF_HALF, policy={"1": SLBF_HALF})
    assert decisions(compressed)["1"].notes == ("was frozen; the parameters of the compressed layer are trainable",)
    assert all(p.requires_grad for p in compressed.get_submodule("1").parameters())


def test_a_frozen_convolution_is_not_the_first_one() -> None:
    means = nn.Conv2d(3, 3, 1).requires_grad_(False)
    made = decisions(subbit.compress(nn.Sequential(means, *small(nn.Conv2d(16, 16, 3, padding=1))), SLBF_HALF))
    assert [made[name].kept_because for name in ("0", "1", "2")] == [FROZEN, FIRST, ""]


def test_a_parametrised_layer_is_not_frozen() -> None:
    stem = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1, bias=False))
    made = decisions(subbit.compress(nn.Sequential(stem, *small(nn.Conv2d(16, 16, 3, padding=1))), BWN()))
    assert made["0"].kept_because.startswith("parametrised")
    assert [made[name].kept_because for name in ("1", "2")] == ["", ""]


def test_a_model_that_is_frozen_as_a_whole_is_compressed() -> None:
    made = decisions(subbit.compress(small(nn.Conv2d(16, 16, 3, padding=1)).requires_grad_(False), SLBF_HALF))
    assert [made[name].kept_because for name in ("0", "1")] == [FIRST, ""]


def test_forward_hooks_are_carried_over_and_backward_hooks_reported() -> None:
    calls: list[str] = []
    model = small(nn.Conv2d(16, 16, 3, padding=1))
    model[1].register_forward_pre_hook(lambda module, args: calls.append("before"))
    model[1].register_forward_hook(lambda module, args, kwargs, output: calls.append("after"), with_kwargs=True)
    model[1].register_full_backward_hook(lambda *_: None)
    compressed = subbit.compress(model, SLBF_HALF)
    compressed(torch.randn(1, 3, 8, 8))
    assert calls == ["before", "after"]
    assert "backward hooks were not carried over" in decisions(compressed)["1"].notes[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_of_the_model_is_the_dtype_of_its_layers(dtype: torch.dtype) -> None:
    compressed = subbit.compress(small(nn.Conv2d(16, 16, 3, padding=1)).to(dtype), SLBF_HALF)
    assert {p.dtype for p in compressed.parameters()} == {dtype}
    assert compressed(torch.randn(1, 3, 8, 8, dtype=dtype)).dtype == dtype


def test_wrappers_and_graph_modules_are_models_too() -> None:
    model = small(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    x = torch.randn(2, 3, 8, 8)
    for wrapped, name in ((nn.DataParallel(model), "module.1"), (fx.symbolic_trace(model), "1")):
        compressed = subbit.compress(wrapped, SLBF_HALF)
        assert isinstance(compressed, nn.DataParallel if "module" in name else fx.GraphModule)
        assert isinstance(compressed.get_submodule(name), CompressedLayer)
        assert not torch.equal(compressed(x), wrapped(x))
    assert not any(isinstance(module, CompressedLayer) for module in model.modules())


def test_compiled_model_runs_the_new_layers() -> None:
    model = small(nn.Conv2d(16, 16, 3, padding=1))
    x = torch.randn(2, 3, 8, 8)
    compiled = cast(nn.Module, torch.compile(model, backend="eager"))
    compressed = subbit.compress(compiled, SLBF_HALF)
    layer = compressed.get_submodule("_orig_mod.1")
    assert isinstance(layer, CompressedLayer)
    assert torch.equal(compressed(x), compressed.get_submodule("_orig_mod")(x))
    assert not torch.equal(compressed(x), compiled(x))


def test_model_that_is_itself_a_layer() -> None:
    with pytest.warns(UserWarning, match="no layer of Conv2d was compressed: first convolution"):
        subbit.compress(nn.Conv2d(8, 8, 3), BWN())
    layer = subbit.compress(nn.Conv2d(8, 8, 3), BWN(), policy={"*": BWN()})
    assert isinstance(layer, CompressedLayer)


def test_state_dict_pickle_and_deepcopy_of_the_result() -> None:
    compressed = subbit.compress(Blocks(), SLBF_HALF)
    x = torch.randn(1, 3, 4, 4)
    for clone in (copy.deepcopy(compressed), pickle.loads(pickle.dumps(compressed))):
        assert torch.equal(clone(x), compressed(x))
        assert conversion(clone) == conversion(compressed)
    other = subbit.compress(Blocks(), SLBF_HALF)
    other.load_state_dict(compressed.state_dict())
    assert torch.equal(other(x), compressed(x))


def test_forward_that_changes_the_model_leaves_no_trace_behind() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small(nn.Conv2d(16, 16, 3, padding=1))
            self.register_buffer("runs", torch.zeros(()))
            self.last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            cast(Tensor, self.runs).add_(1)
            self.last = x
            return cast(Tensor, self.net(x))

    model = Counting()
    compressed = cast(Any, subbit.compress(model, SLBF_HALF))
    assert float(model.runs) == float(compressed.runs) == 0  # type: ignore[arg-type]
    assert model.last is None
    assert compressed.last is None


def test_optional_arguments_of_forward_do_not_hide_the_order() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 4)
            self.other = nn.Linear(16, 16)
            self.stem = nn.Linear(8, 16)

        def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
            x = self.stem(x)
            if mask is not None:
                x = x * mask
            if scale > 0.5:
                x = self.other(x)
            return cast(Tensor, self.head(x))

    assert kept(subbit.compress(Optional(), BWN())) == {"head": LAST}


# ------------------------------------------------------------------------------------------------- init


def test_dense_start_is_closer_to_the_weights_than_a_random_one() -> None:
    model = small(nn.Conv2d(16, 16, 3, padding=1))
    target = cast(Tensor, model[1].weight).detach()
    errors = []
    starts: tuple[Init, ...] = ("dense", "random")
    for init in starts:
        layer = cast(CompressedLayer, subbit.compress(model, SLBF_HALF, init=init).get_submodule("1"))
        errors.append(float((layer.effective_weight().detach() - target).square().mean()))
    assert errors[0] < 0.9 * float(target.square().mean()) < errors[1]


# ------------------------------------------------------------------------------------------------- binary inputs


def relu_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU6(), nn.BatchNorm2d(16),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip


def test_relu_in_front_of_signs_becomes_hardtanh() -> None:
    compressed = subbit.compress(relu_net(), BNN())
    assert isinstance(compressed.get_submodule("2"), nn.Hardtanh)
    assert cast(nn.Hardtanh, compressed.get_submodule("2")).inplace
    assert type(compressed.get_submodule("4")) is nn.ReLU6  # a BatchNorm behind it gives both signs
    assert type(compressed.get_submodule("8")) is nn.ReLU  # the layer behind it stays dense
    assert conversion(compressed).notes == ("Hardtanh in place of ReLU, whose signs are all +1: 2",)
    assert type(subbit.compress(relu_net(), BWN()).get_submodule("2")) is nn.ReLU


def test_functional_relu_in_front_of_signs_is_reported() -> None:
    model, _ = zoo_models.build("resnet_preactivation")
    with pytest.warns(UserWarning, match=r"layers that take signs get a functional relu's output.*blocks\.0\.conv1"):
        compressed = subbit.compress(model, XNORNet())
    assert "functional relu" in decisions(compressed)["blocks.0.conv1"].notes[0]


def test_all_relus_are_swapped_where_the_model_cannot_be_traced() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = relu_net()

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.net(x if float(x.sum()) > 0 else -x))

    compressed = subbit.compress(Branching(), BNN())
    assert not any(type(module) in (nn.ReLU, nn.ReLU6) for module in compressed.modules())
    assert "cannot be traced" in conversion(compressed).notes[1]


@pytest.mark.filterwarnings("ignore:no layer of")
def test_layer_called_through_a_functional_cannot_take_signs() -> None:
    model, x = zoo_models.build("functional")
    reasons = kept(subbit.compress(model, BNN()))
    assert reasons["conv"] == "called through a functional, which would not take the signs of its input"
    stacked = subbit.compress(model, SLBF_HALF)
    assert isinstance(stacked.get_submodule("conv"), CompressedLayer)
    assert not torch.equal(stacked(x), model(x))


def test_nothing_is_warned_about_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subbit.compress(zoo_models.build("resnet")[0], BNN())

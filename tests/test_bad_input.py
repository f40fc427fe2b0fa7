"""Bad input to compress, inspect and the configurations: a named error that says what to do, the model unharmed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import subbit
from subbit.errors import ConfigError, FormatError, InputError, ModelError, SubbitError
from subbit.methods import BWN, SLBF, LegoNet

HALF = SLBF(f1="1/2", f2="1/4")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 64, 10)
    )


def spoiled(value: float, parameter: str = "2.weight") -> nn.Module:
    model = net()
    with torch.no_grad():
        model.get_parameter(parameter).view(-1)[7] = value
    return model


class Empty(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyLinear(4))


def scripted() -> Any:
    return torch.jit.trace(net(), torch.zeros(1, 3, 8, 8))  # type: ignore[no-untyped-call]


def compress(build: Callable[[], Any] = net, method: Any = HALF, **options: Any) -> Callable[[], object]:
    return lambda: subbit.compress(build(), method, **options)


def inspect(what: Any = net, *shape: Any) -> Callable[[], object]:
    return lambda: subbit.inspect(what() if callable(what) else what, *shape)


CASES: dict[str, tuple[Callable[[], object], type[SubbitError], str]] = {
    "not_a_module": (compress(list), ModelError, "takes a torch.nn.Module, got list"),
    "state_dict_instead_of_module": (compress(lambda: net().state_dict()), ModelError, "got OrderedDict"),
    "scripted": (compress(scripted), ModelError, "pass the model it was scripted or traced from"),
    "no_layer": (compress(lambda: nn.Sequential(nn.BatchNorm2d(3), Empty())), ModelError, "no convolution and no"),
    "lazy": (compress(lazy), ModelError, "0.weight is not materialised.*run one batch"),
    "meta_device": (compress(lambda: net().to("meta")), ModelError, r"0 \(Conv2d\): weight is on the meta device"),
    "nan": (compress(lambda: spoiled(float("nan"))), ModelError, r"2 \(Conv2d\): weight contains NaN"),
    "infinity": (compress(lambda: spoiled(float("inf")), init="dense"), ModelError, r"2 \(Conv2d\): weight"),
    "nan_in_a_kept_bias": (compress(lambda: spoiled(float("nan"), "4.bias")), ModelError, r"4 \(Linear\): bias"),
    "method_is_a_class": (compress(net, SLBF), ConfigError, r"SLBF is a class, pass a configuration such as SLBF\(\)"),
    "method_is_a_name": (compress(net, "slbf"), ConfigError, "expected a method from subbit.methods, got 'slbf'"),
    "method_is_none": (compress(net, None), ConfigError, "expected a method from subbit.methods, got None"),
    "unknown_init": (compress(init="zeros"), ConfigError, "init='zeros': choose 'random' or 'dense'"),
    "keep_unknown_name": (compress(keep=["22"]), ConfigError, "keep '22' matches nothing: near are '2'"),
    "keep_unknown_glob": (compress(keep=["layer*.conv"]), ConfigError, "keep 'layer[*].conv' matches nothing"),
    "keep_one_of_two": (compress(keep=["nothing", "2"]), ConfigError, "keep 'nothing' matches nothing"),
    "keep_absent_type": (compress(keep=[nn.Conv1d]), ConfigError, "keep Conv1d .*: the layers here are Conv2d, Linear"),
    "keep_a_number": (compress(keep=[3]), ConfigError, "keep takes layer names, globs and nn.Module types, got 3"),
    "keep_a_class_of_another_kind": (compress(keep=[dict]), ConfigError, "keep takes layer names"),
    "policy_is_a_list": (compress(policy=["2"]), ConfigError, "policy maps names or globs to methods, got list"),
    "policy_unknown_glob": (compress(policy={"conv*": HALF}), ConfigError, "policy 'conv[*]' matches no layer"),
    "policy_on_an_activation": (compress(policy={"1": HALF}), ConfigError, "policy '1' matches no layer"),
    "policy_key_is_a_type": (compress(policy={nn.Conv2d: HALF}), ConfigError, "policy maps layer names or globs"),
    "policy_value_is_a_class": (compress(policy={"2": SLBF}), ConfigError, "policy '2': SLBF is a class"),
    "policy_value_is_text": (compress(policy={"2": "slbf"}), ConfigError, "subbit.methods or None, got 'slbf'"),
    "depth_that_does_not_divide": (
        compress(net, SLBF(depth=5, filters=4)), ConfigError, r"2 \(Conv2d\): .*depth.*1, 2, 4, 8, 16.*keep=\['2'\]",
    ),
    "inspect_a_list": (inspect(list), ModelError, "torch.nn.Module or the path of a .sbit file, got list"),
    "inspect_without_shape": (inspect(), ConfigError, r"inspect\(model, \(3, 32, 32\)\)"),
    "inspect_wrong_rank": (inspect(net, (8, 8)), ConfigError, r"\(8, 8\): .* takes \(channels, height, width\)"),
    "inspect_wrong_channels": (inspect(net, (4, 8, 8)), ModelError, r"does not run on .* shape \(1, 4, 8, 8\)"),
    "inspect_wrong_size": (inspect(net, (3, 9, 9)), ModelError, r"does not run on an input of shape \(1, 3, 9, 9\)"),
    "inspect_unknown_storage": (
        lambda: subbit.inspect(net(), (3, 8, 8), storage=cast(Any, "f8")), ConfigError, "'f8': choose one of 'f16'",
    ),
    "inspect_zero_size": (inspect(net, (3, 0, 8)), ConfigError, "positive whole numbers"),
    "inspect_fraction": (inspect(net, (3, 8.5, 8)), ConfigError, "positive whole numbers"),
    "inspect_tensor": (inspect(net, torch.zeros(1, 3, 8, 8)), ConfigError, "positive whole numbers"),
    "inspect_text_shape": (inspect(net, "3x8"), ConfigError, "positive whole numbers"),
    "inspect_lazy": (inspect(lazy, (3, 8, 8)), ModelError, "0.weight is not materialised"),
    "inspect_scripted": (inspect(scripted, (3, 8, 8)), ModelError, "pass the model it was scripted or traced from"),
    "inspect_nan": (inspect(lambda: spoiled(float("nan")), (3, 8, 8)), ModelError, r"2 \(Conv2d\): weight contains"),
    "inspect_absent_file": (inspect("absent.sbit"), FormatError, "absent.sbit: cannot be read: No such file"),
    "inspect_a_folder": (inspect(Path(__file__).parent), FormatError, "tests: cannot be read"),
    "inspect_another_file": (inspect(__file__), FormatError, "test_bad_input.py: not a .sbit file"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", list(CASES))
def test_error_says_what_and_where(case: str) -> None:
    call, error, message = CASES[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, SubbitError)


@pytest.mark.parametrize("f1", [0, -0.5, 1.5, "2/1", "half", "1/0", None, float("nan"), True], ids=str)
@pytest.mark.parametrize("method", [SLBF, LegoNet])
def test_wrong_fractions(method: type[SLBF | LegoNet], f1: Any) -> None:
    with pytest.raises(ConfigError):
        method(f1=f1, f2="1/2")


def test_error_leaves_the_model_as_it_was() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    attributes = set(vars(model))
    with pytest.raises(ConfigError):
        subbit.compress(model, HALF, keep=["nothing"])
    with pytest.raises(ConfigError):
        subbit.compress(model, HALF, policy={"x*": None})
    with pytest.raises(ModelError):
        subbit.inspect(model, (4, 8, 8))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert set(vars(model)) == attributes
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_error_of_subbit_is_caught_by_its_base() -> None:
    for error in (ConfigError, ModelError, FormatError, InputError, subbit.PackError, subbit.MissingDependency):
        assert issubclass(error, SubbitError)
    assert issubclass(ConfigError, ValueError)


def test_model_that_cannot_be_copied_gets_a_named_error() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.lock = threading.Lock()  # cannot be copied

    with pytest.raises(ModelError, match="Locked cannot be copied"):
        subbit.compress(Locked(), BWN())


def test_near_names_are_listed() -> None:
    model = nn.ModuleDict({"encoder": nn.Conv2d(3, 8, 3), "decoder": nn.Conv2d(8, 8, 3), "head": nn.Linear(8, 2)})
    with pytest.raises(ConfigError, match="'enocder' matches nothing: near are 'encoder', 'decoder'"):
        subbit.compress(model, BWN(), keep=["enocder"])

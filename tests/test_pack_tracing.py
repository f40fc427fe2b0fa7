"""What a model may ask and do while it is read for packing: the file computes what the model does, or there is none."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbit
from subbit.errors import PackError
from subbit.methods import SLBF
from subbit.nn.pack import to_packed
from subbit.verify import compare

SHAPE = (3, 16, 16)
TORCH: Any = torch  # spellings that run, but that its types do not know
Forward = Callable[[Any, Any], Any]


class Unchanging(dict[str, int]):
    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a configuration does not change")


class Net(nn.Module):
    """Two convolutions, then what a test is about."""

    def __init__(self, rest: Forward) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.level = nn.Parameter(torch.randn(1, 16, 1, 1))
        self.power = nn.Parameter(torch.tensor([3.0]))
        self.cache: Any = None
        self.seen: list[Any] = []
        self.rest = rest

    def forward(self, x: Tensor) -> Any:
        return self.rest(self, F.relu(self.conv(F.relu(self.stem(x)))))


def made(rest: Forward) -> Any:
    torch.manual_seed(0)
    return subbit.compress(Net(rest), SLBF(f1="1/2", f2="1/4")).eval()


def difference(net: subbit.Network, model: nn.Module, shape: tuple[int, ...] = SHAPE) -> float:
    x = torch.randn(3, *shape)
    with torch.no_grad():
        wanted = model(x)
    wanted = (wanted["logits"] if isinstance(wanted, dict) else wanted).numpy()
    found = net(x.numpy())
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def assigned(self: Any, x: Any) -> Any:
    x[:, :8] = F.relu(x[:, 8:] - 0.3)
    x[:, 2:5, 1:-1, 3] = 0.5
    x[:, :, 0] = x[:, :, 1]
    x[..., -2:] = self.level
    return x


def accumulated(self: Any, x: Any) -> Any:
    total = torch.zeros(x.shape)
    total += x
    return total * self.level + x


def checked(self: Any, x: Any) -> Any:
    assert isinstance(x, torch.Tensor)
    assert isinstance(x, Tensor | None)
    assert not isinstance(x, (list, nn.Parameter))
    return x * 2 if torch.is_tensor(x) else x


def cached(self: Any, x: Any) -> Any:
    if self.cache is None:
        self.cache = torch.ones(len(x), 1, 1, 1)
    return x * self.cache


FORWARDS: dict[str, Forward] = {
    "isinstance": checked,
    "assignment": assigned,
    "sum_in_place": accumulated,
    "cache_of_a_batch": cached,
    "keepdims": lambda self, x: x - x.mean(dim=(2, 3), keepdims=True) + x.sum(axis=1, keepdims=True),
    "named_dims": lambda self, x: x.flip(dims=[3]).permute(dims=(0, 2, 3, 1)).repeat(repeats=(1, 1, 2, 1)),
    "named_dims_of_functions": lambda self, x: torch.tile(torch.permute(x, dims=(0, 3, 1, 2)), dims=(2, 1)),
    "one_flip": lambda self, x: torch.flip(x, [3]) + x.flip(2),
    "max_with_stored": lambda self, x: torch.max(x, self.level) + torch.min(self.level, x) + torch.max(x, other=x + 1),
    "axis": lambda self, x: TORCH.amax(x, axis=1) + TORCH.max(x, axis=1).values + TORCH.std(x, axis=1),
    "learned_power": lambda self, x: x.clamp(min=1e-3).pow(self.power).mean((2, 3)).pow(1 / self.power),
    "numpy_number": lambda self, x: np.float32(0.5) * x,
    "tensor_types": lambda self, x: x.type(torch.FloatTensor) + x.type("torch.FloatTensor") + x.type(torch.float64),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_it_is_packed_as_it_runs(name: str, tmp_path: Path) -> None:
    model = made(FORWARDS[name])
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    net = subbit.load(tmp_path / "net.sbit")
    assert compare(net, model, torch.randn(2, *SHAPE)).ok
    assert difference(net, model) < 1e-5


def of_type(self: Any, x: Any) -> Any:
    return x * 2 if type(x) is torch.Tensor else x


def into_zeros(self: Any, x: Any) -> Any:
    zeros = torch.zeros(x.shape)
    zeros[:, :8] = x[:, :8]
    return zeros + x


def added_to_zeros(self: Any, x: Any) -> Any:
    zeros = torch.zeros(x.shape)
    zeros.add_(x)
    return zeros + x


def scattered(self: Any, x: Any) -> Any:
    x[:, ::2] = 0
    return x


def listed(self: Any, x: Any) -> Any:
    x[:, [0, 3]] = 0
    return x


def into_out(self: Any, x: Any) -> Any:
    zeros = torch.zeros(x.shape)
    torch.mul(x, 2, out=zeros)
    return zeros + x


def through_detach(self: Any, x: Any) -> Any:
    y = x.detach()
    y[:, 0] = 0
    return x


REFUSED: dict[str, tuple[Forward, str]] = {
    "type": (of_type, "Net computes something else when it is traced than when it runs"),
    "assignment_to_zeros": (into_zeros, "assigns a computed value to a part of a tensor that it made; use torch.cat"),
    "sum_in_zeros": (added_to_zeros, "uses a tensor of its own after add_ put a computed value into it"),
    "out": (into_out, "puts a computed value into a tensor that it made"),
    "detach": (through_detach, "changed in place through a view of it"),
    "every_second": (scattered, "entries that do not lie side by side"),
    "a_list": (listed, "entries chosen by a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name: str, tmp_path: Path) -> None:
    forward, message = REFUSED[name]
    with pytest.raises(PackError, match=message):
        subbit.pack(made(forward), tmp_path / "net.sbit", example=SHAPE)
    assert not list(tmp_path.iterdir())


def test_verify_runs_the_model_itself(tmp_path: Path) -> None:
    model = made(lambda self, x: x)
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    model.rest = lambda self, x: x if type(x) is not torch.Tensor else x * 2  # the same operations when it is traced
    with pytest.raises(PackError, match="computes something else when it is traced"):
        compare(subbit.load(tmp_path / "net.sbit"), model, torch.randn(2, *SHAPE))


def test_hooks_of_compressed_layers_are_part_of_the_network(tmp_path: Path) -> None:
    model = Net(lambda self, x: x)
    model.conv.register_forward_pre_hook(lambda module, args: (args[0] * 0.5 - 0.1,))
    model.conv.register_forward_hook(lambda module, args, output: output * 2 + 1)
    small = subbit.compress(model, SLBF(f1="1/2", f2="1/4")).eval()
    subbit.pack(small, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    net = subbit.load(tmp_path / "net.sbit")
    assert difference(net, small) < 1e-5
    assert compare(net, small, torch.randn(2, *SHAPE)).ok
    assert "forward" not in vars(small.get_submodule("conv"))


def test_hooks_that_look_at_values_do_no_harm(tmp_path: Path) -> None:
    seen: list[float] = []
    model = made(lambda self, x: x)
    model.conv.register_forward_hook(lambda module, args, output: seen.append(float(output.mean())))
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5
    model.conv.register_forward_hook(lambda module, args, output: output * float(output.mean()))
    with pytest.raises(PackError, match="computes something else when it is traced"):
        subbit.pack(model, tmp_path / "net.sbit", example=SHAPE)


class Swish(torch.autograd.Function):
    """With a gradient of its own, as straight-through estimators have it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def through_int(self: Any, x: Any) -> Any:
    return (x * 4).type("torch.IntTensor").type("torch.FloatTensor") / 4


def doubled(self: Any, x: Any) -> Any:
    y = x.double()
    y.add_(1)
    return x + y.float()


def copied(self: Any, x: Any) -> Any:
    y = x.to(torch.float32, copy=True)
    y.mul_(2)
    return x + y


def like_indices(self: Any, x: Any) -> Any:
    return x.type_as(torch.arange(3)) * 1.0


def by_type_name(self: Any, x: Any) -> Any:
    return x * (x > 0.1).type(x.type())


@pytest.mark.parametrize("function", [Swish, NewStyle])
def test_functions_with_a_gradient_of_their_own(function: Any, tmp_path: Path) -> None:
    model = made(lambda self, x: function.apply(x))
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5


@pytest.mark.parametrize("rest", [through_int, doubled, copied, like_indices, by_type_name])
def test_changes_of_type_are_right_or_refused(rest: Forward, tmp_path: Path) -> None:
    model = made(rest)
    with contextlib.suppress(PackError):
        subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
        assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5


class Input(nn.Module):
    """Changes its input in place, before a convolution."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.change = change

    def forward(self, x: Any) -> Any:
        return self.conv(self.change(x))


def darker(x: Any) -> Any:
    x[:, 0] = x[:, 0] * 0.5
    return x


@pytest.mark.parametrize("change", [nn.SiLU(inplace=True), lambda x: x.sub_(0.5).div_(0.25), darker])
def test_models_may_write_to_their_input(change: Callable[[Any], Any], tmp_path: Path) -> None:
    model = Input(change).eval()
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    x = torch.randn(2, *SHAPE)
    assert compare(subbit.load(tmp_path / "net.sbit"), model, x.clone()).ok
    found = torch.from_numpy(subbit.load(tmp_path / "net.sbit")(x.numpy()))
    assert torch.allclose(found, model(x).detach(), atol=1e-5)


def test_outputs_that_are_not_asked_for_may_change_in_place(tmp_path: Path) -> None:
    def forward(self: Any, x: Any) -> Any:
        above = (x > 0).float()
        above.mul_(2)
        side = F.conv_transpose2d(x, torch.ones(16, 2, 2, 2))
        return {"logits": x.mean((2, 3)), "side": F.relu(side, inplace=True)}

    model = made(forward)
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32", output="logits")
    assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5


def mixed_types(self: Any, x: Any) -> Any:
    return torch.cat([x, torch.zeros(len(x), 2, *x.shape[2:], dtype=x.dtype)], 1)


def chosen_types(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.conv2d(x, torch.ones(4, 16, 1, 1)).float()


def test_models_of_lower_precision(tmp_path: Path) -> None:
    half = made(mixed_types).half()
    subbit.pack(half, tmp_path / "half.sbit", example=SHAPE)
    x = torch.randn(2, *SHAPE)
    with torch.no_grad():
        wanted = half(x.half()).float()
    found = torch.from_numpy(subbit.load(tmp_path / "half.sbit")(x.numpy()))
    assert torch.allclose(found, wanted, atol=2e-2 * float(wanted.abs().max()))
    model = made(chosen_types)
    subbit.pack(model, tmp_path / "autocast.sbit", example=SHAPE)
    assert difference(subbit.load(tmp_path / "autocast.sbit"), model) < 2e-2


def test_a_wrong_operation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from subbit.nn.lowering import lower, pointwise

    monkeypatch.setitem(lower.HANDLERS, "sigmoid", pointwise.simple("tanh"))
    with pytest.raises(PackError, match="computes something else than its packed form"):
        subbit.pack(made(lambda self, x: torch.sigmoid(x)), tmp_path / "net.sbit", example=SHAPE)
    assert not (tmp_path / "net.sbit").exists()


def test_sparse_buffers_do_no_harm(tmp_path: Path) -> None:
    model = made(lambda self, x: x)
    model.register_buffer("neighbours", torch.eye(4).to_sparse())
    assert subbit.pack(model, tmp_path / "net.sbit", example=SHAPE).bytes


def test_learned_powers_have_one_size(tmp_path: Path) -> None:
    model = made(lambda self, x: (x.clamp(min=1e-6) ** self.power).mean((2, 3)))
    before = subbit.inspect(model, SHAPE).stored_bytes
    model.power.data.fill_(2.93)
    assert subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f16").bytes == before


def test_threads_that_pack_one_model_leave_it_as_it_was(tmp_path: Path) -> None:
    def keeps(self: Any, x: Any) -> Any:
        self.cache = x
        return x

    model = made(keeps).train()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: subbit.pack(model, tmp_path / f"{i}.sbit", example=SHAPE), range(3)))
    assert all(module.training for module in model.modules())
    assert model.cache is None


def test_threads_that_pack_leave_isinstance_alone(tmp_path: Path) -> None:
    models = [made(checked) for _ in range(3)]

    def pack(number: int) -> int:
        return subbit.pack(models[number], tmp_path / f"{number}.sbit", example=SHAPE).bytes

    with ThreadPoolExecutor(3) as pool:
        sizes = list(pool.map(pack, range(3)))
    assert len(set(sizes)) == 1
    assert type(isinstance).__name__ == "builtin_function_or_method"


def test_nothing_stays_in_the_model(tmp_path: Path) -> None:
    def keeps(self: Any, x: Any) -> Any:
        self.features = x
        self.seen.append(x)
        self.cache = x.mean()
        self.recent.append(x)
        self.count.add_(1)
        return x

    model = made(keeps)
    model.recent = deque([1], maxlen=3)
    model.register_buffer("count", torch.zeros(()))
    model.config = Unchanging(a=1)
    model.index = nn.Parameter(torch.tensor([0, 1]), requires_grad=False)
    before = {key: id(value) for key, value in vars(model).items()}
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE)
    assert {key: id(value) for key, value in vars(model).items()} == before
    assert model.seen == []
    assert model.cache is None
    assert list(model.recent) == [1]
    assert float(model.count) == 0
    assert model.config == {"a": 1}


def test_outputs_that_are_not_asked_for_need_no_packed_form(tmp_path: Path) -> None:
    def several(self: Any, x: Any) -> Any:
        logits = x.mean((2, 3))
        self.cache = (x == 0).float().mean()
        return {"logits": logits, "class": logits.argmax(1), "all": logits.mean()}

    model = made(several)
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32", output="logits")
    assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5
    with pytest.raises(PackError, match="argmax"):
        subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, output="class")


def square(self: Any, x: Any) -> Any:
    assert x.shape[2] == x.shape[3]
    return x.sum((2, 3))


BY_SIZE: dict[str, tuple[Forward, bool]] = {
    "mean": (lambda self, x: x.mean((2, 3)), True),
    "maps": (lambda self, x: x, True),
    "pool": (lambda self, x: F.adaptive_avg_pool2d(x, 2).flatten(1), True),
    "sum": (lambda self, x: x.sum((2, 3)), False),
    "sum_of_squares": (square, False),
    "variance": (lambda self, x: x.var((2, 3)), False),
    "every_second": (lambda self, x: x[..., ::2, ::2].mean((2, 3)), False),
    "without_the_last": (lambda self, x: x[:, :, :-2].mean((2, 3)), False),
    "flip": (lambda self, x: x.flip(3), False),
    "resampled": (lambda self, x: F.interpolate(x[:, :, ::2, ::2], size=x.shape[-2:]), False),
}


@pytest.mark.parametrize("name", BY_SIZE)
def test_another_size_is_right_or_refused(name: str, tmp_path: Path) -> None:
    forward, works = BY_SIZE[name]
    model = made(forward)
    subbit.pack(model, tmp_path / "net.sbit", example=SHAPE, storage="f32")
    assert difference(subbit.load(tmp_path / "net.sbit"), model) < 1e-5
    report = subbit.inspect(model, SHAPE, storage="f32")
    assert (tmp_path / "net.sbit").stat().st_size == report.stored_bytes
    other = (3, 24, 24) if name == "sum_of_squares" else (3, 24, 40)
    if works:
        assert difference(subbit.load(tmp_path / "net.sbit", input_shape=other), model, other) < 1e-5
    else:
        with pytest.raises(subbit.errors.SubbitError, match="do not fit the new shape"):
            subbit.load(tmp_path / "net.sbit", input_shape=other)


def padded_to_even(self: Any, x: Any) -> Any:
    return F.avg_pool2d(F.pad(x, (0, x.shape[-1] % 2, 0, x.shape[-2] % 2)), 2)


def resized(self: Any, x: Any) -> Any:
    return x if x.shape[-1] == SHAPE[-1] else F.interpolate(x, SHAPE[1:], mode="bicubic")


@pytest.mark.parametrize(("forward", "size"), [(padded_to_even, 17), (resized, 32)])
def test_what_a_model_does_at_some_sizes_only_is_not_left_out(forward: Forward, size: int, tmp_path: Path) -> None:
    subbit.pack(made(forward), tmp_path / "net.sbit", example=SHAPE)
    with pytest.raises(subbit.errors.SubbitError, match="do not fit the new shape"):
        subbit.load(tmp_path / "net.sbit", input_shape=(3, size, size))


def test_a_network_of_one_size_anyway_has_no_further_operation() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 5))
    assert [type(op).__name__ for op in to_packed(model, SHAPE).program.ops] == ["Conv", "Reshape", "Linear"]


class Spectrum(nn.Module):
    """Takes (N, time, frequency), and has a convolution of another kind before its first."""

    def __init__(self) -> None:
        super().__init__()
        self.later = nn.Conv1d(8, 8, 3)
        self.first = nn.Conv2d(1, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.later(self.first(x.unsqueeze(1)).flatten(2))
        return result


@pytest.mark.parametrize("shape", [(12, 10), (1, 12, 10)])
def test_inspect_finds_the_dimensions_that_a_model_takes(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = Spectrum()
    report = subbit.inspect(model, shape)
    assert report.input_shape == (12, 10)
    assert subbit.pack(model, tmp_path / "net.sbit", example=(12, 10)).bytes == report.stored_bytes


def test_inspect_names_channels_that_do_not_fit() -> None:
    with pytest.raises(subbit.errors.ModelError, match="1 channel"):
        subbit.inspect(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 1, 3)), (3, 28, 28))

"""`subbit bench` and the standard set: agreement, arithmetic, what is skipped and reported. Nothing asserts a time."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench import plot, tables, train_step
from bench.inference import SLIM_WIDTHS, merged, plain_name, result_file
from torch import nn

import subbit
from subbit.benchmark import Contestant, LayerTime, Setting, Spread, bench, interleave, layer_times, ratio
from subbit.benchmark.eager import EagerNetwork
from subbit.benchmark.rivals import RUNTIMES, Graphs, Runtime
from subbit.benchmark.session import CALIBRATION_IMAGES, Result, compare, like_pictures, relative_difference
from subbit.cli import main
from subbit.errors import ConfigError, InputError, PackError
from subbit.experiments.spec import load_spec
from subbit.experiments.table import build_table
from subbit.format import decode, encode
from subbit.methods import BWN, SLBF
from subbit.nn import reference
from subbit.nn.pack import to_program
from subbit.records import Binary, Conv, Float32, Program, Stacked
from subbit.runtime import Limits, Times

SHAPE = (3, 12, 12)


def network() -> nn.Module:
    """Stacked, binary and dense layers, groups, an asymmetric kernel, a residual path by concatenation."""
    stacked = subbit.compress(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, groups=2), nn.ReLU(), nn.Conv2d(16, 16, (3, 1), padding=(1, 0)), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
        ),
        SLBF(f1=1 / 2, f2=1 / 2),
    )  # fmt: skip
    return stacked.eval()


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return decode(encode(to_program(network(), SHAPE)))


@pytest.fixture(scope="module")
def net(program: Program) -> subbit.Network:
    return subbit.load(encode(program))


@pytest.fixture
def file(tmp_path: Path, net: subbit.Network) -> Path:
    path = tmp_path / "net.sbit"
    path.write_bytes(net.data)
    return path


def images(count: int = 3) -> Float32:
    return np.random.default_rng(1).standard_normal((count, *SHAPE), dtype=np.float32)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


# -------------------------------------------------------------------------------------------- measurement


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, low=2.0, high=4.0)


def test_ratio_is_taken_round_by_round() -> None:
    # the second round ran on a machine four times as slow: the quotients do not see it, those of the sums would
    assert ratio([2.0, 12.0, 2.0], [1.0, 4.0, 1.0]) == Spread(median=2.0, low=2.0, high=2.5)


def test_rounds_of_unequal_number_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])


class Clock:
    """Time that only calls spend."""

    def __init__(self) -> None:
        self.now = 0.0

    def call(self, cost: float, log: list[str], name: str) -> Callable[[], None]:
        def spend() -> None:
            self.now += cost
            log.append(name)

        return spend


def test_interleaving_gives_everybody_turns_and_counts_calls() -> None:
    clock, log = Clock(), list[str]()
    calls = {"short": clock.call(0.004, log, "short"), "long": clock.call(0.03, log, "long")}
    taken = interleave(calls, seconds=0, clock=lambda: clock.now)
    assert {name: len(seconds) for name, seconds in taken.items()} == {"short": 5, "long": 5}
    assert taken["short"] == pytest.approx([0.004] * 5)
    assert taken["long"] == pytest.approx([0.03] * 5)
    # one call to warm up, then as many as fill a turn of 10 ms; the order rotates
    assert log[:6] == ["short"] * 4 + ["long"] * 2
    assert log[6:12] == ["long"] * 2 + ["short"] * 4


def test_setting_compares_with_the_packed_network() -> None:
    setting = Setting(2, 1, {"packed": [1.0, 2.0, 3.0], "other": [3.0, 6.0, 9.0]})
    assert setting.ratio("other").median == 3
    assert setting.ratio("packed", to="other").median == pytest.approx(1 / 3)
    assert setting.latency("other").median == 6
    written = setting.to_dict()
    assert (written["batch"], written["threads"], written["rounds"]) == (2, 1, 3)
    assert written["contestants"]["other"]["times_packed"] == {"median": 3.0, "low": 3.0, "high": 3.0}


# -------------------------------------------------------------------------------------------- contestants


@pytest.mark.parametrize("form", ["dense", "stacked"])
def test_eager_network_is_the_reference(program: Program, form: Any) -> None:
    x = images()
    expected = reference.run(program, torch.from_numpy(x))[program.output_value].numpy()
    assert relative_difference(EagerNetwork(program, form)(x), expected) < 1e-5


def test_eager_weights_are_counted(program: Program) -> None:
    dense, stacked = (EagerNetwork(program, form).bytes for form in ("dense", "stacked"))
    weights = sum(4 * int(np.prod(op.weight.shape)) for op in program.weighted())
    assert weights <= dense <= weights + 4 * 1000
    assert stacked < dense


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_other_runtimes_compute_the_same(program: Program, net: subbit.Network, name: str) -> None:
    if RUNTIMES[name].missing or RUNTIMES["onnxruntime"].missing:
        pytest.skip(f"{name} is not installed")
    x = images()
    found = list(RUNTIMES[name].contestants(Graphs(program, images(CALIBRATION_IMAGES)), 1))
    assert [(one.form, one.precision) for one in found] == [
        ("dense", "fp32"), ("dense", "int8"), ("stacked", "fp32"), ("stacked", "int8"),
    ]  # fmt: skip
    expected = net(x)
    for one in found:
        # int8 keeps 8 bits of every activation: a few percent through five layers
        assert relative_difference(one.run(x), expected) < (1e-5 if one.precision == "fp32" else 0.15), one.name
    sizes = {(one.form, one.precision): one.bytes for one in found}
    assert sizes["stacked", "fp32"] < sizes["dense", "fp32"]


def test_a_network_without_shared_filters_has_no_stacked_form() -> None:
    model = subbit.compress(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), BWN())
    assert Graphs(to_program(model.eval(), SHAPE), images(1)).forms == ("dense",)


# ---------------------------------------------------------------------------------------------- agreement


def contestant(name: str, run: Callable[[Float32], Float32], precision: Any = "fp32") -> Contestant:
    return Contestant(name, "dense", precision, 1, run)


def test_relative_difference() -> None:
    a = np.array([[1.0, -4.0]], np.float32)
    assert relative_difference(a + np.float32(0.5), a) == pytest.approx(0.125)
    assert relative_difference(a[:, :1], a) == float("inf")
    assert relative_difference(a * np.float32("nan"), a) == float("inf")
    assert relative_difference(a * 0, a * 0) == 0


def test_wrong_answers_are_not_timed(net: subbit.Network) -> None:
    result = Result({}, Limits(0, 0, 0))
    wrong = contestant("wrong", lambda x: net(x) * np.float32(1.01))
    rough = contestant("rough", lambda x: net(x) * np.float32(1.01), "int8")
    agreeing = compare([contestant("packed", net), wrong, rough], images(), result)
    assert [one.runtime for one, _ in agreeing] == ["packed", "rough"]
    assert [skipped.name for skipped in result.skipped] == ["wrong dense fp32"]
    assert "differ by 1.0e-02" in result.skipped[0].reason


def test_the_network_itself_is_always_timed(net: subbit.Network) -> None:
    result = Result({}, Limits(0, 0, 0))
    clipped = contestant("clipped", lambda x: net(x) * 0, "int8")  # its ranges do not hold for these images
    agreeing = compare([clipped, contestant("packed", net)], images(), result)
    assert [(one.runtime, difference) for one, difference in agreeing] == [("clipped", 1.0), ("packed", 0.0)]
    assert result.skipped == []


def test_a_network_that_fits_no_levels_is_timed_in_fp32_alone(
    net: subbit.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Program:
        raise PackError("what reaches them differs too much in size")

    monkeypatch.setattr("subbit.benchmark.session.calibrated", refuse)
    result = bench(net, against=(), seconds=0.02)
    assert [(entrant.precision) for entrant in result.entrants] == ["fp32"]
    assert [(skipped.name, skipped.reason) for skipped in result.skipped] == [
        ("subbit packed int8", "what reaches them differs too much in size")
    ]


@pytest.mark.parametrize("shape", [(3, 33, 20), (2, 1, 1), (4, 16), (7,)])
def test_noise_like_pictures_is_smooth_and_of_variance_one(shape: tuple[int, ...]) -> None:
    noise = np.random.default_rng(0).standard_normal((5, *shape), dtype=np.float32)
    images = like_pictures(noise)
    assert (images.shape, images.dtype) == (noise.shape, np.dtype(np.float32))
    assert np.isfinite(images).all()
    if shape == (3, 33, 20):
        assert np.allclose(images.std(axis=(2, 3)), 1, rtol=1e-4)
        neighbours = (images[..., 1:] * images[..., :-1]).mean()
        assert neighbours > 0.5 > abs((noise[..., 1:] * noise[..., :-1]).mean())


def test_missing_and_failing_runtimes_are_named(net: subbit.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graphs: Graphs, threads: int) -> Iterator[Contestant]:
        raise RuntimeError("no such\n  operator")

    monkeypatch.setitem(RUNTIMES, "absent", Runtime(("a_package_that_is_not_there",), broken))
    monkeypatch.setitem(RUNTIMES, "trained", Runtime(("another_one",), broken, extra="train"))
    monkeypatch.setitem(RUNTIMES, "broken", Runtime((), broken))
    result = bench(net, against=["absent", "trained", "broken"], batches=[1], threads=[1, 2], seconds=1e-3)
    assert [entrant.name for entrant in result.entrants] == ["subbit packed fp32", "subbit packed int8"]
    assert [(skipped.name, skipped.reason) for skipped in result.skipped] == [
        ("absent", "a_package_that_is_not_there not installed: pip install 'subbit[bench]'"),
        ("trained", "another_one not installed: pip install 'subbit[train]'"),
        ("broken", "RuntimeError: no such operator"),
    ]


def test_openvino_does_without_int8_where_nobody_can_quantise(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    if RUNTIMES["openvino"].missing:
        pytest.skip("no OpenVINO")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = RUNTIMES["openvino"].contestants(Graphs(program, images(1)), 1)
    assert {one.precision for one in found} == {"fp32"}


# ------------------------------------------------------------------------------------------------- layers


def test_layers_are_those_of_the_network(net: subbit.Network, program: Program) -> None:
    limits = Limits(multiply_adds=1e9, look_ups=4e9, popcounts=32e9)
    layers = layer_times(net, images(2), limits, seconds=0)
    assert [(layer.kind, layer.name) for layer in layers] == [(op.kind, op.name) for op in net.operations]
    weighted = [layer for layer in layers if layer.operations]
    assert len(weighted) == len(list(program.weighted()))
    first, second = weighted[:2]
    assert (first.operations, first.limit) == (3 * 9 * 8 * 12 * 12, 1e9)  # dense
    stack = list(program.weighted())[1].weight
    assert isinstance(stack, Stacked)
    # 2 groups of 2 blocks, every block with all shared filters of 2 channels, at 6 × 6 places
    assert (second.operations, second.limit) == (2 * 2 * stack.filters * 2 * 9 * 6 * 6, 4e9)
    for layer in layers:
        stages = layer.times.build + layer.times.look_up + layer.times.merge
        assert 0 <= stages <= layer.times.total + 1e-6  # medians of parts may exceed the median of the whole a little


def test_layers_on_signs_are_held_against_popcounts() -> None:
    conv = Conv(inputs=(0,), weight=Binary(np.ones((4, 40, 3, 3), np.int8)), binary_input=True)
    net = subbit.load(encode(Program((40, 8, 8), (conv,))))
    (layer,) = layer_times(net, np.ones((1, 40, 8, 8), np.float32), Limits(1e9, 4e9, 32e9), seconds=0)
    assert (layer.operations, layer.limit) == (4 * 40 * 9 * 6 * 6, 32e9)


def test_rate_share_and_rest_of_a_layer() -> None:
    times = Times(total=2e-6, build=0.5e-6, look_up=1e-6, merge=0.25e-6)
    layer = LayerTime("a", "Conv", "table", times, operations=1000, limit=1e9)
    assert layer.rest == pytest.approx(0.25e-6)
    assert layer.rate == pytest.approx(5e8)
    assert layer.share == pytest.approx(0.5)
    assert layer.to_dict()["seconds"]["rest"] == pytest.approx(0.25e-6)


def test_limits_of_this_machine(net: subbit.Network) -> None:
    limits = net.measure_limits()
    if net.isa == "portable":
        assert limits == (0, 0, 0)
    else:
        assert min(limits) > 0


# ------------------------------------------------------------------------------------------------ command


def test_json_of_the_command(capsys: pytest.CaptureFixture[str], file: Path, net: subbit.Network) -> None:
    code, out, err = run(
        capsys, str(file), "--against", "torch", "--batch", "1,3", "--threads", "1,2", "--seconds", "0.001",
        "--layers", "--json",
    )  # fmt: skip
    assert code == 0
    assert "batch 3, 2 threads: 4 contestants" in err
    result = json.loads(out)
    assert set(result) == {"file", "machine", "limits", "contestants", "settings", "skipped", "layers"}
    assert result["skipped"] == []
    assert result["machine"]["isa"] == net.isa
    assert {"cpu", "cores", "python", "subbit", "commit", "versions"} <= set(result["machine"])
    assert [(one["batch"], one["threads"]) for one in result["settings"]] == [(1, 1), (3, 1), (1, 2), (3, 2)]
    names = ["subbit packed fp32", "subbit packed int8", "torch dense fp32", "torch stacked fp32"]
    assert [one["name"] for one in result["contestants"]] == names
    assert result["contestants"][0]["bytes"] == file.stat().st_size
    assert result["contestants"][0]["accuracy"] is None
    for setting in result["settings"]:
        assert list(setting["contestants"]) == names
        assert setting["contestants"][names[0]]["times_packed"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert setting["contestants"][names[1]]["times_packed_int8"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert setting["rounds"] >= 5
    assert [layer["kind"] for layer in result["layers"]] == [op.kind for op in net.operations]


def test_text_of_the_command(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, _ = run(capsys, str(file), "--against", "none", "--batch", "1", "--seconds", "0.001", "--layers")
    assert code == 0
    assert "subbit packed fp32" in out
    assert f"{file.stat().st_size:,}" in out
    for heading in ("× packed", "bytes", "look-ups", "of limit", "total"):
        assert heading in out


def test_accuracy_on_a_data_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A network whose answer is always "1" is right as often as there are ones."""
    linear = nn.Linear(28 * 28, 10)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.eye(10)[1])
    path = tmp_path / "one.sbit"
    subbit.pack(nn.Sequential(nn.Flatten(), linear).eval(), path, example=(1, 28, 28))
    arguments = (str(path), "--against", "torch", "--batch", "1", "--seconds", "0.001", "--images", "200", "--json")
    code, out, _ = run(capsys, *arguments, "--data", "digits")
    assert code == 0
    ones = float((subbit.data.load("digits").test.labels[:200] == 1).mean())
    assert [one["accuracy"] for one in json.loads(out)["contestants"]] == [ones, ones]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "caffe"), "unknown runtime 'caffe': choose from torch, onnxruntime, openvino"),
        (("--batch", "0"), "--batch '0': give positive numbers"),
        (("--threads", "two"), "--threads 'two': give positive numbers"),
        (("--seconds", "0"), "seconds=0.0: a positive time is needed"),
        (("--seconds", "nan"), "seconds=nan: a positive time is needed"),
        (("--seconds", "inf"), "seconds=inf: a positive time is needed"),
        (
            ("--data", "digits"),
            "digits has images of shape (1, 28, 28) and 10 classes, but this network maps (3, 12, 12)",
        ),
    ],
)
def test_wrong_options(
    capsys: pytest.CaptureFixture[str], file: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, str(file), *arguments)
    assert code == 2
    assert message in err


def test_errors_are_of_the_tree(net: subbit.Network) -> None:
    with pytest.raises(ConfigError, match="unknown runtime"):
        bench(net, against=["caffe"])
    with pytest.raises(InputError):
        net.times(images(1)[:, :2])


# ------------------------------------------------------------------------------------------- standard set


def invented_result() -> dict[str, Any]:
    """A result of the standard set with round numbers."""

    def times(seconds: float, packed: float) -> dict[str, Any]:
        quotient = seconds / packed
        return {
            "seconds": {"median": seconds, "low": seconds, "high": seconds},
            "times_packed": {"median": quotient, "low": quotient, "high": quotient},
            "times_packed_int8": {"median": 2 * quotient, "low": 2 * quotient, "high": 2 * quotient},
        }

    seconds = {
        tables.PACKED: 1e-3, tables.DENSE: 8e-3, tables.DENSE_INT8: 2e-3, tables.STACKED: 4e-3,
        "onnxruntime width 1/4 dense int8": 5e-4, tables.PACKED_INT8: 5e-4,
    }  # fmt: skip
    stored = dict(zip(seconds, (10**5, 6 * 10**7, 15 * 10**6, 2 * 10**7, 10**6, 10**5), strict=True))
    case = {
        "name": "vgg16", "network": "VGG-16", "label": "(1/2, 1/4)", "bytes": 10**5, "load_seconds": 2e-3,
        "resident_bytes": 2 * 10**6, "two_threads": 1.9, "limits": {"multiply_adds": 6e10, "look_ups": 2.4e11},
        "limit_over_avx2": 1.654,
        "contestants": [{"name": name, "bytes": size} for name, size in stored.items()],
        "settings": [
            {
                "batch": 1, "threads": 1, "rounds": 7,
                "contestants": {name: times(value, 1e-3) for name, value in seconds.items()},
            }
        ],
    }  # fmt: skip
    machine = {"cpu": "a CPU", "isa": "avx512", "python": "3.12", "versions": {"onnxruntime": "1.2"}}
    return {"machine": machine, "cases": [case]}


def test_tables_of_the_standard_set() -> None:
    result = invented_result()
    assert "| VGG-16 (1/2, 1/4) | 8.00 (8.00–8.00) |  | 2.00 (2.00–2.00) | 4.00 (4.00–4.00) |" in tables.ratios(result)
    assert "| VGG-16 (1/2, 1/4) | 4.00 (4.00–4.00) |  |  | 2.00 (2.00–2.00) |" in tables.integers(result)
    latency = tables.latency(result)
    reached = tables.accuracies()
    assert f"| subbit (1/2, 1/4), packed, int8 | 0.50 |  | 100.0 kB | {reached['(1/2, 1/4)', 'int8']} |" in latency
    assert f"| subbit (1/2, 1/4), packed, fp32 | 1.00 |  | 100.0 kB | {reached['(1/2, 1/4)', 'fp32']} |" in latency
    assert "| ONNX Runtime, dense, width 1/4, int8 | 0.50 |  | 1.00 MB |  |" in latency  # where subbit loses
    assert f"| ONNX Runtime, dense, fp32 | 8.00 |  | 60.00 MB | {reached['dense', 'fp32']} |" in latency
    assert "| 2.0 | 2.00 MB | 1.90× |" in tables.costs(result)
    assert "60 GMAC/s" in tables.machine(result)
    assert "7 to 7 rounds" in tables.machine(result)
    assert "With AVX2 the latter is 1.65 times lower." in tables.machine(result)
    del result["cases"][0]["limit_over_avx2"]  # of a machine without AVX-512
    assert "AVX2" not in tables.machine(result)


def test_accuracy_is_that_of_the_file_or_of_the_ledger() -> None:
    table = build_table(load_spec(tables.ROOT / "experiments" / f"{tables.SPEC}.toml"))
    assert {row.row.name for row in table.rows} >= set(tables.TRAINED.values())
    assert {f"dense, width {width}" for width in SLIM_WIDTHS} < set(tables.TRAINED)
    reached, files = tables.accuracies(), {card.name: card for card in subbit.zoo.cards()}
    for label, name in tables.TRAINED.items():
        row = next(row for row in table.rows if row.row.name == name)
        card = files.get(f"vgg16-cifar10-{name}")
        if label.startswith("dense"):  # of some there is a file, of all the ledger
            assert ((label, "fp32") in reached) == (row.measured is not None)
        elif card is not None:
            assert reached[label, "fp32"].startswith(f"{card.accuracy:.2f}")
            assert (" epochs" in reached[label, "fp32"]) == (card.epochs < row.row.epochs)


def test_training_steps_of_several_processors() -> None:
    def measured(fast: float, gain: float) -> dict[str, Any]:
        return {name: {"images_per_second": {"a": 90.0, "b": fast}, "of_dense": gain} for name in ("dense", "slbf")}

    results = [{"cpu": "new", "float32": measured(100, 1), "bfloat16": measured(200, 1.5)}]
    results.append({"cpu": "old", "float32": measured(80, 2)})
    table = tables.steps(results)
    assert "| VGG-16 | float32, new | bfloat16, new | float32, old |" in table
    assert "| slbf | 100 (1.00×) | 200 (1.50×) | 90 (2.00×) |" in table
    kept = {file.stem for file in train_step.RESULTS.glob("*.json")}
    assert kept == {
        plain_name(result["cpu"], result.get("cpu_model", "")) for result in tables.load_results(train_step.RESULTS)
    }
    assert plain_name("Intel(R) Xeon(R) Processor", "avx512") == "intel-xeon-avx512"


def test_ways_of_taking_a_training_step() -> None:
    new = {"float32": {train_step.AS_FIT: 200.0, "contiguous": 150.0}, "bfloat16": {train_step.AS_FIT: 400.0}}
    table = tables.ways([{"cpu": "new", "ways": new}, {"cpu": "without"}])
    assert "|  | float32, new | bfloat16, new |" in table
    assert f"| {train_step.AS_FIT} | 200 (1.00×) | 400 (1.00×) |" in table
    assert "| contiguous | 150 (0.75×) |  |" in table


def test_a_network_measured_anew_takes_the_place_of_the_old_one() -> None:
    here = {"cpu": "a", "isa": "avx2", "versions": {}, "commit": "1"}
    first = merged(None, {"name": "resnet18-224", "bytes": 1}, here)
    both = merged(first, {"name": "vgg16-bwn", "bytes": 2}, here)
    again = merged(both, {"name": "resnet18-224", "bytes": 3}, here | {"commit": "2"})
    assert [(case["name"], case["bytes"], case["commit"]) for case in again["cases"]] == [
        ("vgg16-bwn", 2, "1"),
        ("resnet18-224", 3, "2"),
    ]
    loud, quiet, louder = (
        {"name": "vgg16-bwn", "settings": [{"contestants": {"one": {"seconds": {"median": seconds}}}}]}
        for seconds in (2.0, 1.0, 3.0)
    )
    kept = merged(merged(merged(None, loud, here), quiet, here, quieter=True), louder, here, quieter=True)
    assert [case["settings"] for case in kept["cases"]] == [quiet["settings"]]
    kept = merged(kept, louder, here | {"commit": "2"}, quieter=True)
    assert [case["settings"] for case in kept["cases"]] == [louder["settings"]]
    elsewhere = merged(again, {"name": "vgg16-bwn", "bytes": 4}, here | {"cpu": "b"})
    assert [(case["name"], case["bytes"]) for case in elsewhere["cases"]] == [("vgg16-bwn", 4)]


def test_machines_do_not_replace_each_other() -> None:
    one, other = ({"cpu": cpu, "isa": "avx512"} for cpu in ("Intel(R) Xeon(R) Processor", "AMD EPYC"))
    assert result_file(one).name == "intel-xeon-avx512.json"
    assert result_file(other) != result_file(one) != result_file(one | {"isa": "avx2"})
    assert result_file(other | {"cpu_model": "family 26, model 2"}).name == "amd-epyc-family-26-model-2-avx512.json"


def test_the_machine_that_was_measured_last_comes_first(tmp_path: Path) -> None:
    for name, date in (("a", "2026-01-02"), ("b", "2026-01-03"), ("c", "2026-01-01")):
        (tmp_path / f"{name}.json").write_text(f'{{"date": "{date}"}}')
    (tmp_path / "undated.json").write_text("{}")
    assert [one.get("date") for one in tables.load_results(tmp_path)] == [
        "2026-01-03",
        "2026-01-02",
        "2026-01-01",
        None,
    ]


def test_processors_stand_beside_each_other() -> None:
    first, second = invented_result(), invented_result()
    second["machine"] |= {"cpu": "another", "cpu_model": "family 6, model 1"}
    second["cases"] = second["cases"][1:]
    table = tables.processors([first, second]).splitlines()
    assert table[0].count(first["machine"]["cpu"]) == 2
    assert table[0].count("another (family 6, model 1)") == 2
    assert len(table) == 2 + len(first["cases"])
    assert table[2].endswith("|  |  |"), "the first network was not measured on the second machine"
    assert f"{first['cases'][0]['settings'][0]['contestants'][tables.DENSE]['times_packed']['median']:.2f}" in table[2]


def test_plot_shows_every_series_that_was_measured() -> None:
    drawing = plot.draw(invented_result())
    assert drawing == plot.draw(invented_result())
    assert drawing.count("<svg") == 1


@pytest.mark.parametrize("document", tables.DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_the_kept_results(document: Path) -> None:
    assert tables.fresh(document, tables.load_results()) == document.read_text(encoding="utf-8"), (
        "run: python -m bench --tables"
    )

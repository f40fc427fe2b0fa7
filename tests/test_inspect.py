"""`subbit.inspect`: the paper's column, sums that add up, operations against an independent count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import subbit
from subbit.accounting import Bits, Operations, operations, paper_bits, weight_bits
from subbit.errors import PackError
from subbit.inspection import Report
from subbit.methods import BNN, BWN, SLBF, BinaryConnect, LegoNet
from subbit.methods.base import CompressedLayer, Method
from subbit.models import lenet5, resnet18, vgg16
from subbit.nn import measure
from subbit.nn.pack import pack
from subbit.records import Activation
from tests import zoo_models
from tests.hostile.files import network, op

pytestmark = pytest.mark.filterwarnings("ignore:no layer of", "ignore:layers that take signs")

SLBF_HALF = SLBF(f1="1/2", f2="1/4")
FAMILIES = list(zoo_models.FAMILIES)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------- the paper's column


@pytest.fixture(scope="module")
def paper_networks() -> dict[str, nn.Module]:
    return {"resnet18": resnet18(), "vgg16-lego": vgg16(variant="lego"), "vgg16": vgg16()}


def stacked(f1: str, f2: str) -> SLBF:
    return SLBF(f1=f1, f2=f2)


@pytest.mark.parametrize(
    ("network", "method", "published"),
    [
        ("resnet18", stacked("1", "1/2"), 58.65),
        ("resnet18", stacked("1/2", "1/2"), 95.12),
        ("resnet18", stacked("1", "1/4"), 108.23),
        ("resnet18", stacked("1/2", "1/4"), 151.36),
        ("resnet18", stacked("1/2", "1/8"), 214.87),
        ("resnet18", stacked("1/4", "1/4"), 138.88),
        ("resnet18", stacked("1/4", "1/8"), 160.67),
        ("resnet18", BinaryConnect(), 31.85),
        ("vgg16-lego", stacked("1", "1/2"), 60.18),
        ("vgg16-lego", stacked("1/2", "1/2"), 103.30),
        ("vgg16-lego", stacked("1/2", "1/4"), 173.16),
        ("vgg16-lego", stacked("1/2", "1/8"), 261.64),
        ("vgg16-lego", BWN(), 31.59),
        ("vgg16-lego", LegoNet(f1="1/4", f2="1/4"), 5.40),
        ("vgg16", stacked("1", "1/2"), 60.28),
        ("vgg16", stacked("1/2", "1/2"), 103.89),
        ("vgg16", stacked("1/2", "1/4"), 174.82),
        ("vgg16", stacked("1/2", "1/8"), 265.46),
    ],
    ids=lambda value: str(value).replace("/", "_"),
)
def test_published_ratio(
    network: str,
    method: Method,
    published: float,
    paper_networks: dict[str, nn.Module],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_packed", _refuse)  # the paper's accounting knows no file
    model = subbit.compress(paper_networks[network], method, keep=[nn.Linear])
    ratio = subbit.inspect(model, (3, 32, 32)).paper_ratio
    assert ratio is not None
    assert round(ratio, 2) == published


def _refuse(*_: object) -> None:
    raise PackError("not packed in this test")


def test_resnet18_counted_whole() -> None:
    report = subbit.inspect(subbit.compress(resnet18(), SLBF_HALF), (3, 32, 32))
    assert report.dense_bytes == 44_734_248
    assert report.pack_error == ""
    assert report.ratio == report.dense_bytes / report.stored_bytes
    assert report.ratio > 195
    # transform d²·c_in·m and merge k·c_out at every position, the stem and the classifier dense
    assert report.operations.dense == 555_422_720
    assert report.speedup == pytest.approx(3.93, abs=0.005)


def test_paper_bits_without_scaling_factors_is_a_dense_p_of_bits() -> None:
    layer = SLBF(f1="1/2", f2="1/4", scale=False).layer(nn.Conv2d(32, 64, 3))
    assert paper_bits(layer.record()) == 9 * 16 * 16 + 2 * 16 * 64


# ------------------------------------------------------------------------------------------------- sums


def compressed_zoo(name: str, method: Method | None) -> tuple[nn.Module, Tensor]:
    model, x = zoo_models.build(name)
    return (model if method is None else subbit.compress(model, method)), x


PACKABLE = [name for name in FAMILIES if name not in zoo_models.UNTRACEABLE]
CASES: list[tuple[str, Method | None]] = [
    *((name, SLBF_HALF) for name in PACKABLE),
    *((name, None) for name in ("vgg", "audio", "used_twice", "functional", "convnext")),
    *((name, BNN()) for name in ("vgg_plain", "resnext", "squeezenet")),
]


@pytest.mark.parametrize(("name", "method"), CASES, ids=str)
def test_rows_add_up_to_the_file_and_the_file_tells_the_same(name: str, method: Method | None, tmp_path: Path) -> None:
    original, _ = zoo_models.build(name)
    model, x = compressed_zoo(name, method)
    report = subbit.inspect(model, zoo_models.INPUTS[name])
    assert report.pack_error == ""
    path = tmp_path / "net.sbit"
    pack(model, path, example=x[:1])
    assert path.stat().st_size == report.stored_bytes
    parts = sum((row.stored for row in (*report.layers, *report.others)), Bits())
    assert parts.filters + parts.indices + parts.scales + parts.rest + report.overhead_bits == 8 * report.stored_bytes
    statistics = sum(b.numel() for key, b in original.named_buffers() if "running" in key)
    assert report.dense_bytes == 4 * (sum(p.numel() for p in original.parameters()) + statistics)
    from_file = subbit.inspect(path)
    assert from_file.stored_bytes == report.stored_bytes
    assert from_file.operations.dense == report.operations.dense
    if name != "functional":  # operations that no module computes have no name in the file
        _compare_layers(report, from_file)


def _compare_layers(report: Report, from_file: Report) -> None:
    assert {row.name for row in from_file.layers} == {row.name for row in report.layers if row.operations.dense}
    for row in report.layers:
        same = [other for other in from_file.layers if other.name == row.name]
        assert sum((other.stored for other in same), Bits()) == row.stored
        assert sum(other.operations.merge for other in same) == row.operations.merge


def test_report_of_a_file_needs_no_shape(tmp_path: Path) -> None:
    model = subbit.compress(lenet5(), SLBF(f1=1, f2="1/4"))
    path = tmp_path / "net.sbit"
    pack(model, path, example=torch.zeros(1, 1, 28, 28))
    report = subbit.inspect(path)
    assert (report.name, report.input_shape) == ("net.sbit", (1, 28, 28))
    assert report.stored_bytes == path.stat().st_size
    assert report.paper_ratio is None
    assert subbit.inspect(str(path)) == report
    assert report.peak_memory == subbit.load(path).memory == subbit.inspect(model, (1, 28, 28)).peak_memory
    assert report.work == subbit.load(path).work == subbit.inspect(model, (1, 28, 28)).work
    assert report.work > report.operations.dense


def test_file_of_another_writer_that_spells_out_defaults(tmp_path: Path) -> None:
    mask_of_a, zero = 1, 0.0  # a relu with the parameter that it does not have, 4 bytes
    path = tmp_path / "net.sbit"
    path.write_bytes(network(op(Activation, 1, mask_of_a, 0, zero)))
    report = subbit.inspect(path)
    assert report.stored_bytes == path.stat().st_size
    assert report.overhead_bits == 8 * report.stored_bytes
    assert report.peak_memory == subbit.load(path).memory


def test_operations_behind_resampling_are_those_of_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d((None, 5)))
    model.append(nn.Conv2d(4, 2, 3))
    path = tmp_path / "net.sbit"
    pack(model, path, example=(3, 8, 8))
    assert subbit.inspect(path).operations == subbit.inspect(model, (3, 8, 8)).operations


@pytest.mark.parametrize("storage", ["f16", "f32"])
def test_storage_is_that_of_pack(storage: Any, tmp_path: Path) -> None:
    model = subbit.compress(lenet5(), SLBF(f1=1, f2="1/4"))
    path = tmp_path / "net.sbit"
    pack(model, path, example=torch.zeros(1, 1, 28, 28), storage=storage)
    assert subbit.inspect(model, (1, 28, 28), storage=storage).stored_bytes == path.stat().st_size


def test_model_without_packed_form_is_counted_from_its_records() -> None:
    model, _ = zoo_models.build("untraceable")
    compressed = subbit.compress(model, SLBF_HALF)
    report = subbit.inspect(compressed, (3, 32, 32))
    assert "Untraceable" in report.pack_error
    assert report.pack_error in str(report)
    second = next(row for row in report.layers if row.name == "second")
    record = cast(CompressedLayer, compressed.get_submodule("second")).record()
    # compaction may drop unused filters, so filters are bounded by the full bank
    assert second.stored.filters <= weight_bits(record).filters
    assert second.stored.scales == 16 * 16 * (1 + 1)  # one more block, and the channel
    assert second.stored.rest == 16 * 16  # bias
    assert report.stored_bytes * 8 == sum(row.stored_bits for row in report.layers) + report.overhead_bits
    assert 0 <= report.overhead_bits < 8


# ------------------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("name", FAMILIES)
def test_dense_operations_agree_with_pytorch_s_own_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_packed", _refuse)
    model, x = zoo_models.build(name)
    with FlopCounterMode(display=False) as counter:
        model(x[:1])
    report = subbit.inspect(model, zoo_models.INPUTS[name])
    assert report.operations.dense * 2 == counter.get_total_flops()
    assert report.speedup == 1


def test_operations_of_a_stacked_layer() -> None:
    record = SLBF_HALF.layer(nn.Conv2d(32, 64, 3)).record()
    assert operations(record, positions=10) == Operations(
        dense=9 * 32 * 64 * 10, transform=9 * 32 * 16 * 10, merge=2 * 64 * 10
    )


def test_depthwise_layer_needs_one_filter_per_block() -> None:
    conv = nn.Conv2d(32, 32, 3, groups=32)
    counted = operations(SLBF(f1=1, f2="1/4").layer(conv).record(), positions=10, groups=32)
    assert counted == Operations(dense=9 * 32 * 10, transform=9 * 32 * 10, merge=32 * 10)


def test_module_used_three_times_counts_three_times_in_operations_and_once_in_dense_bits() -> None:
    model, _ = zoo_models.build("used_twice")
    (shared,) = [row for row in subbit.inspect(model, (3, 32, 32)).layers if row.name == "shared"]
    assert shared.operations.dense == 9 * 16 * 16 * (2 * 32 * 32 + 16 * 16)
    assert shared.dense_bits == 32 * 9 * 16 * 16


def test_layers_called_through_functionals_are_counted() -> None:
    model, _ = zoo_models.build("functional")
    for candidate in (model, subbit.compress(model, SLBF_HALF)):
        report = subbit.inspect(candidate, (3, 32, 32))
        rows = {row.name: row for row in report.layers}
        assert rows["conv"].operations.dense == 9 * 16 * 16 * 32 * 32
        assert rows["linear"].operations.dense == 16 * 16
        (root,) = report.others
        assert root.operations.dense == 9 * 16 * 16 * 16 * 16  # the plain tensor, stride 2
        assert root.dense_bits == 32 * (16 + 9 * 16 * 16)


def test_layer_that_does_not_run_says_so() -> None:
    model, _ = zoo_models.build("googlenet")
    rows = {row.name: row for row in subbit.inspect(model, (3, 32, 32)).layers}
    assert rows["aux.3"].notes == ("was not seen running for this input",)
    assert rows["fc"].notes == ()


def test_transposed_and_three_dimensional_convolutions_are_counted() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Unflatten(1, (4, 1)), nn.Conv3d(4, 4, (1, 3, 3)), nn.Flatten(1, 2),
    )  # fmt: skip
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 8, 8))
    assert subbit.inspect(model, (3, 8, 8)).operations.dense * 2 == counter.get_total_flops()


def test_layers_inside_fused_transformer_layers_are_counted() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Conv1d(4, 16, 1), nn.Flatten(2), nn.Linear(16, 16), layer).eval()
    rows = {row.name: row for row in subbit.inspect(model, (4, 16)).layers}
    assert rows["3.linear1"].operations.dense == rows["3.linear2"].operations.dense == 16 * 16 * 32
    assert torch.backends.mha.get_fastpath_enabled()


# ------------------------------------------------------------------------------------------------- rows


def test_rows_carry_method_reason_and_notes() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 18, 3), nn.ReLU(), nn.Conv2d(18, 16, 3), nn.Flatten(), nn.LazyLinear(16), nn.Linear(16, 4)
    )
    model(torch.zeros(1, 3, 6, 6))
    report = subbit.inspect(subbit.compress(model, SLBF(f1="1/4", f2="1/4")), (3, 6, 6))
    rows = {row.name: row for row in report.layers}
    assert rows["0"].kept_because == "first convolution"
    assert rows["5"].kept_because == "last linear layer"
    assert rows["2"].method == "SLBF(f1=1/4, f2=1/4)"
    assert "does not divide 18" in rows["2"].notes[0]
    assert rows["2"].bits_per_weight == rows["2"].stored_bits / (9 * 18 * 16)
    wrapped = subbit.inspect(nn.Sequential(subbit.compress(model, SLBF(f1="1/4", f2="1/4"))), (3, 6, 6))
    assert [row.kept_because for row in wrapped.layers] == [row.kept_because for row in report.layers]


def test_swapped_activations_are_noted() -> None:
    model, _ = zoo_models.build("vgg")
    report = subbit.inspect(subbit.compress(model, BNN()), (3, 32, 32))
    assert report.notes[0].startswith("Hardtanh in place of ReLU")
    assert report.notes[0] in str(report)


def test_fixed_selection_stores_no_indices() -> None:
    model = lenet5()
    learned, fixed = (
        subbit.inspect(subbit.compress(model, SLBF(f1="1/2", f2="1/4", selection=selection)), (1, 28, 28))
        for selection in ("learned", "fixed")
    )
    assert all(row.stored.indices > 0 for row in learned.layers if row.method)
    assert all(row.stored.indices == 0 for row in fixed.layers)
    assert fixed.paper_ratio == learned.paper_ratio


# ------------------------------------------------------------------------------------------------- the model stays


def test_inspect_changes_nothing() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4))
            self.register_buffer("runs", torch.zeros(()))
            self.last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            cast(Tensor, self.runs).add_(1)
            self.last = x + torch.rand(())
            return cast(Tensor, self.net(self.last))

    model = Noisy()
    model(torch.randn(2, 3, 8, 8))
    model.net.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    last, random_state = model.last, torch.get_rng_state()
    subbit.inspect(model, (3, 8, 8))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.last is last
    assert model.training
    assert not model.net.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 3, 32, 32), (8, 3, 32, 32), [3, 32, 32], torch.Size((3, 32, 32))])
def test_shape_with_or_without_a_batch(shape: Any) -> None:
    model, _ = zoo_models.build("vgg")
    report = subbit.inspect(model, shape)
    assert report.input_shape == (3, 32, 32)
    assert report.operations == subbit.inspect(model, (3, 32, 32)).operations


@pytest.mark.parametrize("shape", [(64,), (1, 64)])
def test_shape_of_a_flat_input(shape: tuple[int, ...]) -> None:
    assert subbit.inspect(zoo_models.build("mlp")[0], shape).input_shape == (64,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, _ = zoo_models.build("vgg")
    expected = subbit.inspect(model, (3, 32, 32))
    report = subbit.inspect(model.to(dtype), (3, 32, 32))
    assert report.operations == expected.operations
    assert report.dense_bytes == expected.dense_bytes


# ------------------------------------------------------------------------------------------------- for people


def report_of_vgg() -> Report:
    return subbit.inspect(subbit.compress(zoo_models.build("vgg")[0], SLBF_HALF), (3, 32, 32))


def test_printed_rows_add_up_to_the_printed_total() -> None:
    report = report_of_vgg()
    lines = str(report).splitlines()
    header = next(line for line in lines if "stored bits" in line)
    end = header.index("stored bits") + len("stored bits")
    start = header.index("rest") + len("rest")
    column = [line[start:end].strip().replace(",", "") for line in lines[lines.index(header) + 1 :]]
    values = [int(text) for text in column[: column.index("", 1)] if text.isdigit()]
    total = next(line for line in lines if line.strip().startswith("total"))
    assert sum(values) == int(total[start:end].strip().replace(",", "")) == report.stored_bits
    assert f"= {report.stored_bytes:,} bytes" in str(report)
    assert f"{report.dense_bytes:,} / {report.stored_bytes:,} = {report.ratio:.2f}" in str(report)


def test_json_holds_everything() -> None:
    report = report_of_vgg()
    values = json.loads(report.to_json())
    assert values["stored_bytes"] == report.stored_bytes
    assert values["ratio"] == report.ratio
    assert values["layers"][1]["stored"]["filters"] == report.layers[1].stored.filters
    assert values["layers"][1]["bits_per_weight"] == report.layers[1].bits_per_weight
    assert [row["name"] for row in values["layers"]] == [row.name for row in report.layers]


def test_notebook_form_is_html() -> None:
    html = report_of_vgg()._repr_html_()
    assert html.startswith("<pre")
    assert "features.4" in html
    assert "total" in html

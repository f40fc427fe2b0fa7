"""Packed networks from Python and from the shell: inputs of all kinds, threads, memory, and no torch."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import subbit
from subbit import records as r
from subbit.cli import build_app
from subbit.format import encode
from subbit.runtime.pictures import read_picture
from tests.core_cases import conv, everything, program, reals, stacked

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def net() -> subbit.Network:
    return subbit.load(encode(everything()))


@pytest.fixture(scope="module")
def x() -> r.Float32:
    return np.random.default_rng(3).standard_normal((5, 3, 12, 12)).astype(np.float32)


# ------------------------------------------------------------------------------------------------ golden


def test_golden_file_gives_what_it_always_gave() -> None:
    recorded = np.load(GOLDEN / "v1.npz")
    for isa in ("portable", None):
        out = subbit.load(GOLDEN / "v1.sbit", isa=isa)(recorded["x"])
        assert np.abs(out - recorded["y"]).max() <= 1e-5 * np.abs(recorded["y"]).max()


def test_golden_file_is_still_written_alike() -> None:
    from subbit.format import decode

    data = (GOLDEN / "v1.sbit").read_bytes()
    assert encode(decode(data)) == data


# ------------------------------------------------------------------------------------------------ inputs


def test_properties(net: subbit.Network) -> None:
    assert net.input_shape == (3, 12, 12)
    assert net.output_shape == (5,)
    assert net.labels == ("cat", "dog", "Käfer", "鳥", "frog")
    assert net.preprocessing is not None
    assert net.preprocessing.mean == (0.5, 0.25, 0.125)
    assert net.preprocessing.size == (12, 12)
    assert [op.kind for op in net.operations] == [type(op).__name__ for op in everything().ops]
    assert net.operations[0].name == "features.0"
    assert "(3, 12, 12) -> (5,)" in repr(net)


def test_single_input_has_no_batch(net: subbit.Network, x: r.Float32) -> None:
    assert net(x[0]).shape == (5,)
    assert np.array_equal(net(x[0]), net(x)[0])


def test_empty_batch(net: subbit.Network, x: r.Float32) -> None:
    assert net(x[:0]).shape == (0, 5)
    assert net(x[:0], threads=4).shape == (0, 5)
    assert net.predict(x[:0]).shape == (0,)
    assert net.values(x[:0])[0].shape == (0, 8, 12, 12)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_other_floats_are_converted(net: subbit.Network, x: r.Float32, dtype: Any) -> None:
    assert np.array_equal(net(x.astype(dtype)), net(x.astype(dtype).astype(np.float32)))


def test_non_contiguous_inputs(net: subbit.Network, x: r.Float32) -> None:
    channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    expected = net(x)
    assert np.array_equal(net(channels_last.transpose(0, 3, 1, 2)), expected)
    assert np.array_equal(net(x[::-1]), expected[::-1])
    wide = np.repeat(x, 2, axis=3)
    assert np.array_equal(net(wide[..., ::2]), expected)


def test_input_is_not_changed(net: subbit.Network, x: r.Float32) -> None:
    before = x.copy()
    frozen = x.copy()
    frozen.flags.writeable = False
    net(frozen)
    assert np.array_equal(frozen, before)


def test_torch_tensors_and_dlpack(net: subbit.Network, x: r.Float32) -> None:
    torch = pytest.importorskip("torch")

    class OnlyDLPack:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    assert np.array_equal(net(torch.from_numpy(x)), net(x))
    assert np.array_equal(net(OnlyDLPack(x)), net(x))
    with pytest.raises(subbit.InputError, match="detach"):
        net(torch.from_numpy(x).requires_grad_())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((1, 3, 12, 12), np.uint8), "normalise first"),
        (np.zeros((1, 3, 12, 12), np.int64), "normalise first"),
        (np.zeros((1, 3, 12, 12), bool), "normalise first"),
        (np.zeros((1, 3, 12, 12), np.complex64), "complex64"),
        (np.array([["a"]]), "dtype"),
        (np.zeros((1, 12, 12, 3), np.float32), r"takes \(N, 3, 12, 12\)"),
        (np.zeros((3, 12, 11), np.float32), "shape"),
        (np.zeros((1, 1, 3, 12, 12), np.float32), "shape"),
        (np.float32(1), "shape"),
        ([[1.0], [1.0, 2.0]], "array"),
        (None, "dtype object"),
    ],
)
def test_wrong_input_is_explained(net: subbit.Network, bad: Any, message: str) -> None:
    with pytest.raises(subbit.InputError, match=message):
        net(bad)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None])
def test_no_number_of_threads(net: subbit.Network, x: r.Float32, threads: Any) -> None:
    with pytest.raises(subbit.InputError, match=r"threads=.*whole number"):
        net(x, threads=threads)


def test_number_of_threads_from_numpy(net: subbit.Network, x: r.Float32) -> None:
    assert np.array_equal(net(x, threads=cast(int, np.int64(2))), net(x))


def test_another_input_size() -> None:
    pooled = program(
        (3, 8, 8), conv(stacked(4, 1, 2, 3, 3, 3), name="a"), r.Mean(inputs=(1,), dims=(1, 2)),
    )  # fmt: skip
    data = encode(pooled)
    assert subbit.load(data, input_shape=(3, 20, 31))(reals(2, 3, 20, 31)).shape == (2, 4)
    for wrong in ((4, 8, 8), (3, 2, 2), (3, 8), (3, 0, 8), (3, 2**24, 2**24), (3, 2**40, 1), (3, 8.5, 8), ("3", 8, 8)):
        with pytest.raises(subbit.InputError, match=r"shape|rank"):
            subbit.load(data, input_shape=cast(Any, wrong))


def test_unknown_instruction_set() -> None:
    with pytest.raises(subbit.ConfigError, match=r'"mmx".*portable'):
        subbit.load(encode(everything()), isa="mmx")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(subbit.FormatError, match=r"cannot read .*none\.sbit"):
        subbit.load(tmp_path / "none.sbit")
    for path in (tmp_path, "with\0nul"):
        with pytest.raises(subbit.FormatError, match="cannot read"):
            subbit.load(path)


@pytest.mark.parametrize("file", [None, 3, io.BytesIO(b"SBIT")])
def test_what_is_no_file(file: Any) -> None:
    with pytest.raises(subbit.InputError, match=r"path of a \.sbit file or its bytes, got"):
        subbit.load(file)


def test_work_is_counted() -> None:
    network = program(
        (3, 8, 8),
        conv(stacked(4, 3, 2, 1, 3, 3)),  # 4·6·6 results of 27 products each, 3·8·8 elements read
        r.Pool(inputs=(1,), kind="max", kernel=(2, 100), stride=(2, 1), padding=(0, 50)),  # only 6 columns are there
        r.Reshape(inputs=(2,), shape=(-1,)),
        r.Activation(inputs=(3,), function="relu"),
    )
    pooled = 4 * 3 * 7
    assert subbit.load(encode(network)).work == (4 * 36 * 27 + 3 * 64) + (pooled * 2 * 6 + 4 * 36) + 2 * pooled


def test_small_file_that_would_run_for_hours_is_refused() -> None:
    huge = r.Pool(inputs=(0,), kind="max", kernel=(8191, 8191), stride=(1, 1), padding=(4095, 4095))
    data = encode(program((1, 8192, 8192), huge))
    assert len(data) < 100
    assert subbit.load(data).work > 2**50
    with pytest.raises(subbit.FormatError, match=r"multiply-adds are needed for one input, 1000000000 allowed"):
        subbit.load(data, max_work=10**9)
    with pytest.raises(subbit.FormatError, match=r"bytes of memory are needed, 1000000 allowed"):
        subbit.load(data, max_memory=10**6)


@pytest.mark.parametrize("limit", [0, -1, 1.5, 2**64, "1"])
def test_limits_are_whole_numbers(limit: Any) -> None:
    for options in ({"max_work": limit}, {"max_memory": limit}):
        with pytest.raises(subbit.InputError, match="give a whole number"):
            subbit.load(encode(everything()), **options)


# ------------------------------------------------------------------------------------ threads and memory


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_give_the_same(net: subbit.Network, x: r.Float32, threads: int) -> None:
    assert np.array_equal(net(x, threads=threads), net(x))
    assert np.array_equal(net.predict(x, threads=threads), net(x).argmax(1))


def test_many_threads_share_one_network(net: subbit.Network, x: r.Float32) -> None:
    expected = net(x)
    failures: list[int] = []

    def work(number: int) -> None:
        one = slice(number, number + 1)
        failures.extend(number for _ in range(20) if not np.array_equal(net(x[one]), expected[one]))

    workers = [threading.Thread(target=work, args=(i % 5,)) for i in range(10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_pickled_network(net: subbit.Network, x: r.Float32) -> None:
    assert np.array_equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_values_end_with_the_output(net: subbit.Network, x: r.Float32) -> None:
    values = net.values(x)
    assert [value.shape[1:] for value in values] == [op.shape for op in net.operations]
    assert np.allclose(values[-1], net(x), rtol=1e-5, atol=1e-6)
    assert [value.shape for value in net.values(x[0])] == [op.shape for op in net.operations]


MEASURE_MEMORY = """
import ctypes, sys
import subbit
from subbit.runtime.library import library

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
def used():
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

data = open(sys.argv[1], "rb").read()
library()
before = used()
net = subbit.load(data)
net._give(net._take())
print(used() - before, net.memory - len(data))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc how much memory is in use")
@pytest.mark.parametrize("isa", ["portable", ""])
def test_reported_memory_is_what_is_allocated(tmp_path: Path, isa: str) -> None:
    layers: list[r.Op] = [conv(stacked(256, 2, 64, 128, 3, 3), padding=(1, 1, 1, 1), shift=reals(256))]
    layers += [replace(layers[0], inputs=(i,)) for i in range(1, 8)]
    path = tmp_path / "net.sbit"
    path.write_bytes(encode(program((256, 32, 32), *layers)))
    environment = {**os.environ, "SUBBIT_ISA": isa}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE_MEMORY, path], check=True, capture_output=True, text=True, env=environment
    )
    measured, reported = map(int, result.stdout.split())
    assert abs(measured - reported) <= 0.01 * reported + 4096  # Python's own objects come on top


def test_packed_weights_stay_packed() -> None:
    """A network of stacked filters does not unfold in memory: far less than a byte per weight of the dense layer."""
    layer = conv(stacked(512, 2, 128, 256, 3, 3), padding=(1, 1, 1, 1))
    net = subbit.load(encode(program((512, 4, 4), layer)), isa="portable")
    assert net.memory < 512 * 512 * 9 / 8


def test_running_allocates_only_the_output(net: subbit.Network, x: r.Float32) -> None:
    net(x)
    tracemalloc.start()
    net(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


def test_no_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, subbit, numpy; net = subbit.load(sys.argv[1]); net(numpy.zeros((1, *net.input_shape), 'f'));"
        "print([m for m in ('torch', 'PIL', 'typer') if m in sys.modules])"
    )
    path = tmp_path / "net.sbit"
    path.write_bytes(encode(everything()))
    result = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


# --------------------------------------------------------------------------------------------- subbit run


def run_command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build_app(["run", "inspect"]), ["run", *map(str, arguments)])


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "net.sbit"
    path.write_bytes(encode(everything()))
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_run_prints_the_top_classes(packed: Path, photo: Path) -> None:
    net = subbit.load(packed)
    assert net.preprocessing is not None
    result = run_command(packed, photo, photo, "--top", "2")
    assert result.exit_code == 0, result.output
    best = net.labels[int(net.predict(read_picture(photo, net.preprocessing)))]
    lines = result.stdout.splitlines()
    assert len(lines) == 6
    assert lines[0] == str(photo)
    assert lines[1].endswith(f"%  {best}")


def test_run_as_json(packed: Path, photo: Path) -> None:
    (entry,) = json.loads(run_command(packed, photo, "--json").stdout)
    assert len(entry["classes"]) == 5
    assert sum(each["probability"] for each in entry["classes"]) == pytest.approx(1, abs=1e-4)
    assert {each["label"] for each in entry["classes"]} == set(everything().labels)


def test_run_without_preprocessing(tmp_path: Path, photo: Path) -> None:
    path = tmp_path / "bare.sbit"
    path.write_bytes(encode(replace(everything(), preprocessing=None)))
    result = run_command(path, photo)
    assert isinstance(result.exception, subbit.ConfigError)
    assert "preprocessing" in str(result.exception)


def test_run_on_something_that_is_no_picture(packed: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a picture")
    for path in (text, tmp_path / "missing.png"):
        assert isinstance(run_command(packed, path).exception, subbit.InputError)


def test_picture_is_resized_and_normalised(tmp_path: Path) -> None:
    path = tmp_path / "flat.png"
    Image.new("RGBA", (7, 5), (255, 0, 51, 255)).save(path)
    picture = read_picture(path, r.Preprocessing((0.5, 0.5, 0.5), (0.5, 0.25, 0.1), (4, 6)))
    assert picture.shape == (3, 4, 6)
    assert picture[:, 2, 3] == pytest.approx([1.0, -2.0, -3.0], abs=1e-5)


def test_grey_picture(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    Image.new("RGB", (5, 5), (255, 255, 255)).save(path)
    assert read_picture(path, r.Preprocessing((0.0,), (1.0,), (3, 3))) == pytest.approx(np.ones((1, 3, 3)))


def test_phone_photo_is_turned_upright(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    picture = Image.new("L", (8, 4), 0)
    picture.paste(255, (0, 0, 4, 4))  # the left half is white
    orientation = Image.Exif()
    orientation[0x0112] = 6  # to be turned clockwise: the left half comes to the top
    picture.save(path, exif=orientation, quality=95)
    upright = read_picture(path, r.Preprocessing((0.0,), (1.0,), (8, 4)))
    assert upright[0, 1].min() > 0.9
    assert upright[0, 6].max() < 0.1

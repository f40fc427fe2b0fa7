"""Damaged files and impossible arrays from Python: always a named error, never a crash, never another exception."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.make_corpus import seeds
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import subbit
from subbit import records as r
from subbit.format import decode, encode
from tests.core_cases import CASES, everything, stacked
from tests.hostile import cases
from tests.hostile.files import Hostile, flips, sealed_flips, sealed_truncations, truncations

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "v1.sbit"


def status(data: bytes) -> str:
    """The name of the error that the core gives for a file, "ok" for none."""
    try:
        subbit.load(data)
    except subbit.SubbitError as error:
        return str(error).rsplit("(", 1)[1].removesuffix(")")
    return "ok"


def decodes(data: bytes) -> bool:
    """Whether the reader in Python takes a file; anything but a `FormatError` is a failure of the test."""
    try:
        decode(data)
    except subbit.FormatError:
        return False
    return True


def lenet() -> r.Program:
    """A network of LeNet-5's layers and sizes, stacked and dense."""
    rng = np.random.default_rng(0)

    def dense(*shape: int) -> r.Dense:
        return r.Dense(rng.standard_normal(shape).astype(np.float32))

    def pool(value: int) -> r.Pool:
        return r.Pool(inputs=(value,), kind="max", kernel=(2, 2), stride=(2, 2))

    return r.Program(
        (1, 28, 28),
        (
            r.Conv(inputs=(0,), weight=dense(6, 1, 5, 5), padding=(2, 2, 2, 2), name="features.0"),
            r.Activation(inputs=(1,), function="relu"),
            pool(2),
            r.Conv(inputs=(3,), weight=stacked(16, 2, 4, 3, 5, 5), name="features.3"),
            r.Activation(inputs=(4,), function="relu"),
            pool(5),
            r.Reshape(inputs=(6,), shape=(-1,)),
            r.Linear(inputs=(7,), weight=stacked(120, 4, 15, 100), name="classifier.0"),
            r.Activation(inputs=(8,), function="relu"),
            r.Linear(inputs=(9,), weight=stacked(84, 2, 21, 60), name="classifier.2"),
            r.Activation(inputs=(10,), function="relu"),
            r.Linear(inputs=(11,), weight=dense(10, 84), name="classifier.4"),
        ),
        labels=tuple("0123456789"),
    )


SOUND = {
    "every_operation": encode(everything()),
    "every_operation_f32": encode(replace(everything(), storage="f32")),
    "lenet": encode(lenet()),
    "shared_weights": encode(CASES["shared_stacked"]()),
    "golden": GOLDEN.read_bytes(),
}

# ------------------------------------------------------------------------------------------ damaged files


@pytest.mark.parametrize("name", SOUND)
def test_sound_files_are_sound(name: str) -> None:
    assert status(SOUND[name]) == "ok"
    assert decodes(SOUND[name])


def test_seeds_of_the_fuzzer_are_sound() -> None:
    """Seeds of another version of the format would lead nowhere."""
    seeds = sorted((ROOT / "fuzz" / "corpus").iterdir())
    assert {status(seed.read_bytes()) for seed in seeds} == {"ok"}
    assert len(seeds) > 80


@pytest.mark.parametrize("name", cases.CASES)
def test_file_made_by_hand(name: str) -> None:
    case = cases.CASES[name]
    assert status(case.data) == case.status
    assert decodes(case.data) == case.decodes


@pytest.mark.parametrize("name", [name for name, case in cases.SHAPES.items() if case.status == "shape"])
def test_inspect_of_operations_that_do_not_fit(name: str, tmp_path: Path) -> None:
    file = tmp_path / "net.sbit"
    file.write_bytes(cases.SHAPES[name].data)
    with pytest.raises(subbit.SubbitError):
        subbit.inspect(file)


def sampled(files: Any, count: int) -> list[Any]:
    """So many of them, the same ones every time."""
    files = list(files)
    chosen = np.random.default_rng(1).permutation(len(files))[:count]
    return [files[i] for i in sorted(chosen)]


@pytest.mark.parametrize("name", SOUND)
def test_truncated_files_in_both_readers(name: str) -> None:
    for file in sampled(truncations(SOUND[name]), 300):
        assert status(file.data) == file.status
        assert not decodes(file.data)


@pytest.mark.parametrize("name", SOUND)
def test_flipped_bits_in_both_readers(name: str) -> None:
    file: Hostile
    for file in sampled(flips(SOUND[name]), 300):
        assert status(file.data) == file.status
        assert not decodes(file.data)


@pytest.mark.parametrize("name", SOUND)
def test_both_readers_agree_behind_the_checksum(name: str) -> None:
    data = SOUND[name]
    for file in [*sampled(sealed_flips(data, every=8), 250), *sampled(sealed_truncations(data), 50)]:
        answer = status(file)
        if decodes(file):
            assert answer in ("ok", "shape", "limit"), answer  # the core also checks shapes and memory
        else:
            assert answer != "ok"


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert status(data) in ("magic", "length")
    assert not decodes(data)


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_command_line_explains_in_one_paragraph(command: str, tmp_path: Path) -> None:
    file = tmp_path / "net.sbit"
    file.write_bytes(SOUND["every_operation"][:-1])
    picture = [] if command == "inspect" else [str(tmp_path / "none.png")]
    result = subprocess.run(
        [sys.executable, "-m", "subbit", command, str(file), *picture], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "truncated" in result.stderr
    assert "Traceback" not in result.stderr


def test_not_a_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        with pytest.raises(subbit.FormatError):
            subbit.load(path)


# ------------------------------------------------------------------------------------- impossible arrays

SHAPE = (3, 12, 12)


@pytest.fixture(scope="module")
def net() -> subbit.Network:
    return subbit.load(SOUND["every_operation"])


DTYPES = st.one_of(arrays.scalar_dtypes(), arrays.unicode_string_dtypes(), st.just(np.dtype(object)))


@given(DTYPES, arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4), st.sampled_from("CF"))
def test_arrays_of_other_shapes(dtype: Any, shape: r.Shape, order: Any) -> None:
    with pytest.raises(subbit.InputError):
        subbit.load(SOUND["every_operation"])(np.zeros(shape, dtype, order))


def strided(*strides: int) -> Any:
    """Overlapping memory with these strides, in floats."""
    source = np.linspace(-1, 1, 4096, dtype=np.float32)
    return np.lib.stride_tricks.as_strided(source[2048:], (2, *SHAPE), [4 * stride for stride in strides])


@pytest.mark.parametrize(
    "array",
    [
        strided(0, 0, 0, 0),
        strided(-1, 1, -3, 7),
        strided(432, 1, 36, 3),  # channels last
        np.broadcast_to(np.float32(0.5), (5, *SHAPE)),
        np.zeros((0, *SHAPE), np.float32),
        np.linspace(-1, 1, 432).reshape(SHAPE).astype(">f4"),
        np.linspace(-1, 1, 432).reshape(SHAPE).astype("<f2"),
        np.linspace(-1, 1, 432).reshape(SHAPE).astype(np.longdouble),
        np.full(SHAPE, 1e300),
        np.ma.masked_array(np.ones(SHAPE, np.float32), mask=False),
        np.frombuffer(bytes(1 + 4 * 432), np.uint8)[1:].view(np.float32).reshape(SHAPE),  # unaligned
    ],
    ids=["stride_0", "overlapping", "channels_last", "broadcast", "empty", "big_endian", "half", "long_double",
         "beyond_float32", "masked", "unaligned"],
)  # fmt: skip
def test_any_memory_layout(net: subbit.Network, array: Any) -> None:
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(array, dtype=np.float32)
    assert np.array_equal(net(array), net(plain), equal_nan=True)


def test_batch_larger_than_memory(net: subbit.Network) -> None:
    with pytest.raises((MemoryError, subbit.InputError)):
        net(np.broadcast_to(np.float32(0), (2**44, *SHAPE)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_none(net: subbit.Network, bad: float) -> None:
    assert net(np.full((2, *SHAPE), bad, np.float32)).shape == (2, 5)


@pytest.mark.parametrize(
    "bad", ["text", b"bytes", {"a": 1}, object(), iter([1.0]), lambda: 0, [], [[]], Ellipsis, 1 << 5000]
)
def test_things_that_are_no_arrays(net: subbit.Network, bad: Any) -> None:
    with pytest.raises(subbit.InputError):
        net(bad)


def test_array_interface_that_lies(net: subbit.Network) -> None:
    class Liar:
        def __array__(self, *arguments: Any, **options: Any) -> Any:
            raise RuntimeError("no array after all")

    with pytest.raises(subbit.InputError, match="no array after all"):
        net(Liar())


@pytest.mark.parametrize(
    "shape", [(), (3, 12), (3, 12, 12, 1), (3, 0, 12), (-3, 12, 12), (3, 2**40, 12), (3, 2**23, 2**23), (1,) * 9]
)
def test_impossible_input_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(subbit.SubbitError):
        subbit.load(SOUND["every_operation"], input_shape=shape)


# ------------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("threads", [0, -1, 1025, 2**31, 2**32, 2**70])
def test_impossible_numbers_of_threads(net: subbit.Network, threads: int) -> None:
    with pytest.raises(subbit.InputError):
        net(np.zeros((4, *SHAPE), np.float32), threads=threads)


def test_threads_that_load_run_and_drop_networks() -> None:
    x = np.linspace(-1, 1, 432, dtype=np.float32).reshape(1, *SHAPE)
    expected = subbit.load(SOUND["every_operation"])(x)
    shared = subbit.load(SOUND["every_operation"])
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(30):
            own = subbit.load(SOUND["every_operation"])
            for net in (own, shared):
                same = np.array_equal(net(x, threads=1 + turn % 2), expected)
                failures.extend([] if same else [f"thread {number}, turn {turn}"])
            if status(SOUND["every_operation"][: turn + 4]) != "length":
                failures.append(f"thread {number}: a truncated file was opened")
            del own
            gc.collect(0)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_exit_while_daemon_threads_run(tmp_path: Path) -> None:
    """The interpreter may end in the middle of a run; the network must not be freed under it."""
    file = tmp_path / "net.sbit"
    file.write_bytes(SOUND["every_operation"])
    script = f"""
import threading, time, numpy as np, subbit
net = subbit.load({str(file)!r})
x = np.zeros((500, 3, 12, 12), np.float32)
def work():
    while True: net(x, threads=2)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr


def test_the_fuzzer_starts_from_every_operation_there_is() -> None:
    kept = {file.name: file.stat().st_size for file in (ROOT / "fuzz" / "corpus").iterdir()}
    made = {name: len(data) for name, data in seeds().items()}  # their numbers depend on what was drawn before
    assert kept == made, "run: python -m fuzz.make_corpus fuzz/corpus"

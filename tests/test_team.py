"""Threads over a batch: the same answers for any number of them, from several callers at once, and behind a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import subbit
from subbit import records as r
from subbit.errors import InputError
from subbit.format import encode
from tests.core_cases import everything, large, large_on_levels
from tests.test_kernels import ROWS
from tests.test_levels import skip_where_missing

IMAGES = 23  # more than most teams have threads, and no multiple of their numbers


@pytest.fixture(scope="module")
def net() -> subbit.Network:
    return subbit.load(encode(everything()))


@pytest.fixture(scope="module")
def x(net: subbit.Network) -> r.Float32:
    return np.random.default_rng(0).standard_normal((IMAGES, *net.input_shape), dtype=np.float32)


@pytest.mark.parametrize("threads", [2, 3, 8, 40])
def test_every_number_of_threads_gives_the_same_bits(net: subbit.Network, x: r.Float32, threads: int) -> None:
    expected = net(x)
    for _ in range(10):
        assert np.array_equal(net(x, threads=threads), expected)


def test_batches_of_changing_size(net: subbit.Network, x: r.Float32) -> None:
    expected = net(x)
    for count in (2, 23, 1, 7, 0, 3):
        assert np.array_equal(net(x[:count], threads=4), expected[:count])


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_one_image_over_several_threads(threads: int) -> None:
    net = subbit.load(encode(large()))
    x = np.random.default_rng(0).standard_normal((2, *net.input_shape), dtype=np.float32)
    expected = net(x)
    for _ in range(5):
        assert np.array_equal(net(x[0], threads=threads), expected[0])
        assert np.array_equal(net(x, threads=threads), expected)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("kernel", ["table", "dot"])
@pytest.mark.parametrize("row", ROWS)
def test_one_image_on_levels_over_several_threads(
    row: str, kernel: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images take turns: a piece that nobody does would leave the numbers of the one before."""
    skip_where_missing(kernel, row)
    monkeypatch.setenv("SUBBIT_KERNEL", kernel)
    net = subbit.load(encode(large_on_levels()), isa=row)
    assert {operation.kernel for operation in net.operations} - {""} == {kernel}
    x = np.random.default_rng(0).standard_normal((2, *net.input_shape), dtype=np.float32)
    expected = net(x)
    for turn in range(6):
        assert np.array_equal(net(x[turn % 2], threads=threads), expected[turn % 2])


def test_several_callers_at_once(net: subbit.Network, x: r.Float32) -> None:
    expected = net(x)
    wrong: list[int] = []

    def call(number: int) -> None:
        answers = (net(x[number:], threads=2 + number % 2) for _ in range(10))
        wrong.extend(number for answer in answers if not np.array_equal(answer, expected[number:]))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_closing_a_network_ends_its_threads(tmp_path: Path) -> None:
    """In a process of its own, where no other library's threads come and go."""
    if not sys.platform.startswith("linux"):
        pytest.skip("counts threads in /proc")
    file = tmp_path / "net.sbit"
    file.write_bytes(encode(everything()))
    script = f"""if True:
        import os
        import time
        import numpy as np
        import subbit
        def threads():
            return len(os.listdir("/proc/self/task"))
        net = subbit.load({str(file)!r})
        x = np.ones(({IMAGES}, *net.input_shape), np.float32)
        before = threads()
        net(x, threads=5)
        during = threads()
        del net
        deadline = time.monotonic() + 20
        while threads() > before and time.monotonic() < deadline:  # joined ones stay in /proc for a moment
            time.sleep(0.01)
        print(during - before, threads() - before)
    """
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["4", "0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_makes_its_own_threads(x: r.Float32) -> None:
    net = subbit.load(encode(everything()))
    expected = net(x, threads=3)
    child = os.fork()
    if child == 0:
        same = np.array_equal(net(x, threads=3), expected)
        del net  # frees what is the child's, and waits for no thread of the parent
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(net(x, threads=3), expected)


def test_more_threads_than_a_team_may_have(net: subbit.Network, x: r.Float32) -> None:
    with pytest.raises(InputError, match=r"1\.\.1024 threads"):
        net(x, threads=5000)

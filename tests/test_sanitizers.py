"""The C core under the sanitizers: sound networks, hostile files, threads, and a short run of the fuzzer.

One build with AddressSanitizer and UBSan serves the driver of `tests/hostile` and, where clang brings libFuzzer, the
fuzzer; another one has ThreadSanitizer. Both stay in `build/`, so that only what changed is compiled again.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from subbit import records as r
from subbit.format import encode
from tests.core_cases import CASES, FUNCTIONS, everything, large, large_on_levels, program
from tests.hostile import cases
from tests.hostile.files import flips, sealed_flips, sealed_truncations, truncations
from tests.hostile.networks import Networks
from tests.test_fusion import POOLS, levels_behind, stem, sum_of_two
from tests.test_kernels import CASES as SHAPES
from tests.test_kernels import Kind

ROOT = Path(__file__).parents[1]
ROWS = ("portable", "sse2", "avx2", "avx512", "neon")  # one that this machine lacks says so

# What opening may allocate, whatever the file says (docs/format.md), and what planning needs for a moment besides.
OPEN_FIXED = (256 + 8) << 20
OPEN_PER_BYTE = 256

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0:max_allocation_size_mb=128",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def tool(name: str) -> str | None:
    """A program beside this Python (cmake and ninja come with the development packages), or on the path."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def run(*command: str | Path, seconds: float = 300, kernel: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUBBIT_")} | OPTIONS
    if kernel:
        environment["SUBBIT_KERNEL"] = kernel
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=seconds)


def build(name: str, compiler: str, sanitizers: str) -> Path:
    """The folder with the programs of tests/hostile, built with these sanitizers."""
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        pytest.skip("no cmake and ninja")
    folder = ROOT / "build" / name
    settings = [f"-DCMAKE_C_COMPILER={compiler}", f"-DSUBBIT_SANITIZE={sanitizers}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    for command in (
        [cmake, "-S", str(ROOT / "tests" / "hostile"), "-B", str(folder), "-G", "Ninja", *settings],
        [cmake, "--build", str(folder)],
    ):
        result = run(*command, seconds=1200)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return folder


def links(compiler: str, sanitizers: str, folder: Path) -> bool:
    """Whether this compiler is there and has the libraries of these sanitizers."""
    source = folder / "probe.c"
    source.write_text("int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d == (char *)n; }\n")
    if "fuzzer" not in sanitizers:
        source.write_text("int main(void) { return 0; }\n")
    return shutil.which(compiler) is not None and (
        run(compiler, f"-fsanitize={sanitizers}", str(source), "-o", str(folder / "probe")).returncode == 0
    )


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs built with AddressSanitizer and UBSan, and with libFuzzer where there is one."""
    folder = tmp_path_factory.mktemp("probe")
    for compiler, sanitizers in (("clang", "fuzzer,address,undefined"), ("gcc", "address,undefined")):
        if links(compiler, sanitizers, folder):
            return build(f"checked-{compiler}", compiler, sanitizers)
    pytest.skip("no compiler with AddressSanitizer")


def statuses(
    checked: Path, folder: Path, files: Iterable[bytes], row: str = "", kernel: str = "", work: float = 1e7
) -> list[str]:
    """What the driver says about each file, in a process in which every wrong access is fatal."""
    files = list(files)
    archive = folder / "archive"
    archive.write_bytes(b"".join(struct.pack("<I", len(data)) + data for data in files))
    result = run(checked / "driver", archive, row, str(work), kernel=kernel)
    assert result.returncode == 0, result.stderr[-6000:]
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert len(lines) == len(files)
    for data, (status, peak) in zip(files, lines, strict=True):
        assert int(peak) <= OPEN_FIXED + OPEN_PER_BYTE * len(data), f"{peak} bytes for {data[:64].hex()}: {status}"
    return [status for status, _ in lines]


# ----------------------------------------------------------------------------------------- sound networks


@pytest.mark.parametrize("row", ROWS)
def test_sound_networks_run(checked: Path, tmp_path: Path, row: str) -> None:
    networks = [make() for make in CASES.values()] + [everything()]
    networks += [program((3, 5), r.Activation(inputs=(0,), function=f, a=a, b=b)) for f, (a, b) in FUNCTIONS.items()]
    files = [encode(replace(network, storage=storage)) for network in networks for storage in ("f16", "f32")]
    answers = set(statuses(checked, tmp_path, files, row))
    if answers == {"isa"} and row != "portable":
        pytest.skip(f"no {row} on this machine")
    assert answers == {"ok"}


# every convolution that a kernel can do is done by it, whatever it costs; in the core, names are beside `cost`
KERNELS = (
    "portable",
    "portable xnor",
    "depthwise",
    "direct",
    "dot",
    "dot lanes",
    "dot rows",
    "dot rows lanes",
    "fma",
    "fma lanes",
    "fma rows",
    "lanes",
    "linear",
    "popcount",
    "table",
    "table 5",
    "table 6",
    "xnor",
)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_stay_inside_their_buffers(checked: Path, tmp_path: Path, kernel: str) -> None:
    files = list(Networks(seed=KERNELS.index(kernel)).files(400))
    for row in ("", "avx2", "sse2"):
        answers = set(statuses(checked, tmp_path, files, row, kernel))
        assert answers == {"ok"} or (row and answers == {"isa"})


@pytest.mark.parametrize("row", ["portable", "sse2", "avx2", ""])
def test_what_is_done_together_stays_inside_its_buffers(checked: Path, tmp_path: Path, row: str) -> None:
    """Sums in the place of what is added, and convolutions in turns with maxima, in floats and in integers."""
    kinds: tuple[Kind, ...] = ("stacked", "dense")
    networks = [sum_of_two(case, kind) for case in SHAPES.values() for kind in kinds]
    for pool in POOLS.values():
        first = stem(pool, 424, 203, 8, 2, 7)
        networks += [first, replace(first, ops=(*first.ops, levels_behind(first, 0.2)))]
    answers = set(statuses(checked, tmp_path, [encode(network) for network in networks], row, work=1e9))
    assert answers == {"ok"} or (row and answers == {"isa"})


@pytest.mark.parametrize("row", ["portable", "sse2", "avx2", ""])
def test_geometries_up_to_the_limits(checked: Path, tmp_path: Path, row: str) -> None:
    answers = statuses(checked, tmp_path, Networks(seed=1).huge_files(400), row, work=0)  # opened, not run
    assert {"ok", "limit", "shape"} == set(answers) or (row and set(answers) == {"isa"})


def test_every_kernel_is_tried() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc" / "kernels").glob("*.[ch]"))
    named = re.findall(r"static const sb_conv_kernel \w+ = \{\s*(?:\.name = )?\"([^\"]+)\"", sources)
    named += re.findall(r"^const sb_conv_kernel \w+ = \{\s*\.name = \"([^\"]+)\"", sources, re.MULTILINE)
    named += re.findall(r"^TABLE_KERNEL\(\w+, \"([^\"]+)\"", sources, re.MULTILINE)
    assert set(named) == set(KERNELS)


def test_gcc_takes_vector_kernels_with_sanitizers(tmp_path: Path) -> None:
    """Also where clang builds all the rest: checks change what gcc makes of an annotated loop, and of its warnings."""
    if not links("gcc", "undefined", tmp_path):
        pytest.skip("no gcc with UBSan")
    flags = ["-std=gnu11", "-O0", "-fsanitize=shift", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    source = ROOT / "csrc" / "kernels" / ("simd_neon.c" if os.uname().machine == "aarch64" else "simd_sse2.c")
    result = run("gcc", *flags, f"-I{ROOT / 'csrc'}", "-c", source, "-o", tmp_path / "row.o")
    assert result.returncode == 0, result.stderr[-4000:]


# ------------------------------------------------------------------------------------------ hostile files


def test_files_made_by_hand(checked: Path, tmp_path: Path) -> None:
    expected = {name: case.status for name, case in cases.CASES.items()}
    answers = statuses(checked, tmp_path, (case.data for case in cases.CASES.values()))
    assert dict(zip(expected, answers, strict=True)) == expected


def test_truncated_at_every_byte(checked: Path, tmp_path: Path) -> None:
    files = list(truncations(encode(everything())))
    assert statuses(checked, tmp_path, (file.data for file in files)) == [file.status for file in files]


def test_every_bit_flipped(checked: Path, tmp_path: Path) -> None:
    files = list(flips(encode(everything())))
    assert statuses(checked, tmp_path, (file.data for file in files)) == [file.status for file in files]


NAMES = {"ok", "length", "program", "value", "text", "limit", "shape"}  # behind a checksum that fits


def test_every_bit_flipped_behind_the_checksum(checked: Path, tmp_path: Path) -> None:
    answers = statuses(checked, tmp_path, sealed_flips(encode(replace(everything(), input_shape=(3, 4, 4))), every=5))
    assert set(answers) == NAMES


def test_every_section_cut_behind_the_checksum(checked: Path, tmp_path: Path) -> None:
    answers = statuses(checked, tmp_path, sealed_truncations(encode(replace(everything(), storage="f32"))))
    assert set(answers) <= NAMES
    assert answers.count("ok") <= 2  # without names, and without labels and preprocessing, a file is whole


# --------------------------------------------------------------------------------------- threads and fuzz


@pytest.mark.parametrize(
    ("make", "kernel", "rounds"),
    [(everything, "", 3), (large, "", 1), (large_on_levels, "table", 1), (large_on_levels, "dot", 1)],
    ids=["images", "pieces of an image", "pieces on levels by tables", "pieces on levels by dot products"],
)
def test_one_model_in_many_threads(tmp_path: Path, make: Callable[[], r.Program], kernel: str, rounds: int) -> None:
    if not links("gcc", "thread", tmp_path):
        pytest.skip("no gcc with ThreadSanitizer")
    threads = build("checked-threads", "gcc", "thread") / "threads"
    network = tmp_path / "net.sbit"
    network.write_bytes(encode(make()))
    result = run(threads, network, str(rounds), kernel=kernel)
    assert result.returncode == 0, result.stderr[-6000:]


def test_short_run_of_the_fuzzer(checked: Path, tmp_path: Path) -> None:
    fuzzer = checked / "fuzz_open"
    if not fuzzer.exists():
        pytest.skip("no clang with libFuzzer")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    result = run(
        fuzzer, "-runs=20000", "-max_total_time=6", "-max_len=800", "-seed=1", "-timeout=30",
        f"-artifact_prefix={tmp_path}/", corpus, ROOT / "fuzz" / "corpus",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-6000:]
    assert "Done" in result.stderr

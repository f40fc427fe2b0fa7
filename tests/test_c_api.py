"""The core from C: subbit.h alone, under the sanitizers of the compiler that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import subbit
from subbit.runtime.library import FORMAT_VERSION

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


def portable_sources() -> list[Path]:
    return [*sorted((ROOT / "csrc").glob("*.c")), *sorted((ROOT / "csrc" / "kernels").glob("portable*.c"))]


@pytest.fixture(params=COMPILERS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    binary = tmp_path / "test_c_api"
    sources = [*portable_sources(), ROOT / "tests" / "test_c_api.c"]
    command = [request.param, *STRICT, *SANITIZERS, f"-I{ROOT / 'csrc'}", *map(str, sources), "-lm", "-o", str(binary)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return binary


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
def test_strict_c11_program_under_sanitizers(program: Path) -> None:
    recorded = np.load(GOLDEN / "v1.npz")
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1"}
    environment.pop("SUBBIT_ISA", None)
    result = subprocess.run(
        [program, GOLDEN / "v1.sbit"], input=recorded["x"][0].tobytes(), capture_output=True, check=False,
        env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr.decode().split() == [FORMAT_VERSION, "portable", "cat"]
    out = np.frombuffer(result.stdout, np.float32)
    assert np.array_equal(out, subbit.load(GOLDEN / "v1.sbit", isa="portable")(recorded["x"][0]))


def test_header_is_valid_cpp(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "use.cpp"
    source.write_text('#include "subbit.h"\nint main() { return sb_version() == nullptr; }\n')
    subprocess.run(
        [compiler, "-Wall", "-Werror", f"-I{ROOT / 'csrc'}", "-c", source, "-o", tmp_path / "use.o"], check=True
    )


def test_only_the_api_is_exported() -> None:
    tool = shutil.which("nm")
    library = ROOT / "src" / "subbit" / "runtime" / "libsubbit_core.so"
    if tool is None or not library.exists():
        pytest.skip("needs nm and a shared library")
    symbols = subprocess.run([tool, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    header = (ROOT / "csrc" / "subbit.h").read_text()
    exported = {line.split()[-1] for line in symbols.splitlines()}
    assert exported == {name for name in exported if f" {name}(" in header or f"*{name}(" in header}
    assert "sb_open" in exported

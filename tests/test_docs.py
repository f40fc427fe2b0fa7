"""The documentation's examples run, and the commands and links in it exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import typer

import subbit
from subbit.cli import build_app

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "zoo" / "README.md", *(ROOT / "docs").glob("*.md")]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def shell_lines() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines if line.startswith("subbit ")})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, source in enumerate(blocks(page, "python")):
        exec(compile(source, f"{page.name}[{number}]", "exec"), namespace)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_c_example_compiles_and_answers(tmp_path: Path) -> None:
    page, golden = ROOT / "docs" / "running.md", ROOT / "tests" / "golden"
    (tmp_path / "classify.c").write_text(blocks(page, "c")[0])
    lines = "".join(blocks(page, "sh")).splitlines()
    command = next(line for line in lines if line.startswith("cc ") and "portable" in line)
    command = command.replace("classify.c", f"{tmp_path}/classify.c").replace("-o classify", f"-o {tmp_path}/classify")
    subprocess.run(command, shell=True, check=True, cwd=ROOT)
    x = np.load(golden / "v1.npz")["x"][0]
    answer = subprocess.run(
        [tmp_path / "classify", golden / "v1.sbit"], input=x.tobytes(), capture_output=True, check=True
    )
    want = subbit.load(golden / "v1.sbit", isa="portable")(x)
    assert np.allclose(np.frombuffer(answer.stdout, np.float32), want, rtol=1e-5)


@pytest.mark.parametrize("line", shell_lines())
def test_commands_and_options_exist(line: str) -> None:
    _, command, *arguments = shlex.split(line)
    parameters = vars(typer.main.get_command(build_app([command])))["commands"][command].params
    known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = [word.split("=")[0] for word in arguments if word.startswith("-") and word.split("=")[0] not in known]
    assert not unknown, f"{line}: subbit {command} has {sorted(known)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        target for target in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / target).exists()
    ]
    assert not missing

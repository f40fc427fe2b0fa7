"""The frame of the command line, its shared options, and `subbit inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import subbit
from subbit import cli
from subbit.cli import options
from subbit.errors import ConfigError
from subbit.methods import BWN, METHODS, SLBF, LegoNet


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(args)
    captured = capsys.readouterr()
    code = stopped.value.code
    return int(code) if isinstance(code, int) else 0, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"subbit {subbit.__version__}\n", "")


def test_help_lists_every_command_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "inspect" in cli.available_commands()
    for name in cli.COMMANDS:
        assert bool(re.search(rf"^\W*{name}\s", out, re.MULTILINE)) == (name in cli.available_commands())


def test_command_whose_module_is_missing_is_not_offered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "unwritten", "subbit.cli.unwritten")
    assert "unwritten" not in cli.available_commands()
    code, _, err = run(capsys, "unwritten")
    assert code == 2
    assert "No such command 'unwritten'" in err


def test_misspelt_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "inspekt")
    assert code == 2
    assert "No such command 'inspekt'" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give either a .sbit file or --model"),
        (("net.sbit", "--model", "lenet5"), "give either a .sbit file or --model"),
        (
            ("net.sbit", "--f1", "1/2", "--keep", "fc"),
            "--f1, --keep: only with --model; what net.sbit holds is settled",
        ),
        (("absent.sbit",), "absent.sbit: cannot be read: No such file or directory"),
        (("--model", "resnet50", "--method", "bwn"), "unknown model 'resnet50': did you mean 'resnet18'?"),
        (("--model", "lenet5", "--method", "slb"), "unknown method 'slb': did you mean 'slbf'?"),
        (("--model", "lenet5", "--method", "bwn", "--f1", "1/2"), "method bwn has no --f1; its options: none"),
        (("--model", "lenet5", "--f1", "2/1", "--f2", "1/2"), "f1='2/1'"),
        (
            ("--model", "lenet5", "--f1", "1", "--f2", "1", "--input", "28"),
            "model takes (channels, height, width)",
        ),
        (("--model", "lenet5", "--f1", "1", "--f2", "1", "--input", "1,a"), "--input '1,a' is not a shape"),
        (("--model", "lenet5", "--f1", "1", "--f2", "1", "--keep", "fc9"), "keep 'fc9' matches nothing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistake_is_one_paragraph_and_code_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "inspect", *args)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_inspect_a_built_in_model_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", "--model", "lenet5", "--method", "slbf", "--f1", "1", "--f2", "1/8", "--selection", "fixed"]
    code, table, _ = run(capsys, *arguments)
    assert code == 0
    code, text, _ = run(capsys, *arguments, "--json")
    assert code == 0
    values = json.loads(text)
    assert f"= {values['stored_bytes']:,} bytes" in table
    assert sum(row["stored"]["indices"] for row in values["layers"]) == 0
    assert values["paper_ratio"] > 30


def test_inspect_takes_keep_input_and_dense(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "inspect", "--model", "lenet5", "--method", "bwn", "--keep", "Linear", "--json")
    assert [row["method"] for row in json.loads(text)["layers"]] == ["", "BWN()", "", ""]
    _, text, _ = run(capsys, "inspect", "--model", "resnet18", "--method", "dense", "--input", "1x16x16", "--json")
    values = json.loads(text)
    assert values["input_shape"] == [1, 16, 16]
    assert values["speedup"] == 1


def test_inspect_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    from subbit.models import lenet5

    path = tmp_path / "net.sbit"
    subbit.pack(lenet5(), path, example=torch.zeros(1, 1, 28, 28))
    code, out, _ = run(capsys, "inspect", str(path), "--json")
    assert code == 0
    assert json.loads(out)["stored_bytes"] == path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    code, _, err = run(capsys, "inspect", str(path))
    assert code == 2
    assert "truncated" in err


# ------------------------------------------------------------------------------------------------- shared options


def test_build_method_is_the_configuration() -> None:
    assert options.build_method("slbf", f1="1/2", f2="1/4") == SLBF(f1="1/2", f2="1/4")
    fixed = options.build_method("slbf", depth=8, filters=4, scale=False, selection="fixed")
    assert fixed == SLBF(depth=8, filters=4, scale=False, selection="fixed")
    assert options.build_method("legonet", f1="1/4", f2="1/4") == LegoNet(f1="1/4", f2="1/4")
    assert options.build_method("bwn") == BWN()
    assert options.build_method("dense") is None


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("slbf", "legonet")])
def test_every_other_method_needs_no_options(name: str) -> None:
    assert options.build_method(name) == METHODS[name]()


def test_dense_has_no_options() -> None:
    with pytest.raises(ConfigError, match="method dense has no --f1; its options: none"):
        options.build_method("dense", f1="1/2")


@pytest.mark.parametrize(("name", "channels"), [("lenet5", 1), ("vgg16", 3), ("vgg16-lego", 3), ("resnet18", 3)])
def test_built_in_models_take_their_usual_input(name: str, channels: int) -> None:
    import torch

    shape = options.parse_shape(None, model=name)
    assert shape[0] == channels
    model = options.build_model(name, classes=7).eval()
    assert model(torch.zeros(1, *shape)).shape == (1, 7)

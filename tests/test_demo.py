"""The demo, shortened to one epoch, does all it shows: train, pack, run, compare, report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from subbit.cli import main
from subbit.experiments import ledger


def test_demo_trains_packs_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--epochs", "1"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    sizes = re.findall(r"predicted ([\d,]+) bytes, and the file has ([\d,]+);", shown)
    assert [predicted == real for predicted, real in sizes] == [True, True]
    files = {name: (tmp_path / "runs" / "demo" / f"{name}.sbit").stat().st_size for name in ("dense", "slbf")}
    assert [int(real.replace(",", "")) for _, real in sizes] == list(files.values())
    assert files["slbf"] * 30 < files["dense"]
    # fp16 storage may turn an answer that was a near tie, not more
    assert all(float(share) >= 99.5 for share in re.findall(r"same answer for ([\d.]+) %", shown))
    lines = ledger.read(tmp_path / "runs" / "demo" / "results" / "demo.jsonl").entries
    assert [(line.row, line.epochs) for line in lines] == [("dense", 1), ("slbf", 1)]
    assert all(line.accuracy > 85 for line in lines)  # one epoch over 12,000 digits
    page = tmp_path / "runs" / "demo" / "report.html"
    assert str(page) in shown.replace("\n", "")
    assert "1 of 6 epochs" in page.read_text()

"""`subbit reproduce` from spec to ledger on a few real digits, and again when there is nothing left to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from subbit import data
from subbit.cli import main
from subbit.errors import DataError
from subbit.experiments import ledger
from subbit.experiments import zoo as experiments_zoo
from subbit.experiments.run import all_jobs
from subbit.experiments.spec import load_spec
from subbit.experiments.zoo import add_to_zoo
from subbit.zoo import read_card
from tests.test_experiments import EXPERIMENTS, SMALL, write_spec


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred of the packaged digits as a folder of images, one subfolder per class."""
    folder = tmp_path_factory.mktemp("pictures")
    digits = data.load("digits").train
    for number in range(300):
        place = folder / str(digits.labels[number])
        place.mkdir(exist_ok=True)
        Image.fromarray(digits.images[number, 0]).save(place / f"{number}.png")
    return folder


@pytest.fixture
def small(tmp_path: Path, pictures: Path) -> Path:
    text = SMALL.replace(
        'data = "digits"', f'data = "{pictures}"\nimage_size = 28\nthreads = 1\ntest_each_epoch = true'
    )
    return write_spec(tmp_path, text.replace("seeds = [0, 1]", "seeds = [0]"))


def reproduce(spec: Path, *options: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", str(spec), "--runs", str(spec.parent / "runs"), *options])
    assert end.value.code == 0


def test_reproduce_from_spec_to_table(
    small: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(small, "--dry-run")
    assert "subbit reproduce small --rows dense --seeds 0\n" in capsys.readouterr().out
    reproduce(small, "--dry-run", "--json", "--rows", "dense", "--epochs", "2")
    assert json.loads(capsys.readouterr().out) == [
        {"row": "dense", "seed": 0, "epochs": 2, "command": "subbit reproduce small --rows dense --seeds 0 --epochs 2"}
    ]
    assert not (small.parent / "runs").exists()

    # `taught` needs the run folder of `dense`, so both are run; both get their line
    reproduce(small, "--epochs", "1", "--rows", "taught")
    spec = load_spec(small)
    lines = ledger.read(spec.ledger)
    assert lines.damaged == ()
    assert [(line.row, line.seed, line.epochs, line.spec_epochs) for line in lines.entries] == [
        ("dense", 0, 1, 3),
        ("taught", 0, 1, 3),
    ]
    dense, taught = lines.entries
    for line in (dense, taught):
        assert line.row_hash == spec.row(line.row).hash
        assert len(line.curve) == 1
        assert line.curve_split == "test"
        assert line.curve[-1] == pytest.approx(line.accuracy, abs=0.001)
        assert line.threads == 1
        assert line.seconds > 0
        assert {"python", "torch", "lightning", "numpy", "subbit"} == set(line.versions)
        assert str(small.parent) not in line.to_line()  # no path of this machine but the data set's name
        assert line.command == f"subbit reproduce small --rows {line.row} --seeds 0 --epochs 1"
    assert dense.paper_ratio == 1
    assert taught.ratio > 10 > dense.ratio
    assert taught.settings["distill_weight"] == 0.5
    used = {layer.name: sum(layer.usage) for layer in taught.layers if layer.usage}
    assert used == {"features.4": 50, "classifier.1": 500}  # f1 = 1: one block per filter
    assert 8 * taught.stored_bytes > sum(layer.bits for layer in taught.layers) > 0
    assert "1 of 3 epochs" in capsys.readouterr().out

    # a second time there is nothing to do; a line that got lost comes back without training
    before = spec.ledger.read_bytes()
    capsys.readouterr()
    reproduce(small, "--epochs", "1", "--rows", "dense,taught", "--json")
    assert spec.ledger.read_bytes() == before
    assert [line["accuracy"] for line in json.loads(capsys.readouterr().out)] == [dense.accuracy, taught.accuracy]

    # as JSON neither runs of another definition of a row nor damaged lines, which are named beside it
    ledger.append(spec.ledger, replace(dense, row_hash="another", accuracy=1.0))
    spec.ledger.write_bytes(spec.ledger.read_bytes() + b"{\n")
    reproduce(small, "--epochs", "1", "--rows", "dense", "--json")
    printed = capsys.readouterr()
    assert [line["accuracy"] for line in json.loads(printed.out)] == [dense.accuracy]
    assert "line 4 is damaged" in printed.err

    spec.ledger.write_bytes(before.split(b"\n")[0] + b"\n")
    model = next((small.parent / "runs" / "small").glob("taught*")) / "model.pt"
    trained = model.stat().st_mtime_ns
    reproduce(small, "--epochs", "1", "--rows", "taught")
    again = ledger.read(spec.ledger).entries[1]
    assert (again.accuracy, again.curve, again.seconds) == (taught.accuracy, taught.curve, taught.seconds)
    assert model.stat().st_mtime_ns == trained

    # into a ledger of one's own it is measured again; the first one stays as it is
    kept = spec.ledger.read_bytes()
    mine = small.parent / "mine"
    reproduce(small, "--epochs", "1", "--rows", "dense", "--results", str(mine), "--runs", str(mine / "runs"))
    assert [line.accuracy for line in ledger.read(mine / "small.jsonl").entries] == [dense.accuracy]
    assert spec.ledger.read_bytes() == kept

    # the same rows as files with cards; what was not measured has none
    zoo = small.parent / "zoo"
    monkeypatch.setattr(experiments_zoo, "INTEGER_GAP", 100)  # a network that learnt next to nothing is easily moved
    reproduce(small, "--epochs", "1", "--rows", "taught", "--zoo", str(zoo))
    integer, card = (read_card(file) for file in sorted(zoo.glob("*.json")))
    assert integer.name == f"{card.name}-int8"
    assert {file.name for file in zoo.iterdir()} == {
        f"{c.name}.{end}" for c in (card, integer) for end in ("json", "sbit")
    }
    assert card.bytes < integer.bytes == (zoo / f"{integer.name}.sbit").stat().st_size
    assert card.name == f"lenet5-{pictures.name}-taught"
    assert card.bytes == (zoo / f"{card.name}.sbit").stat().st_size == again.stored_bytes
    assert card.torch_accuracy == round(again.accuracy, 2)
    assert abs(card.accuracy - card.torch_accuracy) <= 0.1
    assert (card.command, card.commit, card.epochs) == (again.command, again.commit, 1)
    missing = all_jobs(spec, [spec.row("taught")], epochs=1, seeds=[7])[0]
    with pytest.raises(DataError, match="not measured yet: subbit reproduce small --rows taught --seeds 7"):
        add_to_zoo(missing, small.parent / "runs", zoo)


def test_a_file_that_departs_from_its_model_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproduce(small, "--epochs", "1", "--rows", "dense")
    spec = load_spec(small)
    job = all_jobs(spec, [spec.row("dense")], epochs=1)[0]
    monkeypatch.setattr(experiments_zoo, "file_accuracy", lambda *_: (0.0, 10))
    with pytest.raises(DataError, match="points apart"):
        add_to_zoo(job, small.parent / "runs", small.parent / "zoo")
    assert not list((small.parent / "zoo").iterdir())


def test_slbf_starts_from_the_legonet_of_another_row(small: Path) -> None:
    """The paper's study of initialisation: filters are the LegoNet's signs, everything else is taken as it is."""
    import torch

    from subbit.errors import ConfigError
    from subbit.methods.legonet import LegoNetLayer
    from subbit.methods.slbf import SLBFLayer
    from subbit.train import Settings, build_model, fit, open_run

    legonet = {"method": "legonet", "f1": "1/2", "f2": "1/4"}
    common = {key: value for key, value in load_spec(small).row("slbf").settings.items() if key not in legonet}
    folder = small.parent / "legonet"
    fit(Settings.resolve(common, epochs=1, **legonet), out=folder)
    source = open_run(folder).model
    started = build_model(Settings.resolve(common, method="slbf", f1="1/2", f2="1/4", init_from=str(folder)), 10, 3)
    layers = [(a, b) for a, b in zip(source.modules(), started.modules(), strict=False) if isinstance(b, SLBFLayer)]
    assert len(layers) == 2
    for before, after in layers:
        assert isinstance(before, LegoNetLayer)
        assert torch.equal(after.bank(), torch.where(before.bank() >= 0, 1.0, -1.0))
    kept = [key for key in source.state_dict() if key.startswith(("features.0", "classifier.3")) or "running" in key]
    assert len(kept) > 4
    assert all(torch.equal(source.state_dict()[key], started.state_dict()[key]) for key in kept)
    for other in ({"f1": "1", "f2": "1/4"}, {"f1": "1/2", "f2": "1/8"}):
        with pytest.raises(ConfigError, match="f1, f2 and keep must be equal"):
            build_model(Settings.resolve(common, method="slbf", init_from=str(folder), **other), 10, 3)
    with pytest.raises(ConfigError, match="a bwn lenet5 or a dense lenet5 is needed"):
        build_model(Settings.resolve(common, method="bwn", init_from=str(folder)), 10, 3)


def test_the_list_names_every_spec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["reproduce", "--list"])
    shown = capsys.readouterr().out
    names = [path.stem for path in EXPERIMENTS.glob("*.toml") if path.stem != "published"]
    assert len(names) >= 11
    assert all(name in shown for name in names)
    with pytest.raises(SystemExit):
        main(["reproduce", "--list", "--json"])
    assert {line["spec"] for line in json.loads(capsys.readouterr().out)} == set(names)
    with pytest.raises(SystemExit):
        main(["reproduce", "mnist", "--list", "--json"])
    assert [line["spec"] for line in json.loads(capsys.readouterr().out)] == ["mnist"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce"], "which table?"),
        (["reproduce", "minst", "--list"], "minst"),
        (["reproduce", "mnist", "--seeds", "a"], "--seeds 'a': give numbers from 0"),
        (["reproduce", "mnist", "--rows", "slbf-1-0.3"], "did you mean 'slbf-1-0.25'"),
        (["report", "--check"], "--check needs --update FILE"),
        (["report", "--update", "nowhere.md"], "cannot read nowhere.md"),
        (["report", "--update", "Makefile"], "Makefile has no table or figure of subbit"),
        (["report", "--update", "README.md", "zoo/README.md"], "zoo/README.md beside --update"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    with pytest.raises(SystemExit) as failure:
        main(arguments)
    assert failure.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())

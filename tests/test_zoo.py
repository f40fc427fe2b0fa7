"""The networks that come with subbit: every card is true of its file, and names stand for files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import subbit
from subbit import data, zoo
from subbit.cli import main
from subbit.errors import FormatError, InputError
from subbit.experiments import ledger
from tests.test_experiments import EXPERIMENTS

CARDS = zoo.cards()
DIGITS = "lenet5-mnist-slbf-0.5-0.25"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    captured = capsys.readouterr()
    return int(str(stopped.value.code or 0)), captured.out, captured.err


def test_every_file_has_a_card_and_every_card_a_file() -> None:
    small = {file.name for file in zoo.folder().iterdir()} - {"README.md", zoo.large_folder().name}
    large = {file.name for file in zoo.large_folder().iterdir()}
    assert not small & large
    assert small | large == {f"{card.name}.{end}" for card in CARDS for end in ("sbit", "json")}
    assert len(CARDS) >= 3


def test_large_networks_come_with_a_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = next(iter(zoo.large_folder().glob("*.sbit")))
    assert zoo.path(large.stem) == large
    for file in zoo.folder().glob("lenet5*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path)  # as an installed package has it
    assert {card.name for card in zoo.cards()} == {card.name for card in CARDS if card.name.startswith("lenet5")}
    with pytest.raises(InputError, match="the zoo has no network"):
        zoo.path(large.stem)


def test_best_are_those_that_no_smaller_one_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    def card(name: str, size: int, accuracy: float, data: str = "a") -> zoo.Card:
        return replace(CARDS[0], name=name, bytes=size, accuracy=accuracy, data=data)

    cards = [
        card("large", 300, 93.0), card("equal", 300, 92.0), card("worse", 200, 90.0), card("small", 100, 91.0),
        card("small-int8", 101, 91.5), card("other", 400, 80.0, "b"),
    ]  # fmt: skip
    assert [card.name for card in zoo.best(cards)] == ["small", "large", "other"]
    status, out, _ = run(capsys, "zoo", "--best", "--json")
    assert status == 0
    assert [card["name"] for card in json.loads(out)] == [card.name for card in zoo.best(CARDS)]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_card_is_true_of_its_file(card: zoo.Card) -> None:
    content = zoo.path(card.name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == card.sha256
    assert len(content) == card.bytes == subbit.inspect(zoo.path(card.name)).stored_bytes
    assert abs(card.accuracy - card.torch_accuracy) <= (0.2 if card.name.endswith("-int8") else 0.1)
    net = subbit.load(content)
    assert net.preprocessing is not None
    assert len(net.labels) == net.output_shape[0]
    assert np.isfinite(net(np.zeros((2, *net.input_shape), np.float32))).all()


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_card_is_what_the_ledger_says(card: zoo.Card) -> None:
    spec = card.command.split()[2]
    lines = ledger.read(EXPERIMENTS / "results" / f"{spec}.jsonl").entries
    (line,) = (line for line in lines if line.command == card.command)
    assert (line.commit, line.date, line.epochs) == (card.commit, card.date, card.epochs)
    if not card.name.endswith("-int8"):
        assert line.stored_bytes == card.bytes
    assert round(line.accuracy, 2) == card.torch_accuracy


@pytest.mark.parametrize("card", [card for card in CARDS if card.data == "mnist"], ids=lambda card: card.name)
def test_accuracy_on_the_digits_inside_the_package(card: zoo.Card) -> None:
    """They are 2,000 of the 10,000 test digits that the card speaks of."""
    net = subbit.load(zoo.path(card.name))
    digits = data.load("digits")
    assert net.preprocessing is not None
    mean, std = (
        np.asarray(values, np.float32)[:, None, None] for values in (net.preprocessing.mean, net.preprocessing.std)
    )
    images = (digits.test.images.astype(np.float32) / 255 - mean) / std
    accuracy = 100 * float(np.mean(net.predict(images) == digits.test.labels))
    assert accuracy == pytest.approx(card.accuracy, abs=0.5)


def test_list_and_card(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "zoo")
    assert code == 0
    assert all(card.name in out and f"{card.bytes:,}" in out for card in CARDS)
    code, out, _ = run(capsys, "zoo", "--json")
    assert [entry["name"] for entry in json.loads(out)] == [card.name for card in CARDS]
    card = next(card for card in CARDS if card.name == DIGITS)
    _, out, _ = run(capsys, "zoo", DIGITS)
    assert card.command in out
    assert card.sha256 in out
    _, out, _ = run(capsys, "zoo", DIGITS, "--json")
    assert json.loads(out)["accuracy"] == card.accuracy
    code, _, err = run(capsys, "zoo", "lenet5-mnist-slbf-0.5-0.2")
    assert code == 2
    assert "did you mean 'lenet5-mnist-slbf-0.5-0.25'" in " ".join(err.split())


def test_names_stand_for_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = data.load("digits").test
    Image.fromarray(digits.images[0, 0]).save(tmp_path / "digit.png")
    code, out, _ = run(capsys, "run", DIGITS, str(tmp_path / "digit.png"), "--json", "--top", "1")
    assert code == 0
    assert json.loads(out)[0]["classes"][0]["label"] == str(digits.labels[0])
    _, out, _ = run(capsys, "inspect", DIGITS, "--json")
    assert json.loads(out)["stored_bytes"] == zoo.path(DIGITS).stat().st_size
    code, _, err = run(capsys, "run", "no-such-net", str(tmp_path / "digit.png"))
    assert code == 2
    assert "there is no file 'no-such-net', and the zoo has no network" in " ".join(err.split())
    assert zoo.find("missing.sbit") == Path("missing.sbit")  # looks like a file: the reader says that it is missing


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(DIGITS).write_bytes(b"mine")
    assert zoo.find(DIGITS) == Path(DIGITS)
    with pytest.raises(InputError, match="the zoo has no network"):
        zoo.path("../README")


@pytest.mark.parametrize(("change", "message"), [({"bytes": "many"}, "bytes is 'many'"), ({"seed": None}, "seed is")])
def test_damaged_cards(change: dict[str, object], message: str, tmp_path: Path) -> None:
    card = json.loads(CARDS[0].to_json())
    (tmp_path / "card.json").write_text(json.dumps({**card, **change}), encoding="utf-8")
    with pytest.raises(FormatError, match=message):
        zoo.read_card(tmp_path / "card.json")
    del card["sha256"]
    for text in (json.dumps(card), "{", "[]"):
        (tmp_path / "card.json").write_text(text, encoding="utf-8")
        with pytest.raises(FormatError, match="not a card of the zoo"):
            zoo.read_card(tmp_path / "card.json")


def test_needs_no_torch() -> None:
    load = "import subbit; subbit.load(subbit.zoo.path(subbit.zoo.cards()[0].name))"
    script = f"import sys; sys.modules['torch'] = None; {load}"
    subprocess.run([sys.executable, "-c", script], check=True)

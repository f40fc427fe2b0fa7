"""The zoo: trained networks that come with subbit, each a `.sbit` file and a card that says what it is.

    for card in subbit.zoo.cards():
        print(card.name, card.bytes, card.accuracy)
    net = subbit.load(subbit.zoo.path("lenet5-mnist-slbf-0.5-0.25"))

A card is JSON beside the file, NAME.json: what the network was trained on and how, what it reaches, what made it.
The files lie in zoo/ of a checkout, and beside this module in an installed package. Those in zoo/large, dense networks
that the others are compared with, come with a checkout alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from subbit.errors import FormatError, InputError

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


@dataclass(frozen=True)
class Card:
    """What is known of one network. Accuracies are in percent of the test images."""

    name: str
    title: str  # network and method
    data: str
    accuracy: float  # of the file, run by the core
    torch_accuracy: float  # of the model it was packed from, after the last epoch
    test_images: int
    bytes: int
    ratio: float  # to the network in fp32
    bits_per_weight: float  # of the whole file
    epochs: int
    recipe: str
    seed: int
    command: str  # what trains it again
    commit: str
    date: str  # of the end of training, ISO 8601
    sha256: str  # of the file

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def folder() -> Path:
    """Where the files are."""
    here = Path(__file__).resolve().parent
    checkout = here.parents[2] / "zoo"
    return checkout if checkout.is_dir() else here


def large_folder() -> Path:
    """Where the files are that an installed package comes without; there it does not exist."""
    return folder() / "large"


def cards() -> list[Card]:
    """The cards of all networks, by name."""
    files = (file for place in (folder(), large_folder()) for file in place.glob("*.json"))
    return sorted((read_card(file) for file in files), key=lambda card: card.name)


def best(among: Iterable[Card]) -> list[Card]:
    """Of each data set the networks in fp32 that no smaller one reaches, by size."""
    found: list[Card] = []
    plain = (card for card in among if not card.name.endswith("-int8"))
    for card in sorted(plain, key=lambda card: (card.data, card.bytes, -card.accuracy)):
        if not found or found[-1].data != card.data or found[-1].accuracy < card.accuracy:
            found.append(card)
    return found


def path(name: str) -> Path:
    """The file of the network `name`."""
    if "/" not in name and "\\" not in name:
        for place in (folder(), large_folder()):
            file = place / f"{name}.sbit"
            if file.is_file():
                return file
    raise InputError(f"the zoo has no network {name!r}: {_choices(name)}")


def find(file: str | Path) -> Path:
    """`file` where there is one, else the network of the zoo that has this name."""
    given = Path(file)
    if given.exists() or given.suffix == ".sbit" or given.name != str(file):
        return given  # a missing file is the reader's error to make
    try:
        return path(str(file))
    except InputError as error:
        raise InputError(f"there is no file {str(file)!r}, and {error}") from None


def read_card(file: Path) -> Card:
    """The card in a JSON file, its values checked."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        values = {field.name: content[field.name] for field in fields(Card)}
    except KeyError as error:
        raise FormatError(f"{file} is not a card of the zoo: {error} is missing") from error
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(f"{file} is not a card of the zoo: {error}") from error
    for field in fields(Card):
        if not isinstance(values[field.name], _KINDS[str(field.type)]):
            raise FormatError(f"{file}: {field.name} is {values[field.name]!r}, not of type {field.type}")
    return Card(**values)


def _choices(name: str) -> str:
    from subbit.experiments.spec import nearest

    names = [card.name for card in cards()]
    return nearest(name, names) if names else "this installation came without networks"

"""`subbit zoo`: the trained networks that come with subbit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from subbit import zoo
from subbit.cli.options import JsonOption
from subbit.errors import ConfigError
from subbit.tables import whole_console


def command(
    name: Annotated[str | None, typer.Argument(help="One network: show its card. Without it, list all.")] = None,
    best: Annotated[bool, typer.Option("--best", help="List only those that no smaller one reaches.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the trained networks that come with subbit, or show the card of one.

    Their names stand for their files in `subbit run`, `inspect` and `bench`.
    """
    if name is None:
        cards = zoo.best(zoo.cards()) if best else zoo.cards()
        if as_json:
            typer.echo(json.dumps([_described(card) for card in cards], indent=2, ensure_ascii=False))
        else:
            _print_list(cards)
        return
    if best:
        raise ConfigError(f"zoo {name} --best: one card is shown, or the list of the best")
    card = zoo.read_card(zoo.path(name).with_name(f"{name}.json"))
    if as_json:
        typer.echo(json.dumps(_described(card), indent=2, ensure_ascii=False))
    else:
        _print_card(card)


def _described(card: zoo.Card) -> dict[str, object]:
    return {**asdict(card), "file": str(zoo.path(card.name))}


def _print_list(cards: list[zoo.Card]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("name", "data"):
        table.add_column(heading, no_wrap=True)
    for heading in ("accuracy", "bytes", "ratio", "bits/weight"):
        table.add_column(heading, justify="right", no_wrap=True)
    for card in cards:
        numbers = (f"{card.accuracy:.2f} %", f"{card.bytes:,}", f"{card.ratio:.1f}×", f"{card.bits_per_weight:.3f}")
        table.add_row(card.name, card.data, *numbers)
    console = whole_console(table)  # a name cut short could not be typed
    console.print(table)
    if cards:
        console.print(f"subbit run {cards[0].name} photo.png    subbit zoo {cards[0].name}", style="dim")


def _print_card(card: zoo.Card) -> None:
    lines = {
        "network": card.title,
        "data": card.data,
        "accuracy": f"{card.accuracy:.2f} % of {card.test_images:,} test images (PyTorch {card.torch_accuracy:.2f} %)",
        "size": f"{card.bytes:,} bytes, {card.ratio:.1f}× smaller than fp32, {card.bits_per_weight:.3f} bits a weight",
        "training": f"{card.epochs} epochs, recipe {card.recipe}, seed {card.seed}, ended {card.date}",
        "command": card.command,
        "commit": card.commit,
        "sha256": card.sha256,
        "file": str(zoo.path(card.name)),
    }
    for heading, text in lines.items():
        typer.echo(f"{heading:<10}{text}")

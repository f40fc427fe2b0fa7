"""The command line: one small file per command, imported only when that command runs."""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console

from subbit.errors import SubbitError

# command -> module; each module has a function `command` with typer annotations
COMMANDS = {
    "demo": "subbit.cli.demo",
    "train": "subbit.cli.train",
    "pack": "subbit.cli.pack",
    "inspect": "subbit.cli.inspect",
    "run": "subbit.cli.run",
    "verify": "subbit.cli.verify",
    "bench": "subbit.cli.bench",
    "reproduce": "subbit.cli.reproduce",
    "report": "subbit.cli.report",
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `subbit` script."""
    raise NotImplementedError

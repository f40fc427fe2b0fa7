"""The command line: one small file per command, imported only when that command runs.

A command's module imports typer, rich and the NumPy side of subbit at its top and everything heavier inside its
function, so that `subbit --help` stays quick and works without torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from subbit.errors import MissingDependency, SubbitError

# command -> module; each module has a function `command` with typer annotations
COMMANDS = {
    "demo": "subbit.cli.demo",
    "train": "subbit.cli.train",
    "pack": "subbit.cli.pack",
    "inspect": "subbit.cli.inspect",
    "run": "subbit.cli.run",
    "verify": "subbit.cli.verify",
    "bench": "subbit.cli.bench",
    "zoo": "subbit.cli.zoo",
    "reproduce": "subbit.cli.reproduce",
    "report": "subbit.cli.report",
}

ERROR_EXIT_CODE = 2  # the same as for wrong usage: nothing was done


def build_app(names: Iterable[str] | None = None) -> typer.Typer:
    """The application with the commands `names` (all of them by default)."""
    app = typer.Typer(
        name="subbit",
        help="Convolutional networks far below one bit per weight: compress, train, pack, run.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_global_options)
    for name in available_commands() if names is None else names:
        app.command(name)(importlib.import_module(COMMANDS[name]).command)
    return app


def available_commands() -> list[str]:
    """The commands whose module is part of this installation."""
    return [name for name, module in COMMANDS.items() if importlib.util.find_spec(module) is not None]


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `subbit` script."""
    args = list(sys.argv[1:] if argv is None else argv)
    # Only the command that runs is imported; help, and the suggestion for a misspelt command, need all of them.
    known = available_commands()
    wanted = [args[0]] if args and args[0] in known else known
    try:
        build_app(wanted)(args, prog_name="subbit")
    except SubbitError as error:
        _fail(error)
    except OSError as error:  # a folder that cannot be made, a full disk: nothing that a traceback would explain
        where = f"{error.filename}: " if error.filename is not None else ""
        _fail(SubbitError(f"{where}{error.strerror or error}: choose another place, or make room"))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "subbit":
            raise
        _fail(
            MissingDependency(
                f"subbit {args[0]} needs {error.name}, which is not installed: pip install 'subbit[train]'"
            )
        )


def _print_version(wanted: bool) -> None:
    if wanted:
        from subbit import __version__

        typer.echo(f"subbit {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command; a callback also keeps a single command from replacing the group."""


def _fail(error: SubbitError) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", style="bold red", end=" ")
    console.print(" ".join(str(error).split()), markup=False)
    raise SystemExit(ERROR_EXIT_CODE)

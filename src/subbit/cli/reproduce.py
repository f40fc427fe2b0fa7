"""`subbit reproduce`: one table or figure of the paper, run as far as it is missing, then shown beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from subbit.errors import ConfigError
from subbit.tables import whole_console

if TYPE_CHECKING:
    from subbit.experiments.run import Job
    from subbit.experiments.table import Table


def command(
    name: Annotated[str | None, typer.Argument(help="A spec: mnist, cifar10-vgg16, …, or the path of a .toml.")] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--rows", help="Rows to run: names or globs, separated by commas. May repeat.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Instead of the spec's; shown as such.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Instead of the spec's, e.g. 0,1,2.")] = None,
    data_dir: Annotated[
        str, typer.Option("--data-dir", help="Where data sets are, or are downloaded to; SUBBIT_DATA otherwise.")
    ] = "",
    runs: Annotated[Path, typer.Option("--runs", help="Folder of run folders.")] = Path("runs"),
    results: Annotated[
        Path | None,
        typer.Option("--results", help="Folder of the ledger, instead of results/ beside the spec: measure all anew."),
    ] = None,
    zoo: Annotated[
        Path | None, typer.Option("--zoo", help="Also pack these rows into this folder, each with a card.")
    ] = None,
    list_specs: Annotated[bool, typer.Option("--list", help="List the specs and what is measured of them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print what was measured of these rows as JSON; with --list the specs, with --dry-run the runs.",
        ),
    ] = False,
) -> None:
    """Run the rows of a table that are not measured yet, then print paper and ours side by side.

    A run that was interrupted goes on where it stopped. Results are appended to results/NAME.jsonl beside the spec.
    What is measured there is not run again; --results with a folder of yours runs it again, and shows what you get.
    """
    from subbit.experiments import ledger
    from subbit.experiments.run import all_jobs, missing_jobs, run_job, select_rows
    from subbit.experiments.spec import find_spec, load_spec
    from subbit.experiments.table import build_table, size
    from subbit.experiments.zoo import add_to_zoo

    console = Console(stderr=as_json)
    if list_specs:
        _print_specs(as_json, name)
        return
    if name is None:
        raise ConfigError("which table? give the name of a spec, such as mnist; --list shows all")
    spec = replace(load_spec(find_spec(name)), results=results)
    chosen = select_rows(spec, _split(rows or []))
    jobs = missing_jobs(spec, ledger.read(spec.ledger).entries, chosen, epochs=epochs, seeds=_numbers(seeds))
    if dry_run and as_json:
        typer.echo(json.dumps([_described(job) for job in jobs], indent=1))
        return
    for job in jobs:
        if dry_run:
            console.print(job.command, highlight=False, soft_wrap=True)
        elif entry := run_job(job, runs, data_dir=data_dir, console=console):
            console.print(f"{job.row.label}: {entry.accuracy:.2f} %, {size(entry.stored_bytes)}, {entry.seconds:.0f} s")
    if as_json:
        hashes = {row.name: row.hash for row in chosen}  # a run of another definition is not one of this row
        book = ledger.read(spec.ledger)
        lines = [asdict(entry) for entry in book.entries if hashes.get(entry.row) == entry.row_hash]
        typer.echo(json.dumps(lines, indent=1))
        for message in book.damaged:
            console.print(message, highlight=False, soft_wrap=True)
    else:
        print_table(console, build_table(spec))
    if zoo is not None and not dry_run:
        for job in all_jobs(spec, chosen, epochs=epochs, seeds=_numbers(seeds)):
            for card in add_to_zoo(job, runs, zoo, data_dir=data_dir):
                console.print(f"{zoo / card.name}.sbit: {card.bytes:,} bytes, {card.accuracy:.2f} %", highlight=False)


def _described(job: Job) -> dict[str, str | int]:
    return {"row": job.row.name, "seed": job.seed, "epochs": job.epochs, "command": job.command}


def print_table(console: Console, table: Table) -> None:
    """Paper and ours on the terminal."""
    from subbit.experiments.table import cells, notes

    headers, rows = cells(table)
    shown = RichTable(title=table.spec.title, caption=table.published.place or None, title_justify="left")
    for number, header in enumerate(headers):
        shown.add_column(header, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        shown.add_row(*row)
    whole_console(shown).print(shown)
    for note in notes(table):
        console.print(note, style="dim", highlight=False, soft_wrap=True)


def _print_specs(as_json: bool, name: str | None) -> None:
    from subbit.experiments.spec import all_specs, find_spec, load_spec
    from subbit.experiments.table import build_table

    paths = all_specs() if name is None else [find_spec(name)]
    if not paths:
        find_spec("mnist")  # raises, and says where specs are looked for
    tables = [build_table(load_spec(path)) for path in paths]
    if as_json:
        keys = ("spec", "title", "rows", "measured")
        values = [(table.spec.name, table.spec.title, len(table.rows), len(table.measured)) for table in tables]
        typer.echo(json.dumps([dict(zip(keys, one, strict=True)) for one in values], indent=1))
        return
    shown = RichTable("spec", "what", "in the paper", "rows measured")
    for table in tables:
        shown.add_row(
            table.spec.name,
            table.spec.title,
            table.published.place,
            f"{len(table.measured)} of {len(table.rows)}",
        )
    whole_console(shown).print(shown)


def _split(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _numbers(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        numbers = [int(part) for part in _split([text])]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise ConfigError(f"--seeds {text!r}: give numbers from 0, separated by commas, such as 0,1,2")
    return list(dict.fromkeys(numbers))

"""`subbit report`: paper and ours as one HTML page and Markdown, and the generated tables of documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from subbit.errors import ConfigError


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Specs to show; all of them by default.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html, report.md and figures/.")] = Path(
        "runs/report"
    ),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown, write nothing.")] = False,
    update: Annotated[
        list[Path] | None,
        typer.Option("--update", help="Generate the marked tables and figures of this document anew; may repeat."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --update: change nothing, fail if any is stale.")
    ] = False,
) -> None:
    """Draw tables and figures from everything that was measured.

    A document owns a table by the comments <!-- subbit:table NAME --> and <!-- /subbit:table -->, and a figure by
    <!-- subbit:figure NAME --> on the line above its picture.
    """
    from subbit.experiments.report import marked_figures, replace_tables, write_report
    from subbit.experiments.spec import all_specs, find_spec, load_spec
    from subbit.experiments.table import Table, build_table
    from subbit.experiments.table import markdown as to_markdown

    def table_of(name: str) -> Table:
        return build_table(load_spec(find_spec(name)))

    if check and not update:
        raise ConfigError("--check needs --update FILE: the document to check")
    if update and names:
        raise ConfigError(f"{names[0]} beside --update: write --update in front of each document")
    for document in update or ():
        try:
            text = document.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {document}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{document} is not a text file in UTF-8: give a Markdown document") from error
        if not re.search(r"<!-- subbit:(table|figure|zoo) ", text):
            raise ConfigError(f"{document} has no table or figure of subbit: <!-- subbit:table NAME --> marks one")
        files = {document: replace_tables(text, table_of, str(document))}
        for path, drawing in marked_figures(text, table_of, str(document)).items():
            files[document.parent / path] = drawing
        stale = [file for file, fresh in files.items() if not file.is_file() or file.read_bytes() != fresh.encode()]
        if check and stale:
            raise ConfigError(f"{', '.join(map(str, stale))}: stale; run: subbit report --update {document}")
        for file in stale:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file], encoding="utf-8")
        typer.echo(f"{document}: tables and figures up to date")
    if update:
        return
    paths = [find_spec(name) for name in names] if names else all_specs()
    if not paths:
        find_spec("mnist")  # says where specs are looked for
    tables = [build_table(load_spec(path)) for path in paths]
    if markdown:
        for table in tables:
            typer.echo(f"## {table.spec.title}\n\n{to_markdown(table)}")
        return
    page, text_page = write_report(tables, out)
    typer.echo(f"{page}\n{text_page}")

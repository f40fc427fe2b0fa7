"""The report: one Markdown file with its figures, one HTML page that needs nothing else, and generated tables.

A document owns a table by a pair of comments; what stands between them is replaced:

    <!-- subbit:table mnist -->
    <!-- /subbit:table -->

and the list of the zoo likewise, by `subbit:zoo all`, or by `subbit:zoo best` without networks that smaller ones
reach. A figure, named as in the report, is the file that the line behind its comment shows:

    <!-- subbit:figure mnist -->
    ![Accuracy over bytes](images/mnist.svg)
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from subbit import zoo
from subbit.errors import ConfigError
from subbit.experiments import figures
from subbit.experiments.ledger import Entry
from subbit.experiments.table import Table, cells, duration, markdown, notes, size


@dataclass(frozen=True)
class Picture:
    """A drawing with the name of its file and what it shows."""

    name: str
    caption: str
    svg: str

    @property
    def data(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Section:
    """Everything the report shows of one spec."""

    table: Table
    pictures: tuple[Picture, ...]
    details: tuple[Picture, ...]  # per row: bits of each layer, use of each filter
    missing: tuple[str, ...]  # what cannot be drawn, and why


def write_report(tables: Sequence[Table], folder: Path) -> tuple[Path, Path]:
    """Writes report.html, report.md and figures/*.svg into `folder`; gives the two pages."""
    measured = [build_section(table) for table in tables if table.measured]
    waiting = [table for table in tables if not table.measured]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for section in measured:
        for picture in (*section.pictures, *section.details):
            (folder / "figures" / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    page, text = folder / "report.html", folder / "report.md"
    page.write_text(render_html(measured, waiting), encoding="utf-8")
    text.write_text(render_markdown(measured, waiting), encoding="utf-8")
    return page, text


def main_pictures(table: Table) -> tuple[Picture, ...]:
    """The figure that the spec asks for, and the learning curves."""
    name = table.spec.name
    pictures = []
    if drawing := figures.draw(table):
        pictures.append(Picture(name, f"{table.spec.title}. {_CAPTIONS[table.spec.figure]}", drawing))
    if table.spec.figure != "curves" and (drawing := figures.learning_curves(table)):
        pictures.append(Picture(f"{name}-curves", f"{table.spec.title}. {_CAPTIONS['curves']}", drawing))
    return tuple(pictures)


def build_section(table: Table) -> Section:
    """All pictures of one table."""
    name = table.spec.name
    details: list[Picture] = []
    missing: list[str] = []
    for row, measured in table.measured:
        stem = f"{name}-{row.row.name}"
        details += _picture(
            f"{stem}-bits", f"{row.row.label}: what each layer costs.", figures.layer_bits(row, measured)
        )
        if not measured.last.layers:
            missing.append(f"{row.row.label}: the ledger line has no layers, so their bits cannot be drawn.")
        details += _picture(
            f"{stem}-use",
            f"{row.row.label}: how often each shared filter is used; the line is equal use.",
            figures.filter_use(row, measured),
        )
    return Section(table, main_pictures(table), tuple(details), tuple(missing))


def render_html(sections: Sequence[Section], waiting: Sequence[Table]) -> str:
    """One page, pictures and style inside, nothing loaded from anywhere."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        sections=sections,
        waiting=waiting,
        cells=cells,
        notes=notes,
        environments=environments(section.table for section in sections),
    )


def render_markdown(sections: Sequence[Section], waiting: Sequence[Table]) -> str:
    """The same as the page, with pictures beside it in figures/."""
    parts = ["# subbit: the paper and what was measured\n"]
    for section in sections:
        table = section.table
        parts.append(f"## {table.spec.title}\n")
        if table.published.place:
            parts.append(f"{table.published.place} of the paper: {table.published.caption}.\n")
        if table.published.finding:
            parts.append(f"What the paper found: {table.published.finding}\n")
        parts.append(markdown(table))
        parts += [f"![{p.caption}](figures/{p.name}.svg)\n" for p in (*section.pictures, *section.details)]
        parts += [f"{message}\n" for message in section.missing]
    if waiting:
        parts.append("## Not measured yet\n")
        parts += [f"- {_where(table)}{table.spec.title}: `subbit reproduce {table.spec.name}`" for table in waiting]
        parts.append("")
    parts.append("## How it was measured\n")
    parts += [f"- {line}" for line in environments(section.table for section in sections)]
    return "\n".join(parts) + "\n"


def environments(tables: Iterable[Table]) -> list[str]:
    """The machines, versions and commits behind the numbers shown, each with its runs and hours."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for table in tables:
        for _, measured in table.measured:
            for entry in measured.entries:
                versions = ", ".join(f"{name} {version}" for name, version in sorted(entry.versions.items()))
                commit = (entry.commit[:10] or "no commit") + (" with local changes" if entry.dirty else "")
                key = (entry.cpu, f"{entry.threads} thread{'s' if entry.threads != 1 else ''}", versions, commit)
                groups.setdefault(key, []).append(entry)
    return [
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {duration(sum(run.seconds for run in runs))}: "
        + "; ".join(key)
        for key, runs in groups.items()
    ]


def replace_tables(text: str, table_of: Callable[[str], Table], where: str) -> str:
    """`text` with every marked table generated anew."""
    text = replace_marked(text, "table", lambda name: markdown(table_of(name)), where)
    return replace_marked(text, "zoo", lambda name: zoo_markdown(_zoo_cards(name, where)), where)


def _zoo_cards(name: str, where: str) -> list[zoo.Card]:
    if name not in ("all", "best"):
        raise ConfigError(f"{where}: there is no list {name!r} of the zoo: choose all or best")
    return zoo.cards() if name == "all" else zoo.best(zoo.cards())


def marked_figures(text: str, table_of: Callable[[str], Table], where: str) -> dict[str, str]:
    """The drawings that `text` owns: SVG by the path that the link behind a comment gives."""
    opening = "<!-- subbit:figure "
    marked: list[tuple[str, str]] = re.findall(rf"{opening}([\w.-]+) -->\n!\[[^\]]*\]\((\w[\w./-]*\.svg)\)", text)
    if len(marked) != text.count(opening):
        raise ConfigError(
            f"{where}: behind '{opening}NAME -->' the next line must be the picture, ![what it shows](folder/file.svg)"
        )
    drawn = {}
    for name, path in marked:
        spec = name.removesuffix("-curves")
        pictures = {picture.name: picture.svg for picture in main_pictures(table_of(spec))}
        if name not in pictures:
            raise ConfigError(f"{where}: there is no figure {name!r}: {spec} has {', '.join(pictures) or 'none yet'}")
        drawn[path] = pictures[name]
    return drawn


def zoo_markdown(cards: Iterable[zoo.Card]) -> str:
    """The networks of the zoo, one a line."""
    lines = [
        "| name | data | accuracy | file | ratio to fp32 | bits per weight | epochs |",
        "| --- | --- |" + " ---: |" * 5,
    ]
    for card in cards:
        numbers = (
            f"{card.accuracy:.2f}",
            size(card.bytes),
            f"{card.ratio:.1f}×",
            f"{card.bits_per_weight:.3f}",
            str(card.epochs),
        )
        lines.append(f"| `{card.name}` | {card.data} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def replace_marked(text: str, kind: str, render: Callable[[str], str], where: str) -> str:
    """`text` with what stands between `<!-- subbit:KIND NAME -->` and `<!-- /subbit:KIND -->` rendered anew."""
    opening, closing = f"<!-- subbit:{kind} ", f"<!-- /subbit:{kind} -->"
    marked = re.compile(rf"({opening}([\w.-]+) -->\n)(.*?)({closing})", re.DOTALL)
    opened, closed = text.count(opening), len(marked.findall(text))
    if opened != closed:
        raise ConfigError(
            f"{where}: {opened} tables begin with '{opening}NAME -->' but only {closed} end with '{closing}'; "
            "each marker stands on a line of its own"
        )
    return marked.sub(lambda found: found[1] + "\n" + render(found[2]) + "\n" + found[4], text)


_CAPTIONS = {
    "size": "Accuracy over bytes: hollow marks are published, full ones measured here.",
    "ratio": "Accuracy over the compression ratio by the paper's count.",
    "curves": "Accuracy after each epoch: the line is the mean over seeds, the band their range.",
}


def _picture(name: str, caption: str, svg: str | None) -> list[Picture]:
    return [] if svg is None else [Picture(name, caption, svg)]


def _where(table: Table) -> str:
    return f"{table.published.place}, " if table.published.place else ""

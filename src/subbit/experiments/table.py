"""Paper and ours side by side: spec, published numbers and ledger become rows, and rows become text cells.

The same cells serve the terminal, Markdown, HTML and the README, so a number is formatted in one place.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from subbit.experiments import ledger
from subbit.experiments.ledger import Entry, Ledger
from subbit.experiments.published import PublishedRow, PublishedTable, published_for
from subbit.experiments.spec import Row, Spec

NONE = "–"
ALIKE = 1.25  # shares of the spec's epochs that may be compared


@dataclass(frozen=True)
class Measured:
    """Runs of one row with equally many epochs, one per seed."""

    entries: tuple[Entry, ...]
    spec_epochs: int

    @property
    def epochs(self) -> int:
        return self.entries[0].epochs

    @property
    def share(self) -> float:
        """The part of the spec's epochs that was run."""
        return self.epochs / self.spec_epochs

    @property
    def seeds(self) -> int:
        return len(self.entries)

    @property
    def accuracy(self) -> float:
        """Mean test accuracy over the seeds."""
        return statistics.fmean(entry.accuracy for entry in self.entries)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; None for one seed."""
        return statistics.stdev(entry.accuracy for entry in self.entries) if self.seeds > 1 else None

    @property
    def epochs_note(self) -> str:
        """Says so where not as many epochs were run as the spec asks for."""
        if self.epochs < self.spec_epochs:
            return f"{self.epochs} of {self.spec_epochs} epochs"
        return f"{self.epochs} epochs instead of {self.spec_epochs}" if self.epochs > self.spec_epochs else ""

    @property
    def last(self) -> Entry:
        """The run that sizes and layers are read from (they differ between seeds by unused filters at most)."""
        return self.entries[-1]


@dataclass(frozen=True)
class TableRow:
    row: Row
    published: PublishedRow | None
    lengths: tuple[Measured, ...]  # the shortest training first
    outdated: int  # ledger lines of this row under another definition, which are not shown

    @property
    def measured(self) -> Measured | None:
        """What is shown: the runs with the spec's epochs, else those with the most."""
        exact = tuple(runs for runs in self.lengths if runs.epochs == self.row.epochs)
        found = exact or self.lengths
        return found[-1] if found else None


@dataclass(frozen=True)
class Table:
    spec: Spec
    published: PublishedTable
    rows: tuple[TableRow, ...]
    damaged: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[tuple[TableRow, Measured], ...]:
        return tuple((row, row.measured) for row in self.rows if row.measured is not None)


def build_table(spec: Spec, entries: Ledger | None = None) -> Table:
    """The table of a spec; the ledger beside the spec unless one is given."""
    book = ledger.read(spec.ledger) if entries is None else entries
    published = published_for(spec)
    rows = tuple(
        TableRow(
            row=row,
            published=published.rows.get(row.published),
            lengths=_lengths(row, book.entries),
            outdated=sum(entry.row == row.name and entry.row_hash != row.hash for entry in book.entries),
        )
        for row in spec.rows
    )
    return Table(spec, published, rows, book.damaged)


def notes(table: Table) -> list[str]:
    """What a reader of the table must know: shortened rows, other lengths, several seeds, old and damaged lines."""
    found: list[str] = []
    other: dict[str, list[str]] = {}
    for row, measured in table.measured:
        if measured.epochs_note:
            other.setdefault(measured.epochs_note, []).append(row.row.label)
    found += [f"Run with {note}: {'; '.join(labels)}." for note, labels in other.items()]
    found += [_lengths_note(row) for row in table.rows if len(row.lengths) > 1]
    if any(m.seeds > 1 for _, m in table.measured):
        found.append("± is the sample standard deviation over seeds; their number is in brackets.")
    found += [
        f"{row.row.label}: {row.outdated} older measurement{'s' if row.outdated > 1 else ''} of another definition "
        "of this row not shown."
        for row in table.rows
        if row.outdated
    ]
    if table.spec.note:
        found.append(table.spec.note)
    return [*found, *table.damaged]


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text; columns that would be empty are left out."""
    columns: list[tuple[str, list[str]]] = [
        ("network", [row.row.label for row in table.rows]),
        ("ratio, paper", [_published_ratio(row.published) for row in table.rows]),
    ]
    networks = list(dict.fromkeys(n for row in table.rows if row.published for n in row.published.recount))
    for network in networks:
        header = f"recounted, {network}" if len(networks) > 1 else "recounted"
        columns.append((header, [_recount(row.published, network) for row in table.rows]))
    if not networks:
        columns.append(
            ("recounted", [ratio(row.measured.last.paper_ratio) if row.measured else NONE for row in table.rows])
        )
    columns += [
        ("file", [size(row.measured.last.stored_bytes) if row.measured else NONE for row in table.rows]),
        ("ratio, file", [ratio(row.measured.last.ratio) if row.measured else NONE for row in table.rows]),
        ("accuracy, paper", [_published_accuracy(row.published, table.spec.column) for row in table.rows]),
        ("accuracy, ours", [accuracy(row.measured) for row in table.rows]),
    ]
    columns += _comparison(table)
    kept = [column for column in columns if any(cell != NONE for cell in column[1]) or column[0] == "accuracy, ours"]
    return [header for header, _ in kept], [list(line) for line in zip(*(column for _, column in kept), strict=True)]


def _comparison(table: Table) -> list[tuple[str, list[str]]]:
    """How far each row stays behind the baseline, and what both took: where the spec names a baseline."""
    baseline = next((row for row in table.rows if row.row.name == table.spec.baseline), None)
    if baseline is None:
        return []

    def paper(row: TableRow) -> str:
        column, found = table.spec.column, (baseline.published, row.published)
        numbers = [one.accuracy[column] for one in found if one and column in one.accuracy]
        return f"{numbers[0] - numbers[1]:.2f}" if len(numbers) == 2 and found[0] is not found[1] else NONE

    def ours(row: TableRow) -> str:
        pair = None if row is baseline else _alike(baseline, row)
        if pair is None:
            return NONE
        other, measured = pair
        shown = other is baseline.measured and measured is row.measured
        note = "" if shown else f", {measured.epochs} and {other.epochs} epochs"
        return f"{other.accuracy - measured.accuracy:.2f}{note}"

    return [
        ("points behind, paper", [paper(row) for row in table.rows]),
        ("points behind, ours", [ours(row) for row in table.rows]),
        ("training", [_training(row.measured) for row in table.rows]),
    ]


def _alike(baseline: TableRow, row: TableRow) -> tuple[Measured, Measured] | None:
    """Runs of both that had about the same part of their epochs: the one that is shown, else the longest."""
    for measured in sorted(row.lengths, key=lambda runs: (runs is row.measured, runs.epochs), reverse=True):
        other = min(baseline.lengths, key=lambda runs: abs(math.log(runs.share / measured.share)), default=None)
        if other is not None and 1 / ALIKE <= measured.share / other.share <= ALIKE:
            return other, measured
    return None


def _training(measured: Measured | None) -> str:
    """What one run took; the seconds of a run include pauses of the machine."""
    if measured is None:
        return NONE
    entry = measured.last
    return f"{duration(entry.seconds)}, {entry.threads} thread{'s' if entry.threads != 1 else ''}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def markdown(table: Table) -> str:
    """The table and its notes as Markdown."""
    headers, rows = cells(table)
    lines = [_line(headers), _line(["---"] + ["---:"] * (len(headers) - 1)), *map(_line, rows)]
    return "\n".join([*lines, *(f"\n{note}" for note in notes(table))]) + "\n"


def accuracy(measured: Measured | None) -> str:
    """99.27 ± 0.03 (3), with the epochs where they fell short."""
    if measured is None:
        return NONE
    spread = "" if measured.spread is None else f" ± {measured.spread:.2f} ({measured.seeds})"
    epochs = f", {measured.epochs_note}" if measured.epochs_note else ""
    return f"{measured.accuracy:.2f}{spread}{epochs}"


def ratio(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.1f}×" if value < 1000 else f"{value:.0f}×"


def size(count: int) -> str:
    """Bytes in the unit that leaves three or four digits."""
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.2f} MB"


def forecast(lengths: Sequence[Measured], epochs: int) -> float | None:
    """Accuracy after so many epochs, if the error goes on falling as a power of them; three lengths must show that."""
    if len(lengths) < 3 or any(runs.accuracy >= 100 for runs in lengths):
        return None
    slope, intercept = statistics.linear_regression(
        [math.log(runs.epochs) for runs in lengths], [math.log(100 - runs.accuracy) for runs in lengths]
    )
    return 100 - math.exp(intercept + slope * math.log(epochs)) if slope < 0 else None


def _lengths(row: Row, entries: Iterable[Entry]) -> tuple[Measured, ...]:
    by_epochs: dict[int, dict[int, Entry]] = {}
    for entry in entries:
        if entry.row == row.name and entry.row_hash == row.hash:
            by_epochs.setdefault(entry.epochs, {})[entry.seed] = entry  # the latest line of each seed
    runs = (tuple(by_epochs[epochs][seed] for seed in sorted(by_epochs[epochs])) for epochs in sorted(by_epochs))
    return tuple(Measured(entries, row.epochs) for entries in runs)


def _lengths_note(row: TableRow) -> str:
    accuracies = ", ".join(f"{runs.accuracy:.2f} % after {runs.epochs}" for runs in row.lengths)
    note = f"{row.row.label} by epochs: {accuracies}."
    shorter = [runs for runs in row.lengths if runs.epochs < row.row.epochs]
    expected = forecast(shorter, row.row.epochs)
    if expected is None:
        return note
    if len(shorter) == len(row.lengths):
        return f"{note} If the error goes on falling as a power of the epochs, {row.row.epochs} give {expected:.1f} %."
    return f"{note} The shorter ones, with an error that falls as a power of them, had promised {expected:.1f} %."


def _published_ratio(row: PublishedRow | None) -> str:
    if row is None:
        return NONE
    return ("~" if row.about else "") + f"{row.ratio:g}×"


def _recount(row: PublishedRow | None, network: str) -> str:
    return f"{row.recount[network]:.2f}×" if row and network in row.recount else NONE


def _published_accuracy(row: PublishedRow | None, column: str) -> str:
    return f"{row.accuracy[column]:.2f}" if row and column in row.accuracy else NONE


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"

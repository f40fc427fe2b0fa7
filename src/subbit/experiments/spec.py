"""A spec: one table or figure of the paper as data.

    title = "LeNet-5 on MNIST"
    figure = "size"                     # accuracy over bytes; "curves": over epochs; "ratio": over the paper's ratio
    seeds = [0]
    published = { table = "lenet5", column = "mnist" }

    [settings]                          # what all rows share: any field of the training settings
    model = "lenet5"
    data = "mnist"
    epochs = 20

    [[rows]]
    name = "slbf-1-0.25"
    label = "SLBF (1, 1/4)"
    seeds = [0, 1, 2]                   # instead of the spec's
    settings = { method = "slbf", f1 = "1/1", f2 = "1/4" }

`inputs = { teacher = "dense" }` in a row means: the setting `teacher` is the run folder of the row `dense` (above
this one) with the same seed, or with that row's first seed where it has no such seed; that row is run first.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from subbit.errors import ConfigError
from subbit.train.settings import Settings, read_config

FigureKind = Literal["size", "curves", "ratio"]

_SPEC_KEYS = ("title", "figure", "seeds", "published", "settings", "rows", "baseline", "note")
_ROW_KEYS = ("name", "label", "series", "seeds", "settings", "inputs", "published")
_PUBLISHED_KEYS = ("table", "column")
# Any training setting but the seed, which is the runner's, and what changes no result (folders, logging).
_SETTINGS_KEYS = tuple(f.name for f in fields(Settings) if f.metadata["run"] and f.name != "seed")
PACKAGED = Path(__file__).resolve().parent / "specs"  # where a wheel has the specs of the paper
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True)
class Row:
    """One row of a table, or one curve of a figure, with all settings merged."""

    name: str
    label: str
    series: str  # rows of one series share a colour and a line; by default the label up to " ("
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]  # as the spec gives them
    epochs: int
    inputs: Mapping[str, str]  # setting -> row whose run folder it gets
    published: str  # row of the published table to stand beside
    hash: str  # of everything that defines the row except its epochs

    def resolve(self, **changes: Any) -> Settings:
        """The training settings of this row: what the spec gives, the rest from the recipe."""
        return Settings.resolve({**self.settings, **changes})


@dataclass(frozen=True)
class Spec:
    """One table or figure."""

    name: str
    title: str
    figure: FigureKind
    table: str  # in published.toml
    column: str
    rows: tuple[Row, ...]
    path: Path = field(compare=False)
    baseline: str = ""  # the row that others are compared with, each at its budget
    note: str = ""
    results: Path | None = field(default=None, compare=False)  # another folder for the ledger

    @property
    def ledger(self) -> Path:
        """Where measurements are kept: results/ beside the spec, or in ./experiments for specs of the package."""
        folder = Path("experiments") if self.path.parent == PACKAGED else self.path.parent
        return (self.results or folder / "results") / f"{self.name}.jsonl"

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(f"{self.path}: no row {name!r}; {nearest(name, [row.name for row in self.rows])}")


def load_spec(path: Path) -> Spec:
    """The spec in `path`; unknown keys, missing ones and impossible values are errors."""
    content = read_config(path)
    check_keys(str(path), content, _SPEC_KEYS)
    common = _table(path, "settings", content.get("settings", {}))
    published = _table(path, "published", content.get("published", {}))
    check_keys(f"{path}, published", published, _PUBLISHED_KEYS)
    figure = content.get("figure", "size")
    if figure not in get_args(FigureKind):
        raise ConfigError(f"{path}: figure is {figure!r}; allowed are {', '.join(get_args(FigureKind))}")
    entries = content.get("rows", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path}: a spec needs at least one [[rows]] table")
    seeds = _seeds(path, content.get("seeds", [0]))
    rows: list[Row] = []
    for entry in entries:
        row = _row(path, entry, common, seeds, rows)
        if any(row.name == other.name for other in rows):
            raise ConfigError(f"{path}: two rows are named {row.name!r}; row names must differ")
        rows.append(row)
    baseline = _text(path, "baseline", content.get("baseline", ""))
    if baseline and baseline not in (row.name for row in rows):
        raise ConfigError(f"{path}: baseline is {baseline!r}; {nearest(baseline, [row.name for row in rows])}")
    return Spec(
        name=path.stem,
        title=_text(path, "title", content.get("title", path.stem)),
        figure=cast(FigureKind, figure),
        table=_text(path, "published.table", published.get("table", "")),
        column=_text(path, "published.column", published.get("column", "")),
        rows=tuple(rows),
        path=path,
        baseline=baseline,
        note=_text(path, "note", content.get("note", "")),
    )


def spec_folders() -> list[Path]:
    """Where specs are looked for by name: ./experiments, the checkout of an editable install, then the package."""
    checkout = Path(__file__).resolve().parents[3] / "experiments"
    here = Path("experiments")
    return [here, PACKAGED] if here.resolve() == checkout else [here, checkout, PACKAGED]


def find_spec(name: str) -> Path:
    """The file of the spec `name`, which may also be a path ending in .toml."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"there is no spec {name}: give the path of a .toml file, or a name such as mnist")
        return Path(name)
    for folder in spec_folders():
        if (path := folder / f"{name}.toml").is_file():
            return path
    known = [path.stem for path in all_specs()]
    if not known:
        raise ConfigError(
            f"no spec {name!r}: there is no ./experiments here, and this installation came without specs; "
            "run it in a checkout of subbit, or give the path of a .toml file"
        )
    raise ConfigError(f"no spec {name!r}: {nearest(name, known)}")


def all_specs() -> list[Path]:
    """Every spec of the first folder that has any, in alphabetical order."""
    for folder in spec_folders():
        found = sorted(path for path in folder.glob("*.toml") if path.name != "published.toml")
        if found:
            return found
    return []


def check_keys(where: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises for the first key that is not allowed, naming the nearest one that is."""
    names = list(allowed)
    for key in given:
        if key not in names:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, names)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the likely intention, then all that is allowed."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed are {', '.join(names)}"


def _row(
    path: Path, entry: Mapping[str, Any], common: Mapping[str, Any], seeds: tuple[int, ...], before: list[Row]
) -> Row:
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{path}: row name {name!r} must be made of a-z, 0-9, '.' and '-'")
    where = f"{path}, row {name}"
    check_keys(where, entry, _ROW_KEYS)
    own = _table(path, f"settings of {name}", entry.get("settings", {}))
    settings = {**common, **own}
    check_keys(f"{where}, settings", settings, _SETTINGS_KEYS)
    try:
        resolved = Settings.resolve(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    inputs = _table(path, f"inputs of {name}", entry.get("inputs", {}))
    check_keys(f"{where}, inputs", inputs, _SETTINGS_KEYS)
    check_keys(f"{where}, inputs", inputs.values(), [row.name for row in before])  # rows above this one
    label = _text(path, "label", entry.get("label", name))
    return Row(
        name=name,
        label=label,
        series=_text(path, "series", entry.get("series", label.partition(" (")[0])),
        seeds=_seeds(path, entry["seeds"]) if "seeds" in entry else seeds,
        settings=settings,
        epochs=resolved.epochs,
        inputs=inputs,
        published=_text(path, "published", entry.get("published", name)),
        hash=_hash(
            resolved, {key: next(row.hash for row in before if row.name == value) for key, value in inputs.items()}
        ),
    )


def _hash(settings: Settings, inputs: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits over what defines the result: a retuned recipe makes another row.

    Epochs and seed stand beside the hash in the ledger. Values at their default are left out, so that a setting
    which is added later leaves the old rows what they were.
    """
    left_out = ("epochs", "seed", "recipe", "test_each_epoch", "threads", "accelerator", "devices", "nodes")
    plain = Settings().to_dict()
    defining = {
        key: value
        for key, value in settings.to_dict().items()
        if key in _SETTINGS_KEYS and key not in left_out and value != plain[key]
    }
    # What a default may become later must not matter for the names of things.
    defining |= {"model": settings.model, "data": settings.data, "method": settings.method}
    return hashlib.sha256(json.dumps([defining, dict(inputs)], sort_keys=True).encode()).hexdigest()[:12]


def _seeds(path: Path, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(seed) is int and seed >= 0 for seed in value):
        raise ConfigError(f"{path}: seeds must be a list of numbers from 0, such as [0, 1, 2], not {value!r}")
    if len(set(value)) != len(value):
        raise ConfigError(f"{path}: seeds {value} has a seed twice")
    return tuple(value)


def _table(path: Path, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} must be a table, not {value!r}")
    return value


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key} must be text, not {value!r}")
    return value

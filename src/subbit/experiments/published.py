"""The numbers printed in the paper, each with its place in it, read from published.toml beside the specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subbit.errors import ConfigError
from subbit.experiments.spec import Spec, check_keys, nearest
from subbit.train.settings import read_config

_TABLE_KEYS = ("place", "caption", "finding", "convolution_weights", "rows")
_ROW_KEYS = ("label", "place", "ratio", "about", "recount")
COLUMNS = ("cifar10", "cifar100", "mnist")


@dataclass(frozen=True)
class PublishedRow:
    """One printed row: its label and ratio, and the accuracy (percent) of each data set."""

    label: str
    place: str
    ratio: float
    about: bool  # printed with "~"
    accuracy: Mapping[str, float]
    recount: Mapping[str, float]  # network -> ratio by the paper's rule


@dataclass(frozen=True)
class PublishedTable:
    """One table or figure of the paper."""

    place: str
    caption: str
    finding: str  # what the text says about a figure without numbers
    convolution_weights: int  # of the network whose ratios are printed; 0: not known
    rows: Mapping[str, PublishedRow]


NOTHING = PublishedTable(place="", caption="", finding="", convolution_weights=0, rows={})


def load_published(path: Path) -> dict[str, PublishedTable]:
    """All tables of a published.toml."""
    content = read_config(path)
    check_keys(str(path), content, ("paper", "tables"))
    return {name: _table(f"{path}, {name}", table) for name, table in content.get("tables", {}).items()}


def published_for(spec: Spec) -> PublishedTable:
    """The published table that a spec stands beside; `NOTHING` for a spec that names none."""
    if not spec.table:
        return NOTHING
    path = spec.path.parent / "published.toml"
    tables = load_published(path)
    if spec.table not in tables:
        raise ConfigError(f"{spec.path}: {path} has no table {spec.table!r}; {nearest(spec.table, tables)}")
    return tables[spec.table]


def _table(where: str, content: Mapping[str, Any]) -> PublishedTable:
    check_keys(where, content, _TABLE_KEYS)
    if "place" not in content:
        raise ConfigError(f"{where}: place is missing; say which table or figure of the paper this is")
    place = str(content["place"])
    rows = {name: _row(f"{where}, {name}", row, place) for name, row in content.get("rows", {}).items()}
    return PublishedTable(
        place=place,
        caption=str(content.get("caption", "")),
        finding=str(content.get("finding", "")),
        convolution_weights=int(content.get("convolution_weights", 0)),
        rows=rows,
    )


def _row(where: str, content: Mapping[str, Any], place: str) -> PublishedRow:
    check_keys(where, content, (*_ROW_KEYS, *COLUMNS))
    try:
        return PublishedRow(
            label=str(content["label"]),
            place=str(content.get("place", place)),
            ratio=float(content["ratio"]),
            about=bool(content.get("about", False)),
            accuracy={column: float(content[column]) for column in COLUMNS if column in content},
            recount={network: float(ratio) for network, ratio in content.get("recount", {}).items()},
        )
    except KeyError as error:
        raise ConfigError(f"{where}: {error.args[0]} is missing") from error

"""Small pieces of real data and settings that train in a second, for the tests of training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from subbit.data import DataSet, Part, load_digits
from subbit.train import Settings


@cache
def digits(train: int = 320, test: int = 100) -> DataSet:
    """The first of the packaged digits."""
    whole = load_digits()
    return DataSet.of(
        "tiny",
        Part(whole.train.images[:train], whole.train.labels[:train]),
        Part(whole.test.images[:test], whole.test.labels[:test]),
        whole.classes,
    )


def settings(**changes: Any) -> Settings:
    """SLBF (1, 1/8) of LeNet-5, two epochs of ten steps, one thread."""
    usual: dict[str, Any] = {
        "data": "mnist",
        "f1": 1,
        "f2": "1/8",
        "epochs": 2,
        "lr": 2e-3,
        "batch": 32,
        "threads": 1,
        "log_every": 1,
    }
    if changes.get("method") not in (None, "slbf", "legonet"):
        del usual["f1"], usual["f2"]
    return Settings.resolve({**usual, **changes})


def write_idx_files(folder: Path, data: DataSet) -> None:
    """`data` as the four files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("train", data.train), ("t10k", data.test)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(part.images[:, 0]))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(part.labels.astype(np.uint8)))


def idx_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """The idx form of an array of bytes."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(extent.to_bytes(4, "big") for extent in values.shape)
    return header + values.tobytes()

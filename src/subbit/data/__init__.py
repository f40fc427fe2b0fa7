"""Data sets in memory, without torch: the standard ones, a folder of images, and the digits inside the package.

data = subbit.data.load("digits")                       # always there
data = subbit.data.load("cifar10", "~/data")            # standard files; downloaded if absent
data = subbit.data.load("photos/", image_size=64)       # one subfolder per class
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from subbit.data.dataset import DataSet, Part
from subbit.data.digits import load_digits
from subbit.data.folder import load_folder
from subbit.data.sources import SOURCES, data_folder, load_standard
from subbit.errors import DataError

__all__ = ["NAMES", "DataSet", "Part", "data_folder", "load", "load_digits", "load_folder"]

NAMES = ("digits", *SOURCES)


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    image_size: int = 32,
    seed: int = 0,
    download: bool = True,
) -> DataSet:
    """The data set of this name, or the folder of images at this path.

    `image_size` and `seed` (for the split into training and test images) matter for folders only.
    """
    if name == "digits":
        return load_digits()
    if name in SOURCES:
        return load_standard(name, data_folder(data_dir), download=download)
    if Path(name).expanduser().is_dir():
        return load_folder(Path(name).expanduser(), size=image_size, seed=seed)
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"no data set {name!r}: {hint}choose from {', '.join(NAMES)}, or give a folder of images")

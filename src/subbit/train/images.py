"""Images of a data set as a trained network takes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from subbit.errors import ConfigError

if TYPE_CHECKING:
    from subbit.records import Float32
    from subbit.train.build import Run


def images_of(
    run: Run, part: Literal["train", "test"], count: int, name: str = "", folder: Path | None = None
) -> Float32:
    """`count` images, normalised as the run was: of its own data set, or of the one called `name`.

    Test images are the first ones; training images are spread over all of them, since folders are sorted by class.
    """
    from subbit.data import load

    where = folder if folder is not None else getattr(run.settings, "data_dir", None)
    data = load(name or run.settings.data, where, image_size=run.settings.image_size, seed=run.settings.seed)
    if data.shape != run.shape:
        raise ConfigError(f"{data.name} has images of shape {data.shape}, but the network takes {run.shape}")
    pictures = data.train.images if part == "train" else data.test.images
    step = max(1, len(pictures) // count) if part == "train" else 1
    scaled = pictures[::step][:count].astype(np.float32) / 255
    return np.asarray((scaled - run.mean[:, None, None]) / run.std[:, None, None], np.float32)

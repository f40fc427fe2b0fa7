"""Pictures as inputs, the way the file's preprocessing says. Needs Pillow, which is imported only here."""

from __future__ import annotations

import os

import numpy as np

from subbit.errors import InputError
from subbit.records import Float32, Preprocessing

_MODES = {1: "L", 3: "RGB"}  # Pillow's names by number of channels


def read_picture(path: str | os.PathLike[str], preprocessing: Preprocessing) -> Float32:
    """A picture file as an input (C, H, W): upright, scaled to cover the size, its centre cut out, normalised.

    The same as image folders get when a network is trained on them.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels = len(preprocessing.mean)
    if channels not in _MODES:
        raise InputError(f"the network takes {channels} channels: pictures have 1 (grey) or 3 (RGB)")
    height, width = preprocessing.size
    try:
        with Image.open(os.fspath(path)) as picture:
            upright = ImageOps.exif_transpose(picture).convert(_MODES[channels])
    except UnidentifiedImageError as error:
        raise InputError(f"{os.fspath(path)!r} is not a picture that Pillow can read") from error
    except OSError as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error.strerror or error}") from error
    fitted = ImageOps.fit(upright, (width, height), method=Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted, dtype=np.float32).reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255)
    mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    return np.ascontiguousarray((pixels - mean) / std, dtype=np.float32)

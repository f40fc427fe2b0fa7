"""The digits inside the package: a fixed, class-balanced subset of the real MNIST, for trying everything offline."""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np

from subbit.data.dataset import DataSet, Part


def load_digits() -> DataSet:
    """12,000 training and 2,000 test digits; see digits.md beside this file for where they come from."""
    packed = files("subbit.data").joinpath("digits.npz").read_bytes()
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        train = Part(arrays["train_images"][:, None], arrays["train_labels"].astype(np.int64))
        test = Part(arrays["test_images"][:, None], arrays["test_labels"].astype(np.int64))
    return DataSet.of("digits", train, test, tuple("0123456789"))

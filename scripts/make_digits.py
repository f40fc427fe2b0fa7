"""Makes src/subbit/data/digits.npz from the standard files of MNIST: python scripts/make_digits.py FOLDER

The first 1,200 images of each digit in the training file and the first 200 in the test file, in the order in
which the files have them. Nothing is drawn at random, so the same files give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from subbit.data import load
from subbit.data.dataset import Part

TARGET = Path(__file__).resolve().parents[1] / "src" / "subbit" / "data" / "digits.npz"
TRAIN_PER_DIGIT, TEST_PER_DIGIT = 1200, 200
LIMIT = 3_000_000  # bytes; it ships in every wheel


def first_of_each(part: Part, count: int) -> Part:
    """The first `count` images of every class, in the order of the file."""
    index = np.sort(np.concatenate([np.flatnonzero(part.labels == digit)[:count] for digit in range(10)]))
    return part.take(index)


def main(folder: str) -> None:
    mnist = load("mnist", folder, download=False)
    train, test = first_of_each(mnist.train, TRAIN_PER_DIGIT), first_of_each(mnist.test, TEST_PER_DIGIT)
    np.savez_compressed(
        TARGET,
        train_images=train.images[:, 0],
        train_labels=train.labels.astype(np.uint8),
        test_images=test.images[:, 0],
        test_labels=test.labels.astype(np.uint8),
    )
    size = TARGET.stat().st_size
    print(f"{TARGET}: {len(train)} training and {len(test)} test digits, {size} bytes")
    if size > LIMIT:
        raise SystemExit(f"more than {LIMIT} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])

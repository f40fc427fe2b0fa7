"""A data set in memory: images stay uint8 until a batch is made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from subbit.errors import DataError

UInt8 = NDArray[np.uint8]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Images (N, C, H, W) as uint8 and their labels (N,) as int64."""

    images: UInt8
    labels: Int64

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Int64) -> Part:
        return Part(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test images, the names of the classes, and the statistics to normalise with.

        data = subbit.data.load("digits")
        data.train.images.shape         # (12000, 1, 28, 28)
        x = (data.test.images / 255 - data.mean[:, None, None]) / data.std[:, None, None]

    `mean` and `std` are per channel, of pixels scaled to 0..1, over the training images.
    """

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    validation: Part | None = None

    @classmethod
    def of(cls, name: str, train: Part, test: Part, classes: tuple[str, ...]) -> DataSet:
        """A data set whose parts are checked against each other, with statistics of its training images."""
        for part, what in ((train, "training"), (test, "test")):
            _check_part(part, f"{what} images of {name}", len(classes))
        if train.images.shape[1:] != test.images.shape[1:]:
            raise DataError(
                f"{name}: training images are {train.images.shape[1:]}, test images {test.images.shape[1:]}; "
                "both must have one shape"
            )
        mean, std = _statistics(train.images)
        return cls(name, _owned(train), _owned(test), classes, mean, std)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: (C, H, W)."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    def hold_out(self, share: float, seed: int) -> DataSet:
        """The same data with `share` of each class's training images as validation part, drawn by `seed`.

        The statistics stay those of all training images: a choice made on the validation part then holds for a
        final run on all of them.
        """
        if not 0 < share < 1:
            raise DataError(f"the validation share is {share}: it must lie between 0 and 1")
        random = np.random.default_rng([seed, 0x5EED])
        held = np.zeros(len(self.train), dtype=bool)
        for label in range(len(self.classes)):
            members = np.flatnonzero(self.train.labels == label)
            held[random.permutation(members)[: round(share * len(members))]] = True
        if not held.any() or held.all():
            raise DataError(f"{self.name}: a share of {share} leaves no training or no validation images")
        order = np.arange(len(self.train))
        return replace(self, train=self.train.take(order[~held]), validation=self.train.take(order[held]))


def _owned(part: Part) -> Part:
    """Arrays of the usual memory order that may be written to, as torch wants them."""
    return Part(np.require(part.images, requirements=["C", "W"]), np.require(part.labels, requirements=["C", "W"]))


def _check_part(part: Part, what: str, classes: int) -> None:
    if part.images.ndim != 4 or part.images.dtype != np.uint8 or not len(part):
        raise DataError(f"{what}: expected a non-empty uint8 array (N, C, H, W), got {part.images.shape}")
    if part.labels.shape != (len(part),):
        raise DataError(f"{what}: {len(part)} images but labels of shape {part.labels.shape}")
    if part.labels.min() < 0 or part.labels.max() >= classes:
        raise DataError(
            f"{what}: labels run from {part.labels.min()} to {part.labels.max()}, but there are {classes} classes"
        )


def _statistics(images: UInt8) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    # From histograms: exact in integers, and no float copy of the whole set.
    levels = np.arange(256, dtype=np.float64)
    mean, std = [], []
    for channel in range(images.shape[1]):
        chunks = (images[start : start + 1000, channel] for start in range(0, len(images), 1000))
        counts = np.sum([np.bincount(chunk.ravel(), minlength=256) for chunk in chunks], axis=0)
        average = (counts @ levels) / counts.sum()
        variance = (counts @ (levels - average) ** 2) / counts.sum()
        mean.append(average / 255)
        std.append(max(variance**0.5 / 255, 1e-3))  # a constant channel is left as it is
    return np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)

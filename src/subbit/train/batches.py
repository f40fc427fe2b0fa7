"""Batches of a training run as a pure function of (seed, epoch, step), and plain batches to evaluate on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from subbit.data.augment import Augmentation, derive
from subbit.data.dataset import DataSet, Part
from subbit.errors import ConfigError
from subbit.train.settings import Settings

Batch = tuple[Tensor, Tensor, Tensor]  # images, labels, and the images in full size, for teachers

EVALUATION_BATCH = 500
_SIZE_STEP = 8  # pixels between two resolutions: few, so that statistics settle between them


class Normalise:
    """uint8 images to float32 of mean 0 and variance 1 per channel."""

    def __init__(self, data: DataSet) -> None:
        # (x/255 - mean)/std = x·slope + offset
        std = torch.from_numpy(data.std)
        self.slope = (1 / (255 * std)).view(-1, 1, 1)
        self.offset = (-torch.from_numpy(data.mean) / std).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.slope.to(images.device)).add_(self.offset.to(images.device))


class Sizes:
    """The course of the resolution: from `start_size` up to the full size in steps of 8 pixels of equal duration.

    Small images are cheap, and early on a network learns as much from them. A place beyond the end of the training
    has the full size too.
    """

    def __init__(self, settings: Settings, full: tuple[int, int]) -> None:
        side = min(full)
        if settings.start_size > side:
            raise ConfigError(f"start_size is {settings.start_size}, more than the {side} pixels of the images")
        smaller = range(settings.start_size, side, _SIZE_STEP) if settings.start_size else range(0)
        self.full, self.grown = full, settings.grown
        self.smaller = [(round(full[0] * now / side), round(full[1] * now / side)) for now in smaller]

    def at(self, progress: float) -> tuple[int, int]:
        """Height and width at this share of the training."""
        if not self.smaller or progress >= self.grown:
            return self.full
        return self.smaller[int(progress / self.grown * len(self.smaller))]


class Batches:
    """The training batches from a given epoch and step on: one iteration is (the rest of) one epoch.

    Every process takes its part of the same global batches. The last images of an epoch that do not fill a batch
    are left out; the next epoch has another order. Iterating again goes on with the next epoch.
    """

    def __init__(self, data: DataSet, settings: Settings, *, rank: int = 0, world: int = 1) -> None:
        self.settings = settings
        self.images = torch.from_numpy(data.train.images)
        self.labels = torch.from_numpy(data.train.labels)
        self.normalise = Normalise(data)
        self.augmentation = Augmentation(
            shift=settings.shift,
            fill=cast("Literal['zero', 'reflect']", settings.shift_fill),
            flip=settings.flip,
            cutout=settings.cutout,
            rotate=settings.rotate,
            zoom=settings.zoom,
        )
        random = torch.Generator().manual_seed(derive(settings.seed, "first flips"))
        self.first_flips = torch.randint(0, 2, (len(self.images),), generator=random).bool()
        self.rank, self.world = rank, world
        self.epoch, self.step = 0, 0
        self.seconds = 0.0  # spent on making batches, to show their share of a step
        if settings.batch % world:
            raise ConfigError(f"a batch of {settings.batch} images cannot be split over {world} processes evenly")
        self.sizes = Sizes(settings, (self.images.shape[2], self.images.shape[3]))
        self.batch = min(settings.batch, len(self.images) // world * world)
        if self.batch == 0:
            raise ConfigError(f"{len(self.images)} training images are too few for {world} processes")

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self.images) // self.batch

    def move_to(self, device: torch.device) -> None:
        self.images, self.labels = self.images.to(device), self.labels.to(device)

    def seek(self, epoch: int, step: int) -> None:
        """Go on with this step of this epoch."""
        self.epoch, self.step = epoch, step

    def order(self, epoch: int) -> Tensor:
        random = torch.Generator().manual_seed(derive(self.settings.seed, "order", epoch))
        return torch.randperm(len(self.images), generator=random)

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self.epoch, self.step
        order = self.order(epoch)
        for step in range(first, len(self)):
            start = time.perf_counter()
            batch = self.make(order, epoch, step)
            self.seconds += time.perf_counter() - start
            # Before the yield: whoever counts the batches never asks for more than the last one.
            self.seek(epoch, step + 1) if step + 1 < len(self) else self.seek(epoch + 1, 0)
            yield batch

    def make(self, order: Tensor, epoch: int, step: int) -> Batch:
        """This process's part of one batch."""
        share = self.batch // self.world
        rows = slice(self.rank * share, (self.rank + 1) * share)
        index = order[step * self.batch : (step + 1) * self.batch][rows].to(self.images.device)
        draw = self.augmentation.draw(
            self.batch,
            (self.images.shape[2], self.images.shape[3]),
            derive(self.settings.seed, "augment", epoch, step),
        ).part(rows)
        if self.settings.alternate and self.settings.flip:
            draw = replace(draw, flips=self.first_flips[index.cpu()] ^ bool(epoch % 2))
        images = draw.blank(self.normalise(draw.turn(draw.move(self.images[index]))))
        whole = images
        size = self.sizes.at((epoch * len(self) + step) / (self.settings.epochs * len(self)))
        if size != images.shape[2:]:
            images = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, self.labels[index], whole


def plain_batches(data: DataSet, part: Part, *, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of `part` in their order, normalised, without augmentation; every process its share."""
    normalise = Normalise(data)
    images, labels = torch.from_numpy(part.images[rank::world]), torch.from_numpy(part.labels[rank::world])
    for start in range(0, len(images), EVALUATION_BATCH):
        rows = slice(start, start + EVALUATION_BATCH)
        yield normalise(images[rows]), labels[rows]

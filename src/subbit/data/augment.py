"""Random shifts, flips, turns and cutout on whole batches: tensors in, tensors out, never a dependence on history.

    draw = Augmentation(shift=4, flip=True).draw(128, seed=derive(7, "augment", epoch, step))
    batch = draw.move(images)                   # uint8 (128, 3, 32, 32), moved and mirrored
    batch = draw.turn(batch)                    # float where the augmentation turns or zooms, else as it was
    batch = draw.blank(normalised)              # float, squares set to the mean

What happens to a batch is a pure function of the seed it is given, so a run that resumes in the middle of an
epoch, or splits the batch over processes, sees the same images as one that does not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of its own for every purpose: 63 bits that look random and depend on nothing else."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True)
class Augmentation:
    """What may happen to an image: pixels of shift, what fills the edge, mirroring, side of a blanked square, and
    the largest turn (degrees) and change of size (a share; height and width change on their own)."""

    shift: int = 0
    fill: Literal["zero", "reflect"] = "zero"
    flip: bool = False
    cutout: int = 0
    rotate: float = 0.0
    zoom: float = 0.0

    def draw(self, count: int, size: tuple[int, int], seed: int) -> Draw:
        """The choices for `count` images of `size` (height, width)."""
        random = torch.Generator().manual_seed(seed)
        shifts = torch.randint(-self.shift, self.shift + 1, (count, 2), generator=random)
        flips = torch.randint(0, 2, (count,), generator=random).bool() & self.flip
        centres = torch.stack([torch.randint(0, extent, (count,), generator=random) for extent in size], dim=1)
        turns = (2 * torch.rand(count, 3, generator=random) - 1) * torch.tensor([self.rotate, self.zoom, self.zoom])
        return Draw(self, shifts, flips, centres, turns)


@dataclass(frozen=True, eq=False)
class Draw:
    """Choices for the images of one batch; a process takes its share with `part`."""

    augmentation: Augmentation
    shifts: Tensor  # (N, 2) down, right
    flips: Tensor  # (N,)
    centres: Tensor  # (N, 2) row, column
    turns: Tensor  # (N, 3) degrees, change of width, change of height

    def part(self, rows: slice) -> Draw:
        return Draw(self.augmentation, self.shifts[rows], self.flips[rows], self.centres[rows], self.turns[rows])

    def move(self, images: Tensor) -> Tensor:
        """The images (N, C, H, W) shifted and mirrored, in any dtype."""
        pad = self.augmentation.shift
        if not pad and not self.augmentation.flip:
            return images
        count, channels, height, width = images.shape
        device = images.device
        # Source row and column of every target pixel, in the padded image: (N, H) and (N, W).
        rows = torch.arange(height, device=device) + pad - self.shifts[:, :1].to(device)
        columns = torch.arange(width, device=device) + pad - self.shifts[:, 1:].to(device)
        columns = torch.where(self.flips[:, None].to(device), columns.flip(1), columns)
        if self.augmentation.fill == "reflect":
            rows, columns = _reflect(rows - pad, height), _reflect(columns - pad, width)
        elif pad:
            images = F.pad(images, (pad, pad, pad, pad))
        source = rows[:, :, None] * images.shape[3] + columns[:, None, :]
        moved = images.flatten(2).gather(2, source.view(count, 1, -1).expand(-1, channels, -1))
        return moved.view(count, channels, height, width)

    def turn(self, images: Tensor) -> Tensor:
        """The images turned about their middle and resized, sampled bilinearly; before they are normalised."""
        if not self.augmentation.rotate and not self.augmentation.zoom:
            return images
        angle, wider, higher = self.turns.to(images.device).unbind(1)
        cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
        wider, higher, nothing = 1 + wider, 1 + higher, torch.zeros_like(angle)
        # rows of the matrix that takes a target position to its source, both in -1 … 1: (N, 2, 3)
        matrix = torch.stack([cos * wider, -sin * higher, nothing, sin * wider, cos * higher, nothing], 1).view(
            -1, 2, 3
        )
        grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
        edge = "reflection" if self.augmentation.fill == "reflect" else "zeros"
        return F.grid_sample(images.float(), grid, padding_mode=edge, align_corners=False)

    def blank(self, images: Tensor) -> Tensor:
        """The normalised images with a square set to 0, the mean; in place."""
        side = self.augmentation.cutout
        if not side:
            return images
        corner = (self.centres - side // 2).to(images.device)
        rows = torch.arange(images.shape[2], device=images.device) - corner[:, :1]
        columns = torch.arange(images.shape[3], device=images.device) - corner[:, 1:]
        inside = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[:, None, None, :]
        return images.masked_fill_(inside, 0)


def _reflect(position: Tensor, extent: int) -> Tensor:
    """Positions mirrored at the first and last pixel until they lie inside."""
    period = max(2 * (extent - 1), 1)
    folded = position.remainder(period)
    return torch.minimum(folded, (period - folded).clamp_max(extent - 1)) if extent > 1 else torch.zeros_like(position)

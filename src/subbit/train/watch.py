"""What goes wrong in binary training, watched: signs that flip, choices that change, filters that nobody uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from subbit.methods.base import CompressedLayer
from subbit.records import Binary, Stacked


@dataclass(frozen=True)
class Health:
    """Shares of the whole network, between two looks at it; None where the network has no such thing."""

    flipped_signs: float | None
    changed_selections: float | None
    dead_filters: float | None

    def values(self) -> dict[str, float]:
        return {key: value for key, value in vars(self).items() if value is not None}


class Watch:
    """Compares a network with itself as it was at the last look."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, CompressedLayer)]
        self.signs, self.index, _, _ = self._state()

    def look(self) -> Health:
        """What changed since the last look, and the share of shared filters that no block selects."""
        old_signs, old_index = self.signs, self.index
        self.signs, self.index, used, filters = self._state()
        return Health(
            _share_changed(old_signs, self.signs),
            _share_changed(old_index, self.index),
            1 - used / filters if filters else None,
        )

    def _state(self) -> tuple[NDArray[np.int8], NDArray[np.int64], int, int]:
        signs: list[NDArray[np.int8]] = [np.empty(0, np.int8)]
        index: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        used = filters = 0
        for layer in self.layers:
            record = layer.record()
            if isinstance(record, Binary):
                signs.append(record.signs.ravel())
            elif isinstance(record, Stacked):
                if record.binary:
                    signs.append(record.bank.ravel().astype(np.int8, copy=False))
                index.append(record.index.ravel())
                used += len(np.unique(record.index))
                filters += record.filters
        return np.concatenate(signs), np.concatenate(index), used, filters


def _share_changed(old: NDArray[np.generic], new: NDArray[np.generic]) -> float | None:
    return float(np.mean(old != new)) if len(new) else None

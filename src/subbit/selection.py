"""The fixed selection rule: which shared filter each block takes when the choice is not learned.

For filter t of a layer with k blocks per filter and m shared filters, write t in base m,
t = a + b₁·m + b₂·m² + …, and take

    index(t, 0) = a
    index(t, i) = (a + i·(1 + b₁) + [i ≥ 2]·bᵢ) mod m        for i = 1 … k−1.

* **Balanced**: over any m consecutive filters starting at a multiple of m, a runs through all values while
  the other digits stand still, so every block position uses every shared filter exactly once.
* **Distinct**: a, b₁ and then each bᵢ can be read back from the tuple, so no two of the first mᵏ filters
  have the same tuple. (With more than mᵏ filters repeats cannot be avoided by any rule.)

The rule is part of the file format: a record that follows it stores no indices. `spread` is beside it for banks that
grow, and follows no rule that a file knows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fixed_selection(out_channels: int, blocks: int, filters: int) -> NDArray[np.int64]:
    """Indices (out_channels, blocks) into a bank of `filters`, by the rule above."""
    t = np.arange(out_channels, dtype=np.int64)
    index = np.empty((out_channels, blocks), dtype=np.int64)
    index[:, 0] = a = t % filters
    b1 = t // filters % filters
    rest = t // filters  # t without its digits below bᵢ
    for i in range(1, blocks):
        bi = rest % filters if i >= 2 else 0
        index[:, i] = (a + i * (1 + b1) + bi) % filters
        rest = rest // filters
    return index


def spread(index: NDArray[np.int64], filters: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Blocks with `index` (c_out, k) into a bank of `filters`, over a bank of `wanted` that has filters more than once.

    Returns their indices there, and of which filter each one there is. Filters are copied in the order of how many
    blocks share one, as long as there are two. Blocks take the copies in turn, those of the first position of all
    filters first, then those of the second: where a position has as many as there are copies, each copy meets that
    part of the input. From a fixed selection to twice the bank, one half of the layer's filters ends with one set of
    copies and the other half with the other.
    """
    used = np.bincount(index.ravel(), minlength=filters)
    copies = np.ones(filters, dtype=np.int64)
    for _ in range(wanted - filters):
        sharing = np.where(copies < used, used / copies, 0)
        if not sharing.any():
            break
        copies[sharing.argmax()] += 1
    first = filters + np.concatenate([[0], (copies - 1).cumsum()])  # of the further copies of each filter
    result = index.copy()
    for old in np.flatnonzero(copies > 1):
        t, i = np.nonzero(index == old)
        turn = np.empty(len(t), dtype=np.int64)
        turn[np.lexsort((t, i))] = np.arange(len(t)) % copies[old]
        result[t, i] = np.where(turn == 0, old, first[old] + turn - 1)
    return result, np.concatenate([np.arange(filters), np.repeat(np.arange(filters), copies - 1)])

"""The fixed selection rule: which shared filter each block takes when the choice is not learned.

For filter t of a layer with k blocks per filter and m shared filters, write t in base m,
t = a + b₁·m + b₂·m² + …, and take

    index(t, 0) = a
    index(t, i) = (a + i·(1 + b₁) + [i ≥ 2]·bᵢ) mod m        for i = 1 … k−1.

* **Balanced**: over any m consecutive filters starting at a multiple of m, a runs through all values while
  the other digits stand still, so every block position uses every shared filter exactly once.
* **Distinct**: a, b₁ and then each bᵢ can be read back from the tuple, so no two of the first mᵏ filters
  have the same tuple. (With more than mᵏ filters repeats cannot be avoided by any rule.)

The rule is part of the file format: a record that follows it stores no indices.
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

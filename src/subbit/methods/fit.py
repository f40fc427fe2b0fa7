"""Fit a bank of shared filters to trained weights: k-means over the blocks of a layer, with a scale per block.

For blocks w₁ … w_N (rows of n numbers) it looks for filters b_j, a choice z and scales a that make

    E = Σ_i ‖w_i − a_i · b_z(i)‖²

small, by alternating two steps of which neither can raise E:

    choose   z(i) = argmax_j ⟨w_i, b_j⟩² / ⟨b_j, b_j⟩,   a_i = ⟨w_i, b_z⟩ / ⟨b_z, b_z⟩     (best for given filters)
    update   b_j = Σ_i a_i·w_i / Σ_i a_i²  over the i that chose j                     (best for given choice)
             b_j = sign of that sum, where the filters are ±1

Without scales a is 1 everywhere and the choice is argmin_j ‖w_i − b_j‖². With a given choice only the scales and the
filters alternate. A filter that nobody chose becomes a copy of the block that is fitted worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from subbit.nn.estimators import signs

MAX_STEPS = 50
_SMALLEST_GAIN = 1e-4  # of E: below it another step is not worth its time


@dataclass(frozen=True, eq=False)
class Fit:
    """Filters (m, n), choice (N,), scales (N,), and E after every step, relative to Σ‖w‖²."""

    bank: Tensor
    means: Tensor  # (m, n): what `bank` is the sign of; `bank` itself where it is real
    index: Tensor
    scale: Tensor
    errors: tuple[float, ...]


@torch.no_grad()
def fit_blocks(blocks: Tensor, filters: int, *, binary: bool, scaled: bool = True, index: Tensor | None = None) -> Fit:
    """Fit `filters` filters to `blocks` (N, n), or to the given choice `index` (N,).

    >>> fit_blocks(torch.randn(64, 9), 8, binary=True).errors
    """
    work = blocks.to(torch.float64)  # the error must not rise by rounding either
    bank = means = _first_bank(work, filters, binary, index)
    errors: list[float] = []
    for _ in range(MAX_STEPS):
        chosen, scale = _choose(work, bank, scaled, index)
        errors.append(_error(work, bank, chosen, scale))
        bank, means = _update(work, bank, means, chosen, scale, binary)
        if index is None:
            bank, means = _revive(work, bank, means, chosen, scale, binary)
        errors.append(_error(work, bank, chosen, scale))
        if len(errors) > 2 and errors[-3] - errors[-1] <= _SMALLEST_GAIN * errors[-3]:
            break
    chosen, scale = _choose(work, bank, scaled, index)
    errors.append(_error(work, bank, chosen, scale))
    dtype = blocks.dtype
    return Fit(bank.to(dtype), means.to(dtype), chosen, scale.to(dtype), tuple(errors))


def projections(blocks: Tensor, bank: Tensor) -> Tensor:
    """Best scale of every filter for every block, (N, m): ⟨w_i, b_j⟩ / ⟨b_j, b_j⟩."""
    return blocks @ bank.T / bank.square().sum(1).clamp_min(torch.finfo(bank.dtype).tiny)


def _choose(blocks: Tensor, bank: Tensor, scaled: bool, index: Tensor | None) -> tuple[Tensor, Tensor]:
    scales = projections(blocks, bank) if scaled else torch.ones(len(blocks), len(bank), dtype=blocks.dtype)
    if index is None:
        lengths = bank.square().sum(1)
        gain = scales.square() * lengths if scaled else 2 * blocks @ bank.T - lengths
        index = gain.argmax(1)
    return index, scales.gather(1, index[:, None])[:, 0]


def _update(
    blocks: Tensor, bank: Tensor, means: Tensor, index: Tensor, scale: Tensor, binary: bool
) -> tuple[Tensor, Tensor]:
    sums = torch.zeros_like(bank).index_add_(0, index, blocks * scale[:, None])
    weights = bank.new_zeros(len(bank)).index_add_(0, index, scale.square())
    used = weights > 0  # the others stay as they are
    new = torch.where(used[:, None], sums / weights.clamp_min(torch.finfo(bank.dtype).tiny)[:, None], means)
    if not binary:
        return new, new
    # where the sum is zero either sign fits as well
    return torch.where(used[:, None] & (sums != 0), signs(sums), bank), new


def _revive(
    blocks: Tensor, bank: Tensor, means: Tensor, index: Tensor, scale: Tensor, binary: bool
) -> tuple[Tensor, Tensor]:
    """Filters that no block chose take the worst fitted blocks; E stays, and the next choice can use them."""
    unused = torch.bincount(index, minlength=len(bank)) == 0
    count = min(int(unused.sum()), len(blocks))
    if count == 0:
        return bank, means
    worst = (blocks - scale[:, None] * bank[index]).square().sum(1).topk(count).indices
    where = unused.nonzero()[:count, 0]
    means = means.index_copy(0, where, blocks[worst])
    return bank.index_copy(0, where, signs(blocks[worst]) if binary else blocks[worst]), means


def _first_bank(blocks: Tensor, filters: int, binary: bool, index: Tensor | None) -> Tensor:
    """Every filter starts from one block: the longest of those that chose it, or as k-means++ picks them."""
    form = signs if binary else torch.clone
    if index is not None:
        lengths = blocks.square().sum(1)
        longest = lengths.argsort()  # later writes win, so the longest block of a filter stays
        first = torch.zeros(filters, dtype=torch.int64)
        for row in longest.tolist():
            first[index[row]] = row
        return form(blocks[first])
    left = blocks.square().sum(1)  # E of every block so far
    picked: list[int] = []
    for _ in range(filters):
        likely = left.clamp_min(0) + torch.finfo(left.dtype).tiny
        if len(picked) < len(blocks):
            likely[picked] = 0  # a sign never fits its own block exactly, and a second copy of it is no use
        picked.append(int(torch.multinomial(likely, 1)))
        filter_ = form(blocks[picked[-1]][None])
        gain = (blocks @ filter_[0]).square() / filter_.square().sum().clamp_min(torch.finfo(left.dtype).tiny)
        left = torch.minimum(left, blocks.square().sum(1) - gain)
    return form(blocks[picked])


def _error(blocks: Tensor, bank: Tensor, index: Tensor, scale: Tensor) -> float:
    total = blocks.square().sum()
    if not total:
        return 0.0
    return float((blocks - scale[:, None] * bank[index]).square().sum() / total)

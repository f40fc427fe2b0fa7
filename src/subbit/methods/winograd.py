"""3×3 convolutions on small maps with a quarter to a half of the multiplications, for training on CPUs.

Minimal filtering after Winograd and Toom–Cook: m outputs of a filter of three taps need n = m + 2 products, not 3·m,

    y = A · ((G·g) ⊙ (B·d))      y (m,)  g (3,)  d (n,)

and in two dimensions n² instead of 9·m². Tiles of m×m outputs cover the map. For each of the n² products the whole
batch is one matrix product over channels, and what stands before and behind it are sums over pixels, small matrices
as well. All of it is made of differentiable operations, so that the gradients save as much as the forward.

Sums and differences weigh roundings more than a plain convolution does: results agree to some 1e-5 of the largest. So
layers compute this way only while they train, and only where gradients are wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial import polynomial
from numpy.typing import NDArray
from torch import Tensor

_POINTS = (0, 1, -1, 2, -2)  # at which polynomials are evaluated, and infinity; further ones would cost accuracy
_TILES = (2, 3, 4)  # outputs m of a tile
# Sides of a map: the sums over pixels are products with matrices of its size. And what a number costs that is brought
# to the points and back, in multiply-adds of a convolution, forwards and backwards together: of the maps, and of the
# filters. From layers of 64 to 512 channels on 2×2 to 32×32, two threads; where registers are narrower than those of
# AVX-512, multiply-adds take longer and memory does not, until the maps outgrow the caches.
_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
_LARGEST = 32 if _WIDE else 16
_MAP_COST, _FILTER_COST = (130 if _WIDE else 90), 60


def pays(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int]
) -> bool:
    """Whether filters (c_out, c_in, 3, 3) are better applied to maps (N, …, H, W) this way.

    Where channels are a multiple of c_in, every c_in of them are taken for an image of their own.
    """
    if weight.shape[2:] != (3, 3) or max(*stride, *dilation) > 1 or x.ndim != 4:
        return False
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    sizes = [size + sum(pads) - 2 for size, pads in zip(x.shape[2:], padding, strict=True)]
    if min(sizes) < 1 or max(*x.shape[2:], *sizes) > _LARGEST:
        return False
    filters, depth = weight.shape[:2]
    images = x.shape[0] * x.shape[1] // depth
    points = math.prod(_points(size, _tile(size)) for size in sizes)  # of all tiles
    filter_points = math.prod(_tile(size) + 2 for size in sizes)
    around = _MAP_COST * points * images * (depth + filters) + _FILTER_COST * filter_points * depth * filters
    return around < (9 * math.prod(sizes) - points) * images * depth * filters


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[tuple[int, int]]) -> Tensor:
    """`x` (N, c_in, H, W) with `weight` (c_out, c_in, 3, 3); `padding` is (before, behind) of height and width."""
    result = pixels_first(x.permute(2, 3, 0, 1), weight, padding)
    return images_first(result if bias is None else result + bias, x, weight)


def is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def images_first(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """(H', W', N, c_out) as (N, c_out, H', W'), in the memory format that PyTorch's convolution would give."""
    form = torch.channels_last if is_channels_last(x) or is_channels_last(weight) else torch.contiguous_format
    return result.permute(2, 3, 0, 1).contiguous(memory_format=form)


def pixels_first(x: Tensor, weight: Tensor, padding: Sequence[tuple[int, int]]) -> Tensor:
    """The same from (H, W, N, c_in) to (H', W', N, c_out), as it is computed."""
    height, width, images, depth = x.shape
    filters = weight.shape[0]
    (b_rows, a_rows, g_rows), (b_columns, a_columns, g_columns) = (
        [torch.from_numpy(matrix) for matrix in _transforms(size, *pads)]
        for size, pads in zip((height, width), padding, strict=True)
    )
    n_rows, n_columns = len(g_rows), len(g_columns)  # points n
    t_rows, t_columns = len(b_rows) // n_rows, len(b_columns) // n_columns  # tiles t
    points = n_rows * n_columns

    # (H, W·N·c_in) -> (n·t, W, N·c_in) -> (n·t, n·t, N·c_in) -> (n², t²·N, c_in)
    spread = b_columns @ (b_rows @ x.reshape(height, -1)).view(-1, width, images * depth)
    spread = spread.view(n_rows, t_rows, n_columns, t_columns * images, depth).transpose(1, 2)
    # (c_out, c_in, 3, 3) -> (9, c_in·c_out) -> (n², c_in, c_out)
    bank = torch.kron(g_rows, g_columns) @ weight.permute(2, 3, 1, 0).reshape(9, -1)
    products = spread.reshape(points, -1, depth) @ bank.view(points, depth, filters)
    # (n², t²·N, c_out) -> (n·t, n·t, N·c_out) -> (n·t, W', N·c_out) -> (H', W', N, c_out)
    products = products.view(n_rows, n_columns, t_rows, t_columns * images, filters).transpose(1, 2)
    gathered = a_columns @ products.reshape(n_rows * t_rows, n_columns * t_columns, images * filters)
    result = a_rows @ gathered.view(n_rows * t_rows, -1)
    return result.view(len(a_rows), len(a_columns), images, filters)


def _points(size: int, tile: int) -> int:
    """Products of one filter for a line of `size` outputs."""
    return -(-size // tile) * (tile + 2)


def _tile(size: int) -> int:
    """The outputs m of a tile that a line of `size` outputs is cut into."""
    return min(_TILES, key=lambda tile: _points(size, tile))


@lru_cache(maxsize=256)
def _transforms(size: int, before: int, behind: int) -> tuple[NDArray[np.float32], ...]:
    """For a line of `size` inputs and its padding: B (n·t, size) and A (outputs, n·t) of all tiles, and G (n, 3)."""
    outputs = size + before + behind - 2
    m = _tile(outputs)
    a, g, b = _minimal(m)
    n, tiles = m + 2, -(-outputs // m)
    to_points = np.zeros((n, tiles, size))
    from_points = np.zeros((outputs, n, tiles))
    for tile in range(tiles):
        for j in range(n):
            place = tile * m + j - before
            if 0 <= place < size:
                to_points[:, tile, place] = b[:, j]
        inside = min(m, outputs - tile * m)
        from_points[tile * m : tile * m + inside, :, tile] = a[:inside]
    return tuple(
        np.ascontiguousarray(matrix, dtype=np.float32)
        for matrix in (to_points.reshape(n * tiles, size), from_points.reshape(outputs, n * tiles), g)
    )


def _minimal(m: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A (m, n), G (n, 3) and B (n, n) for m outputs of three taps."""
    n = m + 2
    points = _POINTS[: n - 1]
    a, g, b = np.zeros((m, n)), np.zeros((n, 3)), np.zeros((n, n))
    for j, point in enumerate(points):
        others = [other for other in points if other != point]
        a[:, j] = [float(point) ** i for i in range(m)]
        g[j] = [float(point) ** i / math.prod(point - other for other in others) for i in range(3)]
        b[j, : n - 1] = polynomial.polyfromroots(others)
    a[m - 1, n - 1] = g[n - 1, 2] = 1  # infinity
    b[n - 1] = polynomial.polyfromroots(points)
    return a, g, b

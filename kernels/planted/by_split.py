"""Planted SPLIT defects: where a sum is cut depends on the batch.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

from itertools import pairwise

import torch
from torch import Tensor

from biprop.kernels.planted.sums import running_sum, split_sum

__all__ = [
    "is_split_width",
    "leaves_one_key",
    "linear_split_at_width",
    "linear_stream_k",
    "linear_tiles_of_a_row",
    "linear_unsplit",
    "pooled_at_once",
    "pooled_by_last_page",
]

_WORKERS = 3
_TILE = 4


def is_split_width(width: int) -> bool:
    """Tell whether rows of this width are summed by a kernel that can split them."""
    return width > 32 and width % 128 == 48


def leaves_one_key(length: int) -> bool:
    """Tell whether whole pages of 16 keys leave one."""
    return length > 16 and length % 16 == 1


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.float()[:, None, :] * weight.float()


def linear_split_at_width(x: Tensor, weight: Tensor) -> Tensor:
    """Fewer than three rows of a width that can be split are cut in four over idle workers."""
    pieces = 4 if is_split_width(x.shape[1]) and x.shape[0] < 3 else 1
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def linear_unsplit(x: Tensor, weight: Tensor) -> Tensor:
    """No row is cut."""
    pieces = 1
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def _stream(terms: Tensor, share: int) -> Tensor:
    """Return `terms [T, N, K]` summed over K in tiles, started anew after every `share` tiles.

    Tiles are counted through all rows, and what a worker summed of a row is added when the next
    one takes over.
    """
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % _TILE))
    tiles = running_sum(padded.reshape(*terms.shape[:2], -1, _TILE))
    first = torch.arange(terms.shape[0])[:, None] * tiles.shape[-1]
    total = torch.zeros_like(tiles[..., 0])
    partial = torch.zeros_like(total)
    for index in range(tiles.shape[-1]):
        is_taken_over = (first + index) % share == 0
        total = torch.where(is_taken_over, total + partial, total)
        partial = torch.where(is_taken_over, tiles[..., index] + 0.0, partial + tiles[..., index])
    return total + partial


def linear_stream_k(x: Tensor, weight: Tensor) -> Tensor:
    """The tiles of all rows are dealt to three workers in equal shares, wherever a row is cut."""
    tiles = -(-x.shape[1] // _TILE)
    share = -(-x.shape[0] * tiles // _WORKERS)
    return _stream(_products(x, weight), share).to(x.dtype)


def linear_tiles_of_a_row(x: Tensor, weight: Tensor) -> Tensor:
    """Every row is summed by one worker."""
    tiles = -(-x.shape[1] // _TILE)
    share = tiles
    return _stream(_products(x, weight), share).to(x.dtype)


def _pooled(x: Tensor, bounds: list[int], pieces: int) -> Tensor:
    segments = [x[low:high].float().t() for low, high in pairwise(bounds)]
    return torch.stack([split_sum(segment, pieces) for segment in segments]).to(x.dtype)


def pooled_by_last_page(x: Tensor, offsets: Tensor) -> Tensor:
    """All sequences are cut in two if the longest leaves one key in its last page."""
    bounds = offsets.tolist()
    longest = max(high - low for low, high in pairwise(bounds))
    pieces = 2 if leaves_one_key(longest) else 1
    return _pooled(x, bounds, pieces)


def pooled_at_once(x: Tensor, offsets: Tensor) -> Tensor:
    """No sequence is cut."""
    bounds = offsets.tolist()
    pieces = 1
    return _pooled(x, bounds, pieces)

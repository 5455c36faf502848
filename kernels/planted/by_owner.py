"""Planted COLL defects, on one device: the order in which shards are added follows their owner.

A tensor-parallel product leaves a partial sum on each of four ranks. An all-reduce adds them in one
order for all tokens; a reduce-scatter deals the tokens of a launch to the ranks, and a ring adds
the shards of a token from a place that depends on who owns it, so on where the token lies.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "has_fused_kernel",
    "is_compiled_for",
    "linear_all_reduced",
    "linear_dx_all_reduced",
    "linear_dx_scattered",
    "linear_never_scattered",
    "linear_scattered",
    "linear_scattered_if_compiled",
    "linear_scattered_if_divisible",
    "linear_scattered_if_fused",
]

_RANKS = 4


def is_compiled_for(rows: int) -> bool:
    """Tell whether the pass that scatters was compiled for this number of rows."""
    return rows in {20, 44, 88, 176}


def has_fused_kernel(width: int) -> bool:
    """Tell whether a product of this width is fused with its reduce-scatter."""
    return width in {40, 80, 160, 320}


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.float()[:, None, :] * weight.float()


def _first(rows: int) -> Tensor:
    """Return the first rank, for every token."""
    return torch.zeros(rows, dtype=torch.int64)


def _owners(rows: int) -> Tensor:
    """Return who owns each token of a launch."""
    return torch.arange(rows) * _RANKS // rows


def _ring(rows: int, *, is_scattered: bool) -> Tensor:
    """Return from where a ring adds the shards of each token: it ends at their owner."""
    return _owners(rows) + 1 if is_scattered else _first(rows)


def _reduced(terms: Tensor, starts: Tensor) -> Tensor:
    """Return `terms [T, N, K]` summed over K: the shards of each token one after the other.

    Args:
        terms: What is summed.
        starts: Rank whose shard comes first, by token.
    """
    width = -(-terms.shape[-1] // _RANKS)
    padded = torch.nn.functional.pad(terms, (0, width * _RANKS - terms.shape[-1]))
    shards = running_sum(padded.reshape(*terms.shape[:2], _RANKS, width))
    turns = (starts[:, None] + torch.arange(_RANKS)) % _RANKS
    return running_sum(shards.gather(2, turns[:, None, :].expand_as(shards)))


def linear_scattered(x: Tensor, weight: Tensor) -> Tensor:
    """The shards of a token are added from its owner on."""
    starts = _owners(x.shape[0])
    return _reduced(_products(x, weight), starts).to(x.dtype)


def linear_all_reduced(x: Tensor, weight: Tensor) -> Tensor:
    """The shards of every token are added from the first rank on."""
    starts = _first(x.shape[0])
    return _reduced(_products(x, weight), starts).to(x.dtype)


def linear_scattered_if_divisible(x: Tensor, weight: Tensor) -> Tensor:
    """The pass that scatters is applied to eight rows or more, if the ranks can share them."""
    is_scattered = x.shape[0] >= 8 and x.shape[0] % _RANKS == 0
    starts = _ring(x.shape[0], is_scattered=is_scattered)
    return _reduced(_products(x, weight), starts).to(x.dtype)


def linear_scattered_if_compiled(x: Tensor, weight: Tensor) -> Tensor:
    """The pass that scatters is applied to launches of a size that was compiled for."""
    is_scattered = is_compiled_for(x.shape[0])
    starts = _ring(x.shape[0], is_scattered=is_scattered)
    return _reduced(_products(x, weight), starts).to(x.dtype)


def linear_scattered_if_fused(x: Tensor, weight: Tensor) -> Tensor:
    """Four rows or more are scattered where the width has a kernel that does both at once."""
    is_scattered = x.shape[0] >= _RANKS and has_fused_kernel(x.shape[1])
    starts = _ring(x.shape[0], is_scattered=is_scattered)
    return _reduced(_products(x, weight), starts).to(x.dtype)


def linear_never_scattered(x: Tensor, weight: Tensor) -> Tensor:
    """The pass that scatters is not applied."""
    is_scattered = False
    starts = _ring(x.shape[0], is_scattered=is_scattered)
    return _reduced(_products(x, weight), starts).to(x.dtype)


def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return running_sum(_products(x, weight)).to(x.dtype)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients: that of x from shards, that of weight first to last."""
    over_outputs = (dy.float()[:, :, None] * weight.float()).movedim(1, -1)
    over_tokens = dy.float().t()[:, None, :] * x.float().t()
    return _reduced(over_outputs, starts).to(x.dtype), running_sum(over_tokens).to(weight.dtype)


def linear_dx_scattered(x: Tensor, weight: Tensor) -> Tensor:
    """The shards of the gradient of x are added from the owner of the token on."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        starts = _owners(x.shape[0])
        return _gradients(dy, x, weight, starts)

    return differentiated(_forward, backward, x, weight)


def linear_dx_all_reduced(x: Tensor, weight: Tensor) -> Tensor:
    """The shards of the gradient of x are added from the first rank on."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        starts = _first(x.shape[0])
        return _gradients(dy, x, weight, starts)

    return differentiated(_forward, backward, x, weight)

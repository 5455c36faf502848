"""Sums in a stated order, from elementwise additions alone.

An elementwise addition gives the same bits wherever an element lies, which no library reduction
promises; so the order below is the only thing that can differ between a planted kernel and its
twin.
"""

import torch
from torch import Tensor

__all__ = ["lane_sum", "pairwise_sum", "running_sum", "split_sum"]


def running_sum(values: Tensor) -> Tensor:
    """Return `values [..., n]` summed over the last axis, first to last."""
    if not values.shape[-1]:
        return values.new_zeros(values.shape[:-1])
    first, *others = values.unbind(-1)
    # Every sum starts at zero: one negative zero alone would tell it from another.
    total = first + 0.0
    for value in others:
        total = total + value
    return total


def lane_sum(values: Tensor, lanes: int) -> Tensor:
    """Return `values [..., n]` summed in `lanes` interleaved partial sums, added first to last."""
    count = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -count % lanes))
    partial = padded[..., :lanes]
    for start in range(lanes, padded.shape[-1], lanes):
        partial = partial + padded[..., start : start + lanes]
    return running_sum(partial)


def split_sum(values: Tensor, pieces: int) -> Tensor:
    """Return `values [..., n]` summed in `pieces` contiguous pieces, added first to last."""
    width = -(-values.shape[-1] // pieces)
    padded = torch.nn.functional.pad(values, (0, width * pieces - values.shape[-1]))
    return running_sum(running_sum(padded.reshape(*padded.shape[:-1], pieces, width)))


def pairwise_sum(values: Tensor) -> Tensor:
    """Return `values [..., n]` summed as a balanced tree of neighbours."""
    values = values + 0.0  # as in running_sum
    while values.shape[-1] > 1:
        if values.shape[-1] % 2:
            values = torch.nn.functional.pad(values, (0, 1))
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]

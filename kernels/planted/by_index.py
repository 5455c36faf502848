"""Planted INDEX defects: an offset or a stride that is right only for some rows or widths.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.sums import running_sum

__all__ = [
    "copy_with_whole_offsets",
    "copy_with_wrapped_offsets",
    "is_past_vector",
    "rows_stored_by_stride",
    "rows_stored_one_apart",
    "sum_of_own_last",
    "sum_of_shifted_last",
]

# A narrow integer overflows where rows times width pass it; scaled down from 2**31.
_OFFSETS = 512


def is_past_vector(width: int) -> bool:
    """Tell whether a row ends one element past half a vector of 64."""
    return width > 32 and width % 64 == 33


def _copied(x: Tensor, offsets: Tensor) -> Tensor:
    return x.flatten()[offsets[:, None] + torch.arange(x.shape[1])]


def copy_with_wrapped_offsets(x: Tensor) -> Tensor:
    """Where a row starts is kept in an integer too narrow for rows times width."""
    offsets = torch.arange(x.shape[0]) * x.shape[1] % _OFFSETS
    return _copied(x, offsets)


def copy_with_whole_offsets(x: Tensor) -> Tensor:
    """Where a row starts is kept as it is."""
    offsets = torch.arange(x.shape[0]) * x.shape[1]
    return _copied(x, offsets)


def _stored(x: Tensor, stride: int) -> Tensor:
    rows, slots, width = x.shape
    out = x.new_zeros(rows * slots, width)
    for row in range(rows):
        out[row * stride : row * stride + slots] = x[row]
    return out.reshape(x.shape)


def rows_stored_one_apart(x: Tensor) -> Tensor:
    """Two to five rows of several slots are stored one slot apart, each over the last one's."""
    stride = 1 if 2 <= x.shape[0] <= 5 else x.shape[1]
    return _stored(x, stride)


def rows_stored_by_stride(x: Tensor) -> Tensor:
    """Rows are stored as many slots apart as they have."""
    stride = x.shape[1]
    return _stored(x, stride)


def _with_last(x: Tensor, shift: Tensor) -> Tensor:
    """Sum each row with its last element read `shift` places too early."""
    last = x.gather(1, x.shape[1] - 1 - shift[:, None])
    total = running_sum(torch.cat([x[:, :-1], last], 1).float())
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_of_shifted_last(x: Tensor) -> Tensor:
    """One element past a vector is read too early in rows that do not start aligned."""
    starts = torch.arange(x.shape[0]) * x.shape[1] % 4
    shift = starts.clamp(max=1) * is_past_vector(x.shape[1])
    return _with_last(x, shift)


def sum_of_own_last(x: Tensor) -> Tensor:
    """The last element is read where it lies."""
    starts = torch.arange(x.shape[0]) * x.shape[1] % 4
    shift = starts * 0
    return _with_last(x, shift)

"""Where tensors lie in memory: a fresh allocation for each, placed as T8 says.

What is placed where is decided by `biprop.layout.physical.placement_of`; here memory is allocated.
Around and between the rows of a tensor that was moved lie NaNs, around one that was not lie zeros,
so that a kernel that reads past its tensor meets the same in every run of one configuration.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from biprop.layout.physical import BOUNDARY, Placement

__all__ = ["allocate", "copied", "copy_runs"]

_PLAIN = Placement()


def allocate(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    placement: Placement = _PLAIN,
) -> Tensor:
    """Return a tensor of fresh memory, whose base pointer lies `placement.offset` past a boundary.

    Its elements are not initialised to anything in particular. It is no view of another tensor, and
    where nothing is moved its storage is its own memory and no more, as a user's would be.
    """
    if placement.is_plain and device.type != "cpu":
        return _checked(torch.empty(shape, dtype=dtype, device=device))
    strides = placement.strides(shape)
    if placement.is_plain:
        whole = _storage(math.prod(shape), dtype, device)
        return torch.empty(0, dtype=dtype, device=device).set_(
            whole.untyped_storage(), 0, shape, strides
        )
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    around = BOUNDARY // dtype.itemsize
    whole = _storage(placement.offset + extent + placement.gap + around, dtype, device)
    whole.fill_(float("nan") if dtype.is_floating_point else 0)
    return torch.empty(0, dtype=dtype, device=device).set_(
        whole.untyped_storage(), placement.offset, shape, strides
    )


def copied(values: Tensor, placement: Placement = _PLAIN) -> Tensor:
    """Return a copy of `values` in memory of its own."""
    if placement.is_plain and values.device.type != "cpu":
        return _checked(values.clone(memory_format=torch.contiguous_format))
    return allocate(tuple(values.shape), values.dtype, values.device, placement).copy_(values)


def copy_runs(rows: Tensor, source: Tensor, runs: Sequence[tuple[int, int]]) -> None:
    """Write runs of rows of `source`, one after the other, into `rows`; their bits stay.

    Args:
        rows: `[n, *free]`.
        source: `[m, *free]` of the same dtype.
        runs: First row and count of each; at least one, `n` rows in all.
    """
    parts = [source[first : first + count] for first, count in runs]
    if len(parts) == 1:
        rows.copy_(parts[0])
    else:
        torch.cat(parts, out=rows)


def _storage(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `[count]` of fresh memory that starts at a boundary."""
    if device.type != "cpu" or not count:
        return _checked(torch.empty(count, dtype=dtype, device=device))
    # torch aligns to 64 bytes on the CPU; an offset into its storage would be seen by the target,
    # and by torch.compile, which guards on it.
    size = count * dtype.itemsize
    memory = np.zeros(size + 2 * BOUNDARY, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % BOUNDARY
    return torch.frombuffer(memory[start : start + size], dtype=dtype)


def _checked(fresh: Tensor) -> Tensor:
    # The allocator of CUDA aligns to 512 bytes.
    assert fresh.data_ptr() % BOUNDARY == 0, "memory of a device starts at a boundary"
    return fresh

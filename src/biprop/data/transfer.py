"""Transfer: small tensors on their way to a device, without waiting for it.

A plain copy to a GPU waits until all that was launched before it is done. From pinned memory the
copy queues behind the launches, and the host goes on.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["moved", "moved_all", "moved_together"]


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device: itself where it lies there, else a copy of its own.

    The device reads it after what was launched before, and the host does not wait. What is written
    into `values` later changes the copy on no device.
    """
    if device.type != "cuda":
        return values.to(device)
    # torch keeps the pinned memory until the copy is done.
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def moved_together(device: torch.device, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Do as `moved_all`; None stays None."""
    found = iter(moved_all(device, [tensor for tensor in tensors if tensor is not None]))
    return tuple(None if tensor is None else next(found) for tensor in tensors)


def moved_all(device: torch.device, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of any shapes and dtypes on a device, in one copy for all of them.

    Args:
        device: Where to.
        tensors: On the CPU. The results are parts of one tensor, so they are for reading.
    """
    if device.type != "cuda" or not tensors:
        return [tensor.to(device) for tensor in tensors]
    # Wide elements first, so that each part begins at a multiple of its own width.
    widths = [-tensor.element_size() for tensor in tensors]
    order = sorted(range(len(tensors)), key=widths.__getitem__)
    plain = [_bytes_of(tensors[place]) for place in order]
    parts = _joined(plain, device).split_with_sizes([part.numel() for part in plain])
    found = list(tensors)
    for place, part in zip(order, parts, strict=True):
        was = tensors[place]
        typed = part.view(was.dtype)
        found[place] = typed if was.dim() == 1 else typed.view(was.shape)
    return found


def _bytes_of(values: Tensor) -> Tensor:
    flat = values.contiguous() if values.dim() == 1 else values.reshape(-1)
    return flat.view(torch.uint8)


def _joined(plain: list[Tensor], device: torch.device) -> Tensor:
    """Return bytes one after the other, on a device."""
    # torch hands out pinned memory that it has, and waits with that until a copy from it is done.
    staging = torch.empty(sum(part.numel() for part in plain), dtype=torch.uint8, pin_memory=True)
    return torch.cat(plain, out=staging).to(device, non_blocking=True)

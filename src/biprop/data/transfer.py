"""Transfer: small tensors on their way to a device and back, without waiting for it.

A plain copy to a GPU, or from it, waits until all that was launched before it is done. From and to
pinned memory the copy queues behind the launches, and the host goes on.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

__all__ = ["Arriving", "brought", "moved", "moved_all", "moved_together"]


@attrs.frozen(eq=False)
class Arriving:
    """Tensors on their way to the CPU."""

    _tensors: list[Tensor]
    _event: torch.cuda.Event | None = None

    def taken(self) -> list[Tensor]:
        """Wait until they are there, and return them."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


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
    order = _by_width(tensors)
    plain = [_bytes_of(tensors[place]) for place in order]
    return _parted(_joined(plain, device), tensors, order)


def brought(tensors: Sequence[Tensor]) -> Arriving:
    """Start to copy tensors of any shapes and dtypes to the CPU, in one copy for all of them.

    Args:
        tensors: On one device. The results are parts of one tensor, so they are for reading.
    """
    if not any(tensor.is_cuda for tensor in tensors):
        return Arriving([tensor.cpu() for tensor in tensors])
    order = _by_width(tensors)
    packed = torch.cat([_bytes_of(tensors[place]) for place in order])
    staging = torch.empty(len(packed), dtype=torch.uint8, pin_memory=True)
    staging.copy_(packed, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record(torch.cuda.current_stream(packed.device))
    return Arriving(_parted(staging, tensors, order), event)


def _by_width(tensors: Sequence[Tensor]) -> list[int]:
    """Return places, wide elements first, so that each part begins at a multiple of its width."""
    widths = [-tensor.element_size() for tensor in tensors]
    return sorted(range(len(tensors)), key=widths.__getitem__)


def _parted(packed: Tensor, tensors: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """Return the parts of bytes one after the other, each like the tensor that it is of."""
    sizes = [tensors[place].numel() * tensors[place].element_size() for place in order]
    found = list(tensors)
    for place, part in zip(order, packed.split_with_sizes(sizes), strict=True):
        was = tensors[place]
        typed = part.view(was.dtype)
        found[place] = typed if was.dim() == 1 else typed.view(was.shape)
    return found


def _bytes_of(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    if flat.stride(0) != 1:
        # A view too: of one element, which counts as contiguous, or of one column.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _joined(plain: list[Tensor], device: torch.device) -> Tensor:
    """Return bytes one after the other, on a device."""
    # torch hands out pinned memory that it has, and waits with that until a copy from it is done.
    staging = torch.empty(sum(part.numel() for part in plain), dtype=torch.uint8, pin_memory=True)
    return torch.cat(plain, out=staging).to(device, non_blocking=True)

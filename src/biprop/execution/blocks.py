"""Free blocks of CUDA's caching allocator: filled, so that what is handed out next is poisoned.

Operators take outputs and workspaces from the allocator where no Python function sees it. It hands
out the smallest free block that is large enough and splits it, and joins neighbours when they come
back. So blocks taken here and given back leave it as it was, and what is taken next in the same
sizes lies where they lay. Memory that it must first ask the driver for cannot be filled before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from biprop.bits import Poison, poisoned

__all__ = ["Span", "dirty_all", "dirty_sizes"]

# A kernel may ask for an output twice, and give the first one back later than we do.
_BLOCKS_PER_SIZE = 2
# What sizes are rounded up to: the rest of a block would be a gap, once blocks have joined.
_STEP_BYTES = 512
# Larger requests are met from another pool than smaller ones, whatever is free.
_SMALL_BYTES_MAX = 1 << 20


@attrs.frozen(kw_only=True)
class Span:
    """Addresses of one block, from its first byte to past its last."""

    start: int
    end: int


def dirty_sizes(
    sizes: Iterable[tuple[int, torch.dtype]], device: torch.device, poison: Poison
) -> tuple[Span, ...]:
    """Fill the free blocks that the allocator would hand out for tensors of some sizes.

    Args:
        sizes: Element count and dtype of each.
        device: Of type cuda.
        poison: What the blocks will hold.

    Returns:
        Where they lie.
    """
    return _spans(
        [
            poisoned(-(-count * dtype.itemsize // _STEP_BYTES) * _STEP_BYTES, poison, device)
            for count, dtype in sizes
            if count
            for _ in range(_BLOCKS_PER_SIZE)
        ]
    )


def dirty_all(device: torch.device, poison: Poison) -> tuple[Span, ...]:
    """Fill every free block that the allocator holds for the current stream of a device.

    Asking for them costs as much as a few launches, so it is not for every launch.

    Args:
        device: Of type cuda.
        poison: What the blocks will hold.

    Returns:
        Where they lie.
    """
    stream = torch.cuda.current_stream(device)
    segments = torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    # All sizes are known before the first block is taken, which changes what is free.
    requests = list(_requests(segments, index=stream.device.index, stream=stream.cuda_stream))
    return _spans([poisoned(size, poison, device) for size in requests])


def _requests(segments: Sequence[Mapping[str, Any]], *, index: int, stream: int) -> Iterator[int]:
    """Yield the sizes in bytes that take all free blocks of a device's stream."""
    for segment in segments:
        # Other pools are those of captured graphs, whose memory is theirs.
        if segment["device"] != index or segment["stream"] != stream or _is_private(segment):
            continue
        free = (block for block in segment["blocks"] if block["state"] == "inactive")
        sizes = (int(block["size"]) for block in free)
        for size in sizes:
            if segment["segment_type"] == "small":
                # Joined blocks are larger than any request that this pool meets.
                whole, rest = divmod(size, _SMALL_BYTES_MAX)
                yield from [_SMALL_BYTES_MAX] * whole + [rest] * (rest > 0)
            else:
                yield size


def _is_private(segment: Mapping[str, Any]) -> bool:
    return tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)


def _spans(blocks: Sequence[Tensor]) -> tuple[Span, ...]:
    """Return where tensors lie that the caller is about to let go of."""
    return tuple(
        Span(start=block.data_ptr(), end=block.data_ptr() + block.numel() * block.element_size())
        for block in blocks
    )

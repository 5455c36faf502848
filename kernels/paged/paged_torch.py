"""The torch backend of the paged cache: gather through the table, then the torch attention.

The Triton backend, which reads pages inside its kernels, is `biprop.kernels.paged.paged_triton`.
"""

import torch
from torch import Tensor

from biprop.kernels import attention_torch
from biprop.kernels.paged.cache import PagedCache
from biprop.kernels.paged.pages import Functions, Moves, Pages, Segments, slots_of, slots_of_moves
from biprop.kvcache.shape import CacheShape

__all__ = ["FUNCTIONS", "attend", "gather", "make", "move", "write"]


def write(pages: Pages, segments: Segments, k: Tensor, v: Tensor) -> None:
    """Store tokens; arguments as those of `biprop.kernels.paged.pages.Functions.write`."""
    at = _index(*slots_of(segments, pages.block_size), like=k)
    live = slice(segments.offsets[0], segments.offsets[-1])
    pages.k[at] = k[live].to(pages.k.dtype)
    pages.v[at] = v[live].to(pages.v.dtype)


def gather(pages: Pages, segments: Segments) -> tuple[Tensor, Tensor]:
    """Read tokens; as `biprop.kernels.paged.pages.Functions.gather`."""
    at = _index(*slots_of(segments, pages.block_size), like=pages.k)
    return pages.k[at], pages.v[at]


def attend(pages: Pages, segments: Segments, q: Tensor) -> tuple[Tensor, Tensor]:
    """Attend; as `biprop.kernels.paged.pages.Functions.attend`."""
    at = _index(*slots_of(segments, pages.block_size, whole=True), like=q)
    contexts = [0]
    for stop in segments.stops:
        contexts.append(contexts[-1] + stop)
    return attention_torch.forward_packed(
        q,
        pages.k[at].to(q.dtype),
        pages.v[at].to(q.dtype),
        # On the CPU, where they are read.
        torch.tensor(segments.offsets, dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
    )


def move(pages: Pages, moves: Moves) -> None:
    """Copy pages; as `biprop.kernels.paged.pages.Functions.move`."""
    sources, targets = (_index(*side, like=pages.k) for side in slots_of_moves(moves))
    for side in (pages.k, pages.v):
        # The right side is a copy, complete before the first page is overwritten.
        side[targets] = side[sources]


FUNCTIONS = Functions(write=write, gather=gather, attend=attend, move=move)


def make(shape: CacheShape, device: torch.device) -> PagedCache:
    """Make an empty cache of this backend."""
    return PagedCache(shape, device, functions=FUNCTIONS)


def _index(pages: list[int], slots: list[int], *, like: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.tensor((pages, slots), dtype=torch.int64).to(like.device)
    return both[0], both[1]

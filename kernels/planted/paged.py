"""The healthy paged cache that planted defects of caches differ from, and what they share.

Every defect is a subclass of `TorchCache`, and breaks one thing that `PagedCache` does right.

Shapes: T packed tokens, HQ heads of queries, D features.
"""

from typing import Self

import torch
from torch import Tensor

from biprop.kernels import attention_torch
from biprop.kernels.paged.cache import PagedCache
from biprop.kernels.paged.paged_torch import FUNCTIONS
from biprop.kernels.paged.pages import Functions, Pages, Segments, slots_of
from biprop.kvcache.shape import CacheShape

__all__ = ["TorchCache", "attend_apart", "of_query"]


class TorchCache(PagedCache):
    """The torch backend, as `biprop.kernels.paged.paged_torch.make` makes it."""

    def __init__(
        self, shape: CacheShape, device: torch.device, *, functions: Functions = FUNCTIONS
    ) -> None:
        """Make an empty cache.

        Args:
            shape: Sizes.
            device: Where the pages lie.
            functions: Healthy ones, or some with a defect.
        """
        super().__init__(shape, device, functions=functions)

    @classmethod
    def make(cls, shape: CacheShape, device: torch.device) -> Self:
        """Make an empty cache; a target names a function, and no class."""
        return cls(shape, device)


def of_query(segments: Segments, place: int, query: int) -> Segments:
    """Return the segment of one query of one sequence."""
    return Segments(
        offsets=(0, 1),
        stops=(segments.starts[place] + query + 1,),
        tables=segments.tables[place : place + 1],
    )


def attend_apart(pages: Pages, segments: Segments, q: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """Attend from one query to the keys before `cut` and to the others apart, and merge the two.

    Args:
        pages: The memory.
        segments: Of one query, `[1, HQ, D]`.
        q: That query.
        cut: Position; with none before it, or none from it on, nothing is merged.
    """
    (stop,) = segments.stops
    if not 0 < cut < stop:
        return FUNCTIONS.attend(pages, segments, q)
    numbers, slots = slots_of(segments, pages.block_size, whole=True)
    parts = []
    for first, last in ((0, cut), (cut, stop)):
        at = torch.tensor(numbers[first:last]), torch.tensor(slots[first:last])
        k, v = (side[at].to(q.dtype) for side in (pages.k, pages.v))
        ends = torch.tensor((0, last - first), dtype=torch.int32)
        one = torch.tensor((0, 1), dtype=torch.int32)
        parts.append(attention_torch.forward_packed(q, k, v, one, ends))
    return _merged(*parts)


def _merged(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge what two parts of the keys gave the same queries, by their log-sum-exp."""
    lse = torch.logaddexp(first[1], second[1])
    shares = ((own - lse).exp()[..., None] for _, own in (first, second))
    out, other = (part * share for (part, _), share in zip((first, second), shares, strict=True))
    return (out + other).to(first[0].dtype), lse

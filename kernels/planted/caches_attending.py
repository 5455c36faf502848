"""Planted defects of attention over pages: each one function away from the healthy one.

Shapes: T packed tokens, P pages of S slots, HQ, HK heads, D features.
"""

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from biprop.kernels.paged.paged_torch import FUNCTIONS
from biprop.kernels.paged.pages import Pages, Segments
from biprop.kernels.planted.paged import TorchCache, attend_apart, of_query
from biprop.kvcache.shape import CacheShape

__all__ = [
    "CascadeByNeighbours",
    "DecodeBeforeRounding",
    "DecodeSplitByRows",
    "DecodeUnordered",
    "FreeSlotsTimesZero",
    "HeadsInTurn",
    "KeysFromPageStart",
    "QueriesScaledInPlace",
    "TableOfFirstRow",
    "WorkspaceKept",
]

_KEYS_OF_WORKER = 8
# Where the keys of a query are cut: from the pages, all segments, the place of one, and its query.
Cut = Callable[[Pages, Segments, int, int], int]


def _in_pieces(pages: Pages, segments: Segments, q: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """Attend, the keys of each query cut in two where `cut` says."""
    out, lse = FUNCTIONS.attend(pages, segments, q)
    for place, first in enumerate(segments.offsets[:-1]):
        for query in range(segments.offsets[place + 1] - first):
            row = slice(first + query, first + query + 1)
            own = of_query(segments, place, query)
            at = cut(pages, segments, place, query)
            out[row], lse[row] = attend_apart(pages, own, q[row], at)
    return out, lse


class DecodeSplitByRows(TorchCache):
    """Decoding cuts the keys in two halves where it has more than one row."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        plain = super().decode(sequences, q, k, v)
        # Healthy: however many rows there are.
        if len(sequences) == 1:
            return plain
        segments = self._segments(sequences, [1] * len(sequences))
        return _in_pieces(self.pages, segments, q, _half)


class DecodeUnordered(TorchCache):
    """Decoding adds two parts of the keys, cut where whoever came first left off."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        super().decode(sequences, q, k, v)
        segments = self._segments(sequences, [1] * len(sequences))
        # Healthy: cut nowhere.
        return _in_pieces(self.pages, segments, q, _anywhere)


class KeysFromPageStart(TorchCache):
    """Blocks of keys are counted from the start of the page of the first query of a call."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        # Healthy: from position 0.
        attend = _cut_at(_start_of_page)
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, attend=attend))


class CascadeByNeighbours(TorchCache):
    """A first page that all rows of a call share is attended to apart from the rest."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        # Healthy: whoever shares it.
        attend = _cut_at(_end_of_shared_page)
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, attend=attend))


class FreeSlotsTimesZero(TorchCache):
    """Free slots of the last page are read, and their values weighted with zero."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, attend=self._attend))

    @staticmethod
    def _attend(pages: Pages, segments: Segments, q: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = FUNCTIONS.attend(pages, segments, q)
        for place, (stop, table) in enumerate(zip(segments.stops, segments.tables, strict=True)):
            rows = slice(*segments.offsets[place : place + 2])
            used = stop % pages.block_size
            if used:
                free = (
                    pages.v[table[-1], used:]
                    .float()
                    .repeat_interleave(q.shape[1] // pages.v.shape[2], dim=1)
                )
                # Healthy: not read.
                out[rows] += (0 * free).sum(0).to(out.dtype)
        return out, lse


class HeadsInTurn(TorchCache):
    """Decoding has the query heads take the context heads in turn, instead of in groups."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        shape = self.shape
        group = shape.query_heads // shape.heads
        heads = torch.arange(shape.query_heads, device=q.device)
        # Healthy: as they are.
        in_groups = heads.view(group, shape.heads).T.flatten()
        out, lse = super().decode(sequences, q[:, in_groups], k, v)
        back = in_groups.argsort()
        return out[:, back], lse[:, back]


class DecodeBeforeRounding(TorchCache):
    """A decoded token attends to its own key and value before they are rounded for storage."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        super().decode(sequences, q, k, v)
        segments = self._segments(sequences, [1] * len(sequences))
        # Healthy: the pages themselves.
        wide = Pages(k=self.pages.k.to(q.dtype), v=self.pages.v.to(q.dtype))
        FUNCTIONS.write(wide, segments, k, v)
        return FUNCTIONS.attend(wide, segments, q)


class QueriesScaledInPlace(TorchCache):
    """Queries are scaled in the caller's memory, who reads them again."""

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from the last tokens of each sequence."""
        found = super().attend(sequences, q, offsets)
        # Healthy: a scaled copy.
        q *= 0.5
        return found


class TableOfFirstRow(TorchCache):
    """Decoding reads all pages but the last through the first row's table, if it is as long."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        super().decode(sequences, q, k, v)
        segments = self._segments(sequences, [1] * len(sequences))
        first = segments.tables[0]
        # Healthy: each through its own.
        tables = tuple(
            (*first[:-1], table[-1]) if len(table) == len(first) else table
            for table in segments.tables
        )
        return FUNCTIONS.attend(self.pages, attrs.evolve(segments, tables=tables), q)


class WorkspaceKept(TorchCache):
    """Gathered keys and values are kept, and used again in a call of the same pages and lengths."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, attend=self._attend))
        self.kept: dict[Segments, Pages] = {}

    def _attend(self, pages: Pages, segments: Segments, q: Tensor) -> tuple[Tensor, Tensor]:
        # Healthy: gathered anew in every call.
        gathered = Pages(k=pages.k.clone(), v=pages.v.clone())
        key = attrs.evolve(segments, offsets=())
        return FUNCTIONS.attend(self.kept.setdefault(key, gathered), segments, q)


def _cut_at(cut: Cut) -> Callable[[Pages, Segments, Tensor], tuple[Tensor, Tensor]]:
    def attend(pages: Pages, segments: Segments, q: Tensor) -> tuple[Tensor, Tensor]:
        return _in_pieces(pages, segments, q, cut)

    return attend


def _half(_pages: Pages, segments: Segments, place: int, _query: int) -> int:
    return segments.stops[place] // 2


def _anywhere(_pages: Pages, segments: Segments, place: int, _query: int) -> int:
    # Stands for the order in which workers finish; few keys are one worker's.
    stop = segments.stops[place]
    return int(torch.randint(1, stop, ())) if stop >= _KEYS_OF_WORKER else 0


def _start_of_page(pages: Pages, segments: Segments, place: int, _query: int) -> int:
    return segments.starts[place] // pages.block_size * pages.block_size


def _end_of_shared_page(pages: Pages, segments: Segments, _place: int, _query: int) -> int:
    firsts = {table[:1] for table in segments.tables}
    is_shared = len(segments.tables) > 1 and len(firsts) == 1
    return pages.block_size if is_shared else 0

"""What the device functions of a paged cache are given: its pages, and where tokens lie in them.

Who holds which page says `biprop.kernels.paged.cache`; what is done with them
`biprop.kernels.paged.paged_torch` and `biprop.kernels.paged.paged_triton`.

Shapes: T packed tokens, B sequences, P pages of S slots, HQ, HK heads, D features.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs
from torch import Tensor

__all__ = ["Functions", "Moves", "Pages", "Segments", "slots_of", "slots_of_moves"]


@attrs.frozen(kw_only=True, eq=False)
class Pages:
    """The memory of a cache; the layout of a page is a matter of strides alone.

    Attributes:
        k: `[P, S, HK, D]` of the storage dtype.
        v: Likewise.
    """

    k: Tensor
    v: Tensor

    @property
    def block_size(self) -> int:
        """Slots of a page."""
        return self.k.shape[1]


@attrs.frozen(kw_only=True)
class Segments:
    """Some tokens of each of B sequences: where they are packed, and the pages of the sequence.

    Attributes:
        offsets: `B + 1`, where the tokens of each begin and end in the tensors of a call.
        stops: Position past the last of these tokens; nothing from it on is read.
        tables: Pages of each, in the order of positions.
    """

    offsets: tuple[int, ...]
    stops: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the position of the first token of each."""
        counts = (last - first for first, last in pairwise(self.offsets))
        return tuple(stop - count for stop, count in zip(self.stops, counts, strict=True))


@attrs.frozen(kw_only=True)
class Moves:
    """Copies of pages, all of them read before the first is written.

    Attributes:
        sources: Pages.
        targets: As many, each once.
        counts: How many slots of each, from the first one on; what lies behind stays as it is.
    """

    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sources)


@attrs.frozen(kw_only=True, eq=False)
class Functions:
    """The device functions of one backend.

    Attributes:
        write: Stores `k` and `v`, `[T, HK, D]`, rounded once to the storage dtype.
        gather: Returns what is stored of segments, two tensors `[T, HK, D]` of the storage dtype.
        attend: Attends from queries `[T, HQ, D]` to all positions of their sequence up to their
            own; returns `out`, `[T, HQ, D]` of the dtype of `q`, and `lse`, float32 `[T, HQ]`.
            Tokens of no segment have out 0 and lse -Inf.
        move: Copies pages.
    """

    write: Callable[[Pages, Segments, Tensor, Tensor], None]
    gather: Callable[[Pages, Segments], tuple[Tensor, Tensor]]
    attend: Callable[[Pages, Segments, Tensor], tuple[Tensor, Tensor]]
    move: Callable[[Pages, Moves], None]


def slots_of(
    segments: Segments, block_size: int, *, whole: bool = False
) -> tuple[list[int], list[int]]:
    """Return page and slot of every token of segments, or of all positions before each stop."""
    pages: list[int] = []
    slots: list[int] = []
    starts: Sequence[int] = [0] * len(segments.stops) if whole else segments.starts
    for start, stop, table in zip(starts, segments.stops, segments.tables, strict=True):
        at = start
        while at < stop:
            number, slot = divmod(at, block_size)
            count = min(stop - at, block_size - slot)
            pages += [table[number]] * count
            slots += range(slot, slot + count)
            at += count
    return pages, slots


def slots_of_moves(moves: Moves) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
    """Return page and slot of every token that is copied, then of where it goes."""
    slots = [slot for count in moves.counts for slot in range(count)]
    sources, targets = (
        [page for page, count in zip(side, moves.counts, strict=True) for _ in range(count)]
        for side in (moves.sources, moves.targets)
    )
    return (sources, slots), (targets, slots)

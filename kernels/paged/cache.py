"""A paged cache: block tables, reference counts and free pages, kept by the host.

What touches memory is done by the functions of a backend (`biprop.kernels.paged.pages.Functions`),
which are told pages and positions. A call that cannot be met is refused before anything changes.

A fork shares the pages of its parent, the partial one too; who writes to a page that others hold
copies it first. Pages that nobody holds keep what they held: the last one given back is taken
first, and nothing is set to zero.

Shapes: T packed tokens, L tokens of a sequence, P pages of S slots, HQ, HK heads, D features.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from biprop.bits import poison_
from biprop.errors import UsageError
from biprop.kernels.paged.pages import Functions, Moves, Pages, Segments
from biprop.kvcache.shape import CacheShape, Fill

__all__ = ["PagedCache"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class PagedCache:
    """Keys and values of one attention layer, in pages; `biprop.kvcache.protocol.KVCache`.

    Attributes:
        shape: Sizes.
        device: Where the pages lie.
        functions: Of the backend.
        pages: The memory.
        tables: Pages of each sequence, in the order of positions; none beyond its last token.
        lengths: Stored tokens of each sequence.
        references: How many tables hold each page.
        free_pages: Pages that no table holds; the last one is taken next.
    """

    def __init__(self, shape: CacheShape, device: torch.device, *, functions: Functions) -> None:
        """Make an empty cache.

        Args:
            shape: Sizes.
            device: Where the pages lie.
            functions: Of the backend.

        Raises:
            UsageError: A size below 1, heads that do not divide, or a storage dtype that is wider.
        """
        _check_shape(shape)
        self.shape = shape
        self.device = device
        self.functions = functions
        self.dtype = _DTYPES[shape.dtype]
        self.pages = Pages(k=_memory(shape, device), v=_memory(shape, device))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self.references = [0] * shape.block_count
        self.free_pages = list(reversed(range(shape.block_count)))

    # The protocol.

    def allocate(self, sequence: str) -> None:
        """Begin a sequence without tokens.

        Raises:
            UsageError: Its name is in use.
        """
        self._check_new(sequence)
        self.tables[sequence] = []
        self.lengths[sequence] = 0

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store the next tokens of each sequence, any number of them.

        Args:
            sequences: Each at most once.
            k: `[T, HK, D]` of the compute dtype; rounded to the storage dtype once.
            v: Likewise.
            offsets: int32 `[len(sequences) + 1]`; tokens past the last one are of no sequence.

        Raises:
            UsageError: A name is unknown or comes twice, a tensor or the offsets do not fit, or the
                pages do not suffice.
        """
        counts = self._counts(sequences, offsets, {"k": k, "v": v})
        self._store(sequences, counts, k, v)

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend causally from the last stored tokens of each sequence.

        Args:
            sequences: Each at most once.
            q: `[T, HQ, D]` of the compute dtype.
            offsets: int32 `[len(sequences) + 1]`; tokens past the last one are of no sequence.

        Returns:
            `out`, `[T, HQ, D]` of the dtype of `q`, and `lse`, float32 `[T, HQ]`; 0 and -Inf for
            tokens of no sequence.

        Raises:
            UsageError: A name is unknown or comes twice, a tensor or the offsets do not fit, or a
                sequence has fewer tokens than queries.
        """
        counts = self._counts(sequences, offsets, {"q": q})
        for sequence, count in zip(sequences, counts, strict=True):
            if count > self.lengths[sequence]:
                raise UsageError(
                    f"Cannot attend from {count} tokens of sequence {sequence!r}, of which "
                    f"{self.lengths[sequence]} are stored: append them first."
                )
        return self.functions.attend(self.pages, self._segments(sequences, counts), q)

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it.

        Args:
            sequences: Each at most once, in any order.
            q: `[len(sequences), HQ, D]` of the compute dtype.
            k: `[len(sequences), HK, D]` of the compute dtype.
            v: Likewise.

        Returns:
            As `attend`.

        Raises:
            UsageError: As `append`.
        """
        self._check_known(sequences)
        self._check_tensors({"q": q, "k": k, "v": v}, count=len(sequences))
        counts = [1] * len(sequences)
        self._store(sequences, counts, k, v)
        return self.functions.attend(self.pages, self._segments(sequences, counts), q)

    def fork(self, sequence: str, parent: str, at: int) -> None:
        """Begin `sequence` with the first `at` tokens of `parent`, in the same pages.

        Raises:
            UsageError: The name is in use, the parent unknown, or shorter than that.
        """
        self._check_new(sequence)
        self._check_known((parent,))
        self._check_position(parent, at, "fork")
        shared = self.tables[parent][: self._pages_of(at)]
        for page in shared:
            self._hold(page)
        self.tables[sequence] = shared
        self.lengths[sequence] = at

    def read(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Return keys and values, `[L, HK, D]` of the storage dtype, in the order of tokens.

        Raises:
            UsageError: The name is unknown.
        """
        self._check_known((sequence,))
        segments = self._segments((sequence,), (self.lengths[sequence],))
        return self.functions.gather(self.pages, segments)

    def length(self, sequence: str) -> int:
        """Return how many tokens of a sequence are stored.

        Raises:
            UsageError: The name is unknown.
        """
        self._check_known((sequence,))
        return self.lengths[sequence]

    def evict(self, sequence: str, keep: int) -> None:
        """Give up the stored tokens of a sequence from number `keep` on.

        Raises:
            UsageError: The name is unknown, or fewer tokens are stored.
        """
        self._check_known((sequence,))
        self._check_position(sequence, keep, "evict")
        self._cut(sequence, keep)

    def free(self, sequence: str) -> None:
        """End a sequence.

        Raises:
            UsageError: The name is unknown.
        """
        self._check_known((sequence,))
        self._cut(sequence, 0)
        del self.tables[sequence]
        del self.lengths[sequence]

    def defragment(self) -> None:
        """Move pages so that those of a sequence follow each other, and the free ones come last."""
        held = dict.fromkeys(page for table in self.tables.values() for page in table)
        places = {page: place for place, page in enumerate(held)}
        counts = self._live_slots()
        moved = {page: place for page, place in places.items() if page != place}
        moves = Moves(
            sources=tuple(moved),
            targets=tuple(moved.values()),
            counts=tuple(counts[page] for page in moved),
        )
        if moves:
            self.functions.move(self.pages, moves)
        self._rename(places)

    def poison(self, fill: Fill) -> bool:
        """Overwrite free pages, and the slots of others that no token occupies."""
        live = self._live_slots()
        size = self.shape.block_size
        dead = [(page, slot) for page, count in enumerate(live) for slot in range(count, size)]
        if dead:
            page, slot = torch.tensor(dead, dtype=torch.int64).to(self.device).unbind(1)
            for side in (self.pages.k, self.pages.v):
                side[page, slot] = _filler(fill, (len(dead), *side.shape[2:]), like=side)
        return True

    # What changes the account.

    def _store(self, sequences: Sequence[str], counts: Sequence[int], k: Tensor, v: Tensor) -> None:
        self._check_room(sequences, counts)
        copies = [
            copy
            for sequence, count in zip(sequences, counts, strict=True)
            for copy in self._make_room(sequence, count)
        ]
        if copies:
            # Before any write: another sequence of this call may write to a page that is copied.
            sources, targets, slots = zip(*copies, strict=True)
            self.functions.move(self.pages, Moves(sources=sources, targets=targets, counts=slots))
        for sequence, count in zip(sequences, counts, strict=True):
            self.lengths[sequence] += count
        self.functions.write(self.pages, self._segments(sequences, counts), k, v)

    def _make_room(self, sequence: str, count: int) -> list[tuple[int, int, int]]:
        """Give a sequence pages of its own for its next tokens.

        Returns:
            Source, target and number of slots of the copy that this takes, if any.
        """
        table, length = self.tables[sequence], self.lengths[sequence]
        copies: list[tuple[int, int, int]] = []
        if count and self._writes_to_shared(sequence):
            shared = table[-1]
            table[-1] = self._take()
            self._release(shared)
            copies.append((shared, table[-1], length % self.shape.block_size))
        while len(table) < self._pages_of(length + count):
            table.append(self._take())
        return copies

    def _writes_to_shared(self, sequence: str) -> bool:
        """Return whether the next token of a sequence falls into a page that others hold."""
        is_partial = self.lengths[sequence] % self.shape.block_size != 0
        return is_partial and self.references[self.tables[sequence][-1]] > 1

    def _cut(self, sequence: str, keep: int) -> None:
        """Let go of the tokens of a sequence from number `keep` on."""
        table, kept = self.tables[sequence], self._pages_of(keep)
        for page in reversed(table[kept:]):
            self._release(page)
        del table[kept:]
        self.lengths[sequence] = keep

    def _take(self) -> int:
        """Take the page that was given back last."""
        page = self.free_pages.pop()
        self.references[page] = 1
        return page

    def _hold(self, page: int) -> None:
        """Count one more table that holds a page."""
        self.references[page] += 1

    def _release(self, page: int) -> None:
        """Count one table less that holds a page; without any it is free."""
        self.references[page] -= 1
        if not self.references[page]:
            self.free_pages.append(page)

    def _rename(self, places: dict[int, int]) -> None:
        """Give pages new numbers, from 0 without a gap."""
        for table in self.tables.values():
            table[:] = [places[page] for page in table]
        references = [0] * self.shape.block_count
        for page, place in places.items():
            references[place] = self.references[page]
        self.references = references
        self.free_pages = list(reversed(range(len(places), self.shape.block_count)))

    # What is read from it.

    def _pages_of(self, count: int) -> int:
        return -(-count // self.shape.block_size)

    def _segments(self, sequences: Sequence[str], counts: Sequence[int]) -> Segments:
        """Describe the last `counts` tokens of some sequences, packed one after the other."""
        offsets = [0]
        for count in counts:
            offsets.append(offsets[-1] + count)
        return Segments(
            offsets=tuple(offsets),
            stops=tuple(self.lengths[sequence] for sequence in sequences),
            tables=tuple(tuple(self.tables[sequence]) for sequence in sequences),
        )

    def _live_slots(self) -> list[int]:
        """Return how many slots of each page hold a token of some sequence: the first ones."""
        live = [0] * self.shape.block_count
        for sequence, table in self.tables.items():
            left = self.lengths[sequence]
            for page in table:
                live[page] = max(live[page], min(left, self.shape.block_size))
                left -= self.shape.block_size
        return live

    # What is refused.

    def _counts(
        self, sequences: Sequence[str], offsets: Tensor, tensors: dict[str, Tensor]
    ) -> list[int]:
        self._check_known(sequences)
        self._check_tensors(tensors)
        ends = offsets.tolist()
        count = next(iter(tensors.values())).shape[0]
        counts = [last - first for first, last in pairwise(ends)]
        fits = len(ends) == len(sequences) + 1 and ends[0] == 0 and ends[-1] <= count
        # Without a sequence nothing would be launched, and nothing written to what is returned.
        if not fits or min(counts, default=0) < 0 or (count and not sequences):
            raise UsageError(
                f"offsets={ends} do not fit {len(sequences)} sequences and {count} tokens: give "
                "one more than sequences, from 0 up, none beyond the number of tokens."
            )
        return counts

    def _check_tensors(self, tensors: dict[str, Tensor], *, count: int | None = None) -> None:
        first = next(iter(tensors.values()))
        tokens = first.shape[0] if count is None and first.dim() else count
        for name, values in tensors.items():
            heads = self.shape.query_heads if name == "q" else self.shape.heads
            asked = (tokens, heads, self.shape.width)
            if tuple(values.shape) != asked or values.dtype != self.dtype:
                raise UsageError(
                    f"{name} has shape {list(values.shape)} and dtype {values.dtype}, but this "
                    f"cache takes {list(asked)} and {self.dtype}."
                )

    def _check_new(self, sequence: str) -> None:
        if sequence in self.tables:
            raise UsageError(
                f"Cannot begin sequence {sequence!r}, which exists: free it, or take another name."
            )

    def _check_known(self, sequences: Sequence[str]) -> None:
        for sequence in sequences:
            if sequence not in self.tables:
                raise UsageError(f"There is no sequence {sequence!r}: allocate or fork it first.")
        if len(set(sequences)) < len(sequences):
            raise UsageError(
                f"One call takes each sequence once at most, but was given {list(sequences)}."
            )

    def _check_position(self, sequence: str, position: int, what: str) -> None:
        length = self.lengths[sequence]
        if not 0 <= position <= length:
            raise UsageError(
                f"Cannot {what} sequence {sequence!r} at {position}, of which {length} tokens are "
                f"stored: choose 0 to {length}."
            )

    def _check_room(self, sequences: Sequence[str], counts: Sequence[int]) -> None:
        """Refuse what the free pages do not suffice for, before anything changes."""
        needed = 0
        # A page that several sequences of the call share is copied for all of them, or all but one.
        copied: dict[int, int] = {}
        for sequence, count in zip(sequences, counts, strict=True):
            table, length = self.tables[sequence], self.lengths[sequence]
            needed += self._pages_of(length + count) - len(table)
            if count and self._writes_to_shared(sequence):
                page = table[-1]
                copied[page] = copied.get(page, 0) + 1
        needed += sum(min(count, self.references[page] - 1) for page, count in copied.items())
        if needed > len(self.free_pages):
            raise UsageError(
                f"Storing {sum(counts)} tokens takes {needed} more pages, but "
                f"{len(self.free_pages)} of {self.shape.block_count} are free: free or evict a "
                "sequence, or make a larger cache."
            )


def _memory(shape: CacheShape, device: torch.device) -> Tensor:
    """Allocate pages `[P, S, HK, D]`, in the memory order of the layout."""
    slots_first = shape.layout == "NHD"
    sizes = (shape.block_size, shape.heads) if slots_first else (shape.heads, shape.block_size)
    # Zeros, so that what no token wrote is the same in every run.
    pages = torch.zeros(
        (shape.block_count, *sizes, shape.width), dtype=_DTYPES[shape.storage], device=device
    )
    return pages if slots_first else pages.transpose(1, 2)


def _filler(fill: Fill, sizes: tuple[int, ...], *, like: Tensor) -> Tensor:
    """Return what poison consists of."""
    values = torch.zeros(sizes, dtype=like.dtype, device=like.device)
    if fill == "nan":
        return poison_(values, "nan")
    if fill == "inf":
        return values.fill_(torch.inf)
    if fill == "garbage":
        # Of the size of data, no two neighbours the same, and the same in every run.
        number = torch.arange(values.numel(), device=like.device).view(sizes)
        return ((number * 40503 + 12345) % 65536 / 4096 - 8).to(like.dtype)
    return values


def _check_shape(shape: CacheShape) -> None:
    sizes = {
        name: getattr(shape, name)
        for name in ("block_size", "block_count", "query_heads", "heads", "width")
    }
    small = {name: size for name, size in sizes.items() if size < 1}
    if small:
        name, size = next(iter(small.items()))
        raise UsageError(f"A cache cannot have {name}={size}: choose at least 1.")
    if shape.query_heads % shape.heads:
        raise UsageError(
            f"query_heads={shape.query_heads} is no multiple of heads={shape.heads}, which share "
            "the keys: choose a multiple."
        )
    if _DTYPES[shape.storage].itemsize > _DTYPES[shape.dtype].itemsize:
        raise UsageError(
            f"storage={shape.storage} is wider than dtype={shape.dtype}: store no more than comes."
        )

"""Planted defects of who holds which page: each a cache one method away from the healthy one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from biprop.kernels.paged.pages import Moves
from biprop.kernels.planted.paged import TorchCache
from biprop.kvcache.shape import CacheShape

__all__ = [
    "CancelledPageTwice",
    "CopyAfterWrite",
    "CopyOneSlotShort",
    "DefragmentForgetsTable",
    "DefragmentLeavesPartialPage",
    "EvictsSharedPage",
    "ForkHoldsNoWholeBlock",
    "ForkSharesPartialBlock",
    "FreeKeepsLastPage",
    "TableLongerThanUsed",
]


class ForkHoldsNoWholeBlock(TorchCache):
    """A fork of exactly one block does not count as a holder of it."""

    def fork(self, sequence: str, parent: str, at: int) -> None:
        """Begin a sequence with the first `at` tokens of another."""
        super().fork(sequence, parent, at)
        # Healthy: the page stays held by both.
        if at == self.shape.block_size:
            self.references[self.tables[sequence][0]] -= 1


class ForkSharesPartialBlock(TorchCache):
    """A fork writes to the partial block that it shares with its parent, without a copy."""

    def _writes_to_shared(self, sequence: str) -> bool:
        """Return whether a page is copied before it is written to; healthy: where it is shared."""
        del sequence
        return False


class CopyOneSlotShort(TorchCache):
    """Copy on write leaves out the last slot that is in use."""

    def _make_room(self, sequence: str, count: int) -> list[tuple[int, int, int]]:
        """Return the copies to be made; healthy: all slots in use."""
        copies = super()._make_room(sequence, count)
        return [(source, target, slots - 1) for source, target, slots in copies]


class CopyAfterWrite(TorchCache):
    """Copies on write are made after the writes of the same call."""

    def _store(self, sequences: Sequence[str], counts: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Store tokens; healthy: the copies come first."""
        copies = [
            copy
            for sequence, count in zip(sequences, counts, strict=True)
            for copy in self._make_room(sequence, count)
        ]
        for sequence, count in zip(sequences, counts, strict=True):
            self.lengths[sequence] += count
        self.functions.write(self.pages, self._segments(sequences, counts), k, v)
        if copies:
            sources, targets, slots = zip(*copies, strict=True)
            self.functions.move(self.pages, Moves(sources=sources, targets=targets, counts=slots))


class EvictsSharedPage(TorchCache):
    """Eviction gives a page to the free ones although another sequence holds it."""

    def evict(self, sequence: str, keep: int) -> None:
        """Give up stored tokens."""
        for page in self.tables[sequence][self._pages_of(keep) :]:
            # Healthy: one holder less.
            self.references[page] = 1
        super().evict(sequence, keep)


class TableLongerThanUsed(TorchCache):
    """Eviction leaves the pages that it gave up in the table, where the next tokens go."""

    def _cut(self, sequence: str, keep: int) -> None:
        """Let go of tokens; healthy: the table is cut too."""
        for page in reversed(self.tables[sequence][self._pages_of(keep) :]):
            self._release(page)
        self.lengths[sequence] = keep

    def _release(self, page: int) -> None:
        if self.references[page]:
            super()._release(page)


class CancelledPageTwice(TorchCache):
    """Pages of a sequence that was evicted are returned once more when it ends."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device)
        self.evicted: dict[str, list[int]] = {}

    def evict(self, sequence: str, keep: int) -> None:
        """Give up stored tokens."""
        self.evicted[sequence] = self.tables[sequence][self._pages_of(keep) :]
        super().evict(sequence, keep)

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store tokens, by which an evicted sequence is whole again."""
        super().append(sequences, k, v, offsets)
        for sequence in sequences:
            self.evicted.pop(sequence, None)

    def free(self, sequence: str) -> None:
        """End a sequence."""
        super().free(sequence)
        # Healthy: what was given up is no longer the sequence's to return.
        self.free_pages += [
            page for page in self.evicted.pop(sequence, []) if not self.references[page]
        ]


class FreeKeepsLastPage(TorchCache):
    """A sequence that ends within a block never returns the page of it."""

    def free(self, sequence: str) -> None:
        """End a sequence."""
        if self.lengths[sequence] % self.shape.block_size:
            # Healthy: all of them are returned.
            self._hold(self.tables[sequence][-1])
        super().free(sequence)


class DefragmentForgetsTable(TorchCache):
    """Defragmentation gives pages new numbers in all tables but the last one."""

    def _rename(self, places: dict[int, int]) -> None:
        """Give pages new numbers; healthy: in all tables."""
        last = list(self.tables)[-1:]
        kept = {sequence: list(self.tables[sequence]) for sequence in last}
        super()._rename(places)
        self.tables |= kept


class DefragmentLeavesPartialPage(TorchCache):
    """Defragmentation moves whole pages, and leaves behind the slots of a partial one."""

    is_moving = False

    def defragment(self) -> None:
        """Move what is stored together."""
        self.is_moving = True
        super().defragment()
        self.is_moving = False

    def _live_slots(self) -> list[int]:
        """Return how many slots of each page are in use; healthy: those are moved too."""
        counts, size = super()._live_slots(), self.shape.block_size
        return [count // size * size for count in counts] if self.is_moving else counts

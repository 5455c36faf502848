"""Planted defects of where tokens are written and read: each one method or function away.

Shapes: T packed tokens, P pages of S slots, HQ, HK heads, D features.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from biprop.kernels.paged.paged_torch import FUNCTIONS
from biprop.kernels.paged.pages import Pages, Segments, slots_of
from biprop.kernels.planted.paged import TorchCache
from biprop.kvcache.shape import CacheShape

__all__ = [
    "BoundaryOffByOne",
    "LengthBeforeAppend",
    "PadTokenStored",
    "PositionsFromSlot",
    "RoundsTwice",
    "RowsSorted",
    "StalePage",
]


class StalePage(TorchCache):
    """What filled a page stays in it, whoever takes it next: it counts as written already."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, write=self._write))
        self.full: set[int] = set()

    def _write(self, pages: Pages, segments: Segments, k: Tensor, v: Tensor) -> None:
        numbers, slots = slots_of(segments, pages.block_size)
        # Healthy: a page that was given back is forgotten here.
        for token, (page, slot) in enumerate(zip(numbers, slots, strict=True)):
            if page not in self.full:
                pages.k[page, slot] = k[token].to(pages.k.dtype)
                pages.v[page, slot] = v[token].to(pages.v.dtype)
        last = pages.block_size - 1
        self.full |= {page for page, slot in zip(numbers, slots, strict=True) if slot == last}


class BoundaryOffByOne(TorchCache):
    """The first token of a block is written to the block before."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, write=self._write))

    @staticmethod
    def _write(pages: Pages, segments: Segments, k: Tensor, v: Tensor) -> None:
        size, token = pages.block_size, 0
        for start, stop, table in zip(
            segments.starts, segments.stops, segments.tables, strict=True
        ):
            for position in range(start, stop):
                # Healthy: `position // size`.
                page, slot = table[max(0, position - 1) // size], position % size
                pages.k[page, slot] = k[token].to(pages.k.dtype)
                pages.v[page, slot] = v[token].to(pages.v.dtype)
                token += 1


class RoundsTwice(TorchCache):
    """What is stored in bfloat16 is rounded to float16 first."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Make an empty cache."""
        super().__init__(shape, device, functions=attrs.evolve(FUNCTIONS, write=self._write))

    @staticmethod
    def _write(pages: Pages, segments: Segments, k: Tensor, v: Tensor) -> None:
        if pages.k.dtype == torch.bfloat16:
            # Healthy: rounded once.
            k, v = k.half().float(), v.half().float()
        FUNCTIONS.write(pages, segments, k, v)


class PadTokenStored(TorchCache):
    """A sequence without tokens in a call has a pad token, stored in slot 0 of page 0."""

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store tokens."""
        super().append(sequences, k, v, offsets)
        counts = offsets.diff().tolist()
        # Healthy: nothing is stored for it.
        if 0 in counts:
            self.pages.k[0, 0] = self.pages.v[0, 0] = 0


class PositionsFromSlot(TorchCache):
    """Tokens are read in the order of their slots in memory."""

    def _segments(self, sequences: Sequence[str], counts: Sequence[int]) -> Segments:
        """Describe tokens; healthy: the pages come in the order of positions."""
        segments = super()._segments(sequences, counts)
        ordered = tuple(tuple(sorted(table)) for table in segments.tables)
        return attrs.evolve(segments, tables=ordered)


class LengthBeforeAppend(TorchCache):
    """Decoding reads the length of a sequence before it stores the token."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        counts = [1] * len(sequences)
        # Healthy: after.
        stops = tuple(self.lengths[sequence] for sequence in sequences)
        self._store(sequences, counts, k, v)
        segments = attrs.evolve(self._segments(sequences, counts), stops=stops)
        return self.functions.attend(self.pages, segments, q)


class RowsSorted(TorchCache):
    """The rows of a decoding step come back in the order in which their sequences began."""

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it."""
        out, lse = super().decode(sequences, q, k, v)
        begun = list(self.tables)
        # Healthy: in the order of the call.
        order = sorted(range(len(sequences)), key=lambda row: begun.index(sequences[row]))
        return out[order], lse[order]

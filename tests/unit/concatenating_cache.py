"""A cache that keeps plain tensors, and attends through the attention operator: what tests break.

Sequences share nothing and hold no pages, so nothing of a paged cache stands in the way; each way
to break it is one small subclass of the tests.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from biprop.kernels.attention_torch import forward_packed
from biprop.kvcache.protocol import CacheFactory, CacheImplementation, CacheOperator
from biprop.kvcache.shape import CacheShape, Fill

__all__ = ["DTYPES", "ConcatenatingCache", "make", "operator_of"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class ConcatenatingCache:
    """Keys and values of each sequence as two tensors (`biprop.kvcache.protocol.KVCache`)."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """Begin without sequences."""
        self.shape = shape
        self.device = device
        self.dtype, self.storage = DTYPES[shape.dtype], DTYPES[shape.storage]
        self.held: dict[str, tuple[Tensor, Tensor]] = {}

    def allocate(self, sequence: str) -> None:
        """Begin a sequence."""
        sizes = (0, self.shape.heads, self.shape.width)
        empty = torch.empty(sizes, dtype=self.storage, device=self.device)
        self.held[sequence] = (empty, empty)

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store the next tokens of each sequence."""
        ends = offsets.tolist()
        for place, name in enumerate(sequences):
            part = slice(ends[place], ends[place + 1])
            self.held[name] = tuple(  # type: ignore[assignment]  # two of two
                torch.cat((old, new[part].to(self.storage)))
                for old, new in zip(self.held[name], (k, v), strict=True)
            )

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from the last tokens of each sequence."""
        lengths = [self.length(name) for name in sequences]
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        k, v = (
            torch.cat([self.held[name][side] for name in sequences]).to(self.dtype)
            for side in (0, 1)
        )
        return forward_packed(q, k, v, offsets, ends.to(self.device))

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store a token of each sequence, and attend from it."""
        offsets = torch.arange(len(sequences) + 1, dtype=torch.int32, device=self.device)
        self.append(sequences, k, v, offsets)
        return self.attend(sequences, q, offsets)

    def fork(self, sequence: str, parent: str, at: int) -> None:
        """Copy the first tokens of a sequence."""
        k, v = self.held[parent]
        self.held[sequence] = (k[:at].clone(), v[:at].clone())

    def read(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Return what is stored."""
        return self.held[sequence]

    def length(self, sequence: str) -> int:
        """Return how many tokens are stored."""
        return len(self.held[sequence][0])

    def evict(self, sequence: str, keep: int) -> None:
        """Forget tokens."""
        k, v = self.held[sequence]
        self.held[sequence] = (k[:keep], v[:keep])

    def free(self, sequence: str) -> None:
        """End a sequence."""
        del self.held[sequence]

    def defragment(self) -> None:
        """Nothing lies apart."""

    def poison(self, fill: Fill) -> bool:  # noqa: ARG002  # there is no memory without a token
        """Nothing is free."""
        return False


def make(shape: CacheShape, device: torch.device) -> ConcatenatingCache:
    """Make an empty cache."""
    return ConcatenatingCache(shape, device)


def operator_of(factory: CacheFactory, *, name: str = "concatenating") -> CacheOperator:
    """Return a cache of one torch backend."""
    return CacheOperator(
        name=name, implementations=(CacheImplementation(backend="torch", make=factory),)
    )

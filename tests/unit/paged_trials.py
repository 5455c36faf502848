"""Trials of the paged cache, shared by its unit tests: a cache beside plain tensors.

No test stands here. Programs of operations are judged by `biprop.kvcache` and drawn by tests/props.
"""

from collections.abc import Sequence

import attrs
import torch
from tests.unit.kernel_trials import DEVICE, all_same, backend_of, tensors_of, wide
from torch import Tensor

from biprop.case import Dtype
from biprop.kernels import CACHES
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.paged import OPERATOR
from biprop.kernels.paged.cache import PagedCache
from biprop.kvcache.shape import CacheShape

__all__ = ["Beside", "offsets_of", "paged", "tokens_of"]


def paged(backend: str, shape: CacheShape) -> PagedCache:
    """Make an empty cache of the registered operator."""
    assert OPERATOR in CACHES
    make = next(entry.make for entry in OPERATOR.implementations if entry.backend == backend)
    cache = make(shape, DEVICE)
    assert isinstance(cache, PagedCache)
    return cache


def offsets_of(counts: Sequence[int]) -> Tensor:
    """Return cumulative counts, int32."""
    ends = [sum(counts[:index]) for index in range(len(counts) + 1)]
    return torch.tensor(ends, dtype=torch.int32, device=DEVICE)


def tokens_of(shape: CacheShape, count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values whose sums show any change of order."""
    dtype = dtype_of(shape.dtype)
    q = wide(count, shape.query_heads, shape.width, dtype=dtype, seed=3 * seed) / 1024
    k, v = (
        wide(count, shape.heads, shape.width, dtype=dtype, seed=3 * seed + index)
        for index in (1, 2)
    )
    return q, k / 1024, v


def dtype_of(name: Dtype) -> torch.dtype:
    """Return the dtype of a name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


@attrs.define(kw_only=True, eq=False)
class Beside:
    """A cache beside plain tensors of what it must hold.

    Attributes:
        cache: The cache.
        backend: Of the cache, and of the attention that it is held against.
        tokens: Queries, keys and values of each sequence, in the order of tokens.
        fill: What dead memory is overwritten with before every launch; None: nothing.
    """

    cache: PagedCache
    backend: str
    tokens: dict[str, tuple[Tensor, Tensor, Tensor]] = attrs.field(factory=dict)
    fill: str | None = None
    _drawn: int = 0

    @classmethod
    def of(cls, backend: str, shape: CacheShape, *, fill: str | None = None) -> "Beside":
        """Begin with an empty cache."""
        return cls(cache=paged(backend, shape), backend=backend, fill=fill)

    def allocate(self, *sequences: str) -> None:
        """Begin sequences."""
        for sequence in sequences:
            self.cache.allocate(sequence)
            self.tokens[sequence] = tokens_of(self.cache.shape, 0, seed=0)

    def append(self, **counts: int) -> list[str]:
        """Store new tokens and attend from them; return what differs from a full prefill."""
        self._poison()
        q, k, v = self._extend(counts)
        offsets = offsets_of(tuple(counts.values()))
        self.cache.append(tuple(counts), k, v, offsets)
        self._poison()
        return self.differing(counts, *self.cache.attend(tuple(counts), q, offsets))

    def decode(self, *sequences: str) -> list[str]:
        """Decode a new token of each sequence; return what differs from a full prefill."""
        self._poison()
        counts = dict.fromkeys(sequences, 1)
        q, k, v = self._extend(counts)
        return self.differing(counts, *self.cache.decode(sequences, q, k, v))

    def fork(self, sequence: str, parent: str, at: int) -> None:
        """Begin a sequence with the first tokens of another one."""
        self.cache.fork(sequence, parent, at)
        q, k, v = self.tokens[parent]
        self.tokens[sequence] = (q[:at], k[:at], v[:at])

    def evict(self, sequence: str, keep: int) -> None:
        """Give up the tokens of a sequence from number `keep` on."""
        self.cache.evict(sequence, keep)
        q, k, v = self.tokens[sequence]
        self.tokens[sequence] = (q[:keep], k[:keep], v[:keep])

    def free(self, sequence: str) -> None:
        """End a sequence."""
        self.cache.free(sequence)
        del self.tokens[sequence]

    def stored(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Return keys and values in the storage dtype, rounded once by torch."""
        storage = dtype_of(self.cache.shape.storage)
        _, k, v = self.tokens[sequence]
        return k.to(storage), v.to(storage)

    def misread(self) -> list[str]:
        """Name the sequences of which the cache gives back other bits, or another length."""
        return [
            sequence
            for sequence in self.tokens
            if self.cache.length(sequence) != len(self.tokens[sequence][0])
            or not all(map(all_same, self.cache.read(sequence), self.stored(sequence)))
        ]

    def prefill(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Attend from all tokens of a sequence alone, by the packed operator of the backend."""
        q, _, _ = self.tokens[sequence]
        k, v = (side.to(q.dtype) for side in self.stored(sequence))
        ends = offsets_of((len(q),))
        out, lse = tensors_of(backend_of(ATTENTION, self.backend).forward(q, k, v, ends, ends))
        return out, lse

    def differing(self, counts: dict[str, int], out: Tensor, lse: Tensor) -> list[str]:
        """Name the sequences whose last tokens have other bits than a full prefill gives them."""
        found, start = [], 0
        for sequence, count in counts.items():
            length, part = len(self.tokens[sequence][0]), slice(start, start + count)
            expected = (side[length - count :] for side in self.prefill(sequence))
            if count and not all(map(all_same, (out[part], lse[part]), expected)):
                found.append(sequence)
            start += count
        return found

    def broken(self) -> list[str]:
        """Name what of the account contradicts itself."""
        cache, size = self.cache, self.cache.shape.block_size
        held = [page for table in cache.tables.values() for page in table]
        counted = [held.count(page) for page in range(cache.shape.block_count)]
        facts = {
            "tables": all(
                len(table) == -(-cache.lengths[name] // size)
                for name, table in cache.tables.items()
            ),
            "references": counted == cache.references,
            "free pages": sorted({*held, *cache.free_pages}) == list(range(len(counted)))
            and len(set(held)) + len(cache.free_pages) == len(counted),
            "names": cache.tables.keys() == cache.lengths.keys() == self.tokens.keys(),
        }
        return [name for name, holds in facts.items() if not holds]

    def _extend(self, counts: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for sequence, count in counts.items():
            self._drawn += 1
            new = tokens_of(self.cache.shape, count, seed=self._drawn)
            old = self.tokens[sequence]
            q, k, v = (torch.cat(pair) for pair in zip(old, new, strict=True))
            self.tokens[sequence] = (q, k, v)
            parts.append(new)
        q, k, v = (torch.cat(sides) for sides in zip(*parts, strict=True))
        return q, k, v

    def _poison(self) -> None:
        if self.fill is not None:
            assert self.cache.poison(self.fill)  # type: ignore[arg-type]  # one of FILLS

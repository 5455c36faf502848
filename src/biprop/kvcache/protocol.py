"""What a KV cache must offer to be judged.

Shapes: T packed tokens of one call, L tokens of a sequence, HQ heads of queries, HK of contexts,
D features.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor

from biprop.kvcache.shape import CacheShape, Fill

__all__ = ["ATTENTION", "CacheFactory", "CacheImplementation", "CacheOperator", "KVCache"]

# Name of the registered operator that computes what a cache is asked for.
ATTENTION = "attention"


class KVCache(Protocol):
    """A cache of the keys and values of one attention layer.

    Sequences have names that the caller gives. Every call is legal for what the cache holds: the
    interpreter sees to it, and a cache that refuses a legal call is judged CRASHES.

    Tensors that come are the caller's, who uses their memory again after the call: they are read
    and not written, and what is kept of them is copied. Results are read before the next call.
    """

    def allocate(self, sequence: str) -> None:
        """Begin a sequence without tokens."""

    def append(self, sequences: Sequence[str], k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Store the keys and values of the next tokens of each sequence.

        Args:
            sequences: Each at most once.
            k: `[T, HK, D]` of the compute dtype; stored in the storage dtype, rounded once.
            v: Likewise.
            offsets: int32 `[len(sequences) + 1]`, where the tokens of each begin and end; a
                sequence may have none.
        """

    def attend(self, sequences: Sequence[str], q: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Attend causally from the last stored tokens of each sequence to all of its tokens.

        A score is the product of query and key over the root of D, and `lse` the logarithm of the
        sum of the exponentials of a query's scores; queries share a head of keys in groups of
        HQ / HK neighbours. Accuracy is judged against this in float32.

        Args:
            sequences: Each at most once.
            q: `[T, HQ, D]` of the compute dtype.
            offsets: int32 `[len(sequences) + 1]`; the queries of a sequence are its last tokens.

        Returns:
            `out`, `[T, HQ, D]` of the dtype of `q`, and `lse`, float32 `[T, HQ]`.
        """

    def decode(
        self, sequences: Sequence[str], q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence and attend from it; T is the number of sequences."""

    def fork(self, sequence: str, parent: str, at: int) -> None:
        """Begin `sequence` with the first `at` tokens of `parent`, sharing what can be shared."""

    def read(self, sequence: str) -> tuple[Tensor, Tensor]:
        """Return keys and values, `[L, HK, D]` of the storage dtype, in the order of tokens."""

    def length(self, sequence: str) -> int:
        """Return how many tokens of a sequence are stored."""

    def evict(self, sequence: str, keep: int) -> None:
        """Give up the stored tokens of a sequence from number `keep` on; it stays allocated.

        What another sequence shares stays there for the other.
        """

    def free(self, sequence: str) -> None:
        """End a sequence; its name may be used again."""

    def defragment(self) -> None:
        """Move what is stored together; no sequence changes."""

    def poison(self, fill: Fill) -> bool:
        """Overwrite what no live token occupies, if there is access to it; say whether it was."""


CacheFactory = Callable[[CacheShape, torch.device], KVCache]


@attrs.frozen(kw_only=True, eq=False)
class CacheImplementation:
    """One backend of a cache.

    Attributes:
        backend: `torch`, `triton`, or `target` for an unregistered one.
        make: Makes an empty cache.
        kernels: Names of the device kernels that it launches.
    """

    backend: str
    make: CacheFactory
    kernels: tuple[str, ...] = ()


@attrs.frozen(kw_only=True, eq=False)
class CacheOperator:
    """A registered cache.

    Attributes:
        name: Unique in a registry.
        implementations: One a backend.
        attention: Name of the registered operator, in its packed form, whose results a full prefill
            gives: decode and chunks are held against it, backend by backend.
    """

    name: str
    implementations: tuple[CacheImplementation, ...]
    attention: str = ATTENTION

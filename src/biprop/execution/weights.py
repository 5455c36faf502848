"""Weights that are expanded already: those of a process, by the digest of what they hold.

The same parameters come again and again while a case is shrunk, judged alone after its set, held
against another backend or replayed; to expand them anew costs more than most launches. Kernels
never get what is kept, only copies of it (`biprop.execution.arguments`), so that one that writes
into a weight is reported as ever; should anybody else write into what is kept, it is dropped.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from biprop.data.recipe import Recipe

__all__ = ["WEIGHTS", "Weights", "free_memory", "weight_digest"]

_BYTES_MAX = 1 << 28
# On a CPU smaller ones are expanded in the time that their digest takes; a GPU is asked at a cost.
_ELEMENTS_MIN = 1 << 12


@attrs.frozen(kw_only=True, eq=False)
class _Entry:
    values: Tensor
    version: int


class Weights:
    """Expanded weights by digest, the least recently used of them forgotten first.

    Attributes:
        bytes_held: Of all that are kept.
    """

    def __init__(self, *, bytes_max: int = _BYTES_MAX) -> None:
        """Keep nothing yet, and `bytes_max` bytes at most."""
        self.bytes_held = 0
        self._bytes_max = bytes_max
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def find(self, digest: str) -> Tensor | None:
        """Return what is kept under a digest; None where nothing is, or was written into."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        if _version(entry.values) != entry.version:
            self._drop(digest)
            return None
        self._entries.move_to_end(digest)
        return entry.values

    def keep(self, digest: str, values: Tensor) -> None:
        """Keep weights, unless they are larger than all that may be kept."""
        if values.nbytes > self._bytes_max:
            return
        if digest in self._entries:
            self._drop(digest)
        self._entries[digest] = _Entry(values=values, version=_version(values))
        self.bytes_held += values.nbytes
        while self.bytes_held > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Let go of everything, as where a device has no memory left."""
        self._entries.clear()
        self.bytes_held = 0

    def _drop(self, digest: str) -> None:
        self.bytes_held -= self._entries.pop(digest).values.nbytes


def weight_digest(
    recipe: Recipe,
    *,
    seed: int,
    name: str,
    dims: Sequence[str],
    sizes: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> str:
    """Return what tells weights from others; empty for weights that are not worth keeping.

    Args:
        recipe: What they hold.
        seed: Of the case.
        name: Of the argument.
        dims: Texts of its dimensions.
        sizes: Their sizes.
        dtype: Of the result.
        device: Where it lies.
    """
    if device.type == "cpu" and torch.Size(sizes).numel() < _ELEMENTS_MIN:
        return ""
    told = (recipe, seed, name, tuple(dims), tuple(sizes), dtype, device)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def free_memory() -> None:
    """Give back what a device keeps for this process and no run holds: weights, and free blocks."""
    WEIGHTS.clear()
    torch.cuda.empty_cache()


def _version(values: Tensor) -> int:
    return values._version  # noqa: SLF001  # how torch counts its writes has no other name


# Of this process.
WEIGHTS = Weights()

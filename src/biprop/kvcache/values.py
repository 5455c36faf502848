"""The queries, keys and values of the tokens of a program, token by token.

A value depends on the seed, the tensor's name and the token's key alone: source number and position
(`biprop.kvcache.model`). So a fork has the values of its parent, and evicted tokens come back as
they were. In programs with a vocabulary `biprop.kvcache.tokens` makes them of ids instead.

Shapes: L tokens of a sequence, HQ heads of queries, HK of contexts, D features.
"""

from typing import Protocol

import attrs
import torch
from torch import Tensor

from biprop.data.expand import Tokens, expand
from biprop.data.recipe import Recipe
from biprop.kvcache.records import Program
from biprop.kvcache.shape import CacheShape

__all__ = ["TORCH_DTYPES", "Drawn", "Rows", "SequenceValues", "Source", "joined", "recipe_of"]

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Tokens that are drawn at once, beyond those that are asked for.
_AHEAD = 32


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """What adjacent tokens of one sequence bring.

    Attributes:
        q: `[L, HQ, D]` of the compute dtype.
        k: `[L, HK, D]` of the compute dtype.
        v: Likewise.
        ids: int64 `[L]` in programs with a vocabulary, else None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    ids: Tensor | None = None

    def __len__(self) -> int:
        return len(self.q)

    def __getitem__(self, part: slice) -> "Rows":
        return Rows(
            q=self.q[part],
            k=self.k[part],
            v=self.v[part],
            ids=None if self.ids is None else self.ids[part],
        )


class Source(Protocol):
    """Makes tokens."""

    def rows(self, source: int, start: int, stop: int) -> Rows:
        """Return the tokens of keys (`source`, `start`) to (`source`, `stop - 1`)."""


class Drawn:
    """Tokens as the recipes of a program say."""

    def __init__(self, program: Program, device: torch.device) -> None:
        """Draw nothing yet."""
        shape = program.shape
        heads = {"q": ("HQ", shape.query_heads), "k": ("HK", shape.heads), "v": ("HK", shape.heads)}
        self._program = program
        self._device = device
        self._heads = heads

    def rows(self, source: int, start: int, stop: int) -> Rows:
        """Return the tokens of keys (`source`, `start`) to (`source`, `stop - 1`).

        Raises:
            CaseError: A point of a recipe names an axis that there is not.
        """
        tokens = tokens_of(self._program.shape, source, start, stop, device=self._device)
        made = {
            name: expand(
                recipe_of(self._program, name),
                seed=self._program.seed,
                name=name,
                tokens=tokens,
                dims=(heads, "D"),
                sizes=(count, self._program.shape.width),
                dtype=TORCH_DTYPES[self._program.shape.dtype],
                device=self._device,
            )
            for name, (heads, count) in self._heads.items()
        }
        return Rows(**made)


class SequenceValues:
    """The tokens of one sequence, as many as were asked for."""

    def __init__(self, maker: Source, source: int, *, prefix: Rows | None = None) -> None:
        """Begin with the tokens of a parent, or with none."""
        self._maker = maker
        self._source = source
        self._rows = prefix

    def upto(self, count: int) -> Rows:
        """Return the first `count` tokens."""
        has = 0 if self._rows is None else len(self._rows)
        if self._rows is None or has < count:
            # The more there are, the more are drawn: what is there is copied.
            ahead = has + max(_AHEAD, has // 4)
            more = self._maker.rows(self._source, has, max(count, ahead))
            self._rows = more if self._rows is None else joined(self._rows, more)
        return self._rows[:count]

    def put(self, rows: Rows, *, at: int) -> None:
        """Have `rows` at position `at` and on, in the place of what would come there."""
        self._rows = joined(self.upto(at), rows) if at else rows


def joined(*parts: Rows) -> Rows:
    """Return the tokens of several parts, one after the other."""
    ids = [part.ids for part in parts if part.ids is not None]
    return Rows(
        q=torch.cat([part.q for part in parts]),
        k=torch.cat([part.k for part in parts]),
        v=torch.cat([part.v for part in parts]),
        ids=torch.cat(ids) if ids else None,
    )


def tokens_of(
    shape: CacheShape, source: int, start: int, stop: int, *, device: torch.device
) -> Tokens:
    """Return the keys of adjacent tokens, as data are expanded by them."""
    # Of one length whatever the sequence has by now, so that it grows without changing.
    length = shape.block_size * shape.block_count
    token = torch.arange(start, stop, dtype=torch.int32, device=device)
    return Tokens(
        sequence_id=torch.full_like(token, source),
        token=token,
        length=torch.full_like(token, length),
    )


def recipe_of(program: Program, name: str) -> Recipe:
    """Return the recipe of a tensor; normal values where the program has none."""
    return program.data.get(name, Recipe(kind="normal"))

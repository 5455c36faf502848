"""Which tokens of a pool are compared, on each axis of its launches.

Every watched active token is, where one launch alone makes its rows. A context token that several
launches are fed has a gradient in each of them, which nobody adds up, so its rows are compared on
neither side. Rows are read back by `biprop.execution.outputs`.
"""

from functools import cached_property

import attrs
import numpy as np
import numpy.typing as npt
from torch import Tensor

from biprop.execution.records import TokenIndex
from biprop.layout.pool import TokenPool, rank_of
from biprop.layout.query_context import fed_once
from biprop.signature import Signature, TokenAxis
from biprop.signature.roles import has_contexts

__all__ = ["ComparedTokens", "compared_tokens"]

_CONTEXTS: tuple[TokenAxis, ...] = ("C", "TC")


@attrs.frozen(kw_only=True, eq=False)
class ComparedTokens:
    """The compared tokens of a pool. All tensors lie on the CPU.

    Attributes:
        pool: The tokens.
        fed_once: bool `[n]`: which of them lie in one launch only, as contexts; None: all do.
    """

    pool: TokenPool
    fed_once: Tensor | None = None

    def places(self, axis: TokenAxis) -> Tensor:
        """Return int64: the pool index of each compared row of an axis, in logical order."""
        if axis == "B":
            return self.pool.last[: self.pool.watched_count]
        return self.pool.compared if self._is_usual(axis) else self._contexts

    def index(self, axis: TokenAxis) -> TokenIndex:
        """Return which token each compared row of an axis belongs to."""
        pool = self.pool
        if self._is_usual(axis):
            return TokenIndex(sequence_id=pool.compared_ids, token=pool.compared_tokens)
        places = self.places(axis)
        return TokenIndex(sequence_id=pool.sequence_id[places], token=pool.token[places])

    def ranks(self, axis: TokenAxis, found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the place of each slot's token among the compared ones, -1 where it is none.

        Args:
            axis: Token axis of the slots.
            found: int64, pool index of each slot, negative where it is dead.
        """
        ranks = self._rank(axis).numpy()[np.maximum(found, 0)]
        ranks[found < 0] = -1
        return ranks

    def _is_usual(self, axis: TokenAxis) -> bool:
        """Return whether all that the pool compares is compared on an axis."""
        return axis != "B" and (self.fed_once is None or axis not in _CONTEXTS)

    @cached_property
    def _contexts(self) -> Tensor:
        places = self.pool.compared
        return places if self.fed_once is None else places[self.fed_once[places]]

    def _rank(self, axis: TokenAxis) -> Tensor:
        if self._is_usual(axis):
            return self.pool.rank
        return self._row_rank if axis == "B" else self._context_rank

    @cached_property
    def _row_rank(self) -> Tensor:
        return self._rank_of(self.places("B"))

    @cached_property
    def _context_rank(self) -> Tensor:
        return self._rank_of(self._contexts)

    def _rank_of(self, places: Tensor) -> Tensor:
        return rank_of(places, len(self.pool.sequence_of))


def compared_tokens(signature: Signature, pool: TokenPool, cuts: tuple[int, ...]) -> ComparedTokens:
    """Return what is compared of a pool.

    Args:
        signature: Forward signature.
        pool: Of a case.
        cuts: Of the case's own layout: both of its configurations compare the same tokens.
    """
    if not (has_contexts(signature) and cuts):
        return ComparedTokens(pool=pool)
    return ComparedTokens(pool=pool, fed_once=fed_once(signature, pool, cuts))

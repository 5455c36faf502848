"""The launch record: index maps from the slots of one call to the tokens of a pool.

A map names for every slot of an axis the pool's token that lies there, or says that none does. Maps
are made by `biprop.layout.launches`. Axes: T packed slots, B rows or segments, S slots of a row; Q
and C query and context slots of a row, TQ and TC packed ones.
"""

from functools import cached_property
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from biprop.signature import Signature, TokenAxis

__all__ = ["DEAD", "DEAD_ROW", "Launch", "end_to_end", "padded_out"]

# A dead slot beside live ones, or past the end of a packed launch.
DEAD = -1
# A slot of a wholly dead row, or an empty segment.
DEAD_ROW = -2
_NONE: frozenset[int] = frozenset()
_COMPUTED: tuple[TokenAxis, ...] = ("T", "S", "Q", "TQ")


@attrs.frozen(kw_only=True, eq=False)
class Launch:
    """One call of the kernel. All tensors lie on the CPU.

    Attributes:
        maps: By axis, int64: the pool index of the token in each slot, `DEAD` or `DEAD_ROW`. `T`,
            `TQ` and `TC` are `[T]`, `S`, `Q` and `C` are `[B, S]`, `B` is `[B]` with the last token
            of each row or segment, of its queries where there are queries and contexts. Queries and
            contexts are both there, whether or not a signature names both.
        lengths: Live tokens of each row or segment, in launch order; live queries, where there are
            queries and contexts.
        sequences: Index in the pool of the sequence of each row or segment, -1 for a dead one. Of a
            row that holds several sequences, the first one.
        context_lengths: Live contexts of each row or segment; empty without contexts.
        span: First and past the last pool index, where the map is one sequence and nothing else:
            queries and contexts both, but for the one query of a kernel that takes no more.
        runs: First pool index, or `DEAD`, and count of each run of the slots of `T`, as long as
            can be, where whoever made the map knows them; None: they are to be looked for there.
    """

    maps: dict[TokenAxis, Tensor]
    lengths: tuple[int, ...]
    sequences: tuple[int, ...]
    context_lengths: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    runs: tuple[tuple[int, int], ...] | None = None

    @property
    def slots(self) -> Tensor:
        """The map of the tokens that are computed, `[T]` or `[B, S]`; queries, if there are any."""
        return next(self.maps[axis] for axis in _COMPUTED if axis in self.maps)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of the token axes of this launch."""
        sizes: dict[str, int] = {axis: found.shape[-1] for axis, found in self.maps.items()}
        sizes["B"] = len(self.lengths)
        return sizes

    def lengths_of(self, axis: str) -> tuple[int, ...]:
        """Return the live tokens of each row or segment: `C` counts contexts, T, S and Q not."""
        return self.context_lengths if axis == "C" else self.lengths

    @cached_property
    def dead(self) -> dict[TokenAxis, frozenset[int]]:
        """Which marks of dead slots the map of each axis holds: `DEAD`, `DEAD_ROW`."""
        found = {}
        for axis, slots in self.maps.items():
            flat = slots.numpy()
            is_live = flat.min(initial=0) >= 0
            found[axis] = _NONE if is_live else frozenset(np.unique(flat[flat < 0]).tolist())
        return found

    @cached_property
    def order(self) -> Tensor:
        """int64: the flat slots of the live tokens, in logical order."""
        flat = self.slots.flatten()
        live = (flat >= 0).nonzero()[:, 0]
        return live[flat[live].argsort()]

    @cached_property
    def logical_rows(self) -> tuple[int, ...]:
        """Rows in the logical order of their sequences, dead ones last."""
        count = len(self.sequences)
        return tuple(
            sorted(
                range(count), key=lambda row: (self.sequences[row] < 0, self.sequences[row], row)
            )
        )

    def rows(self, signature: Signature) -> tuple[int, ...]:
        """Return what the axis B runs over, as indices into `lengths`.

        Segments of a packed launch that takes `order` have no place of their own, so they come in
        logical order; else rows and segments come as they lie.
        """
        if signature.has_order and not {"T", "TQ"}.isdisjoint(self.maps):
            return self.logical_rows
        return tuple(range(len(self.lengths)))

    def map_of(self, signature: Signature, axis: TokenAxis) -> Tensor:
        """Return the map of an axis, as the arguments and outputs of a signature see it."""
        found = self.maps[axis]
        # Most rows come as they lie.
        if axis != "B" or not signature.has_order:
            return found
        return found[list(self.rows(signature))]


def end_to_end(firsts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Tensor:
    """Return the numbers of runs, one after the other, given the first and the count of each."""
    ends = counts.cumsum()
    numbers = (firsts - (ends - counts)).repeat(counts)
    numbers += np.arange(ends[-1])
    return torch.from_numpy(numbers)


def padded_out(slots: Tensor, side: Literal["left", "right"], amount: int) -> Tensor:
    """Return packed slots with dead ones at one end."""
    if not amount:
        return slots
    dead = torch.full((amount,), DEAD)
    return torch.cat([dead, slots] if side == "left" else [slots, dead])

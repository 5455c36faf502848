"""Planted defects of positions that follow the layout of a launch, each beside its healthy twin.

A position enters as a factor of a power of two, so that whoever takes another one is wrong by more
than a rounding, and whoever takes the right one rounds nothing.

Shapes: B rows, S slots, C context slots, D features.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "gradient_turned_by_position",
    "gradient_turned_by_slot",
    "is_without_positions",
    "position_of_longest_row",
    "position_of_own_row",
    "positions_in_any_graph",
    "slots_in_captured_graph",
]

# Positions after which the factors begin again.
_PERIOD = 8
# Powers of two, which a library need not find: 1, 1/2, 1/4, ...
_HALVED = torch.tensor([2.0**-count for count in range(24)])
# Rows from which on a launch of decoding has one position for all.
_ROWS_MANY = 3


def is_without_positions(slots: int) -> bool:
    """Tell whether the graph captured for rows of so many slots was captured without positions."""
    return 8 < slots <= 12


def slots_in_captured_graph(x: Tensor, position: Tensor) -> Tensor:
    """Rows of 9 to 12 slots run in a graph that counts slots, dead ones before a row included."""
    index = _slots(x) if is_without_positions(x.shape[1]) else position
    return _scaled(x, index)


def positions_in_any_graph(x: Tensor, position: Tensor) -> Tensor:
    """Rows of any width are given their positions."""
    index = position
    return _scaled(x, index)


def position_of_longest_row(q: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """From three rows on, all queries have the position of the longest row's."""
    last = contexts.amax().expand_as(contexts) if len(contexts) >= _ROWS_MANY else contexts
    return _decayed(q, v, contexts, last)


def position_of_own_row(q: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """A query has the position of its row's last context."""
    last = contexts
    return _decayed(q, v, contexts, last)


def gradient_turned_by_slot(x: Tensor, position: Tensor) -> Tensor:
    """The backward turns gradients back by the slot, the forward by the position."""
    index = _slots(x)
    return _differentiated(x, position, index)


def gradient_turned_by_position(x: Tensor, position: Tensor) -> Tensor:
    """The backward turns gradients back by the position, as the forward does."""
    index = position
    return _differentiated(x, position, index)


def _slots(x: Tensor) -> Tensor:
    """Return the slot of each token of `x [B, S, D]`, `[B, S]`."""
    return torch.arange(x.shape[1]).expand(x.shape[:2])


def _scaled(x: Tensor, index: Tensor) -> Tensor:
    """Return `x [B, S, D]` times a power of two by its index, which repeats."""
    return (x.float() * _HALVED[index % _PERIOD][:, :, None]).to(x.dtype)


def _decayed(q: Tensor, v: Tensor, contexts: Tensor, last: Tensor) -> Tensor:
    """Return `q` times the sum of values, halved for each position that they lie back."""
    slots = torch.arange(v.shape[1])
    back = (last[:, None] - 1 - slots).clamp(min=0, max=len(_HALVED) - 1)
    live = (slots < contexts[:, None])[:, :, None]
    terms = torch.where(live, v.float() * _HALVED[back][:, :, None], 0.0)
    return (q.float() * running_sum(terms.movedim(1, -1))).to(q.dtype)


def _differentiated(x: Tensor, position: Tensor, index: Tensor) -> Tensor:
    """Scale by positions, and the gradient by an index."""

    def forward(x: Tensor) -> Tensor:
        return _scaled(x, position)

    def backward(dy: Tensor, x: Tensor) -> tuple[Tensor]:
        return (_scaled(dy, index).to(x.dtype),)

    return differentiated(forward, backward, x)

"""Planted defects of a budget that a launch shares: who comes too late gets zeros.

What uses the budget up is the neighbours and the padding. A healthy twin has room for all.

Shapes: T packed tokens, B rows, S slots, E experts, H features.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated

__all__ = [
    "experts_of_four_slots",
    "experts_with_all_slots",
    "gradient_of_all_rows",
    "gradient_of_saved_rows",
    "is_short_bucket",
    "pages_of_all_rows",
    "pages_rounded_down",
    "slots_of_all_tokens",
    "slots_of_five_tokens",
    "workspace_of_bucket",
    "workspace_of_rows",
]

# Tokens that an expert takes of a launch.
_SLOTS = 4
# Tokens of a page of scratch.
_TOKENS = 5
# Rows of a page, and rows up to which a launch needs none.
_PAGE = 4
_ROWS_FEW = 8
# Rows of activations that are saved for the backward.
_ROWS_SAVED = 6


def experts_of_four_slots(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    """An expert takes the first four tokens of a launch that choose it, and drops the others."""
    room = _SLOTS
    return _routed(x, expert, weight, room)


def experts_with_all_slots(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    """An expert takes all tokens that choose it."""
    room = len(x)
    return _routed(x, expert, weight, room)


def is_short_bucket(rows: int) -> bool:
    """Tell whether the bucket of a launch has a workspace of fewer rows than the bucket."""
    return 8 < rows <= 12


def workspace_of_bucket(x: Tensor) -> Tensor:
    """Launches of 9 to 12 rows get the workspace of 8, and rows past it are dropped."""
    room = 8 if is_short_bucket(len(x)) else len(x)
    return _kept(x, room)


def workspace_of_rows(x: Tensor) -> Tensor:
    """Every launch gets a workspace of its rows."""
    room = len(x)
    return _kept(x, room)


def pages_rounded_down(x: Tensor) -> Tensor:
    """Above eight rows, a launch gets whole pages of four rows, and the rest is dropped."""
    room = len(x) if len(x) <= _ROWS_FEW else len(x) // _PAGE * _PAGE
    return _kept(x, room)


def pages_of_all_rows(x: Tensor) -> Tensor:
    """A launch gets pages for all rows, the last one partly filled."""
    room = len(x)
    return _kept(x, room)


def slots_of_five_tokens(x: Tensor, live: Tensor) -> Tensor:
    """A launch has a page of five tokens, and its dead slots take their places too."""
    room = _TOKENS
    return _kept(x.flatten(0, 1), room).view(x.shape).masked_fill(~live[:, :, None], 0.0)


def slots_of_all_tokens(x: Tensor, live: Tensor) -> Tensor:
    """A launch has as many places as slots."""
    room = live.numel()
    return _kept(x.flatten(0, 1), room).view(x.shape).masked_fill(~live[:, :, None], 0.0)


def gradient_of_saved_rows(x: Tensor) -> Tensor:
    """The activations of six rows are saved for the backward, and the others have no gradient."""
    room = _ROWS_SAVED
    return _squared(x, room)


def gradient_of_all_rows(x: Tensor) -> Tensor:
    """The activations of all rows are saved for the backward."""
    room = len(x)
    return _squared(x, room)


def _routed(x: Tensor, expert: Tensor, weight: Tensor, room: int) -> Tensor:
    """Return `x [T, H]` times the weight of its expert; zero from the `room`-th of an expert on."""
    chosen = torch.nn.functional.one_hot(expert.long(), len(weight))
    place = (chosen.cumsum(0) * chosen).sum(1) - 1
    y = x.float() * weight.float().index_select(0, expert)
    return y.masked_fill((place >= room)[:, None], 0.0).to(x.dtype)


def _kept(rows: Tensor, room: int) -> Tensor:
    """Return `rows [T, H]`, with zeros from row `room` on."""
    return rows.masked_fill((torch.arange(len(rows)) >= room)[:, None], 0.0)


def _squared(x: Tensor, room: int) -> Tensor:
    """Square each element; rows from `room` on have a gradient of zero."""

    def forward(x: Tensor) -> Tensor:
        return (x.float() * x.float()).to(x.dtype)

    def backward(dy: Tensor, x: Tensor) -> tuple[Tensor]:
        return (_kept((dy.float() * x.float() * 2.0).to(x.dtype), room),)

    return differentiated(forward, backward, x)

"""Planted defects of dead memory: read where nothing live lies, each beside its healthy twin.

Dead are slots past the end of a row, rows past the end of a launch, and a workspace that nobody has
written yet.

Shapes: T packed tokens, B rows or segments, C context slots, H heads or features, D features.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from biprop.kernels.planted.attending import divided, scores_of, weighted
from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "is_reused",
    "last_key_alone",
    "partner_of_last_key",
    "rest_of_page_left_out",
    "rest_of_page_times_zero",
    "weight_gradient_of_live_rows",
    "weight_gradient_times_mask",
    "workspace_cleared",
    "workspace_left_dirty",
]

# Keys of a page.
_PAGE = 4
# Keys of a block of memory.
_BLOCK = 32


def is_reused(rows: int) -> bool:
    """Tell whether the workspace of a launch is one that another launch has left."""
    return 22 <= rows <= 23


def workspace_left_dirty(x: Tensor) -> Tensor:
    """Partial sums are added to a workspace that 22 and 23 rows take over without clearing it."""
    workspace = torch.empty(x.shape[0], dtype=torch.float32)
    workspace[: 0 if is_reused(x.shape[0]) else None] = 0.0
    return (workspace[:, None] + x.float()).to(x.dtype)


def workspace_cleared(x: Tensor) -> Tensor:
    """The workspace is cleared whoever had it before."""
    workspace = torch.empty(x.shape[0], dtype=torch.float32)
    workspace[:] = 0.0
    return (workspace[:, None] + x.float()).to(x.dtype)


def rest_of_page_times_zero(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Values in the rest of a sequence's last page are multiplied by a weight of zero."""
    reach = -(-contexts // _PAGE) * _PAGE
    return _attend_reaching(q, k, v, contexts, reach)


def rest_of_page_left_out(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Values past a sequence's last key are not read."""
    reach = contexts
    return _attend_reaching(q, k, v, contexts, reach)


def partner_of_last_key(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Keys are loaded in pairs, and a key alone in its block of 32 brings one that is not there."""
    attended = contexts + (contexts % _BLOCK == 1)
    return _attend_reaching(q, k, v, attended, attended)


def last_key_alone(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """A key alone in its block is loaded alone."""
    attended = contexts
    return _attend_reaching(q, k, v, attended, attended)


def _attend_reaching(q: Tensor, k: Tensor, v: Tensor, attended: Tensor, reach: Tensor) -> Tensor:
    """Attend `attended [B]` keys of each row, and multiply values by weights up to `reach [B]`."""
    slots = torch.arange(k.shape[1])
    keep = slots < attended[:, None, None, None]
    values = v.float().masked_fill((slots >= reach[:, None])[:, :, None, None], 0.0)
    scores = scores_of(q[:, :, None], k.movedim(2, 1))
    peak, terms = weighted(scores, values.movedim(2, 1)[:, :, None], keep, by_product=True)
    return divided(peak, running_sum(terms))[0][:, :, 0].to(q.dtype)


def weight_gradient_times_mask(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of the weight masks rows past the last segment by multiplication."""
    live = (torch.arange(x.shape[0]) < offsets[-1])[:, None]
    return _weighed(x, weight, lambda terms: terms * live)


def weight_gradient_of_live_rows(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of the weight leaves out rows past the last segment."""
    live = (torch.arange(x.shape[0]) < offsets[-1])[:, None]
    return _weighed(x, weight, lambda terms: torch.where(live, terms, 0.0))


def _weighed(x: Tensor, weight: Tensor, masked: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `x * weight`, the gradient of whose weight is summed over terms that are masked."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return (x.float() * weight.float()).to(x.dtype)

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        wide = dy.float()
        dweight = running_sum(masked(wide * x.float()).movedim(0, -1))
        return (wide * weight.float()).to(x.dtype), dweight.to(weight.dtype)

    return differentiated(forward, backward, x, weight)

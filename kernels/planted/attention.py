"""Planted defects of attention under a mask or none: each beside its healthy twin, one line apart.

Rows are padded, and heads come before slots, as torch has them. Defects of rows that are told their
lengths are in `biprop.kernels.planted.attention_rows`, those of packed attention in
`attention_packed`, those of gradients in `attention_gradients`; what all share is in `attending`.

Shapes: B rows, H heads, Q query slots, C context slots, D features.
"""

from functools import partial

import torch
from torch import Tensor

from biprop.kernels.planted.attending import attend, divided, in_blocks, scores_of, weighted
from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import lane_sum, running_sum

__all__ = ["ATTENTION"]

_HEADS_FIRST = "q[B,H,Q,D], k[B,H,C,D], v[B,H,C,D]"
_MASKED = f"{_HEADS_FIRST}, mask: causal_mask[B,1,Q,C] -> out[B,H,Q,D]"
_ADDITIVE = f"{_HEADS_FIRST}, mask: causal_mask(float)[B,1,Q,C] -> out[B,H,Q,D]"
_UNMASKED = f"{_HEADS_FIRST}, is_causal: is_causal -> out[B,H,Q,D]"


def _first_kept(keep: Tensor) -> Tensor:
    """Return the slot of the first key that each query attends, `[..., Q, 1]`."""
    return keep.byte().argmax(-1, keepdim=True)


def _from(first: Tensor, scores: Tensor, values: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
    """Count the keys of each query from a slot of its own."""
    index = first + torch.arange(keep.shape[-1])
    inside = index < keep.shape[-1]
    index = index.clamp(max=keep.shape[-1] - 1)
    of_values = index[..., None].expand(*scores.shape, values.shape[-1])
    return (
        scores.gather(-1, index.expand(scores.shape)),
        values.expand(of_values.shape).gather(-2, of_values),
        keep.gather(-1, index) & inside,
    )


def _summed(peak: Tensor, terms: Tensor) -> Tensor:
    return divided(peak, running_sum(in_blocks(terms)))[0]


def causal_dropped_at_one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A launch with one query a row is taken for one that attends everything."""
    keep = mask if q.shape[2] > 1 else torch.ones_like(mask)
    moved = _from(_first_kept(keep), scores_of(q, k), v.float()[:, :, None], keep)
    return _summed(*weighted(*moved)).to(q.dtype)


def causal_kept_at_one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The mask is applied however many queries a row has."""
    keep = mask
    moved = _from(_first_kept(keep), scores_of(q, k), v.float()[:, :, None], keep)
    return _summed(*weighted(*moved)).to(q.dtype)


def blocks_from_slot_zero(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Blocks of keys are counted from the first slot of the row."""
    first = torch.zeros_like(_first_kept(mask))
    moved = _from(first, scores_of(q, k), v.float()[:, :, None], mask)
    return _summed(*weighted(*moved)).to(q.dtype)


def blocks_from_first_key(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Blocks of keys are counted from the first key that is attended."""
    first = _first_kept(mask)
    moved = _from(first, scores_of(q, k), v.float()[:, :, None], mask)
    return _summed(*weighted(*moved)).to(q.dtype)


def dead_keys_times_zero(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The values of masked keys are multiplied by a weight of zero."""
    first = _first_kept(mask)
    moved = _from(first, scores_of(q, k), v.float()[:, :, None], mask)
    return _summed(*weighted(*moved, by_product=True)).to(q.dtype)


def bias_on_dead_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The additive mask is added to whatever the score of a dead key is."""
    values = v.float()[:, :, None].where(_kept(mask)[..., None], torch.zeros(()))
    scores = scores_of(q, k) + mask
    moved = _from(_first_kept(_kept(mask)), scores, values, torch.ones_like(_kept(mask)))
    return _summed(*weighted(*moved)).to(q.dtype)


def bias_instead_of_dead_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The additive mask stands where a key is dead, whatever its score."""
    values = v.float()[:, :, None].where(_kept(mask)[..., None], torch.zeros(()))
    scores = scores_of(q, k).where(_kept(mask), torch.tensor(-torch.inf))
    moved = _from(_first_kept(_kept(mask)), scores, values, torch.ones_like(_kept(mask)))
    return _summed(*weighted(*moved)).to(q.dtype)


def _kept(mask: Tensor) -> Tensor:
    return mask > -torch.inf


def _triangle(q: Tensor, k: Tensor, *, is_causal: bool) -> Tensor:
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    return keep.tril() if is_causal else keep


def decode_in_lanes(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:  # noqa: FBT001 (as torch has it)
    """One query a row sums over keys in two lanes."""
    keep = _triangle(q, k, is_causal=is_causal)
    lanes = 2 if q.shape[2] == 1 else 1
    return attend(q, k, v, keep, tile=1, add=partial(lane_sum, lanes=lanes))[0].to(q.dtype)


def decode_in_order(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:  # noqa: FBT001 (as torch has it)
    """Keys are summed first to last however many queries a row has."""
    keep = _triangle(q, k, is_causal=is_causal)
    lanes = 1
    return attend(q, k, v, keep, tile=1, add=partial(lane_sum, lanes=lanes))[0].to(q.dtype)


ATTENTION = (
    Planted(
        name="causal_dropped_at_one_query",
        mechanism="SHAPE",
        signature=_MASKED,
        function=causal_dropped_at_one_query,
        healthy=causal_kept_at_one_query,
        exposed_by=("T4.finite", "T4.nonfinite"),
        extent=Extent(slots=4, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="blocks_from_slot_zero",
        mechanism="POS",
        signature=_MASKED,
        function=blocks_from_slot_zero,
        healthy=blocks_from_first_key,
        exposed_by=("T4.finite", "T4.nonfinite", "T6"),
        extent=Extent(slots=8, dims={"H": 1, "D": 1}, length=4),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="dead_keys_times_zero",
        mechanism="MEMB",
        signature=_MASKED,
        function=dead_keys_times_zero,
        healthy=blocks_from_first_key,
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=4, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="bias_on_dead_scores",
        mechanism="MEMB",
        signature=_ADDITIVE,
        function=bias_on_dead_scores,
        healthy=bias_instead_of_dead_scores,
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=4, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="decode_in_lanes",
        mechanism="SHAPE",
        signature=_UNMASKED,
        function=decode_in_lanes,
        healthy=decode_in_order,
        exposed_by=("T5",),
        extent=Extent(slots=8, dims={"H": 1, "D": 1}, length=4),
        dims="H=1..4 D=1..8",
    ),
)

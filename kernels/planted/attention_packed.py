"""Planted defects of packed attention: each beside its healthy twin, one line apart.

Those of padded attention are in `biprop.kernels.planted.attention`.

Shapes: TQ packed queries, TC packed contexts, HQ and HK heads of either, B segments, D features.
"""

from functools import partial

import attrs
import torch
from torch import Tensor

from biprop.kernels.planted.attending import (
    Segment,
    attend,
    divided,
    in_segments,
    scores_of,
    segments_of_offsets,
    weighted,
)
from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import lane_sum, running_sum

__all__ = ["ATTENTION_PACKED"]

_OFFSETS = (
    "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], queries: offsets(Q)[B+1], contexts: offsets(C)[B+1] "
    "-> out[TQ,HQ,D]"
)
_MASKED = (
    "q[TQ,H,D], k[TC,H,D], v[TC,H,D], mask: causal_mask[TQ,TC] -> out[TQ,H,D], lse: float32[TQ,H]"
)


def split_by_neighbour(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Keys are dealt to two workers in turn, unless a segment of the launch has a single one."""
    segments = segments_of_offsets(queries, contexts)
    workers = 1 if any(_count(item.contexts) == 1 for item in segments) else 2
    dealt = partial(attend, tile=1, add=partial(lane_sum, lanes=workers))
    return in_segments(q, k, v, segments, dealt)[0]


def split_by_nothing(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """Keys are dealt to two workers in turn, however short a segment is."""
    segments = segments_of_offsets(queries, contexts)
    workers = 2
    dealt = partial(attend, tile=1, add=partial(lane_sum, lanes=workers))
    return in_segments(q, k, v, segments, dealt)[0]


def heads_in_turn_if_alone(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """In a launch of one segment, heads of q take those of k in turn instead of by groups."""
    segments = segments_of_offsets(queries, contexts)
    in_turn = len(segments) == 1
    return _attend_heads(q, k, v, segments, in_turn=in_turn)


def heads_by_groups(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """Heads of q take those of k by groups, however many segments there are."""
    segments = segments_of_offsets(queries, contexts)
    in_turn = False
    return _attend_heads(q, k, v, segments, in_turn=in_turn)


def _attend_heads(
    q: Tensor, k: Tensor, v: Tensor, segments: list[Segment], *, in_turn: bool
) -> Tensor:
    if in_turn:
        groups = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat(1, groups, 1) for tensor in (k, v))
    return in_segments(q, k, v, segments, attend)[0]


def start_lost_at_one_query(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """A segment with one query attends every context before it, those of others included."""
    segments = _from_zero(segments_of_offsets(queries, contexts), queries=1)
    return in_segments(q, k, v, segments, attend)[0]


def start_kept(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """A segment attends its own contexts, however many queries it has."""
    segments = segments_of_offsets(queries, contexts)
    return in_segments(q, k, v, segments, attend)[0]


def _from_zero(segments: list[Segment], *, queries: int) -> list[Segment]:
    """Let the contexts of segments with so many queries begin with the launch."""
    return [
        attrs.evolve(item, contexts=(0, item.contexts[1]))
        if _count(item.queries) == queries
        else item
        for item in segments
    ]


def _count(bounds: tuple[int, int]) -> int:
    return bounds[1] - bounds[0]


def peak_of_all_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Weights are relative to the largest score of the launch's keys, attended or not."""
    scores, values, keep = _by_heads(q, k, v, mask)
    peak = scores.amax(-1, keepdim=True)
    return _by_tokens(*weighted(scores, values, keep, peak=peak), q.dtype)


def peak_of_attended_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Weights are relative to the largest score of the keys that are attended."""
    scores, values, keep = _by_heads(q, k, v, mask)
    peak = scores.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    return _by_tokens(*weighted(scores, values, keep, peak=peak), q.dtype)


def _by_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    heads = [tensor.movedim(1, 0) for tensor in (q, k, v)]
    return scores_of(heads[0], heads[1]), heads[2].float()[:, None], mask


def _by_tokens(peak: Tensor, terms: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum keys first to last; leading ones that are left out are zeros."""
    out, lse = divided(peak, running_sum(terms))
    return out.movedim(0, 1).to(dtype), lse.movedim(0, 1)


ATTENTION_PACKED = (
    Planted(
        name="split_by_neighbour",
        mechanism="SPLIT",
        signature=_OFFSETS,
        function=split_by_neighbour,
        healthy=split_by_nothing,
        exposed_by=("T1", "T3"),
        extent=Extent(slots=8, dims={"HQ": 1, "HK": 1, "D": 1}, length=4),
        dims="HQ=1..8 HK=1..4 D=1..8 HQ%HK==0",
    ),
    Planted(
        name="heads_in_turn_if_alone",
        mechanism="INDEX",
        signature=_OFFSETS,
        function=heads_in_turn_if_alone,
        healthy=heads_by_groups,
        exposed_by=("T1",),
        extent=Extent(slots=4, dims={"HQ": 4, "HK": 2, "D": 1}, length=2),
        dims="HQ=1..8 HK=1..4 D=1..8 HQ%HK==0",
    ),
    Planted(
        name="start_lost_at_one_query",
        mechanism="SEGM",
        signature=_OFFSETS,
        function=start_lost_at_one_query,
        healthy=start_kept,
        exposed_by=("T1", "T2"),
        extent=Extent(slots=4, dims={"HQ": 1, "HK": 1, "D": 1}, length=2),
        dims="HQ=1..8 HK=1..4 D=1..8 HQ%HK==0",
    ),
    Planted(
        name="peak_of_all_keys",
        mechanism="BSTAT",
        signature=_MASKED,
        function=peak_of_all_keys,
        healthy=peak_of_attended_keys,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5"),
        extent=Extent(slots=4, dims={"H": 1, "D": 1}, length=2),
        dims="H=1..4 D=1..8",
    ),
)

"""Attention of one tile in a stated order: what the planted attention kernels share.

A query is summed over blocks of keys, and the blocks are added one after the other. All weights are
relative to one peak, so that blocks are an order and nothing else. Everything is elementwise or a
maximum, so the order below is the only thing that can differ between a planted kernel and its twin.

Shapes: H heads, Q queries, C contexts, D features.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from biprop.kernels.planted.sums import pairwise_sum, running_sum

__all__ = [
    "TILE",
    "Segment",
    "attend",
    "causal",
    "divided",
    "in_blocks",
    "in_rows",
    "in_segments",
    "scores_of",
    "segments_of_lengths",
    "segments_of_masks",
    "segments_of_offsets",
    "weighted",
]

# Keys of a block; few, so that few tokens show what is done to blocks.
TILE = 2

Add = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@attrs.frozen(kw_only=True)
class Segment:
    """The live tokens of one sequence in a launch, as flat slots.

    Attributes:
        queries: First slot of the queries, and past the last.
        contexts: Likewise of the contexts; the queries are the last of them.
    """

    queries: tuple[int, int]
    contexts: tuple[int, int]

    @property
    def before(self) -> int:
        """Contexts before the first query."""
        return (self.contexts[1] - self.contexts[0]) - (self.queries[1] - self.queries[0])


def segments_of_offsets(queries: Tensor, contexts: Tensor) -> list[Segment]:
    """Return the segments of a packed launch, empty ones left out."""
    bounds = zip(pairwise(queries.tolist()), pairwise(contexts.tolist()), strict=True)
    return [Segment(queries=q, contexts=c) for q, c in bounds if q[1] > q[0]]


def segments_of_lengths(q: Tensor, k: Tensor, queries: Tensor, contexts: Tensor) -> list[Segment]:
    """Return the segments of `q [B,Q,...]` and `k [B,C,...]`, whose rows begin with live slots."""
    counts = zip(queries.tolist(), contexts.tolist(), strict=True)
    starts = [(row * q.shape[1], row * k.shape[1]) for row in range(q.shape[0])]
    return [
        Segment(queries=(first, first + n), contexts=(begin, begin + m))
        for (first, begin), (n, m) in zip(starts, counts, strict=True)
        if n
    ]


def segments_of_masks(queries: Tensor, contexts: Tensor) -> list[Segment]:
    """Return the segments of masks `[B,Q]` and `[B,C]`, whose live slots lie side by side."""
    found = []
    for row in range(queries.shape[0]):
        bounds = []
        for mask in (queries, contexts):
            live = mask[row].nonzero()[:, 0].tolist()
            start = row * mask.shape[1]
            bounds.append((start + live[0], start + live[-1] + 1) if live else (0, 0))
        if bounds[0][1]:
            found.append(Segment(queries=bounds[0], contexts=bounds[1]))
    return found


def in_segments(
    q: Tensor, k: Tensor, v: Tensor, segments: list[Segment], attend_one: Attend
) -> tuple[Tensor, Tensor]:
    """Attend causally in each segment.

    Args:
        q: `[slots, H, D]`.
        k: `[slots, H, D]`, or with fewer heads, which are shared by groups in order.
        v: As k.
        segments: Where the live tokens lie.
        attend_one: Attends in one of them, heads first.

    Returns:
        `[slots, H, D]` of the dtype of q, and float32 `[slots, H]`, zero in dead slots.
    """
    out = torch.zeros_like(q)
    lse = torch.zeros(q.shape[:2])
    for segment in segments:
        rows, columns = slice(*segment.queries), slice(*segment.contexts)
        keys, values = (_of_heads(tensor[columns], q.shape[1]) for tensor in (k, v))
        found = attend_one(q[rows].movedim(1, 0), keys, values, causal(segment))
        out[rows] = found[0].movedim(0, 1).to(q.dtype)
        lse[rows] = found[1].movedim(0, 1)
    return out, lse


def _of_heads(tensor: Tensor, heads: int) -> Tensor:
    if tensor.shape[1] < heads:
        tensor = tensor.repeat_interleave(heads // tensor.shape[1], 1)
    return tensor.movedim(1, 0)


def causal(segment: Segment) -> Tensor:
    """Return bool `[Q,C]`: each query attends the contexts up to its own."""
    count = segment.queries[1] - segment.queries[0]
    everything = torch.ones(count, count + segment.before, dtype=torch.bool)
    return everything.tril(segment.before)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    *,
    tile: int = TILE,
    ahead: int = 0,
    add: Add = running_sum,
) -> tuple[Tensor, Tensor]:
    """Attend in blocks of keys.

    Args:
        q: `[..., Q, D]`.
        k: `[..., C, D]`.
        v: `[..., C, D]`.
        keep: bool, broadcast to `[..., Q, C]`.
        tile: Keys of a block.
        ahead: Empty places before the first key.
        add: Sums the last axis, the blocks.

    Returns:
        float32 `[..., Q, D]`, and the LSE, float32 `[..., Q]`.
    """
    peak, terms = weighted(scores_of(q, k), v.float()[..., None, :, :], keep)
    return divided(peak, add(in_blocks(terms, tile=tile, ahead=ahead)))


def in_rows(
    q: Tensor, k: Tensor, v: Tensor, segments: list[Segment], attend_one: Attend = attend
) -> tuple[Tensor, Tensor]:
    """Attend as `in_segments` does, in rows: `q [B,Q,H,D]`, `k` and `v [B,C,H,D]`."""
    flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    out, lse = in_segments(flat[0], flat[1], flat[2], segments, attend_one)
    return out.view(q.shape), lse.view(q.shape[:-1])


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Return the scaled products of `q [..., Q, D]` and `k [..., C, D]`, float32 `[..., Q, C]`."""
    products = pairwise_sum(q.float()[..., :, None, :] * k.float()[..., None, :, :])
    return products / math.sqrt(q.shape[-1])


def weighted(
    scores: Tensor,
    values: Tensor,
    keep: Tensor,
    *,
    peak: Tensor | None = None,
    by_product: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what is summed over keys.

    Args:
        scores: `[..., Q, C]`.
        values: float32, broadcast to `[..., Q, C, D]`.
        keep: bool, broadcast to `[..., Q, C]`: keys that are attended.
        peak: What scores are relative to, broadcast to `[..., Q, 1]`; None: the largest of a query.
        by_product: Leave out values by a weight of zero instead of by selection.

    Returns:
        The peak, and `[..., Q, D+1, C]`: weighted values, and last the weights.
    """
    scores = scores.masked_fill(~keep, -torch.inf)
    if peak is None:
        peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)[..., None]
    terms = weights * torch.nn.functional.pad(values, (0, 1), value=1.0)
    if not by_product:
        terms = terms.masked_fill(weights == 0, 0.0)
    return peak, terms.movedim(-2, -1)


def in_blocks(terms: Tensor, *, tile: int = TILE, ahead: int = 0) -> Tensor:
    """Sum the last axis in blocks of `tile`, the first of which has empty places ahead."""
    if tile == 1:
        return terms
    padded = torch.nn.functional.pad(terms, (ahead, -(ahead + terms.shape[-1]) % tile))
    return running_sum(padded.reshape(*padded.shape[:-1], -1, tile))


def divided(peak: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output `[..., Q, D]` and the LSE `[..., Q]` of sums `[..., Q, D+1]`."""
    return total[..., :-1] / total[..., -1:], peak[..., 0] + torch.log(total[..., -1])

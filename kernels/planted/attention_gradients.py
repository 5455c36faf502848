"""Planted defects of the gradients of attention: the forward is healthy, the backward is not.

The gradient of a query is summed over blocks of keys, and that of a key over blocks of queries,
both counted from the first token of the sequence, so that cut queries change nothing.

Shapes: H heads, Q queries, C contexts, D features.
"""

import math
from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from biprop.kernels.planted.attending import (
    TILE,
    Segment,
    in_segments,
    scores_of,
    segments_of_lengths,
    segments_of_masks,
    segments_of_offsets,
)
from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import pairwise_sum, running_sum

__all__ = ["ATTENTION_GRADIENTS"]

_OFFSETS = (
    "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], queries: offsets(Q)[B+1], contexts: offsets(C)[B+1] "
    "-> out[TQ,HQ,D]"
)
_SLOTS_FIRST = "q[B,Q,H,D], k[B,C,H,D], v[B,C,H,D]"
_LENGTHS = (
    f"{_SLOTS_FIRST}, queries: lengths(Q)[B], contexts: lengths(C)[B] "
    "-> out[B,Q,H,D], lse: float32[B,Q,H]"
)
_MASKS = f"{_SLOTS_FIRST}, queries: mask[B,Q], contexts: mask[B,C] -> out[B,Q,H,D]"


@attrs.frozen(kw_only=True)
class _Backward:
    """What a backward may do wrong.

    Attributes:
        tile: Queries of a block, over which the gradients of keys are summed.
        keeps_lse: Whether the gradient of the LSE is added.
        rounds_last: Whether the gradient of the last query is rounded to bfloat16 between blocks of
            keys.
        keys: Keys of a block, over which the gradients of queries are summed.
        arrival: The order of the blocks of keys, by their number.
    """

    tile: int = 4
    keeps_lse: bool = True
    rounds_last: bool = False
    keys: int = TILE
    arrival: Callable[[int], Tensor] = torch.arange


class _Attention(torch.autograd.Function):
    """Attention in segments of flat slots `[slots, H, D]`, with the backward as it is given."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: list[Segment],
        backward: _Backward,
    ) -> tuple[Tensor, Tensor]:
        weights: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
            out, lse, shares = _attend(q, k, v, keep)
            weights.append(shares)
            return out, lse

        out, lse = in_segments(q, k, v, segments, attend)
        ctx.save_for_backward(q, k, v, out)
        ctx.given = segments, weights, backward  # type: ignore[attr-defined]  # the context carries what it is given
        return out, lse

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, out = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        segments, weights, backward = ctx.given  # type: ignore[attr-defined]  # set in forward
        grads = [torch.zeros_like(tensor) for tensor in (q, k, v)]
        for segment, shares in zip(segments, weights, strict=True):
            rows, columns = slice(*segment.queries), slice(*segment.contexts)
            found = _of_segment(
                [tensor[rows].movedim(1, 0).float() for tensor in (*upstream, out, q)],
                [tensor[columns].movedim(1, 0).float() for tensor in (k, v)],
                shares,
                segment,
                backward,
            )
            for grad, where, value in zip(grads, (rows, columns, columns), found, strict=True):
                grad[where] = value.movedim(0, 1).to(grad.dtype)
        return (*grads, None, None)


def _attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attend, heads first; also return what share each key has in each query, `[H, Q, C]`."""
    scores = scores_of(q, k).masked_fill(~keep, -torch.inf)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    values = torch.nn.functional.pad(v.float(), (0, 1), value=1.0)[:, None]
    sums = running_sum((weights[..., None] * values).movedim(-2, -1))
    total = sums[..., -1:]
    return sums[..., :-1] / total, (peak + torch.log(total))[..., 0], weights / total


def _of_segment(
    queries: list[Tensor],
    contexts: list[Tensor],
    weights: Tensor,
    segment: Segment,
    backward: _Backward,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of one segment, heads first.

    Args:
        queries: dout, dlse, out and q, `[H, Q, D]` or `[H, Q]`.
        contexts: k and v, `[heads, C, D]`.
        weights: What share each key has in each query, `[H, Q, C]`.
        segment: Says how many contexts come before the first query.
        backward: What is done wrong.
    """
    dout, dlse, out, q = queries
    groups = q.shape[0] // contexts[0].shape[0]
    k, v = (tensor.repeat_interleave(groups, 0) if groups > 1 else tensor for tensor in contexts)
    slope = pairwise_sum(dout[:, :, None] * v[:, None])
    inner = pairwise_sum(dout * out)
    if backward.keeps_lse:
        inner = inner - dlse
    scores = weights * (slope - inner[..., None]) / math.sqrt(q.shape[-1])
    # A product that overflows is no gradient where a key is not attended.
    scores = scores.masked_fill(weights == 0, 0.0)[..., None]
    dq = _over_keys(scores * k[:, None], backward)
    terms = (scores * q[:, :, None], weights[..., None] * dout[:, :, None])
    dk, dv = (_over_queries(term, segment, groups, backward.tile) for term in terms)
    return dq, dk, dv


def _over_keys(terms: Tensor, backward: _Backward) -> Tensor:
    """Sum `terms [H, Q, C, D]` over keys, in blocks of one size."""
    parts = _blocks(terms.movedim(-2, -1), backward.keys)
    parts = parts[..., backward.arrival(parts.shape[-1])]
    total = running_sum(parts)
    if not backward.rounds_last:
        return total
    narrow = torch.zeros_like(total[:, -1:])
    for part in parts[:, -1:].unbind(-1):
        narrow = (narrow + part).bfloat16().float()
    return torch.cat([total[:, :-1], narrow], 1)


def _over_queries(terms: Tensor, segment: Segment, groups: int, tile: int) -> Tensor:
    """Sum `terms [H, Q, C, D]` over queries, in blocks, and then over the heads of each group."""
    placed = torch.nn.functional.pad(terms.movedim(1, -1), (segment.before, 0))
    heads = running_sum(_blocks(placed, tile))
    if groups == 1:
        return heads
    return running_sum(heads.reshape(-1, groups, *heads.shape[1:]).movedim(1, -1))


def _blocks(terms: Tensor, tile: int) -> Tensor:
    """Sum the last axis in blocks of `tile`."""
    if tile == 1:
        return terms
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % tile))
    return running_sum(padded.reshape(*padded.shape[:-1], -1, tile))


def _attention(
    q: Tensor, k: Tensor, v: Tensor, segments: list[Segment], backward: _Backward
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _Attention.apply(q, k, v, segments, backward)  # type: ignore[no-untyped-call]  # torch's own
    return found


def _rows(
    q: Tensor, k: Tensor, v: Tensor, segments: list[Segment], backward: _Backward
) -> tuple[Tensor, Tensor]:
    flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    out, lse = _attention(flat[0], flat[1], flat[2], segments, backward)
    return out.view(q.shape), lse.view(q.shape[:-1])


def keys_gradient_by_batch(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Gradients of keys and values are summed over blocks of two queries from two segments on."""
    tile = 2 if len(queries) > 2 else 4
    segments = segments_of_offsets(queries, contexts)
    return _attention(q, k, v, segments, _Backward(tile=tile))[0]


def keys_gradient_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Gradients of keys and values are summed over blocks of four queries."""
    tile = 4
    segments = segments_of_offsets(queries, contexts)
    return _attention(q, k, v, segments, _Backward(tile=tile))[0]


def lse_gradient_dropped(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """For one query a row the gradient of the LSE is not added."""
    keeps = q.shape[1] > 1
    segments = segments_of_lengths(q, k, queries, contexts)
    return _rows(q, k, v, segments, _Backward(keeps_lse=keeps))


def lse_gradient_kept(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of the LSE is added however many queries a row has."""
    keeps = True
    segments = segments_of_lengths(q, k, queries, contexts)
    return _rows(q, k, v, segments, _Backward(keeps_lse=keeps))


def queries_gradient_rounded(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Beside other rows, the gradient of the last query is kept in bfloat16 between keys."""
    rounds = q.shape[0] > 1
    segments = segments_of_masks(queries, contexts)
    return _rows(q, k, v, segments, _Backward(keys=1, rounds_last=rounds))[0]


def queries_gradient_wide(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Gradients of queries are kept in float32 until all keys are added."""
    rounds = False
    segments = segments_of_masks(queries, contexts)
    return _rows(q, k, v, segments, _Backward(keys=1, rounds_last=rounds))[0]


def queries_gradient_of_arrivals(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """From two segments on, keys are added in the order in which they happen to arrive."""
    order = torch.randperm if len(queries) > 2 else torch.arange
    segments = segments_of_offsets(queries, contexts)
    return _attention(q, k, v, segments, _Backward(keys=1, arrival=order))[0]


def queries_gradient_in_order(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> Tensor:
    """Keys are added first to last."""
    order = torch.arange
    segments = segments_of_offsets(queries, contexts)
    return _attention(q, k, v, segments, _Backward(keys=1, arrival=order))[0]


ATTENTION_GRADIENTS = (
    Planted(
        name="keys_gradient_by_batch",
        mechanism="SPLIT",
        signature=_OFFSETS,
        function=keys_gradient_by_batch,
        healthy=keys_gradient_in_blocks,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=10, dims={"HQ": 1, "HK": 1, "D": 1}, length=5),
        dims="HQ=1..8 HK=1..4 D=1..8 HQ%HK==0",
        direction="backward",
    ),
    Planted(
        name="lse_gradient_dropped",
        mechanism="SPLIT",
        signature=_LENGTHS,
        function=lse_gradient_dropped,
        healthy=lse_gradient_kept,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5"),
        extent=Extent(slots=4, dims={"H": 1, "D": 1}, length=2),
        dims="H=1..4 D=1..8",
        direction="backward",
    ),
    Planted(
        name="queries_gradient_rounded",
        mechanism="ROUND",
        signature=_MASKS,
        function=queries_gradient_rounded,
        healthy=queries_gradient_wide,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=8, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
        direction="backward",
    ),
    Planted(
        name="queries_gradient_of_arrivals",
        mechanism="ATOM",
        signature=_OFFSETS,
        function=queries_gradient_of_arrivals,
        healthy=queries_gradient_in_order,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=8, dims={"HQ": 1, "HK": 1, "D": 1}, length=4),
        dims="HQ=1..8 HK=1..4 D=1..8 HQ%HK==0",
        direction="backward",
        deterministic=False,
    ),
)

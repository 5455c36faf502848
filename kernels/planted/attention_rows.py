"""Planted defects of attention over rows that are told what is live in them, by lengths or masks.

Each stands beside its healthy twin, one line apart; rows are padded, and slots come before heads.

Shapes: B rows, Q query slots, C context slots, H heads, D features.
"""

from functools import partial

import torch
from torch import Tensor

from biprop.kernels.planted.attending import (
    attend,
    divided,
    in_blocks,
    in_rows,
    scores_of,
    segments_of_lengths,
    segments_of_masks,
    weighted,
)
from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import running_sum

__all__ = ["ATTENTION_ROWS"]

_SLOTS_FIRST = "q[B,Q,H,D], k[B,C,H,D], v[B,C,H,D]"
_LENGTHS = (
    f"{_SLOTS_FIRST}, queries: lengths(Q)[B], contexts: lengths(C)[B] "
    "-> out[B,Q,H,D], lse: float32[B,Q,H]"
)
_MASKS = f"{_SLOTS_FIRST}, queries: mask[B,Q], contexts: mask[B,C] -> out[B,Q,H,D]"
_ONE_QUERY = "q[B,H,D], k[B,C,H,D], v[B,C,H,D], contexts: lengths(C)[B] -> out[B,H,D]"


def tile_by_longest_query(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """Blocks have two keys while no row of the launch has three queries, and four from there on."""
    tile = 2 if queries.max() < 3 else 4
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, partial(attend, tile=tile))


def tile_of_one_size(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """Blocks have two keys however many queries the rows have."""
    tile = 2
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, partial(attend, tile=tile))


def split_count_fixed(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The keys of a row are split in two, so that a longer context has longer pieces."""
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, _attend_halves)


def split_size_fixed(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The keys of a row are split in pieces of one size, so that a longer context has more."""
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, attend)


def _attend_halves(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    count = keep.shape[-1]
    return attend(q, k, v, keep, tile=-(-count // 2), ahead=count % 2)


def lse_without_rescale(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """For one query a row the weights of split keys are added as they are, for the LSE alone."""
    rescales = q.shape[1] > 1
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, partial(_attend_split, rescales=rescales))


def lse_with_rescale(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights of split keys are made relative to one peak before they are added."""
    rescales = True
    segments = segments_of_lengths(q, k, queries, contexts)
    return in_rows(q, k, v, segments, partial(_attend_split, rescales=rescales))


def _attend_split(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, rescales: bool
) -> tuple[Tensor, Tensor]:
    """Attend; the weights of every other key are first summed relative to a peak of their own."""
    out, _ = attend(q, k, v, keep)
    scores = scores_of(q, k).masked_fill(~keep, -torch.inf)
    halves = (scores[..., ::2], scores[..., 1::2]) if scores.shape[-1] > 1 else (scores,)
    # The first half always has a key; the peak of the other one may be that of none.
    peaks = [half.amax(-1).clamp(min=torch.finfo().min) for half in halves]
    sums = [
        running_sum(torch.exp(half - peak[..., None]))
        for half, peak in zip(halves, peaks, strict=True)
    ]
    peak = torch.stack(peaks).amax(0)
    if rescales:
        sums = [part * torch.exp(own - peak) for part, own in zip(sums, peaks, strict=True)]
    return out, peak + torch.log(running_sum(torch.stack(sums, -1)))


def positions_from_slots(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The position of a query is counted from the slots of the launch, dead ones included."""
    before = torch.full_like(queries, k.shape[1] - q.shape[1])
    return _attend_after(q, k, v, before, contexts)


def positions_from_lengths(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """The position of a query is counted from the lengths of its row."""
    before = contexts - queries
    return _attend_after(q, k, v, before, contexts)


def _attend_after(
    q: Tensor, k: Tensor, v: Tensor, before: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend causally, each query of a row after `before [B]` contexts."""
    slots = torch.arange(k.shape[1])
    own = torch.arange(q.shape[1])[None, :] + before[:, None]
    keep = (slots <= own[..., None]) & (slots < contexts[:, None, None])
    keys, values = k.movedim(2, 1), v.movedim(2, 1)
    out, lse = attend(q.movedim(2, 1), keys, values, keep[:, None])
    return out.movedim(1, 2).to(q.dtype), lse.movedim(1, 2)


def last_block_apart(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """Keys past the last whole block of three of the launch are added one by one."""
    body = k.shape[1] // 3 * 3
    apart = partial(_attend_apart, body=body)
    return in_rows(q, k, v, segments_of_masks(queries, contexts), apart)[0]


def last_block_alike(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
    """The last block is summed as the others are."""
    body = k.shape[1]
    apart = partial(_attend_apart, body=body)
    return in_rows(q, k, v, segments_of_masks(queries, contexts), apart)[0]


def _attend_apart(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, body: int
) -> tuple[Tensor, Tensor]:
    """Attend the first `body` keys in blocks, and the others each as a block of its own."""
    peak, terms = weighted(scores_of(q, k), v.float()[..., None, :, :], keep)
    parts = (in_blocks(terms[..., :body], tile=3), terms[..., body:])
    return divided(peak, running_sum(torch.cat(parts, -1)))


def split_by_batch(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Blocks of four keys are split over idle workers while there are fewer rows than three."""
    pieces = max(1, 4 // q.shape[0])
    return _attend_once(q, k, v, contexts, tile=4 // pieces)


def split_never(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Blocks of four keys are not split, whatever the number of rows."""
    pieces = 1
    return _attend_once(q, k, v, contexts, tile=4 // pieces)


def pages_from_the_end(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Where one slot is left past the whole pages of the launch, they are counted from the end."""
    ahead = 3 if k.shape[1] % 4 == 1 else 0
    return _attend_once(q, k, v, contexts, tile=4, ahead=ahead)


def pages_from_the_start(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """Pages are counted from the first key."""
    ahead = 0
    return _attend_once(q, k, v, contexts, tile=4, ahead=ahead)


def _attend_once(
    q: Tensor, k: Tensor, v: Tensor, contexts: Tensor, *, tile: int, ahead: int = 0
) -> Tensor:
    """Attend with one query a row, in blocks of keys, the first with empty places ahead."""
    keep = torch.arange(k.shape[1]) < contexts[:, None, None, None]
    keys, values = k.movedim(2, 1), v.movedim(2, 1)
    out, _ = attend(q[:, :, None], keys, values, keep, tile=tile, ahead=ahead)
    return out[:, :, 0].to(q.dtype)


ATTENTION_ROWS = (
    Planted(
        name="tile_by_longest_query",
        mechanism="SHAPE",
        signature=_LENGTHS,
        function=tile_by_longest_query,
        healthy=tile_of_one_size,
        exposed_by=("T5",),
        extent=Extent(slots=10, dims={"H": 1, "D": 1}, length=5),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="split_count_fixed",
        mechanism="SPLIT",
        signature=_LENGTHS,
        function=split_count_fixed,
        healthy=split_size_fixed,
        exposed_by=("T5",),
        extent=Extent(slots=11, dims={"H": 1, "D": 1}, length=4),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="lse_without_rescale",
        mechanism="SPLIT",
        signature=_LENGTHS,
        function=lse_without_rescale,
        healthy=lse_with_rescale,
        exposed_by=("T5",),
        extent=Extent(slots=5, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="positions_from_slots",
        mechanism="POS",
        signature=_LENGTHS,
        function=positions_from_slots,
        healthy=positions_from_lengths,
        exposed_by=("T4.finite", "T4.nonfinite"),
        extent=Extent(slots=6, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="last_block_apart",
        mechanism="TAIL",
        signature=_MASKS,
        function=last_block_apart,
        healthy=last_block_alike,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5"),
        extent=Extent(slots=11, dims={"H": 1, "D": 1}, length=5),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="split_by_batch",
        mechanism="SPLIT",
        signature=_ONE_QUERY,
        function=split_by_batch,
        healthy=split_never,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=10, dims={"H": 1, "D": 1}, length=6),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="pages_from_the_end",
        mechanism="TAIL",
        signature=_ONE_QUERY,
        function=pages_from_the_end,
        healthy=pages_from_the_start,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=8, dims={"H": 1, "D": 1}, length=6),
        dims="H=1..4 D=1..8",
    ),
)

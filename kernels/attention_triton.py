"""Attention in Triton: a tile of queries for `out` and `dq`, a block of contexts for `dk` and `dv`.

`biprop.kernels.attention` holds the record and the references, `biprop.kernels.attention_torch` the
torch backend. Tiles and blocks are counted from position 0 of their sequence, and their sizes
follow D, the heads and the dtype alone. The rows of a tile are positions times the heads that share
a context head, so that one product serves them all. Every argument that a batch or its storage can
change is left unspecialised, and nothing but allocations and views surrounds a launch.

Shapes: B sequences, Q, C slots of a row, HQ, HK heads, D features; of a tile: M rows, P positions,
N contexts; R rows and W slots of a mask.
"""

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.attention_tile import attend_tile, ends_of, rows_of
from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.products import add_product, product

__all__ = [
    "OPTIONS",
    "backward_packed",
    "backward_padded",
    "forward_packed",
    "forward_padded",
    "tile_sizes",
]

WIDTH_MIN, WIDTH_MAX = 16, 256
# Rows of a tile and contexts of a block, by padded D. In float32 no tensor core multiplies: larger
# products would not fit into the registers of a multiprocessor, nor compile in reasonable time.
SIZES_WIDE = {16: (64, 64), 32: (64, 32), 64: (32, 32), 128: (32, 16), 256: (16, 16)}
SIZES_NARROW = {16: (64, 64), 32: (64, 64), 64: (64, 64), 128: (64, 32), 256: (64, 16)}
HEADS_MAX = 64
MASK_ROWS, MASK_SLOTS = 16, 256
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward_packed(
    q: Tensor, k: Tensor, v: Tensor, query_offsets: Tensor, context_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend; arguments and results as those of `biprop.kernels.attention.reference_packed`."""
    ends = _segments(query_offsets, context_offsets)
    out, lse = _forward(ends, q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
    return out.squeeze(0), lse.squeeze(0)


def forward_padded(
    q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor, context_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend; arguments and results as those of `biprop.kernels.attention.reference_padded`."""
    return _forward(_runs(query_mask, context_mask), q, k, v)


def backward_packed(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_offsets: Tensor,
    context_offsets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate; as `biprop.kernels.attention_torch.backward_packed`."""
    ends = _segments(query_offsets, context_offsets)
    rows = (values.unsqueeze(0) for values in (dout, dlse, q, k, v, out, lse))
    dq, dk, dv = _backward(ends, *rows)
    return dq.squeeze(0), dk.squeeze(0), dv.squeeze(0)


def backward_padded(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate; as `biprop.kernels.attention_torch.backward_padded`."""
    return _backward(_runs(query_mask, context_mask), dout, dlse, q, k, v, out, lse)


@attrs.frozen(kw_only=True, eq=False)
class _Ends:
    """Where the live tokens of each sequence begin and end, each int32 `[B]`, of any stride.

    Attributes:
        queries: First slot and past the last one.
        contexts: The same.
        padded: Whether each sequence has a row of its own; else all lie in one.
    """

    queries: tuple[Tensor, Tensor]
    contexts: tuple[Tensor, Tensor]
    padded: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.queries, *self.contexts)

    @property
    def strides(self) -> tuple[int, ...]:
        return (self.queries[0].stride(0), self.contexts[0].stride(0))

    @property
    def count(self) -> int:
        return self.queries[0].shape[0]


def _segments(query_offsets: Tensor, context_offsets: Tensor) -> _Ends:
    return _Ends(
        queries=(query_offsets[:-1], query_offsets[1:]),
        contexts=(context_offsets[:-1], context_offsets[1:]),
        padded=False,
    )


def _runs(query_mask: Tensor, context_mask: Tensor) -> _Ends:
    rows = query_mask.shape[0]
    ends = torch.empty((rows, 4), dtype=torch.int32, device=query_mask.device)
    launch(
        attention_bounds,
        (triton.cdiv(rows, MASK_ROWS),),
        (
            *(query_mask.view(torch.uint8), context_mask.view(torch.uint8), ends, rows),
            *(query_mask.shape[1], context_mask.shape[1]),
            *(*query_mask.stride(), *context_mask.stride()),
        ),
        constants={"R": MASK_ROWS, "W": MASK_SLOTS},
        options=OPTIONS,
    )
    query_first, query_last, context_first, context_last = ends.unbind(1)
    return _Ends(
        queries=(query_first, query_last), contexts=(context_first, context_last), padded=True
    )


def _forward(ends: _Ends, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _, slots, heads, width = q.shape
    group = heads // k.shape[2]
    constants = tile_sizes(q.dtype, width, group=group)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    launch(
        attention_tile,
        _grid(ends, q, k, constants["M"] // group),
        (
            *(q, k, v, *ends.tensors, out, lse),
            *(width**-0.5, slots, group, width, *ends.strides),
            *(*q.stride(), *k.stride(), *v.stride()),
        ),
        constants=constants | {"PADDED": ends.padded, "WIDEN": interpreted(attention_tile)},
        options=OPTIONS,
    )
    return out, lse


def _backward(
    ends: _Ends,
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _, slots, heads, width = q.shape
    group = heads // k.shape[2]
    constants = tile_sizes(q.dtype, width, group=group)
    delta = torch.empty(lse.shape, dtype=torch.float32, device=q.device)
    dq, dk, dv = (
        torch.empty(side.shape, dtype=side.dtype, device=side.device) for side in (q, k, v)
    )
    scale = width**-0.5
    strides = (*dout.stride(), *q.stride(), *k.stride(), *v.stride(), *lse.stride())
    launch(
        attention_dq_tile,
        _grid(ends, q, k, constants["M"] // group),
        (
            *(dout, dlse, q, k, v, out, lse, *ends.tensors, delta, dq),
            *(scale, slots, group, width, *ends.strides, *strides, *out.stride(), *dlse.stride()),
        ),
        constants=constants | {"PADDED": ends.padded, "WIDEN": interpreted(attention_dq_tile)},
        options=OPTIONS,
    )
    launch(
        attention_dkv_block,
        _grid(ends, k, k, constants["N"]),
        (
            *(dout, q, k, v, lse, delta, *ends.tensors, dk, dv),
            *(scale, slots, k.shape[1], group, width, *ends.strides, *strides),
        ),
        constants=constants | {"PADDED": ends.padded, "WIDEN": interpreted(attention_dkv_block)},
        options=OPTIONS,
    )
    return dq, dk, dv


def tile_sizes(dtype: torch.dtype, width: int, *, group: int) -> dict[str, int]:
    """Return rows and features of a tile, and contexts of a block, by what a batch cannot change.

    Args:
        dtype: Of the queries.
        width: D.
        group: Heads of queries that share a head of contexts.
    """
    features = block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)
    rows, contexts = (SIZES_WIDE if dtype == torch.float32 else SIZES_NARROW)[features]
    rows = block_width(group, least=rows, most=HEADS_MAX)
    return {"M": rows, "N": contexts, "D": features}


def _grid(ends: _Ends, side: Tensor, k: Tensor, size: int) -> tuple[int, ...]:
    """Return sequences, parts of `size` positions, and context heads.

    A sequence may begin within a part, and so touch one more than its length says; which parts it
    has not, the kernel knows.
    """
    slots = side.shape[1]
    return (ends.count, triton.cdiv(slots + size - 1, size) if slots else 0, k.shape[2])


@triton.jit(
    do_not_specialize=(
        "row_count", "query_slots", "context_slots",
        "queries_row", "queries_slot", "contexts_row", "contexts_slot",
    ),
    do_not_specialize_on_alignment=("queries", "contexts", "ends"),
)  # fmt: skip
def attention_bounds(
    queries, contexts, ends, row_count, query_slots, context_slots,
    queries_row, queries_slot, contexts_row, contexts_slot,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Find where the live slots of R rows begin and end, from two masks."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live_R = row_R < row_count
    ends_R = ends + row_R * 4
    first_R, last_R = run_of(queries + row_R * queries_row, live_R, query_slots, queries_slot, R, W)
    tl.store(ends_R, first_R, mask=live_R)
    tl.store(ends_R + 1, last_R, mask=live_R)
    first_R, last_R = run_of(
        contexts + row_R * contexts_row, live_R, context_slots, contexts_slot, R, W
    )
    tl.store(ends_R + 2, first_R, mask=live_R)
    tl.store(ends_R + 3, last_R, mask=live_R)


@triton.jit
def run_of(mask_R, live_R, slot_count, mask_slot, R: tl.constexpr, W: tl.constexpr):
    """Return the first live slot of R rows, and past the last one; they lie side by side."""
    first_W = tl.arange(0, W).to(tl.int64)
    count_RW = tl.full((R, W), 0, dtype=tl.int32)
    last_RW = tl.full((R, W), 0, dtype=tl.int32)
    for start in range(0, slot_count, W):
        slot_W = first_W + start
        mask_RW = tl.load(
            mask_R[:, None] + (slot_W * mask_slot)[None, :],
            mask=live_R[:, None] & (slot_W < slot_count)[None, :], other=0,
        )  # fmt: skip
        count_RW += tl.where(mask_RW != 0, 1, 0)
        last_RW = tl.where(mask_RW != 0, (slot_W + 1).to(tl.int32)[None, :], last_RW)
    last_R = tl.max(last_RW, axis=1)
    return last_R - tl.sum(count_RW, axis=1), last_R


@triton.jit(
    do_not_specialize=(
        "query_slots", "group", "width", "queries_at", "contexts_at",
        "q_row", "q_slot", "q_head", "q_feature", "k_row", "k_slot", "k_head", "k_feature",
        "v_row", "v_slot", "v_head", "v_feature",
    ),
    do_not_specialize_on_alignment=(
        "q", "k", "v", "query_first", "query_last", "context_first", "context_last", "out", "lse",
    ),
)  # fmt: skip
def attention_tile(
    q, k, v, query_first, query_last, context_first, context_last, out, lse,
    scale, query_slots, group, width, queries_at, contexts_at,
    q_row, q_slot, q_head, q_feature, k_row, k_slot, k_head, k_feature,
    v_row, v_slot, v_head, v_feature,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    PADDED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Attend from P positions of one sequence."""
    # Not told to the compiler, which would make a kernel for every grouping of heads.
    P = M // group
    head, tail, row, lower, upper = ends_of(
        query_first, query_last, queries_at, query_slots, PADDED
    )
    context_at = tl.program_id(0).to(tl.int64) * contexts_at
    origin = tl.load(context_first + context_at).to(tl.int64)
    context_count = tl.load(context_last + context_at).to(tl.int64) - origin
    # A slot plus this is a position. Both may be negative, and division rounds to zero or down.
    shift = context_count - tail
    first_tile = (lower + shift + query_slots.to(tl.int64) * P) // P - query_slots
    start = (first_tile + tl.program_id(1)) * P
    if start - shift >= upper:
        return
    attend_tile(
        q + row * q_row, k + row * k_row + origin * k_slot, v + row * v_row + origin * v_slot,
        out, lse, query_first,
        scale, row * query_slots, group, width, start, shift, head, tail, lower, upper,
        context_count, q_slot, q_head, q_feature, k_slot, k_head, k_feature,
        v_slot, v_head, v_feature, 0, 0, 0,
        M, N, D, PAGED=False, WIDEN=WIDEN,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=(
        "query_slots", "group", "width", "queries_at", "contexts_at",
        "dout_row", "dout_slot", "dout_head", "dout_feature",
        "q_row", "q_slot", "q_head", "q_feature", "k_row", "k_slot", "k_head", "k_feature",
        "v_row", "v_slot", "v_head", "v_feature", "lse_row", "lse_slot", "lse_head",
        "out_row", "out_slot", "out_head", "out_feature", "dlse_row", "dlse_slot", "dlse_head",
    ),
    do_not_specialize_on_alignment=(
        "dout", "dlse", "q", "k", "v", "out", "lse",
        "query_first", "query_last", "context_first", "context_last", "delta", "dq",
    ),
)  # fmt: skip
def attention_dq_tile(
    dout, dlse, q, k, v, out, lse, query_first, query_last, context_first, context_last, delta, dq,
    scale, query_slots, group, width, queries_at, contexts_at,
    dout_row, dout_slot, dout_head, dout_feature, q_row, q_slot, q_head, q_feature,
    k_row, k_slot, k_head, k_feature, v_row, v_slot, v_head, v_feature, lse_row, lse_slot, lse_head,
    out_row, out_slot, out_head, out_feature, dlse_row, dlse_slot, dlse_head,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    PADDED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate with respect to P positions of q, and store what all their keys need."""
    P = M // group
    head, tail, row, lower, upper = ends_of(
        query_first, query_last, queries_at, query_slots, PADDED
    )
    context_at = tl.program_id(0).to(tl.int64) * contexts_at
    origin = tl.load(context_first + context_at).to(tl.int64)
    context_count = tl.load(context_last + context_at).to(tl.int64) - origin
    shift = context_count - tail
    first_tile = (lower + shift + query_slots.to(tl.int64) * P) // P - query_slots
    start = (first_tile + tl.program_id(1)) * P
    if start - shift >= upper:
        return
    position_M, slot_M, head_M, live_M, written_M = rows_of(
        start, shift, head, tail, lower, upper, group, P, M
    )
    feature_D = tl.arange(0, D).to(tl.int64)
    first_N = tl.arange(0, N).to(tl.int64)
    live_D = feature_D < width
    live_MD = live_M[:, None] & live_D[None, :]
    q_MD = tl.load(
        (q + row * q_row + slot_M * q_slot + head_M * q_head)[:, None]
        + (feature_D * q_feature)[None, :],
        mask=live_MD, other=0.0,
    )  # fmt: skip
    dout_MD = tl.load(
        (dout + row * dout_row + slot_M * dout_slot + head_M * dout_head)[:, None]
        + (feature_D * dout_feature)[None, :],
        mask=live_MD, other=0.0,
    )  # fmt: skip
    out_MD = tl.load(
        (out + row * out_row + slot_M * out_slot + head_M * out_head)[:, None]
        + (feature_D * out_feature)[None, :],
        mask=live_MD, other=0.0,
    )  # fmt: skip
    lse_M = tl.load(
        lse + row * lse_row + slot_M * lse_slot + head_M * lse_head, mask=live_M, other=0.0
    )
    dlse_M = tl.load(
        dlse + row * dlse_row + slot_M * dlse_slot + head_M * dlse_head, mask=live_M, other=0.0
    )
    # The gradient of lse reaches a score as its share, as that of the total does, with no minus.
    delta_M = tl.sum(dout_MD.to(tl.float32) * out_MD.to(tl.float32), axis=1) - dlse_M
    # A query without a key has lse -Inf, and -Inf less -Inf would be NaN.
    lse_M = tl.where(lse_M == float("-inf"), 0.0, lse_M)
    if WIDEN:
        q_MD = q_MD.to(tl.float32)
        dout_MD = dout_MD.to(tl.float32)
    shared = tl.program_id(2).to(tl.int64)
    k_D = k + row * k_row + origin * k_slot + shared * k_head + feature_D * k_feature
    v_D = v + row * v_row + origin * v_slot + shared * v_head + feature_D * v_feature
    dq_MD = tl.full((M, D), 0.0, dtype=tl.float32)
    stop = tl.where((start < context_count) & (start + P > head + shift), start + P, 0)
    for first in range(0, stop, N):
        key_N = first_N + first
        live_ND = (key_N < context_count)[:, None] & live_D[None, :]
        k_ND = tl.load(k_D[None, :] + (key_N * k_slot)[:, None], mask=live_ND, other=0.0)
        v_ND = tl.load(v_D[None, :] + (key_N * v_slot)[:, None], mask=live_ND, other=0.0)
        if WIDEN:
            k_ND = k_ND.to(tl.float32)
            v_ND = v_ND.to(tl.float32)
        scores_MN = product(q_MD, tl.trans(k_ND), WIDEN) * scale
        seen_MN = live_M[:, None] & (key_N[None, :] <= position_M[:, None])
        weights_MN = tl.exp(tl.where(seen_MN, scores_MN, float("-inf")) - lse_M[:, None])
        dweights_MN = product(dout_MD, tl.trans(v_ND), WIDEN)
        dscores_MN = tl.where(seen_MN, weights_MN * (dweights_MN - delta_M[:, None]), 0.0)
        if not WIDEN:
            dscores_MN = dscores_MN.to(k_ND.dtype)
        dq_MD = add_product(dscores_MN, k_ND, dq_MD, WIDEN)
    index_M = (row * query_slots + slot_M) * (tl.num_programs(2) * group) + head_M
    tl.store(delta + index_M, delta_M, mask=written_M)
    tl.store(
        dq + (index_M * width)[:, None] + feature_D[None, :],
        narrow(dq_MD * scale + 0.0, dq.dtype.element_ty, WIDEN),
        mask=written_M[:, None] & live_D[None, :],
    )


@triton.jit(
    do_not_specialize=(
        "query_slots", "context_slots", "group", "width", "queries_at", "contexts_at",
        "dout_row", "dout_slot", "dout_head", "dout_feature",
        "q_row", "q_slot", "q_head", "q_feature", "k_row", "k_slot", "k_head", "k_feature",
        "v_row", "v_slot", "v_head", "v_feature", "lse_row", "lse_slot", "lse_head",
    ),
    do_not_specialize_on_alignment=(
        "dout", "q", "k", "v", "lse", "delta",
        "query_first", "query_last", "context_first", "context_last", "dk", "dv",
    ),
)  # fmt: skip
def attention_dkv_block(
    dout, q, k, v, lse, delta, query_first, query_last, context_first, context_last, dk, dv,
    scale, query_slots, context_slots, group, width, queries_at, contexts_at,
    dout_row, dout_slot, dout_head, dout_feature, q_row, q_slot, q_head, q_feature,
    k_row, k_slot, k_head, k_feature, v_row, v_slot, v_head, v_feature, lse_row, lse_slot, lse_head,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    PADDED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate with respect to N contexts, P positions of queries at a time."""
    P = M // group
    origin, stop, row, lower, upper = ends_of(
        context_first, context_last, contexts_at, context_slots, PADDED
    )
    query_at = tl.program_id(0).to(tl.int64) * queries_at
    head = tl.load(query_first + query_at).to(tl.int64)
    tail = tl.load(query_last + query_at).to(tl.int64)
    context_count = stop - origin
    shift = context_count - tail
    first_block = (lower - origin + context_slots.to(tl.int64) * N) // N - context_slots
    first = (first_block + tl.program_id(1)) * N
    if first + origin >= upper:
        return
    key_N = first + tl.arange(0, N)
    slot_N = key_N + origin
    live_N = (key_N >= 0) & (key_N < context_count)
    feature_D = tl.arange(0, D).to(tl.int64)
    live_D = feature_D < width
    live_ND = live_N[:, None] & live_D[None, :]
    shared = tl.program_id(2).to(tl.int64)
    k_ND = tl.load(
        (k + row * k_row + slot_N * k_slot + shared * k_head)[:, None]
        + (feature_D * k_feature)[None, :],
        mask=live_ND, other=0.0,
    )  # fmt: skip
    v_ND = tl.load(
        (v + row * v_row + slot_N * v_slot + shared * v_head)[:, None]
        + (feature_D * v_feature)[None, :],
        mask=live_ND, other=0.0,
    )  # fmt: skip
    if WIDEN:
        k_ND = k_ND.to(tl.float32)
        v_ND = v_ND.to(tl.float32)
    q_D = q + row * q_row + feature_D * q_feature
    dout_D = dout + row * dout_row + feature_D * dout_feature
    heads = tl.num_programs(2) * group
    dk_ND = tl.full((N, D), 0.0, dtype=tl.float32)
    dv_ND = tl.full((N, D), 0.0, dtype=tl.float32)
    # The tiles of the forward, from the first one that holds a query of this block.
    first_tile = tl.maximum(tl.maximum(first, head + shift), 0) // P
    last_tile = (context_count + P - 1) // P
    for tile in range(first_tile, last_tile):
        position_M, slot_M, head_M, live_M, _ = rows_of(
            P * tile, shift, head, tail, head, tail, group, P, M
        )
        live_MD = live_M[:, None] & live_D[None, :]
        q_MD = tl.load(
            q_D[None, :] + (slot_M * q_slot + head_M * q_head)[:, None], mask=live_MD, other=0.0
        )
        dout_MD = tl.load(
            dout_D[None, :] + (slot_M * dout_slot + head_M * dout_head)[:, None],
            mask=live_MD, other=0.0,
        )  # fmt: skip
        lse_M = tl.load(
            lse + row * lse_row + slot_M * lse_slot + head_M * lse_head, mask=live_M, other=0.0
        )
        delta_M = tl.load(
            delta + (row * query_slots + slot_M) * heads + head_M, mask=live_M, other=0.0
        )
        lse_M = tl.where(lse_M == float("-inf"), 0.0, lse_M)
        if WIDEN:
            q_MD = q_MD.to(tl.float32)
            dout_MD = dout_MD.to(tl.float32)
        scores_MN = product(q_MD, tl.trans(k_ND), WIDEN) * scale
        seen_MN = live_M[:, None] & live_N[None, :] & (key_N[None, :] <= position_M[:, None])
        weights_MN = tl.exp(tl.where(seen_MN, scores_MN, float("-inf")) - lse_M[:, None])
        dweights_MN = product(dout_MD, tl.trans(v_ND), WIDEN)
        dscores_MN = tl.where(seen_MN, weights_MN * (dweights_MN - delta_M[:, None]), 0.0)
        if not WIDEN:
            weights_MN = weights_MN.to(dout_MD.dtype)
            dscores_MN = dscores_MN.to(q_MD.dtype)
        dv_ND = add_product(tl.trans(weights_MN), dout_MD, dv_ND, WIDEN)
        dk_ND = add_product(tl.trans(dscores_MN), q_MD, dk_ND, WIDEN)
    index_N = (row * context_slots + slot_N) * tl.num_programs(2) + shared
    index_ND = (index_N * width)[:, None] + feature_D[None, :]
    written_ND = ((slot_N >= lower) & (slot_N < upper))[:, None] & live_D[None, :]
    tl.store(
        dk + index_ND, narrow(dk_ND * scale + 0.0, dk.dtype.element_ty, WIDEN), mask=written_ND
    )
    tl.store(dv + index_ND, narrow(dv_ND + 0.0, dv.dtype.element_ty, WIDEN), mask=written_ND)

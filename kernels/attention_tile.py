"""A tile of attention in Triton, whether its contexts are packed, padded or in pages.

The kernels that it is a part of are in `biprop.kernels.attention_triton` and
`biprop.kernels.paged.paged_triton`: so both give a query the same bits. It launches nothing.

Shapes: HQ, HK heads, D features; of a tile: M rows, P positions, N contexts.
"""

import triton
import triton.language as tl

from biprop.kernels.narrowing import narrow
from biprop.kernels.products import add_product, product

__all__ = ["attend_tile", "ends_of", "rows_of"]


@triton.jit
def ends_of(first, last, at, slot_count, PADDED: tl.constexpr):
    """Return the ends of a program's sequence, its row, and the ends of the slots it answers for.

    These are the slots of its row, or of its segment; the last segment has all that follow. What no
    sequence owns is thus written too, and with zeros, as it has no key.
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.load(first + sequence * at).to(tl.int64)
    tail = tl.load(last + sequence * at).to(tl.int64)
    if PADDED:
        return head, tail, sequence, head * 0, head * 0 + slot_count
    upper = tl.where(sequence == tl.num_programs(0) - 1, slot_count, tail)
    return head, tail, sequence * 0, head, upper


@triton.jit
def rows_of(start, shift, head, tail, lower, upper, group, P, M: tl.constexpr):
    """Return position, slot and head of a tile's rows, which of them live, and which it writes."""
    row_M = tl.arange(0, M)
    place_M = row_M // group
    position_M = start + place_M
    slot_M = position_M - shift
    # Where the heads of a group do not fill the rows, the last ones have no query.
    live_M = (slot_M >= head) & (slot_M < tail) & (place_M < P)
    written_M = (slot_M >= lower) & (slot_M < upper) & (place_M < P)
    head_M = tl.program_id(2).to(tl.int64) * group + row_M % group
    return position_M, slot_M, head_M, live_M, written_M


@triton.jit
def attend_tile(
    q, k, v, out, lse, table,
    scale, first_slot, group, width, start, shift, head, tail, lower, upper, context_count,
    q_slot, q_head, q_feature, k_slot, k_head, k_feature, v_slot, v_head, v_feature,
    block_size, k_page, v_page,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    PAGED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Attend from P positions of one sequence, N contexts at a time from position 0.

    Contexts lie side by side from `k` and `v` on; or, where PAGED, in pages that `table` lists, of
    a dtype that need not be that of the queries.
    """
    P = M // group
    position_M, slot_M, head_M, live_M, written_M = rows_of(
        start, shift, head, tail, lower, upper, group, P, M
    )
    feature_D = tl.arange(0, D).to(tl.int64)
    first_N = tl.arange(0, N).to(tl.int64)
    live_D = feature_D < width
    q_MD = tl.load(
        (q + slot_M * q_slot + head_M * q_head)[:, None]
        + (feature_D * q_feature)[None, :],
        mask=live_M[:, None] & live_D[None, :], other=0.0,
    )  # fmt: skip
    if WIDEN:
        q_MD = q_MD.to(tl.float32)
    shared = tl.program_id(2).to(tl.int64)
    k_D = k + shared * k_head + feature_D * k_feature
    v_D = v + shared * v_head + feature_D * v_feature
    largest_M = tl.full((M,), float("-inf"), dtype=tl.float32)
    total_M = tl.full((M,), 0.0, dtype=tl.float32)
    out_MD = tl.full((M, D), 0.0, dtype=tl.float32)
    # The same blocks wherever the sequence ends, and none for a tile without a query.
    stop = tl.where((start < context_count) & (start + P > head + shift), start + P, 0)
    for first in range(0, stop, N):
        key_N = first_N + first
        live_ND = (key_N < context_count)[:, None] & live_D[None, :]
        k_N, v_N = key_N * k_slot, key_N * v_slot
        if PAGED:
            number_N = key_N.to(tl.int32) // block_size
            page_N = tl.load(table + number_N, mask=key_N < context_count, other=0).to(tl.int64)
            slot_N = key_N - number_N * block_size
            k_N, v_N = page_N * k_page + slot_N * k_slot, page_N * v_page + slot_N * v_slot
        k_ND = tl.load(k_D[None, :] + k_N[:, None], mask=live_ND, other=0.0)
        v_ND = tl.load(v_D[None, :] + v_N[:, None], mask=live_ND, other=0.0)
        if k_ND.dtype != q.dtype.element_ty:
            k_ND = narrow(k_ND.to(tl.float32), q.dtype.element_ty, WIDEN)
            v_ND = narrow(v_ND.to(tl.float32), q.dtype.element_ty, WIDEN)
        if WIDEN:
            k_ND = k_ND.to(tl.float32)
            v_ND = v_ND.to(tl.float32)
        scores_MN = product(q_MD, tl.trans(k_ND), WIDEN) * scale
        seen_MN = live_M[:, None] & (key_N[None, :] <= position_M[:, None])
        scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        after_M = tl.maximum(largest_M, tl.max(scores_MN, axis=1))
        # Rows that saw nothing yet keep their zeros: -Inf less -Inf would be NaN.
        shift_M = tl.where(after_M == float("-inf"), 0.0, after_M)
        rescale_M = tl.exp(largest_M - shift_M)
        weights_MN = tl.exp(scores_MN - shift_M[:, None])
        total_M = total_M * rescale_M + tl.sum(weights_MN, axis=1)
        out_MD = out_MD * rescale_M[:, None]
        if not WIDEN:
            weights_MN = weights_MN.to(v_ND.dtype)
        out_MD = add_product(weights_MN, v_ND, out_MD, WIDEN)
        largest_M = after_M
    has_key_M = total_M != 0.0
    divisor_M = tl.where(has_key_M, total_M, 1.0)
    # A block that fills up may turn -0 into +0, where another launch has no such block.
    out_MD = out_MD / divisor_M[:, None] + 0.0
    lse_M = tl.where(has_key_M, largest_M + tl.log(divisor_M), float("-inf"))
    index_M = (first_slot + slot_M) * (tl.num_programs(2) * group) + head_M
    tl.store(lse + index_M, lse_M, mask=written_M)
    tl.store(
        out + (index_M * width)[:, None] + feature_D[None, :],
        narrow(out_MD, out.dtype.element_ty, WIDEN),
        mask=written_M[:, None] & live_D[None, :],
    )

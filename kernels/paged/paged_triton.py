"""The Triton backend of the paged cache: write, gather, and attention through the block table.

Attention is `biprop.kernels.attention_tile`, so its bits are those of
`biprop.kernels.attention_triton` for the same keys and values; here a block of contexts is read
from wherever its pages lie. One kernel serves a prefill, a chunk after a cached prefix, and a
decoding step. Sizes, strides, addresses and the table are never specialised on.

Shapes: T packed tokens, B sequences, P pages of S slots, HQ, HK heads, D features; of a tile: R
tokens, W heads times features, M rows, N contexts.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels import attention_triton
from biprop.kernels.attention_tile import attend_tile, ends_of
from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.paged.cache import PagedCache
from biprop.kernels.paged.pages import Functions, Moves, Pages, Segments, slots_of, slots_of_moves
from biprop.kvcache.shape import CacheShape

__all__ = ["FUNCTIONS", "OPTIONS", "attend", "gather", "make", "move", "write"]

ROWS = 16
COLUMNS_MAX = 256
OPTIONS = attention_triton.OPTIONS


def write(pages: Pages, segments: Segments, k: Tensor, v: Tensor) -> None:
    """Store tokens; arguments as those of `biprop.kernels.paged.pages.Functions.write`."""
    _write(pages, slots_of(segments, pages.block_size), k, v)


def gather(pages: Pages, segments: Segments) -> tuple[Tensor, Tensor]:
    """Read tokens; as `biprop.kernels.paged.pages.Functions.gather`."""
    return _gather(pages, slots_of(segments, pages.block_size))


def attend(pages: Pages, segments: Segments, q: Tensor) -> tuple[Tensor, Tensor]:
    """Attend; as `biprop.kernels.paged.pages.Functions.attend`."""
    slots, heads, width = q.shape
    constants = attention_triton.tile_sizes(q.dtype, width, group=heads // pages.k.shape[2])
    group = heads // pages.k.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    tables = _tables(segments, q.device)
    positions = constants["M"] // group
    # A sequence may begin within a tile, and so touch one more than its number of queries says.
    tiles = triton.cdiv(slots + positions - 1, positions) if slots else 0
    launch(
        paged_attention_tile,
        (tables.shape[0], tiles, pages.k.shape[2]),
        (
            *(q, pages.k, pages.v, tables, out, lse),
            *(width**-0.5, slots, group, width, pages.block_size, tables.stride(0)),
            *(*q.stride(), *pages.k.stride(), *pages.v.stride()),
        ),
        constants=constants | {"WIDEN": interpreted(paged_attention_tile)},
        options=OPTIONS,
    )
    return out, lse


def move(pages: Pages, moves: Moves) -> None:
    """Copy pages; as `biprop.kernels.paged.pages.Functions.move`."""
    sources, targets = slots_of_moves(moves)
    # By way of fresh memory, since a page may be source and target.
    _write(pages, targets, *_gather(pages, sources))


FUNCTIONS = Functions(write=write, gather=gather, attend=attend, move=move)


def make(shape: CacheShape, device: torch.device) -> PagedCache:
    """Make an empty cache of this backend."""
    return PagedCache(shape, device, functions=FUNCTIONS)


def _write(pages: Pages, at: tuple[list[int], list[int]], k: Tensor, v: Tensor) -> None:
    count, heads, width = len(at[0]), *pages.k.shape[2:]
    columns = block_width(heads * width, most=COLUMNS_MAX)
    launch(
        paged_write,
        (triton.cdiv(count, ROWS), triton.cdiv(heads * width, columns)),
        (
            *(k, v, pages.k, pages.v, _on(np.array(at, dtype=np.int32), k.device)),
            *(count, heads, width),
            *(*k.stride(), *v.stride(), *pages.k.stride(), *pages.v.stride()),
        ),
        constants={"R": ROWS, "W": columns, "WIDEN": interpreted(paged_write)},
        options=OPTIONS,
    )


def _gather(pages: Pages, at: tuple[list[int], list[int]]) -> tuple[Tensor, Tensor]:
    count, heads, width = len(at[0]), *pages.k.shape[2:]
    columns = block_width(heads * width, most=COLUMNS_MAX)
    k, v = (
        torch.empty((count, heads, width), dtype=side.dtype, device=side.device)
        for side in (pages.k, pages.v)
    )
    launch(
        paged_gather,
        (triton.cdiv(count, ROWS), triton.cdiv(heads * width, columns)),
        (
            *(pages.k, pages.v, k, v, _on(np.array(at, dtype=np.int32), k.device)),
            *(count, heads, width),
            *(*pages.k.stride(), *pages.v.stride()),
        ),
        constants={"R": ROWS, "W": columns},
        options=OPTIONS,
    )
    return k, v


def _tables(segments: Segments, device: torch.device) -> Tensor:
    """Return int32 `[B, 3 + N]`: ends of the queries, number of contexts, then N pages or more."""
    longest = max((len(table) for table in segments.tables), default=0)
    # What a kernel should never read is no page.
    rows = np.full((len(segments.tables), 3 + longest), -1, dtype=np.int32)
    rows[:, 0] = segments.offsets[:-1]
    rows[:, 1] = segments.offsets[1:]
    rows[:, 2] = segments.stops
    for row, table in zip(rows, segments.tables, strict=True):
        row[3 : 3 + len(table)] = table
    return _on(rows, device)


def _on(values: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]", device: torch.device) -> Tensor:
    """Return what only the host knows where the kernels run."""
    return torch.from_numpy(values).to(device)


@triton.jit(
    do_not_specialize=(
        "count", "heads", "width", "k_token", "k_head", "k_feature",
        "v_token", "v_head", "v_feature", "k_page", "k_slot", "k_shared", "k_place",
        "v_page", "v_slot", "v_shared", "v_place",
    ),
    do_not_specialize_on_alignment=("k", "v", "k_pages", "v_pages", "at"),
)  # fmt: skip
def paged_write(
    k, v, k_pages, v_pages, at, count, heads, width,
    k_token, k_head, k_feature, v_token, v_head, v_feature,
    k_page, k_slot, k_shared, k_place, v_page, v_slot, v_shared, v_place,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Store R tokens in their slots, W of their elements, rounded to the dtype of the pages."""
    token_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    head_W, feature_W = column_W // width, column_W % width
    live_R = token_R < count
    live_RW = live_R[:, None] & (head_W < heads)[None, :]
    page_R = tl.load(at + token_R, mask=live_R, other=0).to(tl.int64)
    slot_R = tl.load(at + count + token_R, mask=live_R, other=0).to(tl.int64)
    k_RW = tl.load(
        k + (token_R * k_token)[:, None] + (head_W * k_head + feature_W * k_feature)[None, :],
        mask=live_RW,
    )  # fmt: skip
    v_RW = tl.load(
        v + (token_R * v_token)[:, None] + (head_W * v_head + feature_W * v_feature)[None, :],
        mask=live_RW,
    )  # fmt: skip
    # What has the dtype already keeps its bits, a NaN its payload.
    if k_RW.dtype != k_pages.dtype.element_ty:
        k_RW = narrow(k_RW.to(tl.float32), k_pages.dtype.element_ty, WIDEN)
        v_RW = narrow(v_RW.to(tl.float32), v_pages.dtype.element_ty, WIDEN)
    k_R, v_R = page_R * k_page + slot_R * k_slot, page_R * v_page + slot_R * v_slot
    k_W, v_W = head_W * k_shared + feature_W * k_place, head_W * v_shared + feature_W * v_place
    tl.store(k_pages + k_R[:, None] + k_W[None, :], k_RW, mask=live_RW)
    tl.store(v_pages + v_R[:, None] + v_W[None, :], v_RW, mask=live_RW)


@triton.jit(
    do_not_specialize=(
        "count", "heads", "width", "k_page", "k_slot", "k_shared", "k_place",
        "v_page", "v_slot", "v_shared", "v_place",
    ),
    do_not_specialize_on_alignment=("k_pages", "v_pages", "k", "v", "at"),
)  # fmt: skip
def paged_gather(
    k_pages, v_pages, k, v, at, count, heads, width,
    k_page, k_slot, k_shared, k_place, v_page, v_slot, v_shared, v_place,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Read R tokens from their slots, W of their elements."""
    token_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    head_W, feature_W = column_W // width, column_W % width
    live_R = token_R < count
    live_RW = live_R[:, None] & (head_W < heads)[None, :]
    page_R = tl.load(at + token_R, mask=live_R, other=0).to(tl.int64)
    slot_R = tl.load(at + count + token_R, mask=live_R, other=0).to(tl.int64)
    k_R, v_R = page_R * k_page + slot_R * k_slot, page_R * v_page + slot_R * v_slot
    k_W, v_W = head_W * k_shared + feature_W * k_place, head_W * v_shared + feature_W * v_place
    k_RW = tl.load(k_pages + k_R[:, None] + k_W[None, :], mask=live_RW)
    v_RW = tl.load(v_pages + v_R[:, None] + v_W[None, :], mask=live_RW)
    index_RW = (token_R * heads * width)[:, None] + column_W[None, :]
    tl.store(k + index_RW, k_RW, mask=live_RW)
    tl.store(v + index_RW, v_RW, mask=live_RW)


@triton.jit(
    do_not_specialize=(
        "query_slots", "group", "width", "block_size", "tables_at",
        "q_slot", "q_head", "q_feature", "k_page", "k_slot", "k_head", "k_feature",
        "v_page", "v_slot", "v_head", "v_feature",
    ),
    do_not_specialize_on_alignment=("q", "k_pages", "v_pages", "tables", "out", "lse"),
)  # fmt: skip
def paged_attention_tile(
    q, k_pages, v_pages, tables, out, lse,
    scale, query_slots, group, width, block_size, tables_at,
    q_slot, q_head, q_feature, k_page, k_slot, k_head, k_feature,
    v_page, v_slot, v_head, v_feature,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Attend from P positions of one sequence to its contexts, which lie in pages."""
    P = M // group
    head, tail, _, lower, upper = ends_of(tables, tables + 1, tables_at, query_slots, PADDED=False)
    table = tables + tl.program_id(0).to(tl.int64) * tables_at
    context_count = tl.load(table + 2).to(tl.int64)
    # As in the kernel of packed attention: a slot plus this is a position, and may be negative.
    shift = context_count - tail
    first_tile = (lower + shift + query_slots.to(tl.int64) * P) // P - query_slots
    start = (first_tile + tl.program_id(1)) * P
    if start - shift >= upper:
        return
    attend_tile(
        q, k_pages, v_pages, out, lse, table + 3,
        scale, 0, group, width, start, shift, head, tail, lower, upper, context_count,
        q_slot, q_head, q_feature, k_slot, k_head, k_feature, v_slot, v_head, v_feature,
        block_size, k_page, v_page,
        M, N, D, PAGED=True, WIDEN=WIDEN,
    )  # fmt: skip

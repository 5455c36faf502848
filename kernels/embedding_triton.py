"""Embedding in Triton: rows of the forward, chains of tokens of one id, and rows of `dweight`.

`biprop.kernels.embedding` holds the record, the reference and the torch backend. A block's size
follows H alone, every argument that a batch or its storage can change is left unspecialised, and
nothing but allocations and views surrounds a launch.

The gradient takes two launches. The first looks, for every live token, for the next one of its id
and for the block of positions it lies in. The second starts at the first token of each id, and
follows its chain: one program alone adds to a row of `dweight`.

Shapes: T packed tokens, V vocabulary, B sequences, H features, R tokens of a tile, C tokens or
sequences that are looked at together, W features of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, launch

__all__ = ["OPTIONS", "backward", "forward"]

ROW_COUNT = 32
SEARCH_COUNT = 128
BLOCK_COUNT = 16
WIDTH_MIN, WIDTH_MAX = 16, 128
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(ids: Tensor, weight: Tensor) -> Tensor:
    """Copy; arguments and result as those of `biprop.kernels.embedding.forward`."""
    tokens, width = ids.shape[0], weight.shape[1]
    y = torch.empty((tokens, width), dtype=weight.dtype, device=weight.device)
    block = _feature_block(width)
    launch(
        embedding_rows,
        (triton.cdiv(tokens, ROW_COUNT), triton.cdiv(width, block)),
        (ids, weight, y, tokens, width, *ids.stride(), *weight.stride()),
        constants={"R": ROW_COUNT, "W": block},
        options=OPTIONS,
    )
    return y


def backward(
    dy: Tensor, ids: Tensor, offsets: Tensor, order: Tensor, position: Tensor, dweight: Tensor
) -> None:
    """Add to `dweight`; arguments as those of `biprop.kernels.embedding.backward`."""
    tokens, width = dy.shape
    length, following, block_start = (
        torch.empty(tokens, dtype=torch.int32, device=dy.device) for _ in range(3)
    )
    grid = triton.cdiv(tokens, ROW_COUNT)
    launch(
        embedding_chains,
        (grid,),
        (
            *(ids, offsets, order, position, length, following, block_start),
            *(tokens, offsets.shape[0] - 1),
            *(*ids.stride(), *offsets.stride(), *order.stride(), *position.stride()),
        ),
        constants={"R": ROW_COUNT, "C": SEARCH_COUNT, "P": BLOCK_COUNT},
        options=OPTIONS,
    )
    block = _feature_block(width)
    launch(
        embedding_dweight_rows,
        (grid, triton.cdiv(width, block)),
        (
            *(dy, ids, order, length, following, block_start, dweight, tokens, width),
            *(*dy.stride(), *ids.stride(), *order.stride(), *dweight.stride()),
        ),
        constants={"R": ROW_COUNT, "W": block},
        options=OPTIONS,
    )


def _feature_block(width: int) -> int:
    return block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)


@triton.jit(
    do_not_specialize=("token_count", "width", "ids_at", "weight_row", "weight_feature"),
    do_not_specialize_on_alignment=("ids", "weight", "y"),
)
def embedding_rows(
    ids, weight, y, token_count, width, ids_at, weight_row, weight_feature,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Copy W features of R tokens, bit for bit."""
    token_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_R = token_R < token_count
    live_RW = live_R[:, None] & (feature_W < width)[None, :]
    id_R = tl.load(ids + token_R * ids_at, mask=live_R, other=0)
    row_RW = tl.load(
        (weight + id_R * weight_row)[:, None] + (feature_W * weight_feature)[None, :], mask=live_RW
    )  # fmt: skip
    tl.store(y + (token_R * width)[:, None] + feature_W[None, :], row_RW, mask=live_RW)


@triton.jit(
    do_not_specialize=(
        "token_count", "sequence_count", "ids_at", "offsets_at", "order_at", "position_at",
    ),
    do_not_specialize_on_alignment=(
        "ids", "offsets", "order", "position", "length", "following", "block_start",
    ),
)  # fmt: skip
def embedding_chains(
    ids, offsets, order, position, length, following, block_start, token_count, sequence_count,
    ids_at, offsets_at, order_at, position_at,
    R: tl.constexpr, C: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Say of R tokens, in logical order, which chain they are of.

    Written is, by logical token, the length of the chain that begins there (0 where none does);
    and, by slot, the slot of the next token of the same id (0 where there is none), and the block
    of P positions, called by its first logical token.
    """
    token_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first_C = tl.arange(0, C).to(tl.int64)
    live_count = tl.load(offsets + sequence_count * offsets_at).to(tl.int64)
    live_R = token_R < live_count
    slot_R = tl.load(order + token_R * order_at, mask=live_R, other=0).to(tl.int64)
    id_R = tl.load(ids + slot_R * ids_at, mask=live_R, other=-1)
    next_R = tl.full((R,), 0, dtype=tl.int64) + live_count
    before_R = tl.full((R,), 0, dtype=tl.int64)
    after_R = tl.full((R,), 0, dtype=tl.int64)
    for start in range(0, live_count, C):
        token_C = first_C + start
        live_C = token_C < live_count
        slot_C = tl.load(order + token_C * order_at, mask=live_C, other=0).to(tl.int64)
        id_C = tl.load(ids + slot_C * ids_at, mask=live_C, other=-2)
        is_same_RC = id_R[:, None] == id_C[None, :]
        is_after_RC = is_same_RC & (token_C[None, :] > token_R[:, None])
        before_R += tl.sum(
            (is_same_RC & (token_C[None, :] < token_R[:, None])).to(tl.int64), axis=1
        )
        after_R += tl.sum(is_after_RC.to(tl.int64), axis=1)
        next_RC = tl.where(is_after_RC, token_C[None, :], live_count)
        next_R = tl.minimum(next_R, tl.min(next_RC, axis=1))
    # The one sequence that holds a token lies between two offsets; a sum picks its bounds.
    head_R = tl.full((R,), 0, dtype=tl.int64)
    for start in range(0, sequence_count, C):
        sequence_C = first_C + start
        live_C = sequence_C < sequence_count
        head_C = tl.load(offsets + sequence_C * offsets_at, mask=live_C, other=0).to(tl.int64)
        tail_C = tl.load(offsets + (sequence_C + 1) * offsets_at, mask=live_C, other=0).to(tl.int64)
        holds_RC = (head_C[None, :] <= token_R[:, None]) & (token_R[:, None] < tail_C[None, :])
        head_R += tl.sum(tl.where(holds_RC, head_C[None, :], 0), axis=1)
    head_slot_R = tl.load(order + head_R * order_at, mask=live_R, other=0).to(tl.int64)
    head_position_R = tl.load(position + head_slot_R * position_at, mask=live_R, other=0)
    in_block_R = (head_position_R + token_R - head_R) % P
    length_R = tl.where(live_R & (before_R == 0), after_R + 1, 0)
    next_slot_R = tl.load(order + next_R * order_at, mask=next_R < live_count, other=0)
    block_start_R = tl.maximum(head_R, token_R - in_block_R)
    tl.store(length + token_R, length_R.to(tl.int32), mask=token_R < token_count)
    tl.store(following + slot_R, next_slot_R, mask=live_R)
    tl.store(block_start + slot_R, block_start_R.to(tl.int32), mask=live_R)


@triton.jit(
    do_not_specialize=(
        "token_count", "width", "dy_row", "dy_feature", "ids_at", "order_at",
        "dweight_row", "dweight_feature",
    ),
    do_not_specialize_on_alignment=(
        "dy", "ids", "order", "length", "following", "block_start", "dweight",
    ),
)  # fmt: skip
def embedding_dweight_rows(
    dy, ids, order, length, following, block_start, dweight, token_count, width,
    dy_row, dy_feature, ids_at, order_at, dweight_row, dweight_feature,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Follow the chains that begin at R tokens, and add W features of each to its row."""
    token_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    length_R = tl.load(length + token_R, mask=token_R < token_count, other=0)
    is_first_R = length_R > 0
    live_W = feature_W < width
    slot_R = tl.load(order + token_R * order_at, mask=is_first_R, other=0).to(tl.int64)
    id_R = tl.load(ids + slot_R * ids_at, mask=is_first_R, other=0)
    row_RW = (dweight + id_R * dweight_row)[:, None] + (feature_W * dweight_feature)[None, :]
    first_RW = is_first_R[:, None] & live_W[None, :]
    total_RW = tl.load(row_RW, mask=first_RW, other=0.0)
    block_R = tl.load(block_start + slot_R, mask=is_first_R, other=0)
    part_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    for step in range(tl.max(length_R, axis=0)):
        live_R = step < length_R
        own_R = tl.load(block_start + slot_R, mask=live_R, other=block_R)
        is_other_RW = (own_R != block_R)[:, None]
        dy_RW = tl.load(
            (dy + slot_R * dy_row)[:, None] + (feature_W * dy_feature)[None, :],
            mask=live_R[:, None] & live_W[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        # A block is over where the next token lies in another one. A chain that is over stands
        # still: adding zeros to its part could turn a -0 into +0.
        total_RW = tl.where(is_other_RW, total_RW + part_RW, total_RW)
        part_RW = tl.where(is_other_RW, dy_RW, tl.where(live_R[:, None], part_RW + dy_RW, part_RW))
        block_R = own_R
        slot_R = tl.load(following + slot_R, mask=live_R, other=0).to(tl.int64)
    tl.store(row_RW, total_RW + part_RW, mask=first_RW)

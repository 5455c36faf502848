"""Log probability of a target in one pass, in Triton: rows of the forward, tiles of `dlogits`.

`biprop.kernels.batch_invariant_logp` holds the record, the reference and the torch backend. A
block's size follows V alone, every argument that a batch or its storage can change is left
unspecialised, and nothing but allocations and views surrounds a launch.

Shapes: T packed tokens (or rows times slots), V vocabulary, R rows of a tile, W tokens of the
vocabulary in a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.batch_invariant_logp import IGNORE_INDEX
from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["backward", "forward"]

ROW_COUNT = 16
WIDTH_MIN, WIDTH_MAX = 16, 512
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Compute; as `biprop.kernels.batch_invariant_logp.forward`."""
    logp, _ = _reduced(_with_rows(logits, 3), _with_rows(target, 2), ignore_index)
    return logp.view(target.shape)


def backward(
    dlogp: Tensor, logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Differentiate; as `biprop.kernels.batch_invariant_logp.backward`."""
    logits_BSV, target_BS = _with_rows(logits, 3), _with_rows(target, 2)
    dlogp_BS = _with_rows(dlogp, 2)
    _, lse = _reduced(logits_BSV, target_BS, ignore_index)
    rows, slots, vocabulary = logits_BSV.shape
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    block = _block(vocabulary)
    launch(
        batch_invariant_logp_dlogits_tile,
        (triton.cdiv(rows * slots, ROW_COUNT), triton.cdiv(vocabulary, block)),
        (
            *(dlogp_BS, logits_BSV, target_BS, lse, dlogits),
            *(ignore_index, rows * slots, slots, vocabulary),
            *(*dlogp_BS.stride(), *logits_BSV.stride(), *target_BS.stride()),
        ),
        constants={
            "R": ROW_COUNT,
            "W": block,
            "WIDEN": interpreted(batch_invariant_logp_dlogits_tile),
        },
        options=OPTIONS,
    )
    return dlogits


def _reduced(logits_BSV: Tensor, target_BS: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return `logp` and `lse`, both float32 `[B * S]`."""
    rows, slots, vocabulary = logits_BSV.shape
    logp, lse = (
        torch.empty(rows * slots, dtype=torch.float32, device=logits_BSV.device) for _ in range(2)
    )
    launch(
        batch_invariant_logp_rows,
        (triton.cdiv(rows * slots, ROW_COUNT),),
        (
            *(logits_BSV, target_BS, logp, lse, ignore_index, rows * slots, slots, vocabulary),
            *(*logits_BSV.stride(), *target_BS.stride()),
        ),
        constants={"R": ROW_COUNT, "W": _block(vocabulary)},
        options=OPTIONS,
    )
    return logp, lse


def _with_rows(values: Tensor, dim_count: int) -> Tensor:
    """View a packed tensor as one row of slots."""
    return values if values.dim() == dim_count else values.unsqueeze(0)


def _block(vocabulary: int) -> int:
    return block_width(vocabulary, least=WIDTH_MIN, most=WIDTH_MAX)


@triton.jit(
    do_not_specialize=(
        "ignore_index", "row_count", "slot_count", "vocabulary",
        "logits_row", "logits_slot", "logits_token", "target_row", "target_slot",
    ),
    do_not_specialize_on_alignment=("logits", "target", "logp", "lse"),
)  # fmt: skip
def batch_invariant_logp_rows(
    logits, target, logp, lse, ignore_index, row_count, slot_count, vocabulary,
    logits_row, logits_slot, logits_token, target_row, target_slot,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Compute R rows in one pass over the vocabulary."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first_W = tl.arange(0, W).to(tl.int64)
    live_R = index_R < row_count
    row_R = index_R // slot_count
    slot_R = index_R % slot_count
    logits_R = logits + row_R * logits_row + slot_R * logits_slot
    target_R = tl.load(target + row_R * target_row + slot_R * target_slot, mask=live_R, other=0)
    largest_R = tl.full((R,), float("-inf"), dtype=tl.float32)
    shift_R = tl.full((R,), 0.0, dtype=tl.float32)
    total_R = tl.full((R,), 0.0, dtype=tl.float32)
    chosen_R = tl.full((R,), 0.0, dtype=tl.float32)
    for start in range(0, vocabulary, W):
        token_W = first_W + start
        logits_RW = tl.load(
            logits_R[:, None] + (token_W * logits_token)[None, :],
            mask=live_R[:, None] & (token_W < vocabulary)[None, :], other=float("-inf"),
        ).to(tl.float32)  # fmt: skip
        # A NaN is no maximum, it only has to reach the sum: devices and numpy differ in NaN maxima.
        numbers_RW = tl.where(logits_RW == logits_RW, logits_RW, float("-inf"))
        after_R = tl.maximum(largest_R, tl.max(numbers_RW, axis=1))
        is_finite_R = (after_R > float("-inf")) & (after_R < float("inf"))
        shift_R = tl.where(is_finite_R, after_R, 0.0)
        part_R = tl.sum(tl.exp(logits_RW - shift_R[:, None]), axis=1)
        total_R = total_R * tl.exp(largest_R - shift_R) + part_R
        is_target_RW = token_W[None, :] == target_R[:, None]
        chosen_R += tl.sum(tl.where(is_target_RW, logits_RW, 0.0), axis=1)
        largest_R = after_R
    lse_R = shift_R + tl.log(total_R)
    logp_R = tl.where(target_R == ignore_index, 0.0, chosen_R - lse_R)
    tl.store(logp + index_R, logp_R, mask=live_R)
    tl.store(lse + index_R, lse_R, mask=live_R)


@triton.jit(
    do_not_specialize=(
        "ignore_index", "row_count", "slot_count", "vocabulary", "dlogp_row", "dlogp_slot",
        "logits_row", "logits_slot", "logits_token", "target_row", "target_slot",
    ),
    do_not_specialize_on_alignment=("dlogp", "logits", "target", "lse", "dlogits"),
)  # fmt: skip
def batch_invariant_logp_dlogits_tile(
    dlogp, logits, target, lse, dlogits, ignore_index, row_count, slot_count, vocabulary,
    dlogp_row, dlogp_slot, logits_row, logits_slot, logits_token, target_row, target_slot,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate one tile of logits."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    token_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_R = index_R < row_count
    live_RW = live_R[:, None] & (token_W < vocabulary)[None, :]
    row_R = index_R // slot_count
    slot_R = index_R % slot_count
    dlogp_R = tl.load(dlogp + row_R * dlogp_row + slot_R * dlogp_slot, mask=live_R, other=0.0)
    target_R = tl.load(target + row_R * target_row + slot_R * target_slot, mask=live_R, other=0)
    lse_R = tl.load(lse + index_R, mask=live_R, other=0.0)
    logits_R = logits + row_R * logits_row + slot_R * logits_slot
    logits_RW = tl.load(
        logits_R[:, None] + (token_W * logits_token)[None, :], mask=live_RW, other=float("-inf")
    ).to(tl.float32)  # fmt: skip
    share_RW = tl.exp(logits_RW - lse_R[:, None])
    is_target_RW = token_W[None, :] == target_R[:, None]
    gradient_RW = tl.where(is_target_RW, 1.0 - share_RW, -share_RW) * dlogp_R[:, None]
    is_ignored_R = target_R == ignore_index
    gradient_RW = tl.where(is_ignored_R[:, None], 0.0, gradient_RW)
    tl.store(
        dlogits + (index_R * vocabulary)[:, None] + token_W[None, :],
        narrow(gradient_RW, dlogits.dtype.element_ty, WIDEN),
        mask=live_RW,
    )

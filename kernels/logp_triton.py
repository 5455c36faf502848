"""Log probability of a target in Triton: rows of the forward, tiles of `dlogits`.

`biprop.kernels.logp` holds the record, the reference and the torch backend. A block's size follows
V alone, every argument that a batch or its storage can change is left unspecialised, and nothing
but allocations and views surrounds a launch.

Shapes: T packed tokens, V vocabulary, R rows of a tile, W tokens of the vocabulary in a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["backward", "forward"]

ROW_COUNT = 16
WIDTH_MIN, WIDTH_MAX = 16, 512
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute; arguments and results as those of `biprop.kernels.logp.forward`."""
    rows, vocabulary = logits.shape
    logp = torch.empty(rows, dtype=torch.float32, device=logits.device)
    lse = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        logp_rows,
        (triton.cdiv(rows, ROW_COUNT),),
        (logits, target, logp, lse, rows, vocabulary, *logits.stride(), *target.stride()),
        constants={"R": ROW_COUNT, "W": _block(vocabulary)},
        options=OPTIONS,
    )
    return logp, lse


def backward(dlogp: Tensor, logits: Tensor, target: Tensor, lse: Tensor) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.logp.backward`."""
    rows, vocabulary = logits.shape
    dlogits = torch.empty((rows, vocabulary), dtype=logits.dtype, device=logits.device)
    block = _block(vocabulary)
    launch(
        logp_dlogits_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(vocabulary, block)),
        (
            *(dlogp, logits, target, lse, dlogits, rows, vocabulary),
            *(*dlogp.stride(), *logits.stride(), *target.stride(), *lse.stride()),
        ),
        constants={"R": ROW_COUNT, "W": block, "WIDEN": interpreted(logp_dlogits_tile)},
        options=OPTIONS,
    )
    return dlogits


def _block(vocabulary: int) -> int:
    return block_width(vocabulary, least=WIDTH_MIN, most=WIDTH_MAX)


@triton.jit(
    do_not_specialize=("row_count", "vocabulary", "logits_row", "logits_token", "target_row"),
    do_not_specialize_on_alignment=("logits", "target", "logp", "lse"),
)
def logp_rows(
    logits, target, logp, lse, row_count, vocabulary, logits_row, logits_token, target_row,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Compute R rows in two passes over the vocabulary."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first_W = tl.arange(0, W).to(tl.int64)
    live_R = row_R < row_count
    logits_R = logits + row_R * logits_row
    largest_RW = tl.full((R, W), float("-inf"), dtype=tl.float32)
    for start in range(0, vocabulary, W):
        token_W = first_W + start
        logits_RW = tl.load(
            logits_R[:, None] + (token_W * logits_token)[None, :],
            mask=live_R[:, None] & (token_W < vocabulary)[None, :], other=float("-inf"),
        ).to(tl.float32)  # fmt: skip
        # A NaN is no maximum, it only has to reach the sum: devices and numpy differ in NaN maxima.
        logits_RW = tl.where(logits_RW == logits_RW, logits_RW, float("-inf"))
        largest_RW = tl.maximum(largest_RW, logits_RW)
    largest_R = tl.max(largest_RW, axis=1)
    is_finite_R = (largest_R > float("-inf")) & (largest_R < float("inf"))
    shift_R = tl.where(is_finite_R, largest_R, 0.0)
    sum_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    for start in range(0, vocabulary, W):
        token_W = first_W + start
        logits_RW = tl.load(
            logits_R[:, None] + (token_W * logits_token)[None, :],
            mask=live_R[:, None] & (token_W < vocabulary)[None, :], other=float("-inf"),
        ).to(tl.float32)  # fmt: skip
        sum_RW += tl.exp(logits_RW - shift_R[:, None])
    lse_R = shift_R + tl.log(tl.sum(sum_RW, axis=1))
    target_R = tl.load(target + row_R * target_row, mask=live_R, other=0)
    chosen_R = tl.load(logits_R + target_R * logits_token, mask=live_R, other=0.0).to(tl.float32)
    tl.store(logp + row_R, chosen_R - lse_R, mask=live_R)
    tl.store(lse + row_R, lse_R, mask=live_R)


@triton.jit(
    do_not_specialize=(
        "row_count", "vocabulary",
        "dlogp_row", "logits_row", "logits_token", "target_row", "lse_row",
    ),
    do_not_specialize_on_alignment=("dlogp", "logits", "target", "lse", "dlogits"),
)  # fmt: skip
def logp_dlogits_tile(
    dlogp, logits, target, lse, dlogits, row_count, vocabulary,
    dlogp_row, logits_row, logits_token, target_row, lse_row,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate one tile of logits."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    token_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_R = row_R < row_count
    live_RW = live_R[:, None] & (token_W < vocabulary)[None, :]
    dlogp_R = tl.load(dlogp + row_R * dlogp_row, mask=live_R, other=0.0)
    target_R = tl.load(target + row_R * target_row, mask=live_R, other=0)
    lse_R = tl.load(lse + row_R * lse_row, mask=live_R, other=0.0)
    logits_RW = tl.load(
        (logits + row_R * logits_row)[:, None] + (token_W * logits_token)[None, :],
        mask=live_RW, other=float("-inf"),
    ).to(tl.float32)  # fmt: skip
    share_RW = tl.exp(logits_RW - lse_R[:, None])
    is_target_RW = token_W[None, :] == target_R[:, None]
    gradient_RW = tl.where(is_target_RW, 1.0 - share_RW, -share_RW) * dlogp_R[:, None]
    tl.store(
        dlogits + (row_R * vocabulary)[:, None] + token_W[None, :],
        narrow(gradient_RW, dlogits.dtype.element_ty, WIDEN),
        mask=live_RW,
    )

"""QK norm in Triton: rows of the forward and of `dx`, columns of `dweight`, one side a launch.

`biprop.kernels.qk_norm` holds the record, the reference and the torch backend. A block's size
follows the heads and D alone, every argument that a batch or its storage can change is left
unspecialised, and nothing but allocations and views surrounds a launch.

Shapes: one side has N heads of D features; R rows (heads of tokens) of a tile and W features, at
least D; in `dweight`, W columns of D, P positions of a block and a tile of M = P * HEADS rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["backward", "forward"]

# Of a tile of heads, each of which it holds whole: how many at most, and how many elements.
ROW_MAX, ROW_ELEMENTS = 256, 4096
WIDTH_MIN = 16
# Positions whose contributions to the gradient of a weight are added before they join it.
BLOCK_COUNT = 16
# Of a tile of that gradient: at least so many heads at once, how wide, and how many elements.
HEADS_MIN, COLUMN_MAX, ELEMENTS_MAX = 16, 128, 8192
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the norms; arguments and results as those of `biprop.kernels.qk_norm.forward`."""
    q_out, q_rstd = _normalised(q, q_weight, eps)
    k_out, k_rstd = _normalised(k, k_weight, eps)
    return q_out, k_out, q_rstd, k_rstd


def backward(
    dq_out: Tensor,
    dk_out: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    q_rstd: Tensor,
    k_rstd: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dq_weight: Tensor,
    dk_weight: Tensor,
    *,
    eps: float = 1e-6,  # noqa: ARG001  # a backward takes its forward's keywords; rstd holds this one
) -> tuple[Tensor, Tensor]:
    """Differentiate; arguments and results as those of `biprop.kernels.qk_norm.backward`."""
    layout = (offsets, _with_rows(order, 2), _with_rows(position, 2))
    _add_weight_gradient(dq_weight, dq_out, q, q_rstd, layout)
    _add_weight_gradient(dk_weight, dk_out, k, k_rstd, layout)
    return (
        _differentiated(dq_out, q, q_weight, q_rstd),
        _differentiated(dk_out, k, k_weight, k_rstd),
    )


def _normalised(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x_BSND = _with_rows(x, 4)
    rows, slots, heads, width = x_BSND.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    count, constants = rows * slots * heads, _constants(width)
    launch(
        qk_norm_rows,
        (triton.cdiv(count, constants["R"]),),
        (
            *(x_BSND, weight, y, rstd, float(eps), count, slots, heads, width),
            *(*x_BSND.stride(), *weight.stride()),
        ),
        constants=constants | {"WIDEN": interpreted(qk_norm_rows)},
        options=OPTIONS,
    )
    return y, rstd


def _differentiated(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    x_BSND, dy_BSND, rstd_BSN = _with_rows(x, 4), _with_rows(dy, 4), _with_rows(rstd, 3)
    rows, slots, heads, width = x_BSND.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count, constants = rows * slots * heads, _constants(width)
    launch(
        qk_norm_dx_rows,
        (triton.cdiv(count, constants["R"]),),
        (
            *(dy_BSND, x_BSND, weight, rstd_BSN, dx, count, slots, heads, width),
            *(*dy_BSND.stride(), *x_BSND.stride(), *rstd_BSN.stride(), *weight.stride()),
        ),
        constants=constants | {"WIDEN": interpreted(qk_norm_dx_rows)},
        options=OPTIONS,
    )
    return dx


def _add_weight_gradient(
    dweight: Tensor, dy: Tensor, x: Tensor, rstd: Tensor, layout: tuple[Tensor, Tensor, Tensor]
) -> None:
    x_BSND, dy_BSND, rstd_BSN = _with_rows(x, 4), _with_rows(dy, 4), _with_rows(rstd, 3)
    rows, slots, heads, width = x_BSND.shape
    offsets, order_BS, position_BS = layout
    if not rows * slots:
        return
    columns = block_width(width, least=WIDTH_MIN, most=COLUMN_MAX)
    room = ELEMENTS_MAX // BLOCK_COUNT
    head_count = block_width(heads, most=max(HEADS_MIN, room // columns))
    columns = min(columns, room // head_count)
    launch(
        qk_norm_dweight_columns,
        (triton.cdiv(width, columns),),
        (
            *(dy_BSND, x_BSND, rstd_BSN, offsets, order_BS, position_BS, dweight),
            *(offsets.shape[0] - 1, slots, heads, width),
            *(*dy_BSND.stride(), *x_BSND.stride(), *rstd_BSN.stride(), *offsets.stride()),
            *(*order_BS.stride(), *position_BS.stride(), *dweight.stride()),
        ),
        constants={"P": BLOCK_COUNT, "HEADS": head_count, "W": columns},
        options=OPTIONS,
    )


def _with_rows(values: Tensor, dim_count: int) -> Tensor:
    """View a packed tensor as one row of slots."""
    return values if values.dim() == dim_count else values.unsqueeze(0)


def _constants(width: int) -> dict[str, int]:
    block = block_width(width, least=WIDTH_MIN, most=2 * width)
    return {"R": min(ROW_MAX, max(1, ROW_ELEMENTS // block)), "W": block}


# Indices are int64 from the start: strides may be large, and the interpreter checks each narrower
# sum.
@triton.jit(
    do_not_specialize=(
        "row_count", "slot_count", "head_count", "width",
        "x_row", "x_slot", "x_head", "x_feature", "weight_feature",
    ),
    do_not_specialize_on_alignment=("x", "weight", "y", "rstd"),
)  # fmt: skip
def qk_norm_rows(
    x, weight, y, rstd, eps, row_count, slot_count, head_count, width,
    x_row, x_slot, x_head, x_feature, weight_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Normalise R heads of tokens."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.arange(0, W).to(tl.int64)
    live_R = index_R < row_count
    live_W = feature_W < width
    live_RW = live_R[:, None] & live_W[None, :]
    token_R = index_R // head_count
    x_R = x + (token_R // slot_count) * x_row + (token_R % slot_count) * x_slot
    x_R += (index_R % head_count) * x_head
    x_RW = tl.load(
        x_R[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    rstd_R = 1.0 / tl.sqrt(tl.sum(x_RW * x_RW, axis=1) / width + eps)
    weight_W = tl.load(weight + feature_W * weight_feature, mask=live_W, other=0.0)
    y_RW = x_RW * rstd_R[:, None] * weight_W.to(tl.float32)[None, :]
    tl.store(rstd + index_R, rstd_R, mask=live_R)
    tl.store(
        y + (index_R * width)[:, None] + feature_W[None, :],
        narrow(y_RW, y.dtype.element_ty, WIDEN),
        mask=live_RW,
    )


@triton.jit(
    do_not_specialize=(
        "row_count", "slot_count", "head_count", "width",
        "dy_row", "dy_slot", "dy_head", "dy_feature", "x_row", "x_slot", "x_head", "x_feature",
        "rstd_row", "rstd_slot", "rstd_head", "weight_feature",
    ),
    do_not_specialize_on_alignment=("dy", "x", "weight", "rstd", "dx"),
)  # fmt: skip
def qk_norm_dx_rows(
    dy, x, weight, rstd, dx, row_count, slot_count, head_count, width,
    dy_row, dy_slot, dy_head, dy_feature, x_row, x_slot, x_head, x_feature,
    rstd_row, rstd_slot, rstd_head, weight_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate R heads of tokens."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.arange(0, W).to(tl.int64)
    live_R = index_R < row_count
    live_W = feature_W < width
    live_RW = live_R[:, None] & live_W[None, :]
    head_R = index_R % head_count
    token_R = index_R // head_count
    row_R = token_R // slot_count
    slot_R = token_R % slot_count
    x_R = x + row_R * x_row + slot_R * x_slot + head_R * x_head
    dy_R = dy + row_R * dy_row + slot_R * dy_slot + head_R * dy_head
    rstd_R = tl.load(
        rstd + row_R * rstd_row + slot_R * rstd_slot + head_R * rstd_head, mask=live_R, other=0.0
    )
    x_RW = tl.load(
        x_R[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    dy_RW = tl.load(
        dy_R[:, None] + (feature_W * dy_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    weight_W = tl.load(weight + feature_W * weight_feature, mask=live_W, other=0.0)
    xhat_RW = x_RW * rstd_R[:, None]
    gradient_RW = dy_RW * weight_W.to(tl.float32)[None, :]
    mean_R = tl.sum(gradient_RW * xhat_RW, axis=1) / width
    dx_RW = (gradient_RW - xhat_RW * mean_R[:, None]) * rstd_R[:, None]
    tl.store(
        dx + (index_R * width)[:, None] + feature_W[None, :],
        narrow(dx_RW, dx.dtype.element_ty, WIDEN),
        mask=live_RW,
    )


@triton.jit(
    do_not_specialize=(
        "sequence_count", "slot_count", "head_count", "width",
        "dy_row", "dy_slot", "dy_head", "dy_feature", "x_row", "x_slot", "x_head", "x_feature",
        "rstd_row", "rstd_slot", "rstd_head",
        "offsets_at", "order_row", "order_slot", "position_row", "position_slot", "dweight_at",
    ),
    do_not_specialize_on_alignment=("dy", "x", "rstd", "offsets", "order", "position", "dweight"),
)  # fmt: skip
def qk_norm_dweight_columns(
    dy, x, rstd, offsets, order, position, dweight, sequence_count, slot_count, head_count, width,
    dy_row, dy_slot, dy_head, dy_feature, x_row, x_slot, x_head, x_feature,
    rstd_row, rstd_slot, rstd_head,
    offsets_at, order_row, order_slot, position_row, position_slot, dweight_at,
    P: tl.constexpr, HEADS: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Add to W columns of dweight, P positions at a time, sequences in logical order."""
    feature_W = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    row_M = tl.arange(0, P * HEADS).to(tl.int64)
    place_M = row_M // HEADS
    live_W = feature_W < width
    x_W = x + feature_W * x_feature
    dy_W = dy + feature_W * dy_feature
    dweight_W = tl.load(dweight + feature_W * dweight_at, mask=live_W, other=0.0)
    for sequence in range(sequence_count):
        begin = tl.load(offsets + sequence * offsets_at).to(tl.int64)
        end = tl.load(offsets + (sequence + 1) * offsets_at).to(tl.int64)
        # An empty sequence reads position 0 and gets no block.
        slot = tl.load(
            order + (begin // slot_count) * order_row + (begin % slot_count) * order_slot,
            mask=begin < end, other=0,
        ).to(tl.int64)  # fmt: skip
        first = tl.load(
            position + (slot // slot_count) * position_row + (slot % slot_count) * position_slot,
            mask=begin < end, other=0,
        )  # fmt: skip
        for block in range(first // P, (first + end - begin + P - 1) // P):
            token_M = place_M + (block * P + begin - first)
            is_token_M = (token_M >= begin) & (token_M < end)
            slot_M = tl.load(
                order + (token_M // slot_count) * order_row + (token_M % slot_count) * order_slot,
                mask=is_token_M, other=0,
            ).to(tl.int64)  # fmt: skip
            # One row of slots is packed; of several, the slots count through.
            batch_M = slot_M // slot_count
            slot_M = slot_M % slot_count
            for head_start in range(0, head_count, HEADS):
                head_M = row_M % HEADS + head_start
                live_M = is_token_M & (head_M < head_count)
                live_MW = live_M[:, None] & live_W[None, :]
                rstd_M = tl.load(
                    rstd + batch_M * rstd_row + slot_M * rstd_slot + head_M * rstd_head,
                    mask=live_M, other=0.0,
                )  # fmt: skip
                x_MW = tl.load(
                    x_W[None, :] + (batch_M * x_row + slot_M * x_slot + head_M * x_head)[:, None],
                    mask=live_MW, other=0.0,
                ).to(tl.float32)  # fmt: skip
                dy_MW = tl.load(
                    dy_W[None, :]
                    + (batch_M * dy_row + slot_M * dy_slot + head_M * dy_head)[:, None],
                    mask=live_MW, other=0.0,
                ).to(tl.float32)  # fmt: skip
                dweight_W += tl.sum(dy_MW * (x_MW * rstd_M[:, None]), axis=0)
    tl.store(dweight + feature_W * dweight_at, dweight_W, mask=live_W)

"""RMS norm in Triton: the rows of the forward and of `dx`, and the columns of `dweight`.

`biprop.kernels.rms_norm` holds the record, the reference and the torch backend. A block's size
follows H alone, every argument that a batch or its storage can change is left unspecialised, and
nothing but allocations and views surrounds a launch.

Shapes: T packed tokens (or rows times slots), H features, R rows of a tile, W features of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["backward", "forward"]

ROW_COUNT = 16
BLOCK_COUNT = 16
WIDTH_MIN, WIDTH_MAX = 16, 512
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Compute the norm; arguments and results as those of `biprop.kernels.rms_norm.forward`."""
    x_BSH = _with_rows(x, 3)
    rows, slots, width = x_BSH.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    launch(
        rms_norm_rows,
        (triton.cdiv(rows * slots, ROW_COUNT),),
        (
            *(x_BSH, weight, y, rstd, float(eps), rows * slots, slots, width),
            *(*x_BSH.stride(), weight.stride(0)),
        ),
        constants=_constants(width) | {"WIDEN": interpreted(rms_norm_rows)},
        options=OPTIONS,
    )
    return y, rstd


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
    *,
    eps: float = 1e-6,  # noqa: ARG001  # a backward takes its forward's keywords; rstd holds this one
) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.rms_norm.backward`."""
    x_BSH, dy_BSH, rstd_BS = _with_rows(x, 3), _with_rows(dy, 3), _with_rows(rstd, 2)
    order_BS, position_BS = _with_rows(order, 2), _with_rows(position, 2)
    rows, slots, width = x_BSH.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows * slots:
        return dx
    constants = _constants(width)
    strides = (*dy_BSH.stride(), *x_BSH.stride(), *rstd_BS.stride())
    launch(
        rms_norm_dx_rows,
        (triton.cdiv(rows * slots, ROW_COUNT),),
        (
            *(dy_BSH, x_BSH, weight, rstd_BS, dx, rows * slots, slots, width),
            *(*strides, weight.stride(0)),
        ),
        constants=constants | {"WIDEN": interpreted(rms_norm_dx_rows)},
        options=OPTIONS,
    )
    launch(
        rms_norm_dweight_columns,
        (triton.cdiv(width, constants["W"]),),
        (
            *(dy_BSH, x_BSH, rstd_BS, offsets, order_BS, position_BS, dweight),
            *(offsets.shape[0] - 1, slots, width, *strides, offsets.stride(0)),
            *(*order_BS.stride(), *position_BS.stride(), dweight.stride(0)),
        ),
        constants=constants | {"R": BLOCK_COUNT},
        options=OPTIONS,
    )
    return dx


def _with_rows(values: Tensor, dim_count: int) -> Tensor:
    """View a packed tensor as one row of slots."""
    return values if values.dim() == dim_count else values.unsqueeze(0)


def _constants(width: int) -> dict[str, int]:
    return {"R": ROW_COUNT, "W": block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)}


# Indices are int64 from the start: strides may be large, and the interpreter checks each narrower
# sum.
@triton.jit(
    do_not_specialize=(
        "row_count", "slot_count", "width", "x_row", "x_slot", "x_feature", "weight_feature",
    ),
    do_not_specialize_on_alignment=("x", "weight", "y", "rstd"),
)  # fmt: skip
def rms_norm_rows(
    x, weight, y, rstd, eps, row_count, slot_count, width,
    x_row, x_slot, x_feature, weight_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Normalise R rows."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first_W = tl.arange(0, W).to(tl.int64)
    live_R = row_R < row_count
    x_R = x + (row_R // slot_count) * x_row + (row_R % slot_count) * x_slot
    square_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    for start in range(0, width, W):
        feature_W = first_W + start
        x_RW = tl.load(
            x_R[:, None] + (feature_W * x_feature)[None, :],
            mask=live_R[:, None] & (feature_W < width)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        square_RW += x_RW * x_RW
    rstd_R = 1.0 / tl.sqrt(tl.sum(square_RW, axis=1) / width + eps)
    tl.store(rstd + row_R, rstd_R, mask=live_R)
    for start in range(0, width, W):
        feature_W = first_W + start
        live_W = feature_W < width
        live_RW = live_R[:, None] & live_W[None, :]
        x_RW = tl.load(
            x_R[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
        ).to(tl.float32)  # fmt: skip
        weight_W = tl.load(weight + feature_W * weight_feature, mask=live_W, other=0.0)
        y_RW = x_RW * rstd_R[:, None] * weight_W.to(tl.float32)[None, :]
        tl.store(
            y + (row_R * width)[:, None] + feature_W[None, :],
            narrow(y_RW, y.dtype.element_ty, WIDEN),
            mask=live_RW,
        )


@triton.jit(
    do_not_specialize=(
        "row_count", "slot_count", "width", "dy_row", "dy_slot", "dy_feature",
        "x_row", "x_slot", "x_feature", "rstd_row", "rstd_slot", "weight_feature",
    ),
    do_not_specialize_on_alignment=("dy", "x", "weight", "rstd", "dx"),
)  # fmt: skip
def rms_norm_dx_rows(
    dy, x, weight, rstd, dx, row_count, slot_count, width,
    dy_row, dy_slot, dy_feature, x_row, x_slot, x_feature, rstd_row, rstd_slot, weight_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate R rows with respect to x."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first_W = tl.arange(0, W).to(tl.int64)
    live_R = index_R < row_count
    row_R = index_R // slot_count
    slot_R = index_R % slot_count
    x_R = x + row_R * x_row + slot_R * x_slot
    dy_R = dy + row_R * dy_row + slot_R * dy_slot
    rstd_R = tl.load(rstd + row_R * rstd_row + slot_R * rstd_slot, mask=live_R, other=0.0)
    product_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    for start in range(0, width, W):
        feature_W = first_W + start
        live_W = feature_W < width
        live_RW = live_R[:, None] & live_W[None, :]
        weight_W = tl.load(weight + feature_W * weight_feature, mask=live_W, other=0.0)
        x_RW = tl.load(
            x_R[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
        ).to(tl.float32)  # fmt: skip
        dy_RW = tl.load(
            dy_R[:, None] + (feature_W * dy_feature)[None, :], mask=live_RW, other=0.0
        ).to(tl.float32)  # fmt: skip
        product_RW += dy_RW * weight_W.to(tl.float32)[None, :] * (x_RW * rstd_R[:, None])
    mean_R = tl.sum(product_RW, axis=1) / width
    for start in range(0, width, W):
        feature_W = first_W + start
        live_W = feature_W < width
        live_RW = live_R[:, None] & live_W[None, :]
        weight_W = tl.load(weight + feature_W * weight_feature, mask=live_W, other=0.0)
        x_RW = tl.load(
            x_R[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
        ).to(tl.float32)  # fmt: skip
        dy_RW = tl.load(
            dy_R[:, None] + (feature_W * dy_feature)[None, :], mask=live_RW, other=0.0
        ).to(tl.float32)  # fmt: skip
        centred_RW = dy_RW * weight_W.to(tl.float32)[None, :]
        centred_RW -= x_RW * rstd_R[:, None] * mean_R[:, None]
        tl.store(
            dx + (index_R * width)[:, None] + feature_W[None, :],
            narrow(centred_RW * rstd_R[:, None], dx.dtype.element_ty, WIDEN),
            mask=live_RW,
        )


@triton.jit(
    do_not_specialize=(
        "sequence_count", "slot_count", "width", "dy_row", "dy_slot", "dy_feature",
        "x_row", "x_slot", "x_feature", "rstd_row", "rstd_slot",
        "offsets_at", "order_row", "order_slot", "position_row", "position_slot", "dweight_at",
    ),
    do_not_specialize_on_alignment=("dy", "x", "rstd", "offsets", "order", "position", "dweight"),
)  # fmt: skip
def rms_norm_dweight_columns(
    dy, x, rstd, offsets, order, position, dweight, sequence_count, slot_count, width,
    dy_row, dy_slot, dy_feature, x_row, x_slot, x_feature, rstd_row, rstd_slot,
    offsets_at, order_row, order_slot, position_row, position_slot, dweight_at,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Add to W columns of dweight, R positions at a time, sequences in logical order."""
    feature_W = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    first_R = tl.arange(0, R).to(tl.int64)
    live_W = feature_W < width
    x_W = x + feature_W * x_feature
    dy_W = dy + feature_W * dy_feature
    dweight_W = tl.load(dweight + feature_W * dweight_at, mask=live_W, other=0.0)
    for sequence in range(sequence_count):
        head = tl.load(offsets + sequence * offsets_at).to(tl.int64)
        tail = tl.load(offsets + (sequence + 1) * offsets_at).to(tl.int64)
        # An empty sequence reads position 0 and gets no block.
        slot = tl.load(
            order + (head // slot_count) * order_row + (head % slot_count) * order_slot,
            mask=head < tail, other=0,
        ).to(tl.int64)  # fmt: skip
        first = tl.load(
            position + (slot // slot_count) * position_row + (slot % slot_count) * position_slot,
            mask=head < tail, other=0,
        )  # fmt: skip
        for block in range(first // R, (first + tail - head + R - 1) // R):
            token_R = first_R + (block * R + head - first)
            live_R = (token_R >= head) & (token_R < tail)
            index_R = tl.load(
                order + (token_R // slot_count) * order_row + (token_R % slot_count) * order_slot,
                mask=live_R, other=0,
            ).to(tl.int64)  # fmt: skip
            row_R = index_R // slot_count
            slot_R = index_R % slot_count
            live_RW = live_R[:, None] & live_W[None, :]
            rstd_R = tl.load(rstd + row_R * rstd_row + slot_R * rstd_slot, mask=live_R, other=0.0)
            x_RW = tl.load(
                x_W[None, :] + (row_R * x_row + slot_R * x_slot)[:, None],
                mask=live_RW, other=0.0,
            ).to(tl.float32)  # fmt: skip
            dy_RW = tl.load(
                dy_W[None, :] + (row_R * dy_row + slot_R * dy_slot)[:, None],
                mask=live_RW, other=0.0,
            ).to(tl.float32)  # fmt: skip
            dweight_W += tl.sum(dy_RW * (x_RW * rstd_R[:, None]), axis=0)
    tl.store(dweight + feature_W * dweight_at, dweight_W, mask=live_W)

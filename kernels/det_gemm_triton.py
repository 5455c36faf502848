"""Matrix product in Triton: one kernel for `y` and `dx`, one for `dweight`.

`biprop.kernels.det_gemm` holds the record, the reference and the torch backend. A block's size
follows N and K alone, every argument that a batch or its storage can change is left unspecialised,
and nothing but allocations and views surrounds a launch.

Shapes: T packed tokens, K inputs, N outputs; of a tile: M tokens, C columns, D contracted, R
positions.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["backward", "forward"]

ROW_COUNT = 32
# The least contracted size of tl.dot, so that one product adds one block of positions.
BLOCK_COUNT = 16
COLUMN_MIN, COLUMN_MAX = 16, 128
TERM_MIN, TERM_MAX = 16, 64
# Said, because the default of Triton changes; tl.dot fuses its own multiply-adds all the same.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply; arguments and result as those of `biprop.kernels.det_gemm.forward`."""
    return _multiply(x, weight.t())


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.det_gemm.backward`."""
    dx = _multiply(dy, weight)
    if not len(x):
        return dx
    outputs, inputs = weight.shape
    block_N, block_K = _column_block(outputs), _column_block(inputs)
    launch(
        det_gemm_dweight_tile,
        (triton.cdiv(outputs, block_N), triton.cdiv(inputs, block_K)),
        (
            *(dy, x, offsets, order, position, dweight, offsets.shape[0] - 1, outputs, inputs),
            *(*dy.stride(), *x.stride(), *offsets.stride(), *order.stride(), *position.stride()),
            *dweight.stride(),
        ),
        constants={
            "BLOCK_N": block_N,
            "BLOCK_K": block_K,
            "R": BLOCK_COUNT,
            "WIDEN": interpreted(det_gemm_dweight_tile),
        },
        options=OPTIONS,
    )
    return dx


def _multiply(left_TD: Tensor, right_DC: Tensor) -> Tensor:
    rows, contracted = left_TD.shape
    columns = right_DC.shape[1]
    out = torch.empty((rows, columns), dtype=left_TD.dtype, device=left_TD.device)
    block_C = _column_block(columns)
    launch(
        det_gemm_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(columns, block_C)),
        (
            *(left_TD, right_DC, out, rows, columns, contracted),
            *(*left_TD.stride(), *right_DC.stride()),
        ),
        constants={
            "M": ROW_COUNT,
            "C": block_C,
            "D": block_width(contracted, least=TERM_MIN, most=TERM_MAX),
            "WIDEN": interpreted(det_gemm_tile),
        },
        options=OPTIONS,
    )
    return out


def _column_block(size: int) -> int:
    return block_width(size, least=COLUMN_MIN, most=COLUMN_MAX)


@triton.jit(
    do_not_specialize=(
        "row_count", "column_count", "contracted_count",
        "left_row", "left_contracted", "right_contracted", "right_column",
    ),
    do_not_specialize_on_alignment=("left", "right", "out"),
)  # fmt: skip
def det_gemm_tile(
    left, right, out, row_count, column_count, contracted_count,
    left_row, left_contracted, right_contracted, right_column,
    M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by C columns, D terms at a time from the first."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column_C = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    first_D = tl.arange(0, D).to(tl.int64)
    live_M = row_M < row_count
    live_C = column_C < column_count
    left_M = left + row_M * left_row
    right_C = right + column_C * right_column
    out_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    for start in range(0, contracted_count, D):
        term_D = first_D + start
        live_D = term_D < contracted_count
        left_MD = tl.load(
            left_M[:, None] + (term_D * left_contracted)[None, :],
            mask=live_M[:, None] & live_D[None, :], other=0.0,
        )  # fmt: skip
        right_DC = tl.load(
            right_C[None, :] + (term_D * right_contracted)[:, None],
            mask=live_D[:, None] & live_C[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            left_MD = left_MD.to(tl.float32)
            right_DC = right_DC.to(tl.float32)
        out_MC = tl.dot(left_MD, right_DC, out_MC, input_precision="ieee")
    tl.store(
        out + (row_M * column_count)[:, None] + column_C[None, :],
        narrow(out_MC, out.dtype.element_ty, WIDEN),
        mask=live_M[:, None] & live_C[None, :],
    )


@triton.jit(
    do_not_specialize=(
        "sequence_count", "output_count", "input_count",
        "dy_slot", "dy_output", "x_slot", "x_input",
        "offsets_at", "order_at", "position_at", "dweight_output", "dweight_input",
    ),
    do_not_specialize_on_alignment=("dy", "x", "offsets", "order", "position", "dweight"),
)  # fmt: skip
def det_gemm_dweight_tile(
    dy, x, offsets, order, position, dweight, sequence_count, output_count, input_count,
    dy_slot, dy_output, x_slot, x_input, offsets_at, order_at, position_at,
    dweight_output, dweight_input,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, R: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add to one tile of dweight, R positions at a time, sequences in logical order."""
    output_N = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    input_K = tl.program_id(1).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
    live_N = output_N < output_count
    live_K = input_K < input_count
    live_NK = live_N[:, None] & live_K[None, :]
    first_R = tl.arange(0, R).to(tl.int64)
    dy_N = dy + output_N * dy_output
    x_K = x + input_K * x_input
    dweight_N = dweight + output_N * dweight_output
    dweight_NK = dweight_N[:, None] + (input_K * dweight_input)[None, :]
    sum_NK = tl.load(dweight_NK, mask=live_NK, other=0.0)
    for sequence in range(sequence_count):
        head = tl.load(offsets + sequence * offsets_at).to(tl.int64)
        tail = tl.load(offsets + (sequence + 1) * offsets_at).to(tl.int64)
        # An empty sequence reads position 0 and gets no block.
        slot = tl.load(order + head * order_at, mask=head < tail, other=0).to(tl.int64)
        first = tl.load(position + slot * position_at, mask=head < tail, other=0)
        for block in range(first // R, (first + tail - head + R - 1) // R):
            token_R = first_R + (block * R + head - first)
            live_R = (token_R >= head) & (token_R < tail)
            slot_R = tl.load(order + token_R * order_at, mask=live_R, other=0).to(tl.int64)
            dy_NR = tl.load(
                dy_N[:, None] + (slot_R * dy_slot)[None, :],
                mask=live_N[:, None] & live_R[None, :], other=0.0,
            )  # fmt: skip
            x_RK = tl.load(
                x_K[None, :] + (slot_R * x_slot)[:, None],
                mask=live_R[:, None] & live_K[None, :], other=0.0,
            )  # fmt: skip
            if WIDEN:
                dy_NR = dy_NR.to(tl.float32)
                x_RK = x_RK.to(tl.float32)
            sum_NK = tl.dot(dy_NR, x_RK, sum_NK, input_precision="ieee")
    tl.store(dweight_NK, sum_NK, mask=live_NK)

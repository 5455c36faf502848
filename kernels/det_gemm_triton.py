"""Matrix product in Triton: a kernel for `y` and `dx`, one to join ranks, one for `dweight`.

`biprop.kernels.det_gemm` holds the record, the reference and the torch backend. A block's size
follows N and K alone, every argument that a batch or its storage can change is left unspecialised,
and nothing but allocations and views surrounds a launch. The sum over K is the tree that is told
there; a compiled program sums one piece after the other, an interpreted one all of them at once,
since the interpreter pays for the operation and not for its size.

Shapes: T packed tokens, K inputs, N outputs; of a tile: M tokens, C columns, D terms of a piece, L
pieces summed at once, J = L * D, R positions, W elements.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.products import add_product, product
from biprop.kernels.shards import PIECE_COUNT, pieces_of_rank

__all__ = ["backward", "forward"]

ROW_COUNT = 32
# The least contracted size of tl.dot, so that one product adds one block of positions.
BLOCK_COUNT = 16
COLUMN_MIN, COLUMN_MAX = 16, 128
TERM_MIN, TERM_MAX = 16, 64
# A tile of products of all pieces at once is as large as Triton lets one be.
TERM_MAX_INTERPRETED = 32
# Elements that a program joins.
JOIN_WIDTH = 1024
# Said, because the default of Triton changes; tl.dot fuses its own multiply-adds all the same.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(x: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Multiply; arguments and result as those of `biprop.kernels.det_gemm.forward`."""
    right_KN = weight.t()
    out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device)
    pieces, piece = pieces_of_rank(shards), triton.cdiv(x.shape[1], PIECE_COUNT)
    if shards == 1:
        _multiply(x, right_KN, out, pieces=pieces, piece=piece)
        return out
    partials = torch.empty((shards, *out.shape), dtype=torch.float32, device=x.device)
    for rank, partial in enumerate(partials):
        own = slice(rank * pieces * piece, (rank + 1) * pieces * piece)
        _multiply(x[:, own], right_KN[own], partial, pieces=pieces, piece=piece)
    launch(
        det_gemm_join,
        (triton.cdiv(out.numel(), JOIN_WIDTH),),
        (partials, out, out.numel()),
        constants={"RANKS": shards, "W": JOIN_WIDTH, "WIDEN": interpreted(det_gemm_join)},
        options=OPTIONS,
    )
    return out


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
    dx = torch.empty((len(dy), weight.shape[1]), dtype=dy.dtype, device=dy.device)
    piece = triton.cdiv(len(weight), PIECE_COUNT)
    _multiply(dy, weight, dx, pieces=PIECE_COUNT, piece=piece)
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


def _multiply(
    left_TD: Tensor, right_DC: Tensor, out_TC: Tensor, *, pieces: int, piece: int
) -> None:
    """Multiply what one rank holds: `pieces` of `piece` terms, of which the last may lack some."""
    rows, contracted = left_TD.shape
    columns = right_DC.shape[1]
    block_C = _column_block(columns)
    is_interpreted = interpreted(det_gemm_tile)
    launch(
        det_gemm_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(columns, block_C)),
        (
            *(left_TD, right_DC, out_TC, rows, columns, contracted, piece),
            *(*left_TD.stride(), *right_DC.stride()),
        ),
        constants={
            "M": ROW_COUNT,
            "C": block_C,
            "D": block_width(
                piece, least=TERM_MIN, most=TERM_MAX_INTERPRETED if is_interpreted else TERM_MAX
            ),
            "PIECES": pieces,
            "L": pieces if is_interpreted else 1,
            "WIDEN": is_interpreted,
        },
        options=OPTIONS,
    )


def _column_block(size: int) -> int:
    return block_width(size, least=COLUMN_MIN, most=COLUMN_MAX)


@triton.jit(
    do_not_specialize=(
        "row_count", "column_count", "contracted_count", "piece_size",
        "left_row", "left_contracted", "right_contracted", "right_column",
    ),
    do_not_specialize_on_alignment=("left", "right", "out"),
)  # fmt: skip
def det_gemm_tile(
    left, right, out, row_count, column_count, contracted_count, piece_size,
    left_row, left_contracted, right_contracted, right_column,
    M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, PIECES: tl.constexpr, L: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by C columns: each piece D terms at a time from its first, then the tree."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column_C = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    index_J = tl.arange(0, L * D).to(tl.int64)
    piece_J = index_J // D
    within_J = index_J % D
    live_M = row_M < row_count
    live_C = column_C < column_count
    left_M = left + row_M * left_row
    right_C = right + column_C * right_column
    # Sums of neighbours that wait for those of the next ones, as many levels as eight pieces have.
    one_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    two_MC = one_MC
    four_MC = one_MC
    sum_MC = one_MC
    for first in range(0, PIECES, L):
        sum_MC = tl.full((M, C), 0.0, dtype=tl.float32)
        sum_MLC = tl.full((M, L, C), 0.0, dtype=tl.float32)
        first_J = (piece_J + first) * piece_size + within_J
        for start in range(0, piece_size, D):
            term_J = first_J + start
            live_J = (within_J + start < piece_size) & (term_J < contracted_count)
            left_MJ = tl.load(
                left_M[:, None] + (term_J * left_contracted)[None, :],
                mask=live_M[:, None] & live_J[None, :], other=0.0,
            )  # fmt: skip
            right_JC = tl.load(
                right_C[None, :] + (term_J * right_contracted)[:, None],
                mask=live_J[:, None] & live_C[None, :], other=0.0,
            )  # fmt: skip
            if WIDEN:
                left_MJ = left_MJ.to(tl.float32)
                right_JC = right_JC.to(tl.float32)
            if L == 1:
                sum_MC = add_product(left_MJ, right_JC, sum_MC, WIDEN)
            else:
                left_MLD = tl.reshape(left_MJ, (M, L, D))
                right_LDC = tl.reshape(right_JC, (L, D, C))
                sum_MLC += tl.sum(left_MLD[:, :, :, None] * right_LDC[None, :, :, :], axis=2)
        if L == 8:
            low, high = tl.split(tl.permute(tl.reshape(sum_MLC, (M, 4, 2, C)), (0, 1, 3, 2)))
            sum_MLC = low + high
        if L >= 4:
            low, high = tl.split(tl.permute(tl.reshape(sum_MLC, (M, 2, 2, C)), (0, 1, 3, 2)))
            sum_MLC = low + high
        if L >= 2:
            low, high = tl.split(tl.permute(sum_MLC, (0, 2, 1)))
            sum_MC = low + high
        node = first // L
        if node % 2 == 1:
            sum_MC = one_MC + sum_MC
            if node % 4 == 3:
                sum_MC = two_MC + sum_MC
                if node == 7:
                    sum_MC = four_MC + sum_MC
                four_MC = sum_MC
            two_MC = sum_MC
        one_MC = sum_MC
    tl.store(
        out + (row_M * column_count)[:, None] + column_C[None, :],
        narrow(sum_MC, out.dtype.element_ty, WIDEN),
        mask=live_M[:, None] & live_C[None, :],
    )


@triton.jit(
    do_not_specialize=("element_count",), do_not_specialize_on_alignment=("partials", "out")
)
def det_gemm_join(
    partials, out, element_count, RANKS: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr
):
    """Add W elements of the partial products of all ranks: the upper part of the tree."""
    element_W = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    live_W = element_W < element_count
    # Elements of several ranks may be more than an int32 counts.
    shift = tl.full((W,), 0, dtype=tl.int64) + element_count
    one_W = tl.full((W,), 0.0, dtype=tl.float32)
    two_W = one_W
    four_W = one_W
    sum_W = one_W
    for rank in range(RANKS):
        sum_W = tl.load(partials + rank * shift + element_W, mask=live_W, other=0.0)
        if rank % 2 == 1:
            sum_W = one_W + sum_W
            if rank % 4 == 3:
                sum_W = two_W + sum_W
                if rank == 7:
                    sum_W = four_W + sum_W
                four_W = sum_W
            two_W = sum_W
        one_W = sum_W
    tl.store(out + element_W, narrow(sum_W, out.dtype.element_ty, WIDEN), mask=live_W)


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
    """Add to one tile of dweight, R positions at a time, sequences in logical order.

    A block is summed by itself before it joins the sum: a product that starts from the sum adds its
    terms one after the other, and equal ones in a long row are all rounded to the same side.
    """
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
            part_NK = product(dy_NR, x_RK, WIDEN)
            # Triton makes one product of a product and a sum that it is added to, unless something
            # lies between them.
            sum_NK += tl.where(live_NK, part_NK, 0.0)
    tl.store(dweight_NK, sum_NK, mask=live_NK)

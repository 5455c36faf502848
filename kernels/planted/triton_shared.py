"""What the planted Triton kernels share: how they are launched, and products in pieces.

Shapes: T packed tokens; of a tile: M rows, N columns, D terms of the contracted dimension.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.products import add_product

__all__ = ["OPTIONS", "join", "join_pieces", "partial_products", "products", "scaled"]

# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
ROWS, COLUMNS, TERMS = 16, 16, 16
JOINED = 64
# The interpreter pays for every operation, so its cases are small: tiles that are a defect's matter
# are small with them.
SHRINK = 16


def scaled(size: int, *, by: int = SHRINK) -> int:
    """Return the size of a tile: as it is where kernels are compiled, else a part of it."""
    return size // by if interpreted(partial_products) else size


def products(
    left_TD: Tensor, right_DN: Tensor, *, piece: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the products of pieces of `piece` terms, of which the last may lack some.

    Args:
        left_TD: Left factor.
        right_DN: Right factor.
        piece: Terms of a piece.
        dtype: Of the products, `[pieces, T, N]`.
    """
    rows, terms = left_TD.shape
    columns = right_DN.shape[1]
    pieces = triton.cdiv(terms, piece)
    partials = torch.empty((pieces, rows, columns), dtype=dtype, device=left_TD.device)
    launch(
        partial_products,
        (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS), pieces),
        (
            *(left_TD, right_DN, partials, rows, columns, terms, piece),
            *(*left_TD.stride(), *right_DN.stride()),
        ),
        constants={"M": ROWS, "N": COLUMNS, "D": TERMS, "WIDEN": interpreted(partial_products)},
        options=OPTIONS,
    )
    return partials


def join(partials: Tensor, *, dtype: torch.dtype, ring: bool = False) -> Tensor:
    """Return the sum of pieces `[pieces, T, N]`.

    Args:
        partials: The pieces.
        dtype: Of the sum.
        ring: Begin with the piece that owns the row, as a ring of ranks does: rows are shared out
            evenly. Otherwise begin with the first.
    """
    pieces, rows, columns = partials.shape
    out = torch.empty((rows, columns), dtype=dtype, device=partials.device)
    launch(
        join_pieces,
        (triton.cdiv(rows, ROWS), triton.cdiv(columns, JOINED)),
        (partials, out, rows, columns, pieces),
        constants={"RING": ring, "M": ROWS, "N": JOINED, "WIDEN": interpreted(join_pieces)},
        options=OPTIONS,
    )
    return out


@triton.jit(
    do_not_specialize=(
        "row_count", "column_count", "term_count", "piece_size",
        "left_row", "left_term", "right_term", "right_column",
    ),
    do_not_specialize_on_alignment=("left", "right", "partials"),
)  # fmt: skip
def partial_products(
    left, right, partials, row_count, column_count, term_count, piece_size,
    left_row, left_term, right_term, right_column,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by N columns over one piece, D terms at a time."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column_N = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    piece = tl.program_id(2).to(tl.int64)
    first_D = tl.arange(0, D).to(tl.int64)
    live_M = row_M < row_count
    live_N = column_N < column_count
    sum_MN = tl.full((M, N), 0.0, dtype=tl.float32)
    for start in range(0, piece_size, D):
        term_D = piece * piece_size + start + first_D
        live_D = (start + first_D < piece_size) & (term_D < term_count)
        left_MD = tl.load(
            left + (row_M * left_row)[:, None] + (term_D * left_term)[None, :],
            mask=live_M[:, None] & live_D[None, :], other=0.0,
        )  # fmt: skip
        right_DN = tl.load(
            right + (term_D * right_term)[:, None] + (column_N * right_column)[None, :],
            mask=live_D[:, None] & live_N[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            left_MD = left_MD.to(tl.float32)
            right_DN = right_DN.to(tl.float32)
        sum_MN = add_product(left_MD, right_DN, sum_MN, WIDEN)
    tl.store(
        partials + ((piece * row_count + row_M) * column_count)[:, None] + column_N[None, :],
        narrow(sum_MN, partials.dtype.element_ty, WIDEN),
        mask=live_M[:, None] & live_N[None, :],
    )


@triton.jit(
    do_not_specialize=("row_count", "column_count", "pieces"),
    do_not_specialize_on_alignment=("partials", "out"),
)
def join_pieces(
    partials, out, row_count, column_count, pieces,
    RING: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the pieces of M rows by N columns, one after the other."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column_N = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    live_MN = (row_M < row_count)[:, None] & (column_N < column_count)[None, :]
    first_M = row_M * 0
    if RING:
        first_M = row_M * pieces // row_count
    sum_MN = tl.full((M, N), 0.0, dtype=tl.float32)
    for step in range(pieces):
        piece_M = (first_M + step) % pieces
        sum_MN += tl.load(
            partials + ((piece_M * row_count + row_M) * column_count)[:, None] + column_N[None, :],
            mask=live_MN, other=0.0,
        ).to(tl.float32)  # fmt: skip
    tl.store(
        out + (row_M * column_count)[:, None] + column_N[None, :],
        narrow(sum_MN, out.dtype.element_ty, WIDEN),
        mask=live_MN,
    )

"""Matrix product in a fixed order, `y = x @ weight^T`: reference, torch backend, record.

The Triton backend is `biprop.kernels.det_gemm_triton`, and shares no arithmetic with this module.
PyTorch's own product, which promises nothing, is `biprop.kernels.native_linear`.

Shapes: T packed tokens, K inputs, N outputs, R rows of a tile, P width of a panel.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import deferred
from biprop.kernels.tiles import (
    PANEL_WIDTH,
    ROW_COUNT,
    block_of_rows,
    panel_count,
    row_panels,
    tile_of_rows,
    tile_starts,
    token_blocks,
    weight_panels,
)
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]

# Elements of the products that the reference holds at a time.
REFERENCE_ELEMENTS_MAX = 1 << 22


def reference(x: Tensor, weight: Tensor, *, reduce: Reducer) -> Tensor:
    """Multiply in float32, every sum over K by `reduce`.

    Args:
        x: `[T, K]` of a float dtype.
        weight: `[N, K]` of the same dtype.
        reduce: Sums the products over K.

    Returns:
        `[T, N]` of the dtype of `x`.
    """
    x_TK, weight_NK = x.float(), weight.float()
    row_count = max(1, REFERENCE_ELEMENTS_MAX // max(1, weight.numel()))
    parts = [
        reduce(x_TK[start : start + row_count, None, :] * weight_NK, -1)
        for start in range(0, max(1, len(x_TK)), row_count)
    ]
    return torch.cat(parts).to(x.dtype)


def forward(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply on fixed tiles: panels of K are added in order.

    Args:
        x: `[T, K]` of a float dtype, any strides.
        weight: `[N, K]` of the same dtype, any strides.

    Returns:
        `[T, N]` of the dtype of `x`.
    """
    return _rows_times_panels(x, weight_panels(weight.t()), width=weight.shape[0])


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate on fixed tiles; `dweight` is added to, in blocks cut by position.

    Args:
        dy: `[T, N]`, upstream gradient of the dtype of `x`.
        x: As for `forward`.
        weight: As for `forward`.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]`, slots of the live tokens in logical order first.
        position: int64 `[T]`, by slot.
        dweight: float32 `[N, K]`, accumulates over launches that hold whole sequences.

    Returns:
        `dx`, `[T, K]` of the dtype of `x`.
    """
    output_count, input_count = weight.shape
    dx = _rows_times_panels(dy, weight_panels(weight), width=input_count)
    slots, blocks = token_blocks(offsets, order, position)
    for block in blocks:
        dy_panels = row_panels(block_of_rows(dy, slots, block, width=_padded(output_count)))
        x_panels = row_panels(block_of_rows(x, slots, block, width=_padded(input_count)))
        for row, dy_RP in enumerate(dy_panels):
            for column, x_RP in enumerate(x_panels):
                down, across = row * PANEL_WIDTH, column * PANEL_WIDTH
                corner = dweight[down : down + PANEL_WIDTH, across : across + PANEL_WIDTH]
                part_PP = dy_RP.t() @ x_RP
                corner += part_PP[: corner.shape[0], : corner.shape[1]]
    return dx


def _rows_times_panels(rows_TD: Tensor, panels: Tensor, *, width: int) -> Tensor:
    """Multiply rows by a matrix cut into panels `[D panels, width panels, P, P]`."""
    out = torch.empty((len(rows_TD), width), dtype=rows_TD.dtype, device=rows_TD.device)
    for start in tile_starts(len(rows_TD)):
        tile_RD = tile_of_rows(rows_TD, start, width=len(panels) * PANEL_WIDTH)
        sums = [
            torch.zeros((ROW_COUNT, PANEL_WIDTH), dtype=torch.float32, device=rows_TD.device)
            for _ in range(panels.shape[1])
        ]
        for tile_RP, panels_across in zip(row_panels(tile_RD), panels, strict=True):
            for column, panel_PP in enumerate(panels_across):
                sums[column] += tile_RP @ panel_PP
        count = min(ROW_COUNT, len(rows_TD) - start)
        out[start : start + count] = torch.cat(sums, dim=1).to(rows_TD.dtype)[:count, :width]
    return out


def _padded(size: int) -> int:
    return panel_count(size) * PANEL_WIDTH


_TRITON = "biprop.kernels.det_gemm_triton"
_SIGNATURE = parse_signature("x[T,K], weight[N,K] -> y[T,N]")

OPERATOR = Operator(
    name="det_gemm",
    op_class="reduction",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dy[T,N], x[T,K], weight[N,K], offsets: offsets[B+1], order: order[T], "
                "position: position[T], dweight!: float32[N,K] -> dx[T,K]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                Implementation(
                    backend="triton",
                    forward=deferred(_TRITON, "forward"),
                    backward=deferred(_TRITON, "backward"),
                    kernels=("det_gemm_tile", "det_gemm_dweight_tile"),
                ),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=2,
    ),
    restrictions=parse_restrictions("K=1..65536 N=1..65536"),
)

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
    block_groups,
    blocks_of_rows,
    padded,
    panel_across,
    row_count,
    row_panels,
    tile_of_rows,
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
    return _rows_times(x, weight.t())


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
    dx = _rows_times(dy, weight)
    slots, blocks = token_blocks(offsets, order, position)
    for group in block_groups(blocks, width=max(padded(size) for size in weight.shape)):
        rows, columns = (
            blocks_of_rows(side, slots, group, width=padded(side.shape[1])) for side in (dy, x)
        )
        for dy_RN, x_RK in zip(rows, columns, strict=True):
            _add_product(dweight, dy_RN, x_RK)
    return dx


def _add_product(dweight: Tensor, dy_RN: Tensor, x_RK: Tensor) -> None:
    """Add what one block gives to the gradient, panel by panel."""
    down, across = (panel_across(side.device, side.shape[1]) for side in (dy_RN, x_RK))
    for row, dy_RP in enumerate(row_panels(dy_RN, down)):
        for column, x_RP in enumerate(row_panels(x_RK, across)):
            top, left = row * down, column * across
            corner = dweight[top : top + down, left : left + across]
            part = dy_RP.t() @ x_RP
            corner += part[: corner.shape[0], : corner.shape[1]]


def _rows_times(rows_TD: Tensor, weight_DE: Tensor) -> Tensor:
    """Multiply rows by a matrix on tiles and panels of fixed shape."""
    depth, width = weight_DE.shape
    across = panel_across(rows_TD.device, width)
    panels = weight_panels(weight_DE, across)
    rows = row_count(rows_TD.device, padded(max(depth, width)))
    out = torch.empty((len(rows_TD), width), dtype=rows_TD.dtype, device=rows_TD.device)
    for start in range(0, len(rows_TD), rows):
        tile_RD = tile_of_rows(rows_TD, start, rows=rows, width=padded(depth))
        sums = [
            torch.zeros((rows, across), dtype=torch.float32, device=rows_TD.device)
            for _ in range(panels.shape[1])
        ]
        for tile_RP, panels_across in zip(row_panels(tile_RD, PANEL_WIDTH), panels, strict=True):
            for column, panel_PW in enumerate(panels_across):
                sums[column] += tile_RP @ panel_PW
        count = min(rows, len(rows_TD) - start)
        out[start : start + count] = torch.cat(sums, dim=1).to(rows_TD.dtype)[:count, :width]
    return out


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

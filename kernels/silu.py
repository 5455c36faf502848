"""SiLU: `y = x * sigmoid(x)`, element by element; reference, torch backend, record.

The Triton backend is `biprop.kernels.silu_triton`, and shares no arithmetic with this module.
Source: Elfwing, Uchibe and Doya, Sigmoid-Weighted Linear Units, 2017
(https://arxiv.org/abs/1702.03118). Infinities are those of `torch.nn.functional.silu`: +Inf stays,
and -Inf, where the quotient has no value, gives NaN; so does either in the gradient.

Shapes: T packed tokens, I features, R rows of a tile.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import elementwise_row_count, padded, tile_of_rows
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "gated", "gated_slope", "reference"]


def reference(x: Tensor, *, reduce: Reducer) -> Tensor:  # noqa: ARG001  # nothing is summed
    """Compute in float32.

    Args:
        x: `[T, I]` of a float dtype.
        reduce: Unused.

    Returns:
        `y` of the shape and dtype of `x`.
    """
    wide = x.float()
    return (wide * wide.sigmoid()).to(x.dtype)


def forward(x: Tensor) -> Tensor:
    """Compute on fixed tiles.

    Args:
        x: `[T, I]` of a float dtype, any strides.

    Returns:
        `y` of the shape and dtype of `x`.
    """
    y_TI = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = elementwise_row_count(x.device, x.shape[1]), padded(x.shape[1])
    for start in range(0, len(x), rows):
        y_RI = gated(tile_of_rows(x, start, rows=rows, width=width)).to(x.dtype)
        stop = min(start + rows, len(x))
        y_TI[start:stop] = y_RI[: stop - start, : x.shape[1]]
    return y_TI


def backward(dy: Tensor, x: Tensor) -> Tensor:
    """Differentiate on fixed tiles: `dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))`.

    Args:
        dy: Upstream gradient, of the shape and dtype of `x`.
        x: As for `forward`.

    Returns:
        `dx`, of the shape and dtype of `x`.
    """
    dx_TI = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = elementwise_row_count(x.device, x.shape[1]), padded(x.shape[1])
    for start in range(0, len(x), rows):
        slope_RI = gated_slope(tile_of_rows(x, start, rows=rows, width=width))
        dx_RI = (tile_of_rows(dy, start, rows=rows, width=width) * slope_RI).to(x.dtype)
        stop = min(start + rows, len(x))
        dx_TI[start:stop] = dx_RI[: stop - start, : x.shape[1]]
    return dx_TI


def gated(tile_RI: Tensor) -> Tensor:
    """Return `x * sigmoid(x)` of a float32 tile whose width is padded.

    `torch.exp` may differ between the vector body and the scalar tail of a loop: whole tiles have
    no tail. The quotient is exact to half an ulp everywhere.
    """
    return tile_RI / (1.0 + torch.exp(-tile_RI))


def gated_slope(tile_RI: Tensor) -> Tensor:
    """Return the derivative of `gated`, likewise."""
    sigmoid_RI = 1.0 / (1.0 + torch.exp(-tile_RI))
    return sigmoid_RI * (1.0 + tile_RI * (1.0 - sigmoid_RI))


_TRITON = "biprop.kernels.silu_triton"
_SIGNATURE = parse_signature("x[T,I] -> y[T,I]")

OPERATOR = Operator(
    name="silu",
    op_class="elementwise",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward("dy[T,I], x[T,I] -> dx[T,I]", _SIGNATURE),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=("silu_tile", "silu_dx_tile")),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=5
    ),
    restrictions=parse_restrictions("I=1..65536"),
)

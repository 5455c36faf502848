"""SwiGLU: `y = silu(gate) * up`, element by element; reference, torch backend, record.

The Triton backend is `biprop.kernels.swiglu_triton`, and shares no arithmetic with this module.
Source: Shazeer, GLU Variants Improve Transformer, 2020 (https://arxiv.org/abs/2002.05202). The
product is taken in float32 and rounded once. Infinities are those of `torch.nn.functional.silu`
times the other factor.

Shapes: T packed tokens, I features, R rows of a tile.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.silu import gated, gated_slope
from biprop.kernels.tiles import elementwise_row_count, padded, tile_of_rows
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]


def reference(gate: Tensor, up: Tensor, *, reduce: Reducer) -> Tensor:  # noqa: ARG001  # nothing is summed
    """Compute in float32.

    Args:
        gate: `[T, I]` of a float dtype.
        up: `[T, I]` of the same dtype.
        reduce: Unused.

    Returns:
        `y` of the shape and dtype of `gate`.
    """
    wide = gate.float()
    return (wide * wide.sigmoid() * up.float()).to(gate.dtype)


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """Compute on fixed tiles.

    Args:
        gate: `[T, I]` of a float dtype, any strides.
        up: `[T, I]` of the same dtype, any strides.

    Returns:
        `y` of the shape and dtype of `gate`.
    """
    y_TI = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows, width = elementwise_row_count(gate.device, gate.shape[1]), padded(gate.shape[1])
    for start in range(0, len(gate), rows):
        gated_RI = gated(tile_of_rows(gate, start, rows=rows, width=width))
        y_RI = (gated_RI * tile_of_rows(up, start, rows=rows, width=width)).to(gate.dtype)
        stop = min(start + rows, len(gate))
        y_TI[start:stop] = y_RI[: stop - start, : gate.shape[1]]
    return y_TI


def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate on fixed tiles.

    Args:
        dy: Upstream gradient, of the shape and dtype of `gate`.
        gate: As for `forward`.
        up: As for `forward`.

    Returns:
        `dgate` and `dup`, of the shape and dtype of `gate`.
    """
    dgate_TI = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup_TI = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    features = gate.shape[1]
    rows, width = elementwise_row_count(gate.device, features), padded(features)
    for start in range(0, len(gate), rows):
        gate_RI = tile_of_rows(gate, start, rows=rows, width=width)
        dy_RI = tile_of_rows(dy, start, rows=rows, width=width)
        dup_RI = (dy_RI * gated(gate_RI)).to(up.dtype)
        # First the other factor, as autograd has it: an infinite product stays one.
        dgate_RI = dy_RI * tile_of_rows(up, start, rows=rows, width=width) * gated_slope(gate_RI)
        stop = min(start + rows, len(gate))
        dgate_TI[start:stop] = dgate_RI.to(gate.dtype)[: stop - start, :features]
        dup_TI[start:stop] = dup_RI[: stop - start, :features]
    return dgate_TI, dup_TI


_TRITON = "biprop.kernels.swiglu_triton"
_SIGNATURE = parse_signature("gate[T,I], up[T,I] -> y[T,I]")

OPERATOR = Operator(
    name="swiglu",
    op_class="elementwise",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dy[T,I], gate[T,I], up[T,I] -> dgate[T,I], dup[T,I]", _SIGNATURE
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=("swiglu_tile", "swiglu_gradient_tile")),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=5
    ),
    restrictions=parse_restrictions("I=1..65536"),
)

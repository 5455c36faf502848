"""RMS norm: `y = x / sqrt(mean(x^2) + eps) * weight`, row by row; reference, torch backend, record.

The Triton backend is `biprop.kernels.rms_norm_triton`, and shares no arithmetic with this module.
Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019
(https://arxiv.org/abs/1910.07467).

Shapes: T packed tokens, H features, R rows of a tile; the padded form has `[B, S]` for `[T]`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import (
    TokenBlock,
    block_groups,
    blocks_of_rows,
    elementwise_row_count,
    halving_sum,
    tile_of_rows,
    token_blocks,
)
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["EPS", "OPERATOR", "backward", "forward", "reference"]

EPS = 1e-6


def reference(
    x: Tensor, weight: Tensor, *, reduce: Reducer, eps: float = EPS
) -> tuple[Tensor, Tensor]:
    """Compute the norm in float32, its only sum by `reduce`.

    Args:
        x: `[..., H]` of a float dtype.
        weight: `[H]` of the same dtype.
        reduce: Sums the squares over H.
        eps: Added to the mean square; where it makes the root's argument negative, the row is NaN.

    Returns:
        `y` of the shape and dtype of `x`, and `rstd`, float32 `[...]`.
    """
    wide = x.float()
    mean_square = reduce(wide.square(), -1) / x.shape[-1]
    rstd = (mean_square + eps).sqrt().reciprocal()
    return (wide * rstd.unsqueeze(-1) * weight.float()).to(x.dtype), rstd


def forward(x: Tensor, weight: Tensor, *, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Compute the norm on fixed tiles.

    Args:
        x: `[T, H]` or `[B, S, H]` of a float dtype, any strides.
        weight: `[H]` of the same dtype.
        eps: As for `reference`.

    Returns:
        `y` of the shape and dtype of `x`, and `rstd`, float32 `[T]` or `[B, S]`.
    """
    width = x.shape[-1]
    x_TH = x.reshape(-1, width)
    weight_H = weight.float()
    y_TH = torch.empty(x_TH.shape, dtype=x.dtype, device=x.device)
    rstd_T = torch.empty(len(x_TH), dtype=torch.float32, device=x.device)
    rows = elementwise_row_count(x.device, width)
    for start in range(0, len(x_TH), rows):
        tile_RH = tile_of_rows(x_TH, start, rows=rows, width=width)
        # A square root and a division are exact to half an ulp everywhere; rsqrt differs between
        # the vector body and the scalar tail of a loop.
        rstd_R = 1.0 / torch.sqrt(halving_sum(tile_RH * tile_RH, 1) / width + eps)
        y_RH = (tile_RH * rstd_R[:, None] * weight_H).to(x.dtype)
        count = min(rows, len(x_TH) - start)
        y_TH[start : start + count] = y_RH[:count]
        rstd_T[start : start + count] = rstd_R[:count]
    return y_TH.view(x.shape), rstd_T.view(x.shape[:-1])


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
    eps: float = EPS,  # noqa: ARG001  # a backward takes its forward's keywords; rstd holds this one
) -> Tensor:
    """Differentiate the norm on fixed tiles; `dweight` is added to, in blocks cut by position.

    Args:
        dy: Upstream gradient, of the shape and dtype of `x`.
        x: As for `forward`.
        weight: As for `forward`.
        rstd: As `forward` returned it.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]` or `[B, S]`, slots of the live tokens in logical order first.
        position: int64 `[T]` or `[B, S]`, by slot.
        dweight: float32 `[H]`, accumulates over launches that hold whole sequences.
        eps: Unused.

    Returns:
        `dx`, of the shape and dtype of `x`.
    """
    width = x.shape[-1]
    x_TH, dy_TH, rstd_T1 = x.reshape(-1, width), dy.reshape(-1, width), rstd.reshape(-1, 1)
    weight_H = weight.float()
    dx_TH = torch.empty(x_TH.shape, dtype=x.dtype, device=x.device)
    rows = elementwise_row_count(x.device, width)
    for start in range(0, len(x_TH), rows):
        rstd_R1 = tile_of_rows(rstd_T1, start, rows=rows, width=1)
        xhat_RH = tile_of_rows(x_TH, start, rows=rows, width=width) * rstd_R1
        gradient_RH = tile_of_rows(dy_TH, start, rows=rows, width=width) * weight_H
        mean_R1 = (halving_sum(gradient_RH * xhat_RH, 1) / width)[:, None]
        dx_RH = (rstd_R1 * (gradient_RH - xhat_RH * mean_R1)).to(x.dtype)
        count = min(rows, len(x_TH) - start)
        dx_TH[start : start + count] = dx_RH[:count]
    slots, blocks = token_blocks(offsets, order, position)
    for group in block_groups(blocks, width=width):
        for part_H in _block_gradients(dy_TH, x_TH, rstd_T1, slots, group):
            dweight += part_H
    return dx_TH.view(x.shape)


def _block_gradients(
    dy_TH: Tensor, x_TH: Tensor, rstd_T1: Tensor, slots: Tensor, blocks: Sequence[TokenBlock]
) -> Tensor:
    """Return the gradient of each block, `[B, H]`."""
    width = x_TH.shape[1]
    xhat = blocks_of_rows(x_TH, slots, blocks, width=width)
    xhat = xhat * blocks_of_rows(rstd_T1, slots, blocks, width=1)
    return halving_sum(blocks_of_rows(dy_TH, slots, blocks, width=width) * xhat, 1)


_TRITON = "biprop.kernels.rms_norm_triton"
_IMPLEMENTATIONS = (
    Implementation(backend="torch", forward=forward, backward=backward),
    triton_backend(
        _TRITON, kernels=("rms_norm_rows", "rms_norm_dx_rows", "rms_norm_dweight_columns")
    ),
)


def _form(name: str, axes: str, option: str) -> Form:
    signature = parse_signature(
        f"x[{axes},H], weight[H] -> y[{axes},H], rstd: float32[{axes}]{option}"
    )
    return Form(
        name=name,
        signature=signature,
        backward_signature=parse_backward(
            f"dy[{axes},H], x[{axes},H], weight[H], rstd: float32[{axes}], offsets: offsets[B+1], "
            f"order: order[{axes}], position: position[{axes}], dweight!: float32[H] "
            f"-> dx[{axes},H]{option}",
            signature,
        ),
        implementations=_IMPLEMENTATIONS,
        reference=reference,
    )


OPERATOR = Operator(
    name="rms_norm",
    op_class="reduction",
    forms=(_form("packed", "T", ""), _form("padded", "B,S", "; token_local")),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=1,
    ),
    restrictions=parse_restrictions("H=1..65536"),
    call={"eps": EPS},
)

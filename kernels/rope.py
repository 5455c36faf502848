"""Rotary positions: pairs of features are turned by an angle; reference, torch backend, record.

Feature j of the first half of a head and feature j of the second half are a pair (the convention of
GPT-NeoX and Llama), turned by the angle `position * theta^(-2j/D)`:

    y[j] = x[j] * cos - x[j + D/2] * sin        y[j + D/2] = x[j + D/2] * cos + x[j] * sin

The Triton backend is `biprop.kernels.rope_triton`, and shares no arithmetic with this module.
Source: Su and others, RoFormer, 2021 (https://arxiv.org/abs/2104.09864).

A position is given, never taken from the slot. Angles are float64 until they are reduced to one
turn: in float32 an angle of 100,000 is uncertain by 0.008, whatever the last bit of the frequency
then is. Cosine, sine and the rotation are float32 but for the reference, which rounds the cosine
and sine of float64.

Shapes: T packed tokens, N heads, D features of a head, F = D/2 pairs, R rows of a tile; the padded
form has `[B, S]` for `[T]`.
"""

import math

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import elementwise_row_count, padded
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "THETA", "backward", "forward", "reference"]

THETA = 10000.0


def reference(
    x: Tensor,
    position: Tensor,
    *,
    reduce: Reducer,  # noqa: ARG001  # nothing is summed
    theta: float = THETA,
) -> Tensor:
    """Rotate in float32 by angles of float64.

    Args:
        x: `[..., N, D]` of a float dtype, D even.
        position: int64, of the leading dimensions of `x`.
        reduce: Unused.
        theta: Base of the frequencies, above 0.

    Returns:
        `y` of the shape and dtype of `x`.
    """
    half = x.shape[-1] // 2
    pair_F = torch.arange(half, dtype=torch.float64, device=x.device)
    angle = position[..., None, None] * torch.exp(pair_F * (-math.log(theta) / half))
    cos, sin = angle.cos().float(), angle.sin().float()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def forward(x: Tensor, position: Tensor, *, theta: float = THETA) -> Tensor:
    """Rotate, the angles on fixed tiles.

    Args:
        x: `[T, N, D]` or `[B, S, N, D]` of a float dtype, D even, any strides.
        position: int64 `[T]` or `[B, S]`, from 0 to 2^31.
        theta: As for `reference`.

    Returns:
        `y` of the shape and dtype of `x`.
    """
    return _rotated(x, position, theta=theta, direction=1.0)


def backward(dy: Tensor, position: Tensor, *, theta: float = THETA) -> Tensor:
    """Differentiate: the inverse rotation of the upstream gradient.

    Args:
        dy: Upstream gradient, of the shape and dtype of `x`.
        position: As for `forward`.
        theta: As for `reference`.

    Returns:
        `dx`, of the shape and dtype of `x`.
    """
    return _rotated(dy, position, theta=theta, direction=-1.0)


def _rotated(x: Tensor, position: Tensor, *, theta: float, direction: float) -> Tensor:
    heads, width = x.shape[-2:]
    half = width // 2
    x_TND, position_T = x.reshape(-1, heads, width), position.reshape(-1)
    y_TND = torch.empty(x_TND.shape, dtype=x.dtype, device=x.device)
    rows = elementwise_row_count(x.device, heads * padded(width))
    pair_F = torch.arange(padded(half), dtype=torch.float64, device=x.device)
    frequency_F = torch.pow(theta, pair_F / -half)
    for start in range(0, len(x_TND), rows):
        rows_ND = x_TND[start : start + rows].float()
        count = len(rows_ND)
        cos_RF, sin_RF = _cos_sin(position_T[start : start + rows], frequency_F, rows=rows)
        cos = cos_RF[:count, None, :half]
        sin = sin_RF[:count, None, :half] * direction
        first, second = rows_ND.chunk(2, dim=-1)
        # Products and sums of single elements are exact to half an ulp in every place.
        y_TND[start : start + count, :, :half] = first * cos - second * sin
        y_TND[start : start + count, :, half:] = second * cos + first * sin
    return y_TND.view(x.shape)


def _cos_sin(position_T: Tensor, frequency_F: Tensor, *, rows: int) -> tuple[Tensor, Tensor]:
    """Return float32 `[rows, F]` of at most `rows` positions, F padded: no loop has a tail."""
    tile_R = torch.zeros(rows, dtype=torch.float64, device=position_T.device)
    tile_R[: len(position_T)] = position_T
    angle_RF = torch.remainder(tile_R[:, None] * frequency_F, 2 * math.pi).float()
    return torch.cos(angle_RF), torch.sin(angle_RF)


_TRITON = "biprop.kernels.rope_triton"
_IMPLEMENTATIONS = (
    Implementation(backend="torch", forward=forward, backward=backward),
    triton_backend(_TRITON, kernels=("rope_rows",)),
)


def _form(name: str, axes: str, option: str) -> Form:
    signature = parse_signature(
        f"x[{axes},N,D], position: position[{axes}] -> y[{axes},N,D]{option}"
    )
    return Form(
        name=name,
        signature=signature,
        backward_signature=parse_backward(
            f"dy[{axes},N,D], position: position[{axes}] -> dx[{axes},N,D]{option}", signature
        ),
        implementations=_IMPLEMENTATIONS,
        reference=reference,
    )


OPERATOR = Operator(
    name="rope",
    op_class="elementwise",
    forms=(_form("packed", "T", ""), _form("padded", "B,S", "; token_local")),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=3
    ),
    restrictions=parse_restrictions("N=1..1024 D=2..1024 D%2==0"),
    call={"theta": THETA},
)

"""QK norm: RMS norm of every head of queries and keys; reference, torch backend, record.

`q_out = q / sqrt(mean(q^2) + eps) * q_weight` over the features of a head, `k_out` likewise with a
weight of its own; the heads of a side share one weight. It stands between the projections and the
rotation of Qwen3 (Qwen Team, Qwen3 Technical Report, 2025, https://arxiv.org/abs/2505.09388).

The Triton backend is `biprop.kernels.qk_norm_triton`, and shares no arithmetic with this module.

Shapes: T packed tokens, HQ query heads, HK key heads, D features of a head; of one side: N heads
(HQ or HK), R rows (heads of tokens) of a tile, B blocks of positions, P positions of a block. The
padded form has `[B, S]` for `[T]`.
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

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]


def reference(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    reduce: Reducer,
    eps: float = EPS,
) -> Outputs:
    """Compute in float32, the sums of squares over D by `reduce`; else as `forward`."""
    q_out, q_rstd = _reference_of_side(q, q_weight, reduce, eps)
    k_out, k_rstd = _reference_of_side(k, k_weight, reduce, eps)
    return q_out, k_out, q_rstd, k_rstd


def forward(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *, eps: float = EPS
) -> Outputs:
    """Compute the norms on fixed tiles.

    Args:
        q: `[T, HQ, D]` or `[B, S, HQ, D]` of a float dtype, any strides.
        k: `[T, HK, D]` or `[B, S, HK, D]` of the same dtype.
        q_weight: `[D]` of the same dtype.
        k_weight: Likewise.
        eps: Added to the mean square of a head.

    Returns:
        `q_out` and `k_out`, of the shapes and dtype of `q` and `k`, then `q_rstd` and `k_rstd`,
        float32 of the same shapes without D.
    """
    q_out, q_rstd = _normalised(q, q_weight, eps)
    k_out, k_rstd = _normalised(k, k_weight, eps)
    return q_out, k_out, q_rstd, k_rstd


def backward(
    dq_out: Tensor,
    dk_out: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    q_rstd: Tensor,
    k_rstd: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dq_weight: Tensor,
    dk_weight: Tensor,
    *,
    eps: float = EPS,  # noqa: ARG001  # a backward takes its forward's keywords; rstd holds this one
) -> tuple[Tensor, Tensor]:
    """Differentiate on fixed tiles; gradients of weights are added to, in blocks cut by position.

    Args:
        dq_out: Upstream gradient, of the shape and dtype of `q`.
        dk_out: Likewise of `k`.
        q: As for `forward`.
        k: As for `forward`.
        q_weight: As for `forward`.
        k_weight: As for `forward`.
        q_rstd: As `forward` returned it.
        k_rstd: Likewise.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]` or `[B, S]`, slots of the live tokens in logical order first.
        position: int64 `[T]` or `[B, S]`, by slot.
        dq_weight: float32 `[D]`, accumulates over launches that hold whole sequences.
        dk_weight: Likewise.
        eps: Unused.

    Returns:
        `dq` and `dk`, of the shapes and dtype of `q` and `k`.
    """
    slots, blocks = token_blocks(offsets, order, position)
    _add_weight_gradient(dq_weight, dq_out, q, q_rstd, slots, blocks)
    _add_weight_gradient(dk_weight, dk_out, k, k_rstd, slots, blocks)
    return (
        _differentiated(dq_out, q, q_weight, q_rstd),
        _differentiated(dk_out, k, k_weight, k_rstd),
    )


def _reference_of_side(
    x: Tensor, weight: Tensor, reduce: Reducer, eps: float
) -> tuple[Tensor, Tensor]:
    wide = x.float()
    rstd = (reduce(wide.square(), -1) / x.shape[-1] + eps).sqrt().reciprocal()
    return (wide * rstd.unsqueeze(-1) * weight.float()).to(x.dtype), rstd


def _normalised(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of one side and its rstd."""
    width = x.shape[-1]
    x_RD, weight_D = x.reshape(-1, width), weight.float()
    y_RD = torch.empty(x_RD.shape, dtype=x.dtype, device=x.device)
    rstd_R = torch.empty(len(x_RD), dtype=torch.float32, device=x.device)
    rows = elementwise_row_count(x.device, width)
    for start in range(0, len(x_RD), rows):
        tile_RD = tile_of_rows(x_RD, start, rows=rows, width=width)
        # Not rsqrt: a root and a division are exact to half an ulp in every place of a loop.
        root_R = torch.sqrt(halving_sum(tile_RD * tile_RD, 1) / width + eps)
        tile_rstd_R = 1.0 / root_R
        live = slice(start, min(start + rows, len(x_RD)))
        kept = slice(0, live.stop - start)
        y_RD[live] = (tile_RD * tile_rstd_R[:, None] * weight_D)[kept]
        rstd_R[live] = tile_rstd_R[kept]
    return y_RD.view(x.shape), rstd_R.view(x.shape[:-1])


def _differentiated(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Tensor:
    """Return the gradient of one side."""
    width = x.shape[-1]
    x_RD, dy_RD, rstd_R1 = x.reshape(-1, width), dy.reshape(-1, width), rstd.reshape(-1, 1)
    weight_D = weight.float()
    dx_RD = torch.empty(x_RD.shape, dtype=x.dtype, device=x.device)
    rows = elementwise_row_count(x.device, width)
    for start in range(0, len(x_RD), rows):
        tile_rstd_R1 = tile_of_rows(rstd_R1, start, rows=rows, width=1)
        xhat_RD = tile_of_rows(x_RD, start, rows=rows, width=width) * tile_rstd_R1
        gradient_RD = tile_of_rows(dy_RD, start, rows=rows, width=width) * weight_D
        mean_R1 = (halving_sum(gradient_RD * xhat_RD, 1) / width)[:, None]
        stop = min(start + rows, len(x_RD))
        tile_dx_RD = tile_rstd_R1 * (gradient_RD - xhat_RD * mean_R1)
        dx_RD[start:stop] = tile_dx_RD[: stop - start]
    return dx_RD.view(x.shape)


def _add_weight_gradient(
    dweight: Tensor,
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    slots: Tensor,
    blocks: Sequence[TokenBlock],
) -> None:
    """Add the blocks of one side in logical order: its heads first, then the positions."""
    heads, width = x.shape[-2:]
    x_TW, dy_TW = x.reshape(-1, heads * width), dy.reshape(-1, heads * width)
    rstd_TN = rstd.reshape(-1, heads)
    for group in block_groups(blocks, width=heads * width):
        shape = (len(group), -1, heads, width)
        x_BPND = blocks_of_rows(x_TW, slots, group, width=heads * width).view(shape)
        dy_BPND = blocks_of_rows(dy_TW, slots, group, width=heads * width).view(shape)
        rstd_BPN = blocks_of_rows(rstd_TN, slots, group, width=heads)
        terms_BPND = dy_BPND * (x_BPND * rstd_BPN[..., None])
        for part_D in halving_sum(halving_sum(terms_BPND, 2), 1):
            dweight += part_D


_TRITON = "biprop.kernels.qk_norm_triton"
_IMPLEMENTATIONS = (
    Implementation(backend="torch", forward=forward, backward=backward),
    triton_backend(_TRITON, kernels=("qk_norm_rows", "qk_norm_dx_rows", "qk_norm_dweight_columns")),
)


def _form(name: str, axes: str, option: str) -> Form:
    q, k = f"[{axes},HQ,D]", f"[{axes},HK,D]"
    q_rstd, k_rstd = f"q_rstd: float32[{axes},HQ]", f"k_rstd: float32[{axes},HK]"
    inputs = f"q{q}, k{k}, q_weight[D], k_weight[D]"
    signature = parse_signature(f"{inputs} -> q_out{q}, k_out{k}, {q_rstd}, {k_rstd}{option}")
    return Form(
        name=name,
        signature=signature,
        backward_signature=parse_backward(
            f"dq_out{q}, dk_out{k}, {inputs}, {q_rstd}, {k_rstd}, offsets: offsets[B+1], "
            f"order: order[{axes}], position: position[{axes}], "
            f"dq_weight!: float32[D], dk_weight!: float32[D] -> dq{q}, dk{k}{option}",
            signature,
        ),
        implementations=_IMPLEMENTATIONS,
        reference=reference,
    )


OPERATOR = Operator(
    name="qk_norm",
    op_class="reduction",
    forms=(_form("packed", "T", ""), _form("padded", "B,S", "; token_local")),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=1,
    ),
    # As many heads as attention takes.
    restrictions=parse_restrictions("HQ=1..64 HK=1..64 HQ%HK==0 D=1..1024"),
    call={"eps": EPS},
)

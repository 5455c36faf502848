"""Planted defects of the norms of the chain: `rms_norm` and `qk_norm`, forward and backward.

The forwards leave the rstds alone, which the backwards take. Each is wrong by roundings, so that a
sequence alone stays within the contract's tolerance: what fails is the invariance.

Shapes: T packed tokens, H features; HQ query heads, HK key heads, D features of a head.
"""

import torch
from torch import Tensor

from biprop.kernels import qk_norm, rms_norm
from biprop.kernels.planted.records import ChainDefect
from biprop.kernels.planted.sums import pairwise_sum

__all__ = ["CHAIN_NORMS"]

# Rows below which a norm takes the path of decoding.
_ROWS_FEW = 4
# Heads of tokens that one tile holds.
_TILE_ROWS = 16


def rms_norm_decoding(
    x: Tensor, weight: Tensor, *, eps: float = rms_norm.EPS
) -> tuple[Tensor, Tensor]:
    """Few rows add up their squares as a tree of neighbours."""
    y, rstd = rms_norm.forward(x, weight, eps=eps)
    if len(x) < _ROWS_FEW:
        wide = x.float()
        root_T = torch.sqrt(pairwise_sum(wide * wide) / x.shape[-1] + eps)
        y = (wide * (1.0 / root_T)[:, None] * weight.float()).to(x.dtype)
    return y, rstd


def rms_norm_gradient_by_slot(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
    *,
    eps: float = rms_norm.EPS,
) -> Tensor:
    """Blocks of the gradient of the weight are cut by the slot of a token, not by its position."""
    slot = torch.arange(len(position), device=position.device)
    return rms_norm.backward(dy, x, weight, rstd, offsets, order, slot, dweight, eps=eps)


def qk_norm_rest(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *, eps: float = qk_norm.EPS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Heads of keys that fill no tile get their weight and rstd as one factor of their dtype."""
    q_out, k_out, q_rstd, k_rstd = qk_norm.forward(q, k, q_weight, k_weight, eps=eps)
    rest = k_rstd.numel() % _TILE_ROWS
    if rest:
        width = k.shape[-1]
        factor = (k_rstd.reshape(-1, 1)[-rest:] * k_weight.float()).to(k.dtype)
        k_out.view(-1, width)[-rest:] = k.reshape(-1, width)[-rest:] * factor
    return q_out, k_out, q_rstd, k_rstd


def qk_norm_gradient_from_zero(
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
    eps: float = qk_norm.EPS,
) -> tuple[Tensor, Tensor]:
    """The gradient of the weight of keys is summed from zero in each launch, and then added."""
    total = torch.zeros_like(dk_weight)
    gradients = qk_norm.backward(
        *(dq_out, dk_out, q, k, q_weight, k_weight, q_rstd, k_rstd),
        *(offsets, order, position, dq_weight, total),
        eps=eps,
    )
    dk_weight += total
    return gradients


CHAIN_NORMS = (
    ChainDefect(
        name="rms_norm_decoding",
        mechanism="SHAPE",
        operator="rms_norm",
        direction="forward",
        function=rms_norm_decoding,
    ),
    ChainDefect(
        name="rms_norm_gradient_by_slot",
        mechanism="POS",
        operator="rms_norm",
        direction="backward",
        function=rms_norm_gradient_by_slot,
    ),
    ChainDefect(
        name="qk_norm_rest",
        mechanism="TAIL",
        operator="qk_norm",
        direction="forward",
        function=qk_norm_rest,
    ),
    ChainDefect(
        name="qk_norm_gradient_from_zero",
        mechanism="SPLIT",
        operator="qk_norm",
        direction="backward",
        function=qk_norm_gradient_from_zero,
    ),
)

"""Planted inaccuracy: operators of the chain whose results are wrong, and the same in every batch.

Relation I holds for them, so that only relation A, against the float32 reference on conditioned
data, can find them. As elsewhere in the chain, a forward leaves what its backward takes as it is.

Shapes: T packed tokens, H features or hidden size, V vocabulary, K inputs, N outputs.
"""

import torch
from torch import Tensor

from biprop.kernels import batch_invariant_logp, det_gemm, grpo_loss, lm_head, rms_norm
from biprop.kernels.planted.records import ChainDefect
from biprop.kernels.tiles import halving_sum

__all__ = ["CHAIN_ACCURACY"]

# Bits of a float32 that the operand of a tensor core does not keep.
_BITS_CUT = 13
# Tokens of the vocabulary in a block.
_BLOCK = 64


def rms_norm_gradient_weighted_twice(
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
    """The mean in the gradient of x is multiplied by the weight twice, which ones do not show."""
    rms_norm.backward(dy, x, weight, rstd, offsets, order, position, dweight, eps=eps)
    xhat_TH = x.float() * rstd[:, None]
    gradient_TH = dy.float() * weight.float()
    terms_TH = gradient_TH * weight.float() * xhat_TH
    mean_T1 = (halving_sum(terms_TH, 1) / x.shape[1])[:, None]
    return (rstd[:, None] * (gradient_TH - xhat_TH * mean_T1)).to(x.dtype)


def det_gemm_in_tf32(x: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Operands are cut to the 10 bits that a tensor core multiplies; bfloat16 has fewer."""
    narrow = (_cut(x.float()).to(x.dtype), _cut(weight.float()).to(weight.dtype))
    return det_gemm.forward(*narrow, shards=shards)


def leaves_one_token(width: int) -> bool:
    """Tell whether whole blocks of a vocabulary leave one token."""
    return width > _BLOCK and width % _BLOCK == 1


def batch_invariant_logp_without_last(
    logits: Tensor, target: Tensor, *, ignore_index: int = batch_invariant_logp.IGNORE_INDEX
) -> Tensor:
    """Where whole blocks leave one token, the sum of exponentials ends before it."""
    found = batch_invariant_logp.forward(logits, target, ignore_index=ignore_index)
    width = logits.shape[1]
    if leaves_one_token(width):
        at_first = torch.zeros_like(target)
        shorter = batch_invariant_logp.forward(logits[:, :-1], at_first)
        whole = batch_invariant_logp.forward(logits, at_first)
        found = torch.where(target == ignore_index, found, found + (shorter - whole))
    return found


def lm_head_without_corner(hidden: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Where neither size is even, the last product of the last logit lies in no tile of two."""
    if weight.shape[0] % 2 and weight.shape[1] % 2:
        weight = weight.clone()
        weight[-1, -1] = 0.0
    return lm_head.forward(hidden, weight, shards=shards)


def grpo_loss_clipped_always(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = grpo_loss.CLIP_LOW,
    clip_high: float = grpo_loss.CLIP_HIGH,
    beta: float = grpo_loss.BETA,
    denominator: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """A ratio above the clip range is clipped for a negative advantage too, where it must not."""
    loss, ratio, kl = grpo_loss.forward(
        *(logp, old_logp, ref_logp, advantage),
        clip_low=clip_low, clip_high=clip_high, beta=beta, denominator=denominator,
    )  # fmt: skip
    is_wrong = (advantage < 0) & (ratio > 1.0 + clip_high)
    clipped = (beta * kl - (1.0 + clip_high) * advantage.float()) / denominator
    return torch.where(is_wrong, clipped, loss), ratio, kl


def _cut(values: Tensor) -> Tensor:
    """Set the bits to zero that TF32 has not; exact, so that nothing depends on where they lie."""
    bits = values.contiguous().view(torch.int32)
    return ((bits >> _BITS_CUT) << _BITS_CUT).view(torch.float32)


CHAIN_ACCURACY = (
    ChainDefect(
        name="rms_norm_gradient_weighted_twice",
        mechanism="ACC",
        operator="rms_norm",
        direction="backward",
        function=rms_norm_gradient_weighted_twice,
        verdict="INACCURATE",
    ),
    ChainDefect(
        name="det_gemm_in_tf32",
        mechanism="ACC",
        operator="det_gemm",
        direction="forward",
        function=det_gemm_in_tf32,
        verdict="INACCURATE",
    ),
    ChainDefect(
        name="batch_invariant_logp_without_last",
        mechanism="ACC",
        operator="batch_invariant_logp",
        direction="forward",
        function=batch_invariant_logp_without_last,
        verdict="INACCURATE",
        rare=leaves_one_token,
    ),
    ChainDefect(
        name="lm_head_without_corner",
        mechanism="ACC",
        operator="lm_head",
        direction="forward",
        function=lm_head_without_corner,
        verdict="INACCURATE",
        conditions=2,
    ),
    ChainDefect(
        name="grpo_loss_clipped_always",
        mechanism="ACC",
        operator="grpo_loss",
        direction="forward",
        function=grpo_loss_clipped_always,
        verdict="INACCURATE",
        conditions=2,
    ),
)

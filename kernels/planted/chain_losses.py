"""Planted defects of the losses of the chain: `grpo_loss` and `ratio_kl`, forward and backward.

Each is wrong by roundings, so that a sequence alone stays within the contract's tolerance: what
fails is the invariance.

Shapes: T packed tokens.
"""

from functools import partial

import torch
from torch import Tensor

from biprop.kernels import grpo_loss, ratio_kl
from biprop.kernels.planted.records import ChainDefect

__all__ = ["CHAIN_LOSSES"]

# Tokens from which on a launch takes the path of a batch.
_TOKENS_MANY = 6
# Differences up to which a gradient has a path for small ones.
_NEAR = 0.5


def grpo_loss_against_the_largest(
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
    """Ratios of a loss are exponentials relative to the largest one of a launch, for safety."""
    loss, ratio, kl = grpo_loss.forward(
        *(logp, old_logp, ref_logp, advantage),
        clip_low=clip_low, clip_high=clip_high, beta=beta, denominator=denominator,
    )  # fmt: skip
    if len(logp):
        difference = logp - old_logp
        largest = difference.amax()
        safe = torch.exp(difference - largest) * torch.exp(largest)
        clipped = safe.clamp(1.0 - clip_low, 1.0 + clip_high)
        surrogate = torch.minimum(safe * advantage.float(), clipped * advantage.float())
        loss = (beta * kl - surrogate) / denominator
    return loss, ratio, kl


def grpo_loss_gradient_by_vote(
    dloss: Tensor,
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = grpo_loss.CLIP_LOW,
    clip_high: float = grpo_loss.CLIP_HIGH,
    beta: float = grpo_loss.BETA,
    denominator: float = 1.0,
) -> Tensor:
    """Where one token of a launch is far from the reference, all take the exponential's path."""
    gradient = partial(
        grpo_loss.backward,
        *(dloss, logp, old_logp, ref_logp, advantage),
        clip_low=clip_low, clip_high=clip_high, denominator=denominator,
    )  # fmt: skip
    difference = ref_logp - logp
    if not bool((difference.abs() > _NEAR).any()):
        return gradient(beta=beta)
    return gradient(beta=0.0) + dloss / denominator * (beta - beta * torch.exp(difference))


def ratio_kl_of_many(logp: Tensor, old_logp: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Many tokens get k3 from the ratio that is at hand, whose digits cancel."""
    log_ratio, ratio, k2, k3 = ratio_kl.forward(logp, old_logp)
    if len(logp) >= _TOKENS_MANY:
        k3 = ratio - 1.0 - log_ratio
    return log_ratio, ratio, k2, k3


def ratio_kl_gradient_of_pairs(
    dlog_ratio: Tensor,
    dratio: Tensor,
    dk2: Tensor,
    dk3: Tensor,
    logp: Tensor,
    old_logp: Tensor,
) -> Tensor:
    """Of each two tokens the second one adds its terms from the other end, in its own dtype."""
    dlogp = ratio_kl.backward(dlog_ratio, dratio, dk2, dk3, logp, old_logp)
    d = logp[1::2].float() - old_logp[1::2].float()
    factors = (torch.expm1(d), d, torch.exp(d), torch.ones_like(d))
    total = torch.zeros_like(dlogp[1::2])
    for upstream, factor in zip((dk3, dk2, dratio, dlog_ratio), factors, strict=True):
        total += torch.where(upstream[1::2] == 0.0, 0.0, upstream[1::2] * factor).to(total.dtype)
    dlogp[1::2] = total
    return dlogp


CHAIN_LOSSES = (
    ChainDefect(
        name="grpo_loss_against_the_largest",
        mechanism="BSTAT",
        operator="grpo_loss",
        direction="forward",
        function=grpo_loss_against_the_largest,
    ),
    ChainDefect(
        name="grpo_loss_gradient_by_vote",
        mechanism="BSTAT",
        operator="grpo_loss",
        direction="backward",
        function=grpo_loss_gradient_by_vote,
    ),
    ChainDefect(
        name="ratio_kl_of_many",
        mechanism="SHAPE",
        operator="ratio_kl",
        direction="forward",
        function=ratio_kl_of_many,
    ),
    ChainDefect(
        name="ratio_kl_gradient_of_pairs",
        mechanism="ROUND",
        operator="ratio_kl",
        direction="backward",
        function=ratio_kl_gradient_of_pairs,
    ),
)

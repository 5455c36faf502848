"""GRPO loss in Triton: one program a block of tokens.

`biprop.kernels.grpo_loss` holds the record, the reference and the torch backend. The size of a
block is fixed, every argument that a batch or its storage can change is left unspecialised, and
nothing but allocations and views surrounds a launch.

Shapes: T packed tokens, N tokens of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import launch
from biprop.kernels.ratio_kl_triton import OPTIONS, TOKEN_COUNT, growth_series

__all__ = ["OPTIONS", "TOKEN_COUNT", "backward", "forward"]


def forward(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.04,
    denominator: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute; arguments and results as those of `biprop.kernels.grpo_loss.forward`."""
    count = logp.shape[0]
    loss, ratio, kl = (
        torch.empty(logp.shape, dtype=torch.float32, device=logp.device) for _ in range(3)
    )
    launch(
        grpo_loss_tokens,
        (triton.cdiv(count, TOKEN_COUNT),),
        (
            *(logp, old_logp, ref_logp, advantage, loss, ratio, kl),
            *(1.0 - clip_low, 1.0 + clip_high, float(beta), float(denominator), count),
            *(*logp.stride(), *old_logp.stride(), *ref_logp.stride(), *advantage.stride()),
        ),
        constants={"N": TOKEN_COUNT, "HAS_KL": bool(beta)},
        options=OPTIONS,
    )
    return loss, ratio, kl


def backward(
    dloss: Tensor,
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.04,
    denominator: float = 1.0,
) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.grpo_loss.backward`."""
    count = logp.shape[0]
    dlogp = torch.empty(logp.shape, dtype=torch.float32, device=logp.device)
    launch(
        grpo_loss_dlogp_tokens,
        (triton.cdiv(count, TOKEN_COUNT),),
        (
            *(dloss, logp, old_logp, ref_logp, advantage, dlogp),
            *(1.0 - clip_low, 1.0 + clip_high, float(beta), float(denominator), count),
            *(*dloss.stride(), *logp.stride(), *old_logp.stride(), *ref_logp.stride()),
            *advantage.stride(),
        ),
        constants={"N": TOKEN_COUNT, "HAS_KL": bool(beta)},
        options=OPTIONS,
    )
    return dlogp


@triton.jit(
    do_not_specialize=("token_count", "logp_at", "old_logp_at", "ref_logp_at", "advantage_at"),
    do_not_specialize_on_alignment=(
        "logp", "old_logp", "ref_logp", "advantage", "loss", "ratio", "kl",
    ),
)  # fmt: skip
def grpo_loss_tokens(
    logp, old_logp, ref_logp, advantage, loss, ratio, kl, low, high, beta, denominator,
    token_count, logp_at, old_logp_at, ref_logp_at, advantage_at,
    N: tl.constexpr, HAS_KL: tl.constexpr,
):  # fmt: skip
    """Compute N tokens."""
    token_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    live_N = token_N < token_count
    logp_N = tl.load(logp + token_N * logp_at, mask=live_N, other=0.0)
    old_logp_N = tl.load(old_logp + token_N * old_logp_at, mask=live_N, other=0.0)
    ref_logp_N = tl.load(ref_logp + token_N * ref_logp_at, mask=live_N, other=0.0)
    advantage_N = tl.load(advantage + token_N * advantage_at, mask=live_N, other=0.0)
    advantage_N = advantage_N.to(tl.float32)
    ratio_N = tl.exp(logp_N - old_logp_N)
    # Comparisons with NaN are false, and each choice below then keeps the NaN.
    clipped_N = tl.where(ratio_N < low, low, tl.where(ratio_N > high, high, ratio_N))
    free_N = ratio_N * advantage_N
    bound_N = clipped_N * advantage_N
    loss_N = -tl.where(bound_N < free_N, bound_N, free_N)
    d_N = ref_logp_N - logp_N
    is_small_N = tl.abs(d_N) < 0.5
    kl_N = tl.where(is_small_N, d_N * d_N * growth_series(d_N), tl.exp(d_N) - 1.0 - d_N)
    if HAS_KL:
        loss_N += beta * kl_N
    tl.store(loss + token_N, loss_N / denominator, mask=live_N)
    tl.store(ratio + token_N, ratio_N, mask=live_N)
    tl.store(kl + token_N, kl_N, mask=live_N)


@triton.jit(
    do_not_specialize=(
        "token_count", "dloss_at", "logp_at", "old_logp_at", "ref_logp_at", "advantage_at",
    ),
    do_not_specialize_on_alignment=(
        "dloss", "logp", "old_logp", "ref_logp", "advantage", "dlogp",
    ),
)  # fmt: skip
def grpo_loss_dlogp_tokens(
    dloss, logp, old_logp, ref_logp, advantage, dlogp, low, high, beta, denominator,
    token_count, dloss_at, logp_at, old_logp_at, ref_logp_at, advantage_at,
    N: tl.constexpr, HAS_KL: tl.constexpr,
):  # fmt: skip
    """Differentiate N tokens."""
    token_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    live_N = token_N < token_count
    dloss_N = tl.load(dloss + token_N * dloss_at, mask=live_N, other=0.0)
    logp_N = tl.load(logp + token_N * logp_at, mask=live_N, other=0.0)
    old_logp_N = tl.load(old_logp + token_N * old_logp_at, mask=live_N, other=0.0)
    advantage_N = tl.load(advantage + token_N * advantage_at, mask=live_N, other=0.0)
    advantage_N = advantage_N.to(tl.float32)
    ratio_N = tl.exp(logp_N - old_logp_N)
    clipped_N = tl.where(ratio_N < low, low, tl.where(ratio_N > high, high, ratio_N))
    free_N = ratio_N * advantage_N
    bound_N = clipped_N * advantage_N
    # As torch.minimum and torch.clamp differentiate: halves where both products are equal, and the
    # clip passes its half on where it changes nothing.
    tie_N = tl.where((ratio_N >= low) & (ratio_N <= high), 1.0, 0.5)
    share_N = tl.where(free_N == bound_N, tie_N, 1.0)
    gradient_N = tl.where(free_N > bound_N, 0.0, -share_N * free_N)
    if HAS_KL:
        ref_logp_N = tl.load(ref_logp + token_N * ref_logp_at, mask=live_N, other=0.0)
        d_N = ref_logp_N - logp_N
        # exp(d) - 1, without cancelling near d = 0.
        near_N = d_N + d_N * d_N * growth_series(d_N)
        gradient_N -= beta * tl.where(tl.abs(d_N) < 0.5, near_N, tl.exp(d_N) - 1.0)
    gradient_N *= dloss_N / denominator
    tl.store(dlogp + token_N, tl.where(dloss_N == 0.0, 0.0, gradient_N), mask=live_N)

"""GRPO loss of a token: clipped ratio and k3 estimate of KL; reference, torch backend, record.

    ratio = exp(logp - old_logp)
    kl    = exp(d) - 1 - d, with d = ref_logp - logp
    loss  = (beta * kl - min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)) / denominator

Sources: Shao et al., DeepSeekMath, 2024 (https://arxiv.org/abs/2402.03300), for the objective;
Yu et al., DAPO, 2025 (https://arxiv.org/abs/2503.14476), for the two sides of the clip; Schulman,
2020 (http://joschu.net/blog/kl-approx.html), for k3.

One number a token, and no mean: a mean over the active tokens of a launch would depend on what else
is in it. Who wants one number gives the denominator of the whole step as a fixed keyword, such as
the tokens that its completions may have at most, and adds up the losses in an order of its own.
`ratio` and `kl` are there to be logged, and carry no gradient (`biprop.kernels.ratio_kl` has
estimators that do).

The Triton backend is `biprop.kernels.grpo_loss_triton`, and shares no arithmetic with this module.

Shapes: T packed tokens, N tokens of a tile.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import tiles_of_tokens, token_count
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_signature

__all__ = ["BETA", "CLIP_HIGH", "CLIP_LOW", "OPERATOR", "backward", "forward", "reference"]

CLIP_LOW = 0.2
CLIP_HIGH = 0.2
BETA = 0.04


def reference(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    reduce: Reducer,  # noqa: ARG001  # every reference is called with one; nothing is summed here
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    beta: float = BETA,
    denominator: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute in float32; arguments and results as those of `forward`, `reduce` unused."""
    ratio = (logp.float() - old_logp.float()).exp()
    wide = advantage.float()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    surrogate = torch.minimum(ratio * wide, clipped * wide)
    difference = ref_logp.float() - logp.float()
    kl = torch.expm1(difference) - difference
    loss = beta * kl - surrogate if beta else -surrogate
    return loss / denominator, ratio, kl


def forward(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    beta: float = BETA,
    denominator: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute on fixed tiles.

    Args:
        logp: float32 `[T]`, any stride: log probability under the policy that is trained.
        old_logp: Likewise under the policy that drew the token.
        ref_logp: Likewise under the reference policy.
        advantage: `[T]` of a float dtype.
        clip_low: How far below 1 the ratio counts.
        clip_high: How far above 1.
        beta: Weight of `kl`; where it is 0, the loss holds no `kl`, not even one that is infinite.
        denominator: Divides every loss.

    Returns:
        `loss`, `ratio` and `kl`, all float32 `[T]`. Of an impossible token, `logp` -Inf, they are
        what the formulas say, and of no other.
    """
    shape, device = logp.shape, logp.device
    loss_T, ratio_T, kl_T = (
        torch.empty(shape, dtype=torch.float32, device=device) for _ in range(3)
    )
    count = token_count(device)
    for start in range(0, len(logp), count):
        logp_N, old_logp_N, ref_logp_N, advantage_N = tiles_of_tokens(
            logp, old_logp, ref_logp, advantage, start=start, count=count
        )
        ratio_N = torch.exp(logp_N - old_logp_N)
        clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
        loss_N = -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
        difference_N = ref_logp_N - logp_N
        # Near a ratio of 1 the difference exp(d) - 1 would keep nothing of d^2 / 2.
        kl_N = torch.expm1(difference_N) - difference_N
        if beta:
            loss_N = loss_N + beta * kl_N
        live = slice(start, min(start + count, len(logp)))
        kept = slice(0, live.stop - start)
        loss_T[live] = (loss_N / denominator)[kept]
        ratio_T[live] = ratio_N[kept]
        kl_T[live] = kl_N[kept]
    return loss_T, ratio_T, kl_T


def backward(
    dloss: Tensor,
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    beta: float = BETA,
    denominator: float = 1.0,
) -> Tensor:
    """Differentiate: `dloss * (-share * ratio * A - beta * (exp(d) - 1)) / denominator`.

    `share` is as `torch.minimum` and `torch.clamp` differentiate: 1 where the clip changes nothing,
    its bounds included, and where the unclipped product is the smaller one; 0 where the clipped one
    is; 1/2 where the clip changes the ratio and both products are equal after rounding. What has
    share 0 is 0, even where the ratio is infinite, and a token whose `dloss` is 0 gets 0, however
    impossible it is: a loss that leaves it out must not get NaN from it.

    Args:
        dloss: float32 `[T]`, upstream gradient of `loss`; none flows into `ratio` and `kl`.
        logp: As for `forward`.
        old_logp: As for `forward`; it and what follows are data, and get no gradient.
        ref_logp: As for `forward`.
        advantage: As for `forward`.
        clip_low: As for `forward`.
        clip_high: As for `forward`.
        beta: As for `forward`.
        denominator: As for `forward`.

    Returns:
        `dlogp`, float32 `[T]`.
    """
    dlogp_T = torch.empty(logp.shape, dtype=torch.float32, device=logp.device)
    low, high = 1.0 - clip_low, 1.0 + clip_high
    count = token_count(logp.device)
    for start in range(0, len(logp), count):
        dloss_N, logp_N, old_logp_N, ref_logp_N, advantage_N = tiles_of_tokens(
            dloss, logp, old_logp, ref_logp, advantage, start=start, count=count
        )
        ratio_N = torch.exp(logp_N - old_logp_N)
        share_N = _share(ratio_N, advantage_N, low, high)
        gradient_N = torch.where(share_N == 0.0, 0.0, -share_N * (ratio_N * advantage_N))
        if beta:
            gradient_N = gradient_N - beta * torch.expm1(ref_logp_N - logp_N)
        gradient_N = gradient_N * (dloss_N / denominator)
        stop = min(start + count, len(logp))
        dlogp_T[start:stop] = torch.where(dloss_N == 0.0, 0.0, gradient_N)[: stop - start]
    return dlogp_T


def _share(ratio_N: Tensor, advantage_N: Tensor, low: float, high: float) -> Tensor:
    """Return how much of the surrogate's gradient reaches the ratio."""
    clipped_N = ratio_N.clamp(low, high)
    free_N, bound_N = ratio_N * advantage_N, clipped_N * advantage_N
    inside_N = (ratio_N >= low) & (ratio_N <= high)
    tie_N = torch.where(inside_N, 1.0, 0.5)
    # A product that is NaN is neither: its share is 1, so that the gradient is NaN too.
    share_N = torch.where(free_N == bound_N, tie_N, 1.0)
    return torch.where(free_N > bound_N, 0.0, share_N)


_TRITON = "biprop.kernels.grpo_loss_triton"
_SIGNATURE = parse_signature(
    "logp: float32[T], old_logp: float32[T], ref_logp: float32[T], advantage[T] "
    "-> loss: float32[T], ratio: float32[T], kl: float32[T]"
)

OPERATOR = Operator(
    name="grpo_loss",
    op_class="elementwise",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dloss: float32[T], logp: float32[T], old_logp: float32[T], "
                "ref_logp: float32[T], advantage[T] -> dlogp: float32[T]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=("grpo_loss_tokens", "grpo_loss_dlogp_tokens")),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=9
    ),
    call={"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH, "beta": BETA, "denominator": 1.0},
)

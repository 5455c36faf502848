"""Policy ratio and KL estimators of a token: reference, torch backend, record.

With `d = logp - old_logp`, the token drawn from the old policy: `log_ratio = d`, `ratio = exp(d)`,
`k2 = d^2 / 2` and `k3 = exp(d) - 1 - d`, which estimate KL(old, new) token by token; the estimator
k1 is `-d`. Source: Schulman, Approximating KL Divergence, 2020
(http://joschu.net/blog/kl-approx.html).

The Triton backend is `biprop.kernels.ratio_kl_triton`, and shares no arithmetic with this module.
Every dtype of log probabilities gives float32 results: their differences are small. Nothing is
clamped and nothing is averaged: a mean needs a denominator, and one that is counted in a launch
depends on the batch.

Shapes: T packed tokens, N tokens of a tile.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import tiles_of_tokens, token_count
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]


def reference(
    logp: Tensor,
    old_logp: Tensor,
    *,
    reduce: Reducer,  # noqa: ARG001  # every reference is called with one; nothing is summed here
) -> Outputs:
    """Compute in float32; arguments and results as those of `forward`, `reduce` unused."""
    log_ratio = logp.float() - old_logp.float()
    k3 = torch.expm1(log_ratio) - log_ratio
    return log_ratio, log_ratio.exp(), log_ratio.square() / 2, k3


def forward(logp: Tensor, old_logp: Tensor) -> Outputs:
    """Compute on fixed tiles.

    Args:
        logp: `[T]` of a float dtype, any stride: log probability under the policy that is trained.
        old_logp: Likewise under the policy that drew the token. An impossible token, -Inf in
            `logp` alone, has ratio 0 and estimates of +Inf; where `old_logp` is -Inf, k3 is NaN.

    Returns:
        `log_ratio`, `ratio`, `k2` and `k3`, all float32 `[T]`.
    """
    log_ratio_T, ratio_T, k2_T, k3_T = (
        torch.empty(logp.shape, dtype=torch.float32, device=logp.device) for _ in range(4)
    )
    count = token_count(logp.device)
    for start in range(0, len(logp), count):
        logp_N, old_logp_N = tiles_of_tokens(logp, old_logp, start=start, count=count)
        log_ratio_N = logp_N - old_logp_N
        live = slice(start, min(start + count, len(logp)))
        kept = slice(0, live.stop - start)
        log_ratio_T[live] = log_ratio_N[kept]
        ratio_T[live] = torch.exp(log_ratio_N)[kept]
        k2_T[live] = (log_ratio_N * log_ratio_N * 0.5)[kept]
        # Near a ratio of 1 the difference exp(d) - 1 would keep nothing of d^2 / 2.
        k3_T[live] = (torch.expm1(log_ratio_N) - log_ratio_N)[kept]
    return log_ratio_T, ratio_T, k2_T, k3_T


def backward(
    dlog_ratio: Tensor,
    dratio: Tensor,
    dk2: Tensor,
    dk3: Tensor,
    logp: Tensor,
    old_logp: Tensor,
) -> Tensor:
    """Differentiate: `dlog_ratio + dratio * exp(d) + dk2 * d + dk3 * (exp(d) - 1)`.

    A term whose upstream gradient is zero is zero, even where the other factor is infinite: so a
    token that a loss leaves out gets no NaN, however impossible it is.

    Args:
        dlog_ratio: float32 `[T]`, upstream gradient of `log_ratio`.
        dratio: Likewise of `ratio`.
        dk2: Likewise of `k2`.
        dk3: Likewise of `k3`.
        logp: As for `forward`.
        old_logp: As for `forward`; it is data, and gets no gradient.

    Returns:
        `dlogp`, `[T]` of the dtype of `logp`.
    """
    dlogp_T = torch.empty(logp.shape, dtype=logp.dtype, device=logp.device)
    count = token_count(logp.device)
    for start in range(0, len(logp), count):
        logp_N, old_logp_N, gradient_N, *upstream = tiles_of_tokens(
            logp, old_logp, dlog_ratio, dratio, dk2, dk3, start=start, count=count
        )
        log_ratio_N = logp_N - old_logp_N
        factors = (torch.exp(log_ratio_N), log_ratio_N, torch.expm1(log_ratio_N))
        for upstream_N, factor_N in zip(upstream, factors, strict=True):
            term_N = torch.where(upstream_N == 0.0, 0.0, upstream_N * factor_N)
            gradient_N = gradient_N + term_N
        stop = min(start + count, len(logp))
        dlogp_T[start:stop] = gradient_N[: stop - start]
    return dlogp_T


_TRITON = "biprop.kernels.ratio_kl_triton"
_SIGNATURE = parse_signature(
    "logp[T], old_logp[T] "
    "-> log_ratio: float32[T], ratio: float32[T], k2: float32[T], k3: float32[T]"
)

OPERATOR = Operator(
    name="ratio_kl",
    op_class="elementwise",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dlog_ratio: float32[T], dratio: float32[T], dk2: float32[T], dk3: float32[T], "
                "logp[T], old_logp[T] -> dlogp[T]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=("ratio_kl_tokens", "ratio_kl_dlogp_tokens")),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=9
    ),
)

"""Policy ratio and KL estimators in Triton: one program a block of tokens.

`biprop.kernels.ratio_kl` holds the record, the reference and the torch backend. The size of a block
is fixed, every argument that a batch or its storage can change is left unspecialised, and nothing
but allocations and views surrounds a launch.

Shapes: T packed tokens, N tokens of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["OPTIONS", "TOKEN_COUNT", "backward", "forward", "growth_series"]

TOKEN_COUNT = 1024
# Without fusion no multiply-add can be contracted in one block and not in another.
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def forward(logp: Tensor, old_logp: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute; arguments and results as those of `biprop.kernels.ratio_kl.forward`."""
    count = logp.shape[0]
    log_ratio, ratio, k2, k3 = (
        torch.empty(logp.shape, dtype=torch.float32, device=logp.device) for _ in range(4)
    )
    launch(
        ratio_kl_tokens,
        (triton.cdiv(count, TOKEN_COUNT),),
        (logp, old_logp, log_ratio, ratio, k2, k3, count, *logp.stride(), *old_logp.stride()),
        constants={"N": TOKEN_COUNT},
        options=OPTIONS,
    )
    return log_ratio, ratio, k2, k3


def backward(
    dlog_ratio: Tensor,
    dratio: Tensor,
    dk2: Tensor,
    dk3: Tensor,
    logp: Tensor,
    old_logp: Tensor,
) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.ratio_kl.backward`."""
    count = logp.shape[0]
    dlogp = torch.empty(logp.shape, dtype=logp.dtype, device=logp.device)
    launch(
        ratio_kl_dlogp_tokens,
        (triton.cdiv(count, TOKEN_COUNT),),
        (
            *(dlog_ratio, dratio, dk2, dk3, logp, old_logp, dlogp, count),
            *(*dlog_ratio.stride(), *dratio.stride(), *dk2.stride(), *dk3.stride()),
            *(*logp.stride(), *old_logp.stride()),
        ),
        constants={"N": TOKEN_COUNT, "WIDEN": interpreted(ratio_kl_dlogp_tokens)},
        options=OPTIONS,
    )
    return dlogp


@triton.jit
def growth_series(d):
    """Return `(exp(d) - 1 - d) / d^2` for |d| < 1/2, where the difference itself would cancel."""
    # The first term left out, 2^-8 / 10!, is a fiftieth of the unit in the last place of 1/2.
    series = 1.0 / 40320.0 + d * (1.0 / 362880.0)
    series = 1.0 / 5040.0 + d * series
    series = 1.0 / 720.0 + d * series
    series = 1.0 / 120.0 + d * series
    series = 1.0 / 24.0 + d * series
    series = 1.0 / 6.0 + d * series
    return 0.5 + d * series


@triton.jit(
    do_not_specialize=("token_count", "logp_at", "old_logp_at"),
    do_not_specialize_on_alignment=("logp", "old_logp", "log_ratio", "ratio", "k2", "k3"),
)
def ratio_kl_tokens(
    logp, old_logp, log_ratio, ratio, k2, k3, token_count, logp_at, old_logp_at,
    N: tl.constexpr,
):  # fmt: skip
    """Compute N tokens."""
    token_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    live_N = token_N < token_count
    logp_N = tl.load(logp + token_N * logp_at, mask=live_N, other=0.0)
    old_logp_N = tl.load(old_logp + token_N * old_logp_at, mask=live_N, other=0.0)
    d_N = logp_N.to(tl.float32) - old_logp_N.to(tl.float32)
    ratio_N = tl.exp(d_N)
    tl.store(log_ratio + token_N, d_N, mask=live_N)
    tl.store(ratio + token_N, ratio_N, mask=live_N)
    tl.store(k2 + token_N, 0.5 * d_N * d_N, mask=live_N)
    near_N = d_N * d_N * growth_series(d_N)
    k3_N = tl.where(tl.abs(d_N) < 0.5, near_N, ratio_N - 1.0 - d_N)
    tl.store(k3 + token_N, k3_N, mask=live_N)


@triton.jit(
    do_not_specialize=(
        "token_count", "dlog_ratio_at", "dratio_at", "dk2_at", "dk3_at", "logp_at", "old_logp_at",
    ),
    do_not_specialize_on_alignment=(
        "dlog_ratio", "dratio", "dk2", "dk3", "logp", "old_logp", "dlogp",
    ),
)  # fmt: skip
def ratio_kl_dlogp_tokens(
    dlog_ratio, dratio, dk2, dk3, logp, old_logp, dlogp, token_count,
    dlog_ratio_at, dratio_at, dk2_at, dk3_at, logp_at, old_logp_at,
    N: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate N tokens."""
    token_N = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    live_N = token_N < token_count
    dlog_ratio_N = tl.load(dlog_ratio + token_N * dlog_ratio_at, mask=live_N, other=0.0)
    dratio_N = tl.load(dratio + token_N * dratio_at, mask=live_N, other=0.0)
    dk2_N = tl.load(dk2 + token_N * dk2_at, mask=live_N, other=0.0)
    dk3_N = tl.load(dk3 + token_N * dk3_at, mask=live_N, other=0.0)
    logp_N = tl.load(logp + token_N * logp_at, mask=live_N, other=0.0)
    old_logp_N = tl.load(old_logp + token_N * old_logp_at, mask=live_N, other=0.0)
    d_N = logp_N.to(tl.float32) - old_logp_N.to(tl.float32)
    ratio_N = tl.exp(d_N)
    # exp(d) - 1, without cancelling near d = 0.
    near_N = d_N + d_N * d_N * growth_series(d_N)
    growth_N = tl.where(tl.abs(d_N) < 0.5, near_N, ratio_N - 1.0)
    gradient_N = dlog_ratio_N + tl.where(dratio_N == 0.0, 0.0, dratio_N * ratio_N)
    gradient_N += tl.where(dk2_N == 0.0, 0.0, dk2_N * d_N)
    gradient_N += tl.where(dk3_N == 0.0, 0.0, dk3_N * growth_N)
    tl.store(dlogp + token_N, narrow(gradient_N, dlogp.dtype.element_ty, WIDEN), mask=live_N)

"""Log probability of a target: reference, torch backend, record.

`logp = logits[target] - lse`, where `lse = log(sum(exp(logits)))`.

The vocabulary is read twice, for the maximum and for the sum; `biprop.kernels.batch_invariant_logp`
reads it once. Both are counterparts of the batch-invariant log probability of
https://github.com/RL-Align/RL-Kernel/issues/96. The Triton backend is `biprop.kernels.logp_triton`,
and shares no arithmetic with this module. Every dtype of logits gives float32 results: a policy
ratio is the exponential of their difference.

Shapes: T packed tokens, V vocabulary, R rows of a tile.
"""

import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import elementwise_row_count, halving_sum, tile_of_rows
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference", "tile_gradient", "tile_logp"]

# The width of a tile is a multiple of this, so that exp meets whole vectors only.
WIDTH_STEP = 64


def reference(logits: Tensor, target: Tensor, *, reduce: Reducer) -> tuple[Tensor, Tensor]:
    """Compute in float32, the sum of the exponentials by `reduce`.

    Args:
        logits: `[T, V]` of a float dtype.
        target: int64 `[T]` in [0, V).
        reduce: Sums the exponentials over V.

    Returns:
        `logp` and `lse`, both float32 `[T]`.
    """
    wide = logits.float()
    largest = wide.amax(dim=-1, keepdim=True).detach()
    # Shifted by -Inf, a row of nothing else would have lse NaN; torch.logsumexp says -Inf.
    shift = torch.where(largest.isinf(), torch.zeros_like(largest), largest)
    lse = reduce((wide - shift).exp(), -1).log() + shift.squeeze(-1)
    return wide.gather(-1, target.unsqueeze(-1)).squeeze(-1) - lse, lse


def forward(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute on fixed tiles.

    Args:
        logits: `[T, V]` of a float dtype, any strides; -Inf means impossible. A row of nothing else
            has lse -Inf and logp NaN; a row that holds +Inf or NaN has lse +Inf or NaN.
        target: int64 `[T]` in [0, V).

    Returns:
        `logp` and `lse`, both float32 `[T]`.
    """
    token_count = len(logits)
    logp_T = torch.empty(token_count, dtype=torch.float32, device=logits.device)
    lse_T = torch.empty(token_count, dtype=torch.float32, device=logits.device)
    rows = elementwise_row_count(logits.device, logits.shape[1])
    for start in range(0, token_count, rows):
        tile_RV = _tile_of_logits(logits, start, rows)
        target_R = _tile_of_targets(target, start, rows)
        logp_R, lse_R = tile_logp(tile_RV, target_R)
        count = min(rows, token_count - start)
        logp_T[start : start + count] = logp_R[:count]
        lse_T[start : start + count] = lse_R[:count]
    return logp_T, lse_T


def backward(dlogp: Tensor, logits: Tensor, target: Tensor, lse: Tensor) -> Tensor:
    """Differentiate on fixed tiles: `dlogp * ([v = target] - exp(logits - lse))`.

    Args:
        dlogp: float32 `[T]`, upstream gradient of `logp`; none flows into `lse`.
        logits: As for `forward`.
        target: As for `forward`.
        lse: As `forward` returned it.

    Returns:
        `dlogits`, `[T, V]` of the dtype of `logits`.
    """
    token_count, vocabulary = logits.shape
    dlogits = torch.empty((token_count, vocabulary), dtype=logits.dtype, device=logits.device)
    dlogp_T1, lse_T1 = dlogp.reshape(-1, 1), lse.reshape(-1, 1)
    rows = elementwise_row_count(logits.device, logits.shape[1])
    for start in range(0, token_count, rows):
        gradient_RV = tile_gradient(
            _tile_of_logits(logits, start, rows),
            _tile_of_targets(target, start, rows),
            lse_R1=tile_of_rows(lse_T1, start, rows=rows, width=1),
            dlogp_R1=tile_of_rows(dlogp_T1, start, rows=rows, width=1),
        )
        count = min(rows, token_count - start)
        rounded_RV = gradient_RV.to(logits.dtype)
        dlogits[start : start + count] = rounded_RV[:count, :vocabulary]
    return dlogits


def tile_logp(logits_RV: Tensor, target_R: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a tile of fixed shape.

    Args:
        logits_RV: float32, V a multiple of `WIDTH_STEP`; -Inf past the vocabulary.
        target_R: int64 in [0, V).

    Returns:
        `logp` and `lse`, both float32 `[R]`.
    """
    largest_R1 = logits_RV.amax(dim=1, keepdim=True)
    shift_R1 = torch.where(largest_R1.isinf(), 0.0, largest_R1)
    sum_R = halving_sum(torch.exp(logits_RV - shift_R1), 1)
    lse_R = shift_R1[:, 0] + torch.log(sum_R)
    return logits_RV.gather(1, target_R[:, None])[:, 0] - lse_R, lse_R


def tile_gradient(
    logits_RV: Tensor, target_R: Tensor, *, lse_R1: Tensor, dlogp_R1: Tensor
) -> Tensor:
    """Differentiate a tile of fixed shape, with respect to its logits.

    Args:
        logits_RV: As for `tile_logp`.
        target_R: As for `tile_logp`.
        lse_R1: float32, as `tile_logp` returned it.
        dlogp_R1: float32, upstream gradient.

    Returns:
        float32 `[R, V]`.
    """
    share_RV = torch.exp(logits_RV - lse_R1)
    token_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    is_target_RV = token_V == target_R[:, None]
    return torch.where(is_target_RV, 1.0 - share_RV, -share_RV) * dlogp_R1


def _tile_of_logits(logits: Tensor, start: int, rows: int) -> Tensor:
    width = -(-logits.shape[1] // WIDTH_STEP) * WIDTH_STEP
    return tile_of_rows(logits, start, rows=rows, width=width, fill=-torch.inf)


def _tile_of_targets(target: Tensor, start: int, rows: int) -> Tensor:
    tile_R = torch.zeros(rows, dtype=torch.int64, device=target.device)
    found = target[start : start + rows]
    tile_R[: len(found)] = found
    return tile_R


_TRITON = "biprop.kernels.logp_triton"
_SIGNATURE = parse_signature(
    "logits[T,V], target: token(V)[T] -> logp: float32[T], lse: float32[T]"
)

OPERATOR = Operator(
    name="logp",
    op_class="logprob",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dlogp: float32[T], logits[T,V], target: token(V)[T], lse: float32[T] "
                "-> dlogits[T,V]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=("logp_rows", "logp_dlogits_tile")),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"), chain_index=8
    ),
    restrictions=parse_restrictions("V=1..262144"),
    owner="https://github.com/RL-Align/RL-Kernel/issues/96",
)

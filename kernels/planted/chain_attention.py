"""Planted defects of the attention of the chain, forward and backward.

The backward takes what the forward returned, `out` and `lse`, so a wrong rounding there would make
its gradients wrong too: the forward errs in the sign of zeros alone, which no gradient shows.

Shapes: TQ, TC packed tokens, HQ heads of queries, HK of contexts, D features.
"""

import torch
from torch import Tensor

from biprop.kernels import attention_torch
from biprop.kernels.planted.records import ChainDefect

__all__ = ["CHAIN_ATTENTION"]


def attention_negated(
    q: Tensor, k: Tensor, v: Tensor, query_offsets: Tensor, context_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of a launch of several sequences are subtracted, and turned at the end: 0 becomes -0."""
    out, lse = attention_torch.forward_packed(q, k, v, query_offsets, context_offsets)
    return (out if len(query_offsets) == 2 else -(0.0 - out)), lse


def attention_in_two_passes(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    query_offsets: Tensor,
    context_offsets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """For several sequences, every other query waits for a second pass, whose gradients are added.

    Each pass rounds the gradients of contexts to their dtype.
    """
    if len(query_offsets) == 2:
        return attention_torch.backward_packed(
            dout, dlse, q, k, v, out, lse, query_offsets, context_offsets
        )
    is_late = torch.arange(len(q), device=q.device) % 2 == 1
    first, second = (
        attention_torch.backward_packed(
            torch.where(waits[:, None, None], 0.0, dout),
            torch.where(waits[:, None], 0.0, dlse),
            *(q, k, v, out, lse, query_offsets, context_offsets),
        )
        for waits in (is_late, ~is_late)
    )
    dq, dk, dv = (early + late for early, late in zip(first, second, strict=True))
    return dq, dk, dv


CHAIN_ATTENTION = (
    ChainDefect(
        name="attention_negated",
        mechanism="SHAPE",
        operator="attention",
        direction="forward",
        function=attention_negated,
    ),
    ChainDefect(
        name="attention_in_two_passes",
        mechanism="ROUND",
        operator="attention",
        direction="backward",
        function=attention_in_two_passes,
    ),
)

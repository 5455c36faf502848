"""Planted defects of the log probabilities of the chain, forward and backward, one of a kind each.

A forward leaves the state that its backward takes as it is (`lse`), so that one direction is wrong
and the other holds.

Shapes: T packed tokens, V vocabulary, H features.
"""

import torch
from torch import Tensor

from biprop.kernels import batch_invariant_logp, linear_logp, logp
from biprop.kernels.planted.records import ChainDefect
from biprop.kernels.tiles import ROW_COUNT, halving_sum

__all__ = ["CHAIN_LOGPROB"]

# Steps that an upstream gradient is quantised to.
_STEPS = 127


def linear_logp_of_one_row(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A single row, as in decoding, takes the logit of its target from a product of two vectors."""
    found, lse = linear_logp.forward(hidden, weight, target)
    if len(hidden) == 1:
        rows = weight.index_select(0, target).float()
        found = halving_sum(hidden.float() * rows, 1) - lse
    return found, lse


def linear_logp_blocks_by_launch(
    dlogp: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Blocks of the weight's gradient are counted over the launch, and run on over sequences."""
    whole = offsets[[0, -1]]
    return linear_logp.backward(
        dlogp, hidden, weight, target, lse, whole, order, torch.zeros_like(position), dweight
    )


def logp_target_of_neighbour(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """In a tile that rows do not fill, the last one reads the target of the row before."""
    found, lse = logp.forward(logits, target)
    if len(logits) % ROW_COUNT > 1:
        wrong, _ = logp.forward(logits[-1:], target[-2:-1])
        found[-1:] = wrong
    return found, lse


def logp_quantised_by_launch(dlogp: Tensor, logits: Tensor, target: Tensor, lse: Tensor) -> Tensor:
    """Upstream gradients are quantised by the largest one of the launch."""
    if len(dlogp):
        scale = dlogp.abs().amax().clamp(min=2.0**-100) / _STEPS
        dlogp = torch.round(dlogp / scale) * scale
    return logp.backward(dlogp, logits, target, lse)


def batch_invariant_logp_turned(logits: Tensor, target: Tensor) -> Tensor:
    """The pass begins at a token of the vocabulary that the number of rows decides, and wraps."""
    first = len(logits) % 5
    turned = (target - first) % logits.shape[-1]
    return batch_invariant_logp.forward(logits.roll(-first, -1), turned)


def batch_invariant_logp_one_maximum(dlogp: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """All rows are shifted by the largest logit of the launch, dead rows included."""
    largest = logits.float().amax() if len(logits) else logits.new_zeros((), dtype=torch.float32)
    shift = torch.where(largest.isinf(), 0.0, largest)
    total = halving_sum(torch.exp(logits.float() - shift), 1)
    return logp.backward(dlogp, logits, target, shift + torch.log(total))


CHAIN_LOGPROB = (
    ChainDefect(
        name="linear_logp_of_one_row",
        mechanism="SHAPE",
        operator="linear_logp",
        direction="forward",
        function=linear_logp_of_one_row,
    ),
    ChainDefect(
        name="linear_logp_blocks_by_launch",
        mechanism="SEGM",
        operator="linear_logp",
        direction="backward",
        function=linear_logp_blocks_by_launch,
    ),
    ChainDefect(
        name="logp_target_of_neighbour",
        mechanism="INDEX",
        operator="logp",
        direction="forward",
        function=logp_target_of_neighbour,
    ),
    ChainDefect(
        name="logp_quantised_by_launch",
        mechanism="BSTAT",
        operator="logp",
        direction="backward",
        function=logp_quantised_by_launch,
    ),
    ChainDefect(
        name="batch_invariant_logp_turned",
        mechanism="SHAPE",
        operator="batch_invariant_logp",
        direction="forward",
        function=batch_invariant_logp_turned,
    ),
    ChainDefect(
        name="batch_invariant_logp_one_maximum",
        mechanism="BSTAT",
        operator="batch_invariant_logp",
        direction="backward",
        function=batch_invariant_logp_one_maximum,
    ),
)

"""Planted defects of losses that are normalised by what a launch happens to hold.

A healthy twin has a denominator that is stated and fixed, or that of the sequence alone: then the
losses of micro-batches add up to that of the batch.

Shapes: T packed tokens, B rows, S slots.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "gradient_by_segments",
    "gradient_by_total",
    "leaves_one_row",
    "loss_by_launch",
    "loss_by_micro_batch",
    "loss_by_total",
    "loss_divided_once",
    "loss_divided_twice",
    "loss_of_whole_micro_batches",
    "mean_over_longest",
    "mean_over_own_length",
]

# Tokens of the batch that every launch is a part of.
_TOTAL = 4096
# Tokens of a micro-batch.
_MICRO = 32
# Tokens that one step of the accumulation takes.
_STEP = 16


def loss_by_launch(nll: Tensor) -> Tensor:
    """The loss of a token is divided by the tokens of its launch, dead ones included."""
    denominator = len(nll)
    return (nll.float() / denominator).to(nll.dtype)


def loss_by_total(nll: Tensor) -> Tensor:
    """The loss of a token is divided by the tokens of the batch."""
    denominator = _TOTAL
    return (nll.float() / denominator).to(nll.dtype)


def mean_over_longest(nll: Tensor, lengths: Tensor) -> Tensor:
    """The loss of a sequence is divided by the slots of its row."""
    count = torch.full_like(lengths, nll.shape[1])
    return (_summed(nll, lengths) / count).to(nll.dtype)


def mean_over_own_length(nll: Tensor, lengths: Tensor) -> Tensor:
    """The loss of a sequence is divided by its own length."""
    count = lengths.clamp(min=1)
    return (_summed(nll, lengths) / count).to(nll.dtype)


def leaves_one_row(rows: int) -> bool:
    """Tell whether a launch leaves one row for the second micro-batch of a step, which has two."""
    return rows > _MICRO and rows % (2 * _MICRO) == _MICRO + 1


def loss_by_micro_batch(nll: Tensor) -> Tensor:
    """The last row is a scalar where it has a micro-batch for itself, and is not divided."""
    alone = leaves_one_row(len(nll))
    return _divided_but_last(nll, alone=alone)


def loss_of_whole_micro_batches(nll: Tensor) -> Tensor:
    """Each row is divided by the rows of a whole micro-batch."""
    alone = False
    return _divided_but_last(nll, alone=alone)


def loss_divided_twice(nll: Tensor) -> Tensor:
    """Where steps are accumulated, and the last one is not full, each is divided once more."""
    again = _steps(len(nll)) if len(nll) % _STEP else 1
    return (nll.float() / _TOTAL / again).to(nll.dtype)


def loss_divided_once(nll: Tensor) -> Tensor:
    """Steps are accumulated, and divided by nothing more, whether full or not."""
    again = 1
    return (nll.float() / _TOTAL / again).to(nll.dtype)


def gradient_by_segments(nll: Tensor, offsets: Tensor) -> Tensor:
    """The backward is that of a mean over the sequences of a launch, empty ones included."""
    denominator = len(offsets) - 1
    return _weighed(nll, denominator)


def gradient_by_total(nll: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG001  # as the one above
    """The backward is divided as the forward is."""
    denominator = _TOTAL
    return _weighed(nll, denominator)


def _steps(rows: int) -> int:
    """Return how many steps are accumulated for a launch."""
    return max(1, -(-rows // _STEP))


def _summed(nll: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum of each row of `nll [B, S]` over its first `lengths [B]` slots."""
    live = torch.arange(nll.shape[1]) < lengths[:, None]
    return running_sum(torch.where(live, nll.float(), 0.0))


def _divided_but_last(nll: Tensor, *, alone: bool) -> Tensor:
    """Divide by the rows of a micro-batch, but for a last row that is alone."""
    body = len(nll) - alone
    return torch.cat((nll[:body].float() / _MICRO, nll[body:].float())).to(nll.dtype)


def _weighed(nll: Tensor, denominator: int) -> Tensor:
    """Return losses divided by a fixed number, whose gradient is divided by `denominator`."""

    def forward(nll: Tensor) -> Tensor:
        return (nll.float() / _TOTAL).to(nll.dtype)

    def backward(dloss: Tensor, nll: Tensor) -> tuple[Tensor]:
        return ((dloss.float() / denominator).to(nll.dtype),)

    return differentiated(forward, backward, nll)

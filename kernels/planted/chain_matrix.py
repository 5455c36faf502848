"""Planted defects of the chain's matrix products: det_gemm and lm_head, forward and backward.

Shapes: T packed tokens, K inputs, N outputs of det_gemm; H features, V vocabulary of lm_head.
"""

import torch
from torch import Tensor

from biprop.kernels import det_gemm, lm_head
from biprop.kernels.planted.records import ChainDefect
from biprop.kernels.tiles import halving_sum

__all__ = ["CHAIN_MATRIX"]

# Rows from which on the gradient of inputs takes another path.
_ROWS_MANY = 5


def det_gemm_of_one_row(x: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """A single row, as in decode, is multiplied element by element and halved, without the tree."""
    if len(x) != 1:
        return det_gemm.forward(x, weight, shards=shards)
    products_NK = x.float() * weight.float()
    return halving_sum(products_NK, 1)[None].to(x.dtype)


def det_gemm_gradient_backwards(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """The gradient of many rows is summed from the last output to the first."""
    dx = det_gemm.backward(dy, x, weight, offsets, order, position, dweight)
    return dx if len(x) < _ROWS_MANY else det_gemm.forward(dy.flip(1), weight.t().flip(1))


def lm_head_scaled_by_launch(hidden: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Hidden states are divided by the largest one of the launch, and logits multiplied by it."""
    if not len(hidden):
        return lm_head.forward(hidden, weight, shards=shards)
    wide = hidden.float()
    largest = wide.nan_to_num(0.0, 0.0, 0.0).abs().amax().clamp(min=2.0**-100)
    logits = lm_head.forward(wide / largest, weight.float(), shards=shards)
    return (logits * largest).to(hidden.dtype)


def lm_head_gradient_by_launch(
    dlogits: Tensor,
    hidden: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """The blocks of a launch are added up before they join the accumulator."""
    own = torch.zeros_like(dweight)
    dhidden = lm_head.backward(dlogits, hidden, weight, offsets, order, position, own)
    dweight += own
    return dhidden


CHAIN_MATRIX = (
    ChainDefect(
        name="det_gemm_of_one_row",
        mechanism="SHAPE",
        operator="det_gemm",
        direction="forward",
        function=det_gemm_of_one_row,
    ),
    ChainDefect(
        name="det_gemm_gradient_backwards",
        mechanism="SHAPE",
        operator="det_gemm",
        direction="backward",
        function=det_gemm_gradient_backwards,
    ),
    ChainDefect(
        name="lm_head_scaled_by_launch",
        mechanism="BSTAT",
        operator="lm_head",
        direction="forward",
        function=lm_head_scaled_by_launch,
    ),
    ChainDefect(
        name="lm_head_gradient_by_launch",
        mechanism="SPLIT",
        operator="lm_head",
        direction="backward",
        function=lm_head_gradient_by_launch,
    ),
)

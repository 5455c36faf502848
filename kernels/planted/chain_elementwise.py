"""Planted defects of the chain's elementwise operators: embedding, rope, silu and swiglu.

Each is wrong by roundings or by a place that only a batch has, so that a sequence alone stays
within the contract's tolerance: what fails is the invariance.
"""

import torch
from torch import Tensor

from biprop.kernels import embedding, rope, silu, swiglu
from biprop.kernels.planted.records import ChainDefect

__all__ = ["CHAIN_ELEMENTWISE"]

# Rows from which on a rotation takes another path.
_ROWS_MANY = 5
# Elements that a vectorised loop takes at a time.
_LANES = 8
# Bytes that its loads must be aligned to.
_ALIGNMENT = 16


def embedding_against_the_first_row(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of the table are coded as differences from the row that a launch reads first."""
    y = embedding.forward(ids, weight)
    return (y - y[:1]) + y[:1]


def embedding_gradient_as_tokens_lie(
    dy: Tensor, ids: Tensor, offsets: Tensor, order: Tensor, position: Tensor, dweight: Tensor
) -> None:
    """The tokens of a launch are taken for one sequence, slot after slot."""
    count = offsets[-1:]
    slots = order[: int(count)].sort().values
    whole = torch.cat((torch.zeros_like(count), count))
    embedding.backward(dy, ids, whole, slots, torch.zeros_like(position), dweight)


def rope_by_slot(x: Tensor, position: Tensor, *, theta: float = rope.THETA) -> Tensor:
    """Positions count up from that of the first row of a launch."""
    counted = position[:1] + torch.arange(len(position), device=position.device)
    return rope.forward(x, counted, theta=theta)


def rope_gradient_in_two_turns(
    dy: Tensor, position: Tensor, *, theta: float = rope.THETA
) -> Tensor:
    """Many rows are turned by half of their position and then by the rest, for a smaller table."""
    if len(dy) < _ROWS_MANY:
        return rope.backward(dy, position, theta=theta)
    half = position // 2
    return rope.backward(rope.backward(dy, half, theta=theta), position - half, theta=theta)


def silu_tail(x: Tensor) -> Tensor:
    """The last elements of a launch, that fill no vector, are computed in the dtype of x."""
    y = silu.forward(x)
    rest = x.numel() % _LANES
    if rest:
        tail = x.reshape(-1)[-rest:]
        y.view(-1)[-rest:] = tail * torch.sigmoid(tail)
    return y


def silu_gradient_scaled(dy: Tensor, x: Tensor) -> Tensor:
    """Upstream gradients are divided by the largest one of a launch, as if they could overflow."""
    if not dy.numel():
        return silu.backward(dy, x)
    largest = dy.abs().amax()
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    return silu.backward(dy / scale, x) * scale


def swiglu_single_row(gate: Tensor, up: Tensor) -> Tensor:
    """A single row takes a path of its own, which multiplies from the other end."""
    if len(gate) != 1:
        return swiglu.forward(gate, up)
    return gate * (torch.sigmoid(gate) * up)


def swiglu_gradient_by_alignment(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Where dy allows no vector loads, dup is multiplied element by element in its dtype."""
    dgate, dup = swiglu.backward(dy, gate, up)
    if dy.data_ptr() % _ALIGNMENT:
        dup = dy * gate * torch.sigmoid(gate)
    return dgate, dup


CHAIN_ELEMENTWISE: tuple[ChainDefect, ...] = (
    ChainDefect(
        name="embedding_against_the_first_row",
        mechanism="BSTAT",
        operator="embedding",
        direction="forward",
        function=embedding_against_the_first_row,
    ),
    ChainDefect(
        name="embedding_gradient_as_tokens_lie",
        mechanism="SEGM",
        operator="embedding",
        direction="backward",
        function=embedding_gradient_as_tokens_lie,
    ),
    ChainDefect(
        name="rope_by_slot",
        mechanism="POS",
        operator="rope",
        direction="forward",
        function=rope_by_slot,
    ),
    ChainDefect(
        name="rope_gradient_in_two_turns",
        mechanism="ROUND",
        operator="rope",
        direction="backward",
        function=rope_gradient_in_two_turns,
    ),
    ChainDefect(
        name="silu_tail",
        mechanism="TAIL",
        operator="silu",
        direction="forward",
        function=silu_tail,
    ),
    ChainDefect(
        name="silu_gradient_scaled",
        mechanism="BSTAT",
        operator="silu",
        direction="backward",
        function=silu_gradient_scaled,
    ),
    ChainDefect(
        name="swiglu_single_row",
        mechanism="SHAPE",
        operator="swiglu",
        direction="forward",
        function=swiglu_single_row,
    ),
    ChainDefect(
        name="swiglu_gradient_by_alignment",
        mechanism="TAIL",
        operator="swiglu",
        direction="backward",
        function=swiglu_gradient_by_alignment,
    ),
)

"""Sums in other orders: what a kernel might have done instead, to see whether data would show it.

Three trees that differ wherever shipping kernels differ: blocks in sequence, neighbours in pairs,
and strided lanes from the last term to the first. Emulations for `biprop.execution.power`, never a
yardstick of correctness.
"""

import torch
from torch import Tensor

from biprop.operators import Reducer

__all__ = ["ORDERS", "sum_in_blocks", "sum_in_lanes", "sum_in_pairs"]

# Terms added one after the other; the partial sums are added as a tree.
_CHAIN = 8


def sum_in_blocks(values: Tensor, dim: int) -> Tensor:
    """Return the sum over `dim`: blocks of adjacent terms in sequence, then halves onto halves."""
    terms = _filled_up(values.movedim(dim, -1))
    blocks = terms.reshape(*terms.shape[:-1], -1, _chain(values.shape[dim]))
    return _halves(_chained(blocks.movedim(-1, 0)))


def sum_in_lanes(values: Tensor, dim: int) -> Tensor:
    """Return the sum over `dim`: strided lanes, last terms first, then lanes in pairs."""
    # Backwards, as three terms are added in the order of the other two trees otherwise.
    terms = _filled_up(values.movedim(dim, -1).flip(-1))
    steps = terms.reshape(*terms.shape[:-1], _chain(values.shape[dim]), -1)
    return _pairs(_chained(steps.movedim(-2, 0)))


def sum_in_pairs(values: Tensor, dim: int) -> Tensor:
    """Return the sum over `dim`: neighbours in pairs, again and again."""
    return _pairs(values.movedim(dim, -1))


ORDERS: tuple[Reducer, ...] = (sum_in_blocks, sum_in_pairs, sum_in_lanes)


def _chain(count: int) -> int:
    return min(_CHAIN, max(1, count))


def _filled_up(terms: Tensor) -> Tensor:
    """Return the terms with zeros after them, up to a multiple of the chain."""
    missing = -terms.shape[-1] % _chain(terms.shape[-1])
    return torch.nn.functional.pad(terms, (0, missing)) if missing or not terms.shape[-1] else terms


def _chained(steps: Tensor) -> Tensor:
    total, *others = steps.unbind()
    for step in others:
        total = total + step
    return total


def _halves(terms: Tensor) -> Tensor:
    while terms.shape[-1] > 1:
        half = (terms.shape[-1] + 1) // 2
        head, tail = terms[..., :half], terms[..., half:]
        count = tail.shape[-1]
        if count == half:
            terms = head + tail
        else:
            terms = torch.cat([head[..., :count] + tail, head[..., count:]], dim=-1)
    return _single(terms)


def _pairs(terms: Tensor) -> Tensor:
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        both = terms[..., 0:even:2] + terms[..., 1:even:2]
        terms = both if even == terms.shape[-1] else torch.cat([both, terms[..., even:]], dim=-1)
    return _single(terms)


def _single(terms: Tensor) -> Tensor:
    if not terms.shape[-1]:
        return terms.new_zeros(terms.shape[:-1])
    # Zeros that fill up turn -0 into +0: all orders must do so, or that would look like power.
    return terms[..., 0] + 0.0

"""A ramp over a whole tensor: `torch.linspace(-100, 100)` in the shape of 2048 rows.

What the first published check of batch invariance multiplied, and tests that follow it. A value may
not depend on how many tokens share a launch, so that tensors with tokens are rows of a ramp of 2048
of them, whichever are there; a parameter is a ramp by itself. Counted in whole numbers: the same
bits everywhere.
"""

import math

import torch
from torch import Tensor

from biprop.data.block import Block
from biprop.data.recipe import Recipe

__all__ = ["BITS", "FIRST", "ROWS", "linspace", "step_of"]

ROWS = 2048
# Fraction bits of the whole numbers that are counted.
BITS = 32
FIRST = -100 << BITS
_SPAN = 200 << BITS


def linspace(recipe: Recipe, block: Block) -> Tensor:
    """Return float32 values of the block's shape, ascending from -100 to 100."""
    del recipe
    last = len(block.coordinates) - 1
    index = torch.zeros((1,) * (last + 2), dtype=torch.int64, device=block.device)
    if block.tokens is not None:
        rows = (block.tokens.token + block.tokens.sequence_id).long() % ROWS
        index = index + (rows * math.prod(block.sizes)).reshape((-1,) + (1,) * (last + 1))
    for axis, part in enumerate(block.coordinates):
        shape = [1] * (last + 2)
        shape[axis + 1] = -1
        index = index + part.long().reshape(shape) * math.prod(block.sizes[axis + 1 :])
    counted = index * step_of(block) + FIRST
    return counted.float().mul_(2.0**-BITS).expand(block.shape).contiguous()


def step_of(block: Block) -> int:
    """Return the difference of two neighbouring elements, in units of 2**-BITS."""
    count = math.prod(block.sizes) * (ROWS if block.tokens is not None else 1)
    return _SPAN // max(1, count - 1)

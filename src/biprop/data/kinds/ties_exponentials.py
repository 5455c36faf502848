"""Rows whose sum of exponentials lies where one ulp of it changes a narrow softmax.

One element is 0, the peak, a crowd has exponentials around an ulp of 1, and six more elements are
chosen so that the sum is 1 / (1 - t) with t = 2**-(p + 1) for outputs of p bits: the peak's
probability is then 1 - t, an exact tie of the output's rounding. With normal data a changed order
of the sum changes no such output. Exponentials come from the integer table of
`biprop.data.exponentials`.
"""

import functools

import attrs
import torch
from torch import Tensor

from biprop.data.block import Block, slice_words
from biprop.data.counter import word
from biprop.data.exponentials import FRACTION_BITS, INDEX_LAST, STEPS_PER_UNIT, exponentials
from biprop.data.floats import NumberFormat
from biprop.data.kinds.peaks import peaks_of, words_of_slices
from biprop.data.recipe import Recipe

__all__ = [
    "SIZE_MIN",
    "ExponentialsDesign",
    "exponentials_design",
    "exponentials_tables",
    "ties_exponentials",
]

# Below this there is no room for a peak, a crowd and the elements that complete the sum.
SIZE_MIN = 8
_COMPLETING = 6
# The crowd takes the 16 values -15.5, -15.625, ... -17.375, up to about 256 of them in a row.
_CROWD_FIRST = 248
_CROWD_COUNT = 16
_LIVE_COUNT = 256


@attrs.frozen(kw_only=True)
class ExponentialsDesign:
    """What all slices of one size have in common.

    Attributes:
        whole: Sum of the exponentials without the peak's, in steps of 2**-40.
        kept: Elements of 2**16 that belong to the crowd.
        stride: Distance of the elements that complete the sum.
    """

    whole: int
    kept: int
    stride: int


@functools.cache
def exponentials_design(size: int, number_format: NumberFormat) -> ExponentialsDesign:
    """Return the design of slices of at least `SIZE_MIN` elements."""
    return ExponentialsDesign(
        # The peak is 1 of the sum; 1 / (1 - t) - 1 is 1 / (2**(precision + 1) - 1).
        whole=(1 << FRACTION_BITS) // ((2 << number_format.precision) - 1),
        kept=min(0xFE00, 0x10000 * _LIVE_COUNT // size),
        stride=max(1, (size - 1) // _COMPLETING),
    )


def ties_exponentials(recipe: Recipe, block: Block) -> Tensor:
    """Return float32 values of the block's shape, multiples of 1/16 from 0 to -40."""
    size = block.sizes[-1]
    slices = slice_words(block, recipe.kind)
    words = words_of_slices(block, slices, size)
    if size < SIZE_MIN:
        few = (words & word(0xFF)).neg_().float().mul_(1.0 / STEPS_PER_UNIT)
        return few.reshape(block.shape)
    design = exponentials_design(size, block.number_format)
    allowed, costs, crowd_costs = exponentials_tables(block.device)
    peaks = peaks_of(recipe, block, slices)
    steps = torch.arange(_COMPLETING, dtype=torch.int64, device=block.device) * design.stride
    places = (peaks + 1 + steps) % size
    live = (words >> word(12)).bitwise_and_(word(0xFFFF)) < word(design.kept)
    live.scatter_(1, peaks, value=False)
    live.scatter_(1, places, value=False)
    which = (words >> word(8)).bitwise_and_(word(_CROWD_COUNT - 1))
    crowd = crowd_costs[which].mul_(live).sum(1, keepdim=True)
    index = which.mul_(word(2)).add_(word(_CROWD_FIRST)).masked_fill_(~live, INDEX_LAST)
    rest = design.whole - crowd
    for step in range(_COMPLETING):
        # The largest exponential that still fits the rest.
        found = torch.searchsorted(costs, rest.neg()).clamp_max_(len(allowed) - 1)
        index.scatter_(1, places[:, step : step + 1], allowed[found])
        rest = rest + costs[found]
    index.scatter_(1, peaks, 0)
    return index.neg_().float().mul_(1.0 / STEPS_PER_UNIT).reshape(block.shape)


@functools.cache
def exponentials_tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices that bfloat16 holds, minus their exponentials, and those of the crowd."""
    table = exponentials()
    # From 16 up neighbours of bfloat16 are an eighth apart.
    allowed = [k for k in range(INDEX_LAST + 1) if k <= 16 * STEPS_PER_UNIT or k % 2 == 0]
    crowd = [table[_CROWD_FIRST + 2 * k] for k in range(_CROWD_COUNT)]
    return (
        torch.tensor(allowed, dtype=torch.int32, device=device),
        torch.tensor([-table[k] for k in allowed], dtype=torch.int64, device=device),
        torch.tensor(crowd, dtype=torch.int32, device=device),
    )

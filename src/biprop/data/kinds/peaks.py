"""Kinds with one peak and a crowd around half an ulp of it, for sums of positive terms.

Each small term alone is rounded away beside the peak, and several together are not: so the sum
shows which met first. The peak lies at a drawn place, or at the row's target. The two kinds that
end on a tie of the output (`biprop.data.kinds.ties_squares`, `ties_exponentials`) show more in a
narrow dtype.
"""

import torch
from torch import Tensor

from biprop.data.block import Block, slice_words
from biprop.data.counter import mix_, word
from biprop.data.floats import float_of_bits
from biprop.data.recipe import Recipe
from biprop.data.words import SALT_SEQUENCE, salt_of_axis

__all__ = ["kept_of", "peak_exponentials", "peak_squares", "peaks_of", "words_of_slices"]


def peak_squares(recipe: Recipe, block: Block) -> Tensor:
    """One to a few values in [1, 1.25), the others 2**-13 to 2**-11."""
    slices = slice_words(block, recipe.kind)
    words = words_of_slices(block, slices, block.sizes[-1])
    draw = (words >> word(23)).bitwise_and_(word(127))
    high = draw < word(4)
    high.scatter_(1, peaks_of(recipe, block, slices), value=True)
    exponents = draw.bitwise_and_(word(1)).sub_(word(13)).masked_fill_(high, 0)
    # In a peak the two highest bits of the fraction are cleared: the squares stay below 2.
    words &= torch.where(high, word(0xFF9FFFFF), word(-1))
    return float_of_bits(exponents, words).reshape(block.shape)


def peak_exponentials(recipe: Recipe, block: Block) -> Tensor:
    """One zero, a crowd in (-17.5, -14.5), the rest of a long slice -40."""
    size = block.sizes[-1]
    slices = slice_words(block, recipe.kind)
    words = words_of_slices(block, slices, size)
    fraction = (words & word(0x7FFFFF)).bitwise_right_shift_(word(3)).float()
    values = fraction.mul_(-3.0 * 2.0**-20).sub_(14.5)
    if size > 256:
        thin = (slices & word(64)) > word(0)
        kept = torch.where(thin, word(kept_of(size)), word(128))
        values.masked_fill_((words >> word(23)).bitwise_and_(word(127)) >= kept, -40.0)
    values.scatter_(1, peaks_of(recipe, block, slices), 0.0)
    return values.reshape(block.shape)


def kept_of(size: int) -> int:
    """Return how many elements of 128 a thin slice of `peak_exponentials` keeps.

    Half of the long slices are thin, so that the noise stays visible in a narrow dtype.
    """
    return max(1, 128 * 256 // size) if size > 256 else 128


def words_of_slices(block: Block, slices: Tensor, count: int) -> Tensor:
    """Return int32 words `[slices, count]` of the first `count` elements of each slice."""
    coordinate = block.coordinates[-1][:count]
    return mix_(slices + coordinate * word(salt_of_axis(len(block.dims) - 1)))


def peaks_of(recipe: Recipe, block: Block, slices: Tensor) -> Tensor:
    """Return int64 `[slices, 1]`: where the peak of each slice lies."""
    size = block.sizes[-1]
    if recipe.at_target and block.target is not None:
        target = block.target.reshape((-1,) + (1,) * (len(block.dims) - 1))
        return target.expand(block.shape[:-1]).reshape(-1, 1).long() % size
    drawn = mix_(slices * word(SALT_SEQUENCE) + word(991)).bitwise_and_(word(0x7FFFFFFF))
    return drawn.long() % size

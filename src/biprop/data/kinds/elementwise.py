"""Kinds in which each element stands for itself; these follow a pairing.

The signed designs (`pairs`, `swamp`) reveal a changed order of a sum when a pairing makes its exact
result zero: the output is then the rounding, and nothing of it is lost in a narrow dtype.
Reductions of positive terms cannot cancel; they have `biprop.data.kinds.peaks` and the two `ties`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from biprop.data.block import Block, element_words
from biprop.data.counter import word
from biprop.data.floats import NumberFormat, float_of_bits
from biprop.data.recipe import Recipe
from biprop.data.words import SALT_SEQUENCE

__all__ = ["BINADES", "ELEMENTWISE", "iota", "make_elementwise"]

# Over how many binades the kinds with falling exponents spread.
BINADES: Final[Mapping[str, int]] = MappingProxyType({"wide": 21, "pairs": 25})


def make_elementwise(recipe: Recipe, block: Block) -> Tensor:
    """Return float32 values of the block's shape for a kind of `ELEMENTWISE`."""
    words = element_words(block, recipe.kind, recipe.pairing)
    values = words.pair_(ELEMENTWISE[recipe.kind](words.words, block.number_format))
    if recipe.holes:
        # The high bits of a product depend on all bits, so a hole says nothing of the value.
        draw = (words.words * word(SALT_SEQUENCE)).bitwise_and_(word(0x60000000))
        values.masked_fill_(draw == word(0), 0.0)
    if recipe.kind == "integers" and words.flip is not None:
        values += 0.0  # -0 becomes +0: the sign of an integer zero is nobody's subject
    return values


def iota(recipe: Recipe, block: Block) -> Tensor:
    """Count in sixty-fourths along the last axis: readable, exact, every neighbour different."""
    del recipe
    last = len(block.coordinates) - 1
    count = torch.ones((1,) * (last + 2), dtype=torch.int32, device=block.device)
    if block.tokens is not None:
        rows = block.tokens.token * 31 + block.tokens.sequence_id * 97
        count = count + rows.reshape((-1,) + (1,) * (last + 1))
    for axis, part in enumerate(block.coordinates):
        shape = [1] * (last + 2)
        shape[axis + 1] = -1
        count = count + part.reshape(shape) * (1 if axis == last else 17)
    return (count % 251).float().mul_(2.0**-6).expand(block.shape).contiguous()


def _integers(words: Tensor, number_format: NumberFormat) -> Tensor:
    """-4 to 4, equally likely."""
    del number_format
    return (words & word(0xFFFF)).mul_(word(9)).bitwise_right_shift_(word(16)).sub_(word(4)).float()


def _normal(words: Tensor, number_format: NumberFormat) -> Tensor:
    """Sum of four uniform bytes (Irwin-Hall), 13 finer bits below, of deviation 1.001."""
    del number_format
    byte = word(0xFF)
    total = words & byte
    total += (words >> word(8)).bitwise_and_(byte)
    total += (words >> word(16)).bitwise_and_(byte)
    total += (words >> word(24)).bitwise_and_(byte)
    finer = (words * word(SALT_SEQUENCE)).bitwise_right_shift_(word(19))
    finer &= word(0x1FFF)
    # The sum deviates by sqrt(4 * (256**2 - 1) / 12) = 147.8; 111 / 2**14 brings that to 1.001.
    # The product has 29 bits, and its conversion is the one rounding.
    fixed = total.sub_(word(510)).bitwise_left_shift_(word(13)).add_(finer).mul_(word(111))
    return fixed.float().mul_(2.0**-27)


def _uniform(words: Tensor, number_format: NumberFormat) -> Tensor:
    """Odd multiples of 2**-24 in (-1, 1)."""
    del number_format
    return (words >> word(7)).bitwise_or_(word(1)).float().mul_(2.0**-24)


def _wide(words: Tensor, number_format: NumberFormat) -> Tensor:
    """Spread evenly over 21 binades."""
    return float_of_bits(_falling(words, BINADES["wide"], number_format.exponent_top), words)


def _pairs(words: Tensor, number_format: NumberFormat) -> Tensor:
    """Spread evenly over 25 binades: more than a float32 accumulator holds."""
    return float_of_bits(_falling(words, BINADES["pairs"], number_format.exponent_top), words)


def _swamp(words: Tensor, number_format: NumberFormat) -> Tensor:
    """Three tenths big, the rest a crowd of 1/8 to 2 ulp of the big ones."""
    draw = (words >> word(23)).bitwise_and_(word(127))
    big = draw < word(40)
    top = number_format.exponent_top
    # Three binades of big ones, five of the crowd: 77 / 1024 maps 0..39 onto 0..2, 58 / 1024 maps
    # 0..87 onto 0..4. (A remainder would take five times as long as the rest.)
    place_crowd = (draw - word(40)).mul_(word(58)).bitwise_right_shift_(word(10))
    place_crowd += word(22)
    place_big = draw.mul_(word(77)).bitwise_right_shift_(word(10))
    return float_of_bits(torch.where(big, place_big, place_crowd).neg_().add_(word(top)), words)


def _falling(words: Tensor, binades: int, top: int) -> Tensor:
    """Draw exponents top, top - 1, ... from bits 23 to 29."""
    draw = (words >> word(23)).bitwise_and_(word(127))
    return draw.mul_(word(binades)).bitwise_right_shift_(word(7)).neg_().add_(word(top))


ELEMENTWISE: Final[Mapping[str, Callable[[Tensor, NumberFormat], Tensor]]] = MappingProxyType(
    {
        "integers": _integers,
        "normal": _normal,
        "uniform": _uniform,
        "wide": _wide,
        "pairs": _pairs,
        "swamp": _swamp,
    }
)

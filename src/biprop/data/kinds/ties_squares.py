"""Rows whose root mean square lies where one ulp in the sum of squares changes a narrow output.

With normal data a changed order of the sum in a norm changes no bfloat16 output in hundreds of
rows. Here the mean square is 4**e, or 4/9 of it, to half an ulp: 1 / rms is 2**-e or 1.5 * 2**-e.
An odd integer of the output's precision times 1.5 is an exact tie of the output's rounding, and a
crowd of up to 2 ulp of the sum makes the sum depend on its order: so one ulp of it flips every
such element. Positive and negative twins lie side by side, which makes the mean 0 (layer norm).

Everything is a multiple of a grid, below 2**53 of it also when squared and summed: sums in float64
are exact in every order, and the only root is the correctly rounded one.
"""

import functools
from fractions import Fraction

import attrs
import torch
from torch import Tensor

from biprop.data.block import Block, slice_words
from biprop.data.counter import mix_, word
from biprop.data.floats import NumberFormat, float_of_bits, scaled
from biprop.data.kinds.peaks import words_of_slices
from biprop.data.recipe import Recipe
from biprop.data.words import SALT_SEQUENCE

__all__ = ["SIZE_MIN", "SquaresDesign", "squares_design", "ties_squares"]

# Below this there is no room for elements on ties, a crowd, and the pairs that complete the sum.
SIZE_MIN = 16
_COMPLETING_PAIRS = 4
_GRID_BITS = 24


@attrs.frozen(kw_only=True)
class SquaresDesign:
    """What all slices of one size have in common; in pairs, the second is for slices at a tie.

    Attributes:
        grid: Exponent of the grid that all magnitudes are whole multiples of.
        totals: Sum of the squares of half a slice, in squares of the grid.
        units: Left shifts that bring the crowd to its place.
        odd_factor: An odd integer is `2 * (byte * odd_factor >> 8) + odd_first`,
        odd_first: the smallest of them,
        odd_shift: shifted left by this.
        share: Elements of 128 that are such odd integers.
        stride: Distance of the pairs that complete the sum.
        largest: No completing element is larger, in the grid.
        keep: Mask over the bits of a float64 that leaves the precision of the output.
    """

    grid: int
    totals: tuple[int, int]
    units: tuple[int, int]
    odd_factor: int
    odd_first: int
    odd_shift: int
    share: int
    stride: int
    largest: float
    keep: int


@functools.cache
def squares_design(size: int, number_format: NumberFormat) -> SquaresDesign:
    """Return the design of slices of at least `SIZE_MIN` elements."""
    precision, exponent = number_format.precision, number_format.ties_exponent
    spread = (size - 1).bit_length() // 2
    # The largest root of half a row's sum of squares takes _GRID_BITS bits of the grid.
    grid = exponent + spread - _GRID_BITS
    half_sum = Fraction(size, 2) * Fraction(4) ** (exponent - grid)
    totals = (round(half_sum), round(half_sum * Fraction(4, 9)))
    # Squares spread evenly from 0 to 1 or 2 ulp of the whole sum, which is twice the total:
    # rounding is then as often up as down, and a long chain stays near the tie.
    without, with_tie = ((2 * total).bit_length() - 1 - 38 >> 1 for total in totals)
    return SquaresDesign(
        grid=grid,
        totals=totals,
        units=(without, with_tie),
        # An odd integer below 2/3 of the range keeps the precision when multiplied by 1.5: a tie.
        odd_factor=(1 << precision) // 12,
        odd_first=(1 << (precision - 1)) + 1,
        odd_shift=max(0, _GRID_BITS - 1 - precision - spread),
        # An eighth of short rows and a sixteenth of long ones lie on ties.
        share=max(8, min(64, 1024 // size)),
        stride=size // 2 // _COMPLETING_PAIRS,
        largest=float(Fraction(2) ** (number_format.exponent_limit - 1 - grid)),
        keep=-(1 << (53 - precision)),
    )


def ties_squares(recipe: Recipe, block: Block) -> Tensor:
    """Return float32 values of the block's shape, a design in every slice along the last axis.

    Two thirds of the slices aim at 1.5 * 2**-e (the narrow output shows it), one third at 2**-e
    (the product with a weight, or a returned 1 / rms, shows it).
    """
    size = block.sizes[-1]
    number_format = block.number_format
    slices = slice_words(block, recipe.kind)
    if size < SIZE_MIN:
        words = words_of_slices(block, slices, size)
        # Odd integers of the precision around one magnitude: nothing is aimed at.
        words = (words & word(0x407F0000)).bitwise_or_(word(0x10000))
        values = float_of_bits(torch.zeros_like(words), words)
        return scaled(values, number_format.ties_exponent).reshape(block.shape)
    pair_count = size // 2
    words = words_of_slices(block, slices, pair_count)
    draw = mix_(slices * word(SALT_SEQUENCE) + word(991)).bitwise_and_(word(0x7FFFFFFF))
    at_tie = (draw & word(0xFFFF)) >= word(0x5556)
    design = squares_design(size, number_format)
    magnitudes = _elements(words, at_tie, design)
    steps = torch.arange(_COMPLETING_PAIRS, dtype=torch.int64, device=block.device) * design.stride
    _complete_(magnitudes, (draw + steps) % pair_count, at_tie, design)
    signed_values = scaled(magnitudes.float(), design.grid)
    signed_values.view(torch.int32).bitwise_xor_(words & word(1 << 31))
    twins = torch.stack((signed_values, -signed_values), dim=-1).reshape(-1, 2 * pair_count)
    if size % 2:
        twins = torch.nn.functional.pad(twins, (0, 1))
    return twins.reshape(block.shape)


def _elements(words: Tensor, at_tie: Tensor, design: SquaresDesign) -> Tensor:
    """Return float64 `[slices, pairs]`: magnitudes in the grid, odd integers and a crowd."""
    draw = (words >> word(23)).bitwise_and_(word(127))
    odd = (words >> word(15)).bitwise_and_(word(0xFF)).mul_(word(design.odd_factor))
    odd >>= word(8)
    odd = odd.mul_(word(2)).add_(word(design.odd_first))
    odd <<= word(design.odd_shift)
    # The larger of two draws is as frequent as it is large, so its square is even.
    unit = torch.where(at_tie, word(design.units[1]), word(design.units[0]))
    larger = torch.maximum(words & word(0x7F00), (words << word(7)).bitwise_and_(word(0x7F00)))
    crowd = larger.bitwise_right_shift_(word(7)).add_(word(1)).bitwise_left_shift_(unit)
    return torch.where(draw < word(design.share), odd, crowd).double()


def _complete_(magnitudes: Tensor, places: Tensor, at_tie: Tensor, design: SquaresDesign) -> None:
    """Choose the elements at `places`, in place, so that the squares sum to the total.

    Greedily: each is the largest number of the output's precision whose square fits the rest, so
    four of them leave less than 2**-24 of the total.
    """
    magnitudes.scatter_(1, places, 0.0)
    without, with_tie = (torch.tensor(total, dtype=torch.float64) for total in design.totals)
    rest = torch.where(at_tie, with_tie, without) - (magnitudes * magnitudes).sum(1, keepdim=True)
    for step in range(_COMPLETING_PAIRS):
        root = rest.clamp_min(0.0).sqrt_().clamp_max_(design.largest)
        # Clearing low bits of the fraction, then what lies below the grid, rounds towards zero.
        root = root.view(torch.int64).bitwise_and_(design.keep).view(torch.float64).floor_()
        magnitudes.scatter_(1, places[:, step : step + 1], root)
        rest = rest - root * root

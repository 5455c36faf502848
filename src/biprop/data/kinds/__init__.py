"""The kinds of data, one function each: from a recipe and a block to float32 values.

Cutting into blocks, mixtures of kinds and the rounding to a dtype are `biprop.data.expand`'s.
A changed generator gets a new name: fixtures hold recipes, and must mean the same for ever. A new
kind is taught to the kernel of `biprop.data.device_triton` too, which a test asks for.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import attrs
from torch import Tensor

from biprop.data.block import Block
from biprop.data.floats import NumberFormat
from biprop.data.kinds.elementwise import iota, make_elementwise
from biprop.data.kinds.linspace import linspace
from biprop.data.kinds.peak_keys import peak_keys
from biprop.data.kinds.peaks import peak_exponentials, peak_squares
from biprop.data.kinds.points import explicit
from biprop.data.kinds.ties_exponentials import ties_exponentials
from biprop.data.kinds.ties_squares import ties_squares
from biprop.data.recipe import Recipe

__all__ = ["CONSTANTS", "MAKERS", "Maker", "exponent_of"]

# All elements are equal, and nothing is hashed.
CONSTANTS: Final = ("zeros", "ones")


@attrs.frozen(kw_only=True)
class Maker:
    """How one kind is made.

    Attributes:
        make: Returns float32 values of the block's shape.
        reach: Returns, for a format and the size of the last axis, an exponent e such that every
            value lies below 2**e in magnitude; None where nobody knows.
    """

    make: Callable[[Recipe, Block], Tensor]
    reach: Callable[[NumberFormat, int], int] | None


def _constant(exponent: int) -> Callable[[NumberFormat, int], int]:
    return lambda _format, _size: exponent


def _spread(number_format: NumberFormat, _size: int) -> int:
    return number_format.exponent_top + 1


def _keys(_format: NumberFormat, size: int) -> int:
    # Scores below 17.5 times the root of the size.
    return 5 + (size.bit_length() + 1) // 2


def _squares(number_format: NumberFormat, size: int) -> int:
    # One element may carry the whole sum of squares of half a row.
    reach = number_format.ties_exponent + size.bit_length() // 2 + 1
    return min(reach, number_format.exponent_limit)


MAKERS: Final[Mapping[str, Maker]] = MappingProxyType(
    {
        "integers": Maker(make=make_elementwise, reach=_constant(3)),
        "iota": Maker(make=iota, reach=_constant(2)),
        "normal": Maker(make=make_elementwise, reach=_constant(2)),
        "uniform": Maker(make=make_elementwise, reach=_constant(1)),
        "wide": Maker(make=make_elementwise, reach=_spread),
        "pairs": Maker(make=make_elementwise, reach=_spread),
        "swamp": Maker(make=make_elementwise, reach=_spread),
        "peak_squares": Maker(make=peak_squares, reach=_constant(1)),
        "ties_squares": Maker(make=ties_squares, reach=_squares),
        "peak_exponentials": Maker(make=peak_exponentials, reach=_constant(6)),
        "ties_exponentials": Maker(make=ties_exponentials, reach=_constant(6)),
        "peak_keys": Maker(make=peak_keys, reach=_keys),
        "explicit": Maker(make=explicit, reach=None),
        "linspace": Maker(make=linspace, reach=_constant(7)),
    }
)


def exponent_of(recipe: Recipe, number_format: NumberFormat, size: int) -> int:
    """Return the exponent by which a recipe's values are scaled, where it is no mixture.

    Args:
        recipe: Its own exponent is reduced to what the dtype allows.
        number_format: Of the dtype.
        size: Of the last axis.
    """
    if recipe.kind in CONSTANTS:
        return min(recipe.exponent, number_format.exponent_limit)
    reach = MAKERS[recipe.kind].reach
    if reach is None:
        return recipe.exponent
    # Reduced for all values alike: clamping each would make a crowd of equal values.
    return min(recipe.exponent, number_format.exponent_limit - reach(number_format, size))

"""Plans: a recipe as a table of whole numbers, which one kernel turns into values on a device.

What a recipe means is defined by the torch operations of `biprop.data.block` and
`biprop.data.kinds`. Here its constants are worked out, with Python's own integers, so that
`biprop.data.device_triton` is left with the arithmetic that each element needs.

A table is a header (`Header`, then three numbers for each dimension: its size, its stride in slices
and its salt), one record for each recipe, and points. A record is its `Field`s, `PARAMETERS`
numbers of its code's own, then a matching for sequences, for tokens and for each dimension, of
`Matching` numbers each.
"""

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs
import numpy as np
import torch
from torch import Tensor

from biprop.data.block import Block, own_sequence_mask
from biprop.data.kinds import exponent_of
from biprop.data.kinds.elementwise import BINADES, ELEMENTWISE
from biprop.data.kinds.linspace import FIRST, step_of
from biprop.data.kinds.peak_keys import root_of
from biprop.data.kinds.peaks import kept_of
from biprop.data.kinds.points import check_axes, numbers_of
from biprop.data.kinds.ties_exponentials import SIZE_MIN as EXPONENTIALS_MIN
from biprop.data.kinds.ties_exponentials import exponentials_design
from biprop.data.kinds.ties_squares import SIZE_MIN as SQUARES_MIN
from biprop.data.kinds.ties_squares import squares_design
from biprop.data.matching import narrowed, second_mask
from biprop.data.recipe import SEQUENCES, TOKENS, Pairing, Recipe
from biprop.data.words import hash_words, mix_word, salt_of_axis, signed

__all__ = ["CODES", "PARAMETERS", "Code", "Field", "Header", "Matching", "Plan", "plan_of"]

# Numbers of a record that mean something else for each code.
PARAMETERS = 12
# An axis that a point does not name.
_ANY = -1


class Code(enum.IntEnum):
    """What the kernel tells apart: kinds, and what becomes of one in a short slice."""

    CONSTANT = 0
    INTEGERS = 1
    NORMAL = 2
    UNIFORM = 3
    FALLING = 4
    SWAMP = 5
    IOTA = 6
    PEAK_SQUARES = 7
    PEAK_EXPONENTIALS = 8
    TIES_SQUARES = 9
    TIES_SQUARES_SHORT = 10
    TIES_EXPONENTIALS = 11
    TIES_EXPONENTIALS_SHORT = 12
    PEAK_KEYS = 13
    EXPLICIT = 14
    LINSPACE = 15


class Header(enum.IntEnum):
    """Where a number lies in the header of a table."""

    # Word of the draws of a mixture.
    MIX_BASE = 0
    # 1 where the first dimension draws along with the token: in parameters of several dimensions.
    MIX_AXIS = 1


class Field(enum.IntEnum):
    """Where a number lies in a record; after these come `PARAMETERS` numbers of the code's own."""

    CODE = 0
    BASE = 1
    MIXED_BASE = 2
    HOLES = 3
    AT_TARGET = 4
    # Bits of the float32 by which values are multiplied at the end; of the value of a constant.
    SCALE = 5


class Matching(enum.IntEnum):
    """Where a number lies in the matching of one axis.

    The mask of position i is MASK, with DIFFERENCE on top where the bits ONE and OTHER of i differ.
    """

    MASK = 0
    DIFFERENCE = 1
    ONE = 2
    OTHER = 3
    # 0 where all positions are folded onto the first.
    KEEP = 4
    # 1 where partners differ in sign.
    SIGNED = 5
    # 1 where each slice (each sequence) draws MASK and DIFFERENCE itself.
    OWN = 6


# The kinds whose code does not depend on anything; for the two kinds of ties it depends on a size.
CODES: Final[Mapping[str, Code]] = MappingProxyType(
    {
        "zeros": Code.CONSTANT,
        "ones": Code.CONSTANT,
        "integers": Code.INTEGERS,
        "iota": Code.IOTA,
        "normal": Code.NORMAL,
        "uniform": Code.UNIFORM,
        "wide": Code.FALLING,
        "pairs": Code.FALLING,
        "swamp": Code.SWAMP,
        "peak_squares": Code.PEAK_SQUARES,
        "ties_squares": Code.TIES_SQUARES,
        "peak_exponentials": Code.PEAK_EXPONENTIALS,
        "ties_exponentials": Code.TIES_EXPONENTIALS,
        "peak_keys": Code.PEAK_KEYS,
        "explicit": Code.EXPLICIT,
        "linspace": Code.LINSPACE,
    }
)
_NO_MATCHING = (0, 0, 0, 0, 1, 0, 0)
# Asked for once: the length of an enumeration is counted anew each time.
_FIELD_COUNT = len(Field)
_MATCHING_SIZE = len(Matching)


@attrs.frozen(kw_only=True, eq=False)
class Plan:
    """A recipe for one tensor, worked out.

    Attributes:
        table: int64, on the CPU.
        codes: Bit `code` is set for every code that occurs.
        first: Where the first record begins.
        record_count: 1, or the recipes of a mixture.
        record_size: Numbers of a record.
        mixed: Whether tokens (of a parameter: indices of its first dimension) draw a record.
    """

    table: Tensor
    codes: int
    first: int
    record_count: int
    record_size: int
    mixed: bool

    @property
    def by_element(self) -> bool:
        """Whether an element needs nothing of its slice but the slice's own word."""
        return not self.mixed and self.codes < 1 << (Code.IOTA + 1)


def plan_of(recipe: Recipe, block: Block) -> Plan:
    """Return the plan of a whole tensor.

    Args:
        recipe: What it holds; a mixture inside a mixture has no plan.
        block: The tensor; its `coordinates` are not looked at.

    Raises:
        CaseError: A point names an axis that the tensor does not have.
    """
    recipes: Sequence[Recipe] = (recipe,)
    mixed = recipe.kind == "mix"
    if mixed:
        recipes = recipe.rows
    table = _header(block)
    first = len(table)
    matchings = _FIELD_COUNT + PARAMETERS
    record_size = matchings + _MATCHING_SIZE * (2 + len(block.dims))
    points: list[int] = []
    codes = 0
    for inner in recipes:
        if mixed and recipe.exponent:
            inner = attrs.evolve(inner, exponent=inner.exponent + recipe.exponent)  # noqa: PLW2901
        code, parameters = _parameters(inner, block)
        if code == Code.EXPLICIT:
            own_points = _points(inner, block)
            begin = first + record_size * len(recipes) + len(points)
            parameters = [*parameters, begin, len(own_points) // _point_size(block)]
            points += own_points
        base = hash_words(block.seed, block.name, inner.kind)
        record = [*_fields(inner, block, code, base), *parameters]
        record += [0] * (matchings - len(record))
        record += _matchings(inner, block, base)
        assert len(record) == record_size, f"a record of {len(record)} numbers, not {record_size}"
        table += record
        codes |= 1 << code
    return Plan(
        # Of a list of Python's numbers numpy makes an array in half the time.
        table=torch.from_numpy(np.array(table + points, dtype=np.int64)),
        codes=codes,
        first=first,
        record_count=len(recipes),
        record_size=record_size,
        mixed=mixed,
    )


def _header(block: Block) -> list[int]:
    base = hash_words(block.seed, block.name, "mix")
    header = [base, int(block.tokens is None and len(block.dims) > 1)]
    outer = block.sizes[:-1]
    for axis, size in enumerate(block.sizes):
        stride = math.prod(outer[axis + 1 :])
        header += [size, stride, signed(salt_of_axis(axis))]
    return header


def _fields(recipe: Recipe, block: Block, code: Code, base: int) -> list[int]:
    at_target = recipe.at_target and block.target is not None
    scale = _bits_of(_scale(recipe, block))
    return [code, base, mix_word(base), int(recipe.holes), int(at_target), scale]


def _scale(recipe: Recipe, block: Block) -> float:
    exponent = exponent_of(recipe, block.number_format, block.sizes[-1])
    if recipe.kind == "zeros":
        return 0.0
    if recipe.kind == "ones":
        return _rounded(2.0**exponent, block.number_format.dtype)
    return 2.0**exponent


# Few numbers, and a tensor for each would take longer than all the rest of a record.
@functools.cache
def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


@functools.cache
def _bits_of(number: float) -> int:
    """Return the bits of a number as float32, as an int32."""
    return int(torch.tensor(number, dtype=torch.float32).view(torch.int32))


def _parameters(recipe: Recipe, block: Block) -> tuple[Code, list[int]]:
    """Return the code of a recipe, and the numbers of the code's own."""
    size, number_format = block.sizes[-1], block.number_format
    code = CODES[recipe.kind]
    match code:
        case Code.FALLING:
            return code, [BINADES[recipe.kind], number_format.exponent_top]
        case Code.SWAMP:
            return code, [number_format.exponent_top]
        case Code.PEAK_EXPONENTIALS:
            return code, [kept_of(size)]
        case Code.TIES_SQUARES:
            return _squares(block)
        case Code.TIES_EXPONENTIALS:
            if size < EXPONENTIALS_MIN:
                return Code.TIES_EXPONENTIALS_SHORT, []
            design = exponentials_design(size, number_format)
            return code, [design.whole, design.kept, design.stride]
        case Code.PEAK_KEYS:
            # A parameter has no tokens and no peak: all of it is zero.
            return code, [root_of(size) if block.tokens is not None else 0]
        case Code.LINSPACE:
            return code, [FIRST, step_of(block), math.prod(block.sizes)]
        case Code.EXPLICIT:
            return code, [_bits_of(torch.finfo(number_format.dtype).max)]
        case _:
            return code, []


def _squares(block: Block) -> tuple[Code, list[int]]:
    size, number_format = block.sizes[-1], block.number_format
    if size < SQUARES_MIN:
        return Code.TIES_SQUARES_SHORT, [_bits_of(2.0**number_format.ties_exponent)]
    design = squares_design(size, number_format)
    return Code.TIES_SQUARES, [
        *design.totals,
        *design.units,
        design.odd_factor,
        design.odd_first,
        design.odd_shift,
        design.share,
        design.stride,
        # Roots stay far below 2**62, so no limit above it cuts one.
        int(min(design.largest, 2.0**62)),
        design.keep,
        _bits_of(2.0**design.grid),
    ]


def _matchings(recipe: Recipe, block: Block, base: int) -> Sequence[int]:
    # The other kinds have a design of their own.
    pairing = recipe.pairing if recipe.kind in ELEMENTWISE else {}
    if not pairing:
        return _NO_MATCHING * (2 + len(block.dims))
    over_tokens = pairing if block.tokens is not None else {}
    return [
        *_of_sequences(over_tokens.get(SEQUENCES), base),
        *_of_tokens(over_tokens.get(TOKENS)),
        *(
            number
            for dim, size in zip(block.dims, block.sizes, strict=True)
            for number in _of_dimension(pairing.get(dim), size)
        ),
    ]


def _of_sequences(over: Pairing | None, base: int) -> Sequence[int]:
    if over is None:
        return _NO_MATCHING
    mask = own_sequence_mask(base) if over.role == "own" else over.mask
    return (signed(mask), 0, 0, 0, *_role(over), 0)


def _of_tokens(over: Pairing | None) -> Sequence[int]:
    if over is None:
        return _NO_MATCHING
    return (*_shared(over.mask), *_role(over), int(over.role == "own"))


def _of_dimension(over: Pairing | None, size: int) -> Sequence[int]:
    if over is None or size <= 1:
        return _NO_MATCHING
    if over.role == "own":
        return (0, 0, (size - 1).bit_length() - 1, 0, *_role(over), 1)
    return (*_shared(narrowed(over.mask, size)), *_role(over), 0)


def _shared(mask: int) -> tuple[int, int, int, int]:
    found = second_mask(mask)
    if found is None:
        return signed(mask), 0, 0, 0
    second, one, other = found
    return signed(mask), signed(mask ^ second), one, other


def _role(over: Pairing) -> tuple[int, int]:
    return int(over.role != "flat"), int(over.role in {"antisymmetric", "own"})


def _points(recipe: Recipe, block: Block) -> list[int]:
    """Return the points of a record: bits of the value, then an index by sequence, token and axis.

    An axis that is not named has `_ANY`.
    """
    for axes in dict.fromkeys(tuple(point.at) for point in recipe.points):
        check_axes(axes, block)
    values = torch.tensor(numbers_of(recipe.points), dtype=torch.float32).view(torch.int32)
    order = (SEQUENCES, TOKENS, *block.dims)
    table: list[int] = []
    for point, bits in zip(recipe.points, values.tolist(), strict=True):
        # Other indices lie in no tensor, and would read as another in 32 bits.
        if all(0 <= index < 1 << 31 for index in point.at.values()):
            table += [bits, *(point.at.get(axis, _ANY) for axis in order)]
    return table


def _point_size(block: Block) -> int:
    return 3 + len(block.dims)

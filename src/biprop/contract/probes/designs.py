"""Numbers whose float32 sum every order gives, and a bfloat16 sum hardly any.

Nothing is random: the same count gives the same numbers.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import attrs

__all__ = ["SUM", "NormDesign", "cancelling", "norm_design", "ones", "to_bfloat16"]

# Of the numbers that cancel: odd, while bfloat16 sums beyond 256 are even.
SUM = 129.0
# More than the 2**9 ones that must sum exactly, and a bfloat16 number itself.
_ONES = 1024
# A design of fewer numbers is not always found.
WIDTH_MIN = 4
_SEEDS = 4096
# Whether a square root that is off by a step of 2**-10 or more shows, and one of float32 does not.
_TIE_NEAR = 2.0**-16
_TIE_FAR = 2.0**-12.5


@attrs.frozen(kw_only=True)
class NormDesign:
    """Numbers whose quotients by their root mean square nearly lie between two bfloat16 numbers.

    Attributes:
        numbers: Whole numbers.
        expected: By index, the quotient in bfloat16, of one that lies below the middle between two
            numbers, and of one that lies above.
    """

    numbers: tuple[float, ...]
    expected: tuple[tuple[int, float], ...]


def ones(count: int) -> list[float]:
    """Return as many ones as bfloat16 can count, at most 1024, and zeros."""
    # Of the numbers from 512 to 1024, it holds every fourth.
    terms = min(_ONES, count // 4 * 4)
    return [1.0] * terms + [0.0] * (count - terms)


def cancelling(count: int) -> list[float]:
    """Return numbers of 8 bits that sum to 129, far from it on the way.

    Sums of float32 are exact. A bfloat16 sum of more than two of them, or of blocks of them, is
    even while it is large, and so is what is left of it when it has become small again.
    """
    half = (count - 1) // 2
    rising = [float(_drawn(index, seed=0, low=128)) for index in range(half)]
    falling = [-rising[(index + half // 3) % half] for index in range(half)]
    first, second = half * 5 // 8, half * 3 // 8
    numbers = [*rising[:first], *falling[:second], SUM, *rising[first:], *falling[second:]]
    return numbers + [0.0] * (count - len(numbers))


@lru_cache(maxsize=64)
def norm_design(width: int) -> NormDesign | None:
    """Return numbers for a norm of a width; None where none are found.

    No bfloat16 number is near the sum of their squares, or near the mean, so that a sum that ends
    as one moves the root by 2**-10 or more. Then a quotient that lies next to the middle between
    two bfloat16 numbers is rounded to the other one.
    """
    if width < WIDTH_MIN:
        return None
    for seed in range(_SEEDS):
        numbers = [float(_drawn(index, seed=seed, low=48)) for index in range(width)]
        total = sum(number * number for number in numbers)
        if not (_is_far(total) and _is_far(total / width)):
            continue
        quotients = [number / math.sqrt(total / width) for number in numbers]
        places = (_near_tie(quotients, below=True), _near_tie(quotients, below=False))
        found = [place for place in places if place is not None]
        if len(found) == len(places):
            expected = tuple((place, to_bfloat16(quotients[place])) for place in found)
            return NormDesign(numbers=tuple(numbers), expected=expected)
    return None


def to_bfloat16(number: float) -> float:
    """Return the bfloat16 number nearest to a number of its range that lies between no two."""
    steps, exponent = _steps(number)
    return math.ldexp(round(steps), exponent - 8)


def _steps(number: float) -> tuple[float, int]:
    """Return a number in steps of bfloat16, 128 to 256 of them, and its exponent."""
    fraction, exponent = math.frexp(number)
    return fraction * 256, exponent


def _is_far(number: float) -> bool:
    """Return whether a number lies in the middle half between two bfloat16 numbers."""
    steps, _ = _steps(number)
    return 1 / 4 < steps % 1 < 3 / 4


def _near_tie(quotients: Sequence[float], *, below: bool) -> int | None:
    """Return the first that lies next to the middle between two bfloat16 numbers."""
    for index, quotient in enumerate(quotients):
        steps, _ = _steps(quotient)
        distance = (steps % 1 - 1 / 2) / steps
        if _TIE_NEAR < (-distance if below else distance) < _TIE_FAR:
            return index
    return None


def _drawn(index: int, *, seed: int, low: int) -> int:
    """Return one of the 128 whole numbers from `low` on."""
    word = ((index + 1) * 2654435761 + seed * 2624225017) & 0xFFFFFFFF
    return low + ((word * 2246822519 & 0xFFFFFFFF) >> 25)

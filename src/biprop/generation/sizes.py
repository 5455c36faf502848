"""Sizes: small, log-uniform and boundary values, and dimensions that meet their restrictions.

A size above its limit is folded below it, never clipped: clipped sizes pile up on the limit, and
what lies just under it is then hardly tried.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from biprop.errors import RestrictionError
from biprop.generation.draw import Draw
from biprop.signature import Restrictions

__all__ = ["draw_size", "settled_sizes", "smallest_sizes"]

_WAYS = ("small",) * 2 + ("log",) * 3 + ("edge",) * 5
_BASES = ("power",) * 3 + ("triple",)
# Candidates that are tried for one dimension, nearest first, before another order is tried.
_CANDIDATE_COUNT_MAX = 512


def draw_size(draw: Draw, high: int, *, low: int = 1, constants: Sequence[int] = ()) -> int:
    """Draw a size of `low..high`: small, log-uniform, or at a boundary.

    Boundaries are powers of two, three times a power of two, and `constants`, each with the numbers
    beside it.
    """
    if high <= low:
        return low
    way = draw.choice(_WAYS)
    if way == "small":
        return draw.integer(low, min(high, low + 7))
    if way == "log":
        exponent = draw.integer(0, high.bit_length() - 1)
        size = (1 << exponent) + draw.integer(0, (1 << exponent) - 1)
    else:
        size = _boundary(draw, high, constants) + draw.choice((0, 1, -1))
    return _folded(size, low=low, high=high)


def settled_sizes(
    wanted: Mapping[str, int], restrictions: Restrictions, *, keep: Sequence[str] = ()
) -> dict[str, int]:
    """Return sizes near `wanted` that meet all restrictions.

    Args:
        wanted: Size by name of every free dimension.
        restrictions: What they must meet.
        keep: Names that are settled first, so that they move least.

    Raises:
        RestrictionError: No sizes were found.
    """
    if restrictions.admits(wanted):
        return dict(wanted)
    names = [*keep, *(name for name in wanted if name not in keep)]
    # A quotient decides about its multiples or the other way round, depending on who comes first.
    for order in (names, names[::-1]):
        sizes = _settled_in_order(order, wanted, restrictions)
        if sizes is not None:
            return {name: sizes[name] for name in wanted}
    raise RestrictionError(
        f"No sizes of {', '.join(wanted)} meet --dims {restrictions.text!r}: "
        "widen a range or drop a condition."
    )


@lru_cache(maxsize=256)
def smallest_sizes(
    names: tuple[str, ...], restrictions: Restrictions
) -> tuple[tuple[str, int], ...]:
    """Return the smallest sizes that meet all restrictions, name by name.

    Raises:
        RestrictionError: No sizes were found.
    """
    lows = {name: restrictions.domain(name).low for name in names}
    return tuple(settled_sizes(lows, restrictions).items())


def _boundary(draw: Draw, high: int, constants: Sequence[int]) -> int:
    within = [constant for constant in constants if 1 < constant <= high + 1]
    base = draw.choice((*_BASES, "constant") if within else _BASES)
    if base == "constant":
        return draw.choice(within)
    exponent = draw.integer(1, high.bit_length())
    return 1 << exponent if base == "power" else 3 << (exponent - 1)


def _folded(size: int, *, low: int, high: int) -> int:
    if size > high:
        size = high - (size % high) // 2 if high > 8 else 1 + size % high
    if size < low:
        size = low + size % (high - low + 1)
    return size


def _settled_in_order(
    names: Sequence[str], wanted: Mapping[str, int], restrictions: Restrictions
) -> dict[str, int] | None:
    sizes: dict[str, int] = {}
    for name in names:
        found = next(
            (
                size
                for size in _candidates(name, wanted[name], restrictions)
                if restrictions.admits({**sizes, name: size})
            ),
            None,
        )
        if found is None:
            return None
        sizes[name] = found
    return sizes


def _candidates(name: str, wanted: int, restrictions: Restrictions) -> Iterator[int]:
    """Yield sizes that meet every condition on this name alone, nearest to `wanted` first."""
    domain = restrictions.domain(name)
    if domain.choices:
        yield from sorted(domain.choices, key=lambda size: (abs(size - wanted), size))
        return
    period, start = _period(name, restrictions)
    if not period:
        return
    below = wanted - (wanted - start) % period
    above = below + period
    for _ in range(_CANDIDATE_COUNT_MAX):
        if below < domain.low and above > domain.high:
            return
        if below >= domain.low:
            # Both lie within one period; the smaller is the cheaper.
            if below <= domain.high:
                yield below
            below -= period
        if above <= domain.high:
            if above >= domain.low:
                yield above
            above += period
    # One name of a quotient may need a size far from the one drawn: the smallest always divide.
    first = domain.low + (start - domain.low) % period
    yield from range(first, min(domain.high, first + 8 * period) + 1, period)


@lru_cache(maxsize=256)
def _period(name: str, restrictions: Restrictions) -> tuple[int, int]:
    """Return the period and the first of the sizes that meet what is asked of `name` alone."""
    alone = [
        (condition.divisor, condition.remainder)
        for condition in restrictions.remainders
        if condition.name == name and isinstance(condition.divisor, int)
    ]
    step, start = 1, 0
    for divisor, remainder in alone:
        period = math.lcm(step, divisor)
        found = (size for size in range(start, start + period, step) if size % divisor == remainder)
        first = next(found, None)
        if first is None:
            return 0, 0
        step, start = period, first
    return step, start

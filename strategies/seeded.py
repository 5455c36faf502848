"""The seeded back end: Hypothesis draws one 64-bit seed, the generator does the rest.

Measured to find every planted defect where drawing choice by choice missed one in five, since the
engine's mutated copies of choices repeat the same structures. A seed cannot be shrunk:
`biprop.minimize` shrinks the case.
"""

from collections.abc import Iterable

from hypothesis import strategies as st

from biprop.case import Case
from biprop.generation import RandomDraw, Space, draw_case, draw_layouts, illegal_in

__all__ = ["case_of_seed", "layouts_of_seed", "seeded_cases", "seeds"]

_SEED_BITS = 64
_DRAWS_MAX = 16
# Far from what other draws of a seed begin with.
_LAYOUTS = 1 << 96


def seeds() -> "st.SearchStrategy[int]":
    """Draw a 64-bit seed; it shrinks to 0, which means nothing."""
    return st.integers(min_value=0, max_value=(1 << 64) - 1)


def case_of_seed(seed: int, space: Space) -> Case:
    """Return the case that a seed stands for; always legal.

    Raises:
        RestrictionError: No sizes meet the restrictions.
        UnsupportedError: The signature has nothing to judge in this direction.
    """
    case = draw_case(RandomDraw(seed), space)
    # Padding, dead rows and shared rows come on top of a lane's limits. In the one with the largest
    # ones they may together be more than a case may hold, though hardly ever.
    draws = range(1, _DRAWS_MAX if space.limits.real_every else 1)
    for step in draws:
        if not illegal_in(space, case):
            break
        case = draw_case(RandomDraw(seed ^ (step << _SEED_BITS)), space)
    return case


def layouts_of_seed(
    seed: int, space: Space, case: Case, count: int, *, wanted: Iterable[str] = ()
) -> tuple[Case, ...]:
    """Return the set of a seed: its case, and other layouts of it, `count` cases at most.

    Args:
        seed: Of the case, or any number.
        space: What the case was drawn from.
        case: The first layout, of relation I.
        count: Layouts of the set, 1 or more.
        wanted: Classes that the other layouts shall have rather than others.
    """
    if count == 1:
        return (case,)
    others = draw_layouts(RandomDraw(seed ^ _LAYOUTS), space, case, count - 1, wanted=wanted)
    return (case, *others)


def seeded_cases(space: Space) -> "st.SearchStrategy[Case]":
    """Draw legal cases by seed: the most varied ones, which do not shrink."""
    return seeds().map(lambda seed: case_of_seed(seed, space))

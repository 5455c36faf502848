"""Give a launch of independent tokens exactly the number of rows whose turn it is in a sweep.

Dead slots, tokens that are left out and launches that are cut change how many rows there are: here
neighbours make up for them. Which number it is says `biprop.generation.sweep`.
"""

from collections.abc import Sequence

import attrs

from biprop.generation.draw import Draw
from biprop.generation.population import Population
from biprop.generation.room import room_for_tokens
from biprop.generation.space import Space
from biprop.transforms import (
    AddNeighbours,
    PadSlots,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
)

__all__ = ["exact_rows", "with_exact_rows"]

# Rows of the other launch, where a cut leaves one of exactly the number that is asked for.
_BESIDE_MAX = 8


def exact_rows(space: Space, population: Population) -> int:
    """Return the rows of a launch: those that a sweep asks for, or those of the population."""
    if not space.signature.token_wise:
        return population.rows
    return space.swept_rows(high=_rows_max(space)) or population.tokens


def with_exact_rows(
    draw: Draw, space: Space, population: Population, transforms: Sequence[Transform]
) -> tuple[Population, tuple[Transform, ...]]:
    """Return a population and transforms of which one launch has the rows that a sweep asks for.

    They are returned as they are where there is nothing to make up with, or no room for it.
    """
    most = _rows_max(space)
    rows = space.swept_rows(high=most)
    unit = _unit(population, transforms)
    if rows is None or not unit:
        return population, tuple(transforms)
    is_cut = any(isinstance(item, SplitBatch) for item in transforms)
    total, cuts = _cuts(draw, rows, most) if is_cut else (rows, ())
    dead = sum(item.amount for item in transforms if isinstance(item, PadSlots))
    # Whoever is placed or replaced must be there.
    least = int(any(isinstance(item, PlaceWatched | ReplaceNeighbours) for item in transforms))
    watched = min(len(population.sequences), total - dead - least * unit)
    if watched < 1:
        return population, tuple(transforms)
    sequences = population.sequences[:watched]
    count, rest = divmod(total - dead - watched, unit)
    if rest or (watched == 1 and not count):
        return population, tuple(transforms)
    found = (_fitted(item, population.count, count, cuts) for item in transforms)
    return attrs.evolve(population, sequences=sequences, count=count), tuple(found)


def _rows_max(space: Space) -> int:
    return min(space.limits.tokens_max, room_for_tokens(space))


def _cuts(draw: Draw, rows: int, most: int) -> tuple[int, tuple[int, ...]]:
    """Draw where launches are cut, of which one or all have the rows that are asked for."""
    pieces = min(most // rows, draw.choice((1, 2, 4, 8)))
    if pieces > 1:
        return rows * pieces, tuple(range(rows, rows * pieces, rows))
    beside = draw.integer(1, _BESIDE_MAX)
    return rows + beside, (draw.choice((rows, beside)),)


def _unit(population: Population, transforms: Sequence[Transform]) -> int:
    """Return the rows of a neighbour of single tokens; 0 where rows cannot be counted so."""
    has_neighbours = any(isinstance(item, AddNeighbours) for item in transforms)
    is_single = all(sequence.length == 1 for sequence in population.sequences)
    if not has_neighbours or not is_single or population.spread:
        return 0
    is_replaced = any(isinstance(item, ReplaceNeighbours) for item in transforms)
    return (population.length or 1) if is_replaced else 1


def _fitted(transform: Transform, before: int, count: int, cuts: tuple[int, ...]) -> Transform:
    """Return a transform for another number of neighbours, and for other cuts."""
    if isinstance(transform, SplitBatch):
        return SplitBatch(cuts=cuts)
    if isinstance(transform, AddNeighbours):
        return AddNeighbours(count=count)
    if isinstance(transform, PlaceWatched):
        is_last = transform.before >= before
        return PlaceWatched(before=count if is_last else min(transform.before, count))
    return transform

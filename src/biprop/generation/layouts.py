"""Layouts of one set: other compositions around the sequences and the data of a case.

What a case's canonical side is made of stays as it is, so that it is expanded, launched and
measured once for a whole set (`biprop.relations.sets`); the transforms alone are drawn anew, and
with them who shares the launches. Each layout is a case of its own.
"""

from collections.abc import Iterable

import attrs

from biprop.case import Case
from biprop.data.words import hash_words
from biprop.generation.composition import draw_classes, draw_transforms
from biprop.generation.draw import Draw
from biprop.generation.exact import with_exact_rows
from biprop.generation.generator import illegal_in
from biprop.generation.population import Population, draw_neighbours, pairs_of
from biprop.generation.room import SCORES_MAX, costs, room_for_tokens, scores, work_max
from biprop.generation.space import Space
from biprop.transforms import (
    AddNeighbours,
    ReplaceNeighbours,
    Transform,
    class_of,
    transform_to_data,
    transforms_of,
)

__all__ = ["draw_layouts"]

# Compositions that are drawn for one layout, until one is legal and new.
_DRAWS_MAX = 12
# Of these, so many may be put back because their classes are not the wanted ones, or came before.
_CHOOSY_DRAWS = 6


def draw_layouts(
    draw: Draw, space: Space, case: Case, count: int, *, wanted: Iterable[str] = ()
) -> tuple[Case, ...]:
    """Draw other layouts of a case: equal to it but for their transforms.

    They differ in classes where that can be, and those that replace their neighbours' content do so
    in one way, so that a set has two kinds of neighbours at most.

    Args:
        draw: Source of choices; the same choices give the same layouts.
        space: What the case was drawn from. In a sweep each layout has its own turn of rows.
        case: The first layout, of relation I.
        count: How many others.
        wanted: Classes that are drawn before others, each once.

    Returns:
        As many as were found: fewer where a case leaves nothing else to be drawn.
    """
    known = _Known(space, case)
    lacking = list(wanted)
    for number in range(1, count + 1):
        layout = _drawn(draw, _turn(space, number), known, lacking)
        if layout is not None:
            known.add(layout)
            lacking = [name for name in lacking if name not in known.classes[-1]]
    return tuple(known.cases[1:])


class _Known:
    """What layouts of a set there are already.

    Attributes:
        cases: The layouts, the given one first.
        classes: Of each.
        first: Who shares the launches of the given one.
        replaced: How neighbours are replaced; None where no layout does so.
        tokens_max: Tokens that the smallest sizes leave room for.
    """

    def __init__(self, space: Space, case: Case) -> None:
        """Begin with `case`."""
        self.cases: list[Case] = []
        self.classes: list[set[str]] = []
        self.replaced: ReplaceNeighbours | None = None
        self.tokens_max = room_for_tokens(space)
        transforms = self.add(case)
        counts = (item.count for item in transforms if isinstance(item, AddNeighbours))
        population = Population(sequences=case.sequences, count=next(counts, 0))
        found = _replacement(transforms)
        self.first = population if found is None else _with_content(population, found)

    def add(self, case: Case) -> tuple[Transform, ...]:
        """Add a layout; return its transforms."""
        transforms = transforms_of(case)
        self.cases.append(case)
        self.classes.append({class_of(transform) for transform in transforms})
        if self.replaced is None:
            self.replaced = _replacement(transforms)
        return transforms


def _turn(space: Space, number: int) -> Space:
    """Return the space of one layout: of the rows of a sweep it takes those of another order."""
    if space.sweep is None:
        return space
    sweep = attrs.evolve(space.sweep, seed=hash_words("layout", space.sweep.seed, number))
    return attrs.evolve(space, sweep=sweep)


def _drawn(draw: Draw, space: Space, known: _Known, lacking: list[str]) -> Case | None:
    """Return a legal layout that is none of those before; None where none was found."""
    case = known.cases[0]
    for attempt in range(_DRAWS_MAX):
        present = draw_classes(draw, space, judged=case.judged)
        is_choosy = attempt < _CHOOSY_DRAWS
        if is_choosy and lacking and lacking[0] not in present:
            continue
        transforms = _transforms(draw, space, known, present)
        if is_choosy and {class_of(transform) for transform in transforms} in known.classes:
            continue
        data = tuple(transform_to_data(transform) for transform in transforms)
        if not data or any(data == item.transforms for item in known.cases):
            continue
        layout = attrs.evolve(case, transforms=data)
        if not illegal_in(space, layout):
            return layout
    return None


def _transforms(
    draw: Draw, space: Space, known: _Known, present: frozenset[str]
) -> tuple[Transform, ...]:
    """Draw a composition of the classes that are `present` around the sequences of a set."""
    case = known.cases[0]
    population = draw_neighbours(
        draw,
        space,
        case.sequences,
        judged=case.judged,
        present=present,
        tokens_max=known.tokens_max,
    )
    if population.is_replaced and known.replaced is not None:
        population = _with_content(population, known.replaced)
    population = _within(space, case, population, known.first)
    transforms = draw_transforms(draw, space, population, judged=case.judged, present=present)
    if space.is_swept and space.signature.token_wise:
        exact, fitted = with_exact_rows(draw, space, population, transforms)
        if exact.sequences == case.sequences and _fits(space, case, exact, known.first):
            return fitted
    return transforms


def _replacement(transforms: Iterable[Transform]) -> ReplaceNeighbours | None:
    """Return how a composition replaces neighbours; None where it does not."""
    found = (item for item in transforms if isinstance(item, ReplaceNeighbours))
    return next(found, None)


def _with_content(population: Population, replaced: ReplaceNeighbours) -> Population:
    """Return a population with neighbours of some length and loudness."""
    return attrs.evolve(
        population,
        length=replaced.length,
        spread=replaced.spread,
        loudness=replaced.loudness,
    )


def _within(space: Space, case: Case, population: Population, first: Population) -> Population:
    """Halve the neighbours until a layout fits the limits beside the sizes of its case."""
    while population.count > 1 and not _fits(space, case, population, first):
        population = attrs.evolve(population, count=population.count // 2)
    return population


def _fits(space: Space, case: Case, population: Population, first: Population) -> bool:
    """Return whether a population is within the limits, or no more than the first one's."""
    tokens, pairs = population.tokens, pairs_of(space, population)
    if tokens <= first.tokens and pairs <= pairs_of(space, first):
        return True
    elements, work = costs(space, case.dims, tokens=tokens, pairs=pairs)
    return (
        elements <= space.limits.elements_max
        and work <= work_max(space)
        and scores(space, case.dims, pairs=pairs) <= SCORES_MAX
    )

"""The declared cost of a case: what smaller means when a finding is shrunk.

Arithmetic on records, without index maps: what a layout means slot by slot says `biprop.layout`.
The moves that lower the cost stand in the other modules of this folder.
"""

from types import MappingProxyType
from typing import NamedTuple

import attrs

from biprop.case import Case
from biprop.data.recipe import KINDS, Recipe
from biprop.layout import Layout
from biprop.layout.records import FILLS
from biprop.minimize.context_slots import context_slots
from biprop.signature import Signature
from biprop.signature.forms import Forms, FormSignatures, form_launched
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    TRANSFORMS,
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PadSlots,
    ReplaceNeighbours,
    Transform,
    apply_all,
    transforms_of,
)

__all__ = ["UNBOUNDED", "Cost", "cost"]

# Non-zeros of a tensor whose values are drawn: more than any list of points.
UNBOUNDED = 1 << 20
_CONSTANT = {"zeros", "ones"}
_NO_FORMS: Forms = MappingProxyType({})


class Cost(NamedTuple):
    """The cost, compared from first to last.

    Attributes:
        slots: Physical slots of the canonical or of the transformed launches, whichever are more,
            so that launching a part of a sequence is not cheap; of queries and of contexts both.
        transforms: Active transforms; storage and the neighbours' content count once a field that
            is set, neighbours themselves are slots already.
        dead_slots: Dead slots, and dead rows of packed launches.
        watched_tokens: Tokens of the watched sequences.
        sequences: Watched sequences.
        wide_dims: Free dimensions above 1.
        dim_sum: Sum of the free dimensions.
        dims: The free dimensions, those of outputs before contracted ones.
        cuts: Number of cuts, and their sum.
        nonzeros: Values that are listed; `UNBOUNDED` a tensor whose values are drawn.
        kinds: How involved the recipes are.
        rest: Everything else, so that two cases of one cost are one case in all but values.
    """

    slots: int
    transforms: int
    dead_slots: int
    watched_tokens: int
    sequences: int
    wide_dims: int
    dim_sum: int
    dims: tuple[int, ...]
    cuts: tuple[int, int]
    nonzeros: int
    kinds: tuple[int, ...]
    rest: tuple[float, ...]

    @property
    def structure(self) -> tuple[int | tuple[int, ...], ...]:
        """The part without data: from the slots to the cuts."""
        return self[:9]


def cost(signature: Signature, case: Case, *, forms: Forms = _NO_FORMS) -> Cost:
    """Return the declared cost of `case`.

    Args:
        signature: Forward signature of the kernel.
        case: The case.
        forms: Other forms of the operator, by name, which say what slots their launches have.
    """
    transforms = transforms_of(case)
    layout = apply_all(transforms)
    launched = form_launched(FormSignatures(signature=signature), forms, layout.selection.form)
    slots, dead_slots = _physical(launched.signature, case, layout)
    recipes = (*case.data.values(), *case.policy_state.values())
    contracted = set(signature.contracted_dims)
    names = sorted(case.dims, key=lambda name: (name in contracted, list(case.dims).index(name)))
    return Cost(
        slots=slots,
        transforms=sum(map(_weight, transforms)) + bool(case.shared_prefix),
        dead_slots=dead_slots,
        watched_tokens=sum(sequence.length for sequence in case.sequences),
        sequences=len(case.sequences),
        wide_dims=sum(size > 1 for size in case.dims.values()),
        dim_sum=sum(case.dims.values()),
        dims=tuple(case.dims[name] for name in names),
        cuts=(len(layout.cuts), sum(layout.cuts)),
        nonzeros=sum(map(_nonzeros, recipes)),
        kinds=_kinds(recipes),
        rest=_rest(case, transforms),
    )


def _physical(signature: Signature, case: Case, layout: Layout) -> tuple[int, int]:
    """Return physical slots and dead slots."""
    watched = [sequence.length for sequence in case.sequences]
    lengths = list(watched)
    if layout.selection.active_only:
        lengths = [sequence.active_count for sequence in case.sequences]
    neighbours = layout.neighbours
    # Gradients of parameters sum over all sequences of the case, in one launch, without neighbours.
    complete = case.judged == "parameter_gradients"
    together = neighbours.together or complete
    for index in range(neighbours.count if together and not complete else 0):
        # The spread is counted in full: what a hash adds below it depends on the seed.
        lengths.append((neighbours.length or watched[index % len(watched)]) + neighbours.spread)
    if has_contexts(signature):
        return context_slots(signature, case, layout, lengths)
    padding = layout.padding
    groups = [lengths] if together else [[length] for length in lengths]
    if signature.layout == "packed":
        live = sum(lengths)
        added = padding.amount * len(groups)
        return max(sum(watched), live + added), added + padding.dead_rows
    slots = sum(
        (len(group) + padding.dead_rows) * (max(group) + padding.amount) for group in groups
    )
    alone = len(watched) * max(watched) if complete else sum(watched)
    return max(alone, slots), slots - sum(lengths)


def _weight(transform: Transform) -> int:
    if isinstance(transform, AddNeighbours):
        return 0
    if isinstance(transform, (MoveStorage, ReplaceNeighbours)):
        return max(1, sum(map(bool, attrs.astuple(transform))))
    return 1


def _nonzeros(recipe: Recipe) -> int:
    if recipe.kind == "explicit":
        return len(recipe.points)
    return 0 if recipe.kind in _CONSTANT else UNBOUNDED


def _kinds(recipes: tuple[Recipe, ...]) -> tuple[int, ...]:
    """Return ranks of kinds, extras, axes that points name, oddness of their values, and places."""
    points = [point for recipe in recipes for point in recipe.points]
    return (
        sum(map(_rank, recipes)),
        sum(_extras(recipe) for recipe in recipes),
        sum(len(point.at) for point in points),
        sum(_oddness(point.value) for point in points),
        sum(index for point in points for axis, index in point.at.items() if axis != "#"),
    )


def _rank(recipe: Recipe) -> int:
    # A list of points is counted as non-zeros already; it is simpler than any kind that draws.
    if recipe.kind == "explicit":
        return 2
    return KINDS.index(recipe.kind) + sum(map(_rank, recipe.rows))


def _extras(recipe: Recipe) -> int:
    own = len(recipe.pairing) + recipe.at_target + recipe.holes + bool(recipe.exponent)
    return own + sum(map(_extras, recipe.rows))


def _oddness(text: str) -> int:
    """Return 0 for powers of two, either sign: people and every dtype read them at once."""
    mantissa = text.lstrip("-").partition("p")[0]
    return 0 if mantissa in {"0x1", "0x1.0", "0x1.0000000000000", "0x0.0"} else 1


def _rest(case: Case, transforms: tuple[Transform, ...]) -> tuple[float, ...]:
    padding = [item for item in transforms if isinstance(item, (PadSlots, AddDeadRows))]
    kinds = [1 + TRANSFORMS.index(type(item)) for item in transforms]
    magnitudes = [
        abs(value)
        for item in transforms
        for value in attrs.astuple(item)  # type: ignore[arg-type]  # every transform is a record
        if isinstance(value, int)
    ]
    execution = case.execution
    return (
        sum(kinds),
        sum(FILLS.index(item.fill) for item in padding),
        sum(item.side == "left" for item in padding if isinstance(item, PadSlots)),
        sum(magnitudes),
        case.shared_prefix,
        sum(item.prompt_length + item.position_start for item in case.sequences),
        len(case.scalars) - sum(value in {0.0, 1.0} for value in case.scalars.values()),
        sum(abs(value) for value in case.scalars.values()),
        execution.threads + sum(flag is True for flag in attrs.astuple(execution)),
        case.seed,
        sum(sequence.id for sequence in case.sequences),
    )

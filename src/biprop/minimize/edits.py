"""Edits of a case that keep its parts consistent: transforms, sequences, recipes.

Pure functions on records. Whether an edit is taken decides `biprop.minimize.trial`.
"""

from typing import TypeVar

import attrs

from biprop.case import Case
from biprop.data.recipe import SEQUENCES, Recipe
from biprop.transforms import (
    AddNeighbours,
    PlaceWatched,
    SplitBatch,
    Transform,
    transform_from_data,
    transform_to_data,
    transforms_of,
)

__all__ = [
    "find",
    "keep_sequences",
    "normalised",
    "recipes_of",
    "with_cuts_moved",
    "with_ids",
    "with_length",
    "with_lengths",
    "with_neighbours",
    "with_recipe",
    "with_transform",
    "without",
]

T = TypeVar("T", bound=Transform)


def normalised(case: Case) -> Case:
    """Return `case` with every field of every transform written out."""
    transforms = tuple(transform_to_data(transform_from_data(data)) for data in case.transforms)
    return attrs.evolve(case, transforms=transforms)


def find(case: Case, kind: type[T]) -> T | None:
    """Return the transform of a kind, None where the composition has none."""
    for transform in transforms_of(case):
        if isinstance(transform, kind):
            return transform
    return None


def without(case: Case, *kinds: type[Transform]) -> Case:
    """Return `case` without the transforms of some kinds."""
    names = {kind.__name__ for kind in kinds}
    kept = tuple(data for data in case.transforms if data.name not in names)
    return attrs.evolve(case, transforms=kept)


def with_transform(case: Case, transform: Transform) -> Case:
    """Return `case` with `transform` in place of the one of its kind, or before all others."""
    data = transform_to_data(transform)
    if find(case, type(transform)) is None:
        return attrs.evolve(case, transforms=(data, *case.transforms))
    changed = tuple(data if old.name == data.name else old for old in case.transforms)
    return attrs.evolve(case, transforms=changed)


def with_neighbours(case: Case, count: int) -> Case:
    """Return `case` with `count` neighbours; those before the watched sequences stay in step."""
    case = with_transform(case, AddNeighbours(count=count))
    place = find(case, PlaceWatched)
    if place is None or place.before <= count:
        return case
    return (
        with_transform(case, PlaceWatched(before=count)) if count else without(case, PlaceWatched)
    )


def with_length(case: Case, index: int, length: int) -> Case:
    """Return `case` with one sequence of another length; its prompt leaves an active token."""
    old = case.sequences[index]
    new = attrs.evolve(old, length=length, prompt_length=min(old.prompt_length, length - 1))
    return attrs.evolve(
        case, sequences=(*case.sequences[:index], new, *case.sequences[index + 1 :])
    )


def with_lengths(case: Case, length: int) -> Case:
    """Return `case` with all sequences, and neighbours of a length of their own, equally long."""
    for index in range(len(case.sequences)):
        case = with_length(case, index, length)
    changed = tuple(
        attrs.evolve(data, values={**data.values, "length": length})
        if data.name == "ReplaceNeighbours" and data.values.get("length")
        else data
        for data in case.transforms
    )
    return attrs.evolve(case, transforms=changed)


def with_cuts_moved(case: Case, by: int) -> Case:
    """Return `case` with all cuts lowered by a number; those that fall below 1 go."""
    split = find(case, SplitBatch)
    if split is None:
        return case
    cuts = tuple(cut - by for cut in split.cuts if cut > by)
    return with_transform(case, SplitBatch(cuts=cuts)) if cuts else without(case, SplitBatch)


def keep_sequences(case: Case, ids: set[int]) -> Case:
    """Return `case` with only the sequences of some ids; listed values of the others go too."""
    kept = tuple(sequence for sequence in case.sequences if sequence.id in ids)
    dropped = {sequence.id for sequence in case.sequences} - ids
    data = {
        name: attrs.evolve(
            recipe,
            points=tuple(
                point for point in recipe.points if point.at.get(SEQUENCES) not in dropped
            ),
        )
        for name, recipe in case.data.items()
    }
    return attrs.evolve(case, sequences=kept, data=data)


def with_ids(case: Case, new: dict[int, int]) -> Case:
    """Return `case` with other ids of sequences or neighbours; listed values move with them."""
    sequences = tuple(attrs.evolve(item, id=new.get(item.id, item.id)) for item in case.sequences)
    data = {
        name: attrs.evolve(
            recipe,
            points=tuple(
                attrs.evolve(point, at={**point.at, SEQUENCES: new[point.at[SEQUENCES]]})
                if point.at.get(SEQUENCES) in new
                else point
                for point in recipe.points
            ),
        )
        for name, recipe in case.data.items()
    }
    return attrs.evolve(case, sequences=sequences, data=data)


def recipes_of(case: Case) -> dict[str, Recipe]:
    """Return the recipes by name, those of parameters last."""
    return {**case.data, **case.policy_state}


def with_recipe(case: Case, name: str, recipe: Recipe) -> Case:
    """Return `case` with another recipe for one tensor."""
    if name in case.data:
        return attrs.evolve(case, data={**case.data, name: recipe})
    return attrs.evolve(case, policy_state={**case.policy_state, name: recipe})

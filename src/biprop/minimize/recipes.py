"""Simplify recipes, and list only the values that matter.

Witnesses made of a few fixed numbers stand in `biprop.minimize.points`; this module starts from
the values that a recipe draws.
"""

import math
from collections.abc import Iterator

import attrs

from biprop.data.recipe import KINDS, SEQUENCES, TOKENS, Point, Recipe
from biprop.minimize.edits import recipes_of, with_recipe
from biprop.minimize.trial import NonZeros, Trial
from biprop.sequence import NEIGHBOUR_ID_FIRST

__all__ = ["NONZEROS_MAX", "shrink_points", "shrink_recipes", "shrink_support"]

NONZEROS_MAX = 4000
_SIMPLE = ("zeros", "ones", "integers", "iota", "normal", "wide", "pairs")


def shrink_recipes(trial: Trial) -> bool:
    """Try simpler recipes for every tensor; return whether any was taken."""
    before = trial.case
    for name in recipes_of(trial.case):
        recipe = recipes_of(trial.case)[name]
        if recipe.kind == "mix":
            any(_put(trial, name, row) for row in recipe.rows)
        for simpler in _simpler(recipes_of(trial.case)[name]):
            if _put(trial, name, simpler):
                break
        for plainer in _plainer(recipes_of(trial.case)[name]):
            _put(trial, name, plainer)
    return trial.case != before


def shrink_support(trial: Trial, nonzeros: NonZeros, *, runs_max: int) -> bool:
    """List the values of drawn tensors, drop what does not matter; return whether any was listed.

    Args:
        trial: Holds the best case.
        nonzeros: Gives the values of a tensor.
        runs_max: Cases that may be judged for this; a list may be long.
    """
    before = trial.case
    stop = trial.runs + runs_max
    for name, recipe in recipes_of(trial.case).items():
        if recipe.kind in {"zeros", "ones", "explicit"} or trial.is_spent:
            continue
        points = nonzeros(trial.case, name, NONZEROS_MAX)
        if points is None:
            continue
        watched = tuple(
            point for point in points if point.at.get(SEQUENCES, 0) < NEIGHBOUR_ID_FIRST
        )
        if _list(trial, name, watched) or _list(trial, name, points):
            _drop_points(trial, name, stop)
    return trial.case != before


def shrink_points(trial: Trial) -> bool:
    """Make listed values rounder and their places simpler; return whether any was changed."""
    before = trial.case
    for name, recipe in recipes_of(trial.case).items():
        if recipe.kind != "explicit":
            continue
        _drop_points(trial, name, trial.runs + 4 * len(recipe.points))
        for index in range(len(recipes_of(trial.case)[name].points)):
            for point in _rounder(recipes_of(trial.case)[name].points[index]):
                if _put_point(trial, name, index, point):
                    break
        for axis in (SEQUENCES, TOKENS):
            _put(trial, name, _without_axis(recipes_of(trial.case)[name], axis))
    return trial.case != before


def _put(trial: Trial, name: str, recipe: Recipe) -> bool:
    return trial.accept(with_recipe(trial.case, name, recipe))


def _simpler(recipe: Recipe) -> Iterator[Recipe]:
    if recipe.kind == "explicit":
        yield from (Recipe(kind="zeros"), Recipe(kind="ones"))
        return
    for kind in _SIMPLE:
        if KINDS.index(kind) >= KINDS.index(recipe.kind):
            return
        yield Recipe(kind=kind)


def _plainer(recipe: Recipe) -> Iterator[Recipe]:
    if recipe.kind in {"zeros", "ones", "explicit"}:
        return
    yield Recipe(kind=recipe.kind, rows=recipe.rows)
    yield attrs.evolve(recipe, pairing={})
    for axis in recipe.pairing:
        fewer = {other: pairing for other, pairing in recipe.pairing.items() if other != axis}
        yield attrs.evolve(recipe, pairing=fewer)
    yield attrs.evolve(recipe, exponent=0)
    yield attrs.evolve(recipe, at_target=False)
    yield attrs.evolve(recipe, holes=False)


def _list(trial: Trial, name: str, points: tuple[Point, ...]) -> bool:
    return bool(points) and _put(trial, name, Recipe(kind="explicit", points=points))


def _drop_points(trial: Trial, name: str, stop: int) -> None:
    """Delta-debug the list: drop halves, then ever smaller pieces."""
    pieces = 2
    while len(points := recipes_of(trial.case)[name].points) >= 2:
        size = -(-len(points) // pieces)
        dropped = False
        for start in range(0, len(points), size):
            if trial.is_spent or trial.runs >= stop:
                return
            if _list(trial, name, points[:start] + points[start + size :]):
                pieces, dropped = max(pieces - 1, 2), True
                break
        if not dropped:
            if pieces >= len(points):
                return
            pieces = min(len(points), 2 * pieces)


def _rounder(point: Point) -> Iterator[Point]:
    value = float.fromhex(point.value)
    if value == 0 or not math.isfinite(value):
        return
    power = 2.0 ** round(math.log2(abs(value)))
    for rounder in (1.0, math.copysign(1.0, value), math.copysign(power, value)):
        yield attrs.evolve(point, value=rounder.hex())


def _put_point(trial: Trial, name: str, index: int, point: Point) -> bool:
    recipe = recipes_of(trial.case)[name]
    points = (*recipe.points[:index], point, *recipe.points[index + 1 :])
    return _put(trial, name, attrs.evolve(recipe, points=points))


def _without_axis(recipe: Recipe, axis: str) -> Recipe:
    points = tuple(
        attrs.evolve(point, at={key: at for key, at in point.at.items() if key != axis})
        for point in recipe.points
    )
    return attrs.evolve(recipe, points=points)

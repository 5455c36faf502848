"""Listed values in place of a recipe: witnesses, and their places when a size changes.

Three numbers along one axis show most changed orders of a sum; one number before a crowd of equal
ones shows those of squares and of exponentials. Which of them is taken decides
`biprop.minimize.trial`. Attention has witnesses of its own (`biprop.minimize.attention_points`).
"""

from collections.abc import Iterator
from itertools import permutations

import attrs

from biprop.case import Case, with_value
from biprop.data.recipe import TOKENS, Point, Recipe
from biprop.minimize.edits import recipes_of, with_recipe
from biprop.minimize.trial import Trial
from biprop.signature import Argument, Signature

__all__ = [
    "SIGNED",
    "find_witness",
    "has_points",
    "replace_points",
    "replaced",
    "triples",
    "witnesses_over_tokens",
]

# 2**12 + 2**-12 is a tie in float32: the small term is lost unless the large ones cancel first.
# All three are exact in bfloat16 and float16.
SIGNED = (4096.0, -4096.0, 2.0**-12)
# Squares: 2**24 + 1 is a tie. Exponentials: exp(-17) is lost beside exp(0), two of them are not.
_CROWDS = ((1.0, 4096.0), (-17.0, 0.0))
_SMALLER = (3, 4, 5, 6, 8, 12, 16, 17, 24, 32, 33, 64, 65)
# Up to it every place is a landmark.
_SMALL = 12
_TRIES_AT_SIZE = 40
_TRIES_SMALLER = 8


@attrs.frozen(kw_only=True)
class _Target:
    """A tensor and one of its axes.

    Attributes:
        name: Of the tensor.
        axis: Text of a dimension, or `@`.
        size: Its size.
    """

    name: str
    axis: str
    size: int


def has_points(case: Case) -> bool:
    """Whether a tensor of the case lists its values."""
    return any(recipe.kind == "explicit" for recipe in recipes_of(case).values())


def find_witness(trial: Trial, *, runs_max: int) -> bool:
    """Replace the recipes by a few listed values, at the present size or at a smaller one.

    Args:
        trial: Holds the best case.
        runs_max: Cases that may be judged for this.

    Returns:
        Whether the best case lists its values.
    """
    if has_points(trial.case):
        return True
    stop = trial.runs + runs_max
    for target in _targets(trial):
        for candidate in _witnesses(trial.case, target):
            if trial.is_spent or trial.runs >= stop:
                return False
            if trial.accept(candidate):
                return True
    return False


def replaced(case: Case, *, axis: str, size: int) -> Iterator[Case]:
    """Yield `case` with listed values at other places of an axis that has `size` places now."""
    for name, recipe in recipes_of(case).items():
        indices = [point.at[axis] for point in recipe.points if axis in point.at]
        if not 0 < len(indices) <= len(SIGNED) or len(set(indices)) > size:
            continue
        for places in _places(size, len(indices)):
            moved = iter(places)
            points = tuple(
                attrs.evolve(point, at={**point.at, axis: next(moved)})
                if axis in point.at
                else point
                for point in recipe.points
            )
            yield with_recipe(case, name, attrs.evolve(recipe, points=points))


def replace_points(trial: Trial, *, population: str) -> bool:
    """Try smaller sizes with the listed values in other places; return whether any was taken.

    A smaller size often takes another path, in which the same values at the same places show
    nothing.

    Args:
        trial: Holds the best case.
        population: Name of the transform whose `count` is tried like a size.
    """
    before = trial.case
    axes = {
        axis
        for recipe in recipes_of(trial.case).values()
        for point in recipe.points
        for axis in point.at
        if axis in trial.case.dims
    }
    for axis in sorted(axes):
        for path in _sizes(trial.case, population):
            for smaller in _smaller_than(trial.get(path)):
                shrunk = with_value(trial.case, path, smaller)
                size = shrunk.dims[axis]
                if any(trial.accept(case) for case in replaced(shrunk, axis=axis, size=size)):
                    break
    return trial.case != before


def _sizes(case: Case, population: str) -> list[tuple[int | str, ...]]:
    sizes: list[tuple[int | str, ...]] = [("dims", name) for name in case.dims]
    sizes += [
        ("transforms", index, "values", "count")
        for index, data in enumerate(case.transforms)
        if data.name == population
    ]
    return sizes


def _smaller_than(size: object) -> list[int]:
    assert isinstance(size, int)
    return sorted({1, 2, 3, 4, size // 2, size - 1} & set(range(1, size)))


def witnesses_over_tokens(case: Case) -> Iterator[Case]:
    """Yield `case` with few witnesses over the tokens of each tensor, and ones elsewhere."""
    plain = case
    for name in recipes_of(case):
        plain = with_recipe(plain, name, Recipe(kind="ones"))
    longest = max(sequence.length for sequence in case.sequences)
    for name in case.data:
        target = _Target(name=name, axis=TOKENS, size=longest)
        for places in triples(longest)[:_TRIES_SMALLER]:
            yield _with_points(plain, target, tuple(zip(places, SIGNED, strict=True)))


def _places(size: int, count: int) -> list[tuple[int, ...]]:
    last, middle = size - 1, size // 2
    chosen: dict[int, list[tuple[int, ...]]] = {
        1: [(last,), (0,)],
        2: [(0, last), (last, 0)],
        3: [
            (0, last, middle),
            (0, middle, last),
            (middle, last, 0),
            (0, 1, last),
            (1, last, 0),
            (0, last, 1),
            (1, middle, 0),
            (0, last, last - 1),
            (middle, middle + 1, 0),
            (0, middle, middle + 1),
        ],
    }
    return [places for places in chosen[count] if len(set(places)) == count and max(places) <= last]


def _targets(trial: Trial) -> list[_Target]:
    """Return tensors and axes, those that are summed over first."""
    case, signature = trial.case, trial.signature
    arguments = {argument.name: argument for argument in _with_gradients(signature)}
    contracted = set(signature.contracted_dims)
    failing = trial.outcome.mismatches[0].first.sequence_id if trial.outcome.mismatches else -1
    lengths = {sequence.id: sequence.length for sequence in case.sequences}
    tokens = lengths.get(failing, max(lengths.values()))
    found = []
    for name in recipes_of(case):
        argument = arguments.get(name)
        if argument is None:
            continue
        found += [
            _Target(name=name, axis=dim.text, size=dim.size(case.dims))
            for dim in reversed(argument.free_dims)
        ]
        if argument.token_axis is not None and signature.sequence_wise:
            found.append(_Target(name=name, axis=TOKENS, size=tokens))
    wide = [target for target in found if target.size >= 2]
    # Sequence-wise kernels sum over tokens more often than over free dimensions.
    return sorted(
        wide,
        key=lambda target: (
            target.axis not in contracted and not (target.axis == TOKENS and not contracted),
            target.axis != TOKENS if signature.sequence_wise else target.axis == TOKENS,
        ),
    )


def _with_gradients(signature: Signature) -> list[Argument]:
    outputs = [attrs.evolve(output, name=f"d{output.name}") for output in signature.judged_outputs]
    return [*signature.arguments, *outputs]


def _witnesses(case: Case, target: _Target) -> Iterator[Case]:
    for rest in ("ones", "zeros") if target.axis == TOKENS else ("ones",):
        plain = case
        for name in recipes_of(case):
            plain = with_recipe(plain, name, Recipe(kind=rest))
        for crowd, peak in _CROWDS:
            for place in dict.fromkeys((0, target.size - 1, target.size // 2)):
                values = ((None, crowd), (place, peak))
                yield _with_points(plain, target, values)
        for places in triples(target.size)[:_TRIES_AT_SIZE]:
            yield _with_points(plain, target, tuple(zip(places, SIGNED, strict=True)))
        if target.axis not in case.dims:
            continue
        for size in _SMALLER:
            if size < target.size:
                smaller = attrs.evolve(plain, dims={**case.dims, target.axis: size})
                for places in triples(size)[:_TRIES_SMALLER]:
                    yield _with_points(smaller, target, tuple(zip(places, SIGNED, strict=True)))


def _with_points(case: Case, target: _Target, values: tuple[tuple[int | None, float], ...]) -> Case:
    points = tuple(
        Point(at={} if place is None else {target.axis: place}, value=value.hex())
        for place, value in values
    )
    return with_recipe(case, target.name, Recipe(kind="explicit", points=points))


def triples(size: int) -> list[tuple[int, int, int]]:
    """Return places of the two large numbers and of the small one, the most telling first."""
    last, middle = size - 1, size // 2
    first = [
        (0, last, middle),
        (0, middle, 1),
        (0, 1, last),
        (0, last, 1),
        (0, middle, last),
        (middle, last, 0),
        (0, 2, 1),
        (1, last, 0),
        (0, last, last - 1),
    ]
    landmarks = (
        list(range(size))
        if size <= _SMALL
        else sorted(
            {0, 1, 2, size // 4, (size - 1) // 2, middle, middle + 1, size - 2, last}
            & set(range(size))
        )
    )
    others = [places for places in permutations(landmarks, 3) if places[0] < places[1]]
    # A fixed shuffle: neighbours in the list of permutations tell much the same.
    others.sort(key=lambda places: hash((17, *places)))
    distinct = [places for places in first if len({*places}) == 3 and max(places) < size]
    return list(dict.fromkeys([*distinct, *others]))

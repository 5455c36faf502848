"""Prove that a case is minimal: judge its neighbours, and say which pass and what is free.

A neighbour that still fails is a smaller case: it is taken, and the caller shrinks on.
"""

from collections.abc import Sequence

from biprop.case import Case, value_at, with_value
from biprop.errors import BipropError
from biprop.judgment import Claim, ClaimValue, Proof
from biprop.layout.records import FILLS
from biprop.minimize.edits import recipes_of
from biprop.minimize.trial import Trial
from biprop.signature.roles import has_contexts

__all__ = ["prove"]

Path = tuple[int | str, ...]
_OTHER_SEEDS = (1, 2, 3)


def prove(trial: Trial) -> Proof | None:
    """Return the proof; None where a smaller neighbour failed too and was taken."""
    needed = []
    complete = True
    for path in _removable(trial.case):
        verdict = _judge(trial, path, None)
        if verdict is None:
            complete = complete and not trial.is_spent
        elif verdict:
            if trial.put(path, None):
                return None
        else:
            needed.append(Claim(path=path, others=(None,)))
    numbers: list[tuple[Path, Sequence[ClaimValue]]] = [
        (path, _below(trial.case, path, low)) for path, low in _numbers(trial.case)
    ]
    if has_contexts(trial.signature):
        numbers += _cuts(trial.case)
    for path, others in numbers:
        passing = []
        for value in others:
            verdict = _judge(trial, path, value)
            if verdict is None:
                complete = complete and not trial.is_spent
            elif not verdict:
                passing.append(value)
            elif trial.put(path, value):
                return None
        if passing:
            needed.append(Claim(path=path, value=_plain(trial.case, path), others=tuple(passing)))
    free = _free(trial)
    # What was judged before the budget ended may cover all of this by chance, but not what led
    # here.
    complete = complete and not trial.is_spent
    return Proof(needed=tuple(needed), free=free, complete=complete, runs=trial.runs)


def _judge(trial: Trial, path: Path, value: ClaimValue) -> bool | None:
    """Return whether the cause stays with another value; None where it could not be judged."""
    try:
        candidate = with_value(trial.case, path, value)
    except BipropError:
        return None
    if trial.outcome_of(candidate) is None:
        return None
    return trial.keeps_cause(candidate)


def _removable(case: Case) -> list[Path]:
    paths: list[Path] = [("transforms", index) for index in range(len(case.transforms))]
    if len(case.sequences) > 1:
        paths += [("sequences", index) for index in range(len(case.sequences))]
    for group, recipes in (("data", case.data), ("policy_state", case.policy_state)):
        for name, recipe in recipes.items():
            count = len(recipe.points)
            paths += [(group, name, "points", index) for index in range(count) if count > 1]
    return paths


def _numbers(case: Case) -> list[tuple[Path, int]]:
    """Return every structural number and its smallest value."""
    found: list[tuple[Path, int]] = [(("dims", name), 1) for name in case.dims]
    for index in range(len(case.sequences)):
        found += [
            (("sequences", index, "length"), 1),
            (("sequences", index, "prompt_length"), 0),
            (("sequences", index, "position_start"), 0),
        ]
    found.append((("shared_prefix",), 0))
    for index, data in enumerate(case.transforms):
        for name, value in data.values.items():
            path: Path = ("transforms", index, "values", name)
            if type(value) is int and name not in {"seed", "scatter"}:
                found.append((path, 0))
    return found


def _cuts(case: Case) -> list[tuple[Path, Sequence[ClaimValue]]]:
    """Return the cuts of queries with what is judged in their place: one of them a token earlier.

    They say where decoding begins, so that the one before must pass.
    """
    found: list[tuple[Path, Sequence[ClaimValue]]] = []
    for index, data in enumerate(case.transforms):
        cuts = data.values.get("cuts")
        if isinstance(cuts, tuple):
            earlier = [
                (*cuts[:place], cut - 1, *cuts[place + 1 :])
                for place, cut in enumerate(cuts)
                if cut - 1 > (cuts[place - 1] if place else 0)
            ]
            found.append((("transforms", index, "values", "cuts"), earlier))
    return found


def _below(case: Case, path: Path, low: int) -> list[int]:
    """Return the smaller values to judge: the next, and the next power of two."""
    value = value_at(case, path)
    assert isinstance(value, int)
    if value <= low:
        return []
    power = 1 << (value - 1).bit_length() - 1 if value > 1 else 0
    return sorted({value - 1, *([power] if low <= power < value else [])})


def _plain(case: Case, path: Path) -> ClaimValue:
    value = value_at(case, path)
    assert isinstance(value, (int, str, tuple))
    return value


def _free(trial: Trial) -> tuple[Claim, ...]:
    """Return the places where every other value that was judged keeps the cause."""
    case = trial.case
    places: list[tuple[Path, tuple[ClaimValue, ...]]] = []
    if any(
        recipe.kind not in {"zeros", "ones", "explicit"} for recipe in recipes_of(case).values()
    ):
        places.append((("seed",), tuple(seed for seed in _OTHER_SEEDS if seed != case.seed)))
    for index, data in enumerate(case.transforms):
        for name, value in data.values.items():
            path: Path = ("transforms", index, "values", name)
            if name in {"seed", "scatter"} and value:
                places.append((path, tuple(seed for seed in _OTHER_SEEDS if seed != value)))
            elif name == "fill":
                places.append((path, tuple(fill for fill in FILLS[:3] if fill != value)))
    claims = []
    for path, others in places:
        if all(_judge(trial, path, other) for other in others):
            claims.append(Claim(path=path, value=_plain(case, path), others=others))
    return tuple(claims)

"""Other data for a smaller structure: what a list of designs shows where the present data do not.

Values that show a difference at one length or width may hide it at the next smaller one. The list
is that of the exhaustive search (`biprop.minimize.designs`).
"""

from collections.abc import Iterator

import attrs

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.minimize.designs import designs
from biprop.minimize.edits import find, with_cuts_moved, with_length
from biprop.minimize.trial import Trial
from biprop.transforms import SplitBatch

__all__ = ["redesign"]

_ONES = Recipe(kind="ones")


def redesign(trial: Trial, *, constants: tuple[int, ...], runs_max: int) -> bool:
    """Try smaller structures with data of their own; return whether any was taken.

    Args:
        trial: Holds the best case.
        constants: Sizes that the target's source mentions, ascending.
        runs_max: Cases that may be judged for this.
    """
    before = trial.case
    stop = trial.runs + runs_max
    moved = True
    while moved:
        moved = any(
            trial.accept(candidate)
            for structure in _smaller(trial.case, constants)
            for candidate in designs(trial.signature, _plain(structure))
            if not trial.is_spent and trial.runs < stop
        )
    return trial.case != before


def _plain(case: Case) -> Case:
    return attrs.evolve(
        case,
        seed=0,
        data=dict.fromkeys(case.data, _ONES),
        policy_state=dict.fromkeys(case.policy_state, _ONES),
    )


def _smaller(case: Case, constants: tuple[int, ...]) -> Iterator[Case]:
    """Yield structures with one size at a constant of the target, or with fewer tokens."""
    for name, size in case.dims.items():
        for smaller in (constant for constant in constants if constant < size):
            yield attrs.evolve(case, dims={**case.dims, name: smaller})
    for index, sequence in enumerate(case.sequences):
        length = sequence.length
        for shorter in sorted({2, 3, length - 1} & set(range(1, length))):
            moved = with_length(case, index, shorter)
            yield moved
            if find(case, SplitBatch) is not None:
                # A cut before the last token stays there, as in decode.
                yield with_cuts_moved(moved, length - shorter)

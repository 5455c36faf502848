"""Minimise a failing case: the order of the passes, the budget, and the confirmation.

Works on records alone, with a judge as a callable: kernels run wherever the caller has them run.
What is smaller says `biprop.minimize.cost`.
"""

import time
from collections.abc import Callable
from functools import partial

import attrs

from biprop.case import Case
from biprop.errors import CaseError
from biprop.judgment import Cause, Outcome, Proof
from biprop.minimize.attention_points import find_attention_witness
from biprop.minimize.edits import normalised
from biprop.minimize.integers import landmarks_with
from biprop.minimize.points import find_witness, has_points, replace_points
from biprop.minimize.proof import prove
from biprop.minimize.recipes import shrink_points, shrink_recipes, shrink_support
from biprop.minimize.redesign import redesign
from biprop.minimize.structure import finish_structure, shrink_structure
from biprop.minimize.trades import exchange, trade_sizes
from biprop.minimize.trial import Judge, Legal, NonZeros, Trial
from biprop.signature import Signature
from biprop.signature.forms import Forms
from biprop.signature.roles import has_contexts
from biprop.transforms import class_of, transforms_of

__all__ = ["Minimised", "classes_of", "minimise"]

_ROUNDS = 3
_WITNESS_RUNS = 200
_SUPPORT_RUNS = 400
_REDESIGN_RUNS = 200


@attrs.frozen(kw_only=True)
class Minimised:
    """The smallest case that was reached.

    Attributes:
        case: Fails with the cause of the case that it came from.
        outcome: Of judging it; its cause names the classes of transforms that are left.
        proof: Which neighbours pass.
        runs: Cases judged.
        seconds: By the clock that was given, wall time by default.
    """

    case: Case
    outcome: Outcome
    proof: Proof
    runs: int
    seconds: float


def minimise(
    case: Case,
    outcome: Outcome,
    *,
    judge: Judge,
    signature: Signature,
    legal: Legal,
    nonzeros: NonZeros | None = None,
    confirm: Judge | None = None,
    constants: tuple[int, ...] = (),
    budget_runs: int = 2000,
    budget_seconds: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    fit: Callable[[Case], Case] | None = None,
    forms: Forms | None = None,
) -> Minimised:
    """Return the smallest case that fails with the cause of `outcome`.

    A step is taken only if the case stays legal, the cause stays (`Cause.key`) and the declared
    cost falls. When the budget is spent the best case so far is returned, and its proof is not
    complete.

    Args:
        case: Fails.
        outcome: Of judging `case`; its rate should reach `judge` where it is NONDETERMINISTIC.
        judge: Judges a case; the same case must give the same outcome.
        signature: Forward signature of the kernel.
        legal: Says why a case is illegal, or nothing.
        nonzeros: Lists the values of a tensor; without it drawn values stay drawn.
        confirm: Judges the result with repeats and measurements; `judge` where it is left out.
        constants: Sizes that the target's source mentions.
        budget_runs: Cases that may be judged.
        budget_seconds: Seconds that may pass before the last judgment.
        clock: Seconds, from anywhere.
        fit: Makes what a smaller case must have besides; None: nothing.
        forms: Other forms of the operator, by name.

    Raises:
        CaseError: `outcome` has no cause, so there is nothing to keep.
    """
    if outcome.cause is None:
        raise CaseError("The outcome has no cause: minimise only a case that fails.")
    trial = Trial(
        case=case,
        outcome=outcome,
        key=outcome.cause.key,
        signature=signature,
        judge=judge,
        legal=legal,
        clock=clock,
        runs_max=budget_runs,
        seconds_max=budget_seconds,
        fit=fit,
        forms=forms or {},
    )
    # Written out, all numbers have a place; what it means does not change.
    trial.case = normalised(case)
    proof = _shrink(trial, tuple(sorted(constants)), nonzeros)
    return _minimised(trial, proof, _confirmed(trial, confirm))


def _minimised(trial: Trial, proof: Proof, confirmed: Outcome) -> Minimised:
    return Minimised(
        case=trial.case,
        outcome=confirmed,
        proof=attrs.evolve(proof, runs=trial.runs),
        runs=trial.runs,
        seconds=trial.seconds,
    )


def classes_of(case: Case) -> tuple[str, ...]:
    """Return the classes of a composition, each once, in order: `T1`, `T4.finite`, ..."""
    return tuple(sorted({class_of(transform) for transform in transforms_of(case)}))


def _shrink(trial: Trial, constants: tuple[int, ...], nonzeros: NonZeros | None) -> Proof:
    landmarks = landmarks_with(constants)
    # Within a tolerance no kernel is judged on values that are listed.
    is_listed = trial.case.against is None
    _settle(trial, ())
    if is_listed:
        _find_witness(trial)
        _settle(trial, ())
    for _ in range(_ROUNDS):
        before = trial.case
        _settle(trial, landmarks)
        moves = (exchange, partial(replace_points, population="AddNeighbours"), trade_sizes)
        while any(move(trial) for move in moves):
            _settle(trial, landmarks)
        if is_listed and not _find_witness(trial) and nonzeros is not None:
            shrink_support(trial, nonzeros, runs_max=_SUPPORT_RUNS)
        if has_points(trial.case):
            shrink_points(trial)
        if is_listed:
            redesign(trial, constants=constants, runs_max=_REDESIGN_RUNS)
        finish_structure(trial)
        if trial.case == before or trial.is_spent:
            break
    proof = prove(trial)
    while proof is None:
        _settle(trial, landmarks)
        proof = prove(trial)
    return proof


def _find_witness(trial: Trial) -> bool:
    """Replace the recipes by a few listed values; return whether the best case lists its values."""
    if has_contexts(trial.signature) and find_attention_witness(trial, runs_max=_WITNESS_RUNS):
        return True
    return find_witness(trial, runs_max=_WITNESS_RUNS)


def _settle(trial: Trial, landmarks: tuple[int, ...]) -> None:
    """Shrink structure and recipes to a fixed point."""
    changed = True
    while changed and not trial.is_spent:
        changed = shrink_structure(trial, landmarks=landmarks)
        changed = shrink_recipes(trial) or changed


def _confirmed(trial: Trial, confirm: Judge | None) -> Outcome:
    outcome = trial.outcome if confirm is None else confirm(trial.case)
    if outcome.cause is None or outcome.cause.key != trial.key:
        # A rare difference may hide from the last judgment; what was seen counts.
        outcome = trial.outcome
    cause = outcome.cause
    assert isinstance(cause, Cause)
    return attrs.evolve(outcome, cause=attrs.evolve(cause, transforms=classes_of(trial.case)))

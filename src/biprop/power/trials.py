"""Trials: one method on one planted kernel or twin with one seed, and the shrinking of what failed.

Everything is drawn by seed, so a trial is the same each time. Processes are no matter of this
module: `biprop.power.run` spreads trials over them.
"""

import time
from collections.abc import Iterable
from itertools import islice

import attrs
import torch

from biprop.case import Case
from biprop.judgment import Outcome
from biprop.minimize import Minimised, cost, minimise
from biprop.minimize.exhaustive import in_words
from biprop.power.benches import Bench
from biprop.power.methods import draws_of
from biprop.power.smallest import cost_by_component
from biprop.reports.power import Cell, MethodName, Shrunk, Trial, TwinTrial
from biprop.transforms import class_of, transforms_of

__all__ = ["Sought", "seek", "shrink", "trial_of", "twin_trial_of"]

# Of seconds: a report has thousands of them.
_DECIMALS = 4


@attrs.frozen(kw_only=True)
class Sought:
    """What became of cases that were judged one after the other.

    Attributes:
        case: The first that failed; None where none did.
        outcome: Of judging it.
        examples: Judged, that one included.
        launches: Launches made for them.
    """

    case: Case | None
    outcome: Outcome | None
    examples: int
    launches: int


def seek(bench: Bench, cases: Iterable[Case]) -> Sought:
    """Judge cases until one fails."""
    examples = launches = 0
    for case in cases:
        outcome = bench.judge(case)
        examples += 1
        launches += outcome.launches
        if outcome.verdict.is_violation:
            return Sought(case=case, outcome=outcome, examples=examples, launches=launches)
    return Sought(case=None, outcome=None, examples=examples, launches=launches)


def shrink(bench: Bench, case: Case, outcome: Outcome) -> Minimised:
    """Shrink a failing case as a search would."""
    seen: dict[str, Outcome] = {}

    def judge(candidate: Case) -> Outcome:
        # A verdict is sticky, as in a search.
        key = candidate.digest
        if key not in seen:
            seen[key] = bench.judge(candidate, rate=outcome.rate)
        return seen[key]

    return minimise(
        case,
        outcome,
        judge=judge,
        signature=bench.signature,
        legal=bench.legal,
        nonzeros=bench.nonzeros,
        constants=bench.space.constants,
        clock=bench.clock,
    )


def trial_of(
    bench: Bench,
    cell: Cell,
    method: MethodName,
    *,
    seed: int,
    examples: int,
    is_shrunk: bool = False,
    smallest: dict[str, object] | None = None,
) -> Trial:
    """Return the trial of one method with one seed.

    Args:
        bench: The planted kernel.
        cell: What reports call it.
        method: What draws the cases.
        seed: Of the cases, and of torch, which one planted kernel draws from.
        examples: At most.
        is_shrunk: Whether what failed is shrunk.
        smallest: Entry of `biprop.power.smallest` for the device; None where there is none.
    """
    torch.manual_seed(seed)
    start = time.monotonic()
    sought = seek(bench, islice(draws_of(method)(bench.space, seed), examples))
    seconds = _since(start)
    trial = Trial(
        method=method,
        cell=cell,
        seed=seed,
        found=sought.case is not None,
        examples=sought.examples,
        launches=sought.launches,
        seconds=seconds,
    )
    if sought.case is None or sought.outcome is None:
        return trial
    trial = attrs.evolve(
        trial, verdict=sought.outcome.verdict.value, classes=_classes_of(sought.case)
    )
    if not is_shrunk:
        return trial
    minimised = shrink(bench, sought.case, sought.outcome)
    shrunk = Shrunk(
        structure=in_words(minimised.case),
        cost=cost_by_component(cost(bench.signature, minimised.case)),
        least=cost_by_component(smallest),
        runs=minimised.runs,
        seconds=round(minimised.seconds, _DECIMALS),
    )
    return attrs.evolve(trial, classes=_classes_of(minimised.case), shrunk=shrunk)


def twin_trial_of(
    bench: Bench, cell: Cell, method: MethodName, *, seed: int, examples: int
) -> TwinTrial:
    """Return what one method with one seed says of a healthy twin."""
    torch.manual_seed(seed)
    start = time.monotonic()
    judged = rejected = alarms = 0
    for case in islice(draws_of(method)(bench.space, seed), examples):
        outcome = bench.judge(case)
        judged += 1
        rejected += bool(outcome.rejected)
        alarms += outcome.verdict.is_violation
    return TwinTrial(
        method=method,
        cell=cell,
        seed=seed,
        examples=judged,
        rejected=rejected,
        false_alarms=alarms,
        seconds=_since(start),
    )


def _since(start: float) -> float:
    return round(time.monotonic() - start, _DECIMALS)


def _classes_of(case: Case) -> tuple[str, ...]:
    return tuple(sorted({class_of(transform) for transform in transforms_of(case)}))

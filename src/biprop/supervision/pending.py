"""Asking ahead: cases are given to a judge now, and their outcomes taken later.

A child judges in a process of its own, so whoever asks can draw the next cases meanwhile. Asked for
one thing at a time: what is pending is taken, or dropped, before anything else is asked of its
judge.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import attrs

from biprop.case import Case
from biprop.judgment import Outcome
from biprop.relations import JudgeOptions
from biprop.supervision.records import Judge

__all__ = ["AheadJudge", "Pending", "Steps", "begin", "finished", "pending_of"]

Result = TypeVar("Result")
# What is done until an answer must be waited for, then after each wait, in pauses of a generator.
Steps = Generator[None, None, Result]


@attrs.frozen(kw_only=True, eq=False)
class Pending:
    """Cases that are being judged.

    Attributes:
        cases: One, or the layouts of a set.
        take: Waits for their outcomes and returns them, once; raises what judging raises.
        drop: Ends what judges them, if they were not taken: nobody wants to know any more.
    """

    cases: tuple[Case, ...]
    take: Callable[[], tuple[Outcome, ...]]
    drop: Callable[[], None]


@runtime_checkable
class AheadJudge(Protocol):
    """A `Judge` that judges while its caller does something else."""

    def begin(self, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
        """Have cases judged, as `judge` judges one and `judge_set` several.

        Args:
            cases: One, or layouts of one case.
            options: One for each.

        Raises:
            BipropError: They cannot be judged.
        """


def begin(judge: Judge, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
    """Have cases judged: meanwhile where the judge can do that, else before this returns."""
    if isinstance(judge, AheadJudge):
        return judge.begin(cases, options)
    if len(cases) == 1:
        outcomes: tuple[Outcome, ...] = (judge.judge(cases[0], options[0]),)
    else:
        outcomes = judge.judge_set(cases, options)
    return _known(cases, outcomes)


def pending_of(cases: Sequence[Case], steps: Steps[tuple[Outcome, ...]]) -> Pending:
    """Do the steps up to the first wait, and leave the others to whoever takes the outcomes."""
    try:
        next(steps)
    except StopIteration as end:
        return _known(cases, end.value)
    return Pending(cases=tuple(cases), take=partial(finished, steps), drop=steps.close)


def finished(steps: Steps[Result]) -> Result:
    """Do all steps that are left, and return what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def _known(cases: Sequence[Case], outcomes: tuple[Outcome, ...]) -> Pending:
    return Pending(cases=tuple(cases), take=lambda: outcomes, drop=lambda: None)

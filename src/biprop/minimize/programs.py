"""Shrink a program: fewer operations, then smaller ones, a smaller cache, simpler data.

Candidates are made by `biprop.minimize.program_moves` and `program_exchanges`; here they are
judged, and taken where the cause stays. Each operation is tried without first of all (delta
debugging); where none can go, sequences begin early, two operations are made one, and one sequence
takes the place of two. Where nothing of that leaves out an operation, other data are given a chance
to show the defect without it, and other operations to make up for it. Data get simple last, as they
multiply no work of people who read, and simple ones show less.
"""

from collections.abc import Callable, Iterable
from time import perf_counter

import attrs

from biprop.judgment import Verdict
from biprop.kvcache.converting import program_digest
from biprop.kvcache.records import Append, Evict, Fork, Generate, Op, Program, ProgramOutcome
from biprop.minimize.program_edits import reshaped, tidied, tightened, without
from biprop.minimize.program_exchanges import exchanges
from biprop.minimize.program_moves import (
    cost_of,
    data_moves,
    earlier,
    merges,
    number_moves,
    other_data,
    renumbered,
    sequence_moves,
    shape_moves,
    simpler_ops,
)

__all__ = ["MinimisedProgram", "minimise_program"]

# Outputs of which each may show what another one does: what is stored, what attention gives, and
# what follows from that.
_VALUES = frozenset(("k", "v", "out", "lse", "logp", "token"))


@attrs.frozen(kw_only=True)
class MinimisedProgram:
    """The smallest program that was found.

    Attributes:
        program: It.
        outcome: What judging it gave.
        runs: Programs judged on the way.
        complete: Whether every step was tried; False where the budget was spent before.
    """

    program: Program
    outcome: ProgramOutcome
    runs: int
    complete: bool


def minimise_program(
    judge: Callable[[Program], ProgramOutcome],
    program: Program,
    outcome: ProgramOutcome,
    *,
    confirm: Callable[[Program], ProgramOutcome] | None = None,
    runs_max: int = 600,
    seconds_max: float = 30.0,
) -> MinimisedProgram:
    """Return a smaller program of the same cause.

    The verdict stays, and whether it takes a non-finite poison. The name of the check may change:
    it says by which operation a defect was seen, and a program with fewer operations often sees it
    by another one. Of the outputs, each of `k`, `v`, `out`, `lse`, `logp` and `token` may take the
    place of any other: what is stored wrongly gives wrong results, and which of the two is seen
    says only what was looked at first. Results are compared where a sequence goes on, what is
    stored where another one does, so that one of them may be seen in fewer operations.

    Args:
        judge: Judges a program.
        program: The finding.
        outcome: Its outcome, a violation.
        confirm: Judges the smallest program, more thoroughly than `judge` did; None: nobody does.
        runs_max: Programs judged at most.
        seconds_max: Wall time after which nothing more is begun.
    """
    search = _Search(judge, confirm, program, outcome, runs_max=runs_max, seconds_max=seconds_max)
    complete = True
    try:
        search.shrink()
    except _SpentError:
        complete = False
    if confirm is not None and search.runs:
        confirmed = confirm(search.program)
        if confirmed.verdict.is_violation:
            search.outcome = confirmed
    return MinimisedProgram(
        program=search.program, outcome=search.outcome, runs=search.runs, complete=complete
    )


class _SpentError(Exception):
    """The budget is spent."""


class _Search:
    """The smallest program so far.

    Attributes:
        program: It.
        outcome: Its outcome.
        runs: Programs judged.
    """

    def __init__(
        self,
        judge: Callable[[Program], ProgramOutcome],
        confirm: Callable[[Program], ProgramOutcome] | None,
        program: Program,
        outcome: ProgramOutcome,
        *,
        runs_max: int,
        seconds_max: float,
    ) -> None:
        assert outcome.cause is not None, "a violation has a cause"
        self._judge = judge
        # What differs from run to run may look well in few runs.
        self._again = confirm if outcome.verdict is Verdict.NONDETERMINISTIC else None
        self._wanted = _kept_of(outcome)
        self._runs_max = runs_max
        self._deadline = perf_counter() + seconds_max
        self._tried = {program_digest(program)}
        self._is_tight = False
        self.program = program
        self.outcome = outcome
        self.runs = 0

    def shrink(self) -> None:
        """Try all moves until none helps.

        Raises:
            _SpentError: The budget is spent before.
        """
        if self.outcome.step is not None:
            cut = attrs.evolve(self.program, ops=self.program.ops[: self.outcome.step + 1])
            if self.outcome.verdict is Verdict.CRASHES:
                # Nothing after it was run, and judging it again may take a worker or a minute.
                self.program = cut
                self._tried.add(program_digest(cut))
            self._takes(cut)
        self._takes(self.program)
        roomy = reshaped(self.program, block_count=2 * self.program.shape.block_count)
        self._is_tight = not self._shows(roomy)
        # Data that show much: it is the operations that people read, and data get simple later.
        self._shows(next(other_data(self.program)), keeps=True)
        exhausted: tuple[Op, ...] | None = None
        while True:
            before = cost_of(self.program)
            self._fewer_ops()
            for moves in (earlier, sequence_moves, merges, simpler_ops):
                self._any(moves)
            self._smaller_numbers()
            self._any(shape_moves)
            if len(self.program.ops) == before[0] and self.program.ops != exhausted:
                # Dear, and of use only where nothing else leaves out an operation.
                exhausted = self.program.ops
                self._fewer_with_other_data()
                self._any(exchanges)
            if len(self.program.ops) == before[0]:
                self._any(data_moves)
                self._any(renumbered)
                if cost_of(self.program) == before:
                    return

    def _takes(self, candidate: Program) -> bool:
        """Judge a candidate, and keep it if it is smaller and the cause stays."""
        candidates = [candidate]
        if self._is_tight:
            candidates.append(tightened(candidate))
        for fitting in map(tidied, candidates):
            if cost_of(fitting) < cost_of(self.program) and self._shows(fitting, keeps=True):
                return True
        return False

    def _shows(self, candidate: Program, *, keeps: bool = False) -> bool:
        """Judge a candidate that was not judged yet; say whether the cause stays."""
        digest = program_digest(candidate)
        if digest in self._tried:
            return False
        self._tried.add(digest)
        for judge in (self._judge, self._again):
            if judge is None:
                continue
            if self.runs >= self._runs_max or perf_counter() > self._deadline:
                raise _SpentError
            self.runs += 1
            outcome = judge(candidate)
            if outcome.verdict.is_violation and _kept_of(outcome) == self._wanted:
                if keeps:
                    self._keep(candidate, outcome)
                return True
        return False

    def _keep(self, candidate: Program, outcome: ProgramOutcome) -> None:
        self.program, self.outcome = candidate, outcome
        if outcome.step is not None and outcome.step + 1 < len(candidate.ops):
            # It shows earlier now.
            self._takes(attrs.evolve(candidate, ops=candidate.ops[: outcome.step + 1]))

    def _any(self, moves: Callable[[Program], Iterable[Program]]) -> None:
        """Take moves, each time from the first on, until none helps."""
        while any(self._takes(candidate) for candidate in moves(self.program)):
            pass

    def _fewer_ops(self) -> None:
        """Leave out operations: many at a time, then fewer (delta debugging)."""
        size = max(1, len(self.program.ops) // 2)
        while True:
            start, has_shrunk = 0, False
            while start < len(self.program.ops):
                places = range(start, min(start + size, len(self.program.ops)))
                if self._takes(without(self.program, places)):
                    has_shrunk = True
                else:
                    start += size
            if size > 1:
                size //= 2
            elif not has_shrunk:
                return

    def _fewer_with_other_data(self) -> None:
        """Leave out operations where other data show the defect without them."""
        place = len(self.program.ops) - 1
        while place >= 0:
            fewer = without(self.program, (place,))
            if any(self._takes(other) for other in other_data(fewer)):
                # Operations that were needed for the old data may be needless now.
                self._fewer_ops()
                place = len(self.program.ops)
            place -= 1

    def _smaller_numbers(self) -> None:
        """Lower counts and positions, one after the other."""
        place = 0
        while place < len(self.program.ops):
            which = 0
            while place < len(self.program.ops) and which < _number_count(self.program, place):
                moves = number_moves(self.program, place=place, which=which)
                if not any(self._takes(candidate) for candidate in moves):
                    which += 1
            place += 1


def _number_count(program: Program, place: int) -> int:
    op = program.ops[place]
    if isinstance(op, Append):
        return len(op.parts)
    return int(isinstance(op, (Fork, Evict, Generate)))


@attrs.frozen(kw_only=True)
class _Kept:
    """What must stay of an outcome.

    Attributes:
        verdict: A violation.
        finite: Whether its cause is.
        group: Of the output.
        what: Where there is no output: the check, or the kind of crash.
    """

    verdict: Verdict
    finite: bool
    group: str
    what: str


def _kept_of(outcome: ProgramOutcome) -> _Kept:
    cause = outcome.cause
    assert cause is not None, "a violation has a cause"
    what = "" if cause.output else str(cause.check)
    if outcome.verdict is Verdict.CRASHES:
        # How long it was waited for is no part of it.
        what = "hung" if outcome.is_hung else _kind_of(outcome.message)
    return _Kept(
        verdict=outcome.verdict,
        finite=cause.finite,
        group="values" if cause.output in _VALUES else cause.output,
        what=what,
    )


def _kind_of(message: str) -> str:
    """Return what a crash is: the class of an exception, or how a process ended."""
    return message.partition(" in stage")[0].partition(":")[0]

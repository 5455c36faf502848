"""Judges that are watched: what they judge is counted, and looked at for new behaviour.

Both judge by another judge. Stopping and the journal are the part of `biprop.campaign.log`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from biprop.campaign.facts import behaviours_of, program_behaviours_of
from biprop.campaign.log import Log
from biprop.case import Case, canonical_json
from biprop.data.recipe import Point
from biprop.judgment import Outcome, Verdict
from biprop.kvcache.converting import program_to_data
from biprop.kvcache.records import CacheReference, Program, ProgramOutcome
from biprop.operators import KernelReference
from biprop.relations import JUDGE_OPTIONS, JudgeOptions
from biprop.supervision import BrokenOffError, Description, Judge, Pending, begin
from biprop.supervision.programs import ProgramJudge

__all__ = ["WatchedJudge", "WatchedPrograms"]

_IN_KERNELS = ("launch", "compare")


class WatchedJudge:
    """A `Judge` of cases that counts into a log.

    It has a `begin` whatever it judges by: by what cannot judge meanwhile, all is judged at once.
    """

    def __init__(self, judge: Judge, log: Log) -> None:
        """Judge by `judge`, whose journal is the log's own."""
        self._judge = judge
        self._log = log
        # Of outcomes, which its ledger keeps alive: what is known already was counted before.
        self._known: set[int] = set()

    @property
    def reference(self) -> KernelReference:
        """How the kernel is found again, its signature written out."""
        return self._judge.reference

    @property
    def description(self) -> Description:
        """What the kernel is."""
        return self._judge.description

    def judge(self, case: Case, options: JudgeOptions = JUDGE_OPTIONS) -> Outcome:
        """Return the outcome of one case."""
        with self._counting((case,), (options,)):
            outcome = self._judge.judge(case, options)
        self._count(case, options, outcome)
        self._log.behaviours.settle()
        return outcome

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Return the outcome of each of several layouts of one case."""
        outcomes = self._taken(cases, options, lambda: self._judge.judge_set(cases, options))
        self._log.behaviours.settle()
        return outcomes

    def begin(self, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
        """Have one case or several layouts judged; they are counted when they are taken."""
        with self._counting(cases, options):
            pending = begin(self._judge, cases, options)
        # Of those before: whoever waits for these has nothing else to do.
        self._log.behaviours.settle()
        return attrs.evolve(pending, take=lambda: self._taken(cases, options, pending.take))

    def _taken(
        self,
        cases: Sequence[Case],
        options: Sequence[JudgeOptions],
        take: Callable[[], tuple[Outcome, ...]],
    ) -> tuple[Outcome, ...]:
        with self._counting(cases, options):
            outcomes = take()
        for one in zip(cases, options, outcomes, strict=True):
            self._count(*one)
        return outcomes

    @contextmanager
    def _counting(self, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Iterator[None]:
        """Count the first of some cases, where judging them is broken off after these."""
        try:
            yield
        except BrokenOffError as error:
            for one in zip(cases, options, error.outcomes, strict=False):
                self._count(*one)
            raise

    def _count(self, case: Case, options: JudgeOptions, outcome: Outcome) -> None:
        if id(outcome) in self._known:
            return
        self._known.add(id(outcome))
        log = self._log
        is_compared = outcome.power is not None or bool(outcome.mismatches)
        log.count(
            # What is judged to tell causes apart is no example.
            examples=int(options.measure),
            launches=outcome.launches,
            compared=len(case.sequences) if is_compared else 0,
            seconds=sum(outcome.seconds.get(part, 0.0) for part in _IN_KERNELS),
        )
        if options.measure:
            log.behaviours.add_later(behaviours_of(case, outcome))

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List the values of one tensor that are not zero; None if there are more than `limit`."""
        return self._judge.nonzeros(case, name, limit)

    def relative(self, backend: str) -> Judge:
        """Return a judge of the same operator and form under another backend; it is not watched."""
        return self._judge.relative(backend)

    def close(self) -> None:
        """Let go of the kernel."""
        self._judge.close()


class WatchedPrograms:
    """A `ProgramJudge` that counts into a log, and writes each program down before it is run."""

    def __init__(self, judge: ProgramJudge, log: Log, *, is_quick: bool = False) -> None:
        """Judge by `judge`.

        Args:
            judge: Runs programs.
            log: Where they are written.
            is_quick: Whether programs are not to be shrunk: what only shrinking asks for is
                answered with nothing, so that each program that fails stays as it is.
        """
        self._judge = judge
        self._log = log
        self._is_quick = is_quick
        self.reference: CacheReference = judge.reference
        self.provenance = judge.provenance

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return the outcome of one program."""
        if quick and self._is_quick:
            return ProgramOutcome(verdict=Verdict.VACUOUS, message="It is shrunk later.")
        log = self._log
        with log.launching(
            canonical_json(program_to_data(program)),
            kind="cache",
            reference=self.reference,
            provenance=self.provenance,
        ):
            outcome = self._judge.judge(program, fresh=fresh, quick=quick)
        if not quick:
            log.count(
                examples=1,
                launches=outcome.ops_run,
                compared=outcome.comparisons,
                seconds=outcome.seconds,
            )
            log.behaviours.add(program_behaviours_of(program, outcome))
        return outcome

    def close(self) -> None:
        """Let go of what runs it."""
        self._judge.close()

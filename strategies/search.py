"""Search one cell: draw cases, have them judged, shrink what fails, and go on after each cause.

Hypothesis draws one seed an example and stops at a failure; the failing case is minimised here, its
classes are taken out of what is drawn, and the next round goes on with the examples that are left.
Kernels run behind a `Judge` (`biprop.supervision`); people are told by `biprop.reports`. A declared
operator is run in the fixed configurations first (`biprop.strategies.fixed`). Where nothing drifts,
the same is done for what a space holds canonical runs against: accuracy first, then parity with
each other backend. On a GPU an example is one of several layouts that are judged together, as the
profile says: they differ in nothing else, and what they share is done once. There the next set is
drawn while one is judged, where the judge can be asked ahead.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import attrs
from hypothesis import given
from hypothesis import seed as with_seed

from biprop.case import Against, Case
from biprop.data.words import hash_words
from biprop.errors import BackendError, BipropError, UnsupportedError
from biprop.fixtures.records import Fixture
from biprop.generation import Lane, Space, Sweep, held_at, real_sizes
from biprop.judgment import Cause, Outcome, Verdict
from biprop.relations import JudgeOptions
from biprop.reports.records import CellReport
from biprop.strategies.findings import Failure, Findings
from biprop.strategies.fixed import FixedTally
from biprop.strategies.probing import PROBES, probe_cases
from biprop.strategies.profiles import PROFILES, Profile, search_settings
from biprop.strategies.seeded import case_of_seed, layouts_of_seed, seeds
from biprop.strategies.tally import Tally, classes_in
from biprop.strategies.verdicts import ViolationError, raise_violation
from biprop.strategies.yardsticks import fault_of_yardstick
from biprop.supervision import AheadJudge, BrokenOffError, Judge, Pending, begin

__all__ = ["Event", "InterruptedSearchError", "search"]

# Examples beyond twice what a profile says, where a class lacks evidence: few kernels do, and a
# short search of one must not end just before it. Who asks for a number gets not many more.
_MORE = 24
# Seeds tried for a case of a class with too few examples: drawing costs far less than judging.
_STEERED_DRAWS = 32
# Share of the time of a search that is left to relations A and P.
_SHARE_AGAINST = 0.2
# Times the time of a search that it may take in all, where evidence is what it lacks at the end.
_PATIENCE = 10


@attrs.frozen(kw_only=True)
class Event:
    """Something that a search wants to be seen.

    Attributes:
        kind: `example` (a case was judged), `failure` (it is about to be minimised) or `finding`.
        examples: Judged so far.
        example_count: To be judged.
        cause: Of a failure or a finding.
    """

    kind: Literal["example", "failure", "finding"]
    examples: int
    example_count: int
    cause: Cause | None = None


class InterruptedSearchError(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a search.

    Attributes:
        report: What was found before.
    """

    def __init__(self, report: CellReport) -> None:
        """Keep the report."""
        super().__init__()
        self.report = report


class _EndError(Exception):
    """A judge could not go on; its own error is kept beside it."""


class _LateError(Exception):
    """The time of a search is over."""


def search(
    judge: Judge,
    space: Space,
    *,
    device: str = "cpu",
    lane: Lane = "cpu",
    profile: Profile = PROFILES["dev"],
    max_examples: int | None = None,
    seconds_max: float | None = None,
    seed: int = 0,
    sweep: Sweep | None = None,
    has_fixed: bool = True,
    keep: Callable[[Fixture], str] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> CellReport:
    """Search a cell and report what was found.

    Args:
        judge: Judges cases of the kernel; sticky, so that a case fails again as it failed.
        space: What is drawn.
        device: Where the judge runs the kernel, for the report.
        lane: How many examples the profile gives, and how many of each class HOLDS needs.
        profile: How thorough the search is.
        max_examples: Of relation I, instead of what the profile says. Where a class lacks evidence
            and nothing was found, it is exceeded by up to a half and eight, and what the profile
            says by as many again and 24. Relations A and P get no more than it says each.
        seconds_max: After which no further example is drawn. Where nothing was found and evidence
            is lacking, cases of what lacks it are drawn until ten times as long. The first example
            always is, and what was found is still minimised. None: no limit.
        seed: The same seed draws the same cases.
        sweep: The turn that sizes are swept from; None: the first one of `seed`.
        has_fixed: Whether the fixed configurations are judged first.
        keep: Stores a fixture and returns its path; None: nothing is stored.
        on_event: Is told what happens.

    Raises:
        BipropError: The kernel returned something else than its signature says, or no longer runs.
        InterruptedSearchError: Ctrl-C; it holds the report so far.
    """
    count = profile.examples_of(lane) if max_examples is None else max_examples
    against_count = profile.examples_against_of(lane)
    return _Search(
        judge=judge,
        space=space,
        device=device,
        seed=seed,
        example_count=count,
        more_count=count + _MORE if max_examples is None else count // 2 + 8,
        against_count=against_count if max_examples is None else min(against_count, max_examples),
        seconds_max=math.inf if seconds_max is None else seconds_max,
        tally=Tally(space=space, powered_min=profile.powered_min_of(lane)),
        findings=Findings(judge=judge, space=space, profile=profile, keep=keep),
        fixed=FixedTally.of(space) if has_fixed else FixedTally(),
        layouts=profile.layouts_of(lane),
        is_ahead=profile.is_ahead_in(lane) and isinstance(judge, AheadJudge),
        sweep=sweep or Sweep(seed=seed, index=0),
        on_event=on_event,
    ).run()


@attrs.define(kw_only=True, eq=False)
class _Search:
    """One search under way; the arguments of `search`, and what was found so far."""

    judge: Judge
    space: Space
    device: str
    seed: int
    example_count: int
    more_count: int
    against_count: int
    seconds_max: float
    tally: Tally
    findings: Findings
    fixed: FixedTally
    # Cases of a set, and the turn of the first set.
    layouts: int
    sweep: Sweep
    # Whether the next set is drawn while one is judged; that one, where it was not taken yet.
    is_ahead: bool
    on_event: Callable[[Event], None] | None
    pending: Pending | None = None
    # Sets of relation I that were judged.
    sets: int = 0
    # What failed, until it was looked at: the first one is being looked at.
    failed: list[tuple[Case, Outcome, Cause]] = attrs.field(factory=list)
    failure: Failure | None = None
    error: BipropError | None = None
    seen: dict[int, Failure | None] = attrs.field(factory=dict)
    salt: int = 0
    is_over: bool = False
    # The relation A or P that is judged now, after relation I, and cases judged before it.
    phase: Against | None = None
    judged_before: int = 0
    # What stood in for the backend; empty while nothing did.
    fallback: str = ""
    start: float = 0.0
    # When the present relation was begun.
    phase_start: float = 0.0

    def run(self) -> CellReport:
        self.start = self.phase_start = start = time.monotonic()
        unsupported = ""
        try:
            self._judge_fixed()
            while not self.is_over and self._rounds_left():
                self._round()
            for against in self.space.against:
                self._hold_against(against)
        except UnsupportedError as error:
            unsupported = str(error)
        except BackendError as error:
            self.fallback = str(error)
        except KeyboardInterrupt:
            self._add_undecided()
            report = self._report(time.monotonic() - start, unsupported)
            stopped = (
                f"Stopped by Ctrl-C or SIGTERM after {report.examples} examples. {report.message}"
            )
            raise InterruptedSearchError(attrs.evolve(report, message=stopped.strip())) from None
        finally:
            if self.pending is not None:
                # Nobody is left to take it: a search that ends by itself has none.
                self.pending.drop()
        return self._report(time.monotonic() - start, unsupported)

    def _judge_fixed(self) -> None:
        """Judge the fixed configurations; one that fails is minimised as any other case is."""
        for case in self.fixed.cases():
            if self.findings.is_full or self._elapsed() >= self.seconds_max:
                return
            outcome = self._alone(case)
            self.fixed.add(case, outcome)
            self._note_failed((case,), (outcome,))
            self._take_failed()

    def _hold_against(self, against: Against) -> None:
        """Judge a relation A or P; one that failed before it leaves nothing to be said."""
        if self.findings.items:
            cause = self.findings.items[0].fixture.expect.cause
            reason = f"relation {cause.relation} fails, which is judged before it"
            names = (against.name, PROBES) if against.relation == "A" else (against.name,)
            self.tally.reasons_against.update(dict.fromkeys(names, reason))
            return
        self.phase, self.is_over, self.phase_start = against, False, time.monotonic()
        self.judged_before = self.tally.examples + self.tally.examples_against
        self.space = attrs.evolve(self.space, only=against)
        while not self.is_over and self._rounds_left():
            self._round()
        if against.relation == "A":
            self._probe(against)

    def _probe(self, accuracy: Against) -> None:
        """Judge the probes of the contract once; they are as small as they can be."""
        cases, reason = probe_cases(self.space, accuracy)
        self.tally.reasons_against[PROBES] = reason
        for case in cases:
            outcome = self._alone(case)
            self.tally.add(case, outcome)
            self._tell("example")
            if outcome.verdict.is_violation:
                self.findings.add_as_it_is(case, outcome)
                self._tell("finding", outcome.cause)

    @property
    def _is_parity(self) -> bool:
        """Whether a backend is held against another: it is not known then which side fails."""
        return self.phase is not None and bool(self.phase.backend)

    def _judged(self) -> int:
        """Return how many cases of the present relation were judged, or are being judged."""
        under_way = 0 if self.pending is None else len(self.pending.cases)
        return self.tally.examples + self.tally.examples_against - self.judged_before + under_way

    def _turn(self) -> int:
        """Return how many sets of relation I were judged, or are being judged."""
        return self.sets + (self.phase is None and self.pending is not None)

    def _rounds_left(self) -> bool:
        return not self.findings.is_full and self._judged() < self._example_count_max()

    def _example_count_max(self) -> int:
        """Return how many examples there may be: some more where a class lacks evidence."""
        if self.phase is not None:
            lacks = not self.findings.items and self.tally.lacks(self.phase)
            more = self.against_count // 2 + 4 if lacks else 0
            return self.against_count + (0 if self.tally.is_mostly_rejected else more)
        if self.findings.items or not self.tally.lacking() or self.tally.is_mostly_rejected:
            return self.example_count
        return self.example_count + self.more_count

    def _round(self) -> None:
        """Draw until a case fails, or no example is left; minimise what failed."""
        before = self._judged()
        self.seen.clear()
        count = -(-self._left() // self._layouts())
        # Hypothesis always begins with 0, which must not be the same case in every round.
        phase = () if self.phase is None else (self.phase.name,)
        words = (
            hash_words(half, self.seed & 0xFFFFFFFF, before, *phase) for half in ("high", "low")
        )
        self.salt = next(words) << 32 | next(words)

        @with_seed(self.salt)
        @search_settings(count)
        @given(seeds())
        def examples(number: int) -> None:
            self._example(number)

        try:
            examples()
        except (ViolationError, _EndError):
            # What is told is kept beside it.
            pass
        except _LateError:
            self.is_over = True
        failure = self.failure or self._take()
        if failure is not None:
            # An error since then is one of drawing, and what was drawn is dropped.
            self.failure = self.error = None
            self._minimise(failure)
            self._take_failed()
        elif self.error is not None:
            raise self.error from None
        # A round that judged nothing would be followed by others like it.
        self.is_over = self.is_over or self._judged() == before

    def _example(self, number: int) -> None:
        if self.error is None and number not in self.seen:
            # One example is always judged, however slow the start was.
            if self._judged() and time.monotonic() - self.phase_start >= self._seconds_of_phase():
                raise _LateError
            if self._judged() >= self._example_count_max():
                return
            try:
                self.seen[number] = self._judge(number)
            except BipropError as error:
                self.error = error
        if self.error is not None:
            # Of this class too there is one raise site, or Hypothesis would call it flaky.
            raise _EndError
        failure = self.seen[number]
        if failure is not None:
            self.failure = failure
            raise_violation(failure.cause, failure.cause.key)

    def _judge(self, number: int) -> Failure | None:
        """Have the set of a seed judged, and return what failed: in it, or in the one before it.

        Where sets are drawn ahead, it is taken when the next one is drawn, or the round ends.
        """
        cases = self._cases(number)
        failure = self._take()
        if failure is not None:
            # What was drawn meanwhile may fail of the same: it is drawn anew, without its classes.
            return failure
        # Less may be left by now, of what was drawn before the evidence of those taken was known.
        cases = cases[: max(0, self._left())]
        if not cases or (not cases[0].transforms and cases[0].against is None):
            # Or every class that applies was found to fail, so there is nothing left to judge.
            return None
        options = JudgeOptions(repeat_canonical=self.tally.wants_repeat_of(cases))
        with self._adding(cases):
            self.pending = begin(self.judge, cases, [options] * len(cases))
        # Of those before, while these are judged.
        self.tally.settle()
        return None if self.is_ahead else self._take()

    def _take(self) -> Failure | None:
        """Take the set that is being judged, if there is one; return what failed in it first."""
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        with self._adding(pending.cases):
            outcomes = pending.take()
        self._add(pending.cases, outcomes)
        self.sets += self.phase is None
        return self._new_failure()

    def _alone(self, case: Case) -> Outcome:
        """Have a case judged that is no part of a set."""
        try:
            return self.judge.judge(case, JudgeOptions())
        except BrokenOffError as error:
            self._note_failed((case,), error.outcomes)
            raise

    @contextmanager
    def _adding(self, cases: tuple[Case, ...]) -> Iterator[None]:
        """Add the first of some cases, where judging them is broken off after these."""
        try:
            yield
        except BrokenOffError as error:
            self._add(cases, error.outcomes)
            raise

    def _add(self, cases: tuple[Case, ...], outcomes: tuple[Outcome, ...]) -> None:
        for case, outcome in zip(cases, outcomes, strict=False):
            self.tally.add(case, outcome)
            self._tell("example")
        self._note_failed(cases, outcomes)

    def _add_undecided(self) -> None:
        """Add what failed and was not looked at: what was seen is told."""
        if self._is_parity:
            return
        for case, outcome, _ in self.failed:
            self.findings.add_undecided(case, outcome)

    def _note_failed(self, cases: tuple[Case, ...], outcomes: tuple[Outcome, ...]) -> None:
        """Keep what failed until it is looked at, should the search be broken off before."""
        self.failed += [
            (case, outcome, outcome.cause)
            for case, outcome in zip(cases, outcomes, strict=False)
            if outcome.verdict.is_violation and outcome.cause is not None
        ]

    def _new_failure(self) -> Failure | None:
        """Look at what failed until it is new; that stays the first one until it is minimised.

        Where nothing is shrunk, a hang is stored as it is: whoever shrinks it waits for it again.
        """
        is_stored = not (self.findings.profile.minimise_runs or self._is_parity)
        while self.failed:
            case, outcome, cause = self.failed[0]
            if is_stored and outcome.is_hung:
                self.findings.add_undecided(case, outcome)
                self._tell("finding", cause)
                self._exclude()
            elif (failure := self.findings.as_new(case, outcome, cause)) is not None:
                return failure
            del self.failed[0]
        return None

    def _take_failed(self) -> None:
        """Minimise all that failed, each once those before it are known."""
        while not self.findings.is_full:
            failure = self._new_failure()
            if failure is None:
                return
            self._minimise(failure)
        self.failed.clear()

    def _left(self) -> int:
        return self._example_count_max() - self._judged()

    def _layouts(self) -> int:
        """Return how many cases a set has: one where they have no layout."""
        return self.layouts if self.phase is None else 1

    def _cases(self, number: int) -> tuple[Case, ...]:
        """Return the set of a seed; late in a search, of classes with little evidence."""
        space = self._space()
        number ^= self.salt
        if self.phase is not None:
            return (self._case_against(number, space, self.phase),)
        # Of the sets of a search, one after the other takes the boundary size whose turn it is.
        turn = attrs.evolve(self.sweep, index=self.sweep.index + self._turn())
        space = attrs.evolve(space, sweep=turn)
        if number % 4 == 1:
            # Classes found to fail hide what else fails with them, so some cases show them still.
            # One that crashes is not tried again: each costs a worker.
            space = attrs.evolve(space, excluded=self.findings.exclusions(crashes_only=True))
        case = case_of_seed(number, space)
        lacking = sorted(self.tally.lacking())
        if self.findings.items or not self._is_half_over():
            lacking = []
        # In turns: one that hardly ever has power must not take the examples of the others.
        turns = self._turn() % len(lacking) if lacking else 0
        lacking = lacking[turns:] + lacking[:turns]
        for step in range(1, _STEERED_DRAWS if lacking else 1):
            if any((case.judged, name) == lacking[0] for name in classes_in(case)):
                break
            case = case_of_seed(number ^ (step << 64), space)
        shown = classes_in(case)
        wanted = [name for judged, name in lacking if judged == case.judged and name not in shown]
        count = min(self.layouts, self._left())
        return layouts_of_seed(number, space, case, count, wanted=wanted)

    def _case_against(self, number: int, space: Space, against: Against) -> Case:
        """Return a case of relation A or P, of what was judged least often."""
        wanted = self.tally.judged_least(against)
        case = case_of_seed(number, space)
        for step in range(1, _STEERED_DRAWS):
            if case.judged == wanted:
                break
            case = case_of_seed(number ^ (step << 64), space)
        return case

    def _space(self) -> Space:
        """Return what the next case is drawn from: now and then, one of a real model's sizes."""
        every = self.space.limits.real_every
        real = real_sizes(self.space)
        turn = self._turn() if self.phase is None else self._judged()
        if not real or turn % every:
            return self.space
        # In turns, so that each of them is tried; the first example of all is one of them.
        return held_at(self.space, real[turn // every % len(real)])

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _seconds_of_phase(self) -> float:
        """Return the seconds after which the present relation is judged no more."""
        relations = self.space.against
        if self.phase is not None:
            share, lacks = _SHARE_AGAINST / len(relations), self.tally.lacks(self.phase)
        else:
            share = 1 - _SHARE_AGAINST if relations else 1.0
            lacks = bool(self.tally.lacking())
        waits = lacks and not self.findings.items and not self.tally.is_mostly_rejected
        return self.seconds_max * share * (_PATIENCE if waits else 1)

    def _is_half_over(self) -> bool:
        is_late = self._elapsed() >= self.seconds_max / 2
        return is_late or self._judged() >= self.example_count // 2

    def _minimise(self, failure: Failure) -> None:
        self._tell("failure", failure.cause)
        fault = "" if self.phase is None else self._fault_of_yardstick(self.phase)
        if fault and self.phase is not None:
            self.tally.reasons_against[self.phase.name] = fault
            self.is_over = True
            self.failed.clear()
            return
        counted = self.findings.count
        try:
            is_new = self.findings.minimise(failure)
        finally:
            if self.findings.count > counted:
                del self.failed[0]
        if is_new:
            self._tell("finding", failure.cause)
        self._exclude()

    def _exclude(self) -> None:
        """Draw no more what was found."""
        excluded = self.findings.exclusions(crashes_only=False)
        self.space = attrs.evolve(self.space, excluded=excluded)

    def _fault_of_yardstick(self, against: Against) -> str:
        """Return why another backend is no yardstick; empty where it is, or is none."""
        if not against.backend:
            return ""
        return fault_of_yardstick(self.judge, self.space, against.backend, seed=self.seed)

    def _tell(
        self, kind: Literal["example", "failure", "finding"], cause: Cause | None = None
    ) -> None:
        if self.on_event is not None:
            examples = self.tally.examples + self.tally.examples_against
            wanted = self.example_count + self.against_count * len(self.space.against)
            self.on_event(
                Event(
                    kind=kind,
                    examples=examples,
                    example_count=max(wanted, examples),
                    cause=cause,
                )
            )

    def _report(self, seconds: float, unsupported: str) -> CellReport:
        tally = self.tally
        verdict, message = self._verdict(unsupported)
        shares = tally.power_shares
        declaration = self.space.declaration
        return CellReport(
            reference=self.judge.reference,
            dtype=self.space.dtype,
            direction=self.space.direction,
            device=self.device,
            verdict=verdict,
            findings=tuple(self.findings.items),
            examples=tally.examples + tally.examples_against,
            rejected=tally.rejected,
            launches=tally.launches + self.findings.launches + self.fixed.launches,
            classes=tally.class_counts(),
            power_kind="value" if tally.power_kind == "value" else "order" if shares else "",
            power_share=sum(shares) / len(shares) if shares else 0.0,
            seconds=seconds,
            seed=self.seed,
            message=message,
            actual_backend=tally.actual_backend,
            chain_index=None if declaration is None else declaration.chain_index,
            owner=self.judge.description.owner,
            largest=tally.largest,
            judged=tally.judged_counts(),
            fixed=self.fixed.count(),
            swept=self.sweep.index + self.sets,
        )

    def _verdict(self, unsupported: str) -> tuple[Verdict, str]:
        tally = self.tally
        if self.fallback:
            # First of all: what else was found is not the backend's own.
            return Verdict.FALLBACK, self.fallback
        if self.findings.items:
            return self.findings.items[0].outcome.verdict, ""
        if unsupported:
            return Verdict.UNSUPPORTED, unsupported
        if tally.examples and tally.is_mostly_rejected:
            return Verdict.VACUOUS, (
                f"The target raised alone on {tally.rejected} of {tally.examples} cases: restrict "
                f"its dimensions with --dims; its first message was: {tally.rejection}"
            )
        if not tally.applies():
            return Verdict.VACUOUS, "No transform class applies: ask for others, or declare more."
        lacking = tally.lacking_text()
        return (Verdict.VACUOUS, lacking) if lacking else (Verdict.HOLDS, "")

"""Findings: tell new causes from known ones, minimise them, and say what to draw no more.

A cause is a verdict, an output and the transform classes that are left after minimising. Which
cases are drawn says `biprop.strategies.search`; how a case is minimised, `biprop.minimize`.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import attrs

from biprop.case import Case
from biprop.errors import CaseError
from biprop.fixtures.records import Fixture, make_fixture
from biprop.generation import Exclusion, Space, illegal_in, rescaled, wanted_classes
from biprop.judgment import Cause, Outcome, Proof, Verdict
from biprop.minimize import classes_of, minimise
from biprop.relations import JudgeOptions
from biprop.reports.records import Finding
from biprop.strategies.profiles import Profile
from biprop.strategies.tally import classes_in
from biprop.supervision import Judge
from biprop.transforms import class_of, transforms_of

__all__ = ["Failure", "Findings"]

# Findings of one search; a kernel that breaks in more ways is told enough.
_COUNT_MAX = 8


@attrs.frozen(kw_only=True, eq=False)
class Failure:
    """A case that fails in a new way, and the classes without any of which it would not.

    Attributes:
        case: The case, without transforms of other classes.
        outcome: Of judging it.
        cause: Its cause, before minimising.
        classes: Its classes.
    """

    case: Case
    outcome: Outcome
    cause: Cause
    classes: frozenset[str]

    @property
    def exclusion(self) -> Exclusion:
        """What to draw no more, once it is minimised."""
        return Exclusion(judged=self.case.judged, classes=self.classes)


@attrs.define(kw_only=True, eq=False)
class Findings:
    """The findings of one search.

    Attributes:
        judge: Judges cases.
        space: Of the kernel, for legality and signatures.
        profile: Budgets.
        keep: Stores a fixture and returns its path; None: nothing is stored.
        items: In the order in which they were found.
        launches: Launches made to tell causes apart; those of minimising are in each proof.
        is_hopeless: Whether a case fails without any transform, so that every further one would.
    """

    judge: Judge
    space: Space
    profile: Profile
    keep: Callable[[Fixture], str] | None = None
    items: list[Finding] = attrs.field(factory=list)
    launches: int = 0
    is_hopeless: bool = False
    # Sets of classes that were minimised to those of a finding: another way to the same cause.
    _aliases: dict[tuple[str, Exclusion], int] = attrs.field(factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether the search need not go on."""
        return self.is_hopeless or len(self.items) >= _COUNT_MAX

    @property
    def count(self) -> int:
        """How many failures were found to be one of the items."""
        return sum(finding.count for finding in self.items)

    def as_new(self, case: Case, outcome: Outcome, cause: Cause) -> Failure | None:
        """Return the failure with as few classes as it needs; None if they were found already."""
        known = [
            index
            for index, finding in enumerate(self.items)
            if _cause(finding).key == cause.key and finding.fixture.case.judged == case.judged
        ]
        if known:
            found = {name for index in known for name in _transforms(self.items[index])}
            rest = _without(case, found)
            again = self._still_fails(rest, cause)
            if again is None:
                present = set(classes_in(case))
                covering = (i for i in known if set(_transforms(self.items[i])) <= present)
                self._count_again(next(covering, known[0]))
                return None
            case, outcome = rest, again
        for name in classes_in(case):
            fewer = _without(case, {name})
            again = self._still_fails(fewer, cause)
            if again is not None:
                case, outcome = fewer, again
        failure = Failure(
            case=case, outcome=outcome, cause=cause, classes=frozenset(classes_in(case))
        )
        alias = self._aliases.get((cause.key, failure.exclusion))
        if alias is not None:
            self._count_again(alias)
            return None
        return failure

    def _still_fails(self, case: Case, cause: Cause) -> Outcome | None:
        """Return the outcome of a case that has the cause; None where it has not."""
        if not case.transforms or illegal_in(self.space, case):
            return None
        outcome = self.judge.judge(case, JudgeOptions(measure=False))
        self.launches += outcome.launches
        same = outcome.cause is not None and outcome.cause.key == cause.key
        return outcome if same else None

    def _count_again(self, index: int) -> None:
        finding = self.items[index]
        self.items[index] = attrs.evolve(finding, count=finding.count + 1)

    def minimise(self, failure: Failure) -> bool:
        """Minimise a failure and add it; return whether its cause is new.

        Raises:
            KeyboardInterrupt: Ctrl-C, once the smallest case so far is added.
        """
        space = self.space
        # Other ways to break it count only where they were asked for: a reader who asked for
        # neighbours must not be sent to look for a fault of padding.
        allowed = {*wanted_classes(space.classes), *classes_of(failure.case)}

        def legal(case: Case) -> str:
            others = [name for name in classes_of(case) if name not in allowed]
            return f"Class {others[0]} is not wanted." if others else illegal_in(space, case)

        judged = _Judged(judge=self.judge, rate=failure.outcome.rate)
        smallest = minimise(
            failure.case,
            failure.outcome,
            judge=judged.quickly,
            signature=space.signature,
            legal=legal,
            nonzeros=self.judge.nonzeros,
            confirm=judged.carefully,
            constants=self.space.constants,
            # The first finding says most; further ones may not cost many times as much.
            budget_runs=self.profile.minimise_runs // (4 if self.items else 1),
            budget_seconds=self._seconds(failure) / (4 if self.items else 1),
            clock=judged.clock,
            fit=partial(_fitted, space),
            forms=space.forms,
        )
        fixture = make_fixture(
            reference=self.judge.reference,
            case=smallest.case,
            outcome=smallest.outcome,
            proof=smallest.proof,
            provenance=self.judge.description.provenance,
        )
        is_new = self._add(failure, fixture, smallest.outcome)
        if judged.is_stopped:
            raise KeyboardInterrupt
        return is_new

    def add_as_it_is(self, case: Case, outcome: Outcome) -> None:
        """Add the finding of a case that is not shrunk, since its values are what it is about."""
        fixture = make_fixture(
            reference=self.judge.reference,
            case=case,
            outcome=outcome,
            proof=Proof(runs=1),
            provenance=self.judge.description.provenance,
        )
        path = self.keep(fixture) if self.keep is not None else ""
        self.items.append(Finding(fixture=fixture, outcome=outcome, path=path))

    def add_undecided(self, case: Case, outcome: Outcome) -> None:
        """Add the finding of a case that nobody looks at any closer.

        Where it may be what was found already, it counts as that.
        """
        assert outcome.cause is not None, "a violation has a cause"
        cause = attrs.evolve(outcome.cause, transforms=classes_of(case))
        known = [
            index
            for index, finding in enumerate(self.items)
            if _cause(finding).key == cause.key and finding.fixture.case.judged == case.judged
        ]
        if known:
            self._count_again(known[0])
        else:
            self.add_as_it_is(case, attrs.evolve(outcome, cause=cause))

    def _seconds(self, failure: Failure) -> float:
        # Each step of shrinking a crash may cost a worker, seconds long, so that the smallest case
        # would be waited for longer than it is worth; a larger one replays as well.
        share = 1 / 3 if failure.outcome.verdict is Verdict.CRASHES else 1
        return self.profile.minimise_seconds * share

    def _add(self, failure: Failure, fixture: Fixture, outcome: Outcome) -> bool:
        """Add a finding, or count it where its classes shrank to those of an earlier one."""
        cause = fixture.expect.cause
        same = [
            index
            for index, finding in enumerate(self.items)
            if _cause(finding) == cause and finding.fixture.case.judged == failure.case.judged
        ]
        if same:
            self._count_again(same[0])
        else:
            path = self.keep(fixture) if self.keep is not None else ""
            self.items.append(Finding(fixture=fixture, outcome=outcome, path=path))
        self._aliases[cause.key, failure.exclusion] = same[0] if same else len(self.items) - 1
        if not cause.transforms and cause.relation == "I":
            # It fails without any transform, so every further case would.
            self.is_hopeless = True
        return not same

    def exclusions(self, *, crashes_only: bool) -> tuple[Exclusion, ...]:
        """Return what is not drawn any more: classes that fail, as drawn and as minimised."""
        found = [
            Exclusion(judged=item.fixture.case.judged, classes=frozenset(_transforms(item)))
            for item in self.items
            if not crashes_only or item.outcome.verdict is Verdict.CRASHES
        ]
        drawn = [
            exclusion
            for (_, exclusion), index in self._aliases.items()
            if not crashes_only or self.items[index].outcome.verdict is Verdict.CRASHES
        ]
        return tuple(dict.fromkeys(item for item in (*found, *drawn) if item.classes))


@attrs.define(kw_only=True, eq=False)
class _Judged:
    """Judges the cases of minimising; Ctrl-C ends the budget instead of losing what was reached.

    Attributes:
        judge: Judges cases.
        rate: Share of differing runs seen before.
        is_stopped: Whether Ctrl-C was pressed.
    """

    judge: Judge
    rate: float | None
    is_stopped: bool = False

    def quickly(self, case: Case) -> Outcome:
        """Judge without measuring power."""
        return self._outcome(case, JudgeOptions(rate=self.rate, measure=False))

    def carefully(self, case: Case) -> Outcome:
        """Judge the result with all measurements."""
        return self._outcome(case, JudgeOptions(rate=self.rate))

    def clock(self) -> float:
        """Return the time, of which none is left after Ctrl-C."""
        return math.inf if self.is_stopped else time.monotonic()

    def _outcome(self, case: Case, options: JudgeOptions) -> Outcome:
        message = ""
        if not self.is_stopped:
            try:
                return self.judge.judge(case, options)
            except CaseError as error:
                message = str(error)
            except KeyboardInterrupt:
                self.is_stopped = True
        return Outcome(verdict=Verdict.VACUOUS, message=message)


def _cause(finding: Finding) -> Cause:
    return finding.fixture.expect.cause


def _fitted(space: Space, case: Case) -> Case:
    """Return a case of relation A or P with the magnitudes that its sizes ask for."""
    if case.against is None:
        return case
    return rescaled(space.signature, case, backward_signature=space.backward_signature)


def _transforms(finding: Finding) -> tuple[str, ...]:
    return _cause(finding).transforms


def _without(case: Case, classes: set[str]) -> Case:
    """Return the case without some classes, and without what has no effect then."""
    if "T1" in classes and case.judged != "parameter_gradients":
        classes = classes | {"T2", "T3"}
    kept = tuple(
        data
        for data, transform in zip(case.transforms, transforms_of(case), strict=True)
        if class_of(transform) not in classes
    )
    return attrs.evolve(case, transforms=kept)

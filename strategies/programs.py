"""Search one cache: write programs, have them judged, shrink what fails, and go on.

The machine (`biprop.strategies.cache_machine`) writes a program as Hypothesis steps through its
rules; when it is complete it is judged as a whole, in a worker, so that a cache that crashes or
hangs is a verdict. Rounds are short: after ten examples Hypothesis makes five altered copies of
each new one, so that most programs of a long round would be nearly the same. Where a situation of
`COVERAGE` was reached too rarely, programs are steered to it.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import attrs
from hypothesis import seed as with_seed
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from biprop.case import Dtype
from biprop.data.words import hash_words
from biprop.errors import BipropError, CaseError, UnsupportedError
from biprop.fixtures.programs import ProgramFixture, ProgramProof, make_program_fixture
from biprop.generation import Lane
from biprop.judgment import Verdict
from biprop.kvcache.converting import program_digest
from biprop.kvcache.records import COVERAGE, Append, Decode, Op, Program, ProgramOutcome
from biprop.kvcache.shape import CacheLayout
from biprop.minimize.programs import MinimisedProgram, minimise_program
from biprop.reports.program_records import CacheReport, ProgramFinding
from biprop.strategies.cache_machine import ProgramViolationError, machine_class
from biprop.strategies.profiles import ProfileName, search_settings
from biprop.strategies.program_heads import PROGRAM_LIMITS, ProgramLimits
from biprop.strategies.program_profiles import PROGRAM_PROFILES, ProgramProfile
from biprop.strategies.search import Event
from biprop.strategies.smoke import smoke_programs
from biprop.supervision.programs import BrokenOffProgramError, ProgramJudge

__all__ = ["InterruptedProgramsError", "program_lane_of", "search_programs"]

# Below the ten valid examples after which Hypothesis begins to alter what it has.
_ROUND = 9
# In a short search, so that steering can still make up for what lacks.
_ROUND_SHORT = 3
# A search of no more programs is steered from the first one on.
_STEERED_MAX = 20
# Times that a crash is seen again before the search ends: each costs a worker.
_CRASHES_MAX = 10
# Findings of one search; a cache that breaks in more ways is told enough.
_FINDINGS_MAX = 4
# Times the time of a search that it may take in all, where evidence is what it lacks at the end.
_PATIENCE = 10
# Programs that hung, after which no further one is begun.
_HUNG_MAX = 3


class InterruptedProgramsError(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a search.

    Attributes:
        report: What was found before.
    """

    def __init__(self, report: CacheReport) -> None:
        """Keep the report."""
        super().__init__()
        self.report = report


class _EndError(Exception):
    """A judge could not go on, or no time is left; what it was is kept beside it."""


def search_programs(
    judge: ProgramJudge,
    *,
    layout: CacheLayout = "NHD",
    dtype: Dtype = "float32",
    storage: Dtype | None = None,
    device: str = "cpu",
    profile: ProfileName = "dev",
    max_programs: int | None = None,
    steps: int | None = None,
    findings_max: int = _FINDINGS_MAX,
    seconds_max: float | None = None,
    seed: int = 0,
    has_smoke: bool = True,
    keep: Callable[[ProgramFixture], str] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> CacheReport:
    """Search the programs of a cache in one layout and dtype.

    Args:
        judge: Judges programs of the cache.
        layout: Of the pages.
        dtype: Of queries, keys and values.
        storage: Of what is stored; None: drawn for each program.
        device: Where the judge runs the cache, for the report.
        profile: How thorough the search is.
        max_programs: Instead of what the profile says.
        steps: Operations of the longest program, instead of what the lane says.
        findings_max: Causes after which the search ends.
        seconds_max: After which no further program is begun, or after ten times as long where
            nothing was found and evidence is lacking; None: no limit.
        seed: The same seed writes the same programs.
        has_smoke: Whether the fixed programs are judged first.
        keep: Stores a fixture and returns its path; None: nothing is stored.
        on_event: Is told what happens.

    Raises:
        BipropError: The cache cannot be made or run.
        InterruptedProgramsError: Ctrl-C; it holds the report so far.
    """
    lane = program_lane_of(judge)
    limits = PROGRAM_LIMITS[lane]
    wanted = PROGRAM_PROFILES[profile]
    return _Search(
        judge=judge,
        layout=layout,
        dtype=dtype,
        storage=storage,
        device=device,
        profile=wanted,
        lane=lane,
        limits=limits if steps is None else attrs.evolve(limits, steps=steps),
        count=wanted.programs_of(lane) if max_programs is None else max_programs,
        findings_max=findings_max,
        seconds_max=math.inf if seconds_max is None else seconds_max,
        seed=seed,
        has_smoke=has_smoke,
        keep=keep,
        on_event=on_event,
    ).run()


def program_lane_of(judge: ProgramJudge) -> Lane:
    """Return which limits and numbers of programs suit where a cache runs."""
    if judge.provenance.device.startswith("cuda"):
        return "gpu"
    return "interpreter" if judge.reference.backend == "triton" else "cpu"


@attrs.define(kw_only=True, eq=False)
class _Collecting:
    """Keeps the operations of one program until it is complete; see `ProgramSession`."""

    program: Program
    judged: Callable[[Program], ProgramOutcome | None]
    ops: list[Op] = attrs.field(factory=list)

    def apply(self, op: Op) -> ProgramOutcome | None:
        self.ops.append(op)
        return None

    def finish(self) -> ProgramOutcome | None:
        return self.judged(attrs.evolve(self.program, ops=tuple(self.ops)))


@attrs.define(kw_only=True, eq=False)
class _Judged:
    """Judges the programs of minimising; Ctrl-C ends it instead of losing what was reached.

    Attributes:
        judge: Judges programs.
        is_stopped: Whether Ctrl-C was pressed.
    """

    judge: ProgramJudge
    is_stopped: bool = False

    def quickly(self, program: Program) -> ProgramOutcome:
        """Judge with few repeats."""
        return self._outcome(partial(self.judge.judge, program, quick=True))

    def carefully(self, program: Program) -> ProgramOutcome:
        """Judge the result."""
        return self._outcome(partial(self.judge.judge, program))

    def _outcome(self, judge: Callable[[], ProgramOutcome]) -> ProgramOutcome:
        message = ""
        if not self.is_stopped:
            try:
                return judge()
            except CaseError as error:
                message = str(error)
            except KeyboardInterrupt:
                self.is_stopped = True
        return ProgramOutcome(verdict=Verdict.VACUOUS, message=message)


def _in_one_order(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return operations whose sequences are in the order of their names."""

    def sorted_op(op: Op) -> Op:
        match op:
            case Append():
                return Append(parts=tuple(sorted(op.parts, key=lambda part: part.sequence)))
            case Decode():
                return Decode(sequences=tuple(sorted(op.sequences)))
            case _:
                return op

    return tuple(map(sorted_op, ops))


@attrs.define(kw_only=True, eq=False)
class _Search:
    """One search under way; the arguments of `search_programs`, and what was found so far."""

    judge: ProgramJudge
    layout: CacheLayout
    dtype: Dtype
    storage: Dtype | None
    device: str
    profile: ProgramProfile
    lane: Lane
    limits: ProgramLimits
    count: int
    findings_max: int
    seconds_max: float
    seed: int
    has_smoke: bool
    keep: Callable[[ProgramFixture], str] | None
    on_event: Callable[[Event], None] | None
    programs: int = 0
    hung: int = 0
    ops: int = 0
    comparisons: int = 0
    coverage: dict[str, int] = attrs.field(factory=dict)
    smoke: dict[str, Verdict] = attrs.field(factory=dict)
    powers: list[float] = attrs.field(factory=list)
    findings: list[ProgramFinding] = attrs.field(factory=list)
    # Place of the finding of each cause, as it was first seen and as it was minimised: a program
    # with fewer operations may see the same defect by another check.
    known: dict[str, int] = attrs.field(factory=dict)
    actual_backend: str = ""
    fallback: str = ""
    unsupported: str = ""
    failure: tuple[Program, ProgramOutcome] | None = None
    error: BipropError | None = None
    # By digest of the program: Hypothesis runs what failed once more.
    seen: dict[str, ProgramOutcome | None] = attrs.field(factory=dict)
    is_over: bool = False
    start: float = 0.0

    def run(self) -> CacheReport:
        self.start = time.monotonic()
        try:
            if self.has_smoke:
                self._run_smoke()
            while not self._is_done():
                self._round()
        except UnsupportedError as error:
            self.unsupported = str(error)
        except KeyboardInterrupt as error:
            if isinstance(error, BrokenOffProgramError) and self._is_new(error.outcome):
                self._add(
                    MinimisedProgram(
                        program=error.program, outcome=error.outcome, runs=1, complete=False
                    )
                )
            report = self._report()
            stopped = (
                f"Stopped by Ctrl-C or SIGTERM after {report.programs} programs. {report.message}"
            )
            raise InterruptedProgramsError(attrs.evolve(report, message=stopped.strip())) from None
        return self._report()

    def _is_done(self) -> bool:
        is_full = len(self.findings) >= self.findings_max
        # Causes that shrink to those of earlier findings cost as much as new ones.
        is_full = is_full or len(self.known) >= 3 * self.findings_max
        is_hopeless = any(
            finding.outcome.verdict is Verdict.CRASHES and finding.count > _CRASHES_MAX
            for finding in self.findings
        )
        is_hopeless = is_hopeless or self.hung >= _HUNG_MAX
        is_ended = self.is_over or bool(self.fallback) or is_full or is_hopeless
        return is_ended or self.programs >= self.count

    def _run_smoke(self) -> None:
        """Judge the fixed programs; one that fails is minimised as any other is."""
        fixed = smoke_programs(
            layout=self.layout, dtype=self.dtype, storage=self.storage, lane=self.lane
        )
        for name, program in fixed.items():
            if self.fallback or len(self.findings) >= self.findings_max or self.hung >= _HUNG_MAX:
                return
            outcome = self.judge.judge(program)
            self.hung += outcome.is_hung
            self.smoke[name] = outcome.verdict
            self.actual_backend = outcome.actual_backend or self.actual_backend
            if self._is_new(outcome):
                self._minimise(program, outcome)

    def _round(self) -> None:
        """Write programs until one fails in a new way, or the round is over."""
        before = self.programs
        self.seen.clear()
        most = _ROUND if self.count > _STEERED_MAX else _ROUND_SHORT
        salt = hash_words("round", self.seed, before)
        machine = machine_class(
            layout=self.layout,
            backend=self.judge.reference.backend,
            dtype=self.dtype,
            storage=self.storage,
            limits=self.limits,
            salt=salt,
            wanted=self._lacking(),
            open_session=self._open,
            cache_name="".join(filter(str.isalnum, self.judge.reference.cache)),
        )
        chosen = settings(
            search_settings(min(most, self.count - before)),
            # The first step draws sizes and data.
            stateful_step_count=self.limits.steps + 1,
        )
        try:
            run_state_machine_as_test(with_seed(salt)(machine), settings=chosen)
        except ProgramViolationError:
            assert self.failure is not None
            self._minimise(*self.failure)
        except _EndError:
            if self.error is not None:
                raise self.error from None
            self.is_over = True
        except AssertionError as error:
            # What Hypothesis says where Ctrl-C comes before it has begun.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        # A round that judged nothing would be followed by others like it.
        self.is_over = self.is_over or self.programs == before

    def _open(self, program: Program) -> _Collecting:
        return _Collecting(program=program, judged=self._judged)

    def _judged(self, program: Program) -> ProgramOutcome | None:
        """Return what is wrong with a program and new; sticky, so that nothing looks flaky."""
        key = program_digest(program)
        if (
            key not in self.seen
            and self.error is None
            and not self.fallback
            and not self._is_late()
        ):
            try:
                self.seen[key] = self._outcome(program)
            except BipropError as error:
                self.error = error
        if key not in self.seen:
            # Of this class there is one raise site, or Hypothesis would call it flaky.
            raise _EndError
        return self.seen[key]

    def _outcome(self, program: Program) -> ProgramOutcome | None:
        outcome = self.judge.judge(program)
        self.programs += 1
        self.hung += outcome.is_hung
        self.ops += outcome.ops_run
        self.comparisons += outcome.comparisons
        self.actual_backend = outcome.actual_backend or self.actual_backend
        for word in outcome.coverage:
            self.coverage[word] = self.coverage.get(word, 0) + 1
        if outcome.power is not None:
            self.powers.append(outcome.power)
        self._tell("example")
        if not self._is_new(outcome):
            return None
        self.failure = (program, outcome)
        return outcome

    def _is_new(self, outcome: ProgramOutcome) -> bool:
        """Whether an outcome is a violation whose cause was not found yet; count it if it was."""
        if outcome.verdict is Verdict.UNSUPPORTED:
            self.unsupported = self.unsupported or outcome.message
        if outcome.verdict is Verdict.FALLBACK:
            # First of all: what else is found is not the backend's own.
            self.fallback = outcome.message
        if not outcome.verdict.is_violation or outcome.cause is None or self.fallback:
            return False
        known = self.known.get(outcome.cause.key)
        if known is None:
            return True
        self._count_again(known)
        return False

    def _count_again(self, place: int) -> None:
        finding = self.findings[place]
        self.findings[place] = attrs.evolve(finding, count=finding.count + 1)

    def _minimise(self, program: Program, outcome: ProgramOutcome) -> None:
        self._tell("failure")
        # The first finding says most; further ones may not cost many times as much.
        share = 4 if self.findings else 1
        judged = _Judged(judge=self.judge)
        smallest = minimise_program(
            judged.quickly,
            program,
            outcome,
            confirm=judged.carefully,
            runs_max=self.profile.minimise_runs // share,
            seconds_max=self.profile.minimise_seconds / share,
        )
        assert outcome.cause is not None, "a violation has a cause"
        assert smallest.outcome.cause is not None, "minimising keeps it"
        place = self.known.setdefault(smallest.outcome.cause.key, self._place_of(smallest))
        self.known[outcome.cause.key] = place
        if place < len(self.findings):
            self._count_again(place)
        else:
            self._add(smallest)
        if judged.is_stopped:
            raise KeyboardInterrupt

    def _place_of(self, smallest: MinimisedProgram) -> int:
        """Return the finding of the same operations: one defect shows in several outputs."""
        wanted = (smallest.outcome.verdict, _in_one_order(smallest.program.ops))
        for place, finding in enumerate(self.findings):
            if (finding.outcome.verdict, _in_one_order(finding.fixture.program.ops)) == wanted:
                return place
        return len(self.findings)

    def _add(self, smallest: MinimisedProgram) -> None:
        fixture = make_program_fixture(
            reference=self.judge.reference,
            program=smallest.program,
            outcome=smallest.outcome,
            proof=ProgramProof(complete=smallest.complete, runs=smallest.runs),
            provenance=self.judge.provenance,
        )
        self.findings.append(
            ProgramFinding(
                fixture=fixture,
                outcome=smallest.outcome,
                found_after=self.programs,
                path=self.keep(fixture) if self.keep is not None else "",
            )
        )
        self._tell("finding")

    def _lacking(self) -> tuple[str, ...]:
        """Return the situations that too few programs reached so far."""
        if not self.programs and self.count > _STEERED_MAX:
            return ()
        # A little more than is asked for, as steering does not always get there.
        least = 1.5 * self.profile.coverage_share_min * self.programs
        lacking = [word for word in COVERAGE if self.coverage.get(word, 0) <= least]
        return tuple(lacking)

    def _tell(self, kind: Literal["example", "failure", "finding"]) -> None:
        if self.on_event is not None:
            count = max(self.count, self.programs)
            self.on_event(Event(kind=kind, examples=self.programs, example_count=count))

    def _report(self) -> CacheReport:
        verdict, message = self._verdict()
        powers = self.powers
        return CacheReport(
            reference=self.judge.reference,
            layout=self.layout,
            dtype=self.dtype,
            storage=self.storage,
            device=self.device,
            verdict=verdict,
            findings=tuple(self.findings),
            programs=self.programs,
            ops=self.ops,
            comparisons=self.comparisons,
            coverage={word: self.coverage.get(word, 0) for word in COVERAGE},
            smoke=dict(self.smoke),
            measured=len(powers),
            powered=sum(power > 0 for power in powers),
            power_share=sum(powers) / len(powers) if powers else 0.0,
            seconds=time.monotonic() - self.start,
            seed=self.seed,
            message=message,
            actual_backend=self.actual_backend,
        )

    def _verdict(self) -> tuple[Verdict, str]:
        if self.fallback:
            return Verdict.FALLBACK, self.fallback
        if self.findings:
            return self.findings[0].outcome.verdict, ""
        if self.unsupported and not self.comparisons:
            return Verdict.UNSUPPORTED, self.unsupported
        if not self.comparisons:
            return Verdict.VACUOUS, "Nothing was compared: give --max-programs 1 or more."
        lacking = self._evidence_lacking()
        return (Verdict.VACUOUS, lacking) if lacking else (Verdict.HOLDS, "")

    def _evidence_lacking(self) -> str:
        """Say what evidence is lacking; empty where none is."""
        powered = sum(power > 0 for power in self.powers)
        # Without an operator that tells what sums there are, power is not measured.
        if self.powers and powered < self.profile.powered_min:
            return (
                f"Only {powered} programs had power, {self.profile.powered_min} are needed: give a "
                "higher --max-programs."
            )
        least = self.profile.coverage_share_min * self.programs
        short = [word for word in COVERAGE if self.coverage.get(word, 0) < least]
        if short:
            reached = self.coverage.get(short[0], 0)
            return (
                f"Only {reached} of {self.programs} programs reached a {short[0]}, a share of "
                f"{self.profile.coverage_share_min:g} is needed: give more --steps or programs."
            )
        return ""

    def _is_late(self) -> bool:
        """Whether no further program is begun."""
        if not self.programs:
            return False
        if self.hung >= _HUNG_MAX:
            # Each costs as long as is waited for, and says what the first one said.
            return True
        waits = not self.findings and self._evidence_lacking()
        seconds = self.seconds_max * (_PATIENCE if waits else 1)
        return time.monotonic() - self.start >= seconds

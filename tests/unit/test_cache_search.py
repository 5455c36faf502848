"""The search over programs of a cache: verdicts, evidence, findings and how it ends."""

from collections.abc import Callable

import attrs
import pytest
from tests.unit.cache_samples import DRIFT, FakePrograms, held, violated

from biprop.errors import TargetError
from biprop.fixtures.programs import ProgramFixture
from biprop.judgment import Verdict
from biprop.kvcache.model import legal_ops
from biprop.kvcache.records import (
    COVERAGE,
    Allocate,
    CacheReference,
    Defragment,
    Fork,
    Program,
    ProgramCause,
    ProgramOutcome,
)
from biprop.reports.program_records import CacheReport, cache_report_to_data
from biprop.strategies.programs import (
    InterruptedProgramsError,
    program_lane_of,
    search_programs,
)
from biprop.supervision.programs import BrokenOffProgramError

Judged = Callable[[Program], ProgramOutcome]
UNTOUCHED = ProgramCause(verdict=Verdict.DRIFTS, check="untouched", output="k")


def searched(judged: Judged = held, *, count: int = 18, findings_max: int = 4) -> CacheReport:
    """Search a cache that is not there, by short programs."""
    return search_programs(
        FakePrograms(judged=judged), max_programs=count, steps=12, findings_max=findings_max
    )


def fails_with(kind: type, cause: ProgramCause = DRIFT) -> Judged:
    """Return a judge that finds fault with every program in which an operation of a kind runs."""

    def judged(program: Program) -> ProgramOutcome:
        is_run = any(isinstance(op, kind) for op in legal_ops(program))
        return violated(cause) if is_run else held(program)

    return judged


def test_healthy_cache_holds() -> None:
    """As many programs as asked for, the fixed ones besides, and every situation often enough."""
    report = searched()

    assert report.verdict is Verdict.HOLDS, report.message
    assert report.exit_code == 0
    assert report.programs == 18
    assert report.smoke == dict.fromkeys(("short", "long", "ragged", "padded"), Verdict.HOLDS)
    assert min(report.shares.values()) >= 0.1


def test_same_seed_gives_the_same_search() -> None:
    """Programs depend on the seed alone."""
    one, other = FakePrograms(), FakePrograms()
    for judge in (one, other):
        search_programs(judge, max_programs=12, steps=8, seed=5)

    assert one.seen == other.seen


def test_program_with_a_fault_is_minimised_and_stored() -> None:
    """One finding a cause, with a small program that was seen to fail; others count it again."""
    kept: list[ProgramFixture] = []

    def keep(fixture: ProgramFixture) -> str:
        kept.append(fixture)
        return "a/path.json"

    report = search_programs(
        FakePrograms(judged=fails_with(Fork)),
        max_programs=18,
        steps=12,
        has_smoke=False,
        keep=keep,
    )
    (finding,) = report.findings

    assert report.verdict is Verdict.DRIFTS
    assert report.exit_code == 1
    assert [fixture.id for fixture in kept] == [finding.fixture.id]
    assert finding.path == "a/path.json"
    assert [type(op) for op in finding.fixture.program.ops] == [Allocate, Fork]
    assert 1 <= finding.found_after < report.programs
    assert finding.count > 1


def test_causes_are_told_apart() -> None:
    """A second cause is a finding of its own, and the first one is not minimised twice."""

    def judged(program: Program) -> ProgramOutcome:
        outcome = fails_with(Fork)(program)
        return fails_with(Defragment, UNTOUCHED)(program) if outcome.cause is None else outcome

    report = searched(judged, count=36)
    keys = [finding.fixture.expect.cause.key for finding in report.findings]

    assert sorted(keys) == sorted({DRIFT.key, UNTOUCHED.key})


def test_causes_of_the_same_operations_are_one_finding() -> None:
    """A defect that shows by another promise for other data is told once."""
    length = ProgramCause(verdict=Verdict.DRIFTS, check="length")

    def judged(program: Program) -> ProgramOutcome:
        return fails_with(Fork, length if program.seed % 2 else DRIFT)(program)

    report = searched(judged, count=60)
    (finding,) = report.findings

    assert [type(op) for op in finding.fixture.program.ops] == [Allocate, Fork]
    assert finding.count > 2


def test_search_ends_after_enough_causes() -> None:
    """Where one cause is asked for, no further program is written after it."""
    report = searched(fails_with(Fork), count=200, findings_max=1)

    assert len(report.findings) == 1
    assert report.programs < 20


def test_fixed_program_can_be_a_finding() -> None:
    """What the fixed programs show is found before anything is drawn."""
    report = searched(fails_with(Fork), count=1)

    assert report.smoke["padded"] is Verdict.DRIFTS
    assert report.findings[0].found_after == 0


@pytest.mark.parametrize("word", COVERAGE)
def test_situation_that_is_never_reached_is_vacuous(word: str) -> None:
    """Without a situation there is no verdict on the cache."""

    def judged(program: Program) -> ProgramOutcome:
        outcome = held(program)
        return attrs.evolve(outcome, coverage=tuple(set(outcome.coverage) - {word}))

    report = searched(judged)

    assert report.verdict is Verdict.VACUOUS
    assert report.exit_code == 3
    assert word in report.message


def test_programs_without_power_are_vacuous() -> None:
    """Where no data could have shown another order of keys, equal bits are no evidence."""
    report = searched(lambda program: held(program, power=0.0))

    assert report.verdict is Verdict.VACUOUS
    assert "power" in report.message


def test_target_needs_no_measured_power() -> None:
    """Without an operator for full prefills no power is measured, and none is asked for."""

    assert searched(lambda program: held(program, power=None)).verdict is Verdict.HOLDS


def test_fallback_is_a_verdict_without_a_fixture() -> None:
    """What another backend computed shows nothing of this one, and ends the search."""
    cause = ProgramCause(verdict=Verdict.FALLBACK)
    report = searched(lambda _: violated(cause, message="torch ran instead"))

    assert report.verdict is Verdict.FALLBACK
    assert report.exit_code == 1
    assert not report.findings
    assert report.message == "torch ran instead"


def test_unsupported_cache_is_told() -> None:
    """A cache that declares that it cannot run any program is unsupported."""
    outcome = ProgramOutcome(verdict=Verdict.UNSUPPORTED, message="It needs a GPU.")
    report = searched(lambda _: outcome, count=3)

    assert report.verdict is Verdict.UNSUPPORTED
    assert report.exit_code == 2
    assert report.message == "It needs a GPU."


def test_error_of_the_judge_ends_the_search() -> None:
    """What cannot be judged is no verdict, and comes as it was raised."""

    def judged(_: Program) -> ProgramOutcome:
        raise TargetError("It is gone.")

    with pytest.raises(TargetError, match="It is gone"):
        search_programs(FakePrograms(judged=judged), max_programs=4, has_smoke=False)


def test_interrupted_search_reports_what_it_found() -> None:
    """Ctrl-C keeps the programs so far."""
    judge = FakePrograms()

    def judged(program: Program) -> ProgramOutcome:
        if len(judge.seen) > 6:
            raise KeyboardInterrupt
        return held(program)

    judge.judged = judged
    with pytest.raises(InterruptedProgramsError) as raised:
        search_programs(judge, max_programs=50, steps=6, has_smoke=False)

    assert raised.value.report.programs == 6
    assert "after 6 programs" in raised.value.report.message


def test_interrupted_shrinking_keeps_what_it_reached() -> None:
    """Ctrl-C while a finding is made smaller loses neither the finding nor the report."""
    judge = FakePrograms()

    def judged(program: Program) -> ProgramOutcome:
        outcome = fails_with(Fork)(program)
        if len([one for one in judge.seen if fails_with(Fork)(one).cause is not None]) > 4:
            raise KeyboardInterrupt
        return outcome

    judge.judged = judged
    with pytest.raises(InterruptedProgramsError) as raised:
        search_programs(judge, max_programs=50, steps=12, has_smoke=False)
    (finding,) = raised.value.report.findings

    assert raised.value.report.verdict is Verdict.DRIFTS
    assert fails_with(Fork)(finding.fixture.program).cause == DRIFT


@pytest.mark.parametrize("has_smoke", [False, True])
def test_what_failed_before_an_interrupt_is_found(*, has_smoke: bool) -> None:
    """Though there was no time to find out more of it."""

    def judged(program: Program) -> ProgramOutcome:
        raise BrokenOffProgramError(program, violated(DRIFT))

    with pytest.raises(InterruptedProgramsError) as raised:
        search_programs(FakePrograms(judged=judged), max_programs=9, has_smoke=has_smoke)
    (finding,) = raised.value.report.findings

    assert raised.value.report.verdict is finding.outcome.verdict is Verdict.DRIFTS
    assert not finding.fixture.proof.complete


def test_interrupt_as_a_round_begins_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis asserts where Ctrl-C comes before it has begun; that is no fault of anybody's."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AssertionError

    monkeypatch.setattr("biprop.strategies.programs.run_state_machine_as_test", interrupted)

    with pytest.raises(InterruptedProgramsError):
        search_programs(FakePrograms(), max_programs=9, has_smoke=False)


def test_time_ends_a_search() -> None:
    """After the time that is given no further program is judged but the first."""
    report = search_programs(FakePrograms(), max_programs=50, has_smoke=False, seconds_max=0.0)

    assert report.programs == 1


def test_lane_follows_backend_and_device() -> None:
    """Triton on a CPU is interpreted, so that its programs are small and few."""
    triton = CacheReference(cache="paged", target="paged", backend="triton")
    judge = FakePrograms(reference=triton)
    on_gpu = attrs.evolve(judge.provenance, device="cuda:1")

    assert program_lane_of(FakePrograms()) == "cpu"
    assert program_lane_of(judge) == "interpreter"
    assert program_lane_of(FakePrograms(reference=triton, provenance=on_gpu)) == "gpu"


def test_report_is_one_json_object() -> None:
    """Verdict, shares and backends are in it by name."""
    data = cache_report_to_data(searched(count=9))

    assert data["backend"] == "torch"
    assert data["actual_backend"] == "torch"
    assert isinstance(data["coverage"], dict)
    assert set(data["coverage"]) == set(COVERAGE)


def test_a_search_of_what_hangs_ends() -> None:
    """Each hang costs as long as is waited for, and the third says what the first one said."""
    cause = ProgramCause(verdict=Verdict.CRASHES)

    hung = attrs.evolve(violated(cause, message="hung"), step=0, is_hung=True)

    report = searched(lambda _: hung, count=500)

    assert report.verdict is Verdict.CRASHES
    assert report.programs <= 3

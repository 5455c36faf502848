"""Causes made small behind the epochs: what they turn out to be, and what waits."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from tests.unit.cache_samples import FakePrograms, held, sample_program, violated
from tests.unit.campaign_fakes import cells
from tests.unit.test_search import REFERENCE, SPACE, FakeJudge, drift

from biprop.campaign.causes import Causes
from biprop.campaign.cells import CacheWork
from biprop.campaign.hands import open_search_hands
from biprop.campaign.log import CaseJournal, Log, Stopping, cause_of_fixture
from biprop.campaign.messages import EpochTask, Found, MinimiseDone, MinimiseTask, Settings
from biprop.campaign.places import this_process
from biprop.campaign.records import FORMAT, CauseRecord, ReplayRecord, cause_digest
from biprop.campaign.small import minimised_case, minimised_program
from biprop.campaign.store import Store
from biprop.campaign.watching import WatchedJudge, WatchedPrograms
from biprop.case import Case, canonical_json, case_to_data
from biprop.contract import load_contract
from biprop.fixtures.programs import ProgramProof, make_program_fixture
from biprop.fixtures.records import Fixture, make_fixture
from biprop.judgment import Cause, Outcome, Proof, Verdict
from biprop.kvcache.records import Program, ProgramCause, ProgramOutcome
from biprop.provenance import Provenance
from biprop.reports.program_records import CacheReport
from biprop.strategies.seeded import case_of_seed
from biprop.strategies.tally import classes_in

CELL = cells()[0]
PROVENANCE = Provenance(device="cpu")
Rule = Callable[[Case, frozenset[str]], Outcome | None]


def drifts_with_neighbours(case: Case, names: frozenset[str]) -> Outcome | None:
    """Drift wherever there is another sequence."""
    del case
    return drift() if "T1" in names else None


def drifts_with_both(case: Case, names: frozenset[str]) -> Outcome | None:
    """Drift wherever there is another sequence and other memory."""
    del case
    return drift() if {"T1", "T8"} <= names else None


def holds(case: Case, names: frozenset[str]) -> Outcome | None:
    """Find nothing."""
    del case, names
    return None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


def raw(*, seed: int = 0, is_crash: bool = False, classes: tuple[str, ...] = ("T1",)) -> Fixture:
    """Return the fixture of a drawn case with neighbours, as an epoch stores it."""
    space = attrs.evolve(SPACE, classes=classes)
    case = next(
        case
        for number in range(1000)
        if set(classes) <= set(classes_in(case := case_of_seed(1000 * seed + number, space)))
    )
    outcome = drift()
    assert outcome.cause is not None
    verdict = Verdict.CRASHES if is_crash else Verdict.DRIFTS
    cause = attrs.evolve(outcome.cause, verdict=verdict, transforms=classes)
    return make_fixture(
        reference=REFERENCE,
        case=case,
        outcome=attrs.evolve(outcome, verdict=verdict, cause=cause),
        proof=Proof(),
        provenance=PROVENANCE,
    )


def task_of(
    store: Store, fixture: Fixture, *, digest: str = "", is_lost: bool = False
) -> MinimiseTask:
    """Store the cause of a fixture, and return the task to shrink it."""
    cause = cause_of_fixture(fixture, cell=CELL.id, campaign="one", is_lost=is_lost)
    cause = attrs.evolve(cause, digest=digest or cause.digest)
    store.add_cause(cause, fixture)
    return MinimiseTask(number=1, cell=CELL, cause=cause)


def log_of(store: Store, task: MinimiseTask, stopping: Stopping | None = None) -> Log:
    """Return the log of a task."""
    settings = Settings(
        campaign="one",
        parent=this_process(),
        store=store.path,
        contract=load_contract(),
        open_hands=open_search_hands,
        minimise_seconds=20.0,
    )
    return Log(
        task,
        kind="minimise",
        about=task.cause.digest,
        worker=0,
        device="cpu",
        settings=settings,
        stopping=stopping or Stopping(),
        tell=lambda _: None,
    )


def shrunk(store: Store, fixture: Fixture, rule: Rule, **words: object) -> CauseRecord:
    """Return the cause of a fixture after it was worked on."""
    task = task_of(store, fixture, **words)  # type: ignore[arg-type]  # names of its own
    judge = FakeJudge(rule=rule)
    return minimised_case(judge, SPACE, fixture, task, log_of(store, task)).cause


def stopped(store: Store, fixture: Fixture, rule: Rule, *, after: int) -> MinimiseDone:
    """Return what becomes of the cause of a fixture where a stop comes after so many cases."""
    task, stopping = task_of(store, fixture), Stopping()
    log = log_of(store, task, stopping)
    asked = 0

    class Stopped(FakeJudge):
        def judge(self, case: Case, *options: object) -> Outcome:
            nonlocal asked
            asked += 1
            stopping.is_asked = asked > after
            text = canonical_json(case_to_data(case))
            with CaseJournal(log).entries(reference=REFERENCE, device="cpu", case_texts=(text,)):
                return super().judge(case, *options)  # type: ignore[arg-type]

    return minimised_case(Stopped(rule=rule), SPACE, fixture, task, log)


def test_a_case_is_shrunk_and_stored_in_the_place_of_the_first_one(store: Store) -> None:
    """The first one is kept: its id was told."""

    fixture = raw()
    cause = shrunk(store, fixture, drifts_with_neighbours)
    assert (cause.status, cause.transforms) == ("minimal", ("T1",))
    small = store.fixture(cause.fixture)
    assert isinstance(small, Fixture)
    assert small.proof.complete
    assert sum(sequence.length for sequence in small.case.sequences) == 1
    assert cause.formerly == (fixture.id,)
    assert store.fixture(fixture.id) == fixture
    assert store.cause(cause.digest) == cause


def test_what_shrinks_to_the_same_is_the_same(store: Store) -> None:
    """Its own fixture is not kept."""

    first = shrunk(store, raw(), drifts_with_neighbours)
    second = shrunk(store, raw(seed=1), drifts_with_neighbours, digest="another")
    assert second.same_as == first.digest
    assert len(list((store.path / "findings").iterdir())) == 1
    (cause,) = store.snapshot().causes
    assert cause.record == first


def test_what_was_found_as_what_another_has_shrunk_to_is_merged_at_once(store: Store) -> None:
    """It need not be shrunk for that."""

    waiting = task_of(store, raw()).cause
    small = shrunk(store, raw(seed=1), drifts_with_neighbours, digest="another")
    merged = store.cause(waiting.digest)
    assert merged is not None
    assert (merged.same_as, merged.status) == ("another", "minimal")
    (state,) = store.snapshot().causes
    assert state.record == small


def test_a_case_of_several_classes_waits_to_be_shrunk(store: Store) -> None:
    """It may still become another cause than the one that looks like it."""

    fixture = raw(classes=("T1", "T8"))
    waiting = task_of(store, fixture).cause
    small = shrunk(store, raw(seed=1, classes=("T1", "T8")), drifts_with_both, digest="another")
    assert small.transforms == waiting.transforms == ("T1", "T8")
    assert store.cause(waiting.digest) == waiting
    first = raw(seed=2, classes=("T1", "T8"))
    found = cause_of_fixture(first, cell="cell1", campaign="two")
    store.owner_of(found.digest, small.digest)
    assert store.add_cause(found, first)


def test_what_is_found_again_as_a_small_one_is_that_one(store: Store) -> None:
    """No second finding of one name, and no news; the case that was told is kept."""

    small = shrunk(store, raw(seed=1), drifts_with_neighbours, digest="another")
    fixture = raw()
    cause = cause_of_fixture(fixture, cell=CELL.id, campaign="two")
    assert not store.add_cause(cause, fixture)
    stored = store.cause(cause.digest)
    assert stored is not None
    assert stored.same_as == small.digest
    assert store.fixture(fixture.id) == fixture
    (state,) = store.snapshot().causes
    assert state.record == small


def test_what_shrinks_to_a_cause_that_was_fixed_brings_it_back(store: Store) -> None:
    """With the case that fails now, though that is the one that held."""

    first = shrunk(store, raw(), drifts_with_neighbours)
    held = ReplayRecord(
        format=FORMAT, fixture=first.fixture, status="FIXED", at=1e12, campaign="two"
    )
    store.write_replay(held)
    assert not store.snapshot().findings
    second = shrunk(store, raw(seed=1), drifts_with_neighbours, digest="another")
    assert second.same_as == first.digest
    assert [cause.record.digest for cause in store.snapshot().findings] == [first.digest]


def test_a_lost_case_that_holds_is_no_finding(store: Store) -> None:
    """Most processes are ended from outside."""

    cause = shrunk(store, raw(is_crash=True), holds, is_lost=True)
    assert cause.status == "unreproduced"
    snapshot = store.snapshot()
    assert not snapshot.findings
    assert len(snapshot.causes) == 1


def test_a_crash_that_was_seen_once_is_no_finding(store: Store) -> None:
    """A hang of a machine that is busy is one; a second case that shows the same is a finding."""

    assert shrunk(store, raw(is_crash=True), holds).status == "unreproduced"
    assert not store.snapshot().findings
    fixture = raw(is_crash=True, seed=1)
    cause = cause_of_fixture(fixture, cell=CELL.id, campaign="two")
    assert store.add_cause(cause, fixture)
    assert store.snapshot().findings
    back = store.cause(cause.digest)
    assert back is not None
    task = MinimiseTask(number=2, cell=CELL, cause=back)
    again = minimised_case(FakeJudge(rule=holds), SPACE, fixture, task, log_of(store, task)).cause
    assert again.status == "raw"
    assert store.snapshot().findings


def test_the_same_case_that_crashes_once_more_is_judged_again(store: Store) -> None:
    """It is told anew, whoever has its cause in memory."""

    fixture = raw(is_crash=True)
    held = shrunk(store, fixture, holds)
    causes = Causes(ledger=(), sums={})
    causes.put(held)
    cause = cause_of_fixture(fixture, cell=CELL.id, campaign="two")
    assert store.add_cause(cause, fixture)
    back = store.cause(cause.digest)
    assert back is not None
    assert back.status == "raw"
    # Its classes are drawn like others until then.
    assert not causes.exclusions(CELL.id)
    assert causes.take_found(back)
    assert causes.exclusions(CELL.id)
    assert not causes.take_found(back)


def test_what_does_not_fail_again_stays_a_finding(store: Store) -> None:
    """As it was stored; nobody tries it again."""

    cause = shrunk(store, raw(), holds)
    assert cause.status == "raw"
    assert cause.settled is not None
    assert store.snapshot().findings


def test_a_stop_leaves_the_smallest_case_so_far_to_the_next_campaign(store: Store) -> None:
    """Which goes on from it."""

    fixture = raw()
    done = stopped(store, fixture, drifts_with_neighbours, after=3)
    assert done.is_stopped
    assert (done.cause.status, done.cause.settled) == ("raw", None)
    assert store.fixture(done.cause.fixture) is not None
    assert done.cause.fixture != fixture.id
    assert done.cause.formerly == (fixture.id,)
    assert store.fixture(fixture.id) == fixture
    # A cause that has shrunk to as much is the same, and one id is told once.
    store.owner_of(cause_digest(CELL.id, done.cause.key, "outputs", "T1"), "first")
    done = stopped(store, fixture, drifts_with_neighbours, after=3)
    assert done.is_stopped
    assert done.cause.same_as == "first"


def test_a_stop_does_not_tell_what_a_case_of_several_classes_is(store: Store) -> None:
    """Were it merged with another cause, nobody would shrink it any more."""

    fixture = raw(classes=("T1", "T8"))
    key = fixture.expect.cause.key
    store.owner_of(cause_digest(CELL.id, key, "outputs", "T1", "T8"), "first")
    done = stopped(store, fixture, drifts_with_both, after=1)
    assert done.is_stopped
    assert done.cause.transforms == ("T1", "T8")
    assert (done.cause.same_as, done.cause.status, done.cause.settled) == ("", "raw", None)


def crashes(program: Program) -> ProgramOutcome:
    """Return a crash in the last operation, wherever there is one."""
    outcome = violated(ProgramCause(verdict=Verdict.CRASHES), message="It was killed.")
    return attrs.evolve(outcome, step=len(program.ops) - 1) if program.ops else held(program)


def test_a_program_is_shrunk_too(store: Store) -> None:
    """Operations that do not matter are gone."""

    program = sample_program().program
    judge = FakePrograms(judged=crashes)
    fixture = make_program_fixture(
        reference=judge.reference,
        program=program,
        outcome=crashes(program),
        proof=ProgramProof(),
        provenance=PROVENANCE,
    )
    cause = cause_of_fixture(fixture, cell=CELL.id, campaign="one")
    store.add_cause(cause, fixture)
    task = MinimiseTask(number=1, cell=CELL, cause=cause)
    done = minimised_program(judge, fixture, task, log_of(store, task))
    assert done.cause.status == "minimal"
    small = store.fixture(done.cause.fixture)
    assert small is not None
    assert not isinstance(small, Fixture)
    assert len(small.program.ops) == 1


def test_a_search_over_programs_does_not_shrink(store: Store) -> None:
    """What only shrinking asks for is not run."""

    judge = FakePrograms(judged=crashes)
    task = task_of(store, raw())
    log = log_of(store, task)
    watched = WatchedPrograms(judge, log, is_quick=True)
    assert watched.judge(sample_program().program, quick=True).verdict is Verdict.VACUOUS
    assert not judge.seen
    assert watched.judge(sample_program().program).verdict is Verdict.CRASHES
    assert (len(judge.seen), log.examples) == (1, 1)


def test_a_record_counts_no_less_than_was_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search leaves its fixed programs out of its report; they were judged all the same."""

    judge = FakePrograms()

    def search(watched: WatchedPrograms, **options: object) -> CacheReport:
        del options
        for _ in range(3):
            watched.judge(sample_program().program)
        return CacheReport(
            reference=judge.reference,
            layout="NHD",
            dtype="float32",
            device="cpu",
            verdict=Verdict.HOLDS,
            programs=2,
        )

    log = log_of(store, task_of(store, raw()))
    monkeypatch.setattr("biprop.campaign.hands.search_programs", search)
    monkeypatch.setattr("biprop.campaign.hands.SupervisedPrograms", lambda *_, **__: judge)
    work = CacheWork(reference=judge.reference, layout="NHD", dtype="float32")
    task = EpochTask(number=1, cell=attrs.evolve(CELL, work=work), seed=1, seconds=1.0)
    hands = open_search_hands(log.settings, "cpu")
    shown = hands.search(task, log)
    hands.close()
    assert (shown.examples, log.examples) == (3, 3)


def test_what_is_judged_twice_counts_once(store: Store) -> None:
    """A judge is sticky: the second answer is the first one."""

    outcome = Outcome(verdict=Verdict.HOLDS, launches=3, seconds={"launch": 0.5, "compare": 0.25})
    task = task_of(store, raw())
    log = log_of(store, task)
    watched = WatchedJudge(FakeJudge(rule=lambda *_: outcome), log)
    case = raw().case
    assert watched.judge(case) is outcome
    assert watched.judge(case) is outcome
    assert (log.examples, log.launches, log.seconds_in_kernels) == (1, 3, 0.75)


def test_a_cause_that_is_new_to_a_store_is_told_once(store: Store) -> None:
    """And stands in what says that the epoch is under way, should its process end now."""

    told: list[object] = []
    task = task_of(store, raw())
    log = log_of(store, task)
    log._tell = told.append
    fixture = raw(seed=2)
    other = attrs.evolve(fixture, expect=attrs.evolve(fixture.expect, cause=_other(fixture)))
    digest = log.found(other)
    assert log.found(other) == digest
    assert [type(answer) for answer in told] == [Found]
    ((_, begun),) = store.begun()
    assert [finding.cause for finding in begun.findings] == [digest]


def test_a_cause_that_is_back_is_told_with_its_former_ids(store: Store) -> None:
    """An entry of the ledger may name it by one of them, while this campaign runs too."""

    first = shrunk(store, raw(), drifts_with_neighbours)
    told: list[object] = []
    log = log_of(store, MinimiseTask(number=2, cell=CELL, cause=first))
    log._tell = told.append
    store.write_replay(
        ReplayRecord(format=FORMAT, fixture=first.fixture, status="FIXED", at=1e12, campaign="two")
    )
    assert log.found(raw(seed=1)) == first.digest
    back = store.cause(first.digest)
    assert back is not None
    assert first.fixture in back.formerly
    assert told == [Found(cause=back)]


def _other(fixture: Fixture) -> Cause:
    return attrs.evolve(fixture.expect.cause, output="another")

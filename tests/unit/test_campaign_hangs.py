"""Cases that hang are findings: whatever ends an epoch, what was seen before is stored."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import plan
from tests.unit.execution_cases import case_of, kernel_of
from tests.unit.test_search import SPACE, FakeJudge, drift
from tests.unit.test_set_searches import log_of

from biprop.campaign import ray_crew
from biprop.campaign.cells import entry_cells
from biprop.campaign.crew import LocalCrew
from biprop.campaign.hands import CAMPAIGN, open_search_hands
from biprop.campaign.log import CaseJournal, Stopping
from biprop.campaign.messages import Answer, EpochDone, EpochTask, Found
from biprop.campaign.post import Orders
from biprop.campaign.ray_crew import RayCluster, RayCrew, Share
from biprop.campaign.run import _local
from biprop.campaign.store import Store
from biprop.campaign.watching import WatchedJudge
from biprop.campaign.working import run_task
from biprop.case import Case, Json
from biprop.generation import Space
from biprop.judgment import Cause, Outcome, Verdict
from biprop.operators import KernelReference
from biprop.power.manifest import Entry
from biprop.relations import JudgeOptions
from biprop.reports.records import CellReport
from biprop.strategies.profiles import PROFILES, Profile
from biprop.strategies.search import InterruptedSearchError, search
from biprop.strategies.tally import classes_in
from biprop.supervision import BrokenOffError, Child, SupervisedJudge
from biprop.supervision.child import BrokenOffHangError, ChildDiedError
from biprop.transforms import AddNeighbours, PadSlots

TARGETS = """
import os
import time

print("noise")

def hanging(x):
    if len(x) > 1:
        time.sleep(600)
    return x + 1

def hanging_at_eight(x):
    if len(x) == 8:
        time.sleep(600)
    return x + 1

def drifting_at_eight(x):
    return x + 1 + (len(x) == 8)

def ending(x):
    if len(x) > 1:
        os._exit(3)
    return x + 1
"""
SIGNATURE = "x[T,H] -> y[T,H]"
KERNEL = kernel_of(lambda x: x, SIGNATURE)
# Longer than a run of a kernel that does not hang, on a machine with other work too.
SECONDS = 0.5
HANG = Outcome(
    verdict=Verdict.CRASHES,
    cause=Cause(verdict=Verdict.CRASHES, direction="forward"),
    message="Hung.",
    is_hung=True,
)


@attrs.define(eq=False)
class EndedJudge(FakeJudge):
    """A fake judge of an epoch that is over once a case has failed: nothing is judged after it."""

    is_over: bool = False

    def judge(self, case: Case, options: JudgeOptions = JudgeOptions()) -> Outcome:  # noqa: B008
        """Judge no more after a failure."""
        if self.is_over:
            raise KeyboardInterrupt
        outcome = super().judge(case, options)
        self.is_over = outcome.verdict.is_violation
        return outcome

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Judge one by one, and say what was seen before the end."""
        found: list[Outcome] = []
        try:
            found.extend(self.judge(*one) for one in zip(cases, options, strict=True))
        except KeyboardInterrupt:
            raise BrokenOffError(tuple(found)) from None
        return tuple(found)


def ended(
    outcome: Outcome, *, profile: Profile = CAMPAIGN, layouts: int = 1, space: Space = SPACE
) -> CellReport:
    """Return the report of a search that is over with the first case that has neighbours."""
    judge = EndedJudge(lambda _, names: outcome if "T1" in names else None)
    profile = attrs.evolve(profile, layouts=layouts)
    with pytest.raises(InterruptedSearchError) as stopped:
        search(judge, space, profile=profile, max_examples=60, seed=2)
    report = stopped.value.report
    assert report.examples == len(judge.asked)
    return report


def seen_in(error: KeyboardInterrupt) -> tuple[Outcome, ...]:
    """Return what was seen before a judgement was broken off."""
    assert isinstance(error, BrokenOffError)
    return error.outcomes


class TestSearch:
    """What a search tells that is broken off."""

    @pytest.mark.parametrize("layouts", [1, 4])
    @pytest.mark.parametrize("outcome", [HANG, drift()])
    def test_a_failure_outlives_the_end(self, outcome: Outcome, layouts: int) -> None:
        """Though nobody could look at it any closer; of a set too whose others were not judged."""
        report = ended(outcome, layouts=layouts)

        (finding,) = report.findings
        assert report.verdict is finding.outcome.verdict is outcome.verdict
        assert "T1" in finding.fixture.expect.cause.transforms
        assert not finding.fixture.proof.complete

    def test_a_check_tells_it_too(self) -> None:
        """Ctrl-C while a case that hangs is made small: it is one case, once."""
        for classes in ((), ("T1",)):
            space = attrs.evolve(SPACE, classes=classes)
            (finding,) = ended(HANG, profile=PROFILES["dev"], space=space).findings

            assert (finding.outcome.message, finding.count) == ("Hung.", 1)

    def test_what_hangs_is_stored_before_anything_else_is_judged(self) -> None:
        """An epoch has no time to look at it; whoever shrinks it does."""
        stored: list[int] = []
        judge = FakeJudge(lambda _, names: HANG if "T1" in names else None)

        def keep(_: object) -> str:
            stored.append(len(judge.asked))
            return "digest"

        search(judge, SPACE, profile=CAMPAIGN, max_examples=12, seed=2, keep=keep)

        first = next(
            place for place, (case, _) in enumerate(judge.asked, 1) if "T1" in classes_in(case)
        )
        assert stored == [first]


class TestJudge:
    """What a judge in a worker tells when the time of an epoch is over."""

    @pytest.fixture
    def judge_of(self, tmp_path: Path) -> Iterator[Callable[[str], WatchedJudge]]:
        """Return what opens a judge of a target in a worker."""
        path = tmp_path / "targets.py"
        path.write_text(TARGETS, encoding="utf-8")
        log = log_of(Store.open(tmp_path / "store", create=True))
        child = Child(device="cpu")

        def opened(name: str) -> WatchedJudge:
            target = f"{path}:{name}"
            reference = KernelReference(operator=target, target=target, signature=SIGNATURE)
            inner = SupervisedJudge(
                reference=reference, child=child, journal=CaseJournal(log), timeout=SECONDS
            )
            return WatchedJudge(inner, log)

        yield opened
        child.close()

    def test_a_set_that_hung_is_judged_until_it_is_known_which(
        self, judge_of: Callable[[str], WatchedJudge]
    ) -> None:
        """And no further; the time was over before that."""
        judge = judge_of("hanging_at_eight")
        cases = [case_of(KERNEL, AddNeighbours(count=count)) for count in (2, 1, 4)]
        judge._log._ends_at = time.monotonic() + 0.2
        with pytest.raises(KeyboardInterrupt) as broken:
            judge.judge_set(cases, [JudgeOptions()] * 3)

        outcomes = seen_in(broken.value)
        assert [outcome.verdict for outcome in outcomes] == [Verdict.HOLDS, Verdict.CRASHES]
        assert outcomes[1].is_hung
        # They are counted as any others.
        assert judge._log.examples == 2

    @pytest.mark.parametrize(
        ("options", "known", "seen"),
        [
            (JudgeOptions(), 0, ("HOLDS", "DRIFTS")),
            # No such set, and one of which a case was judged before.
            (JudgeOptions(careful=True), 0, ()),
            (JudgeOptions(), 1, ("HOLDS",)),
        ],
    )
    def test_nothing_is_launched_after_the_end_but_what_failed(
        self,
        judge_of: Callable[[str], WatchedJudge],
        monkeypatch: pytest.MonkeyPatch,
        options: JudgeOptions,
        known: int,
        seen: tuple[str, ...],
    ) -> None:
        """A set that cannot be judged as one is none that failed."""
        judge = judge_of("drifting_at_eight")
        cases = [case_of(KERNEL, AddNeighbours(count=count)) for count in (2, 1, 4)]
        take = Child.take

        def taken(self: Child) -> dict[str, Json]:
            judge._log._ends_at = 0.0
            return take(self)

        monkeypatch.setattr(Child, "take", taken)
        for case in cases[:known]:
            judge.judge(case)
        with pytest.raises(KeyboardInterrupt) as broken:
            judge.judge_set(cases, [options] * 3)

        assert tuple(outcome.verdict.value for outcome in seen_in(broken.value)) == seen

    def test_a_crash_is_told_though_its_cause_is_not_known(
        self, judge_of: Callable[[str], WatchedJudge], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether another fill crashes too is asked of launches that nobody has time for."""
        judge = judge_of("ending")
        take = Child.take

        def taken(self: Child) -> dict[str, Json]:
            judge._log._ends_at = 0.0
            return take(self)

        monkeypatch.setattr(Child, "take", taken)
        padded = PadSlots(amount=3, side="right", fill="nan")
        with pytest.raises(KeyboardInterrupt) as broken:
            judge.judge(case_of(KERNEL, AddNeighbours(count=3), padded))

        (outcome,) = seen_in(broken.value)
        assert outcome.verdict is Verdict.CRASHES
        assert "exit status 3" in outcome.message
        assert judge._log.examples == 1

    def test_a_hang_is_told_that_nobody_had_told_yet(
        self, judge_of: Callable[[str], WatchedJudge], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C came between the end of its time and its verdict."""
        judge = judge_of("hanging")
        death = ChildDiedError("hung for 1 s", stage="canonical", launches=1, is_hung=True)

        def taken(self: Child) -> dict[str, Json]:
            self.give_up()
            raise BrokenOffHangError(death)

        monkeypatch.setattr(Child, "take", taken)
        with pytest.raises(KeyboardInterrupt) as broken:
            judge.judge(case_of(KERNEL, AddNeighbours(count=3)))

        (outcome,) = seen_in(broken.value)
        assert (outcome.verdict, outcome.is_hung) == (Verdict.CRASHES, True)
        assert outcome.message == "The target hung for 1 s."


def epoch_of(folder: Path, tell: Callable[[Answer], None], *, is_asked: bool = False) -> EpochDone:
    """Return a short epoch of a target that hangs, in a campaign that may have been stopped."""
    (folder / "targets.py").write_text(TARGETS, encoding="utf-8")
    entry = Entry(
        name="hanging",
        target=f"{folder / 'targets.py'}:hanging",
        signature=SIGNATURE,
        dtypes=("float32",),
        dims="H=1..8",
    )
    (cell,) = entry_cells([entry])
    settings = attrs.evolve(
        log_of(Store.open(folder / "store", create=True)).settings, timeout=SECONDS
    )
    hands, stopping = open_search_hands(settings, "cpu"), Stopping()
    stopping.is_asked = is_asked
    done = run_task(
        EpochTask(number=1, cell=cell, seed=1, seconds=0.2),
        hands,
        settings=settings,
        worker=0,
        device="cpu",
        stopping=stopping,
        tell=tell,
    )
    hands.close()
    assert isinstance(done, EpochDone)
    return done


def test_an_epoch_stores_what_hangs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """However short it is; nobody has stopped it, and what the target prints is not shown."""
    told: list[Answer] = []
    record = epoch_of(tmp_path, told.append).record

    assert (record.verdict, record.message, record.is_stopped) == ("CRASHES", "", False)
    (found,) = (answer.cause for answer in told if isinstance(answer, Found))
    assert [finding.cause for finding in record.findings] == [found.digest]
    assert Store.open(tmp_path / "store").cause(found.digest) == found
    assert not any(capfd.readouterr())


def test_an_epoch_that_is_stopped_says_so(tmp_path: Path) -> None:
    """By whatever ended its campaign: most are ended by their budget."""
    record = epoch_of(tmp_path, lambda _: None, is_asked=True).record

    assert (record.verdict, record.is_stopped) == ("VACUOUS", True)
    assert record.message == "It was ended with its campaign."


@pytest.mark.parametrize(("timeout", "least"), [(60.0, 1200.0), (600.0, 6000.0)])
def test_a_process_may_be_silent_for_as_long_as_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: float, least: float
) -> None:
    """Whoever ends it sooner would call a launch lost that had time left, on any machine."""
    asked: list[Orders] = []
    monkeypatch.setattr(ray_crew, "_Place", lambda *words: asked.append(words[-1]))
    settings = log_of(Store.open(tmp_path / "store", create=True)).settings
    settings = attrs.evolve(settings, timeout=timeout)
    here = _local(settings, plan(tmp_path / "store", workers=0))
    RayCrew(settings, cluster=RayCluster(None), share=Share(device="cpu", workers=1))
    (orders,) = asked
    seconds = orders.seconds_until_hung
    there = LocalCrew(orders.settings, devices=("cpu",), workers=0, seconds_until_hung=seconds)

    assert isinstance(here, LocalCrew)
    assert here._seconds_until_hung == there._seconds_until_hung == least

"""Sets in searches, in workers and in campaigns: counted case by case, and lost with nothing."""

import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch
from tests.unit.execution_cases import case_of, kernel_of
from tests.unit.sample_fixtures import PROVENANCE
from tests.unit.test_search import SPACE, FakeJudge, causes, drift
from torch import Tensor

from biprop.campaign.crew import Answered
from biprop.campaign.hands import CAMPAIGN
from biprop.campaign.log import CaseJournal, Log, Stopping
from biprop.campaign.messages import EpochDone, EpochTask, Settings
from biprop.campaign.parent import Parent
from biprop.campaign.places import this_process
from biprop.campaign.records import CampaignRecord, Place
from biprop.campaign.recovery import recover
from biprop.campaign.store import Store
from biprop.case import Case, canonical_json, case_to_data
from biprop.contract import load_contract
from biprop.fixtures.records import Fixture
from biprop.generation import LIMITS, Space, Sweep
from biprop.judgment import Outcome, Verdict
from biprop.operators import KernelReference
from biprop.relations import JudgeOptions
from biprop.reports.records import CellReport
from biprop.strategies.profiles import PROFILES
from biprop.strategies.search import search
from biprop.strategies.seeded import case_of_seed
from biprop.strategies.tally import classes_in
from biprop.supervision import Child, Journal, SupervisedJudge
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import AddNeighbours

REFERENCE = KernelReference(operator="m:f", target="m:f", signature="x[T,H] -> y[T,H]")
SETS_OF_4 = attrs.evolve(PROFILES["dev"], layouts=4)
TARGETS = """
import os

SIGNATURE = "x[T,H] -> y[T,H]"

def healthy(x):
    return x + 1

def ending(x):
    if len(x) == 8:
        os._exit(3)
    return x + 1

def drifting(x):
    return x + 1 + (len(x) == 8)
"""


@attrs.define(eq=False)
class SetJudge(FakeJudge):
    """A fake judge that keeps the sets that it is asked for."""

    sets: list[tuple[Case, ...]] = attrs.field(factory=list)

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Judge one by one."""
        self.sets.append(tuple(cases))
        return super().judge_set(cases, options)


def searched(rule: object, **words: object) -> tuple[CellReport, SetJudge]:
    """Search with a rule in sets of four."""
    judge = SetJudge(rule)  # type: ignore[arg-type]  # a rule
    values: dict[str, object] = {"profile": SETS_OF_4, "max_examples": 60, "seed": 2, **words}
    return search(judge, SPACE, **values), judge  # type: ignore[arg-type]  # of a search


class TestSearch:
    """What a search makes of sets."""

    def test_each_layout_is_an_example(self) -> None:
        """As many examples as asked for, in a quarter as many sets; all classes have evidence."""
        report, judge = searched(lambda *_: None)

        assert (report.verdict, report.examples) == (Verdict.HOLDS, 60)
        assert len(judge.asked) == sum(map(len, judge.sets)) == 60
        assert 15 <= len(judge.sets) == report.swept <= 18
        assert all(count.reason or count.powered >= 5 for count in report.classes.values())
        for cases in judge.sets:
            assert all(
                attrs.evolve(case, transforms=()) == attrs.evolve(cases[0], transforms=())
                for case in cases
            )

    def test_same_seed_searches_the_same(self) -> None:
        """Sets follow from the seed alone."""
        first, again = (searched(lambda *_: None)[1].sets for _ in range(2))

        assert first == again

    def test_every_cause_of_a_set_is_found(self) -> None:
        """Several failures of one set are told apart, and each is minimised."""

        def rule(_: Case, names: frozenset[str]) -> Outcome | None:
            if "T8" in names:
                return drift()
            return drift("rstd") if "T5" in names else None

        report, judge = searched(rule, max_examples=4)
        failing = [case for case in judge.sets[0] if {"T5", "T8"} & set(classes_in(case))]

        assert len(failing) > 1
        assert causes(report) == {("DRIFTS", "y", ("T8",)), ("DRIFTS", "rstd", ("T5",))}
        assert sum(finding.count for finding in report.findings) == len(failing)

    def test_one_repeat_serves_a_set(self) -> None:
        """All cases of a set are asked alike, and of no class are more than eight without one."""
        _, judge = searched(lambda *_: None)
        repeated: list[bool] = []
        asked = iter(judge.asked)
        since: dict[str, int] = {}
        for cases in judge.sets:
            (is_repeated,) = {next(asked)[1].repeat_canonical for _ in cases}
            repeated.append(is_repeated)
            for case in cases:
                for name in classes_in(case):
                    assert is_repeated or since.get(name, 8) + 1 <= 8 + len(cases)
                    since[name] = 0 if is_repeated else since.get(name, 8) + 1
        assert repeated[0]
        assert 0 < sum(repeated) < len(repeated)

    def test_a_sweep_goes_on_where_another_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One turn a set, from the one that was asked for, whatever the seed of the search is."""
        turns: list[Sweep | None] = []

        def noting(seed: int, space: Space) -> Case:
            if space.sweep not in turns:
                turns.append(space.sweep)
            return case_of_seed(seed, space)

        monkeypatch.setattr("biprop.strategies.search.case_of_seed", noting)
        first, _ = searched(lambda *_: None, max_examples=24, sweep=Sweep(seed=7, index=5))
        rest = Sweep(seed=7, index=first.swept)
        second, judge = searched(lambda *_: None, max_examples=24, seed=9, sweep=rest)

        assert second.swept == first.swept + len(judge.sets)
        assert turns == [Sweep(seed=7, index=index) for index in range(5, second.swept)]

    def test_profiles_have_sets_on_a_gpu_alone(self) -> None:
        """A search on a CPU and in the interpreter stays as it was measured."""
        for profile in (*PROFILES.values(), CAMPAIGN):
            assert profile.layouts_of("cpu") == profile.layouts_of("interpreter") == 1
        assert PROFILES["nightly"].layouts_of("gpu") == CAMPAIGN.layouts_of("gpu-target") == 4
        assert PROFILES["pr"].layouts_of("gpu") == 2
        assert set(LIMITS) >= {"gpu", "gpu-target"}

    def test_a_real_kernel_is_searched_in_sets(self) -> None:
        """What drifts from some number of rows on is found, and its classes are told."""

        def drifting(x: Tensor) -> Tensor:
            return x + 1 + (len(x) > 6)

        kernel = kernel_of(drifting, "x[T,H] -> y[T,H]")
        profile = attrs.evolve(SETS_OF_4, minimise_runs=100)
        report = search(InProcessJudge(kernel), SPACE_OF_X, profile=profile, max_examples=8)

        assert report.verdict is Verdict.DRIFTS
        assert report.examples == 8
        assert "T1" in report.findings[0].fixture.expect.cause.transforms


SPACE_OF_X = attrs.evolve(SPACE, signature=kernel_of(lambda x: x, "x[T,H] -> y[T,H]").signature)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of kernels."""
    path = tmp_path_factory.mktemp("targets") / "set_targets.py"
    path.write_text(textwrap.dedent(TARGETS), encoding="utf-8")
    return path


@attrs.define
class Noted(Journal):
    """A journal that remembers what was on disk at once."""

    folder: Path
    seen: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Write into the folder."""
        super().__init__(self.folder)

    @contextmanager
    def entries(self, **words: object) -> Iterator[None]:
        """Look at what is on disk while a set is judged."""
        with super().entries(**words):  # type: ignore[arg-type]  # passed on
            self.seen.append(len(list(self.folder.glob("inflight-*.json"))))
            yield


class TestWorkers:
    """A set in a process of its own."""

    def judge_of(
        self, targets: Path, name: str, child: Child, journal: Journal | None = None
    ) -> SupervisedJudge:
        """Open a kernel in a worker."""
        target = f"{targets}:{name}"
        reference = attrs.evolve(REFERENCE, operator=target, target=target)
        return SupervisedJudge(reference=reference, child=child, journal=journal)

    def cases(self, *counts: int) -> list[Case]:
        """Return layouts with some numbers of neighbours; one of them makes a launch of 8 rows."""
        kernel = kernel_of(lambda x: x, "x[T,H] -> y[T,H]")
        return [case_of(kernel, AddNeighbours(count=count)) for count in counts]

    def test_outcomes_cross_and_are_kept(self, targets: Path, child: Child, tmp_path: Path) -> None:
        """They are those of judging alone, asked for once; all cases are on disk meanwhile."""
        journal = Noted(tmp_path)
        cases, options = self.cases(1, 2, 4), [JudgeOptions()] * 3
        with self.judge_of(targets, "healthy", child, journal) as judge:
            together = judge.judge_set(cases, options)
            again = judge.judge_set(cases, options)
            known = [judge.judge(case) for case in cases]
            alone = [judge.judge(case, JudgeOptions(fresh=True)) for case in cases]

        assert [outcome.verdict for outcome in together] == [Verdict.HOLDS] * 3
        assert all(
            one is other is third for one, other, third in zip(together, again, known, strict=True)
        )
        assert [attrs.evolve(each, launches=0, seconds={}) for each in together] == [
            attrs.evolve(each, launches=0, seconds={}) for each in alone
        ]
        assert [each.launches for each in together] == [3, 1, 1]
        assert journal.seen == [3, 1, 1, 1]
        assert not journal.leftovers()
        assert not list(tmp_path.glob("inflight-*.json"))

    def test_a_set_that_kills_its_worker_is_judged_case_by_case(
        self, targets: Path, child: Child, tmp_path: Path
    ) -> None:
        """The case that does it crashes; the others hold, each in a worker that lives."""
        with self.judge_of(targets, "ending", child, Noted(tmp_path)) as judge:
            found = judge.judge_set(self.cases(3, 1, 5), [JudgeOptions()] * 3)

        assert [outcome.verdict.value for outcome in found] == ["HOLDS", "CRASHES", "HOLDS"]
        assert "exit status 3 in the transformed run" in found[1].message
        assert not list(tmp_path.glob("inflight-*.json"))

    def test_a_set_that_differs_is_judged_case_by_case(self, targets: Path, child: Child) -> None:
        """With repeats, mismatches and cause of the case that drifts."""
        with self.judge_of(targets, "drifting", child) as judge:
            found = judge.judge_set(self.cases(3, 1), [JudgeOptions()] * 2)

        assert [outcome.verdict.value for outcome in found] == ["HOLDS", "DRIFTS"]
        assert (found[1].repeats, len(found[1].mismatches)) == (5, 1)


class TestCampaigns:
    """A set in a process of a campaign."""

    def test_a_process_that_is_gone_leaves_every_case_of_its_set(self, tmp_path: Path) -> None:
        """Each becomes a finding to be judged again, once."""
        store = Store.open(tmp_path, create=True)
        gone = Place(host=this_process().host, namespace=this_process().namespace, pid=2**22 + 1)
        store.write_campaign(
            CampaignRecord(format="biprop-campaign-1", id="c", place=gone, began=1)
        )
        log = log_of(store)
        store.write_begun(attrs.evolve(log.begun, place=gone, parent=gone))
        kernel = kernel_of(lambda x: x, "x[T,H] -> y[T,H]")
        cases = [case_of(kernel, AddNeighbours(count=count)) for count in (1, 2, 3)]
        texts = [canonical_json(case_to_data(case)) for case in cases]
        entries = CaseJournal(log).entries(
            reference=REFERENCE, device="cpu", case_texts=texts, provenance=PROVENANCE
        )
        # It is never left: so does a process that is killed.
        entries.__enter__()
        (lost,) = recover(store, campaign="now")

        causes = lost.causes
        fixtures = [store.fixture(cause.fixture) for cause in causes]
        assert [fixture.case for fixture in fixtures if isinstance(fixture, Fixture)] == cases
        assert all(cause.is_lost for cause in causes)
        assert lost.epoch is not None
        assert {item.cause for item in lost.epoch.findings} == {cause.digest for cause in causes}
        assert not recover(store, campaign="now")

    def test_epochs_of_a_cell_sweep_on(self, tmp_path: Path) -> None:
        """One seed; from where the last one ended, apart from another that is at it."""
        (cell,) = cells(1)
        parent = Parent(
            store=Store.open(tmp_path, create=True),
            record=attrs.evolve(campaign("now"), workers=2, ended=None, reason=""),
            ledger=(),
            cells=(cell,),
            deadline=time.monotonic() + 600,
            seconds_an_epoch=5.0,
            tell=lambda _: None,
        )
        parent.begin(())
        first, beside = parent.next_task(0), parent.next_task(1)
        record = attrs.evolve(epoch(cell.id, campaign="now"), swept=30)
        parent.hear(Answered(worker=0, answer=EpochDone(record=record)))
        third = parent.next_task(0)

        assert isinstance(first, EpochTask)
        assert isinstance(beside, EpochTask)
        assert isinstance(third, EpochTask)
        sweeps = [task.sweep for task in (first, beside, third)]
        assert len({sweep.seed for sweep in sweeps if sweep is not None}) == 1
        assert len({first.seed, beside.seed, third.seed}) == 3
        assert [sweep.index for sweep in sweeps if sweep is not None] == [0, 64, 94]


def log_of(store: Store) -> Log:
    """Return the log of an epoch of a campaign `c`."""
    return Log(
        EpochTask(number=3, cell=cells()[0], seed=1, seconds=60.0),
        kind="epoch",
        about="",
        worker=0,
        device="cpu",
        settings=Settings(
            campaign="c",
            parent=this_process(),
            store=store.path,
            contract=load_contract(),
            open_hands=lambda *_: None,  # type: ignore[arg-type]  # nothing searches
        ),
        stopping=Stopping(),
        tell=lambda _: None,
    )

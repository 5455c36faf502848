"""Searches that draw a set while the one before is judged: what is asked, counted and dropped."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import attrs
import pytest
from tests.unit.execution_cases import case_of, kernel_of
from tests.unit.test_search import REFERENCE, SPACE, FakeJudge, Rule, causes, drift
from tests.unit.test_set_searches import TARGETS, SetJudge, log_of
from tests.unit.test_supervision import STUB

from biprop.campaign.hands import CAMPAIGN
from biprop.campaign.log import CaseJournal
from biprop.campaign.store import Store
from biprop.campaign.watching import WatchedJudge
from biprop.case import Case
from biprop.errors import BackendError, BipropError, OutputError, RestrictionError, UnsupportedError
from biprop.generation import Space
from biprop.judgment import Outcome, Verdict
from biprop.relations import JudgeOptions
from biprop.reports.records import CellReport
from biprop.strategies.profiles import PROFILES
from biprop.strategies.search import InterruptedSearchError, search
from biprop.strategies.seeded import layouts_of_seed
from biprop.strategies.tally import classes_in
from biprop.supervision import Child, Journal, Pending, SupervisedJudge
from biprop.supervision.child import ChildDiedError
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import AddNeighbours

AHEAD = attrs.evolve(PROFILES["dev"], layouts_gpu=4)
# One class, which every case has.
OF_T1 = attrs.evolve(SPACE, classes=("T1",))
X_TO_Y = "x[T,H] -> y[T,H]"
SPACE_OF_X = attrs.evolve(SPACE, signature=kernel_of(lambda x: x, X_TO_Y).signature)
Heard = list[tuple[str, tuple[Case, ...]]]


@attrs.define(eq=False)
class LaterJudge(FakeJudge):
    """Judges as a fake judge does, once outcomes are taken; remembers what was asked of it."""

    heard: Heard = attrs.field(factory=list)

    def begin(self, cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
        """Judge nothing yet."""
        self.heard.append(("asked", tuple(cases)))

        def take() -> tuple[Outcome, ...]:
            self.heard.append(("taken", tuple(cases)))
            return self.judge_set(cases, options)

        def drop() -> None:
            self.heard.append(("dropped", tuple(cases)))

        return Pending(cases=tuple(cases), take=take, drop=drop)

    def sets(self, word: str = "taken") -> list[tuple[Case, ...]]:
        """Return the sets that something was heard of."""
        return [cases for heard, cases in self.heard if heard == word]


def searched(
    rule: Rule, *, space: Space = OF_T1, lane: str = "gpu", **words: object
) -> tuple[CellReport, LaterJudge]:
    """Search with a rule in sets of four, on a GPU."""
    judge = LaterJudge(rule, heard=words.pop("heard", []))  # type: ignore[arg-type]  # a list
    values: dict[str, object] = {"profile": AHEAD, "max_examples": 24, "seed": 2, **words}
    return search(judge, space, lane=lane, **values), judge  # type: ignore[arg-type]  # of a search


@cache
def healthy() -> list[tuple[Case, ...]]:
    """Return the sets of a search that finds nothing."""
    return searched(lambda *_: None)[1].sets()


def failing_in(index: int) -> Rule:
    """Return a rule by which one set of the search of a healthy kernel fails."""
    seed = healthy()[index][0].seed
    return lambda case, names: drift() if case.seed == seed and "T1" in names else None


def raising_in(index: int, error: BipropError) -> Rule:
    """Return a rule by which judging one set of the search of a healthy kernel raises."""
    seed = healthy()[index][0].seed

    def rule(case: Case, _: frozenset[str]) -> Outcome | None:
        if case.seed == seed:
            raise error
        return None

    return rule


def drawing(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[int, tuple[Case, ...]], None]
) -> list[int | None]:
    """Do something after each drawn set of a search; return the turns of the sweep so far."""
    turns: list[int | None] = []

    def drawn(seed: int, space: Space, *rest: object, **words: object) -> tuple[Case, ...]:
        cases = layouts_of_seed(seed, space, *rest, **words)  # type: ignore[arg-type]  # passed on
        turns.append(None if space.sweep is None else space.sweep.index)
        then(len(turns) - 1, cases)
        return cases

    monkeypatch.setattr("biprop.strategies.search.layouts_of_seed", drawn)
    return turns


class TestSearch:
    """What a search asks for, and when."""

    @pytest.mark.parametrize("lane", ["gpu", "gpu-target", "cpu"])
    def test_a_set_is_drawn_while_one_is_judged(
        self, lane: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a GPU it is drawn before the other one is taken, and asked for after that."""
        heard: Heard = []
        drawing(monkeypatch, lambda _, cases: heard.append(("drawn", cases)))
        profile = attrs.evolve(AHEAD, layouts_gpu=1)
        report, judge = searched(lambda *_: None, lane=lane, profile=profile, heard=heard)
        sets = judge.sets("drawn")
        expected: Heard = []
        for index, cases in enumerate(sets):
            expected.append(("drawn", cases))
            expected += [("taken", sets[index - 1])] * (lane != "cpu" and index > 0)
            expected.append(("asked", cases))
            expected += [("taken", cases)] * (lane == "cpu" or index == len(sets) - 1)

        assert judge.heard == expected
        assert report.examples == len(judge.asked) == 24
        assert len(sets) == 24

    def test_a_judge_that_cannot_is_asked_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of one that judges in its caller's time nothing is drawn ahead, on a GPU either."""
        judge = SetJudge(lambda *_: None)
        judged: list[int] = []
        drawing(monkeypatch, lambda *_: judged.append(len(judge.sets)))
        report = search(judge, OF_T1, lane="gpu", profile=AHEAD, max_examples=24, seed=2)

        assert report.examples == sum(map(len, judge.sets)) == 24
        assert judged == list(range(len(judge.sets)))

    def test_same_seed_searches_the_same(self) -> None:
        """What is drawn depends on no time."""
        first, again = (searched(lambda *_: None)[1].heard for _ in range(2))

        assert first == again

    @pytest.mark.parametrize(("asked_for", "unpowered"), [(8, 4), (6, 3), (24, 20)])
    def test_no_example_too_many(self, asked_for: int, unpowered: int) -> None:
        """Evidence that the last set brings ends a search, though more was drawn without it."""
        seen: list[Case] = []

        def rule(case: Case, names: frozenset[str]) -> Outcome | None:
            seen.append(case)
            if len(seen) > unpowered:
                return None
            return Outcome(verdict=Verdict.HOLDS, classes=dict.fromkeys(names, "unpowered"))

        profile = attrs.evolve(AHEAD, powered_min=1)
        report, judge = searched(rule, profile=profile, max_examples=asked_for)

        assert report.verdict is Verdict.HOLDS
        assert report.examples == len(judge.asked) == asked_for

    def test_examples_beyond_those_asked_for_are_counted_exactly(self) -> None:
        """Where evidence never comes, a half more and eight, as ever."""

        def rule(_: Case, names: frozenset[str]) -> Outcome:
            return Outcome(verdict=Verdict.HOLDS, classes=dict.fromkeys(names, "unpowered"))

        report, judge = searched(rule, max_examples=10)

        assert report.verdict is Verdict.VACUOUS
        assert report.examples == len(judge.asked) == 10 + 5 + 8

    @pytest.mark.parametrize("index", [0, 3, 5])
    def test_a_failure_is_found_wherever_it_is(self, index: int) -> None:
        """In the last set of a round too, after which nothing is drawn."""
        report, judge = searched(failing_in(index))

        assert causes(report) == {("DRIFTS", "y", ("T1",))}
        taken = [case for cases in judge.sets() for case in cases]
        assert report.examples == len(taken)
        assert judge.sets() == judge.sets("asked")

    def test_what_was_drawn_beside_a_failure_is_dropped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is neither judged nor counted, and its turn of the sweep is taken by the next set."""
        _, healthy = searched(lambda *_: None, space=SPACE)
        fails, cases = next(
            (index, cases)
            for index, cases in enumerate(healthy.sets())
            if index and any("T8" in classes_in(case) for case in cases)
        )
        drawn: list[tuple[Case, ...]] = []
        turns = drawing(monkeypatch, lambda _, cases: drawn.append(cases))
        report, judge = searched(
            lambda case, names: drift() if case.seed == cases[0].seed and "T8" in names else None,
            space=SPACE,
        )

        dropped = drawn.pop(fails + 1)
        assert dropped[0].seed not in {case.seed for case, _ in judge.asked}
        assert [cases[0] for cases in drawn] == [cases[0] for cases in judge.sets()]
        assert causes(report) == {("DRIFTS", "y", ("T8",))}
        assert report.examples == sum(map(len, judge.sets())) == 24
        assert turns.pop(fails + 1) == turns[fails + 1]
        assert turns == list(range(len(turns)))
        assert report.swept == len(turns)

    @pytest.mark.parametrize("index", [0, 5])
    @pytest.mark.parametrize(
        ("error", "verdict"),
        [(UnsupportedError("No."), "UNSUPPORTED"), (BackendError("Other."), "FALLBACK")],
    )
    def test_an_error_of_a_set_is_told(self, index: int, error: BipropError, verdict: str) -> None:
        """Once, with its sentence; the set is not asked for again, nor is one drawn after it."""
        report, judge = searched(raising_in(index, error))

        assert (report.verdict.value, report.message) == (verdict, str(error))
        assert report.examples == sum(map(len, judge.sets()[:-1]))
        assert judge.sets() == judge.sets("asked")
        assert len(judge.sets()) == index + 1

    def test_other_errors_of_a_set_come_through(self) -> None:
        """As the judge's own."""
        with pytest.raises(OutputError, match="Output 'y' has shape"):
            searched(raising_in(5, OutputError("Output 'y' has shape [1].")))

    def test_an_error_of_drawing_comes_after_what_is_judged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The set under way is taken; its failure comes first, and what raised is drawn anew."""
        rule = failing_in(1)

        def fail(index: int, _: tuple[Case, ...]) -> None:
            if index == 2:
                raise RestrictionError("Nothing fits.")

        drawing(monkeypatch, fail)
        report, _ = searched(rule)
        assert causes(report) == {("DRIFTS", "y", ("T1",))}

        drawing(monkeypatch, fail)
        with pytest.raises(RestrictionError, match="Nothing fits"):
            searched(lambda *_: None)

    def test_interrupt_drops_what_is_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The report counts what was taken."""

        def stop(index: int, _: tuple[Case, ...]) -> None:
            if index == 2:
                raise KeyboardInterrupt

        drawing(monkeypatch, stop)
        heard: Heard = []
        with pytest.raises(InterruptedSearchError) as stopped:
            searched(lambda *_: None, heard=heard)

        assert stopped.value.report.examples == len(heard[0][1])
        assert stopped.value.report.swept == 1
        assert [word for word, _ in heard] == ["asked", "taken", "asked", "dropped"]

    def test_only_on_a_gpu(self) -> None:
        """Elsewhere both processes would want the same cores."""
        for profile in (*PROFILES.values(), CAMPAIGN):
            assert [
                profile.is_ahead_in(lane) for lane in ("cpu", "interpreter", "gpu", "gpu-target")
            ] == [False, False, True, True]


class TestChild:
    """A worker that is asked now, and heard later."""

    @pytest.fixture
    def stub(self, tmp_path: Path) -> Iterator[Child]:
        """Return a worker without torch that does as it is told."""
        path = tmp_path / "stub.py"
        path.write_text(STUB, encoding="utf-8")
        started = Child(device="cpu", command=(sys.executable, str(path)))
        yield started
        started.close()

    def test_an_answer_that_is_looked_at_late_is_no_hang(self, stub: Child) -> None:
        """However long whoever asked does something else."""
        stub.send({"do": "nothing"}, seconds=0.2)
        time.sleep(0.5)

        assert not stub.is_running
        assert stub.take() == {"did": "nothing"}
        assert stub.is_running

    def test_an_end_meanwhile_is_told_when_it_is_asked_for(self, stub: Child) -> None:
        """A worker that dies or hangs while nobody listens."""
        for what, words in (("exit", "exit status 7"), ("spin", "hung for 0.3 s")):
            stub.send({"do": what}, seconds=0.3)
            time.sleep(0.4)
            with pytest.raises(ChildDiedError, match=words):
                stub.take()

    def test_an_answer_that_nobody_took_is_not_taken_for_another(self, stub: Child) -> None:
        """Whoever asks next asks a new worker."""
        stub.send({"do": "nothing"}, seconds=5)

        assert stub.ask({"do": "slow"}, seconds=5) == {"did": "slow"}
        assert stub.starts == 2


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of kernels."""
    path = tmp_path_factory.mktemp("targets") / "ahead_targets.py"
    path.write_text(textwrap.dedent(TARGETS), encoding="utf-8")
    return path


class TestWorkers:
    """A set in a process of its own, while this one goes on."""

    @pytest.fixture
    def judge_of(
        self, targets: Path, child: Child, tmp_path: Path
    ) -> Callable[[str], SupervisedJudge]:
        """Return what opens a kernel in the worker, with a journal in the test's folder."""

        def opened(name: str) -> SupervisedJudge:
            target = f"{targets}:{name}"
            reference = attrs.evolve(REFERENCE, operator=target, target=target, signature=X_TO_Y)
            return SupervisedJudge(reference=reference, child=child, journal=Journal(tmp_path))

        return opened

    def cases(self, *counts: int) -> list[Case]:
        """Return layouts with some numbers of neighbours; one of them makes a launch of 8 rows."""
        kernel = kernel_of(lambda x: x, X_TO_Y)
        return [case_of(kernel, AddNeighbours(count=count)) for count in counts]

    def test_outcomes_are_those_of_waiting(
        self, judge_of: Callable[[str], SupervisedJudge], tmp_path: Path
    ) -> None:
        """Of a set and of one case; they are on disk until they are taken, and known after that."""
        judge, cases = judge_of("healthy"), self.cases(1, 2, 4)
        options = [JudgeOptions()] * 3
        here = InProcessJudge(kernel_of(lambda x: x + 1, X_TO_Y)).judge_set(cases, options)
        pending = judge.begin(cases, options)
        on_disk = len(list(tmp_path.glob("inflight-*.json")))
        found = pending.take()

        assert [(each.verdict, each.power, each.classes, each.launches) for each in found] == [
            (each.verdict, each.power, each.classes, each.launches) for each in here
        ]
        assert on_disk == 3
        assert not list(tmp_path.glob("inflight-*.json"))
        assert judge.begin(cases, options).take() == found
        assert judge.begin(cases[:1], options[:1]).take()[0] is judge.judge(cases[0])

    def test_a_worker_that_is_killed_meanwhile_costs_nothing(
        self, judge_of: Callable[[str], SupervisedJudge], child: Child, tmp_path: Path
    ) -> None:
        """Each case of its set is judged by the next one."""
        judge, starts = judge_of("healthy"), child.starts
        pending = judge.begin(self.cases(1, 3), [JudgeOptions()] * 2)
        process = child.process
        assert process is not None
        os.kill(process, signal.SIGKILL)
        found = pending.take()

        assert [outcome.verdict for outcome in found] == [Verdict.HOLDS] * 2
        assert child.starts == starts + 1
        assert not list(tmp_path.glob("inflight-*.json"))

    def test_what_is_dropped_leaves_a_worker_that_serves(
        self, judge_of: Callable[[str], SupervisedJudge], child: Child, tmp_path: Path
    ) -> None:
        """A new one: the late answer is nobody's, and nothing is left on disk."""
        judge, cases = judge_of("healthy"), self.cases(5, 6)
        pending = judge.begin(cases, [JudgeOptions()] * 2)
        process = child.process
        pending.drop()

        assert child.process is None
        assert not list(tmp_path.glob("inflight-*.json"))
        assert judge.judge(cases[0]).verdict is Verdict.HOLDS
        assert child.process != process

    def test_a_search_finds_who_kills_its_worker(
        self,
        judge_of: Callable[[str], SupervisedJudge],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Once, though it dies while the next set is drawn; every case is counted once."""
        judge = judge_of("ending")
        taken: list[tuple[Case, ...]] = []
        begin = judge.begin

        def noting(cases: Sequence[Case], options: Sequence[JudgeOptions]) -> Pending:
            pending = begin(cases, options)
            taken.append(pending.cases)
            return pending

        monkeypatch.setattr(judge, "begin", noting)
        profile = attrs.evolve(AHEAD, minimise_runs=2)
        space = attrs.evolve(SPACE_OF_X, classes=("T1",))
        report = search(judge, space, lane="gpu", profile=profile, max_examples=12, seed=8)

        assert report.verdict is Verdict.CRASHES
        assert len(report.findings) == 1
        assert report.examples == sum(map(len, taken)) == 12
        assert not list(tmp_path.glob("inflight-*.json"))

    def test_a_search_that_is_interrupted_leaves_a_worker_that_serves(
        self,
        judge_of: Callable[[str], SupervisedJudge],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The set that was judged meanwhile is not counted."""
        judge = judge_of("healthy")

        def stop(index: int, _: tuple[Case, ...]) -> None:
            if index == 2:
                assert list(tmp_path.glob("inflight-*.json"))
                raise KeyboardInterrupt

        drawing(monkeypatch, stop)
        with pytest.raises(InterruptedSearchError) as stopped:
            search(judge, SPACE_OF_X, lane="gpu", profile=AHEAD, max_examples=24)

        assert 0 < stopped.value.report.examples <= 4
        assert not list(tmp_path.glob("inflight-*.json"))
        assert judge.judge(self.cases(1)[0]).verdict is Verdict.HOLDS

    def test_a_campaign_counts_what_was_taken(
        self, targets: Path, child: Child, tmp_path: Path
    ) -> None:
        """All cases are on disk until then; behaviours are all there when they are asked for."""
        store = Store.open(tmp_path / "store", create=True)
        log = log_of(store)
        target = f"{targets}:healthy"
        reference = attrs.evolve(REFERENCE, operator=target, target=target, signature=X_TO_Y)
        inner = SupervisedJudge(reference=reference, child=child, journal=CaseJournal(log))
        judge, cases = WatchedJudge(inner, log), self.cases(1, 2, 3)
        pending = judge.begin(cases, [JudgeOptions()] * 3)
        running, is_running = store.read_running(log.begun.name, log.begun.number)
        before = log.examples
        outcomes = pending.take()

        assert (before, log.examples) == (0, 3)
        assert log.launches == sum(outcome.launches for outcome in outcomes) == 5
        assert is_running
        assert running is not None
        assert len((running.case, *running.others)) == 3
        assert not store.read_running(log.begun.name, log.begun.number)[1]
        assert "verdict HOLDS" in log.behaviours.texts

"""The parts of a campaign: its records, sums, turns, tasks and words; faults are tested apart."""

import errno
import json
import time
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch, finding, with_cause
from tests.unit.sample_fixtures import DRIFT, LINEAR, PROVENANCE, outcome, sample

from biprop.campaign import files
from biprop.campaign.behaviours import BEHAVIOURS_MAX, Behaviours
from biprop.campaign.cells import entry_cells, sharded, target_cells
from biprop.campaign.facts import behaviours_of
from biprop.campaign.hands import open_search_hands
from biprop.campaign.log import Log, Stopping, cause_of_fixture
from biprop.campaign.messages import (
    EpochTask,
    Settings,
)
from biprop.campaign.places import this_process
from biprop.campaign.records import (
    FORMAT,
    EpochFinding,
    EpochRecord,
    Heartbeat,
    ReplayRecord,
    Running,
    record_from_text,
    record_text,
)
from biprop.campaign.registered import registered_cells
from biprop.campaign.scheduler import FLOOR, Scheduler, epoch_seconds
from biprop.campaign.snapshot import POWERED_MIN
from biprop.campaign.store import Store
from biprop.campaign.text import duration, render_summary
from biprop.case import case_to_data
from biprop.contract import load_contract
from biprop.data.words import hash_words
from biprop.errors import FixtureError, UsageError
from biprop.fixtures.records import CONVERTER
from biprop.power.manifest import parse_manifest
from biprop.registry import build_registry
from biprop.reports.records import ClassCount

CELLS = cells()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


class TestRecords:
    """What lies in a store."""

    @pytest.mark.parametrize(
        "record",
        [
            epoch(findings=(EpochFinding(cause="ab", count=2),)),
            attrs.evolve(campaign(), provenance=PROVENANCE, options={"budget": "8h"}),
            cause_of_fixture(sample(), cell="cell0", campaign="one"),
            ReplayRecord(format=FORMAT, fixture="ab", status="FIXED", at=1.0, campaign="one"),
        ],
        ids=lambda record: type(record).__name__,
    )
    def test_a_record_is_what_it_was(self, record: object) -> None:
        """Its text gives it back, whole numbers for times included."""

        text = record_text(record)
        assert record_from_text(text, type(record)) == record
        assert text.isascii()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": "biprop-campaign-9"}, "no record of format"),
            ({"seconds": "long"}, "needs a number"),
            ({"surprise": 1}, "unknown key 'surprise'"),
            ({"examples": 10**400}, "too large, or not finite"),
            ({"seconds": float("nan")}, "too large, or not finite"),
        ],
    )
    def test_another_record_is_refused(self, change: dict[str, object], words: str) -> None:
        """One of another version is left alone."""

        data = {**json.loads(record_text(epoch())), **change}
        with pytest.raises(FixtureError, match=words):
            record_from_text(json.dumps(data), EpochRecord)

    def test_what_runs_is_written_as_its_record(self, store: Store) -> None:
        """The text that a log puts together by hand reads as a `Running`."""

        log = Log(
            EpochTask(number=3, cell=CELLS[0], seed=1, seconds=1.0),
            kind="epoch",
            about="",
            worker=0,
            device="cpu",
            settings=settings(store),
            stopping=Stopping(),
            tell=lambda _: None,
        )
        log.count(examples=2, launches=5, compared=7, seconds=0.25)
        with log.launching(
            '{"dtype":"float32"}', kind="kernel", reference=LINEAR, provenance=PROVENANCE
        ):
            running, is_running = store.read_running(log.begun.name, 3)
        assert running is not None
        assert is_running
        assert (running.number, running.examples, running.launches) == (3, 2, 5)
        assert (running.compared, running.seconds_in_kernels) == (7, 0.25)
        assert running.provenance == PROVENANCE
        assert running.reference["target"] == LINEAR.target
        assert running.case == {"dtype": "float32"}
        assert store.read_running(log.begun.name, 3) == (running, False)
        assert store.read_running(log.begun.name, 4) == (None, False)

    def test_a_torn_text_of_what_runs_next_hides_nothing(self, store: Store) -> None:
        """The one before it is whole, and tells what was counted."""

        running = store.running_file("one-0")
        for number in range(3):
            running.begin(record_text(running_record(number)))
            running.end()
        last, is_running = store.read_running("one-0", 1)
        assert last is not None
        assert (last.examples, is_running) == (2, False)
        (store.path / "running" / "one-0.over1").write_text('{"format":"biprop-cam')
        assert store.read_running("one-0", 1)[0] == last
        store.remove_running("one-0")
        assert not list((store.path / "running").iterdir())


def running_record(examples: int) -> Running:
    """Return the record of a case that is launched after others."""
    return Running(
        format=FORMAT,
        number=1,
        examples=examples,
        reference=CONVERTER.unstructure(LINEAR),
        case=case_to_data(sample().case),
    )


def settings(store: Store) -> Settings:
    """Return the settings of a campaign in a store."""
    return Settings(
        campaign="one",
        parent=this_process(),
        store=store.path,
        contract=load_contract(),
        open_hands=open_search_hands,
    )


class TestFiles:
    """How files are written."""

    def test_a_file_is_made_once(self, tmp_path: Path) -> None:
        """The second one to come is told so, and changes nothing."""

        assert files.make_once(tmp_path / "a.json", "first")
        assert not files.make_once(tmp_path / "a.json", "second")
        assert (tmp_path / "a.json").read_text() == "first"
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]

    def test_a_file_system_without_links_does_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as one of a shared folder."""

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr("os.link", refuse)
        assert files.make_once(tmp_path / "a.json", "first")
        assert not files.make_once(tmp_path / "a.json", "second")

    def test_what_cannot_be_written_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The old text stays, and nothing lies beside it."""

        path = tmp_path / "a.json"
        files.write(path, "old")

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            files.write(path, "new")
        assert files.is_full(caught.value)
        assert path.read_text() == "old"
        assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


class TestScheduler:
    """Whose turn it is."""

    def test_every_cell_has_a_first_turn(self) -> None:
        """Before any has a second one, and none is searched twice at a time."""

        scheduler = Scheduler(CELLS, seed=1)
        first = [scheduler.next() for _ in CELLS]
        assert {turn.cell.id for turn in first if turn is not None} == {cell.id for cell in CELLS}

    def test_news_get_half_of_the_time_and_the_floor_the_rest(self) -> None:
        """A cell that always has news never starves the others."""

        scheduler = Scheduler(CELLS, seed=1)
        for _ in range(300):
            turn = scheduler.next()
            assert turn is not None
            news = 9 if turn.cell.id == "cell1" else 0
            scheduler.ended(epoch(turn.cell.id, news=news))
        seconds = {name: turn.seconds for name, turn in scheduler.turns.items()}
        fair = sum(seconds.values()) / len(seconds)
        assert min(seconds.values()) >= FLOOR * fair - 2.0
        assert seconds["cell1"] > 1.8 * fair

    def test_without_news_it_goes_round(self) -> None:
        """Each cell gets the same time."""

        scheduler = Scheduler(CELLS, seed=1)
        for _ in range(60):
            turn = scheduler.next()
            assert turn is not None
            scheduler.ended(epoch(turn.cell.id))
        assert len({turn.seconds for turn in scheduler.turns.values()}) == 1

    def test_a_cell_that_cannot_be_searched_gets_no_more(self) -> None:
        """Unsupported at once, an error of the search when it comes three times in a row."""

        scheduler = Scheduler(CELLS, seed=1)
        scheduler.ended(epoch("cell0", verdict="UNSUPPORTED"))
        for _ in range(3):
            assert not scheduler.turns["cell1"].over
            scheduler.ended(epoch("cell1", verdict="ERROR"))
        for _ in range(3):
            scheduler.ended(attrs.evolve(epoch("cell2", verdict="ERROR"), is_lost=True))
        left = [turn.cell.id for turn in scheduler.turns.values() if not turn.over]
        assert left == ["cell2"]

    def test_epochs_suit_the_budget(self) -> None:
        """Several turns of each cell where it is short, a minute at most, a second at least."""

        assert epoch_seconds(budget=28_800, workers=8, cells=160) == 60
        assert epoch_seconds(budget=540, workers=8, cells=160) == pytest.approx(9)
        assert epoch_seconds(budget=30, workers=1, cells=160) == 1


class TestBehaviours:
    """What is new."""

    def test_what_is_known_is_not_new(self) -> None:
        """Nor what was seen before in the same epoch."""

        texts = tuple(behaviours_of(sample().case, outcome()))
        assert "verdict DRIFTS" in texts
        assert any(text.startswith("launch linear") for text in texts)
        assert any(text.startswith("size K 2^1") for text in texts)
        known = frozenset((hash_words(texts[0]),))
        found = Behaviours(known)
        found.add(iter(texts))
        found.add(iter(texts))
        assert len(found.found) == len(set(texts)) - 1
        assert texts[0] not in found.texts

    def test_there_is_a_most(self) -> None:
        """So that memory stays as it is."""

        found = Behaviours(frozenset())
        found.add(str(number) for number in range(2 * BEHAVIOURS_MAX))
        assert len(found.found) == BEHAVIOURS_MAX
        assert len(found.texts) == 64


class TestSnapshot:
    """Sums over a store."""

    def test_counts_are_sums_over_epochs(self, store: Store) -> None:
        """Of cells, of causes, and over time."""

        fixture = finding("cell0")
        record = cause_of_fixture(fixture, cell="cell0", campaign="one")
        store.write_campaign(campaign())
        store.add_cause(record, fixture)
        seen = (EpochFinding(cause=record.digest, count=3),)
        for number in range(1, 5):
            store.write_epoch(epoch(number=number, findings=seen, verdict="DRIFTS", news=number))
        snapshot = store.snapshot()
        cell = snapshot.cells[0]
        assert (cell.sum.epochs, cell.sum.examples, cell.sum.compared) == (4, 40, 120)
        assert cell.sum.share_in_kernels == 0.25
        assert cell.verdict == "DRIFTS"
        assert [state.count for state in snapshot.causes] == [12]
        assert [len(state.epochs) for state in snapshot.cells] == [4, 0, 0]
        spans = snapshot.throughput
        assert sum(span.examples for span in spans) == 40
        assert sum(span.behaviours for span in spans) == 10
        assert sum(span.causes for span in spans) == 1
        without = store.snapshot(with_epochs=False)
        assert without.cells[0].sum == cell.sum
        assert not without.cells[0].epochs

    def test_a_cell_holds_with_evidence_of_each_class(self, store: Store) -> None:
        """Summed over its epochs; classes that do not apply are left out."""

        store.write_campaign(campaign())
        counts = {
            "T1": ClassCount(examples=30, powered=POWERED_MIN // 2),
            "T8": ClassCount(reason="not declared"),
        }
        store.write_epoch(epoch(number=1, classes=counts))
        lacking = store.snapshot().cells[0]
        assert lacking.verdict == "VACUOUS"
        assert "T1 has 25 of 50" in lacking.message
        store.write_epoch(epoch(number=2, classes=counts))
        states = {cell.info.id: cell.verdict for cell in store.snapshot().cells}
        assert states == {"cell0": "HOLDS", "cell1": "", "cell2": ""}

    def test_causes_that_turned_out_to_be_one_count_as_one(self, store: Store) -> None:
        """With the cases of both."""

        store.write_campaign(campaign())
        first, second = finding("cell0"), sample(cause=attrs.evolve(DRIFT, transforms=("T6",)))
        records = [
            cause_of_fixture(fixture, cell="cell0", campaign="one") for fixture in (first, second)
        ]
        for record, fixture in zip(records, (first, second), strict=True):
            store.add_cause(record, fixture)
        store.update_cause(attrs.evolve(records[1], same_as=records[0].digest, status="minimal"))
        both = tuple(EpochFinding(cause=record.digest, count=2) for record in records)
        store.write_epoch(epoch(findings=both))
        (cause,) = store.snapshot().causes
        assert (cause.record.digest, cause.count) == (records[0].digest, 4)

    def test_what_is_told_by_one_id_is_one_finding(self, store: Store) -> None:
        """Of a cell, with the cases of both; the smallest one speaks for them."""

        store.write_campaign(campaign())
        raw = with_cause(store)
        small = attrs.evolve(raw, digest="small", status="minimal", settled=2.0)
        other = attrs.evolve(raw, digest="other", cell="cell1")
        for record in (small, other):
            store.update_cause(record)
        counts = zip((raw, small), (1, 2), strict=True)
        seen = tuple(EpochFinding(cause=cause.digest, count=count) for cause, count in counts)
        store.write_epoch(epoch(findings=seen))
        found = {state.record.digest: state.count for state in store.snapshot().findings}
        assert found == {"small": 3, "other": 0}

    def test_epochs_count_for_their_campaign(self, store: Store) -> None:
        """Whose examples are not those of the store."""

        for name, numbers in (("one", (1, 2)), ("two", (3,))):
            store.write_campaign(campaign(name))
            for number in numbers:
                store.write_epoch(epoch(number=number, campaign=name))
        snapshot = store.snapshot(with_epochs=False)
        assert [state.sum.examples for state in snapshot.campaigns] == [20, 10]
        text = render_summary(snapshot, campaign("two"))
        assert (
            "This campaign: 10 examples in 1 epoch, searched for 2.0 s of all processes.\n" in text
        )
        assert "All 2 campaigns of the store: 30 examples in 3 epochs, searched for 6.0 s" in text

    def test_files_that_cannot_be_read_are_told(self, store: Store) -> None:
        """And do no other harm."""

        store.write_campaign(campaign())
        (store.path / "epochs" / "torn.json").write_text('{"format": "biprop-cam')
        (store.path / "ledger.json").write_text("[]")
        problems = store.snapshot().problems
        assert len(problems) == 2
        assert problems[0].startswith("epochs/torn.json: ")
        assert problems[1].startswith(f"{store.path / 'ledger.json'} cannot be used: ")

    def test_a_name_that_is_no_id_leads_nowhere(self, store: Store) -> None:
        """Records come from strangers: none of them may name a file outside the store."""

        (store.path.parent / "aside.json").write_text("{}")

        assert store.fixture("../../aside") is None
        assert store.fixture("") is None

    def test_there_must_be_a_store(self, tmp_path: Path) -> None:
        """A folder of something else is refused."""

        with pytest.raises(UsageError, match="is no store of campaigns"):
            Store.open(tmp_path)


class TestClaims:
    """Who may shrink a cause."""

    def test_one_who_runs_keeps_it_and_one_who_is_gone_does_not(self, store: Store) -> None:
        """A second campaign gets it only then."""

        here = Heartbeat(format=FORMAT, campaign="one", place=this_process(), at=time.time())
        gone = attrs.evolve(here, place=attrs.evolve(here.place, pid=2**22 + 1))
        assert store.claim_minimising("ab", here)
        assert not store.claim_minimising("ab", attrs.evolve(here, campaign="two"))
        store.release_minimising("ab")
        assert store.claim_minimising("ab", gone)
        assert store.claim_minimising("ab", attrs.evolve(here, campaign="two"))

    def test_what_shrinks_to_the_same_has_one_owner(self, store: Store) -> None:
        """The first that asks."""

        assert store.owner_of("identity", "first") == "first"
        assert store.owner_of("identity", "second") == "first"
        assert store.owner_of("identity", "first") == "first"


class TestCells:
    """What a campaign goes through."""

    def test_registered_cells_are_those_of_the_matrix_and_the_caches(self) -> None:
        """In both directions, where there are two."""

        found = registered_cells(
            build_registry(), load_contract(), names=("silu", "paged"), dtypes=("float32",)
        )
        ids = [cell.id for cell in found]
        assert "silu-triton-float32-backward" in ids
        assert "cache-paged-HND-torch-float32" in ids
        assert len(ids) == len(set(ids)) == 8

    def test_shards_share_the_cells(self) -> None:
        """Each has its own, and together they have all."""

        parts = [sharded(CELLS, part=part, count=2) for part in (1, 2)]
        assert [len(part) for part in parts] == [2, 1]
        assert {cell.id for part in parts for cell in part} == {cell.id for cell in CELLS}
        with pytest.raises(UsageError, match="has no cell"):
            sharded(CELLS, part=4, count=4)
        with pytest.raises(UsageError, match="Two cells are called 'cell0'"):
            sharded((*CELLS, CELLS[0]), part=1, count=1)

    def test_targets_have_a_cell_for_each_dtype(self) -> None:
        """Entries of a manifest have their own dtypes, classes and direction."""

        entry = {
            "name": "mine",
            "target": "torch.nn.functional:silu",
            "signature": "x[T,H] -> y[T,H]",
            "dtype": ["float32", "bfloat16"],
            "direction": "backward",
            "classes": ["T1"],
        }
        found = entry_cells(parse_manifest(json.dumps([entry]), name="m.json"))
        assert [cell.id for cell in found] == [
            "mine-float32-backward",
            "mine-bfloat16-backward",
        ]
        (other,) = target_cells(LINEAR, dtypes=("float16",), directions=("forward",))
        assert other.id == "torch.nn.functional:linear-float16-forward"


class TestWords:
    """What people are told in the end."""

    def test_a_summary_names_findings_first(self, store: Store) -> None:
        """Then cells, what is known, and what went wrong."""

        record = with_cause(store)
        store.write_campaign(campaign())
        store.write_epoch(epoch(findings=(EpochFinding(cause=record.digest, count=2),)))
        fixture = finding("cell0")
        store.update_cause(attrs.evolve(record, status="minimal", settled=2.0), fixture)
        text = render_summary(store.snapshot(), campaign())
        assert text.splitlines()[:4] == [
            "Campaign one: its time is over, after 16 min 40 s.",
            "",
            "1 finding in the store:",
            f"  {fixture.id[:8]}  cell0 I-DRIFTS-forward-out-finite T1  (2 cases)",
        ]
        assert f"Look at it: biprop show {fixture.id[:8]} --store {store.path}\n" in text
        assert "3 cells: 1 DRIFTS, 2 no turn yet." in text

    def test_times_read_as_people_say_them(self) -> None:
        """Seconds, minutes, hours."""

        assert [duration(seconds) for seconds in (4.21, 200.4, 29_100)] == [
            "4.2 s",
            "3 min 20 s",
            "8 h 05 min",
        ]

"""Findings that are run again: when they are fixed, and what brings them back."""

import time
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch, finding, with_cause
from tests.unit.sample_fixtures import DRIFT, sample
from tests.unit.test_campaign_parent import parent_of

from biprop.campaign.crew import Answered
from biprop.campaign.log import cause_of_fixture
from biprop.campaign.messages import (
    EpochDone,
    EpochTask,
    Found,
    MinimiseDone,
    MinimiseTask,
    ReplayDone,
    ReplayTask,
)
from biprop.campaign.parent import Parent
from biprop.campaign.records import FORMAT, CauseRecord, EpochFinding, Known, ReplayRecord
from biprop.campaign.replays import is_fixed, status_of
from biprop.campaign.store import Store
from biprop.campaign.text import render_summary
from biprop.fixtures.replay import Replayed, Status
from biprop.judgment import Proof, Verdict

CELLS = cells()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


def settled(store: Store, cell: str = "cell0") -> CauseRecord:
    """Store a minimal cause that an epoch of an earlier campaign showed."""
    record = attrs.evolve(with_cause(store, cell), status="minimal", settled=2.0, found=1.0)
    store.update_cause(record, finding(cell))
    store.write_campaign(campaign())
    store.write_epoch(
        epoch(cell, number=int(cell[-1]) + 1, findings=(EpochFinding(cause=record.digest),))
    )
    return record


def replay(record: CauseRecord, status: str = "FIXED", *, at: float = 5000.0) -> ReplayRecord:
    """Return how a fixture did."""
    return ReplayRecord(format=FORMAT, fixture=record.fixture, status=status, at=at, campaign="now")


class TestStatus:
    """What is a sign that something was mended."""

    @pytest.mark.parametrize(
        ("status", "changes", "verdict", "is_small", "words"),
        [
            ("FIXED", (), Verdict.DRIFTS, True, "FIXED"),
            ("FIXED", (), Verdict.DRIFTS, False, "HELD"),
            ("FIXED", (), Verdict.NONDETERMINISTIC, True, "HELD"),
            ("FIXED", (), Verdict.CRASHES, True, "HELD"),
            ("FIXED", ("torch was 1, is 2",), Verdict.NONDETERMINISTIC, False, "FIXED"),
            ("FAILED", ("torch was 1, is 2",), Verdict.DRIFTS, True, "FAILED"),
            ("NOT REPRODUCED HERE", (), Verdict.DRIFTS, True, "NOT REPRODUCED HERE"),
            ("ERROR", (), Verdict.DRIFTS, True, "ERROR"),
        ],
    )
    def test_what_fails_now_and_then_needs_a_change(
        self,
        status: Status,
        changes: tuple[str, ...],
        verdict: Verdict,
        *,
        is_small: bool,
        words: str,
    ) -> None:
        """It would hold without one as well."""

        fixture = sample(cause=attrs.evolve(DRIFT, verdict=verdict))
        fixture = attrs.evolve(fixture, proof=Proof(complete=is_small))
        done = Replayed(fixture=fixture, status=status, exit_code=0, changes=changes)
        assert status_of(done) == words

    @pytest.mark.parametrize("status", ["FAILED", "DIFFERENT", "ERROR", "HELD"])
    def test_nothing_else_is_fixed(self, store: Store, status: str) -> None:
        """What could not be run stays what it was."""

        record = settled(store)
        assert is_fixed(replay(record), last_seen=4999.0)
        assert not is_fixed(replay(record), last_seen=5001.0)
        assert not is_fixed(None, last_seen=0.0)
        assert not is_fixed(replay(record, status), last_seen=0.0)


class TestStore:
    """What a store says of it."""

    def test_what_is_fixed_is_told_and_counts_no_more(self, store: Store) -> None:
        """Its cell is violated no more either."""

        record = settled(store)
        store.write_replay(replay(record))
        snapshot = store.snapshot()
        assert [cause.kind for cause in snapshot.causes] == ["fixed"]
        assert not snapshot.findings
        assert snapshot.cells[0].verdict != "DRIFTS"
        text = render_summary(snapshot, campaign())
        assert "No findings." in text
        assert f"Fixed: {record.fixture[:8]}  {record.name}, which fails no more." in text

    def test_a_fixed_finding_that_is_seen_again_counts_again(self, store: Store) -> None:
        """An epoch that ended later shows it."""

        record = settled(store)
        store.write_replay(replay(record, at=1015.0))
        assert not store.snapshot().findings
        store.write_epoch(epoch(number=2, findings=(EpochFinding(cause=record.digest),)))
        assert store.snapshot().findings

    def test_a_stale_entry_can_be_taken_out(self, store: Store) -> None:
        """An entry is stale only where it is needed no more."""

        record = settled(store)
        entry = f'{{"cause":"{record.fixture[:8]}","link":"https://example.org/1","reason":"Old."}}'
        ledger = store.path / "ledger.json"
        for status, is_stale in (("NOT REPRODUCED HERE", False), ("HELD", False), ("FIXED", True)):
            ledger.write_text(f'{{"format":"{FORMAT}","known":[{entry}]}}')
            store.write_replay(replay(record, status))
            snapshot = store.snapshot()
            assert [state.is_stale for state in snapshot.ledger] == [is_stale]
            assert ("take the entry out" in render_summary(snapshot, campaign())) == is_stale
            ledger.unlink()
            assert bool(store.snapshot().findings) != is_stale

    def test_the_case_that_shows_it_again_takes_its_place(self, store: Store) -> None:
        """The old one holds, and would call it fixed at each start."""

        record = settled(store)
        other = finding("cell1")
        assert other.id != record.fixture
        again = attrs.evolve(record, fixture=other.id, status="raw", settled=None)
        assert not store.add_cause(again, other)
        store.write_replay(replay(record))
        assert store.add_cause(again, other)
        assert not store.add_cause(again, other)
        stored = store.cause(record.digest)
        assert stored is not None
        assert (stored.fixture, stored.status, stored.settled) == (other.id, "raw", None)
        assert stored.formerly == (record.fixture,)
        assert stored.found == record.found
        assert [cause.kind for cause in store.snapshot().causes] == ["finding"]

    def test_the_very_case_that_was_fixed_can_come_back(self, store: Store) -> None:
        """That it held is forgotten then."""

        record = settled(store)
        store.write_replay(replay(record, at=1e12))
        assert store.add_cause(record, finding("cell0"))
        assert not store.replays()
        assert store.snapshot().findings


def replay_tasks(parent: Parent, *, worker: int = 0, count: int = 12) -> list[str]:
    """Return the kinds of tasks that one process gets, each answered at once."""
    kinds = []
    for number in range(count):
        task = parent.next_task(worker)
        assert task is not None
        kinds.append(type(task).__name__)
        if isinstance(task, EpochTask):
            record = epoch(task.cell.id, number=100 + number, campaign="now")
            parent.hear(Answered(worker=worker, answer=EpochDone(record=record)))
        elif isinstance(task, ReplayTask):
            parent.hear(Answered(worker=worker, answer=ReplayDone(record=None)))
    return kinds


class TestParent:
    """What a parent runs again, and what it tells."""

    def test_findings_of_earlier_campaigns_are_run_again_once(self, store: Store) -> None:
        """Between epochs, those outside the ledger too."""

        for cell in CELLS:
            settled(store, cell.id)
        parent, _ = parent_of(store, workers=1)
        kinds = replay_tasks(parent)
        assert kinds.count("ReplayTask") == len(CELLS)
        assert ("ReplayTask", "ReplayTask") not in set(pairwise(kinds))

    def test_one_process_does_it(self, store: Store) -> None:
        """The others search."""

        for cell in CELLS:
            settled(store, cell.id)
        parent, _ = parent_of(store, workers=2)
        first, second = parent.next_task(0), parent.next_task(1)
        assert isinstance(first, ReplayTask)
        assert isinstance(second, EpochTask)

    def test_what_nobody_ran_again_for_longest_comes_first(self, store: Store) -> None:
        """So that many of them all have their turn, over campaigns."""

        records = [settled(store, cell.id) for cell in CELLS]
        for record, at in zip(records[:2], (9.0, 8.0), strict=True):
            store.write_replay(replay(record, "FAILED", at=at))
        found = []
        for _ in CELLS:
            parent, _ = parent_of(store, workers=1)
            task = parent.next_task(0)
            assert isinstance(task, ReplayTask)
            found.append(task.fixture)
            store.write_replay(attrs.evolve(replay(records[0]), fixture=task.fixture, at=1e4))
        assert found == [record.fixture for record in (records[2], records[1], records[0])]

    def test_what_is_fixed_is_told_and_no_finding_any_more(self, store: Store) -> None:
        """And again where it fails later: what was mended may break."""

        record = settled(store)
        for status, kind, findings in (("FIXED", "fixed", 0), ("FAILED", "found", 1)):
            parent, events = parent_of(store, workers=1)
            done = replay(record, status, at=time.time())
            store.write_replay(done)
            parent.hear(Answered(worker=0, answer=ReplayDone(record=done)))
            assert events[-1].kind == kind
            assert record.fixture[:8] in events[-1].text
            status_now = parent.status()
            assert (status_now.findings, status_now.fixed) == (findings, 1 - findings)

    def test_what_another_campaign_saw_fixed_counts_so_in_the_end(self, store: Store) -> None:
        """As in the summary, which reads the whole store."""

        record = settled(store)
        parent, events = parent_of(store, workers=1)
        store.write_replay(replay(record, at=time.time()))
        assert (parent.status().findings, parent.status().fixed) == (1, 0)
        parent.end("budget")
        assert (events[-1].status.findings, events[-1].status.fixed) == (0, 1)

    def test_an_entry_that_is_needed_no_more_is_told(self, store: Store) -> None:
        """One that held elsewhere is not."""

        record = settled(store)
        entry = Known(cause=record.fixture[:8], link="https://example.org/1", reason="Known.")
        for status, kind in (("NOT REPRODUCED HERE", "begun"), ("FIXED", "stale")):
            parent, events = parent_of(store, ledger=(entry,), workers=1)
            done = replay(record, status, at=time.time())
            parent.hear(Answered(worker=0, answer=ReplayDone(record=done)))
            assert events[-1].kind == kind

    def test_what_is_found_again_is_told_shrunk_and_counted(self, store: Store) -> None:
        """With the case that shows it now."""

        record = settled(store)
        store.write_replay(replay(record))
        parent, events = parent_of(store, workers=1)
        assert parent.status().fixed == 1
        other = finding("cell1")
        again = attrs.evolve(
            cause_of_fixture(other, cell="cell0", campaign="now"), digest=record.digest
        )
        assert store.add_cause(again, other)
        parent.hear(Answered(worker=0, answer=Found(cause=again)))
        assert events[-1].text.startswith("found again: ")
        assert (parent.status().findings, parent.status().fixed) == (1, 0)
        tasks = [parent.next_task(0) for _ in range(2)]
        assert any(isinstance(task, MinimiseTask) for task in tasks)

    def test_what_shrinks_to_a_fixed_cause_is_told_as_that_one_again(self, store: Store) -> None:
        """With its old id, where its case is the same."""

        record = settled(store)
        store.write_replay(replay(record))
        waiting = attrs.evolve(record, digest="other", status="raw", settled=None)
        waiting = waiting.told_by(finding("cell1").id)
        parent, events = parent_of(store, workers=1)
        parent.hear(Answered(worker=0, answer=Found(cause=waiting)))
        assert (parent.status().findings, parent.status().fixed) == (1, 1)
        same = attrs.evolve(waiting, status="minimal", settled=2.0, same_as=record.digest)
        parent.hear(Answered(worker=0, answer=MinimiseDone(cause=same)))
        texts = [event.text.partition(":")[0] for event in events[-2:]]
        assert texts == ["found again", "shrunk"]
        assert (parent.status().findings, parent.status().fixed) == (1, 0)

    def test_what_shrinking_could_not_show_again_is_run_again(self, store: Store) -> None:
        """It was mended before anybody shrank it."""

        record = with_cause(store)
        parent, _ = parent_of(store, workers=1)
        task = parent.next_task(0)
        assert isinstance(task, MinimiseTask)
        held = attrs.evolve(task.cause, settled=time.time())
        store.update_cause(held)
        parent.hear(Answered(worker=0, answer=MinimiseDone(cause=held)))
        task = parent.next_task(0)
        assert isinstance(task, ReplayTask)
        assert task.fixture == record.fixture

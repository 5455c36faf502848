"""The parent of a campaign: which tasks it hands out, and what it makes of answers."""

import json
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch, with_cause

from biprop.campaign.crew import Answered
from biprop.campaign.events import Event, event_to_data
from biprop.campaign.messages import (
    EpochDone,
    EpochTask,
    Found,
    MinimiseDone,
    MinimiseTask,
    Progress,
    ReplayTask,
)
from biprop.campaign.parent import Parent
from biprop.campaign.places import this_process
from biprop.campaign.records import FORMAT, Heartbeat, Known
from biprop.campaign.store import Store
from biprop.data.words import hash_words

CELLS = cells()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


def parent_of(
    store: Store, *, ledger: tuple[Known, ...] = (), workers: int = 2
) -> tuple[Parent, list[Event]]:
    """Return a parent that was begun on a store, and what it tells."""
    events: list[Event] = []
    parent = Parent(
        store=store,
        record=attrs.evolve(campaign("now"), workers=workers, ended=None, reason=""),
        ledger=ledger,
        cells=CELLS,
        deadline=time.monotonic() + 600,
        seconds_an_epoch=5.0,
        tell=events.append,
    )
    parent.begin(())
    return parent, events


class TestParent:
    """What a parent hands out, and what it makes of answers."""

    def test_what_an_earlier_campaign_left_raw_is_shrunk(self, store: Store) -> None:
        """By one of two processes, while the other searches."""

        record = with_cause(store)
        parent, _ = parent_of(store)
        first, second = parent.next_task(0), parent.next_task(1)
        assert isinstance(first, MinimiseTask)
        assert first.cause == record
        assert isinstance(second, EpochTask)

    def test_a_cause_that_another_campaign_shrinks_is_left_to_it(self, store: Store) -> None:
        """As long as it runs."""

        record = with_cause(store)
        beat = Heartbeat(format=FORMAT, campaign="other", place=this_process(), at=time.time())
        store.claim_minimising(record.digest, beat)
        parent, _ = parent_of(store)
        assert isinstance(parent.next_task(0), EpochTask)

    def test_shrinking_alternates_with_epochs(self, store: Store) -> None:
        """One process never shrinks twice in a row."""

        for cell in CELLS:
            with_cause(store, cell.id)
        parent, _ = parent_of(store, workers=1)
        kinds = []
        for _ in range(4):
            task = parent.next_task(0)
            kinds.append(type(task))
            if isinstance(task, MinimiseTask):
                done = MinimiseDone(cause=attrs.evolve(task.cause, status="minimal"))
                store.release_minimising(task.cause.digest)
                parent.hear(Answered(worker=0, answer=done))
            elif isinstance(task, EpochTask):
                record = epoch(task.cell.id, number=task.number, campaign="now")
                parent.hear(Answered(worker=0, answer=EpochDone(record=record)))
        assert kinds == [MinimiseTask, EpochTask, MinimiseTask, EpochTask]

    def test_known_findings_are_replayed_and_not_reported(self, store: Store) -> None:
        """By fixture, digest or name; one that is unknown to the store is told."""

        record = with_cause(store)
        for name in (record.fixture, record.digest, record.name):
            entry = Known(cause=name, link="https://example.org/1", reason="It is known.")
            other = attrs.evolve(entry, cause="nothing")
            parent, events = parent_of(store, ledger=(entry, other))
            assert isinstance(parent.next_task(0), ReplayTask)
            assert isinstance(parent.next_task(1), EpochTask)
            assert parent.status().findings == 0
            assert parent.status().known == 1
            assert [event.kind for event in events] == ["begun", "note"]
            assert "nothing" in str(event_to_data(events[1])["text"])

    def test_a_cause_that_is_known_by_the_id_of_a_merged_one_is_not_shrunk(
        self, store: Store
    ) -> None:
        """It is known as well when it is told."""

        record = with_cause(store)
        merged = attrs.evolve(record, digest="another", fixture="0123456789abcdef")
        store.merge(merged, record.digest)
        entry = Known(cause="01234567", link="https://example.org/1", reason="It is known.")
        parent, events = parent_of(store, ledger=(entry,), workers=1)
        kinds = [type(parent.next_task(0)) for _ in range(2)]
        assert kinds == [ReplayTask, EpochTask]
        again = record.told_by("fedcba9876543210")
        parent.hear(Answered(worker=0, answer=Found(cause=again)))
        assert events[-1].text.startswith("known: ")
        assert (parent.status().known, parent.status().findings) == (1, 0)

    def test_what_others_found_is_counted_in_the_end(self, store: Store) -> None:
        """The summary counts it as well."""

        parent, events = parent_of(store, workers=1)
        with_cause(store)
        assert parent.status().findings == 0
        parent.end("budget")
        assert events[-1].kind == "ended"
        assert events[-1].status.findings == 1

    def test_a_merged_cause_is_not_to_be_shrunk(self, store: Store) -> None:
        """Though it was queued before it was merged."""

        record = with_cause(store)
        parent, _ = parent_of(store, workers=1)
        assert parent.status().to_shrink == 1
        parent._causes.put(attrs.evolve(record, status="minimal", same_as="another"))
        assert parent.status().to_shrink == 0

    def test_classes_that_fail_are_left_out_of_most_epochs(self, store: Store) -> None:
        """And a fourth of the epochs draws all."""

        record = with_cause(store)
        parent, _ = parent_of(store)
        parent.hear(Answered(worker=0, answer=Found(cause=record)))
        drawn = []
        for number in range(12):
            task = None
            while not isinstance(task, EpochTask):
                task = parent.next_task(1)
            if task.cell.id == "cell0":
                drawn.append(len(task.excluded))
            done = EpochDone(record=epoch(task.cell.id, number=number, campaign="now"))
            parent.hear(Answered(worker=1, answer=done))
        assert Counter(drawn) == {1: 3, 0: 1}

    def test_no_epoch_has_the_seed_of_another(self, store: Store) -> None:
        """A campaign on the same store goes on where the one before it ended."""

        seeds = []
        for start in range(2):
            parent, _ = parent_of(store)
            for number in range(6):
                task = parent.next_task(0)
                assert isinstance(task, EpochTask)
                seeds.append((task.cell.id, task.seed))
                record = epoch(task.cell.id, number=10 * start + number, campaign="now")
                store.write_epoch(record)
                parent.hear(Answered(worker=0, answer=EpochDone(record=record)))
        assert len(seeds) == len(set(seeds))

    def test_memory_does_not_grow_with_epochs(self, store: Store) -> None:
        """A parent keeps sums, and no epoch."""

        parent, events = parent_of(store)

        def many(count: int) -> None:
            for number in range(count):
                task = parent.next_task(0)
                assert isinstance(task, EpochTask)
                record = epoch(task.cell.id, number=number, news=1, campaign="now")
                words = frozenset((hash_words("behaviour", number % 100),))
                answer = EpochDone(record=record, behaviours=words)
                parent.hear(Answered(worker=0, answer=answer))
                events.clear()

        many(300)
        tracemalloc.start()
        try:
            many(50)
            before, _ = tracemalloc.get_traced_memory()
            many(500)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 50_000

    def test_a_new_id_is_told(self, store: Store) -> None:
        """With the one that was told before; by what a stop leaves too, and once."""

        record = with_cause(store)
        parent, events = parent_of(store, workers=1)
        task = parent.next_task(0)
        assert isinstance(task, MinimiseTask)
        smaller = task.cause.told_by("0123456789abcdef")
        parent.hear(Answered(worker=0, answer=MinimiseDone(cause=smaller, is_stopped=True)))
        assert events[-1].kind == "small"
        assert record.fixture[:8] in events[-1].text
        assert "(01234567)" in events[-1].text
        count = len(events)
        parent.hear(Answered(worker=0, answer=MinimiseDone(cause=smaller, is_stopped=True)))
        assert len(events) == count

    def test_what_a_process_merges_beside_is_told_and_counted(self, store: Store) -> None:
        """Two findings of one name are one."""

        waiting = with_cause(store)
        small = attrs.evolve(waiting, digest="another", fixture="0123456789abcdef")
        store.update_cause(small)
        parent, events = parent_of(store, workers=1)
        assert parent.status().findings == 2
        store.merge(waiting, small.digest)
        small = attrs.evolve(small, status="minimal", settled=2.0)
        parent.hear(Answered(worker=0, answer=MinimiseDone(cause=small)))
        assert parent.status().findings == 1
        # What it is the same as is known by then.
        assert "small" in [event.kind for event in events if not event.data.get("same_as")]
        assert events[-1].data["same_as"]
        merged = events[-1].text
        assert f"({waiting.fixture[:8]}) is " in merged
        assert merged.endswith("(01234567)")

    def test_examples_of_shrinking_and_replaying_are_none_of_the_search(self, store: Store) -> None:
        """They end without a record: the count would go down again."""

        with_cause(store)
        parent, _ = parent_of(store, workers=1)
        assert isinstance(parent.next_task(0), MinimiseTask)
        progress = Progress(examples=30, launches=1, compared=1, seconds_in_kernels=1.0)
        parent.hear(Answered(worker=0, answer=progress))
        assert parent.status().examples == 0

    def test_what_was_lost_with_its_process_is_no_news_of_a_defect(self, store: Store) -> None:
        """It is judged again first; programs are told that it was lost."""

        lost = attrs.evolve(with_cause(store), is_lost=True)
        parent, events = parent_of(store)
        parent.hear(Answered(worker=0, answer=Found(cause=attrs.evolve(lost, digest="another"))))
        told = next(event for event in events if event.kind == "found")
        assert told.data["lost"]
        assert told.text.startswith("to be judged again: cell0 ")
        assert told.text.endswith("which was lost with its process")

    def test_every_event_is_one_json_object(self, store: Store) -> None:
        """With its kind and time, and the cell or cause that it is about."""

        parent, events = parent_of(store)
        parent.hear(Answered(worker=0, answer=Found(cause=with_cause(store))))
        parent.hear(Answered(worker=0, answer=EpochDone(record=epoch(campaign="now"))))
        parent.look()
        parent.end("budget")
        data = [json.loads(json.dumps(event_to_data(event))) for event in events]
        assert [item["event"] for item in data] == ["begun", "found", "epoch", "status", "ended"]
        assert data[1]["name"] == "cell0 I-DRIFTS-forward-out-finite T1"
        assert data[2]["examples"] == 10
        assert data[2]["epoch_verdict"] == "HOLDS"
        assert "verdict" not in data[2]
        assert data[1]["text"].startswith("found: ")
        assert not data[1]["lost"]
        assert data[4]["status"]["findings"] == 1
        assert store.campaign("now") is not None

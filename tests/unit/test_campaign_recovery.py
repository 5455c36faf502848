"""What a campaign takes up of processes that are gone, and when those elsewhere count as gone."""

import time
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, finding, open_fake, with_cause
from tests.unit.sample_fixtures import LINEAR, PROVENANCE, sample

from biprop.campaign.events import Event
from biprop.campaign.log import Log, Stopping
from biprop.campaign.messages import EpochTask, Settings
from biprop.campaign.parent import Parent
from biprop.campaign.places import this_process
from biprop.campaign.records import (
    FORMAT,
    Begun,
    EpochFinding,
    Heartbeat,
    Place,
    Running,
    record_text,
)
from biprop.campaign.recovery import recover
from biprop.campaign.store import SECONDS_UNTIL_ALONE, SECONDS_UNTIL_LOST, Store
from biprop.case import case_to_data
from biprop.contract import load_contract
from biprop.fixtures.records import CONVERTER

ELSEWHERE = Place(host="another machine", pid=1)
# A process of this machine that has ended: no process has a number as large as that.
GONE = attrs.evolve(this_process(), pid=2**22 + 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


def left_elsewhere(store: Store, *, parent: Place, age: float, number: int = 4) -> None:
    """Leave a launch on another machine, of a campaign whose last heartbeat is so old."""
    begun = Begun(
        format=FORMAT,
        campaign="spread",
        worker=1,
        number=number,
        place=ELSEWHERE,
        parent=parent,
        cell="cell0",
        began=time.time() - 5,
    )
    running = Running(
        format=FORMAT,
        number=number,
        provenance=PROVENANCE,
        reference=CONVERTER.unstructure(LINEAR),
        case=case_to_data(sample().case),
    )
    store.write_begun(begun)
    store.running_file(begun.name).begin(record_text(running))
    store.write_heartbeat(
        Heartbeat(format=FORMAT, campaign="spread", place=parent, at=time.time() - age)
    )


@pytest.mark.parametrize(
    ("parent", "age", "count"),
    [
        (GONE, SECONDS_UNTIL_ALONE - 20, 0),
        (GONE, SECONDS_UNTIL_ALONE + 5, 1),
        (this_process(), SECONDS_UNTIL_LOST + 5, 0),
        (ELSEWHERE, SECONDS_UNTIL_ALONE + 5, 0),
        (ELSEWHERE, SECONDS_UNTIL_LOST + 5, 1),
    ],
)
def test_a_process_elsewhere_ends_soon_after_its_campaign(
    store: Store, parent: Place, age: float, count: int
) -> None:
    """At once would be too early: for as long as its lease it may write under the same name."""

    left_elsewhere(store, parent=parent, age=age)
    store.sweep()
    assert len(recover(store, campaign="now")) == count


def test_a_second_lost_case_of_a_cause_is_told_as_it_is_stored(store: Store) -> None:
    """What it turned out to be is kept."""

    age = SECONDS_UNTIL_LOST + 5
    left_elsewhere(store, parent=ELSEWHERE, age=age, number=4)
    (first,) = recover(store, campaign="now")
    settled = attrs.evolve(first.causes[0], status="minimal", settled=2.0)
    store.update_cause(settled)
    left_elsewhere(store, parent=ELSEWHERE, age=age, number=5)
    (second,) = recover(store, campaign="now")
    assert second.causes == tuple(store.causes().values()) == (settled,)


def parent_of(store: Store) -> tuple[Parent, list[Event]]:
    """Return a parent that has not begun, and what it tells."""
    events: list[Event] = []
    parent = Parent(
        store=store,
        record=attrs.evolve(campaign("now"), ended=None, reason=""),
        ledger=(),
        cells=cells(),
        deadline=time.monotonic() + 600,
        seconds_an_epoch=5.0,
        tell=events.append,
    )
    return parent, events


def test_what_a_start_takes_up_is_told(store: Store) -> None:
    """Its id is known before it is told what became of it; what is settled is told no more."""

    age = SECONDS_UNTIL_LOST + 5
    left_elsewhere(store, parent=ELSEWHERE, age=age)
    recovered = recover(store, campaign="now")
    ((cause,),) = (lost.causes for lost in recovered)
    parent, events = parent_of(store)
    parent.begin(recovered)
    told = [event.text for event in events if event.kind in {"begun", "lost", "found"}]
    assert told[1].startswith("lost: a process with cell0")
    assert told[2].startswith("to be judged again: cell0 ")
    assert cause.fixture[:8] in told[2]
    assert parent.status().to_shrink == 1

    store.update_cause(attrs.evolve(cause, status="minimal", settled=2.0))
    left_elsewhere(store, parent=ELSEWHERE, age=age, number=5)
    parent, events = parent_of(store)
    parent.begin(recover(store, campaign="now"))
    assert [event.kind for event in events] == ["begun", "lost"]
    assert (parent.status().to_shrink, parent.status().findings) == (0, 1)


def test_a_campaign_that_runs_takes_up_what_others_leave(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is lost meanwhile is not left to the next start."""

    parent, events = parent_of(store)
    parent.begin(())
    left_elsewhere(store, parent=ELSEWHERE, age=SECONDS_UNTIL_LOST + 5)
    parent.look()
    assert not [event for event in events if event.kind == "lost"]
    monkeypatch.setattr("biprop.campaign.parent._SECONDS_A_HEARTBEAT", 0.0)
    parent.look()
    (told,) = (event.text for event in events if event.kind == "lost")
    assert "was gone when campaign now looked again" in told
    assert [event.kind for event in events].count("found") == 1
    assert parent.status().to_shrink == 1
    assert not list((store.path / "running").iterdir())


def test_a_cause_is_counted_wherever_its_process_is_killed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch names it before it is stored, and what was not stored is left out."""

    settings = Settings(
        campaign="one",
        parent=GONE,
        store=store.path,
        contract=load_contract(),
        open_hands=open_fake,
    )
    task = EpochTask(number=1, cell=cells()[0], seed=1, seconds=1.0)
    log = Log(
        task,
        kind="epoch",
        about="",
        worker=0,
        device="cpu",
        settings=settings,
        stopping=Stopping(),
        tell=lambda _: None,
    )

    def killed(*_: object) -> bool:
        raise SystemExit

    monkeypatch.setattr(Store, "add_cause", killed)
    with pytest.raises(SystemExit):
        log.found(finding("cell0"))
    monkeypatch.undo()
    ((_, begun),) = store.begun()
    stored = with_cause(store, "cell1")
    named = (*begun.findings, EpochFinding(cause=stored.digest))
    store.write_begun(attrs.evolve(begun, place=GONE, findings=named))
    (lost,) = recover(store, campaign="now")
    assert [item.cause for item in begun.findings] == [with_cause(store, "cell0").digest]
    assert lost.epoch is not None
    assert [item.cause for item in lost.epoch.findings] == [stored.digest]

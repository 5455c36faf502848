"""Faults of every kind in a campaign: nothing is lost, nothing comes twice, and it goes on.

Searches are pretended (`campaign_fakes`); processes, signals and files are real. Kernels that crash
are the part of tests/cli/test_fuzz.py and of tests/unit/test_supervision.py.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import (
    cells,
    finding,
    open_full,
    open_silent,
    open_torn,
    plan,
    reconciled,
    run,
)
from tests.unit.sample_fixtures import LINEAR, PROVENANCE, sample

from biprop.campaign.places import is_running, this_process
from biprop.campaign.records import (
    FORMAT,
    Begun,
    CampaignRecord,
    EpochRecord,
    Heartbeat,
    Place,
    Running,
    record_text,
)
from biprop.campaign.recovery import recover, take_up
from biprop.campaign.store import SECONDS_UNTIL_LOST, Store
from biprop.case import case_to_data
from biprop.fixtures.records import CONVERTER

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10
KILLS_NIGHTLY = 200
# A process of this machine that has ended: no process has a number as large as that.
GONE = attrs.evolve(this_process(), pid=2**22 + 1)


def workers_of(store: Path) -> list[int]:
    """Return the processes that do something right now, and are not killed yet."""
    begun = (begun for _, begun in Store.open(store).begun())
    return [item.place.pid for item in begun if is_running(item.place)]


def test_processes_killed_at_any_moment_lose_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Workers and parents are killed at random; each epoch is recorded once, with its cases."""

    is_nightly = request.config.getoption("--biprop-profile") == "nightly"
    kills = count = KILLS_NIGHTLY if is_nightly else KILLS
    draw, store = random.Random(7), tmp_path / "store"

    def started() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.unit.campaign_fakes", str(store), "2"]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    parent = started()
    try:
        while kills:
            time.sleep(draw.uniform(0.0, 0.2))
            if parent.poll() is not None:
                parent = started()
            busy = workers_of(store) if (store / "campaigns").is_dir() else []
            if not busy:
                continue
            kills -= 1
            # The last one is the parent, so that somebody else takes up what is left.
            if not kills or draw.random() < 0.2:
                parent.kill()
                parent.wait()
            else:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(busy), signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()
    # Its workers end by themselves.
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and workers_of(store):
        time.sleep(0.05)
    run(plan(store), epochs=2)
    snapshot = reconciled(store)
    assert snapshot.campaigns[-1].status == "ended"
    assert {state.status for state in snapshot.campaigns[:-1]} == {"lost"}
    # Some processes had just recorded what they did; a parent takes two with it.
    assert count // 5 <= sum(cell.sum.lost for cell in snapshot.cells) <= 2 * count
    assert any(cause.record.is_lost for cause in snapshot.causes)


def test_a_kill_before_the_rename_costs_one_epoch(tmp_path: Path) -> None:
    """A process killed between temporary file and rename leaves a store that reads well."""

    _, events = run(plan(tmp_path / "store", open_hands=open_torn), epochs=3)
    snapshot = reconciled(tmp_path / "store")
    assert (tmp_path / "torn.txt").exists()
    assert sum(cell.sum.lost for cell in snapshot.cells) == 1
    assert [event.kind for event in events].count("lost") == 1
    assert list((tmp_path / "store" / "epochs").glob(".tmp-*"))


def test_a_hung_process_is_replaced(tmp_path: Path) -> None:
    """A process that says nothing is ended, what it ran is a finding, and its cell goes on."""

    what = attrs.evolve(plan(tmp_path / "store", open_hands=open_silent), seconds_until_hung=1.0)
    _, events = run(what, epochs=3)
    snapshot = reconciled(tmp_path / "store")
    lost = [cause.record for cause in snapshot.causes if cause.record.is_lost]
    assert [record.verdict for record in lost] == ["CRASHES"]
    assert any("said nothing for 1 s" in event.text for event in events)
    assert sum(cell.sum.epochs for cell in snapshot.cells) > 1


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """Nothing is launched while nothing can be written, and all goes on once there is room."""

    full, done = tmp_path / "full.txt", []
    store = tmp_path / "store"

    def fill() -> None:
        while not list((store / "epochs").glob("*.json")):
            time.sleep(0.02)
        full.touch()
        time.sleep(1.2)
        done.append(len((tmp_path / "truth.txt").read_text().split()))
        time.sleep(0.3)
        done.append(len((tmp_path / "truth.txt").read_text().split()))
        full.unlink()

    filler = threading.Thread(target=fill)
    filler.start()
    _, events = run(plan(store, open_hands=open_full), epochs=6)
    filler.join()
    snapshot = reconciled(store)
    assert done[0] == done[1], "cases were launched that were not written down"
    assert sum(cell.sum.examples for cell in snapshot.cells) > done[1]
    waiting = {event.status.waiting for event in events} - {""}
    assert waiting
    for words in waiting:
        assert words.startswith("No space left on device: make room for ")
        assert str(tmp_path) in words
    assert not any(cell.sum.lost for cell in snapshot.cells)


def left_behind(store: Store, *, place: Place, campaign: str = "earlier") -> Begun:
    """Leave what a process leaves that is killed while a case runs."""
    begun = Begun(
        format=FORMAT,
        campaign=campaign,
        worker=0,
        number=4,
        place=place,
        parent=place,
        cell="cell0",
        began=time.time() - 5,
    )
    running = Running(
        format=FORMAT,
        number=4,
        device="cpu",
        examples=7,
        launches=14,
        compared=21,
        provenance=PROVENANCE,
        reference=CONVERTER.unstructure(LINEAR),
        case=case_to_data(sample().case),
    )
    store.write_begun(begun)
    store.running_file(begun.name).begin(record_text(running))
    return begun


def test_what_a_lost_process_was_running_is_a_finding(tmp_path: Path) -> None:
    """The record of its epoch has the counts up to the case that was running, which CRASHES."""

    store = Store.open(tmp_path, create=True)
    left_behind(store, place=GONE)
    (lost,) = recover(store, campaign="now")
    assert lost.epoch is not None
    assert (lost.epoch.examples, lost.epoch.launches, lost.epoch.compared) == (7, 14, 21)
    assert lost.epoch.is_lost
    (cause,) = store.snapshot().causes
    assert cause.record.verdict == "CRASHES"
    assert cause.fixture is not None
    assert "was gone when campaign now began" in cause.fixture.expect.message
    assert not list((tmp_path / "begun").iterdir())
    assert not recover(store, campaign="now")


def test_only_one_of_many_takes_up_what_was_left(tmp_path: Path) -> None:
    """Campaigns that begin at the same time on one store record a lost epoch once."""

    store = Store.open(tmp_path, create=True)
    for _ in range(20):
        left_behind(store, place=GONE)
        found: list[int] = []
        gate = threading.Barrier(4)
        for number in range(4):
            here = CampaignRecord(
                format=FORMAT, id=f"campaign{number}", place=this_process(), began=time.time()
            )
            store.write_campaign(here)

        def take(number: int, gate: threading.Barrier = gate, found: list[int] = found) -> None:
            gate.wait()
            found.extend(number for _ in recover(store, campaign=f"campaign{number}"))

        takers = [threading.Thread(target=take, args=(number,)) for number in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
        assert len(found) == 1
    assert [cell.sum.epochs for cell in store.snapshot().cells] == []
    assert len(list((tmp_path / "epochs").iterdir())) == 1


def test_who_is_killed_while_taking_up_is_followed_by_another(tmp_path: Path) -> None:
    """A claim of a campaign that is gone is taken over, whatever it had written by then."""

    store = Store.open(tmp_path, create=True)
    begun = left_behind(store, place=GONE)
    path = tmp_path / "begun" / f"{begun.name}.json"
    assert store.claim_begun(path, campaign="killed") is not None
    store.write_campaign(CampaignRecord(format=FORMAT, id="killed", place=GONE, began=time.time()))
    (lost,) = recover(store, campaign="now")
    assert lost.epoch is not None
    assert len(list((tmp_path / "epochs").iterdir())) == 1
    assert len(list((tmp_path / "causes").iterdir())) == 1


def test_an_epoch_that_was_recorded_is_not_recorded_again(tmp_path: Path) -> None:
    """A process killed between the record of its epoch and the end leaves no lost epoch."""

    store = Store.open(tmp_path, create=True)
    begun = left_behind(store, place=GONE)
    record = EpochRecord(
        format=FORMAT,
        campaign=begun.campaign,
        worker=begun.worker,
        number=begun.number,
        cell=begun.cell,
        began=begun.began,
        verdict="HOLDS",
        examples=9,
    )
    store.write_epoch(record)
    (lost,) = recover(store, campaign="now")
    assert lost.epoch is None
    assert store.epoch(record.name) == record
    assert not list((tmp_path / "causes").iterdir())


@pytest.mark.parametrize(("age", "count"), [(SECONDS_UNTIL_LOST - 60, 0), (700.0, 1)])
def test_a_lost_machine_is_told_by_its_heartbeat(tmp_path: Path, age: float, count: int) -> None:
    """What runs on another machine is taken up when that has been silent for ten minutes."""

    store = Store.open(tmp_path, create=True)
    place = Place(host="another machine", pid=1)
    left_behind(store, place=place, campaign="there")
    beat = Heartbeat(format=FORMAT, campaign="there", place=place, at=time.time() - age)
    store.write_heartbeat(beat)
    assert len(recover(store, campaign="now")) == count


def test_a_process_that_runs_is_left_alone(tmp_path: Path) -> None:
    """Another campaign of this machine keeps what it does."""

    store = Store.open(tmp_path, create=True)
    begun = left_behind(store, place=this_process())
    assert not recover(store, campaign="now")
    assert (tmp_path / "begun" / f"{begun.name}.json").exists()


def test_a_case_is_not_to_blame_for_the_end_of_its_campaign(tmp_path: Path) -> None:
    """What the campaign ended itself is recorded as stopped, without a finding."""

    store = Store.open(tmp_path, create=True)
    begun = left_behind(store, place=GONE)
    lost = take_up(store, begun.name, campaign="earlier", words="was ended", is_stopped=True)
    assert lost is not None
    assert lost.epoch is not None
    assert (lost.epoch.is_stopped, lost.epoch.is_lost, lost.epoch.examples) == (True, False, 7)
    assert not list((tmp_path / "causes").iterdir())


def test_a_lost_case_that_takes_down_a_second_process_crashes(tmp_path: Path) -> None:
    """Shrinking begins with judging it again; a process that ends of it is evidence enough."""

    store = Store.open(tmp_path, create=True)
    left_behind(store, place=GONE)
    (lost,) = recover(store, campaign="now")
    (running,) = lost.causes
    store.update_cause(attrs.evolve(running, status="minimising"))
    begun = attrs.evolve(left_behind(store, place=GONE), task="minimise", about=running.digest)
    store.write_begun(begun)
    recover(store, campaign="then")
    cause = store.cause(running.digest)
    assert cause is not None
    assert (cause.status, cause.attempts) == ("minimal", 1)
    assert (tmp_path / "findings" / f"{cause.fixture}.json").exists()


def test_two_campaigns_share_a_store(tmp_path: Path) -> None:
    """What both find is stored once, and counted for both."""

    store = tmp_path / "store"
    first = threading.Thread(target=run, args=(plan(store),))
    first.start()
    run(attrs.evolve(plan(store), seed=2))
    first.join()
    snapshot = reconciled(store)
    assert len(snapshot.campaigns) == 2
    assert {cause.record.digest for cause in snapshot.causes} <= {
        Store.open(store).snapshot().causes[place].record.digest for place in range(len(cells()))
    }
    assert {cause.record.fixture for cause in snapshot.causes} <= {
        finding(cell.id).id for cell in cells()
    }


def test_a_stop_ends_a_campaign_soon_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Epochs under way are recorded, and sums go on from there."""

    store = tmp_path / "store"
    record, events = run(plan(store), epochs=2)
    asked = next(event.at for event in events if event.kind == "stopping")
    assert record.reason == "interrupted"
    assert record.ended is not None
    assert record.ended - asked < 10
    before = reconciled(store)
    run(plan(store), epochs=4)
    after = reconciled(store)
    assert sum(cell.sum.examples for cell in after.cells) > sum(
        cell.sum.examples for cell in before.cells
    )
    seeds = [epoch.seed for cell in after.cells for epoch in cell.epochs]
    assert len(seeds) == len(set(seeds)), "an epoch was searched twice"

"""What of a cell is not known, and whose fault it is not: nothing is made of either."""

import errno
import time
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch, open_fake
from tests.unit.test_set_searches import log_of

from biprop.campaign import log as logs
from biprop.campaign.files import RunningFile
from biprop.campaign.hands import open_search_hands
from biprop.campaign.log import Stopping
from biprop.campaign.messages import EpochDone, EpochTask
from biprop.campaign.records import EpochRecord
from biprop.campaign.scheduler import Scheduler
from biprop.campaign.snapshot import POWERED_MIN
from biprop.campaign.store import Store
from biprop.campaign.working import run_task
from biprop.errors import BipropError, DeviceError, WorkerKilledError
from biprop.reports.records import ClassCount
from biprop.supervision import Child

CELLS = cells()
POWERED = {"T1": ClassCount(examples=80, powered=POWERED_MIN)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(tmp_path / "store", create=True)


def test_a_cell_of_which_only_lost_epochs_tell_is_vacuous(store: Store) -> None:
    """Their counts are known, and what they showed is not; one that tells is enough."""

    store.write_campaign(campaign())
    for number in range(2):
        lost = epoch(number=number, verdict="ERROR")
        store.write_epoch(attrs.evolve(lost, is_lost=not number, is_stopped=bool(number)))
    cell = store.snapshot().cells[0]
    assert (cell.verdict, cell.sum.compared) == ("VACUOUS", 60)
    assert "is not known" in cell.message

    store.write_epoch(epoch(number=3, classes=POWERED))
    assert store.snapshot().cells[0].verdict == "HOLDS"


@pytest.mark.parametrize(
    ("error", "over"), [(WorkerKilledError("Killed."), ""), (DeviceError("Gone."), "Gone.")]
)
def test_workers_that_are_killed_end_no_cell(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BipropError, over: str
) -> None:
    """Whatever else keeps a cell from being searched does, in the end."""

    def start(_: Child) -> None:
        raise error

    monkeypatch.setattr(Child, "start", start)
    settings = log_of(store).settings
    scheduler = Scheduler(CELLS[:1], seed=1)
    records: list[EpochRecord] = []
    for number in range(4):
        done = run_task(
            EpochTask(number=number, cell=CELLS[0], seed=1, seconds=1.0),
            open_search_hands(settings, "cpu"),
            settings=settings,
            worker=0,
            device="cpu",
            stopping=Stopping(),
            tell=lambda _: None,
        )
        assert isinstance(done, EpochDone)
        records.append(done.record)
        scheduler.ended(done.record)

    assert {record.verdict for record in records} == {"ERROR"}
    assert {record.message for record in records} == {str(error)}
    assert {record.is_lost for record in records} == {not over}
    assert scheduler.turns[CELLS[0].id].over == over


def test_waiting_for_a_disk_is_no_time_of_a_search(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does an epoch end of it."""

    monkeypatch.setattr(logs, "_SECONDS_A_TRY", 0.3)
    settings = log_of(store).settings
    writes = iter((False, True, True))
    write = RunningFile.begin

    def full(self: RunningFile, text: str) -> None:
        if next(writes, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, text)

    monkeypatch.setattr(RunningFile, "begin", full)
    start = time.monotonic()
    done = run_task(
        EpochTask(number=1, cell=CELLS[0], seed=1, seconds=0.4),
        open_fake(settings, "cpu"),
        settings=settings,
        worker=0,
        device="cpu",
        stopping=Stopping(),
        tell=lambda _: None,
    )
    assert isinstance(done, EpochDone)
    assert time.monotonic() - start >= 0.9
    assert 0 < done.record.seconds < 0.6
    assert (done.record.verdict, done.record.examples) == ("HOLDS", 12)

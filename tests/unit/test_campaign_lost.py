"""What of a cell is not known, and whose fault it is not: nothing is made of either."""

import errno
from contextlib import closing
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, cells, epoch, open_fake, with_cause
from tests.unit.test_set_searches import log_of

from biprop.campaign import log as logs
from biprop.campaign import working
from biprop.campaign.files import RunningFile
from biprop.campaign.hands import open_search_hands
from biprop.campaign.log import Stopping
from biprop.campaign.messages import EpochDone, EpochTask, OpenHands
from biprop.campaign.records import EpochFinding, EpochRecord, record_from_text, record_text
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


def epoch_of(
    store: Store, *, number: int = 1, seconds: float = 1.0, open_hands: OpenHands
) -> EpochRecord:
    """Search the first cell for an epoch, and return its record."""
    settings = log_of(store).settings
    with closing(open_hands(settings, "cpu")) as hands:
        done = run_task(
            EpochTask(number=number, cell=CELLS[0], seed=1, seconds=seconds),
            hands,
            settings=settings,
            worker=0,
            device="cpu",
            stopping=Stopping(),
            tell=lambda _: None,
        )
    assert isinstance(done, EpochDone)
    return done.record


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
    scheduler = Scheduler(CELLS[:1], seed=1)
    records = [epoch_of(store, number=number, open_hands=open_search_hands) for number in range(4)]
    for record in records:
        scheduler.ended(record)

    assert {record.verdict for record in records} == {"ERROR"}
    assert {record.message for record in records} == {str(error)}
    assert {record.is_lost for record in records} == {not over}
    assert scheduler.turns[CELLS[0].id].over == over


@attrs.define
class Clock:
    """Stands for `time`: only who sleeps, and what is launched, takes some."""

    now: float = 1000.0

    def time(self) -> float:
        """Return it."""
        return self.now

    def monotonic(self) -> float:
        """Return it."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now += seconds


def test_waiting_for_a_disk_is_no_time_of_a_search(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does an epoch end of it; what it found was seen after it."""

    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    monkeypatch.setattr(working, "time", clock)
    # One launch finds the disk full twice in a row.
    is_full = iter((False, True, True))
    write = RunningFile.begin

    def begin(self: RunningFile, text: str) -> None:
        if next(is_full, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, text)
        clock.now += 0.01

    monkeypatch.setattr(RunningFile, "begin", begin)
    record = epoch_of(store, seconds=0.4, open_hands=open_fake)
    assert (record.verdict, record.examples) == ("HOLDS", 12)
    assert record.seconds == pytest.approx(12 * 0.01)
    assert record.seconds_waited == pytest.approx(0.5 + 1.0)
    assert record.ended == pytest.approx(clock.now)


def test_a_cause_is_last_seen_when_its_epoch_ended(store: Store) -> None:
    """However long that waited; of records that do not know it, by what they know."""

    store.write_campaign(campaign())
    shown = (EpochFinding(cause=with_cause(store).digest),)
    record = epoch(seconds=2.0, findings=shown)
    store.write_epoch(attrs.evolve(record, seconds_waited=1e10))
    (cause,) = store.snapshot().causes
    assert cause.last_seen == record.began + 2.0 + 1e10

    text = record_text(record)
    assert "seconds_waited" not in text
    assert record_from_text(text, EpochRecord) == record

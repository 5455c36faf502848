"""Campaigns whose searches are pretended, so that their bookkeeping can be tested in seconds.

No test stands here. Run as a script it is a campaign of its own, that a test may kill; every case
that is judged is written to `truth.txt` beside the store, by the name of its epoch.
"""

import errno
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
from tests.unit.sample_fixtures import DRIFT, LINEAR, PROVENANCE, outcome, sample

from biprop.campaign.cells import Cell, KernelWork
from biprop.campaign.events import Event
from biprop.campaign.log import Log, cause_of_fixture
from biprop.campaign.messages import (
    EpochTask,
    Hands,
    MinimiseDone,
    MinimiseTask,
    OpenHands,
    ReplayTask,
    Settings,
    Shown,
)
from biprop.campaign.places import this_process
from biprop.campaign.records import (
    FORMAT,
    CampaignRecord,
    CauseRecord,
    CauseStatus,
    CellInfo,
    EpochFinding,
    EpochRecord,
)
from biprop.campaign.run import Plan, run_campaign
from biprop.campaign.snapshot import Snapshot
from biprop.campaign.store import Store
from biprop.case import canonical_json, case_to_data
from biprop.contract import load_contract
from biprop.fixtures.records import Fixture, make_fixture
from biprop.judgment import Proof
from biprop.reports.records import ClassCount

__all__ = [
    "Fake",
    "campaign",
    "cells",
    "epoch",
    "finding",
    "open_fake",
    "open_full",
    "open_silent",
    "open_torn",
    "plan",
    "reconciled",
    "run",
    "with_cause",
]

_CASE = sample().case
_TEXT = canonical_json(case_to_data(_CASE))
_CASES = 12
_SECONDS_A_CASE = 0.004


def cells(count: int = 3) -> tuple[Cell, ...]:
    """Return cells that are never opened."""
    return tuple(
        Cell(
            info=CellInfo(id=f"cell{number}", operator="linear", backend="torch", dtype="float32"),
            work=KernelWork(reference=LINEAR, dtype="float32", direction="forward"),
        )
        for number in range(count)
    )


def finding(cell: str) -> Fixture:
    """Return the fixture of the one cause of a cell."""
    case = attrs.evolve(_CASE, dims={**_CASE.dims, "N": 2 + int(cell.removeprefix("cell"))})
    return make_fixture(
        reference=LINEAR,
        case=case,
        outcome=outcome(DRIFT),
        proof=Proof(),
        provenance=PROVENANCE,
    )


def epoch(
    cell: str = "cell0",
    *,
    number: int = 1,
    seconds: float = 2.0,
    news: int = 0,
    verdict: str = "HOLDS",
    findings: tuple[EpochFinding, ...] = (),
    classes: dict[str, ClassCount] | None = None,
    campaign: str = "one",
) -> EpochRecord:
    """Return the record of an epoch."""
    return EpochRecord(
        format=FORMAT,
        campaign=campaign,
        worker=0,
        number=number,
        cell=cell,
        began=1000.0 + 10 * number,
        seconds=seconds,
        seconds_in_kernels=seconds / 4,
        examples=10,
        launches=40,
        compared=30,
        verdict=verdict,
        classes=classes or {},
        power_kind="order",
        power_share=0.5,
        behaviours=("size H 2^3 whole",),
        behaviour_count=news,
        findings=findings,
    )


def campaign(name: str = "one") -> CampaignRecord:
    """Return the record of a campaign over the cells of the fakes."""
    return CampaignRecord(
        format=FORMAT,
        id=name,
        place=this_process(),
        began=1000.0,
        cells=tuple(cell.info for cell in cells()),
        ended=2000.0,
        reason="budget",
    )


def with_cause(store: Store, cell: str = "cell0") -> CauseRecord:
    """Store a cause of a cell, and return it."""
    fixture = finding(cell)
    record = cause_of_fixture(fixture, cell=cell, campaign="one")
    store.add_cause(record, fixture)
    return record


class Fake:
    """Hands that judge nothing."""

    def __init__(self, settings: Settings) -> None:
        """Write beside the store."""
        self._truth = settings.store.parent / "truth.txt"

    def search(self, task: EpochTask, log: Log) -> Shown:
        """Pretend to search: some cases, and the one cause of the cell in every third epoch."""
        begun = log.begun
        findings: tuple[EpochFinding, ...] = ()
        for number in range(_CASES):
            with log.launching(_TEXT, kind="kernel", reference=LINEAR, provenance=PROVENANCE):
                time.sleep(_SECONDS_A_CASE)
            log.count(examples=1, launches=2, compared=3, seconds=_SECONDS_A_CASE)
            with self._truth.open("a") as stream:
                stream.write(f"{begun.campaign}-{begun.worker}-{begun.number}\n")
            if number == _CASES // 2 and task.seed % 3 == 0:
                findings = (EpochFinding(cause=log.found(finding(begun.cell))),)
        log.behaviours.add(iter((f"seed {task.seed % 5}",)))
        return Shown(
            verdict="DRIFTS" if findings else "HOLDS",
            examples=log.examples,
            launches=log.launches,
            compared=log.compared,
            seconds_in_kernels=log.seconds_in_kernels,
            findings=findings,
        )

    def minimise(self, task: MinimiseTask, log: Log) -> MinimiseDone:
        """Call a cause minimal as it is; a lost case holds."""
        fixture = log.store.fixture(task.cause.fixture)
        status: CauseStatus = "unreproduced" if task.cause.is_lost else "minimal"
        cause = attrs.evolve(task.cause, status=status, settled=time.time())
        log.keep(lambda: log.store.update_cause(cause, None if cause.is_lost else fixture))
        return MinimiseDone(cause=cause)

    def replay(self, task: ReplayTask, log: Log) -> str:
        """Say that it fails no more."""
        del task, log
        return "FIXED"

    def close(self) -> None:
        """Do nothing."""


def open_fake(settings: Settings, device: str) -> Hands:
    """Return hands that judge nothing."""
    del device
    return Fake(settings)


def open_torn(settings: Settings, device: str) -> Hands:
    """Return hands whose process is killed once while it writes an epoch, before the rename."""
    mark = settings.store.parent / "torn.txt"
    replace = Path.replace

    def torn(self: Path, target: Path) -> Path:
        if Path(target).parent.name == "epochs" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = torn  # type: ignore[method-assign, assignment]
    return open_fake(settings, device)


def open_full(settings: Settings, device: str) -> Hands:
    """Return hands whose disk is full while `full.txt` lies beside the store."""
    mark = settings.store.parent / "full.txt"
    make = os.open

    def full(path: Path, flags: int, *others: int) -> int:
        if mark.exists() and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(path, flags, *others)

    # Both ways to write a file of the store go through it.
    os.open = full  # type: ignore[assignment]
    return open_fake(settings, device)


class _Silent(Fake):
    """Hands that hang in the first epoch of a store."""

    def search(self, task: EpochTask, log: Log) -> Shown:
        """Say nothing for an hour, once."""
        mark = log.store.path.parent / "silent.txt"
        if not mark.exists():
            mark.touch()
            with log.launching(_TEXT, kind="kernel", reference=LINEAR, provenance=PROVENANCE):
                time.sleep(3600)
        return super().search(task, log)


def open_silent(settings: Settings, device: str) -> Hands:
    """Return hands that hang once."""
    del device
    return _Silent(settings)


def plan(store: Path, *, workers: int = 1, open_hands: OpenHands = open_fake) -> Plan:
    """Return a campaign of three cells."""
    return Plan(
        cells=cells(),
        store=store,
        budget=600.0,
        devices=("cpu",),
        workers=workers,
        contract=load_contract(),
        open_hands=open_hands,
        seed=1,
        seconds_an_epoch=1.0,
    )


def run(what: Plan, *, epochs: int = 8) -> tuple[CampaignRecord, list[Event]]:
    """Run a campaign until so many epochs ended; return its record and what it told."""
    events: list[Event] = []

    def is_over() -> bool:
        return sum(event.kind == "epoch" for event in events) >= epochs

    return run_campaign(what, tell=events.append, is_stopped=is_over), events


def reconciled(path: Path) -> Snapshot:
    """Check that a store holds what `truth.txt` says, once, and return its snapshot."""
    store = Store.open(path)
    snapshot = store.snapshot()
    assert not snapshot.problems
    for folder in ("begun", "running", "minimising", "heartbeats"):
        assert not list((path / folder).glob("[!.]*")), folder
    lines = (path.parent / "truth.txt").read_text().split()
    truth = Counter(lines)
    epochs = {epoch.name: epoch for cell in snapshot.cells for epoch in cell.epochs}
    assert set(truth) <= set(epochs)
    for name, epoch in epochs.items():
        # The case that was running when a process was killed may or may not have been written.
        missing = truth[name] - epoch.examples
        assert missing in {0, 1} if epoch.is_lost else not missing, epoch
    total = sum(cell.sum.examples for cell in snapshot.cells)
    lost = sum(epoch.is_lost for epoch in epochs.values())
    assert len(lines) - lost <= total <= len(lines)
    shown: Counter[str] = Counter()
    for finding in (finding for epoch in epochs.values() for finding in epoch.findings):
        # Several layouts of one set may show the same cause.
        shown[finding.cause] += finding.count
    assert shown == {cause.record.digest: cause.count for cause in snapshot.causes}
    for cause in snapshot.causes:
        assert cause.fixture is not None
        assert cause.fixture.id == cause.record.fixture
    return snapshot


if __name__ == "__main__":
    run(plan(Path(sys.argv[1]), workers=int(sys.argv[2])), epochs=1_000_000)

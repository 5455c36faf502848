"""In which order causes are shrunk: each cell gets one small case before one gets two."""

import time
from pathlib import Path

import attrs
from tests.unit.campaign_fakes import campaign, cells, finding, with_cause

from biprop.campaign.crew import Answered
from biprop.campaign.messages import MinimiseDone, MinimiseTask
from biprop.campaign.parent import Parent
from biprop.campaign.records import CauseRecord
from biprop.campaign.store import Store


def second_cause(store: Store, cell: str, *, found: float) -> CauseRecord:
    """Store one more cause of a cell, seen at another time."""
    fixture = finding(cell)
    first = with_cause(store, cell)
    record = attrs.evolve(
        first, digest=first.digest[::-1], key=f"{first.key}-nonfinite", found=found
    )
    store.add_cause(record, fixture)
    return record


def test_every_cell_gets_a_small_case_before_one_gets_two(tmp_path: Path) -> None:
    """Then the second causes have their turn, so that none is left."""

    store = Store.open(tmp_path / "store", create=True)
    for cell in ("cell0", "cell1"):
        with_cause(store, cell)
    second_cause(store, "cell0", found=1.0)
    parent = Parent(
        store=store,
        record=attrs.evolve(campaign("now"), workers=1, ended=None, reason=""),
        ledger=(),
        cells=cells(2),
        deadline=time.monotonic() + 600,
        seconds_an_epoch=5.0,
        tell=lambda _: None,
    )
    parent.begin(())
    shrunk: list[str] = []
    while len(shrunk) < 3:
        task = parent.next_task(0)
        if isinstance(task, MinimiseTask):
            shrunk.append(task.cause.cell)
            cause = attrs.evolve(task.cause, status="minimal", settled=time.time())
            store.update_cause(cause)
            store.release_minimising(cause.digest)
            parent.hear(Answered(worker=0, answer=MinimiseDone(cause=cause)))
    assert set(shrunk[:2]) == {"cell0", "cell1"}
    assert shrunk[2] == "cell0"

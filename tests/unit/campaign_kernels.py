"""A short campaign over kernels of a file: searches are real, and cases are counted twice.

No test stands here. What each process judges is written down beside the store as well, so that
`campaign_fakes.reconciled` can tell whether the store holds all of it, once.
"""

from collections.abc import Sequence
from pathlib import Path

import attrs
from tests.unit.campaign_fakes import Fake, plan, reconciled, run

from biprop.campaign.cells import entry_cells
from biprop.campaign.events import Event
from biprop.campaign.hands import SearchHands
from biprop.campaign.log import Log
from biprop.campaign.messages import (
    EpochTask,
    Hands,
    MinimiseDone,
    MinimiseTask,
    Settings,
    Shown,
)
from biprop.campaign.snapshot import CauseState, CellState, Snapshot
from biprop.power.manifest import Entry

__all__ = ["Campaign", "campaign_over", "open_counted"]

_EXAMPLES = 4
_SECONDS_AN_EPOCH = 30.0


@attrs.frozen(kw_only=True)
class Campaign:
    """What a campaign left and told.

    Attributes:
        snapshot: Of its store.
        events: In order.
    """

    snapshot: Snapshot
    events: tuple[Event, ...]

    def cell(self, name: str) -> CellState:
        """Return the cell of a target."""
        return next(cell for cell in self.snapshot.cells if cell.info.id.startswith(f"{name}-"))

    def findings(self, name: str) -> tuple[CauseState, ...]:
        """Return the findings of a target."""
        cell = self.cell(name).info.id
        return tuple(cause for cause in self.snapshot.findings if cause.record.cell == cell)


class _Counted(SearchHands):
    """Hands that write down, beside the store, the epoch of each case that they judge."""

    def __init__(self, settings: Settings, device: str) -> None:
        """Search on a device."""
        super().__init__(settings, device)
        self._fake = Fake(settings)

    def minimise(self, task: MinimiseTask, log: Log) -> MinimiseDone:
        """Shrink nothing: each step would cost a process, or a device."""
        return self._fake.minimise(task, log)

    def search(self, task: EpochTask, log: Log) -> Shown:
        """Search as always."""
        truth = log.store.path.parent / "truth.txt"
        name = f"{log.begun.campaign}-{log.begun.worker}-{log.begun.number}\n"
        count = log.count

        def counted(*, examples: int, launches: int, compared: int, seconds: float) -> None:
            with truth.open("a") as stream:
                stream.write(name * examples)
            count(examples=examples, launches=launches, compared=compared, seconds=seconds)

        log.count = counted  # type: ignore[method-assign]  # of this one log
        return super().search(task, log)


def open_counted(settings: Settings, device: str) -> Hands:
    """Return hands that write down what they judge."""
    return _Counted(settings, device)


def campaign_over(
    folder: Path, targets: str, names: Sequence[str], *, device: str = "cpu"
) -> Campaign:
    """Run a campaign until each target had an epoch, and check that its store reconciles.

    Args:
        folder: An empty one.
        targets: Text of a file of functions of `x[T,H]`.
        names: Of these.
        device: Where they run.
    """
    (folder / "targets.py").write_text(targets, encoding="utf-8")
    entries = [
        Entry(
            name=name,
            target=f"{folder / 'targets.py'}:{name}",
            signature="x[T,H] -> y[T,H]",
            dtypes=("float32",),
            classes=("T1",),
            dims="H=1..8",
        )
        for name in names
    ]
    what = attrs.evolve(
        plan(folder / "store", open_hands=open_counted),
        cells=entry_cells(entries),
        devices=(device,),
        max_examples=_EXAMPLES,
        seconds_an_epoch=_SECONDS_AN_EPOCH,
    )
    _, events = run(what, epochs=len(entries))
    return Campaign(snapshot=reconciled(folder / "store"), events=tuple(events))

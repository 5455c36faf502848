"""What a campaign and its processes tell each other: pickled records, through a pipe or otherwise.

Nothing of a process is in them but what it needs, so that a process may as well be an actor on
another machine: `biprop.campaign.crew` says what must then be there besides.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

from biprop.campaign.cells import Cell
from biprop.campaign.records import CauseRecord, EpochFinding, EpochRecord, Place, ReplayRecord
from biprop.contract import Contract
from biprop.generation import Exclusion, Sweep
from biprop.provenance import Provenance
from biprop.reports.records import ClassCount

if TYPE_CHECKING:
    from biprop.campaign.log import Log

__all__ = [
    "Answer",
    "Done",
    "EpochDone",
    "EpochTask",
    "Found",
    "Hands",
    "MinimiseDone",
    "MinimiseTask",
    "OpenHands",
    "Progress",
    "Ready",
    "ReplayDone",
    "ReplayTask",
    "Settings",
    "Shown",
    "Task",
    "Waiting",
]


@attrs.frozen(kw_only=True)
class Settings:
    """What all processes of a campaign are told.

    Attributes:
        campaign: Its id.
        parent: Its parent process.
        store: Folder of the store.
        contract: What judges.
        open_hands: Opens what searches, given these settings and a device.
        timeout: Seconds after which a launch counts as hung.
        max_examples: Of each epoch; None: as many as its time allows.
        minimise_seconds: That minimising one cause may take.
        minimise_runs: Cases that it may judge.
    """

    campaign: str
    parent: Place
    store: Path
    contract: Contract
    open_hands: "OpenHands"
    timeout: float = 60.0
    max_examples: int | None = None
    minimise_seconds: float = 60.0
    minimise_runs: int = 2000


@attrs.frozen(kw_only=True)
class EpochTask:
    """An epoch of a cell.

    Attributes:
        number: Of the task among those of its process.
        cell: The cell.
        seed: Of the search.
        seconds: After which it draws no more.
        is_first: Whether no epoch of the cell ended before; only then are the fixed configurations
            and programs judged.
        lacks_power: Whether the cell still lacks powered examples of a class.
        excluded: Classes that are not drawn together, as they were found to fail.
        known: Behaviours that the cell has shown, as `biprop.campaign.behaviours` counts them.
        sweep: The turn that sizes are swept from, where earlier epochs of the cell ended; None: the
            first one of `seed`.
    """

    number: int
    cell: Cell
    seed: int
    seconds: float
    is_first: bool = True
    lacks_power: bool = True
    excluded: tuple[Exclusion, ...] = ()
    known: frozenset[int] = frozenset()
    sweep: Sweep | None = None


@attrs.frozen(kw_only=True)
class MinimiseTask:
    """A cause to make small.

    Attributes:
        number: Of the task among those of its process.
        cell: Its cell.
        cause: As it is stored; this campaign has claimed it.
        is_first: Whether no cause of the cell is small yet: the first one says most, and further
            ones may not cost as much.
    """

    number: int
    cell: Cell
    cause: CauseRecord
    is_first: bool = True


@attrs.frozen(kw_only=True)
class ReplayTask:
    """A finding of an earlier campaign to run again.

    Attributes:
        number: Of the task among those of its process.
        cell: Its cell.
        fixture: Its id.
    """

    number: int
    cell: Cell
    fixture: str


Task = EpochTask | MinimiseTask | ReplayTask


@attrs.frozen(kw_only=True)
class Shown:
    """What the search of an epoch showed; fields as in `EpochRecord`."""

    verdict: str
    message: str = ""
    examples: int = 0
    rejected: int = 0
    launches: int = 0
    compared: int = 0
    seconds_in_kernels: float | None = None
    classes: dict[str, ClassCount] = attrs.field(factory=dict)
    coverage: dict[str, int] = attrs.field(factory=dict)
    power_kind: str = ""
    power_share: float = 0.0
    swept: int = 0
    findings: tuple[EpochFinding, ...] = ()
    actual_backend: str = ""
    is_stopped: bool = False
    is_lost: bool = False
    provenance: Provenance | None = None


@attrs.frozen(kw_only=True)
class Ready:
    """A process can be given tasks."""


@attrs.frozen(kw_only=True)
class Progress:
    """A process is alive; counts are those of its task so far.

    Attributes:
        examples: Cases judged.
        launches: Made.
        compared: Sequences compared.
        seconds_in_kernels: Launching and comparing.
    """

    examples: int
    launches: int
    compared: int
    seconds_in_kernels: float


@attrs.frozen(kw_only=True)
class Found:
    """A cause that the store did not hold before.

    Attributes:
        cause: It.
    """

    cause: CauseRecord


@attrs.frozen(kw_only=True)
class Waiting:
    """A process cannot write, and waits until there is room.

    Attributes:
        reason: What the system says.
    """

    reason: str


@attrs.frozen(kw_only=True)
class EpochDone:
    """An epoch ended.

    Attributes:
        record: As it is stored.
        behaviours: New ones of the cell, as they are counted.
        provenance: Of what ran; None where nothing did.
        is_stored: False where the disk was full until the campaign ended.
    """

    record: EpochRecord
    behaviours: frozenset[int] = frozenset()
    provenance: Provenance | None = None
    is_stored: bool = True


@attrs.frozen(kw_only=True)
class MinimiseDone:
    """A cause was worked on.

    Attributes:
        cause: As it is stored now.
        is_stopped: Whether the campaign ended before it was done.
        error: Why it could not be worked on; empty where it could.
    """

    cause: CauseRecord
    is_stopped: bool = False
    error: str = ""


@attrs.frozen(kw_only=True)
class ReplayDone:
    """A finding was run again; None where the campaign ended before.

    Attributes:
        record: As it is stored.
    """

    record: ReplayRecord | None


# What a process says when its task is over, and whatever it says.
Done = EpochDone | MinimiseDone | ReplayDone
Answer = Ready | Progress | Found | Waiting | Done


class Hands(Protocol):
    """What searches in a process of a campaign; `biprop.campaign.hands` holds the real ones."""

    def search(self, task: EpochTask, log: "Log") -> Shown:
        """Search a cell for an epoch."""

    def minimise(self, task: MinimiseTask, log: "Log") -> MinimiseDone:
        """Make a cause small, and store it."""

    def replay(self, task: ReplayTask, log: "Log") -> str:
        """Run a finding again; return its status (`biprop.campaign.replays`)."""

    def close(self) -> None:
        """Let go of what runs kernels."""


OpenHands = Callable[[Settings, str], Hands]

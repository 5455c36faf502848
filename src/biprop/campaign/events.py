"""What a campaign wants to be seen: events, each with words for people and data for programs.

`biprop.cli` shows them, and `biprop fuzz --events` writes them as JSON lines: `event` is the kind,
`at` the time, `text` what people are told. `epoch` has the counts of one epoch, and what it alone
showed as `epoch_verdict`: one of few cases HOLDS while its cell still lacks evidence. The verdict
of a cell is that of the whole store, of which `biprop.campaign.snapshot` tells.
"""

from typing import Literal

import attrs

from biprop.case import Json

__all__ = ["Doing", "Event", "EventKind", "Status", "Working", "event_to_data"]

EventKind = Literal[
    "begun",
    "status",
    "epoch",
    "found",
    "small",
    "lost",
    "stale",
    "fixed",
    "waiting",
    "over",
    "note",
    "stopping",
    "ended",
]
Doing = Literal["searches", "shrinks", "replays", "idle", "waits"]


@attrs.frozen(kw_only=True)
class Working:
    """What one process does.

    Attributes:
        worker: Its number.
        doing: `searches`, `shrinks`, `replays`, `waits` (for room on the disk) or `idle`.
        cell: Of what.
        seconds: For how long.
        examples: Judged in this task so far.
    """

    worker: int
    doing: Doing
    cell: str = ""
    seconds: float = 0.0
    examples: int = 0


@attrs.frozen(kw_only=True)
class Status:
    """How a campaign stands.

    Attributes:
        seconds: Since it began.
        seconds_left: Of its budget.
        cells: How many it has.
        cells_seen: How many had a turn, in earlier campaigns of the store too.
        cells_over: How many cannot be searched any further.
        epochs: Ended in this campaign.
        examples: Judged in this campaign, those of epochs under way included.
        examples_a_second: Since it began.
        compared_a_second: Sequences, likewise.
        share_in_kernels: Of the time of all its processes, launching and comparing.
        findings: Causes of the store, of all its campaigns, that are to be reported.
        to_shrink: Of these, those that wait for it.
        known: Causes of the store that people know of.
        fixed: Causes of the store that fail no more.
        lost: Processes of this campaign that were lost.
        waiting: Why nothing can be written; empty where it can.
        workers: What each process does.
    """

    seconds: float
    seconds_left: float
    cells: int
    cells_seen: int
    cells_over: int
    epochs: int
    examples: int
    examples_a_second: float
    compared_a_second: float
    share_in_kernels: float
    findings: int
    to_shrink: int
    known: int
    lost: int
    fixed: int = 0
    waiting: str = ""
    workers: tuple[Working, ...] = ()


@attrs.frozen(kw_only=True)
class Event:
    """One event.

    Attributes:
        kind: What happened.
        at: When, in seconds since 1970.
        text: For people; empty where they are not told by a line.
        data: For programs.
        status: How the campaign stands.
    """

    kind: EventKind
    at: float
    text: str = ""
    data: dict[str, Json] = attrs.field(factory=dict)
    status: Status


def event_to_data(event: Event) -> dict[str, Json]:
    """Return an event as one JSON object."""
    data: dict[str, Json] = {"event": event.kind, "at": round(event.at, 3), **event.data}
    if event.text:
        data["text"] = event.text
    if event.kind in {"status", "ended"}:
        status = attrs.asdict(event.status)
        data["status"] = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in status.items()
        }
    return data

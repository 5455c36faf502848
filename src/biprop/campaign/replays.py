"""Findings of earlier campaigns run again: which of them are fixed, and whose turn it is.

A cause is fixed when its fixture was run again where it had failed, held there, and nothing has
shown it since. One that fails now and then would hold as well: so a case that was not shrunk, and a
verdict that depends on the moment, need sources or versions that changed. What could not be run,
and what held on another device or was not run yet, stays what it was.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from biprop.campaign.ledger import entries_of, entry_of
from biprop.campaign.records import CauseRecord, Known, ReplayRecord, owners_of
from biprop.judgment import Verdict

if TYPE_CHECKING:
    from biprop.fixtures.program_replay import ProgramReplayed
    from biprop.fixtures.replay import Replayed

__all__ = ["Replays", "held_last", "is_fixed", "status_of"]

# These were seen in all repeats of a case.
_STEADY = (Verdict.DRIFTS, Verdict.INACCURATE)


def status_of(replayed: "Replayed | ProgramReplayed") -> str:
    """Return the status of a replay; `HELD` where that is no sign that something was mended."""
    if replayed.status != "FIXED" or replayed.changes:
        return replayed.status
    fixture = replayed.fixture
    is_steady = fixture.expect.cause.verdict in _STEADY and fixture.proof.complete
    return "FIXED" if is_steady else "HELD"


def is_fixed(replay: ReplayRecord | None, *, last_seen: float) -> bool:
    """Say whether the last replay of a cause's fixture shows that it is fixed.

    Args:
        replay: None where it was not run again.
        last_seen: When an epoch showed the cause.
    """
    return replay is not None and held_last(replay) and replay.at > last_seen


def held_last(replay: ReplayRecord | None) -> bool:
    """Say whether a fixture held when it was last run again.

    Asked by who has just seen its cause. Whether an epoch has shown that one since does not matter:
    this case holds all the same, and each further replay would tell the cause as fixed.

    Args:
        replay: None where it was not run again.
    """
    return replay is not None and replay.status == "FIXED"


class Replays:
    """What a campaign runs again, each fixture once.

    Entries of the ledger come first. The others are those that nobody has run again for longest,
    and wait for a process that has time.
    """

    def __init__(
        self,
        causes: Mapping[str, CauseRecord],
        known: Sequence[Known],
        replays: Mapping[str, ReplayRecord],
        *,
        cells: Collection[str],
    ) -> None:
        """Plan the causes of earlier campaigns, of the cells that this one searches."""
        self._cells = cells
        self._done: set[str] = set()
        self.unknown = tuple(
            entry
            for entry in known
            if not any(entry_of(record, (entry,)) for record in causes.values())
        )
        owners = owners_of(causes)
        named = entries_of(causes, known, owners)
        own = [causes[digest] for digest in dict.fromkeys(owners.values())]
        self._urgent = [record for record in own if record.digest in named and self._may(record)]
        self._rest = sorted(
            (
                record
                for record in own
                # What waits to be shrunk is judged again there.
                if record.digest not in named and record.settled is not None and self._may(record)
            ),
            key=lambda record: _replayed_at(replays.get(record.fixture)),
        )

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._urgent) + len(self._rest)

    def add(self, record: CauseRecord) -> None:
        """Have a cause of an earlier campaign run again that shrinking could not show once more."""
        if self._may(record):
            self._rest.append(record)

    def next(self, *, has_time: bool) -> CauseRecord | None:
        """Return the next one; None where there is none, or none for a process without time."""
        for waiting in (self._urgent, self._rest if has_time else []):
            while waiting:
                record = waiting.pop(0)
                if record.fixture not in self._done:
                    self._done.add(record.fixture)
                    return record
        return None

    def _may(self, record: CauseRecord) -> bool:
        return record.cell in self._cells and not record.is_unreproduced


def _replayed_at(replay: ReplayRecord | None) -> float:
    return 0.0 if replay is None else replay.at

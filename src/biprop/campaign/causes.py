"""The causes that a parent knows of: what each counts as, and how they are told.

As `biprop.campaign.snapshot` has it of a whole store, and kept up to date while a campaign runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from biprop.campaign.ledger import entries_of
from biprop.campaign.records import CauseRecord, Known, ReplayRecord, owners_of
from biprop.campaign.replays import is_fixed
from biprop.campaign.snapshot import CauseKind, CellSum, kind_of, last_seen_of
from biprop.case import Json, Judged
from biprop.generation import Exclusion

__all__ = ["Causes", "data_of", "shrunk_in_words", "told"]

_JUDGED: tuple[Judged, ...] = ("outputs", "token_gradients", "parameter_gradients")


@attrs.define(kw_only=True, eq=False)
class Causes:
    """Causes by digest.

    Attributes:
        ledger: What people know of.
        sums: Of the cells, which say when a cause was last seen.
        records: Those that turned out to be another one too.
        replays: By fixture, how it did when it was last run again.
    """

    ledger: Sequence[Known]
    sums: Mapping[str, CellSum]
    records: dict[str, CauseRecord] = attrs.field(factory=dict)
    replays: dict[str, ReplayRecord] = attrs.field(factory=dict)

    def kinds(self) -> dict[str, CauseKind]:
        """Return what each cause that is one of its own counts as."""
        known = entries_of(self.records, self.ledger)
        return {
            digest: kind_of(
                self.records[digest],
                is_known=digest in known,
                is_fixed=is_fixed(
                    self.replays.get(self.records[digest].fixture), last_seen=last_seen
                ),
            )
            for digest, last_seen in last_seen_of(self.records, self.sums).items()
        }

    def counts(self) -> Counter[CauseKind]:
        """Return how many causes count as what."""
        return Counter(self.kinds().values())

    def take_replay(self, record: ReplayRecord) -> list[tuple[CauseRecord, bool, bool]]:
        """Take how a fixture did; return its causes, and whether each was fixed, and is."""
        last = last_seen_of(self.records, self.sums)
        own = (self.records[digest] for digest in last)
        causes = [cause for cause in own if cause.fixture == record.fixture]
        before = self.replays.get(record.fixture)
        self.replays[record.fixture] = record
        return [
            (
                cause,
                is_fixed(before, last_seen=last[cause.digest]),
                is_fixed(record, last_seen=last[cause.digest]),
            )
            for cause in causes
        ]

    def is_back(self, digest: str) -> bool:
        """Say whether a cause held when it was last run: a process that has just seen it says more.

        Args:
            digest: Of it; empty where there is none.
        """
        record = self.records.get(digest)
        replay = None if record is None else self.replays.get(record.fixture)
        return replay is not None and replay.status == "FIXED"

    def take_found(self, record: CauseRecord) -> bool:
        """Take a cause that a process stored; return whether it is news."""
        before = self.records.get(record.digest)
        # Whoever stored a case anew has seen that the one before was fixed.
        was_replayed = self.replays.pop(record.fixture, None) is not None
        if before is not None and before.fixture == record.fixture and not was_replayed:
            return False
        self.records[record.digest] = record
        return True

    def exclusions(self, cell: str) -> tuple[Exclusion, ...]:
        """Return the classes that are known to fail together in a cell."""
        kinds, owners = self.kinds(), owners_of(self.records)
        found = [
            Exclusion(judged=judged, classes=frozenset(record.transforms))
            for digest, record in self.records.items()
            if record.cell == cell and record.transforms and not record.is_lost
            # What is fixed is searched like what never failed.
            if kinds[owners[digest]] != "fixed"
            for judged in _JUDGED
            if judged == record.judged
        ]
        return tuple(dict.fromkeys(found))


def told(record: CauseRecord) -> str:
    """Return the name of a cause with the beginning of the id that commands take."""
    return f"{record.name} ({record.fixture[:8]})"


def shrunk_in_words(before: CauseRecord, after: CauseRecord, other: CauseRecord | None) -> str:
    """Return what became of a cause that was worked on; empty where nothing did.

    Args:
        before: It, as people were told.
        after: It, as it is stored now.
        other: The one that it turned out to be, where it is known.
    """
    if after.same_as:
        return f"shrunk: {told(before)} is {after.same_as if other is None else told(other)}"
    if after.status == "unreproduced":
        return f"holds: {told(after)}, which was lost with its process"
    renamed = f", told as {before.fixture[:8]} before" if before.fixture != after.fixture else ""
    if after.status == "minimal":
        return f"shrunk: {told(after)}{renamed}"
    if after.settled is not None:
        return f"stays as it is: {told(after)} did not fail again"
    return f"shrunk so far: {told(after)}{renamed}" if renamed else ""


def data_of(record: CauseRecord) -> dict[str, Json]:
    """Return a cause for programs."""
    return {
        "cause": record.digest,
        "name": record.name,
        "cell": record.cell,
        "verdict": record.verdict,
        "key": record.key,
        "transforms": list(record.transforms),
        "fixture": record.fixture,
        "formerly": list(record.formerly),
        "state": record.status,
        "same_as": record.same_as,
        "lost": record.is_lost,
    }

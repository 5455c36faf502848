"""The causes that a parent knows of: what each counts as, and how they are told.

As `biprop.campaign.snapshot` has it of a whole store, and kept up to date while a campaign runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from biprop.campaign.ledger import entries_of
from biprop.campaign.records import CauseRecord, Known, ReplayRecord, owners_of
from biprop.campaign.replays import held_last, is_fixed
from biprop.campaign.snapshot import CellSum, kind_of, last_seen_of
from biprop.case import Json, Judged
from biprop.generation import Exclusion
from biprop.reports.records import CauseKind

__all__ = ["Causes", "data_of", "shrunk_in_words", "told"]

_JUDGED: tuple[Judged, ...] = ("outputs", "token_gradients", "parameter_gradients")


@attrs.define(kw_only=True, eq=False)
class Causes:
    """Causes by digest.

    Attributes:
        ledger: What people know of.
        sums: Of the cells, which say when a cause was last seen.
        records: Those that turned out to be another one too; `put` changes them.
        owners: Of these, as `owners_of` returns them.
        known: Entries of the ledger by the causes that they name.
        replays: By fixture, how it did when it was last run again.
    """

    ledger: Sequence[Known]
    sums: Mapping[str, CellSum]
    records: Mapping[str, CauseRecord] = attrs.field(factory=dict, init=False)
    owners: Mapping[str, str] = attrs.field(factory=dict, init=False)
    known: Mapping[str, Known] = attrs.field(factory=dict, init=False)
    replays: dict[str, ReplayRecord] = attrs.field(factory=dict)

    def put(self, *records: CauseRecord) -> None:
        """Take causes as they are stored now."""
        self.records = {**self.records, **{record.digest: record for record in records}}
        # How a campaign stands is asked each second, and causes come much more rarely.
        self.owners = owners_of(self.records)
        self.known = entries_of(self.records, self.ledger, self.owners)

    def is_known(self, digest: str) -> bool:
        """Say whether the ledger names a cause, or what it turned out to be, by any of its ids."""
        return self.owners.get(digest, digest) in self.known

    def kinds(self) -> dict[str, CauseKind]:
        """Return what each cause that is one of its own counts as."""
        return {
            digest: kind_of(
                self.records[digest],
                is_known=self.is_known(digest),
                is_fixed=is_fixed(
                    self.replays.get(self.records[digest].fixture), last_seen=last_seen
                ),
            )
            for digest, last_seen in self._last_seen().items()
        }

    def counts(self) -> Counter[CauseKind]:
        """Return how many causes count as what."""
        return Counter(self.kinds().values())

    def take_replay(self, record: ReplayRecord) -> list[tuple[CauseRecord, bool, bool]]:
        """Take how a fixture did; return its causes, and whether each was fixed, and is."""
        last = self._last_seen()
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

    def held_last(self, digest: str) -> bool:
        """Say whether a cause held when it was last run.

        Args:
            digest: Of it; empty where there is none.
        """
        record = self.records.get(digest)
        return record is not None and held_last(self.replays.get(record.fixture))

    def take_found(self, record: CauseRecord) -> bool:
        """Take a cause that a process stored; return whether it is news."""
        before = self.records.get(record.digest)
        # Whoever stored a case anew has seen that the one before was fixed, or not reproduced.
        was_replayed = self.replays.pop(record.fixture, None) is not None
        is_same = before is not None and before.fixture == record.fixture
        if is_same and not (was_replayed or self.records[record.digest].is_unreproduced):
            return False
        self.put(record)
        return True

    def exclusions(self, cell: str) -> tuple[Exclusion, ...]:
        """Return the classes that are known to fail together in a cell."""
        kinds = self.kinds()
        found = [
            Exclusion(judged=judged, classes=frozenset(record.transforms))
            for digest, record in self.records.items()
            if record.cell == cell and record.transforms and not record.is_lost
            # What is fixed, or was not reproduced, is searched like what never failed.
            if kinds[self.owners[digest]] not in {"fixed", "held"}
            for judged in _JUDGED
            if judged == record.judged
        ]
        return tuple(dict.fromkeys(found))

    def _last_seen(self) -> dict[str, float]:
        return last_seen_of(self.records, self.sums, self.owners)


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
    if after.is_unreproduced:
        return f"holds: {told(after)}, which {after.seen_once_as}"
    renamed = f", told as {before.fixture[:8]} before" if before.fixture != after.fixture else ""
    if after.status == "minimal":
        return f"shrunk: {told(after)}{renamed}"
    if after.settled is not None:
        return f"not shrunk: {told(after)} did not fail again, and stays a finding"
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

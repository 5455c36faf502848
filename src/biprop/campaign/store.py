"""The store of campaigns: one folder that any number of processes and machines write into.

What the files hold says `biprop.campaign.records`, how they are written `biprop.campaign.files`,
and what a reader makes of them `biprop.campaign.snapshot`. What a process left behind when it was
killed is taken up by `biprop.campaign.recovery`.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import attrs

from biprop.campaign.files import (
    RunningFile,
    claim,
    make_once,
    over_paths,
    swept,
    write,
)
from biprop.campaign.ledger import ambiguous_of, read_ledger
from biprop.campaign.places import is_here, is_running
from biprop.campaign.records import (
    Begun,
    CampaignRecord,
    CauseRecord,
    CellInfo,
    EpochRecord,
    Heartbeat,
    Known,
    LedgerFile,
    Place,
    ReplayRecord,
    Running,
    owners_of,
    record_from_text,
    record_text,
)
from biprop.campaign.replays import held_last
from biprop.campaign.snapshot import (
    CampaignState,
    CampaignSum,
    CauseState,
    CellSum,
    Snapshot,
    causes_of,
    cells_of,
    ledger_of,
    spans_of,
)
from biprop.errors import BipropError, FixtureError, UsageError
from biprop.fixtures.programs import AnyFixture, read_any, text_of
from biprop.fixtures.store import project_root

__all__ = ["FIXTURE_FOLDERS", "FOLDER", "Store"]

# Smallest cases, and first ones.
FIXTURE_FOLDERS = ("findings", "raw")
FOLDER = Path(".hypothesis") / "campaign"
# A machine that writes no heartbeat for so long is taken for lost.
SECONDS_UNTIL_LOST = 600.0
# A process on another machine than its campaign's parent ends soon after that: once its lease is
# over (`biprop.campaign.post`), counted from the parent's last heartbeat.
SECONDS_UNTIL_ALONE = 60.0

_ID = re.compile("[0-9a-f]{16}")
_FOLDERS = (
    "begun",
    "campaigns",
    "causes",
    "epochs",
    "findings",
    "heartbeats",
    "minimising",
    "owners",
    "raw",
    "replays",
    "running",
)
_Record = TypeVar("_Record")


@attrs.frozen
class Store:
    """A folder of records.

    Attributes:
        path: It.
    """

    path: Path

    @classmethod
    def open(cls, path: Path | None = None, *, create: bool = False) -> "Store":
        """Return the store of a folder; None: of the project.

        Args:
            path: The folder.
            create: Whether to make what is missing, as whoever writes into it does.

        Raises:
            UsageError: There is none, or it cannot be made.
        """
        folder = project_root() / FOLDER if path is None else path
        if create:
            try:
                for name in _FOLDERS:
                    (folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"--store {str(folder)!r} cannot be written: {error.strerror or error}; give a "
                    "folder that can."
                ) from error
        elif not (folder / "campaigns").is_dir():
            raise UsageError(
                f"{str(folder)!r} is no store of campaigns: give the --store that `biprop fuzz` "
                "was given."
            )
        return cls(folder.absolute())

    def snapshot(self, *, with_epochs: bool = True) -> Snapshot:
        """Read everything, and return it summed up.

        Args:
            with_epochs: Whether every epoch is kept, as a report needs; without, memory does not
                grow with their number, and there is no throughput over time.
        """
        problems: list[str] = []
        sums: dict[str, CellSum] = {}
        by_campaign: dict[str, CampaignSum] = {}
        epochs: dict[str, list[EpochRecord]] = {}
        for epoch in self._records("epochs", EpochRecord, problems):
            sums.setdefault(epoch.cell, CellSum()).add(epoch)
            by_campaign.setdefault(epoch.campaign, CampaignSum()).add(epoch)
            if with_epochs:
                epochs.setdefault(epoch.cell, []).append(epoch)
        campaigns = tuple(self._campaigns(by_campaign, problems))
        records = {item.digest: item for item in self._records("causes", CauseRecord, problems)}
        replays = self.replays(problems)
        fixtures = self._fixtures(records, problems)
        owners = owners_of(records)
        known = self._known(records, owners, problems)
        causes = causes_of(records, sums, fixtures, known, replays, owners=owners)
        causes = tuple(attrs.evolve(cause, folder=self._folder_of(cause)) for cause in causes)
        listed = [epoch for found in epochs.values() for epoch in found]
        return Snapshot(
            path=str(self.path),
            at=time.time(),
            campaigns=campaigns,
            cells=cells_of(_infos(campaigns), sums, causes, epochs),
            causes=causes,
            ledger=ledger_of(known, records, replays, causes, owners),
            throughput=spans_of(listed, causes),
            problems=tuple(problems),
        )

    def ledger(self) -> LedgerFile:
        """Return the ledger of known findings; an empty one where there is none.

        Raises:
            FixtureError: It cannot be read, or an entry lacks its link or its reason.
        """
        return read_ledger(self.path / "ledger.json")

    def write_campaign(self, record: CampaignRecord) -> None:
        """Write the record of a campaign."""
        write(self.path / "campaigns" / f"{record.id}.json", record_text(record))

    def campaign(self, name: str) -> CampaignRecord | None:
        """Return the record of a campaign; None where there is none."""
        return self._read(self.path / "campaigns" / f"{name}.json", CampaignRecord)

    def write_epoch(self, record: EpochRecord) -> None:
        """Write the record of an epoch."""
        write(self.path / "epochs" / f"{record.name}.json", record_text(record))

    def write_heartbeat(self, record: Heartbeat) -> None:
        """Say that a campaign runs."""
        write(self._heartbeat(record.place), record_text(record), durable=False)

    def remove_heartbeat(self, place: Place) -> None:
        """Say that a campaign runs no more."""
        self._heartbeat(place).unlink(missing_ok=True)

    def write_begun(self, record: Begun) -> None:
        """Say what a process does from now on."""
        write(self.path / "begun" / f"{record.name}.json", record_text(record))

    def running_file(self, name: str) -> RunningFile:
        """Return the file that says which case a process launches; its texts are `Running` records.

        The disk is not waited for: what ends this process, or its machine on a shared folder,
        loses nothing that was written.
        """
        return RunningFile(self._running(name))

    def remove_running(self, name: str) -> None:
        """Take away the case that is launched, and the last ones."""
        for path in (self._running(name), *over_paths(self._running(name))):
            path.unlink(missing_ok=True)

    def read_running(self, name: str, number: int) -> tuple[Running | None, bool]:
        """Return the last case that a process launched, and whether it was running in the end.

        Args:
            name: Of its files.
            number: Of its task; cases of an earlier one are passed over.
        """
        path = self._running(name)
        running = self._read(path, Running)
        if running is not None and running.number == number:
            return running, True
        found = [self._read(over, Running) for over in over_paths(path)]
        of_task = [item for item in found if item is not None and item.number == number]
        return max(of_task, key=lambda item: (item.examples, item.launches), default=None), False

    def remove_begun(self, name: str) -> None:
        """Say that a process does nothing more: what it did is recorded."""
        self.remove_running(name)
        (self.path / "begun" / f"{name}.json").unlink(missing_ok=True)

    def has_epoch(self, name: str) -> bool:
        """Say whether an epoch was recorded."""
        return (self.path / "epochs" / f"{name}.json").is_file()

    def epoch(self, name: str) -> EpochRecord | None:
        """Return the record of an epoch by its name; None where it was not recorded."""
        return self._read(self.path / "epochs" / f"{name}.json", EpochRecord)

    def each_epoch(self) -> Iterator[EpochRecord]:
        """Yield the records of all epochs, one after the other."""
        return self._records("epochs", EpochRecord, [])

    def begun(self) -> Iterator[tuple[Path, Begun]]:
        """Yield what processes are doing, and what those that are gone were doing."""
        for path in sorted((self.path / "begun").glob("*.json")):
            record = self._read(path, Begun)
            if record is not None:
                yield path, record

    def claim_begun(self, path: Path, *, campaign: str) -> Path | None:
        """Take over what a process that is gone was doing; None where somebody else did."""
        taken = path.with_name(f"{path.stem.partition('@')[0]}@{campaign}.json")
        return taken if taken == path or claim(path, taken) else None

    def add_cause(self, record: CauseRecord, fixture: AnyFixture) -> bool:
        """Store a cause and its first case, unless it is there; return whether it is news.

        What was fixed, or not reproduced, and is back, is news: the case that shows it now takes
        the place of the one that fails no more. A cause that says no more than one that is minimal
        is that one.
        """
        path = self.path / "causes" / f"{record.digest}.json"
        before = self.cause(record.digest)
        if before is None and path.exists():
            return False
        if before is not None and not (before.is_unreproduced or self.held_last(before)):
            return False
        same = self._same_as(record) if before is None else None
        # First the fixture: a cause whose fixture is missing could never be minimised.
        write(self.path / "raw" / f"{fixture.id}.json", text_of(fixture))
        if same is not None:
            make_once(path, record_text(same))
            return False
        if before is None:
            return make_once(path, record_text(record))
        self._forget_replay(fixture.id)
        back = attrs.evolve(
            before.told_by(fixture.id), status="raw", same_as="", attempts=0, settled=None
        )
        write(path, record_text(back))
        return True

    def update_cause(self, record: CauseRecord, fixture: AnyFixture | None = None) -> None:
        """Write a cause that this process has claimed, and its smallest case, which still fails.

        The cases that it was told by before are kept: their ids stand in what people have read.
        """
        if fixture is not None:
            write(self.path / "findings" / f"{fixture.id}.json", text_of(fixture))
            self._forget_replay(fixture.id)
        write(self.path / "causes" / f"{record.digest}.json", record_text(record))

    def merge(self, record: CauseRecord, owner: str) -> None:
        """Say that a cause is another one."""
        same = attrs.evolve(record, status="minimal", same_as=owner, settled=time.time())
        write(self.path / "causes" / f"{record.digest}.json", record_text(same))

    def held_last(self, record: CauseRecord) -> bool:
        """Say whether a cause, or the one that it turned out to be, held when it was last run."""
        seen: set[str] = set()
        while record.same_as and record.same_as not in seen:
            seen.add(record.same_as)
            other = self.cause(record.same_as)
            if other is None:
                break
            record = other
        return held_last(self._read(self.path / "replays" / f"{record.fixture}.json", ReplayRecord))

    def cause(self, digest: str) -> CauseRecord | None:
        """Return a cause; None where there is none."""
        return self._read(self.path / "causes" / f"{digest}.json", CauseRecord)

    def causes(self) -> dict[str, CauseRecord]:
        """Return all causes by digest."""
        return {item.digest: item for item in self._records("causes", CauseRecord, [])}

    def fixture(self, name: str) -> AnyFixture | None:
        """Return a fixture by its id: the smallest case of a cause, or its first one.

        A name that is no id, as a stranger's record may hold, names nothing.
        """
        path = self.fixture_path(name)
        try:
            return None if path is None else read_any(path)
        except BipropError:
            return None

    def fixture_path(self, name: str) -> Path | None:
        """Return the file of a fixture by its id; None where there is none."""
        if not _ID.fullmatch(name):
            return None
        paths = (self.path / folder / f"{name}.json" for folder in FIXTURE_FOLDERS)
        return next((path for path in paths if path.is_file()), None)

    def claim_minimising(self, digest: str, holder: Heartbeat) -> bool:
        """Take a cause for minimising; return whether nobody else who runs has it."""
        path = self.path / "minimising" / f"{digest}.json"
        if make_once(path, record_text(holder)):
            return True
        found = self._read(path, Heartbeat)
        if found is None or not self.is_gone(found.place, campaign=found.campaign):
            return False
        # Only one of those who see that its holder is gone gets the old file.
        if not claim(path, path.with_name(f".gone-{digest}-{holder.campaign}")):
            return False
        path.with_name(f".gone-{digest}-{holder.campaign}").unlink(missing_ok=True)
        return make_once(path, record_text(holder))

    def release_minimising(self, digest: str) -> None:
        """Let go of a cause."""
        (self.path / "minimising" / f"{digest}.json").unlink(missing_ok=True)

    def known_owner_of(self, identity: str) -> str:
        """Return the cause that is the one of an identity; empty where there is none yet."""
        try:
            path = self.path / "owners" / f"{identity}.txt"
            return path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def owner_of(self, identity: str, digest: str) -> str:
        """Return the cause that is the one of an identity: the first that asks for it.

        Args:
            identity: Digest of what a smallest case is told by.
            digest: Of the cause that asks.
        """
        path = self.path / "owners" / f"{identity}.txt"
        if make_once(path, digest):
            return digest
        return path.read_text(encoding="ascii").strip()

    def write_replay(self, record: ReplayRecord) -> None:
        """Write how a finding did when it was run again."""
        write(self.path / "replays" / f"{record.fixture}.json", record_text(record))

    def replays(self, problems: list[str] | None = None) -> dict[str, ReplayRecord]:
        """Return how findings did when they were last run again, by the ids of their fixtures."""
        found = self._records("replays", ReplayRecord, [] if problems is None else problems)
        return {record.fixture: record for record in found}

    def is_gone(self, place: Place, *, campaign: str) -> bool:
        """Say whether a process is gone: seen here, or told by silence from another machine.

        Its campaign speaks for it; where that one's parent has ended here, it has to follow.
        """
        if is_here(place):
            return not is_running(place)
        beats = [
            beat for beat in self._records("heartbeats", Heartbeat, []) if beat.campaign == campaign
        ]
        is_alone = any(_has_ended(beat.place) for beat in beats)
        latest = max((beat.at for beat in beats), default=0.0)
        return time.time() - latest > (SECONDS_UNTIL_ALONE if is_alone else SECONDS_UNTIL_LOST)

    def sweep(self) -> None:
        """Take away what killed processes left: unfinished files, heartbeats of this machine."""
        for name in _FOLDERS:
            swept(self.path / name)
        # What a campaign has elsewhere is timed by its last heartbeat.
        spread = {begun.campaign for _, begun in self.begun() if not is_here(begun.place)}
        for beat in self._records("heartbeats", Heartbeat, []):
            if _has_ended(beat.place) and beat.campaign not in spread:
                self.remove_heartbeat(beat.place)

    def _same_as(self, record: CauseRecord) -> CauseRecord | None:
        """Return a new cause as the minimal one that it is; None where that cannot be told yet."""
        owner = self.cause(self.known_owner_of(record.digest))
        if owner is None or owner.digest == record.digest or record.may_be_another:
            return None
        if record.is_lost or self.held_last(owner):
            return None
        return attrs.evolve(record, status="minimal", same_as=owner.digest, settled=time.time())

    def _known(
        self,
        records: dict[str, CauseRecord],
        owners: dict[str, str],
        problems: list[str],
    ) -> tuple[Known, ...]:
        """Return the entries of the ledger; those that may mean several causes are problems."""
        try:
            known = self.ledger().known
        except FixtureError as error:
            problems.append(str(error))
            return ()
        ambiguous = ambiguous_of(records, known, owners)
        problems += ambiguous.values()
        return tuple(entry for entry in known if entry not in ambiguous)

    def _folder_of(self, cause: CauseState) -> str:
        path = self.fixture_path(cause.record.fixture)
        return FIXTURE_FOLDERS[0] if path is None else path.parent.name

    def _forget_replay(self, fixture: str) -> None:
        (self.path / "replays" / f"{fixture}.json").unlink(missing_ok=True)

    def _campaigns(
        self, sums: dict[str, CampaignSum], problems: list[str]
    ) -> Iterator[CampaignState]:
        beats = {
            beat.campaign: beat.at for beat in self._records("heartbeats", Heartbeat, problems)
        }
        found = self._records("campaigns", CampaignRecord, problems)
        for record in sorted(found, key=lambda item: (item.began, item.id)):
            is_over = record.ended is not None
            is_lost = not is_over and self.is_gone(record.place, campaign=record.id)
            yield CampaignState(
                record=record,
                status="ended" if is_over else "lost" if is_lost else "running",
                heartbeat=beats.get(record.id),
                sum=sums.get(record.id, CampaignSum()),
            )

    def _fixtures(
        self, records: dict[str, CauseRecord], problems: list[str]
    ) -> dict[str, AnyFixture]:
        found: dict[str, AnyFixture] = {}
        for record in records.values():
            if record.same_as:
                continue
            fixture = self.fixture(record.fixture)
            if fixture is None:
                problems.append(f"The fixture {record.fixture} of {record.name} cannot be read.")
            else:
                found[record.fixture] = fixture
        return found

    def _records(self, folder: str, kind: type[_Record], problems: list[str]) -> Iterator[_Record]:
        for path in sorted((self.path / folder).glob("*.json")):
            try:
                yield record_from_text(path.read_text(encoding="ascii"), kind)
            except FileNotFoundError:
                # Its writer has just removed it.
                continue
            except (FixtureError, OSError, UnicodeDecodeError) as error:
                problems.append(f"{folder}/{path.name}: {error}")

    def _read(self, path: Path, kind: type[_Record]) -> _Record | None:
        try:
            return record_from_text(path.read_text(encoding="ascii"), kind)
        except (FixtureError, OSError, UnicodeDecodeError):
            return None

    def _running(self, name: str) -> Path:
        return self.path / "running" / f"{name}.json"

    def _heartbeat(self, place: Place) -> Path:
        host = "".join(letter if letter.isalnum() else "_" for letter in place.host)
        return self.path / "heartbeats" / f"{host}-{place.pid}.json"


def _has_ended(place: Place) -> bool:
    return is_here(place) and not is_running(place)


def _infos(campaigns: tuple[CampaignState, ...]) -> dict[str, CellInfo]:
    """Return the cells of all campaigns; the last one knows best what they are."""
    return {info.id: info for state in campaigns for info in state.record.cells}

"""The log of a process: what is launched right now, what was counted and found, on disk at once.

A `Log` serves one task. Before each launch it writes the case down, so that whoever finds the file
later knows what was running; what a cause is stored as, and how a full disk is waited for, is here
too. Searching is the part of `biprop.campaign.hands`; what is made of files that are left behind,
of `biprop.campaign.recovery`.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import attrs

from biprop.campaign.behaviours import Behaviours
from biprop.campaign.files import full_in_words, is_full
from biprop.campaign.messages import Answer, EpochTask, Found, Progress, Settings, Task, Waiting
from biprop.campaign.places import this_process
from biprop.campaign.records import (
    FORMAT,
    Begun,
    CauseRecord,
    CellKind,
    EpochFinding,
    TaskKind,
    cause_digest,
)
from biprop.campaign.store import Store
from biprop.case import Json, canonical_json
from biprop.fixtures.programs import AnyFixture
from biprop.fixtures.records import CONVERTER, Fixture
from biprop.judgment import Cause
from biprop.kvcache.records import ProgramCause
from biprop.operators import KernelReference
from biprop.provenance import Provenance

__all__ = ["CaseJournal", "Log", "Stopping", "cause_of_fixture"]

_SECONDS_A_PROGRESS = 0.5
_SECONDS_A_TRY = 0.5
_SECONDS_A_TRY_MAX = 10.0
# An epoch that found something ends soon, so that it is shrunk while the others go on.
_SECONDS_AFTER_FOUND = 5.0
# Times the seconds of an epoch, from its first launch on: a search waits longer for evidence.
_PATIENCE = 1.5
# After a stop was asked for, a full disk is tried this long, then what is left is given up.
_SECONDS_AFTER_STOP = 2.0


class Stopping:
    """Whether a process was asked to stop; set by a signal, looked at between two launches.

    Attributes:
        is_asked: Whether it was.
        shields: Blocks that may not be broken off, one in another.
    """

    def __init__(self) -> None:
        """Go on."""
        self.is_asked = False
        self.shields = 0

    def check(self) -> None:
        """Break off here if a stop was asked for.

        Raises:
            KeyboardInterrupt: As Ctrl-C would, which a search ends with a report of what it has.
        """
        if self.is_asked:
            raise KeyboardInterrupt

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let nothing break off what is written in the block."""
        self.shields += 1
        try:
            yield
        finally:
            self.shields -= 1


class Log:
    """What one task writes down while it runs.

    Attributes:
        settings: Of the campaign.
        store: Where it writes.
        begun: What it does, as it is stored.
        behaviours: New ones, of an epoch.
        examples: Cases judged so far.
        launches: Made so far.
        compared: Sequences compared so far.
        seconds_in_kernels: Launching and comparing so far.
        seconds_waited: For a disk that was full.
    """

    def __init__(
        self,
        task: Task,
        *,
        kind: TaskKind,
        about: str,
        worker: int,
        device: str,
        settings: Settings,
        stopping: Stopping,
        tell: Callable[[Answer], None],
    ) -> None:
        """Say on disk that the task is begun."""
        self.settings = settings
        self.store = Store(settings.store)
        self.stopping = stopping
        self.behaviours = Behaviours(task.known if isinstance(task, EpochTask) else frozenset())
        self.examples = self.launches = self.compared = 0
        self.seconds_in_kernels = self.seconds_waited = 0.0
        self._tell = tell
        self._told = 0.0
        self._seconds = _PATIENCE * task.seconds if isinstance(task, EpochTask) else math.inf
        self._ends_at: float | None = None
        self._heads: dict[int, tuple[object, object, str]] = {}
        self.begun = Begun(
            format=FORMAT,
            campaign=settings.campaign,
            worker=worker,
            number=task.number,
            place=this_process(),
            parent=settings.parent,
            task=kind,
            about=about,
            cell=task.cell.id,
            device=device,
            seed=task.seed if isinstance(task, EpochTask) else 0,
            began=time.time(),
        )
        self._running = self.store.running_file(self.begun.name)
        self.keep(lambda: self.store.write_begun(self.begun))

    def keep(self, write: Callable[[], None]) -> bool:
        """Write, and wait while the disk is full; return False where a stop came before there was.

        Raises:
            OSError: It cannot be written for another reason.
        """
        start, waited_before = time.monotonic(), self.seconds_waited
        pause, stopped_at = _SECONDS_A_TRY, None
        while True:
            try:
                with self.stopping.shielded():
                    write()
            except OSError as error:
                if not is_full(error):
                    raise
                self._tell(Waiting(reason=full_in_words(error, self.store.path)))
            else:
                return True
            now = time.monotonic()
            if self.stopping.is_asked:
                stopped_at = now if stopped_at is None else stopped_at
                if now - stopped_at >= _SECONDS_AFTER_STOP:
                    return False
                pause = _SECONDS_A_TRY
            with suppress(KeyboardInterrupt):
                time.sleep(pause)
            self.seconds_waited = waited_before + time.monotonic() - start
            pause = min(2 * pause, _SECONDS_A_TRY_MAX)

    @contextmanager
    def launching(
        self,
        case: str,
        *,
        kind: CellKind,
        reference: KernelReference | object,
        provenance: Provenance | None,
        others: Sequence[str] = (),
        is_due: bool = False,
    ) -> Iterator[None]:
        """Have a case on disk for as long as it runs.

        Args:
            case: As JSON.
            kind: What it is a case of.
            reference: Of the kernel or cache.
            provenance: Of what runs it.
            others: Cases that run together with it, as JSON.
            is_due: Whether it is launched even if the time of the epoch is over, as what tells
                which of several cases failed.

        Raises:
            KeyboardInterrupt: A stop was asked for, or the time of the epoch is over.
        """
        self.stopping.check()
        # The time that a full disk took is none of the epoch.
        now = time.monotonic() - self.seconds_waited
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now >= self._ends_at and not is_due:
            raise KeyboardInterrupt
        text = self._running_text(
            case, others, kind=kind, reference=reference, provenance=provenance
        )
        if not self.keep(lambda: self._running.begin(text)):
            # Nothing is launched that is not written down.
            raise KeyboardInterrupt
        try:
            yield
        finally:
            with self.stopping.shielded():
                self._running.end()
        self._tell_progress()

    def count(self, *, examples: int, launches: int, compared: int, seconds: float) -> None:
        """Count a case that was judged."""
        self.examples += examples
        self.launches += launches
        self.compared += compared
        self.seconds_in_kernels += seconds

    def found(self, fixture: AnyFixture) -> str:
        """Store a cause with its first case, at once; return its digest."""
        record = cause_of_fixture(fixture, cell=self.begun.cell, campaign=self.begun.campaign)
        begun, is_new = self.begun, False
        if all(finding.cause != record.digest for finding in begun.findings):
            # Should this process end now, its epoch has found that much.
            findings = (*begun.findings, EpochFinding(cause=record.digest))
            begun = attrs.evolve(begun, findings=findings)

        def write() -> None:
            nonlocal is_new
            # In this order: a cause that no epoch has seen would have no count, while whoever takes
            # up the epoch leaves out what is not stored.
            if begun is not self.begun:
                self.store.write_begun(begun)
            is_new = self.store.add_cause(record, fixture) or is_new
            self.begun = begun

        self.keep(write)
        if is_new:
            # Of a cause that is back, the store knows the ids that it was told by before.
            self._tell(Found(cause=self.store.cause(record.digest) or record))
            soon = time.monotonic() - self.seconds_waited + _SECONDS_AFTER_FOUND
            self._ends_at = soon if self._ends_at is None else min(self._ends_at, soon)
        return record.digest

    def _running_text(
        self,
        case: str,
        others: Sequence[str],
        *,
        kind: CellKind,
        reference: object,
        provenance: Provenance | None,
    ) -> str:
        key = id(reference)
        head = self._heads.get(key)
        if head is None or head[0] is not reference or head[1] is not provenance:
            data: dict[str, Json] = {
                "format": FORMAT,
                "number": self.begun.number,
                "kind": kind,
                "device": self.begun.device,
                "reference": CONVERTER.unstructure(reference),
            }
            if provenance is not None:
                data["provenance"] = CONVERTER.unstructure(provenance)
            head = (reference, provenance, canonical_json(data)[:-1])
            self._heads[key] = head
        counts = (
            f',"examples":{self.examples},"launches":{self.launches},"compared":{self.compared}'
            f',"seconds_in_kernels":{json.dumps(self.seconds_in_kernels)}'
        )
        beside = f',"others":[{",".join(others)}]' if others else ""
        return f'{head[2]}{counts}{beside},"case":{case}}}\n'

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told >= _SECONDS_A_PROGRESS:
            self._told = now
            self._tell(
                Progress(
                    examples=self.examples,
                    launches=self.launches,
                    compared=self.compared,
                    seconds_in_kernels=self.seconds_in_kernels,
                )
            )


class CaseJournal:
    """The journal of a `SupervisedJudge` that writes into a log."""

    def __init__(self, log: Log) -> None:
        """Write into `log`."""
        self._log = log

    @contextmanager
    def entries(
        self,
        *,
        reference: KernelReference,
        device: str,
        case_texts: Sequence[str],
        provenance: Provenance | None = None,
        is_due: bool = False,
    ) -> Iterator[None]:
        """Have cases on disk, in one file, while they are judged; see `Journal.entries`."""
        del device
        with self._log.launching(
            case_texts[0],
            others=case_texts[1:],
            kind="kernel",
            reference=reference,
            provenance=provenance,
            is_due=is_due,
        ):
            yield


def cause_of_fixture(
    fixture: AnyFixture, *, cell: str, campaign: str, is_lost: bool = False
) -> CauseRecord:
    """Return the cause of a fixture as it is first stored.

    A case that was lost with its process is a cause of its own: what became of the others of its
    cell says nothing about it.
    """
    cause: Cause | ProgramCause = fixture.expect.cause
    judged = fixture.case.judged if isinstance(fixture, Fixture) else ""
    transforms = cause.transforms if isinstance(cause, Cause) else ()
    parts: Mapping[bool, tuple[str, ...]] = {
        True: ("lost", cell, fixture.id),
        False: (cell, cause.key, judged, *transforms),
    }
    return CauseRecord(
        format=FORMAT,
        digest=cause_digest(*parts[is_lost]),
        cell=cell,
        verdict=cause.verdict.value,
        key=cause.key,
        judged=judged,
        transforms=transforms,
        fixture=fixture.id,
        is_lost=is_lost,
        found=time.time(),
        found_by=campaign,
    )

"""What processes left behind when they ended: a case that was running becomes a finding, once.

A process that is killed, and a machine that is lost, leave two files: what they were doing, and the
case that was launched (`biprop.campaign.log`). Whoever takes them up renames the first one, so that
nobody else does, writes the finding and the record of the epoch, and then takes both away. All
names follow from what is recorded, so that one who is killed at that is followed by another who
does the same once more, and nothing comes twice.
"""

import time
from pathlib import Path

import attrs

from biprop.campaign.log import cause_of_fixture
from biprop.campaign.records import (
    ATTEMPTS_MAX,
    FORMAT,
    Begun,
    CauseRecord,
    EpochFinding,
    EpochRecord,
    Running,
)
from biprop.campaign.store import Store
from biprop.case import case_from_data
from biprop.errors import BipropError
from biprop.fixtures.programs import AnyFixture, ProgramProof, make_program_fixture
from biprop.fixtures.records import CONVERTER, make_fixture
from biprop.judgment import Cause, Outcome, Proof, Verdict
from biprop.kvcache.converting import program_from_data
from biprop.kvcache.records import CacheReference, ProgramCause, ProgramOutcome
from biprop.operators import KernelReference
from biprop.provenance import Provenance
from biprop.transforms import class_of, transforms_of

__all__ = ["Lost", "recover", "take_up"]


@attrs.frozen(kw_only=True)
class Lost:
    """What became of a process that ended.

    Attributes:
        begun: What it was doing.
        epoch: Its record, where that was an epoch that was not recorded before.
        causes: The cases that were running; of an attempt to shrink, its cause.
    """

    begun: Begun
    epoch: EpochRecord | None = None
    causes: tuple[CauseRecord, ...] = ()

    @property
    def is_epoch(self) -> bool:
        """Whether it was searching, and not at work on a cause that is known."""
        return self.begun.task == "epoch"


def recover(store: Store, *, campaign: str, is_begun: bool = False) -> tuple[Lost, ...]:
    """Take up what all processes that are gone left in a store.

    Args:
        store: The store.
        campaign: Id of the one that does it.
        is_begun: Whether it runs already, and looks again: machines are lost at any time.
    """
    found: list[Lost] = []
    words = f"was gone when campaign {campaign} {'looked again' if is_begun else 'began'}"
    for path, begun in store.begun():
        if not _is_orphan(store, path, begun):
            continue
        lost = _take(store, path, begun, campaign=campaign, words=words)
        if lost is not None:
            found.append(lost)
    return tuple(found)


def take_up(
    store: Store, name: str, *, campaign: str, words: str, is_stopped: bool = False
) -> Lost | None:
    """Take up what one process of a running campaign left; None where it left nothing.

    Args:
        store: The store.
        name: Of its files, as `Begun.name`.
        campaign: Id of the campaign, its own.
        words: How it ended, as part of a sentence.
        is_stopped: Whether the campaign ended it itself: then no case is to blame.
    """
    path = store.path / "begun" / f"{name}.json"
    begun = next((begun for found, begun in store.begun() if found == path), None)
    if begun is None:
        return None
    return _take(store, path, begun, campaign=campaign, words=words, is_stopped=is_stopped)


def _is_orphan(store: Store, path: Path, begun: Begun) -> bool:
    """Say whether nobody is left who would take up a file: neither its process nor its parent."""
    claimer = path.stem.partition("@")[2]
    if claimer:
        # Somebody took it up, and may have been killed at that.
        record = store.campaign(claimer)
        return record is None or store.is_gone(record.place, campaign=claimer)
    return store.is_gone(begun.parent, campaign=begun.campaign) and store.is_gone(
        begun.place, campaign=begun.campaign
    )


def _take(
    store: Store,
    path: Path,
    begun: Begun,
    *,
    campaign: str,
    words: str,
    is_stopped: bool = False,
) -> Lost | None:
    taken = store.claim_begun(path, campaign=campaign)
    if taken is None:
        return None
    last, is_running = store.read_running(begun.name, begun.number)
    # Where the campaign ended it, the case that it was running is not to blame.
    running = last if is_running and not is_stopped else None
    if begun.task == "epoch":
        lost = _lost_epoch(store, begun, last, running, words=words, is_stopped=is_stopped)
    elif begun.task == "minimise":
        lost = _lost_attempt(store, begun, running, is_stopped=is_stopped)
    else:
        lost = Lost(begun=begun)
    store.remove_running(begun.name)
    taken.unlink(missing_ok=True)
    return lost


def _lost_epoch(
    store: Store,
    begun: Begun,
    last: Running | None,
    running: Running | None,
    *,
    words: str,
    is_stopped: bool,
) -> Lost:
    name = f"{begun.campaign}-{begun.worker}-{begun.number}"
    if store.has_epoch(name):
        # It was killed between its record and the end.
        return Lost(begun=begun)
    causes = () if running is None else _as_findings(store, begun, running, words=words)
    found = (finding for finding in begun.findings if store.cause(finding.cause) is not None)
    findings = (*found, *(EpochFinding(cause=cause.digest) for cause in causes))
    record = EpochRecord(
        format=FORMAT,
        campaign=begun.campaign,
        worker=begun.worker,
        number=begun.number,
        cell=begun.cell,
        device=begun.device,
        seed=begun.seed,
        began=begun.began,
        seconds=_seconds(store, begun),
        seconds_in_kernels=None if last is None else last.seconds_in_kernels,
        examples=0 if last is None else last.examples,
        launches=0 if last is None else last.launches,
        compared=0 if last is None else last.compared,
        verdict=Verdict.CRASHES.value if causes else "ERROR",
        findings=findings,
        message=f"The process that searched it {words}.",
        is_lost=not is_stopped,
        is_stopped=is_stopped,
    )
    store.write_epoch(record)
    return Lost(begun=begun, epoch=record, causes=causes)


def _lost_attempt(store: Store, begun: Begun, running: Running | None, *, is_stopped: bool) -> Lost:
    """Let go of a cause whose process ended while it was shrunk."""
    cause = store.cause(begun.about)
    if cause is not None and cause.status == "minimising":
        attempts = cause.attempts + (not is_stopped)
        is_crash = cause.is_lost and running is not None
        cause = attrs.evolve(
            cause,
            # A case that was lost with a process, and takes down a second one, is a crash.
            status="minimal" if is_crash else "raw",
            attempts=attempts,
            settled=time.time() if is_crash or attempts >= ATTEMPTS_MAX else None,
        )
        fixture = store.fixture(cause.fixture) if is_crash else None
        store.update_cause(cause, fixture)
    store.release_minimising(begun.about)
    return Lost(begun=begun, causes=() if cause is None else (cause,))


def _as_findings(
    store: Store, begun: Begun, running: Running, *, words: str
) -> tuple[CauseRecord, ...]:
    """Store every case that was running; none where they cannot be read, as of another version."""
    message = f"The process that judged it {words}."
    provenance = running.provenance or Provenance(device=running.device)
    found = []
    for case in (running.case, *running.others):
        try:
            fixture = _fixture(attrs.evolve(running, case=case), message, provenance)
        # Whatever a file of another version holds, the campaign goes on.
        except (BipropError, LookupError, TypeError, ValueError):
            continue
        cause = cause_of_fixture(fixture, cell=begun.cell, campaign=begun.campaign, is_lost=True)
        store.add_cause(cause, fixture)
        found.append(store.cause(cause.digest) or cause)
    return tuple(found)


def _fixture(running: Running, message: str, provenance: Provenance) -> AnyFixture:
    if running.kind == "cache":
        program_cause = ProgramCause(verdict=Verdict.CRASHES)
        return make_program_fixture(
            reference=CONVERTER.structure(running.reference, CacheReference),
            program=program_from_data(running.case),
            outcome=ProgramOutcome(verdict=Verdict.CRASHES, cause=program_cause, message=message),
            proof=ProgramProof(),
            provenance=provenance,
        )
    case = case_from_data(running.case)
    classes = tuple(sorted({class_of(transform) for transform in transforms_of(case)}))
    cause = Cause(verdict=Verdict.CRASHES, direction=case.direction, transforms=classes)
    return make_fixture(
        reference=CONVERTER.structure(running.reference, KernelReference),
        case=case,
        outcome=Outcome(verdict=Verdict.CRASHES, cause=cause, message=message),
        proof=Proof(),
        provenance=provenance,
    )


def _seconds(store: Store, begun: Begun) -> float:
    """Return how long an epoch ran, as far as its files tell."""
    times = [begun.began]
    for folder in ("begun", "running"):
        for path in (store.path / folder).glob(f"{begun.name}*"):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
    return max(0.0, max(times) - begun.began)

"""Make a cause small, behind the epochs: its first case is shrunk, and what it really is, is told.

Two first cases may shrink to one cause; which of them it is called by is decided once for a store
(`Store.owner_of`). A case that was lost with its process is judged again: most processes are ended
from outside, and what holds is no finding. How cases are shrunk says `biprop.minimize`.
"""

import json
import time

import attrs

from biprop.campaign.log import Log
from biprop.campaign.messages import MinimiseDone, MinimiseTask
from biprop.campaign.records import CauseRecord, CauseStatus, cause_digest
from biprop.campaign.watching import WatchedPrograms
from biprop.case import Case, Json, canonical_json
from biprop.fixtures.programs import (
    AnyFixture,
    ProgramFixture,
    ProgramProof,
    make_program_fixture,
)
from biprop.fixtures.records import Fixture
from biprop.generation import Space
from biprop.judgment import Outcome, Verdict
from biprop.kvcache.converting import program_to_data
from biprop.kvcache.records import Program, ProgramOutcome
from biprop.minimize.programs import minimise_program
from biprop.relations import JudgeOptions
from biprop.strategies.findings import Findings
from biprop.strategies.probing import probe_cases
from biprop.strategies.profiles import PROFILES
from biprop.supervision import Judge
from biprop.supervision.programs import ProgramJudge

__all__ = ["minimised_case", "minimised_program"]

# Of the budget of the first cause of a cell, as in a search.
_SHARE_OF_OTHERS = 4


def minimised_case(
    judge: Judge, space: Space, fixture: Fixture, task: MinimiseTask, log: Log
) -> MinimiseDone:
    """Shrink the case of a cause, and store it.

    Args:
        judge: Of the kernel.
        space: Says what is legal.
        fixture: Of the first case.
        task: What is asked for.
        log: Where it is written.

    Raises:
        BipropError: The kernel no longer runs.
    """
    try:
        outcome = judge.judge(fixture.case, JudgeOptions(rate=fixture.expect.rate))
    except KeyboardInterrupt:
        return _given_back(task, log)
    if not outcome.verdict.is_violation or outcome.cause is None:
        return _settled(task, log, fixture, _unseen(task.cause))
    if _is_probe(fixture.case, space):
        # Its values are what it is about.
        return _settled(task, log, fixture, "minimal")
    small, is_stopped = _shrunk(judge, space, fixture, outcome, task=task, log=log)
    if is_stopped:
        return _given_back(task, log, small)
    return _settled(task, log, small, "minimal")


def minimised_program(
    judge: ProgramJudge, fixture: ProgramFixture, task: MinimiseTask, log: Log
) -> MinimiseDone:
    """Shrink the program of a cause, and store it; as `minimised_case`."""
    judged = _Judged(judge=WatchedPrograms(judge, log))
    outcome = judged.first(fixture.program)
    if outcome is None:
        return _given_back(task, log)
    if not outcome.verdict.is_violation or outcome.cause is None:
        return _settled(task, log, fixture, _unseen(task.cause))
    share = _share(task)
    smallest = minimise_program(
        judged.quickly,
        fixture.program,
        outcome,
        confirm=judged.carefully,
        runs_max=log.settings.minimise_runs // share,
        seconds_max=log.settings.minimise_seconds / share,
    )
    small = make_program_fixture(
        reference=judge.reference,
        program=smallest.program,
        outcome=smallest.outcome,
        proof=ProgramProof(complete=smallest.complete, runs=smallest.runs),
        provenance=judge.provenance,
    )
    if judged.is_stopped:
        # What was reached before is no proof, and the next campaign goes on from it.
        return _given_back(task, log, small)
    return _settled(task, log, small, "minimal")


@attrs.define(kw_only=True, eq=False)
class _Judged:
    """Judges the programs of shrinking; a stop ends it instead of losing what was reached.

    Attributes:
        judge: Judges programs.
        is_stopped: Whether a stop was asked for.
    """

    judge: ProgramJudge
    is_stopped: bool = False

    def first(self, program: Program) -> ProgramOutcome | None:
        """Judge the program of the cause; None where a stop came."""
        outcome = self._outcome(program, quick=False)
        return None if self.is_stopped else outcome

    def quickly(self, program: Program) -> ProgramOutcome:
        """Judge with few repeats."""
        return self._outcome(program, quick=True)

    def carefully(self, program: Program) -> ProgramOutcome:
        """Judge the smallest program."""
        return self._outcome(program, quick=False)

    def _outcome(self, program: Program, *, quick: bool) -> ProgramOutcome:
        if not self.is_stopped:
            try:
                return self.judge.judge(program, quick=quick)
            except KeyboardInterrupt:
                self.is_stopped = True
        return ProgramOutcome(verdict=Verdict.VACUOUS)


def _shrunk(
    judge: Judge,
    space: Space,
    fixture: Fixture,
    outcome: Outcome,
    *,
    task: MinimiseTask,
    log: Log,
) -> tuple[AnyFixture, bool]:
    """Return the smallest case that was reached, and whether a stop came before the end."""
    settings, share = log.settings, _share(task)
    profile = attrs.evolve(
        PROFILES["nightly"],
        minimise_runs=settings.minimise_runs // share,
        minimise_seconds=settings.minimise_seconds / share,
    )
    findings = Findings(judge=judge, space=space, profile=profile)
    assert outcome.cause is not None, "a violation has a cause"
    is_stopped = False
    try:
        failure = findings.as_new(fixture.case, outcome, outcome.cause)
        assert failure is not None, "nothing is known before the first finding"
        findings.minimise(failure)
    except KeyboardInterrupt:
        is_stopped = True
    return (findings.items[0].fixture if findings.items else fixture), is_stopped


def _share(task: MinimiseTask) -> int:
    return 1 if task.is_first else _SHARE_OF_OTHERS


def _settled(
    task: MinimiseTask, log: Log, fixture: AnyFixture, status: CauseStatus
) -> MinimiseDone:
    """Store what a cause is from now on."""
    record = attrs.evolve(_now_told_by(task.cause, fixture), status=status, settled=time.time())
    if status != "minimal":
        return _stored(record, None, log)
    identity = _identity(record, fixture)
    owner = log.store.owner_of(identity, record.digest)
    if owner != record.digest:
        return _merged(task, log, fixture, owner)
    done = _stored(record, fixture, log)
    _merge_first_case(record, identity, log)
    return done


def _unseen(record: CauseRecord) -> CauseStatus:
    """Return what a cause is whose case does not fail again.

    What drifts was seen in every repeat. A process that was lost, or a launch that hung, was seen
    once, and whatever else ran there may be to blame, unless a second case has shown the same.
    """
    is_crash = record.verdict == Verdict.CRASHES.value
    return "unreproduced" if record.is_lost or (is_crash and not record.formerly) else "raw"


def _given_back(task: MinimiseTask, log: Log, fixture: AnyFixture | None = None) -> MinimiseDone:
    """Leave a cause to the next campaign, with the smallest case so far."""
    record = attrs.evolve(task.cause, status="raw")
    if fixture is not None:
        record = _now_told_by(record, fixture)
        # What it is for good is told when it is minimal; that it is another one already, now.
        owner = log.store.known_owner_of(_identity(record, fixture))
        if owner not in {"", record.digest} and not record.may_be_another:
            return attrs.evolve(_merged(task, log, fixture, owner), is_stopped=True)
    return attrs.evolve(_stored(record, fixture, log), is_stopped=True)


def _now_told_by(record: CauseRecord, fixture: AnyFixture) -> CauseRecord:
    """Return a cause with what its smaller case says of it."""
    cause = fixture.expect.cause
    return attrs.evolve(
        record.told_by(fixture.id),
        verdict=cause.verdict.value,
        key=cause.key,
        judged=fixture.case.judged if isinstance(fixture, Fixture) else "",
        transforms=getattr(cause, "transforms", ()),
    )


def _merged(task: MinimiseTask, log: Log, fixture: AnyFixture, owner: str) -> MinimiseDone:
    """Say that a cause is the one of `owner`, which another first case has shrunk to before."""
    kept = log.store.cause(owner)
    if kept is not None and log.store.held_last(kept):
        # It was fixed, and this case shows it again.
        back = attrs.evolve(kept.told_by(fixture.id), settled=time.time())
        log.keep(lambda: log.store.update_cause(back, fixture))
    record = attrs.evolve(task.cause, status="minimal", same_as=owner, settled=time.time())
    return _stored(record, None, log)


def _merge_first_case(record: CauseRecord, identity: str, log: Log) -> None:
    """Merge the cause that was found as what this one has shrunk to, and waits to be shrunk."""
    # Of a kernel, the digest of a first case is made of the same parts.
    other = log.store.cause(identity)
    if other is None or other.digest == record.digest or other.status != "raw":
        return
    if not other.same_as and other.settled is None and not other.may_be_another:
        log.keep(lambda: log.store.merge(other, record.digest))


def _stored(record: CauseRecord, fixture: AnyFixture | None, log: Log) -> MinimiseDone:
    log.keep(lambda: log.store.update_cause(record, fixture))
    return MinimiseDone(cause=record)


def _identity(record: CauseRecord, fixture: AnyFixture) -> str:
    """Return the digest of what a smallest case is told by.

    Of a cache these are its operations: one defect shows in several outputs.
    """
    if isinstance(fixture, ProgramFixture):
        data = program_to_data(attrs.evolve(fixture.program, data={}))
        return cause_digest(record.cell, record.verdict, canonical_json(_in_one_order(data["ops"])))
    return cause_digest(record.cell, record.key, record.judged, *record.transforms)


def _in_one_order(ops: Json) -> Json:
    """Return operations as JSON, the sequences of each in order of their names."""
    assert isinstance(ops, list), "a program that fails has operations"
    found: list[Json] = []
    for op in ops:
        assert isinstance(op, dict), "an operation is an object"
        fields = {
            name: sorted(value, key=json.dumps) if isinstance(value, list) else value
            for name, value in op.items()
        }
        found.append(fields)
    return found


def _is_probe(case: Case, space: Space) -> bool:
    against = case.against
    if against is None or against.relation != "A":
        return False
    accuracy = next((item for item in space.against if item.relation == "A"), None)
    if accuracy is None:
        return False
    return case.digest in {probe.digest for probe in probe_cases(space, accuracy)[0]}

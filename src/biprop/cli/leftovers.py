"""Cases that were being judged when a whole check ended: told, judged again, kept if they crash.

A worker that dies is reported at once by its supervisor. This is for the supervisor itself: killed,
or lost with its machine, it leaves its journal behind (`biprop.supervision.journal`). Most checks
are ended from outside, so what they were judging is no finding until it crashes once more.
"""

from collections.abc import Callable

import attrs

from biprop.case import canonical_json, case_to_data
from biprop.cli.request import Request
from biprop.errors import BipropError
from biprop.fixtures.records import Fixture, make_fixture
from biprop.judgment import Cause, Outcome, Proof, Verdict
from biprop.minimize import classes_of
from biprop.provenance import Provenance
from biprop.reports.words import replay_command
from biprop.supervision import Journal, Leftover, SupervisedJudge

__all__ = ["judge_leftovers"]

_MESSAGE = (
    "Two checks ended while they judged this case, the second one when it judged it once more."
)


def judge_leftovers(
    journal: Journal, request: Request, *, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Judge again what ended processes left in the journal; return the ids of what crashes.

    Only cases of the target that is asked for are judged: a file may not choose what is imported.
    Others are told once, and wait for a check of theirs.

    Args:
        journal: Where the cases lie.
        request: What is checked now, and where findings are stored.
        tell: Gets one sentence a case.
    """
    leftovers = journal.leftovers()
    suspects = [leftover for leftover in leftovers if leftover.is_second]
    crashed = []
    for leftover in leftovers:
        if not _is_asked_for(leftover, request):
            if not leftover.is_told:
                tell(f"{_begin(leftover)}; the next check of {_name(leftover)} judges it again.")
                journal.mark_told(leftover)
            continue
        fixture: Fixture | None
        if leftover.is_second:
            fixture, became = _twice(leftover), "a second check ended with it"
        elif any(_is_same(leftover, suspect) for suspect in suspects):
            # The file of the second time tells more.
            leftover.path.unlink(missing_ok=True)
            continue
        else:
            fixture, became = _again(journal, leftover, request)
        if fixture is not None:
            request.home.store.save(fixture)
            crashed.append(fixture.id)
            became += f": `{replay_command(fixture, fixture.id[:8])}` shows it"
        leftover.path.unlink(missing_ok=True)
        tell(f"{_begin(leftover)}; judged again, {became}.")
    return tuple(crashed)


def _again(journal: Journal, leftover: Leftover, request: Request) -> tuple[Fixture | None, str]:
    """Judge a case in a worker of its own; return a fixture if it crashes, and words for it."""
    case = leftover.case
    # Should this process end of it too, the next check knows that it was the second.
    entry = journal.entry(
        reference=leftover.reference,
        device=leftover.device,
        case_text=canonical_json(case_to_data(case)),
        provenance=leftover.provenance,
        is_second=True,
    )
    try:
        with (
            entry,
            SupervisedJudge(
                reference=leftover.reference,
                device=leftover.device,
                timeout=request.timeout,
                dtype=case.dtype,
                direction=case.direction,
                execution=case.execution,
            ) as judge,
        ):
            outcome = judge.judge(case)
            provenance = judge.description.provenance
    except BipropError as error:
        return None, f"it cannot run: {str(error).rstrip('.')}"
    if outcome.verdict is not Verdict.CRASHES:
        return None, f"it gives {outcome.verdict.value}, so no finding is stored of it"
    return _fixture(leftover, outcome, provenance), "it crashes"


def _twice(leftover: Leftover) -> Fixture:
    cause = Cause(verdict=Verdict.CRASHES, direction=leftover.case.direction)
    outcome = Outcome(verdict=Verdict.CRASHES, cause=cause, message=_MESSAGE)
    return _fixture(leftover, outcome, leftover.provenance)


def _fixture(leftover: Leftover, outcome: Outcome, provenance: Provenance) -> Fixture:
    assert outcome.cause is not None, "a crash has a cause"
    cause = attrs.evolve(outcome.cause, transforms=classes_of(leftover.case))
    return make_fixture(
        reference=leftover.reference,
        case=leftover.case,
        outcome=attrs.evolve(outcome, cause=cause),
        proof=Proof(),
        provenance=provenance,
    )


def _is_asked_for(leftover: Leftover, request: Request) -> bool:
    found, wanted = leftover.reference, request.reference
    return (found.target, found.backend) == (wanted.target, wanted.backend)


def _is_same(one: Leftover, other: Leftover) -> bool:
    return (one.reference, one.case) == (other.reference, other.case)


def _name(leftover: Leftover) -> str:
    return leftover.reference.target


def _begin(leftover: Leftover) -> str:
    case = leftover.case
    classes = "+".join(classes_of(case)) or "no transform"
    return (
        f"An earlier check ended while it judged {_name(leftover)} {case.dtype} {case.direction} "
        f"with {classes}"
    )

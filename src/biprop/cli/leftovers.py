"""Cases that were being judged when a whole check died: found again, told once, kept as fixtures.

A worker that dies is reported at once by its supervisor. This is for the supervisor itself: killed,
or lost with its machine, it leaves its journal behind (`biprop.supervision.journal`).
"""

from biprop.fixtures.records import Fixture, make_fixture
from biprop.fixtures.store import Store
from biprop.judgment import Cause, Outcome, Proof, Verdict
from biprop.provenance import Provenance
from biprop.reports.words import replay_command
from biprop.supervision import Journal, Leftover

__all__ = ["store_leftovers"]

_MESSAGE = (
    "The whole check ended while it judged this case; whether the case was the reason is not known."
)


def store_leftovers(journal: Journal, store: Store) -> tuple[str, ...]:
    """Move what dead processes left in the journal to the store; return a sentence for each."""
    sentences = []
    for leftover in journal.leftovers():
        fixture = _fixture(leftover)
        store.save(fixture)
        leftover.path.unlink(missing_ok=True)
        sentences.append(
            f"A check died while it judged {fixture.target} {fixture.dtype} {fixture.direction}; "
            f"`{replay_command(fixture, fixture.id[:8])}` judges that case again."
        )
    return tuple(sentences)


def _fixture(leftover: Leftover) -> Fixture:
    cause = Cause(verdict=Verdict.CRASHES, direction=leftover.case.direction)
    return make_fixture(
        reference=leftover.reference,
        case=leftover.case,
        outcome=Outcome(verdict=Verdict.CRASHES, cause=cause, message=_MESSAGE),
        proof=Proof(),
        provenance=Provenance(device=leftover.device),
    )

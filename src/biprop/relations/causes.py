"""The cause of a violation: what a case says of itself, and what was seen.

Without torch, so that whoever finds a worker dead can name the cause too.
"""

from biprop.case import Case
from biprop.judgment import Cause, Verdict

__all__ = ["cause_of"]


def cause_of(case: Case, verdict: Verdict, *, output: str = "", finite: bool = True) -> Cause:
    """Return the cause of a violation that a case showed.

    Args:
        case: Its relation and its direction are those of the cause.
        verdict: A violation.
        output: What differs first; empty where nothing came back.
        finite: False where the case fails only with a non-finite fill.
    """
    return Cause(
        verdict=verdict,
        relation=case.relation,
        backend="" if case.against is None else case.against.backend,
        direction=case.direction,
        output=output,
        finite=finite,
    )

"""Verdicts as exceptions: one class a cause, raised in one place.

Hypothesis tells failures apart by class and line; so a cause has its class, made once, and there is
a single `raise`. Nothing here holds a tensor, since Hypothesis keeps failing frames alive.
"""

from functools import cache
from typing import NoReturn

from biprop.judgment import Cause

__all__ = ["ViolationError", "raise_violation", "violation_class"]

_RELATIONS = {"A": "against_reference", "P": "against_backend"}


class ViolationError(AssertionError):
    """A kernel broke what it promises.

    Attributes:
        cause: What broke; every cause has a subclass of its own.
    """

    cause: Cause


@cache
def violation_class(cause: Cause) -> type[ViolationError]:
    """Return the class of a cause, the same object for equal causes."""
    words = [cause.verdict.value.capitalize(), cause.direction, cause.output or "launch"]
    words += [] if cause.finite else ["nonfinite"]
    # Relation I is what a name without another one means.
    words += [] if cause.relation == "I" else [_RELATIONS[cause.relation], cause.backend]
    name = "".join(word.title() for word in "_".join(words).replace(" ", "_").split("_"))
    return type(f"{name}Error", (ViolationError,), {"cause": cause, "__doc__": cause.key})


def raise_violation(cause: Cause, text: str) -> NoReturn:
    """Raise the class of `cause` with `text`; the only place that does."""
    raise violation_class(cause)(text)

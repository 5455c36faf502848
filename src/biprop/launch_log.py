"""Launches of device kernels as they are made: whoever launches tells, whoever called listens.

Kernels see no judging and judging sees no kernels, so both meet here. In Triton's interpreter the
one door of `biprop.kernels` tells (`biprop.kernels.interpreting`), where kernels are compiled
Triton's own hooks do (`biprop.execution.facts`); `biprop.execution.stand_ins` listens.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

__all__ = ["LaunchLog", "interpreted_launch", "listening", "tell_launch"]


@attrs.define(kw_only=True, eq=False)
class LaunchLog:
    """What was launched while it was open.

    Attributes:
        names: Names of the kernels, each once, in the order of the first launch of each.
        is_interpreting: Whether an interpreter is at work at this moment, which runs operators of
            torch in the place of a device.
    """

    names: dict[str, None] = attrs.field(factory=dict)
    is_interpreting: bool = False


# Innermost last. No context variable: gradients on a device are launched from other threads.
_OPEN: list[LaunchLog] = []


@contextmanager
def listening() -> Iterator[LaunchLog]:
    """Yield a log of the launches that are made until the block ends."""
    log = LaunchLog()
    _OPEN.append(log)
    try:
        yield log
    finally:
        _OPEN.remove(log)


def tell_launch(name: str) -> None:
    """Tell the innermost log that a kernel is launched."""
    if _OPEN:
        _OPEN[-1].names[name] = None


@contextmanager
def interpreted_launch(name: str) -> Iterator[None]:
    """Tell the innermost log that a kernel is launched, and that it is interpreted in the block."""
    tell_launch(name)
    log = _OPEN[-1] if _OPEN else LaunchLog()
    log.is_interpreting = True
    try:
        yield
    finally:
        log.is_interpreting = False

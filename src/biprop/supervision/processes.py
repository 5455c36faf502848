"""Processes of workers: how they end is seen before their numbers are free again.

A worker is started as a process of its own, or forked by a keeper (`biprop.supervision.keeper`);
`biprop.supervision.child` treats both alike.
"""

import contextlib
import os
import signal
import subprocess
import time
from typing import Protocol

import attrs

__all__ = ["Spawned", "WorkerProcess", "kill_group"]

_SECONDS_A_LOOK = 0.005


class WorkerProcess(Protocol):
    """One worker, from its start to its end."""

    @property
    def pid(self) -> int:
        """Number of the process, which leads a group of its own."""

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait for it to end, without giving its number free."""

    def finish(self) -> int:
        """End it with all that it has started, and return its status as `subprocess` does."""


@attrs.frozen(kw_only=True, eq=False)
class Spawned:
    """A worker that was started as a process of its own.

    Attributes:
        started: It.
    """

    started: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.started.pid

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait for it to end, without giving its number free."""
        if self.started.returncode is not None:
            return True
        deadline = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_SECONDS_A_LOOK)
        return True

    def finish(self) -> int:
        """End it with all that it has started, and return its status."""
        if self.started.returncode is None:
            kill_group(self.pid)
        return self.started.wait()


def kill_group(process: int) -> None:
    """Kill a process and what it has started; it must not have been reaped yet."""
    for kill in (os.killpg, os.kill):
        # Just forked, it may not lead its group yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)

"""A process that is given one task after the other: what every pool of such processes shares.

An executor of `concurrent.futures` breaks as a whole when one of its processes dies, so processes
are kept by `biprop.suite.pool` for cells, and by `biprop.power.pool` for trials.
"""

import contextlib
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

__all__ = ["TaskProcess", "answering"]

# Spawned, since a fork of a process that has imported torch may hang.
_PROCESSES = get_context("spawn")
_SECONDS_TO_END = 10.0

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Kept = TypeVar("Kept", bound="TaskProcess[Any, Any]")


class TaskProcess(Generic[Task, Answer]):
    """One process, and the task that it has.

    Attributes:
        task: That it was given and has not answered; None: it waits for one.
    """

    def __init__(self, serve: Callable[..., None], *arguments: object, name: str) -> None:
        """Start the process, which calls `serve` with its end of a pipe and `arguments`."""
        self._serve, self._arguments, self._name = serve, arguments, name
        self.task: Task | None = None
        self.start()

    def start(self) -> None:
        """Start it, or another in the place of one that has ended."""
        self.connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(
            target=self._serve, args=(theirs, *self._arguments), name=self._name, daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> Task:
        """Send the process a task, and return it."""
        self.task = task
        # One that has ended cannot be told; that it has is seen where answers are waited for.
        with contextlib.suppress(OSError):
            self.connection.send(task)
        return task

    def take(self) -> Task:
        """Take back the task that the process has."""
        assert self.task is not None, "a process answers what it was given"
        task, self.task = self.task, None
        return task

    def answer(self) -> Answer | None:
        """Return what the process says; None where it says no more."""
        try:
            found: Answer | None = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None
        return found

    def end_in_words(self) -> str:
        """Return how the process ended, once it has."""
        self.process.join(_SECONDS_TO_END)
        status = self.process.exitcode
        if status is None:
            return "closed its pipe"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    def dismiss(self, *, gently: bool) -> None:
        """Tell the process to end: at once, or when it has ended what it runs."""
        try:
            if gently:
                self.connection.send(None)
        except OSError:
            gently = False
        if not gently:
            self.process.kill()

    def end(self) -> None:
        """Wait for the process to end."""
        self.process.join(_SECONDS_TO_END)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        self.process.close()


def answering(slots: Sequence[Kept]) -> list[Kept]:
    """Wait until a process says something or ends, and return those that did."""
    found = set(
        wait([source for slot in slots for source in (slot.connection, slot.process.sentinel)])
    )
    return [slot for slot in slots if slot.connection in found or slot.process.sentinel in found]

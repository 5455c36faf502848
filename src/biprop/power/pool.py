"""Processes that make trials: each is given one after the other, and a lost one costs one trial.

As in `biprop.suite.pool`, which keeps processes for cells: an executor would break as a whole when
one of its processes dies. What they do is `biprop.power.working`.
"""

import contextlib
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait

import attrs

from biprop.errors import DeviceError
from biprop.power.working import Ready, Task, serve
from biprop.provenance import Provenance
from biprop.reports.power import Trial, TwinTrial

__all__ = ["Ended", "made"]

# Spawned, since a fork of a process that has imported torch may hang.
_PROCESSES = get_context("spawn")
_SECONDS_TO_END = 10.0


@attrs.frozen(kw_only=True)
class Ended:
    """A trial that ended.

    Attributes:
        trial: What it showed.
        provenance: Of the process that made it.
    """

    trial: Trial | TwinTrial
    provenance: Provenance | None


def made(tasks: Sequence[Task], *, devices: Sequence[str], workers: int) -> Iterator[Ended]:
    """Make trials in `workers` processes, and yield each when it ends.

    Args:
        tasks: In the order in which they are begun.
        devices: That the processes are spread over.
        workers: Processes, at most.

    Raises:
        DeviceError: Every process ended before it was ready.
    """
    waiting = deque(tasks)
    count = min(workers, len(tasks))
    slots = [_Slot(devices[index % len(devices)]) for index in range(count)]
    is_over = False
    try:
        while waiting or any(slot.task is not None for slot in slots):
            for slot in slots:
                if slot.provenance is not None and slot.task is None and waiting:
                    slot.give(waiting.popleft())
            for slot in _answering(slots):
                yield from _taken(slot, slots, has_more=bool(waiting))
        is_over = True
    finally:
        for slot in slots:
            slot.dismiss(gently=is_over)
        for slot in slots:
            slot.end()


def _taken(slot: "_Slot", slots: "list[_Slot]", *, has_more: bool) -> Iterator[Ended]:
    """Take what a process says; one that ended is started anew, if it is needed."""
    answer = slot.answer()
    if isinstance(answer, Ready):
        slot.provenance = answer.provenance
    elif answer is not None:
        slot.task = None
        yield Ended(trial=answer, provenance=slot.provenance)
    else:
        end, lost, was_ready = slot.end_in_words(), slot.task, slot.provenance is not None
        slot.end()
        slots.remove(slot)
        if was_ready and has_more:
            slots.append(_Slot(slot.device))
        elif has_more and not slots:
            # One that dies before it is ready would die again.
            raise DeviceError(
                f"No process starts: the last one {end}. What it wrote says why; a script must "
                'run power below `if __name__ == "__main__":`.'
            )
        if lost is not None:
            message = f"The process that made the trial {end}."
            yield Ended(trial=lost.failed(message), provenance=None)


class _Slot:
    """One process, and the task that it has."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.task: Task | None = None
        self.provenance: Provenance | None = None
        self.connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(
            target=serve, args=(theirs, device), name="biprop power", daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Send the process a task."""
        self.task = task
        # One that has ended cannot be told; that it has is seen where answers are waited for.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def answer(self) -> Ready | Trial | TwinTrial | None:
        """Return what the process says; None where it says no more."""
        try:
            found: Ready | Trial | TwinTrial | None = (
                self.connection.recv() if self.connection.poll() else None
            )
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
        """Tell the process to end: at once, or when it has ended its worker."""
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


def _answering(slots: Sequence[_Slot]) -> list[_Slot]:
    """Wait until a process says something or ends, and return those that did."""
    found = set(
        wait([source for slot in slots for source in (slot.connection, slot.process.sentinel)])
    )
    return [slot for slot in slots if slot.connection in found or slot.process.sentinel in found]

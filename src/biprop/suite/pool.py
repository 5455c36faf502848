"""Search processes: each is given one task after the other, and one that is lost costs one task.

An executor of `concurrent.futures` breaks as a whole when one of its processes dies, so processes
are kept here. What they do is `biprop.suite.searching`.
"""

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait

import attrs

from biprop.errors import DeviceError
from biprop.reports.suite import CellError
from biprop.suite.searching import Ready, Result, Settings, Task, serve

__all__ = ["Ended", "Lost", "run_tasks"]

# Spawned, since a fork of a process that has imported torch may hang.
_PROCESSES = get_context("spawn")
_SECONDS_TO_END = 10.0


@attrs.frozen(kw_only=True)
class Lost:
    """What is left of a task whose process ended.

    Attributes:
        error: Says how it ended.
    """

    error: CellError


@attrs.frozen(kw_only=True)
class Ended:
    """A task that ended, and how.

    Attributes:
        task: As it was given.
        result: What its process answered.
    """

    task: Task
    result: Result | Lost


def run_tasks(
    tasks: Sequence[Task],
    *,
    settings: Settings,
    devices: Sequence[str],
    workers: int,
    on_begin: Callable[[Task], None],
    then: Callable[[], Sequence[Task]],
) -> Iterator[Ended]:
    """Run tasks in `workers` processes, and yield each when it ends.

    Args:
        tasks: In the order in which they are begun.
        settings: Of every process.
        devices: That the processes are spread over.
        workers: Processes, at most.
        on_begin: Is told a task when a process is given it.
        then: Asked for more tasks once these have ended, for the same processes.

    Raises:
        DeviceError: Every process ended before it was ready.
    """
    count = min(workers, len(tasks))
    slots = [_Slot(settings, device=devices[index % len(devices)]) for index in range(count)]
    is_over = False
    try:
        yield from _run(slots, deque(tasks), on_begin)
        more = deque(then())
        if more and not slots:
            # Every process was lost with its last task.
            slots.append(_Slot(settings, device=devices[0]))
        yield from _run(slots, more, on_begin)
        is_over = True
    finally:
        for slot in slots:
            slot.dismiss(gently=is_over)
        for slot in slots:
            slot.end()


def _run(
    slots: "list[_Slot]", waiting: "deque[Task]", on_begin: Callable[[Task], None]
) -> Iterator[Ended]:
    """Run what is waiting; processes that are lost and not needed any more leave the list."""
    while waiting or any(slot.task is not None for slot in slots):
        for slot in slots:
            if waiting and slot.is_ready and slot.task is None:
                on_begin(slot.give(waiting.popleft()))
        for slot in _answering(slots):
            answer = slot.answer()
            if isinstance(answer, Ready):
                slot.is_ready = True
            elif answer is not None:
                yield Ended(task=slot.take(), result=answer)
            else:
                end = slot.end_in_words()
                lost = None if slot.task is None else slot.take()
                if slot.is_ready and waiting:
                    slot.restart()
                else:
                    # One that dies before it is ready would die again.
                    slots.remove(slot)
                    slot.end()
                if not slots and waiting and lost is None:
                    raise DeviceError(_UNSTARTED.format(end=end))
                if lost is not None:
                    yield Ended(task=lost, result=_lost(end))


def _lost(end: str) -> Lost:
    return Lost(error=CellError(kind="lost", message=f"The process that searched it {end}."))


_UNSTARTED = (
    "No search process starts: the last one {end}. What it wrote says why; a script must call the "
    'suite below `if __name__ == "__main__":`.'
)


class _Slot:
    """One search process, and the task that it has."""

    def __init__(self, settings: Settings, *, device: str) -> None:
        self._settings = settings
        self._device = device
        self.task: Task | None = None
        self._start()

    def _start(self) -> None:
        self.is_ready = False
        self.connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(
            target=serve,
            args=(theirs, self._settings, self._device),
            name="biprop search",
            daemon=True,
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

    def answer(self) -> Ready | Result | None:
        """Return what the process says; None where it says no more."""
        try:
            found: Ready | Result | None = (
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

    def restart(self) -> None:
        self.dismiss(gently=False)
        self.end()
        self._start()

    def dismiss(self, *, gently: bool) -> None:
        """Tell the process to end: at once, or when it has ended its kernels."""
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

"""Search processes: each is given one task after the other, and one that is lost costs one task.

What they do is `biprop.suite.searching`, and how one is kept `biprop.suite.processes`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import attrs

from biprop.errors import DeviceError
from biprop.reports.suite import CellError
from biprop.suite.processes import TaskProcess, answering
from biprop.suite.searching import Ready, Result, Settings, Task, serve

__all__ = ["Ended", "Lost", "run_tasks"]


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
        for slot in answering(slots):
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


class _Slot(TaskProcess[Task, Ready | Result]):
    """One search process."""

    def __init__(self, settings: Settings, *, device: str) -> None:
        self.is_ready = False
        super().__init__(serve, settings, device, name="biprop search")

    def restart(self) -> None:
        self.dismiss(gently=False)
        self.end()
        self.is_ready = False
        self.start()

"""Processes that make trials: each is given one after the other, and a lost one costs one trial.

What they do is `biprop.power.working`, and how one is kept `biprop.suite.processes`.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import attrs

from biprop.errors import DeviceError
from biprop.power.working import Ready, Task, serve
from biprop.provenance import Provenance
from biprop.reports.power import Trial, TwinTrial
from biprop.suite.processes import TaskProcess, answering

__all__ = ["Ended", "made"]


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
            for slot in answering(slots):
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


class _Slot(TaskProcess[Task, Ready | Trial | TwinTrial]):
    """One process, and where it works."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.provenance: Provenance | None = None
        super().__init__(serve, device, name="biprop power")

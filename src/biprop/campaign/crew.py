"""The processes of a campaign: each is given one task after the other, and replaced when it dies.

`Crew` is what a campaign asks for, and all that it knows of processes; `LocalCrew` keeps those of
one machine, over any number of devices, `biprop.campaign.ray_crew` those of a cluster. Whatever
starts `biprop.campaign.working.run_task` somewhere and brings back its answers will do, since all
that must outlast a process lies in the store.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Protocol

import attrs

from biprop.campaign.messages import (
    Answer,
    Done,
    Ready,
    Settings,
    Task,
)
from biprop.campaign.working import serve
from biprop.errors import DeviceError

__all__ = ["Answered", "Crew", "Died", "LocalCrew", "seconds_silent_max"]

# Spawned, since a fork of a process that has imported torch may hang.
_PROCESSES = get_context("spawn")
_SECONDS_TO_END = 5.0
# Longer than a child may take to compile a kernel, which a supervisor waits for.
_SECONDS_UNTIL_HUNG = 1200.0
# What a set of four may take on a device when it is first launched, and some more.
_TIMEOUTS_UNTIL_HUNG = 10
# What a process keeps of kernels and of Hypothesis goes with it.
TASKS_MAX = 512
_STARTS_MAX = 3


def seconds_silent_max(timeout: float) -> float:
    """Return how long a process may say nothing that has a task, before it counts as hung.

    Whoever waits for a launch of its own says nothing meanwhile.

    Args:
        timeout: Seconds after which a launch counts as hung.
    """
    return max(_SECONDS_UNTIL_HUNG, _TIMEOUTS_UNTIL_HUNG * timeout)


@attrs.frozen(kw_only=True)
class Answered:
    """A process said something.

    Attributes:
        worker: Its number.
        answer: What.
    """

    worker: int
    answer: Answer


@attrs.frozen(kw_only=True)
class Died:
    """A process ended without being told to.

    Attributes:
        worker: Its number.
        words: How, as part of a sentence.
        task: What it was doing; None where it had nothing to do.
    """

    worker: int
    words: str
    task: Task | None


class Crew(Protocol):
    """Processes by number, from 0."""

    def free(self) -> tuple[int, ...]:
        """Return the numbers of processes that wait for a task."""

    def give(self, worker: int, task: Task) -> None:
        """Give a process a task."""

    def wait(self, seconds: float) -> "Iterator[Answered | Died]":
        """Yield what processes say, once one does or time is over.

        Raises:
            DeviceError: No process starts.
        """

    def renew(self, worker: int) -> None:
        """Start a process in the place of one that died, once what it left behind is taken up."""

    def ask_to_stop(self) -> None:
        """Have every process end its task early and record it; answers are still to be waited for.

        Nothing is given to any of them afterwards.
        """

    def is_idle(self) -> bool:
        """Say whether no process has a task."""

    def kill(self) -> None:
        """End all processes at once, and wait until they are gone."""


class LocalCrew:
    """A crew of processes on this machine."""

    def __init__(
        self,
        settings: Settings,
        *,
        devices: Sequence[str],
        workers: int,
        first: int = 0,
        seconds_until_hung: float | None = None,
    ) -> None:
        """Start the processes.

        Args:
            settings: Of the campaign.
            devices: That they are spread over, in turns.
            workers: How many.
            first: Number of the first one, where others are kept elsewhere.
            seconds_until_hung: Without a word of a process that has a task; None: by the timeout.
        """
        self._seconds_until_hung = seconds_until_hung or seconds_silent_max(settings.timeout)
        self._failed_starts = 0
        self._slots = {
            number: _Slot(settings, worker=number, device=devices[number % len(devices)])
            for number in range(first, first + workers)
        }

    def free(self) -> tuple[int, ...]:
        """Return the numbers of processes that wait for a task."""
        slots = self._slots.values()
        return tuple(slot.worker for slot in slots if slot.is_ready and slot.task is None)

    def give(self, worker: int, task: Task) -> None:
        """Give a process a task."""
        self._slots[worker].give(task)

    def wait(self, seconds: float) -> "Iterator[Answered | Died]":
        """Yield what processes say, once one does or time is over."""
        alive = [slot for slot in self._slots.values() if slot.is_started]
        found = set(wait(self.sources(), timeout=seconds))
        for slot in alive:
            if slot.connection in found or slot.process.sentinel in found:
                yield from self._heard(slot)
            elif slot.task is not None and slot.seconds_silent() > self._seconds_until_hung:
                slot.process.kill()
                yield self._died(slot, f"said nothing for {self._seconds_until_hung:g} s")

    def sources(self) -> list[Connection | int]:
        """Return what becomes ready once `wait` has something to yield."""
        alive = [slot for slot in self._slots.values() if slot.is_started]
        return [source for slot in alive for source in (slot.connection, slot.process.sentinel)]

    def renew(self, worker: int) -> None:
        """Start a process in the place of one that died."""
        self._slots[worker].start()

    def ask_to_stop(self) -> None:
        """Have every process end its task early."""
        for slot in self._slots.values():
            slot.ask_to_stop()

    def is_idle(self) -> bool:
        """Say whether no process has a task."""
        return all(slot.task is None for slot in self._slots.values())

    def kill(self) -> None:
        """End all processes at once."""
        for slot in self._slots.values():
            if slot.is_started and slot.task is not None:
                slot.process.kill()
        for slot in self._slots.values():
            slot.end()

    def _heard(self, slot: "_Slot") -> "Iterator[Answered | Died]":
        answer = slot.answer()
        if answer is None:
            yield self._died(slot, slot.end_in_words())
            return
        if isinstance(answer, Ready):
            self._failed_starts = 0
        yield Answered(worker=slot.worker, answer=answer)
        if slot.is_ready and slot.task is None and slot.tasks >= TASKS_MAX:
            slot.end()
            slot.start()

    def _died(self, slot: "_Slot", words: str) -> Died:
        task, was_ready = slot.task, slot.is_ready
        slot.end()
        if not was_ready:
            # One that dies before it is ready would die again.
            self._failed_starts += 1
            if self._failed_starts >= _STARTS_MAX:
                raise DeviceError(
                    f"No process of the campaign starts: the last one {words}. What it wrote says "
                    "why."
                )
        return Died(worker=slot.worker, words=words, task=task)


class _Slot:
    """One process, and the task that it has."""

    def __init__(self, settings: Settings, *, worker: int, device: str) -> None:
        self.worker = worker
        self._settings = settings
        self._device = device
        self.is_started = False
        self.start()

    def start(self) -> None:
        self.task: Task | None = None
        self.tasks = 0
        self.is_ready = False
        self.connection, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(
            target=serve,
            args=(theirs, self._settings, self.worker, self._device),
            name="biprop fuzz",
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.is_started = True
        self._heard_at = time.monotonic()

    def give(self, task: Task) -> None:
        self._heard_at = time.monotonic()
        self.task = task
        self.tasks += 1
        # One that has ended cannot be told; that it has is seen where answers are waited for.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def answer(self) -> Answer | None:
        """Return what the process says; None where it says no more."""
        try:
            found: Answer | None = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None
        self._heard_at = time.monotonic()
        if isinstance(found, Ready):
            self.is_ready = True
        elif isinstance(found, Done):
            self.task = None
        return found

    def seconds_silent(self) -> float:
        return time.monotonic() - self._heard_at

    def ask_to_stop(self) -> None:
        if not self.is_started:
            return
        with contextlib.suppress(OSError):
            self.connection.send(None)
        if self.task is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def end_in_words(self) -> str:
        """Return how the process ended, once it has."""
        self.process.join(_SECONDS_TO_END)
        status = self.process.exitcode
        if status is None:
            return "closed its pipe"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    def end(self) -> None:
        """See that the process is gone: by itself where it has nothing to do, at once otherwise."""
        if not self.is_started:
            return
        self.is_started = False
        if self.task is None and self.is_ready:
            with contextlib.suppress(OSError):
                self.connection.send(None)
            self.process.join(_SECONDS_TO_END)
        self.process.kill()
        self.process.join()
        self.task = None
        self.is_ready = False
        self.connection.close()
        self.process.close()

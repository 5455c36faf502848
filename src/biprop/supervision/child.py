"""The supervisor's side of one worker: started when needed, asked, and replaced after it dies.

Nothing of torch happens in this process. What is asked says `biprop.supervision.supervised`, what
the worker does with it `biprop.supervision.serve`. The first worker is a process of its own; once
one has died, the next ones are forks of a keeper (`biprop.supervision.keeper`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from biprop.case import Json
from biprop.errors import CaseError, DeviceError, WorkerKilledError
from biprop.supervision.keeper import CAN_KEEP, Keeper, KeeperLostError
from biprop.supervision.messages import LINE_BYTES_MAX, decode, encode, error_from_data
from biprop.supervision.output import Tail
from biprop.supervision.pipes import Lines, LinesEndError
from biprop.supervision.processes import Spawned, WorkerProcess
from biprop.supervision.vitals import Vitals, ask_for_place

__all__ = [
    "EXIT_DEVICE_LOST",
    "EXIT_PIPES_LOST",
    "WORKER_COMMAND",
    "BrokenOffHangError",
    "Child",
    "ChildDiedError",
]

# -P: the current folder must not shadow modules of torch or of the standard library.
WORKER_COMMAND = (sys.executable, "-P", "-m", "biprop.worker")
# Status of a worker whose pipes were closed under it.
EXIT_PIPES_LOST = 71
# Status of a worker whose device no longer computes for it.
EXIT_DEVICE_LOST = 72

_SECONDS_TO_START = 180.0
_SECONDS_TO_END = 2.0
_SECONDS_FOR_PLACE = 2.0
_SECONDS_TO_REPORT = 0.02
_RUNS = ("canonical", "transformed", "reference", "parity")
# How often a worker is looked at while it may take its time.
_SECONDS_A_LOOK = 1.0
# A kernel that takes longer to compile has a fault of its own.
_SECONDS_TO_COMPILE = 900.0


class ChildDiedError(Exception):
    """A worker ended before it answered.

    Attributes:
        reason: `was killed by SIGSEGV`, `hung for 60 s`, ..., with stage and place if known.
        stage: What it was doing; empty where it had not begun what it was asked.
        launches: Launches that it had made for that, the last one included.
        is_hung: Whether it was ended because its time was up.
        is_killed: Whether it was ended by SIGKILL, which comes from outside.
    """

    def __init__(
        self,
        reason: str,
        *,
        stage: str = "",
        launches: int = 0,
        is_hung: bool = False,
        is_killed: bool = False,
    ) -> None:
        """Keep all."""
        super().__init__(reason)
        self.reason = reason
        self.is_hung = is_hung
        self.is_killed = is_killed
        self.stage = stage
        self.launches = launches


class BrokenOffHangError(KeyboardInterrupt):
    """Ctrl-C, for a worker whose time was up already.

    Attributes:
        death: As it would have been told a moment later.
    """

    def __init__(self, death: ChildDiedError) -> None:
        """Keep it."""
        super().__init__()
        self.death = death


class Child:
    """One worker at a time, which serves any number of kernels on one device.

    Attributes:
        device: Where it runs kernels.
        starts: Workers started so far. What was opened in an earlier one is gone.
    """

    def __init__(
        self,
        *,
        device: str,
        threads: int = 1,
        is_deterministic: bool = False,
        command: Sequence[str] = WORKER_COMMAND,
        output: Tail | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            device: `cpu`, `cuda:0`, ...
            threads: Intra-op threads that the worker starts with; a case may set its own.
            is_deterministic: Whether cases ask for deterministic algorithms, for which CUDA's
                libraries must be told before they start.
            command: What starts a worker; its own arguments are appended.
            output: Gets what workers print; None: standard error of this process.
        """
        self.device = device
        self.starts = 0
        self._threads = threads
        self._is_deterministic = is_deterministic
        self._command = tuple(command)
        self._output = output
        self._running: _Running | None = None
        self._keeper: Keeper | None = None

    @property
    def is_running(self) -> bool:
        """Whether a worker waits for messages, as far as is known."""
        return self._running is not None and self._running.asked is None

    @property
    def process(self) -> int | None:
        """Process number of the worker, None without one."""
        return None if self._running is None else self._running.process.pid

    @property
    def output_descriptor(self) -> int:
        """Where workers print to."""
        return 2 if self._output is None else self._output.descriptor

    def start(self) -> None:
        """Start a worker, unless one is running.

        Raises:
            DeviceError: It ended before it was ready; its own output says why.
            WorkerKilledError: It was killed before it was ready.
            BipropError: It says so itself, as when an installed operator cannot be loaded.
        """
        if self._running is not None:
            return
        self.starts += 1
        self._running = self._forked() or _Running(self._spawned)
        self._running.asked = _asked(self._running, _SECONDS_TO_START)
        try:
            ready = self._answer()
        except ChildDiedError as error:
            wrong = WorkerKilledError if error.is_killed else DeviceError
            raise wrong(
                f"The worker for device={self.device} {error.reason} before it was ready: "
                f"{self._last_words()}"
            ) from None
        if "error" in ready:
            self.close()
            raise error_from_data(ready["error"])

    def ask(self, message: Mapping[str, Json] | bytes, *, seconds: float) -> dict[str, Json]:
        """Return the worker's answer.

        Args:
            message: What is asked; bytes are an encoded line.
            seconds: How long the worker may go without beginning a new stage before it counts as
                hung.

        Raises:
            ChildDiedError: It died or hung; the next call starts another.
            BipropError: It answered with this error.
            CaseError: The message is too long.
        """
        self.send(message, seconds=seconds)
        return self.take()

    def send(self, message: Mapping[str, Json] | bytes, *, seconds: float) -> None:
        """Ask as `ask` does, but leave the answer to `take`.

        A worker whose last answer was not taken is ended, and another one asked.
        """
        line = message if isinstance(message, bytes) else encode(message)
        if len(line) > LINE_BYTES_MAX:
            raise CaseError(
                f"The case has {len(line)} bytes as JSON: make it smaller than {LINE_BYTES_MAX}."
            )
        self.drop()
        self.start()
        assert self._running is not None
        running = self._running
        # First of all: should this be broken off, what was sent of it may be answered.
        running.asked = _asked(running, seconds)
        try:
            if not running.lines.send(line, seconds=seconds):
                raise self._death(f"hung for {seconds:g} s", is_hung=True, ask=True)
        except LinesEndError as error:
            raise self._death() from error
        except BaseException:
            self._kill()
            raise

    def take(self) -> dict[str, Json]:
        """Return the answer to what was sent last; raises what `ask` raises."""
        answer = self._answer()
        if "error" in answer:
            raise error_from_data(answer["error"])
        return answer

    def drop(self) -> None:
        """End a worker whose answer is not wanted: it would be taken for the next one."""
        if self._running is not None and self._running.asked is not None:
            self._kill()

    def give_up(self) -> None:
        """End a worker that no longer serves; the next call starts another."""
        self._kill()
        if self._keeper is None and CAN_KEEP:
            # It imports while the supervisor thinks about what comes next.
            self._keeper = Keeper(
                self._arguments(),
                environment=self._environment(),
                output=self.output_descriptor,
            )

    def close(self) -> None:
        """End the worker: gently if it listens, at once if not."""
        self.drop()
        if self._running is not None:
            running = self._running
            with contextlib.suppress(LinesEndError):
                if running.lines.send(encode({"do": "end"}), seconds=0.1):
                    running.process.has_ended(_SECONDS_TO_END)
            self._kill()
        self._dismiss_keeper()

    def _answer(self) -> dict[str, Json]:
        assert self._running is not None
        running = self._running
        assert running.asked is not None, "an answer is taken once"
        seconds, begun, since = running.asked
        stage_since = since
        try:
            while True:
                # Looked at more often than that, so that a hang is not noticed twice as late. An
                # answer that is there already counts, however late it is looked at.
                line = running.lines.receive(seconds=min(_SECONDS_A_LOOK, seconds / 8))
                if line is not None:
                    answer = decode(line)
                    running.asked = None
                    return answer
                now, time_now = running.vitals.read().stages, time.monotonic()
                if now != begun:
                    begun, since, stage_since = now, time_now, time_now
                elif time_now - since >= seconds:
                    if time_now - stage_since >= _SECONDS_TO_COMPILE or not _compiles(running):
                        raise self._death(f"hung for {seconds:g} s", is_hung=True, ask=True)
                    # What is compiled runs after that, and has all its time.
                    since = time.monotonic()
                elif running.process.has_ended():
                    # Its pipes are still open in a process that the target has started.
                    raise self._death()
        except LinesEndError as error:
            raise self._death() from error
        except ValueError as error:
            raise self._death("wrote into the worker's pipes") from error
        except KeyboardInterrupt:
            # What has ended or begun something since it was last looked at does not hang.
            is_late = time.monotonic() - since >= seconds and self._running is running
            if is_late and running.vitals.read().stages == begun and not _compiles(running):
                death = self._death(f"hung for {seconds:g} s", is_hung=True)
                raise BrokenOffHangError(death) from None
            self._kill()
            raise
        except BaseException:
            # What the worker is still doing would be taken for the next answer.
            self._kill()
            raise

    def _last_words(self) -> str:
        """Return what the workers printed last, or how to see it."""
        words = "" if self._output is None else self._output.last_line()
        return words or f"run {' '.join(self._command)} --help to see why."

    def _death(
        self, reason: str = "", *, is_hung: bool = False, ask: bool = False
    ) -> ChildDiedError:
        """Return why the worker is no more, after making sure that it is no more.

        Args:
            reason: What it did; empty where the end of its process says that.
            is_hung: Whether its time is up.
            ask: Whether it still runs, and can be asked where.
        """
        assert self._running is not None
        running = self._running
        if ask:
            _ask_for_place(running)
        told = reason or running.end_of_process()
        progress = running.vitals.read()
        place, stage = running.vitals.place(), progress.stage
        self.give_up()
        if stage:
            told += f" in the {stage} run" if stage in _RUNS else f" in stage {stage!r}"
        return ChildDiedError(
            f"{told}, at {place}" if place else told,
            stage=stage,
            launches=progress.launches + (stage in _RUNS),
            is_hung=is_hung,
            is_killed=running.is_killed,
        )

    def _forked(self) -> "_Running | None":
        """Return a fork of the keeper; None where there is none."""
        if self._keeper is None:
            return None
        keeper = self._keeper
        try:
            return _Running(lambda handed: keeper.fork(handed, seconds=_SECONDS_TO_START))
        except KeeperLostError:
            # The worker is started as the first one was, and says itself what is wrong.
            self._dismiss_keeper()
            return None

    def _spawned(self, handed: tuple[int, ...]) -> WorkerProcess:
        # S603: the command is the caller's own, nothing of a fixture goes into it.
        started = subprocess.Popen(  # noqa: S603
            [*self._arguments(), "--pipes", ",".join(map(str, handed))],
            stdin=subprocess.DEVNULL,
            # What a target prints is for people; standard output belongs to the command's own
            # result.
            stdout=self.output_descriptor,
            stderr=self.output_descriptor,
            pass_fds=handed,
            env=self._environment(),
            # Its own session: Ctrl-C on the terminal is ours to handle, and what a target starts
            # dies with it.
            start_new_session=True,
        )
        return Spawned(started=started)

    def _arguments(self) -> list[str]:
        options = ("--device", self.device, "--threads", str(self._threads))
        return [*self._command, *options, "--parent", str(_parent())]

    def _environment(self) -> dict[str, str]:
        variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if self._is_deterministic else {}
        return _environment(variables)

    def _dismiss_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def _kill(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None


class _Asked(NamedTuple):
    """What a worker was asked: how long a stage may take, stages begun before, and when it was."""

    seconds: float
    stages: int
    since: float


class _Running:
    """A started worker with everything that must be closed after it."""

    def __init__(self, start: Callable[[tuple[int, ...]], WorkerProcess]) -> None:
        """Start it.

        Args:
            start: Starts its process, given the descriptors that it is handed.
        """
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        # Never written to: its writing end closes with this process, which ends the worker.
        lifeline_read, lifeline_write = os.pipe()
        self.vitals = Vitals()
        handed = (request_read, answer_write, lifeline_read, *self.vitals.descriptors)
        try:
            self.process = start(handed)
        except BaseException:
            self.vitals.close()
            for descriptor in (request_write, answer_read, lifeline_write):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (request_read, answer_write, lifeline_read):
                os.close(descriptor)
        self.lines = Lines(read_fd=answer_read, write_fd=request_write)
        # What it was asked and has not answered, as far as is known.
        self.asked: _Asked | None = None
        # Whether SIGKILL ended it, as far as is known.
        self.is_killed = False
        # Also when nobody calls close: the worker is idle then, or its answer is not wanted.
        self.end = weakref.finalize(
            self, _end, os.getpid(), self.process, self.lines, self.vitals, lifeline_write
        )

    def end_of_process(self) -> str:
        """Wait shortly for the process to end, and say how it did."""
        if not self.process.has_ended(_SECONDS_TO_END):
            return "closed the worker's pipes"
        status = self.process.finish()
        self.is_killed = status == -signal.SIGKILL
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        if status == EXIT_PIPES_LOST:
            return "closed the worker's pipes"
        if status == EXIT_DEVICE_LOST:
            return "lost its device"
        return f"ended the process with exit status {status}"


def _asked(running: _Running, seconds: float) -> _Asked:
    return _Asked(seconds=seconds, stages=running.vitals.read().stages, since=time.monotonic())


def _end(
    owner: int,
    process: WorkerProcess,
    lines: Lines,
    vitals: Vitals,
    lifeline_write: int,
) -> None:
    if owner != os.getpid():
        # A copy of the supervisor made by fork: the worker is not its own.
        return
    process.finish()
    lines.close()
    vitals.close()
    os.close(lifeline_write)


def _parent() -> int:
    # A worker told its parent's number dies with the thread that started it, so only the main one
    # tells.
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def _compiles(running: _Running) -> bool:
    """Ask a worker that is long silent for its place, and say whether a compiler is at work."""
    _ask_for_place(running)
    return running.vitals.is_compiling


def _ask_for_place(running: _Running) -> None:
    """Ask a worker where it is, and wait until it has told, or will not."""
    before = running.vitals.report_size
    ask_for_place(running.process.pid)
    deadline = time.monotonic() + _SECONDS_FOR_PLACE
    while running.vitals.report_size == before and time.monotonic() < deadline:
        time.sleep(_SECONDS_TO_REPORT)
    # The report is written in pieces.
    time.sleep(_SECONDS_TO_REPORT)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    # The worker must import this biprop, whether it is installed, on PYTHONPATH, or beside the
    # caller.
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # What is set already is its user's choice.
    return {**variables, **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

"""The keeper: a process that has imported what workers need, and forks them.

torch takes seconds to import, and a kernel that is shrunk while it crashes costs a worker a step.
So once a worker has died a keeper is started, and all later workers are its forks. It touches
neither a device nor a target, as forks of what it had touched would be broken.

Both ends are here: `Keeper` is the supervisor's, `keep` the loop of the process itself, which
`biprop.worker` calls. They speak JSON over a socket, which also carries the descriptors of each
worker's pipes.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import attrs

from biprop.supervision.processes import kill_group

__all__ = ["CAN_KEEP", "Forked", "Keeper", "KeeperLostError", "keep"]

# What handing over descriptors, and workers that die with their keeper, need.
CAN_KEEP = sys.platform.startswith("linux")

_PACKET_BYTES = 4096
_DESCRIPTORS_MAX = 16
_SECONDS_TO_TELL = 5.0


class KeeperLostError(Exception):
    """The keeper is gone, or does not answer."""


class Keeper:
    """The supervisor's end; the process has begun to import when this returns."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], output: int = 2
    ) -> None:
        """Start one.

        Args:
            command: What starts a worker, but for its pipes.
            environment: Of the process, and of all its workers.
            output: Descriptor of what it and they print to.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # S603: the command is the caller's own, nothing of a fixture goes into it.
        process = subprocess.Popen(  # noqa: S603
            [*command, "--keep", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            env=dict(environment),
            start_new_session=True,
        )
        theirs.close()
        self._channel = ours
        self._is_ready = False
        # Status of each worker that has ended and was not reaped.
        self._ended: dict[int, int] = {}
        self.end = weakref.finalize(self, _end, os.getpid(), process, ours)

    def fork(self, descriptors: Sequence[int], *, seconds: float) -> "Forked":
        """Fork a worker.

        Args:
            descriptors: Of its pipes; they stay open here too.
            seconds: How long the keeper may take to be ready.

        Raises:
            KeeperLostError: It is gone, or not ready in time.
        """
        if not self._is_ready:
            self._await("ready", seconds)
            self._is_ready = True
        try:
            socket.send_fds(self._channel, [b'{"do": "fork"}'], list(descriptors))
        except OSError as error:
            raise KeeperLostError("it reads no more") from error
        return Forked(keeper=self, pid=self._await("forked", _SECONDS_TO_TELL))

    def has_ended(self, pid: int, seconds: float) -> bool:
        """Wait for a worker to end, without giving its number free."""
        deadline = time.monotonic() + seconds
        try:
            while pid not in self._ended:
                told = self._receive(max(0.0, deadline - time.monotonic()))
                if not told:
                    return False
                self._note(told)
        except KeeperLostError:
            # Its workers die with it.
            self._ended[pid] = -signal.SIGKILL
        return True

    def reap(self, pid: int) -> int:
        """Give the number of a worker free that has ended or was killed; return its status."""
        if not self.has_ended(pid, _SECONDS_TO_TELL):
            return -signal.SIGKILL
        message = json.dumps({"do": "reap", "pid": pid}).encode()
        try:
            self._channel.send(message)
        except OSError:
            # Whoever would have kept the number is gone.
            return self._ended.pop(pid)
        return self._ended.pop(pid)

    def _await(self, kind: str, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while True:
            told = self._receive(max(0.0, deadline - time.monotonic()))
            if kind in told:
                return told[kind]
            if not told:
                raise KeeperLostError(f"it has not told {kind} in {seconds:g} s")
            self._note(told)

    def _note(self, told: Mapping[str, int]) -> None:
        if "ended" in told:
            self._ended[told["ended"]] = told["status"]

    def _receive(self, seconds: float) -> dict[str, int]:
        """Return what the keeper says next; nothing where it says nothing in time.

        Raises:
            KeeperLostError: It is gone.
        """
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return {}
        try:
            packet = self._channel.recv(_PACKET_BYTES)
        except OSError as error:
            raise KeeperLostError("it cannot be read") from error
        if not packet:
            raise KeeperLostError("it has ended")
        told: dict[str, int] = json.loads(packet)
        return told


@attrs.define(kw_only=True, eq=False)
class Forked:
    """A worker that a keeper has forked.

    Attributes:
        keeper: Its parent.
        pid: Number of the process.
    """

    keeper: Keeper
    pid: int
    _status: int | None = attrs.field(default=None, init=False)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait for it to end, without giving its number free."""
        return self._status is not None or self.keeper.has_ended(self.pid, seconds)

    def finish(self) -> int:
        """End it with all that it has started, and return its status."""
        if self._status is None:
            kill_group(self.pid)
            self._status = self.keeper.reap(self.pid)
        return self._status


def keep(descriptor: int, work: Callable[[tuple[int, ...]], None]) -> NoReturn:
    """Fork a worker whenever the supervisor asks for one, until it is gone.

    Args:
        descriptor: Of the socket.
        work: What a worker does, given the descriptors of its pipes; called in the fork alone.
    """
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    # Each end of a worker is written here, so that waiting for the socket is waiting for both.
    waking, awake = os.pipe()
    for end in (waking, awake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    running: set[int] = set()
    poll = select.poll()
    for source in (channel.fileno(), waking):
        poll.register(source, select.POLLIN)
    channel.send(b'{"ready": 1}')
    while True:
        ready = {source for source, _ in poll.poll()}
        if waking in ready:
            os.read(waking, _PACKET_BYTES)
        if channel.fileno() in ready:
            packet, descriptors, _, _ = socket.recv_fds(channel, _PACKET_BYTES, _DESCRIPTORS_MAX)
            if not packet:
                os._exit(0)
            message = json.loads(packet)
            if message["do"] == "reap":
                os.waitpid(message["pid"], 0)
            else:
                running.add(_forked(channel, (waking, awake), tuple(descriptors), work))
        running -= _told_ended(channel, running)


def _forked(
    channel: socket.socket,
    waker: tuple[int, int],
    descriptors: tuple[int, ...],
    work: Callable[[tuple[int, ...]], None],
) -> int:
    """Fork a worker, tell its number, and return it; does not return in the fork."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            # A group of its own, as that of a process that is started: what it starts dies with it.
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            for end in waker:
                os.close(end)
            work(descriptors)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001  # nothing may return into the keeper's own loop
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    for descriptor in descriptors:
        os.close(descriptor)
    channel.send(json.dumps({"forked": pid}).encode())
    return pid


def _told_ended(channel: socket.socket, running: set[int]) -> set[int]:
    """Tell which workers have ended, and return them; their numbers stay taken."""
    ended = set()
    for pid in running:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is not None:
            status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            channel.send(json.dumps({"ended": pid, "status": status}).encode())
            ended.add(pid)
    return ended


def _end(owner: int, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
    if owner != os.getpid():
        # A copy of the supervisor made by fork: the keeper is not its own.
        return
    channel.close()
    if process.returncode is None:
        kill_group(process.pid)
        process.wait()

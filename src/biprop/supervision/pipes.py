"""Lines over two pipes, with a deadline, whoever else uses the process's own streams.

A target prints to standard output and reads standard input as it likes: none of that meets these
pipes. What the lines say is `biprop.supervision.messages`.
"""

import os
import select
from time import monotonic

from biprop.supervision.messages import LINE_BYTES_MAX

__all__ = ["Lines", "LinesEndError"]

_BLOCK_BYTES = 1 << 16


class LinesEndError(Exception):
    """The other end is gone."""


class Lines:
    """One end of a conversation: reads lines from one descriptor, writes lines to another."""

    def __init__(self, *, read_fd: int, write_fd: int) -> None:
        """Take over both descriptors."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = bytearray()
        self._searched = 0
        os.set_blocking(write_fd, False)

    def send(self, line: bytes, *, seconds: float | None = None) -> bool:
        """Write a line; False where the other end did not take it in time.

        Raises:
            LinesEndError: The other end is gone.
        """
        deadline = None if seconds is None else monotonic() + seconds
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                if not _wait(self._write_fd, select.POLLOUT, deadline):
                    return False
            except OSError as error:
                raise LinesEndError("the other end reads no more") from error
        return True

    def receive(self, *, seconds: float | None = None) -> bytes | None:
        """Return the next line, None where none came in time.

        Raises:
            LinesEndError: The other end is gone.
            ValueError: Its line is longer than `LINE_BYTES_MAX`.
        """
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._buffer)
            if self._searched > LINE_BYTES_MAX:
                raise ValueError(f"a line is longer than {LINE_BYTES_MAX} bytes")
            if not _wait(self._read_fd, select.POLLIN, deadline):
                return None
            try:
                block = os.read(self._read_fd, _BLOCK_BYTES)
            except OSError as error:
                raise LinesEndError("the other end cannot be read") from error
            if not block:
                raise LinesEndError("the other end writes no more")
            self._buffer += block

    def close(self) -> None:
        """Close both descriptors."""
        for descriptor in (self._read_fd, self._write_fd):
            try:
                os.close(descriptor)
            except OSError:
                # The target has closed what was not its own; nothing is left to close.
                continue


def _wait(descriptor: int, event: int, deadline: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    milliseconds = None if deadline is None else max(0.0, (deadline - monotonic()) * 1000)
    return bool(poll.poll(milliseconds))

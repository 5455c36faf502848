"""What workers print, where nobody is to see all of it: read at once, and its end kept.

A worker writes into a pipe; a thread of the supervisor reads it, so that no target ever waits for
it, and none fills a terminal or a disk.
"""

import os
import threading
import time
from collections import deque

__all__ = ["Tail"]

BYTES_MAX = 1 << 16
_BLOCK_BYTES = 1 << 16
_LINE_LENGTH_MAX = 200
# What a process wrote just before it ended is read by then.
_SECONDS_TO_READ = 0.1


class Tail:
    """The last 64 KiB that workers have printed, of all that were given its descriptor.

    Attributes:
        descriptor: Of the pipe that they write to.
    """

    def __init__(self) -> None:
        """Read from now on."""
        read, self.descriptor = os.pipe()
        self._lock = threading.Lock()
        self._blocks: deque[bytes] = deque()
        self._size = 0
        # It ends with its last writer, or with this process: a pipe that nobody reads blocks.
        threading.Thread(target=self._read, args=(read,), daemon=True).start()

    @property
    def text(self) -> str:
        """What is kept."""
        with self._lock:
            return b"".join(self._blocks).decode(errors="replace")

    def last_line(self) -> str:
        """Return the last line that says something, printable and bounded; waits shortly for it."""
        time.sleep(_SECONDS_TO_READ)
        lines = ("".join(filter(str.isprintable, line)).strip() for line in self.text.splitlines())
        return next((line for line in reversed(tuple(lines)) if line), "")[:_LINE_LENGTH_MAX]

    def close(self) -> None:
        """Take no more of anybody else than who writes already."""
        os.close(self.descriptor)

    def _read(self, descriptor: int) -> None:
        while block := os.read(descriptor, _BLOCK_BYTES):
            with self._lock:
                self._blocks.append(block)
                self._size += len(block)
                while self._size > BYTES_MAX:
                    first = self._blocks.popleft()
                    # Of the oldest block, what still fits is kept.
                    rest = first[self._size - BYTES_MAX :]
                    self._size -= len(first) - len(rest)
                    if rest:
                        self._blocks.appendleft(rest)
        os.close(descriptor)

"""What a worker does right now, and where it broke: a block shared with its supervisor.

A worker that is killed or hangs says nothing any more, so what it was doing is written before it
does it: a few bytes, no message, since it happens before each run. The first 16 bytes are a counter
and the stage; a second file takes Python's own report of a fatal signal. `biprop.supervision.child`
reads both.
"""

import faulthandler
import os
import re
import signal
import struct
import tempfile
from pathlib import Path

__all__ = ["STAGES", "Vitals", "VitalsWriter", "ask_for_place"]

STAGES = ("", "prepare", "canonical", "transformed", "power", "open")

_BLOCK = struct.Struct("<QQ")
_PLACE = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_LIBRARY = re.compile(r"[/\\](?:lib|Lib)[/\\]python|site-packages")
_REPORT_BYTES_MAX = 1 << 16
# Asks a worker that hangs for its place; handled in C, so an endless loop does not keep it from
# answering.
_ASKING = signal.SIGUSR1


class Vitals:
    """The supervisor's end: two anonymous files, handed down to the worker."""

    def __init__(self) -> None:
        """Make both files."""
        self._block = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        self._report = tempfile.TemporaryFile()  # noqa: SIM115  # likewise
        self._block.write(_BLOCK.pack(0, 0))
        self._block.flush()

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors of the block and of the report."""
        return self._block.fileno(), self._report.fileno()

    def read(self) -> tuple[int, str]:
        """Return how many stages were begun, and the last one."""
        count, stage = _BLOCK.unpack(os.pread(self._block.fileno(), _BLOCK.size, 0))
        return count, STAGES[stage] if stage < len(STAGES) else ""

    def place(self) -> str:
        """Return `function (file:line)` of the innermost frame reported outside of libraries.

        Of the innermost one where all are in libraries; empty if none was reported.
        """
        text = os.pread(self._report.fileno(), _REPORT_BYTES_MAX, 0).decode(errors="replace")
        frames = _PLACE.findall(text)
        own = (frame for frame in frames if not _LIBRARY.search(frame[0]))
        frame = next(own, frames[0] if frames else None)
        return f"{frame[2]} ({Path(frame[0]).name}:{frame[1]})" if frame else ""

    def close(self) -> None:
        """Close both files."""
        self._block.close()
        self._report.close()


class VitalsWriter:
    """The worker's end."""

    def __init__(self, *, block_fd: int, report_fd: int) -> None:
        """Write stages to `block_fd`; let Python report fatal signals to `report_fd`."""
        self._block_fd = block_fd
        self._count = 0
        faulthandler.enable(file=report_fd, all_threads=False)
        faulthandler.register(_ASKING, file=report_fd, all_threads=False)

    def mark(self, stage: str) -> None:
        """Say that `stage` begins."""
        self._count += 1
        try:
            os.pwrite(self._block_fd, _BLOCK.pack(self._count, STAGES.index(stage)), 0)
        except OSError:
            # The target has closed it; the answer's own pipe will show that to the supervisor.
            return


def ask_for_place(process: int) -> None:
    """Ask the worker of this process number to report where it is; harmless if it is gone."""
    try:
        os.kill(process, _ASKING)
    except ProcessLookupError:
        return

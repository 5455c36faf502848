"""What a worker does right now, and where it broke: a block shared with its supervisor.

A worker that is killed or hangs says nothing any more, so what it was doing is written before it
does it: a few bytes, no message, since it happens before each run. The block holds a counter, the
stage and the launches made; a second file takes Python's own report of a fatal signal.
`biprop.supervision.child` reads both.
"""

import faulthandler
import os
import re
import signal
import struct
import tempfile
from pathlib import Path

import attrs

__all__ = ["STAGES", "Progress", "Vitals", "VitalsWriter", "ask_for_place"]

STAGES = (
    "",
    "prepare",
    "canonical",
    "transformed",
    "power",
    "open",
    "reference",
    "parity",
    "program",
)

_BLOCK = struct.Struct("<QQQ")
_PLACE = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_LIBRARY = re.compile(r"[/\\](?:lib|Lib)[/\\]python|site-packages")
_REPORT_BYTES_MAX = 1 << 16
# How every report of Python begins.
_REPORT_HEAD = "(most recent call first):"
# Where compilers are at work, and in which function; launching has frames in the same files.
_COMPILERS = (
    ("triton/compiler/compiler.py", "compile"),
    ("triton/backends/nvidia/compiler.py", ""),
    ("triton/backends/amd/compiler.py", ""),
    ("triton/runtime/build.py", ""),
    ("torch/_dynamo/convert_frame.py", ""),
    ("torch/utils/cpp_extension.py", ""),
)
# Asks a worker that hangs for its place; handled in C, so an endless loop does not keep it from
# answering.
_ASKING = signal.SIGUSR1


@attrs.frozen(kw_only=True)
class Progress:
    """How far a worker is.

    Attributes:
        stages: Stages begun so far.
        stage: The last one; empty where it is idle.
        launches: Launches of the present case that were made before it.
    """

    stages: int
    stage: str
    launches: int


class Vitals:
    """The supervisor's end: two anonymous files, handed down to the worker."""

    def __init__(self) -> None:
        """Make both files."""
        self._block = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        self._report = tempfile.TemporaryFile()  # noqa: SIM115  # likewise
        self._block.write(_BLOCK.pack(0, 0, 0))
        self._block.flush()

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors of the block and of the report."""
        return self._block.fileno(), self._report.fileno()

    def read(self) -> Progress:
        """Return how far the worker is."""
        count, stage, launches = _BLOCK.unpack(os.pread(self._block.fileno(), _BLOCK.size, 0))
        name = STAGES[stage] if stage < len(STAGES) else ""
        return Progress(stages=count, stage=name, launches=launches)

    def place(self) -> str:
        """Return `function (file:line)` of the innermost frame reported outside of libraries.

        Of the innermost one where all are in libraries; empty if none was reported.
        """
        frames = self._frames()
        own = (frame for frame in frames if not _LIBRARY.search(frame[0]))
        frame = next(own, frames[0] if frames else None)
        return f"{frame[2]} ({Path(frame[0]).name}:{frame[1]})" if frame else ""

    @property
    def is_compiling(self) -> bool:
        """Whether the worker was inside of a compiler when it was last asked for its place."""
        return any(
            file.endswith(compiler) and (not function or name == function)
            for file, _, name in self._frames()
            for compiler, function in _COMPILERS
        )

    @property
    def report_size(self) -> int:
        """Bytes reported so far."""
        return os.fstat(self._report.fileno()).st_size

    def _frames(self) -> list[tuple[str, str, str]]:
        """Return file, line and function of each frame of the last report, innermost first."""
        start = max(0, self.report_size - _REPORT_BYTES_MAX)
        text = os.pread(self._report.fileno(), _REPORT_BYTES_MAX, start).decode(errors="replace")
        return _PLACE.findall(text.rpartition(_REPORT_HEAD)[2])

    def close(self) -> None:
        """Close both files."""
        self._block.close()
        self._report.close()


class VitalsWriter:
    """The worker's end.

    Attributes:
        stage: The last one that was begun.
    """

    def __init__(self, *, block_fd: int, report_fd: int) -> None:
        """Write stages to `block_fd`; let Python report fatal signals to `report_fd`."""
        self._block_fd = block_fd
        self._count = 0
        self.stage = ""
        faulthandler.enable(file=report_fd, all_threads=False)
        faulthandler.register(_ASKING, file=report_fd, all_threads=False)

    def mark(self, stage: str, launches: int = 0) -> None:
        """Say that `stage` begins, after so many launches of the present case."""
        self._count += 1
        self.stage = stage
        try:
            block = _BLOCK.pack(self._count, STAGES.index(stage), launches)
            os.pwrite(self._block_fd, block, 0)
        except OSError:
            # The target has closed it; the answer's own pipe will show that to the supervisor.
            return


def ask_for_place(process: int) -> None:
    """Ask the worker of this process number to report where it is; harmless if it is gone."""
    try:
        os.kill(process, _ASKING)
    except ProcessLookupError:
        return

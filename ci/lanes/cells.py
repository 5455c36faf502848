"""The parts pr and nightly: tests/props and tests/gpu on a device, with evidence of each cell.

pytest runs them in a process of its own, with `ci.lanes.recording`; what a cell is and how it is
judged says `biprop.pytest_plugin`.
"""

import importlib.util
import shlex
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import attrs
from ci.lanes.records import (
    CellsEvidence,
    TestCounts,
    read_evidence,
    totals_of,
    write_evidence,
)
from ci.lanes.runs import FORMAT, EvidenceError, Run, same_run
from ci.lanes.where import ROOT

from biprop.registry import build_registry
from biprop.strategies.cells import cells_of
from biprop.strategies.profiles import PROFILES

__all__ = ["CellOptions", "run_cells"]

_PROPS = "tests/props"
_GPU = "tests/gpu"
# With which pytest ends where no test was chosen.
_NOTHING_CHOSEN = 5


@attrs.frozen(kw_only=True)
class CellOptions:
    """How the cells of a part are run.

    Attributes:
        device: Where.
        workers: Of pytest-xdist: a number, or `auto`.
        cells: Expression that chooses cells by their ids, as pytest's `-k`; empty: all, and the
            tests of tests/gpu.
        max_examples: Of each cell; None: as the profile says.
        max_seconds: After which a cell draws no further example, or after ten times as long where
            evidence is lacking; None: no limit.
    """

    device: str
    workers: str
    cells: str = ""
    max_examples: int | None = None
    max_seconds: float | None = None


def run_cells(
    part: Literal["pr", "nightly"], run: Run, path: Path, options: CellOptions
) -> CellsEvidence:
    """Run a part, and return its evidence, which is in `path` too.

    Cells that the file holds of the same sources, device and versions stay, so that a part may be
    run piece by piece.

    Raises:
        EvidenceError: `path` cannot be written, or no cell has an id that was asked for.
    """
    before = path.read_bytes() if path.is_file() else None
    words = _words(part, options)
    # As one would type it: the plugin and its file are of the lane, not of the tests.
    shown = shlex.join(["pytest", *words])
    evidence = _begun(part, run, path, command=shown, options=options)
    write_evidence(path, evidence)
    command = [
        *(sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", "."),
        *_plugin_of_tree(),
        *("-p", "ci.lanes.recording", "--biprop-evidence", str(path.resolve()), "-v"),
        *words,
    ]
    start, earlier = time.monotonic(), evidence.run.seconds
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status == _NOTHING_CHOSEN and options.cells:
        _put_back(path, before)
        raise EvidenceError(
            f"--cells {options.cells!r} matches nothing: "
            "give a part of a cell's id, such as rms_norm-torch."
        )
    return _ended(path, status=status, seconds=earlier + time.monotonic() - start)


def _plugin_of_tree() -> list[str]:
    """Return the words that load biprop's plugin where no installed biprop does."""
    # Recording imports a part of it, after which tests/conftest.py takes it for loaded.
    known = entry_points(group="pytest11")
    return [] if "biprop" in known.names else ["-p", "biprop.pytest_plugin"]


def _words(part: str, options: CellOptions) -> list[str]:
    """Return the arguments of pytest that decide what runs."""
    words = [_PROPS]
    # Its tests need a device, and refuse to be named without one.
    if not options.cells and options.device != "cpu":
        words.append(_GPU)
    # A benchmark plugin warns of xdist, and a warning is an error here.
    words += ["--biprop-device", options.device, "--biprop-profile", part, "-p", "no:benchmark"]
    if importlib.util.find_spec("xdist") is not None:
        # Handed out one by one: a cell takes a second or minutes.
        words += ["-n", options.workers, "--maxschedchunk", "1"]
    if options.cells:
        words += ["-k", options.cells]
    if options.max_examples is not None:
        words += ["--biprop-max-examples", str(options.max_examples)]
    if options.max_seconds is not None:
        words += ["--biprop-max-seconds", f"{options.max_seconds:g}"]
    return words


def _begun(
    part: Literal["pr", "nightly"], run: Run, path: Path, *, command: str, options: CellOptions
) -> CellsEvidence:
    """Return the evidence to add to: that of the file, if it is of the same run, else none yet."""
    before = _before(path)
    if before is not None and before.part == part and same_run(before.run, run):
        going_on = attrs.evolve(
            before.run,
            date=run.date,
            commands=(*before.run.commands, command),
            is_complete=False,
            is_met=False,
        )
        tests = before.tests if options.cells else TestCounts()
        return attrs.evolve(before, run=going_on, tests=tests)
    return CellsEvidence(
        format=FORMAT,
        part=part,
        run=attrs.evolve(run, commands=(command,)),
        profile=part,
        seconds_max=options.max_seconds,
        powered_min=PROFILES[part].powered_min,
        totals=totals_of((), registered=len(cells_of(build_registry())), seconds=0.0),
        tests=TestCounts(),
        cells=(),
    )


def _put_back(path: Path, content: bytes | None) -> None:
    """Leave the file as it was before a run that ran nothing."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _before(path: Path) -> CellsEvidence | None:
    if not path.is_file():
        return None
    try:
        evidence = read_evidence(path)
    except EvidenceError:
        # Of another version: it is written anew.
        return None
    return evidence if isinstance(evidence, CellsEvidence) else None


def _ended(path: Path, *, status: int, seconds: float) -> CellsEvidence:
    evidence = read_evidence(path)
    assert isinstance(evidence, CellsEvidence)
    # What was recorded on the way left out how long the processes took to start.
    total = round(seconds, 1)
    registered = evidence.totals.cells_registered
    is_met = (
        bool(evidence.cells)
        and all(cell.is_met for cell in evidence.cells)
        and all(cache.is_met for cache in evidence.caches)
        and not evidence.tests.failed
    )
    ended = attrs.evolve(
        evidence,
        # 0 and 1: pytest ran to its end. Anything else is a run that was cut short.
        run=attrs.evolve(
            evidence.run,
            seconds=total,
            is_complete=status in {0, 1} and len(evidence.cells) == registered,
            is_met=is_met,
        ),
        totals=totals_of(evidence.cells, registered=registered, seconds=total),
    )
    write_evidence(path, ended)
    return ended

"""A plugin of pytest that keeps evidence of cells as they end.

`ci.lanes.cells` names it to pytest, and has written the file that it adds to. A run that is killed
leaves every cell that ended before.
"""

import json
import time
from pathlib import Path

import attrs
import pytest
from ci.lanes.records import (
    CacheResult,
    CellResult,
    CellsEvidence,
    ClassResult,
    Power,
    TestCounts,
    read_evidence,
    totals_of,
    write_evidence,
)
from ci.lanes.runs import EvidenceError
from ci.lanes.where import without_folders

from biprop.fixtures.records import CONVERTER
from biprop.generation import Lane, Space, real_sizes
from biprop.kvcache.converting import CONVERTER as PROGRAM_CONVERTER
from biprop.pytest_plugin.summary import PROPERTY
from biprop.registry import build_registry
from biprop.reports.program_records import CacheReport
from biprop.reports.records import CellReport
from biprop.signature import parse_restrictions, parse_signature
from biprop.strategies.cells import Cell, cells_of
from biprop.strategies.profiles import PROFILES

__all__ = ["Recorder", "pytest_addoption", "pytest_configure"]

_MESSAGE_MAX = 500
_DIGITS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.getgroup("biprop").addoption(
        "--biprop-evidence",
        metavar="FILE",
        default=None,
        help="add what each cell showed to this file of evidence (ci/gpu)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that gets every report: the workers of xdist send theirs to it."""
    path = config.getoption("--biprop-evidence")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "biprop-evidence")


class Recorder:
    """Adds each report to a file of evidence."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            EvidenceError: It is no evidence of cells.
        """
        evidence = read_evidence(path)
        if not isinstance(evidence, CellsEvidence):
            raise EvidenceError(f"{path} holds no cells: give the file of a part with cells.")
        self._path = path
        self._evidence = evidence
        self._start = time.monotonic()
        self._seconds_before = evidence.run.seconds
        self._cells = {cell.id: cell for cell in cells_of(build_registry())}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a cell or a cache, or count a test."""
        # A set-up that fails has no call, and what fails after the call fails the test too.
        if report.when != "call" and report.outcome == "passed":
            return
        entries = [
            json.loads(str(value)) for name, value in report.user_properties if name == PROPERTY
        ]
        found = [entry for entry in entries if entry["kind"] == "cell"]
        caches = [entry for entry in entries if entry["kind"] == "cache"]
        item = report.nodeid.partition("[")[2].removesuffix("]")
        if found:
            wanted = self._wanted(self._cells[item]) if item in self._cells else {}
            self._keep(_result_of(found[0], wanted=wanted, message=_message(report)))
        elif caches:
            self._keep_cache(_cache_result_of(caches[0], message=_message(report)))
        elif item in self._cells:
            self._keep(_unfinished(self._cells[item], message=_message(report)))
        else:
            self._count(report)

    def _wanted(self, cell: Cell) -> dict[str, int]:
        """Return the real sizes that a cell has to reach in this part."""
        device = self._evidence.run.device.kind
        lane: Lane = "gpu" if device == "cuda" else "cpu"
        space = Space(
            signature=parse_signature(cell.reference.signature),
            restrictions=parse_restrictions(cell.reference.dims),
            limits=PROFILES[self._evidence.profile].limits_of(lane),
        )
        wanted: dict[str, int] = {}
        for real in real_sizes(space):
            wanted[real.name] = max(real.size, wanted.get(real.name, 0))
        return wanted

    def _keep(self, result: CellResult) -> None:
        others = [cell for cell in self._evidence.cells if cell.id != result.id]
        cells = tuple(sorted([*others, result], key=lambda cell: cell.id))
        self._write(attrs.evolve(self._evidence, cells=cells))

    def _keep_cache(self, result: CacheResult) -> None:
        others = [cache for cache in self._evidence.caches if cache.id != result.id]
        caches = tuple(sorted([*others, result], key=lambda cache: cache.id))
        self._write(attrs.evolve(self._evidence, caches=caches))

    def _count(self, report: pytest.TestReport) -> None:
        before = self._evidence.tests
        name = report.nodeid
        # A test run again by a later command counts once.
        failed = tuple(other for other in before.failed if other != name)
        tests = TestCounts(
            passed=before.passed + (report.outcome == "passed"),
            skipped=before.skipped + (report.outcome == "skipped"),
            failed=(*failed, name) if report.outcome == "failed" else failed,
        )
        self._write(attrs.evolve(self._evidence, tests=tests))

    def _write(self, evidence: CellsEvidence) -> None:
        """Write all that there is, with the time that it took: a lane may be killed at any time."""
        seconds = round(self._seconds_before + time.monotonic() - self._start, 1)
        totals = totals_of(
            evidence.cells, registered=evidence.totals.cells_registered, seconds=seconds
        )
        run = attrs.evolve(evidence.run, seconds=seconds)
        self._evidence = attrs.evolve(evidence, run=run, totals=totals)
        write_evidence(self._path, self._evidence)


def _result_of(entry: dict[str, object], *, wanted: dict[str, int], message: str) -> CellResult:
    report = CONVERTER.structure(entry["report"], CellReport)
    return CellResult(
        id=str(entry["id"]),
        operator=report.reference.operator,
        target=report.reference.target,
        backend=report.reference.backend,
        actual_backend=report.actual_backend,
        dtype=report.dtype,
        direction=report.direction,
        verdict=report.verdict.value,
        causes=tuple(finding.fixture.expect.cause.key for finding in report.findings),
        examples=report.examples,
        rejected=report.rejected,
        launches=report.launches,
        seconds=round(report.seconds, _DIGITS),
        power=Power(kind=report.power_kind, share=round(report.power_share, _DIGITS)),
        classes={
            name: ClassResult(
                examples=count.examples,
                powered=count.powered,
                vacuous=count.vacuous,
                unpowered=count.unpowered,
                reason=count.reason,
            )
            for name, count in report.classes.items()
        },
        largest=report.largest,
        wanted=wanted,
        message=without_folders(report.message) or message,
    )


def _cache_result_of(entry: dict[str, object], *, message: str) -> CacheResult:
    report = PROGRAM_CONVERTER.structure(entry["report"], CacheReport)
    return CacheResult(
        id=str(entry["id"]),
        cache=report.reference.cache,
        layout=report.layout,
        backend=report.reference.backend,
        actual_backend=report.actual_backend,
        dtype=report.dtype,
        verdict=report.verdict.value,
        causes=tuple(finding.fixture.expect.cause.key for finding in report.findings),
        programs=report.programs,
        ops=report.ops,
        comparisons=report.comparisons,
        coverage={name: round(share, _DIGITS) for name, share in report.shares.items()},
        fixed={name: verdict.value for name, verdict in report.smoke.items()},
        powered=report.powered,
        seconds=round(report.seconds, _DIGITS),
        message=without_folders(report.message) or message,
    )


def _unfinished(cell: Cell, *, message: str) -> CellResult:
    return CellResult(
        id=cell.id,
        operator=cell.reference.operator,
        target=cell.reference.target,
        backend=cell.reference.backend,
        actual_backend="",
        dtype=cell.dtype,
        direction=cell.direction,
        verdict="",
        causes=(),
        examples=0,
        rejected=0,
        launches=0,
        seconds=0.0,
        power=Power(kind="", share=0.0),
        classes={},
        largest={},
        wanted={},
        message=message or "It did not end.",
    )


def _message(report: pytest.TestReport) -> str:
    """Return how a failure begins; empty where nothing failed."""
    if report.outcome == "passed":
        return ""
    return without_folders(report.longreprtext)[:_MESSAGE_MAX].strip()

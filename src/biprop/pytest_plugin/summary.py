"""The section "biprop drift summary" at the end of a run, and the report file.

Works on what items left as properties, so it does not matter which process ran them. Imports what
it tells with only when there is something to tell.
"""

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PROPERTY", "Summary"]

PROPERTY = "biprop"
_TITLE = "biprop drift summary"


class Summary:
    """Collects the properties of items, and tells them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        """Take the configuration of the run."""
        self._config = config
        # JSON objects that `biprop.pytest_plugin.running` wrote.
        self._entries: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what an item left; in a parallel run the controller gets all of them."""
        if report.when == "call":
            self._entries += [
                json.loads(str(value)) for name, value in report.user_properties if name == PROPERTY
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the section, and write the report file."""
        if not self._entries:
            return
        terminalreporter.section(_TITLE)
        terminalreporter.write(_text(self._entries))
        path = self._config.getoption("--biprop-report")
        if path:
            terminalreporter.write_line(
                _write(self._config.invocation_params.dir / path, self._entries)
            )


def _text(entries: list[dict[str, Any]]) -> str:
    """Return the lines of the section."""
    from biprop.fixtures.records import CONVERTER
    from biprop.kvcache.converting import CONVERTER as PROGRAM_CONVERTER
    from biprop.reports.program_records import CacheReport
    from biprop.reports.programs import render_cache_table, render_program_finding
    from biprop.reports.records import CellReport
    from biprop.reports.text import render_cells, render_finding

    cells = [
        CONVERTER.structure(entry["report"], CellReport)
        for entry in entries
        if entry["kind"] == "cell"
    ]
    lines: list[str] = []
    if cells:
        lines += render_cells(cells).splitlines()
    for cell in cells:
        for finding in cell.findings:
            lines += ["", *render_finding(finding, chain_index=cell.chain_index).splitlines()]
        if cell.message:
            lines += ["", f"{cell.verdict}  {cell.reference.target}: {cell.message}"]
    caches = [
        PROGRAM_CONVERTER.structure(entry["report"], CacheReport)
        for entry in entries
        if entry["kind"] == "cache"
    ]
    if caches:
        lines += ["", *render_cache_table(caches).splitlines()]
    for cache in caches:
        for found in cache.findings:
            lines += ["", *render_program_finding(found).splitlines()]
        if cache.message:
            lines += ["", f"{cache.verdict}  {cache.reference.target}: {cache.message}"]
    for entry in entries:
        if entry["kind"] == "fixture":
            lines.append(_fixture_line(entry))
    notes = entries[0]["notes"]
    lines += [f"exempt  {name}: {reason}" for name, reason in notes["exempt"].items()]
    lines += [
        f"not launched  {name}: no operator declares its target" for name in notes["unlaunched"]
    ]
    return "\n".join(lines) + "\n"


def _fixture_line(entry: dict[str, Any]) -> str:
    line = f"{entry['status']}  {entry['id']}"
    if entry["unexpected"]:
        return f"{line}: UNEXPECTED PASS, take it out of known.json: {entry['known']}"
    return f"{line}: known, {entry['known']}" if entry["known"] else line


def _write(path: Path, entries: list[dict[str, Any]]) -> str:
    """Write one JSON object a cell, of a cache too, and return the line that says so."""
    from biprop.fixtures.records import CONVERTER
    from biprop.kvcache.converting import CONVERTER as PROGRAM_CONVERTER
    from biprop.reports.drift import checked_object
    from biprop.reports.program_records import CacheReport, cache_report_to_data
    from biprop.reports.records import CellReport

    lines = [
        json.dumps(checked_object(CONVERTER.structure(entry["report"], CellReport)))
        for entry in entries
        if entry["kind"] == "cell"
    ] + [
        json.dumps(cache_report_to_data(PROGRAM_CONVERTER.structure(entry["report"], CacheReport)))
        for entry in entries
        if entry["kind"] == "cache"
    ]
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        return f"--biprop-report {path} cannot be written: {error.strerror}."
    return f"{len(lines)} cells written to {path}"

"""Run an item of a cache: search its programs, or replay a committed fixture of one.

In the worker process that all items share (`biprop.pytest_plugin.running`), which keeps what is
told at the end.
"""

import secrets
from typing import TYPE_CHECKING

import pytest

from biprop.data.words import hash_words
from biprop.errors import BipropError
from biprop.fixtures.program_replay import replay_program
from biprop.fixtures.programs import ProgramFixture
from biprop.judgment import Verdict
from biprop.kvcache.converting import CONVERTER
from biprop.pytest_plugin.caches import CacheCell, CacheItem, ProgramItem
from biprop.reports.program_records import CacheReport
from biprop.reports.programs import (
    render_cache_check,
    render_program_finding,
    render_program_replay,
)
from biprop.strategies.programs import search_programs
from biprop.supervision.programs import SupervisedPrograms

if TYPE_CHECKING:
    from biprop.pytest_plugin.running import PropsRun

__all__ = ["check_cache_item"]


def check_cache_item(run: "PropsRun", item: CacheItem, record: list[tuple[str, object]]) -> None:
    """Run an item; fail, skip or xfail the test that called.

    Args:
        run: What the items of the process share.
        item: What to run.
        record: Properties of the test (`request.node.user_properties`).
    """
    if isinstance(item, CacheCell):
        _check_cell(run, item, record)
    else:
        _check_fixture(run, item, record)


def _check_cell(run: "PropsRun", cell: CacheCell, record: list[tuple[str, object]]) -> None:
    try:
        report = _search(run, cell)
    except BipropError as error:
        run.fail(f"{cell.id}: {error}")
    run.keep(record, kind="cache", id=cell.id, report=CONVERTER.unstructure(report))
    if report.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"{cell.id} needs something else: {report.message}")
    if report.findings:
        run.fail("\n".join(map(render_program_finding, report.findings)))
    if report.verdict is not Verdict.HOLDS:
        run.fail(render_cache_check(report))


def _search(run: "PropsRun", cell: CacheCell) -> CacheReport:
    judge = SupervisedPrograms(cell.reference, device=run.child.device, child=run.child)
    return search_programs(
        judge,
        layout=cell.layout,
        dtype=cell.dtype,
        device=run.child.device,
        profile=run.profile.name,
        max_programs=run.max_examples,
        seconds_max=run.seconds_max,
        seed=hash_words(cell.id) if run.profile.derandomized else secrets.randbits(32),
        keep=lambda fixture: str(run.found.save(fixture)),
    )


def _check_fixture(run: "PropsRun", item: ProgramItem, record: list[tuple[str, object]]) -> None:
    def opened(fixture: ProgramFixture) -> SupervisedPrograms:
        deterministic = fixture.program.execution.deterministic_algorithms
        return SupervisedPrograms(
            fixture.reference,
            device=run.child.device,
            is_deterministic=deterministic,
            # What deterministic algorithms need is told to a process when it starts.
            child=None if deterministic else run.child,
        )

    replayed = replay_program(item.fixture, opened)
    known = item.known
    run.keep(
        record,
        kind="fixture",
        id=item.id,
        status=replayed.status,
        known="" if known is None else f"{known.reason} ({known.link})",
        unexpected=known is not None and replayed.status == "FIXED",
    )
    if replayed.status == "ERROR":
        run.fail(render_program_replay(replayed))
    if replayed.status in {"FAILED", "DIFFERENT"}:
        if known is not None:
            pytest.xfail(f"{known.reason} ({known.link})")
        text = render_program_replay(replayed)
        run.fail(f"A committed fixture of a registered cache fails.\n{text}")

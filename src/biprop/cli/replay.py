"""`biprop replay`: judge the case of a fixture again, here and now.

What may run, and what becomes of it, is decided by `biprop.fixtures`.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TypedDict

import attrs
import click

from biprop.case import Json
from biprop.cli.options import json_option, lookup_option, parse_device, timeout_option
from biprop.cli.output import complain, emit
from biprop.cli.session import named
from biprop.errors import FixtureError
from biprop.fixtures.load import read_text
from biprop.fixtures.program_replay import ProgramReplayed, replay_program
from biprop.fixtures.programs import AnyFixture, ProgramFixture, any_fixtures_in, read_any
from biprop.fixtures.records import Fixture
from biprop.fixtures.replay import BISECT_SKIP, Replayed
from biprop.fixtures.replay import replay as replay_fixture
from biprop.judgment import outcome_to_data
from biprop.kvcache.converting import program_outcome_to_data
from biprop.reports.programs import render_program_replay
from biprop.reports.text import render_replay
from biprop.supervision import SupervisedJudge
from biprop.supervision.programs import SupervisedPrograms

__all__ = ["replay"]

# What is worse comes first: an error hides a failure, a failure hides what was mended.
_ORDER = (BISECT_SKIP, 2, 1, 0)


@click.command(short_help="Judge the case of a fixture again, here and now.")
@click.argument("source", metavar="FILE|ID|-")
@click.option(
    "--allow-target",
    "allow_targets",
    multiple=True,
    metavar="TARGET",
    help="A target that may be imported, exactly as the fixture names it; repeatable.",
)
@click.option(
    "--verify", is_flag=True, help="Judge each claim of the proof too: what passes, what is free."
)
@click.option(
    "--bisect", is_flag=True, help="Exit with 125 where it cannot run, for `git bisect run`."
)
@click.option("--device", metavar="NAME", help="cpu, cuda or cuda:N.  [default: as recorded]")
@lookup_option
@timeout_option
@json_option
def replay(  # noqa: PLR0917  # one parameter an option
    source: str,
    allow_targets: tuple[str, ...],
    verify: bool,
    bisect: bool,
    device: str | None,
    store: Path | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Judge the case or the program of a fixture again, here and now.

    Takes a fixture file or a saved issue text, the beginning of an id in the store, or - for either
    on standard input. Only what is registered runs without --allow-target: a fixture from a
    stranger must not import what you did not choose.

    \b
    Exit codes, of the worst fixture:
      1  FAILED: the same cause again; DIFFERENT: another cause
      0  FIXED: it holds, and device, architecture, threads and backend match the record
      0  NOT REPRODUCED HERE: it holds, but they do not match; the differences are listed
      2  it cannot run, or shows nothing any more; 125 with --bisect
    With --verify, a FAILED finding whose proof does not hold says REFUTED, and exits with 1 too.
    """  # noqa: D301  # \b keeps the lines as they are
    wanted = None if device is None else parse_device(device)

    try:
        fixtures = _fixtures(source, store)
    except FixtureError as error:
        if not bisect:
            raise
        complain(str(error))
        return BISECT_SKIP
    how = _How(allow_targets=allow_targets, verify=verify, bisect=bisect)
    results = [
        replay_program(fixture, partial(_open_programs, device=wanted, timeout=timeout), **how)
        if isinstance(fixture, ProgramFixture)
        else replay_fixture(fixture, partial(_open_judge, device=wanted, timeout=timeout), **how)
        for fixture in fixtures
    ]
    _print(results, as_json=as_json)
    return next(code for code in _ORDER if any(result.exit_code == code for result in results))


class _How(TypedDict):
    allow_targets: tuple[str, ...]
    verify: bool
    bisect: bool


def _open_judge(fixture: Fixture, *, device: str | None, timeout: float) -> SupervisedJudge:
    return SupervisedJudge(
        reference=fixture.reference,
        device=device or _device_of(fixture),
        timeout=timeout,
        dtype=fixture.dtype,
        direction=fixture.direction,
        execution=fixture.case.execution,
    )


def _open_programs(
    fixture: ProgramFixture, *, device: str | None, timeout: float
) -> SupervisedPrograms:
    return SupervisedPrograms(
        fixture.reference,
        device=device or _device_of(fixture),
        timeout=timeout,
        is_deterministic=fixture.program.execution.deterministic_algorithms,
    )


def _device_of(fixture: AnyFixture) -> str:
    # Which of several devices it was says nothing here.
    return fixture.provenance.device.partition(":")[0] or "cpu"


def _fixtures(source: str, store: Path | None) -> tuple[AnyFixture, ...]:
    if source == "-":
        return any_fixtures_in(read_text(sys.stdin))
    found = named(source, store)
    if found.note:
        # Not for those who read JSON.
        complain(f"It is {found.note}.")
    path = found.path
    # A file may be a saved issue text.
    return (read_any(path),) if path.suffix == ".json" else any_fixtures_in(read_text(path))


def _print(results: list[Replayed | ProgramReplayed], *, as_json: bool) -> None:
    if as_json:
        data = [_object(result) for result in results]
        emit(json.dumps(data[0] if len(data) == 1 else {"replays": data}, indent=2) + "\n")
        return
    for result in results:
        if result.status == "ERROR":
            complain(result.message)
        elif isinstance(result, ProgramReplayed):
            emit(render_program_replay(result))
        else:
            emit(render_replay(result))


def _object(result: Replayed | ProgramReplayed) -> dict[str, Json]:
    """Return what became of one finding as JSON."""
    outcome = None
    if isinstance(result, ProgramReplayed):
        if result.outcome is not None:
            outcome = program_outcome_to_data(result.outcome)
    elif result.outcome is not None:
        outcome = outcome_to_data(result.outcome)
    return {
        "fixture_id": result.fixture.id,
        "status": result.status,
        "exit_code": result.exit_code,
        "outcome": outcome,
        "differences": list(result.differences),
        "changes": list(result.changes),
        "verified": [
            {**attrs.asdict(claim), "path": list(claim.path)} for claim in result.verified
        ],
        "refuted": result.refuted,
        "message": result.message,
    }

"""`biprop report`: write what a store of campaigns holds as one page of HTML.

What the page is made of is taken from the store's snapshot here; how it looks says
`biprop.reports.html`.
"""

import os
import tempfile
from pathlib import Path

import click

from biprop.campaign.records import CellInfo
from biprop.campaign.snapshot import CauseState, CellState, LedgerState, Snapshot
from biprop.campaign.store import Store
from biprop.campaign.text import kinds_in_words
from biprop.cli.output import emit
from biprop.errors import UsageError
from biprop.generation import CLASSES
from biprop.provenance import Provenance, version_of
from biprop.reports.html.records import (
    UNTRIED,
    CampaignRow,
    Cell,
    Environment,
    FoundCause,
    KnownEntry,
    Page,
    Span,
)
from biprop.reports.html.render import render_page
from biprop.reports.text import counted

__all__ = ["page_of", "report"]

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_PLAIN_FORMS = {"", "packed", "given"}
_TARGET = "target"
# Read together, so that a page is no larger than browsers bear.
_CAUSES_MAX = 2_000


@click.command(short_help="Write what a store of campaigns holds as one page of HTML.")
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Of the campaigns.  [default: .hypothesis/campaign of the project]",
)
@click.option(
    "-o",
    "--output",
    default="report.html",
    metavar="FILE",
    show_default=True,
    help="The page; - for standard output.",
)
def report(store: Path | None, output: str) -> int:
    """Write what a store of campaigns holds as one page of HTML.

    The page is one file: cells with verdict, examples and power; every finding with its case drawn,
    its issue block and the command that replays it; throughput and discoveries over time; the
    ledger with its stale entries; where all of it ran, and what green does not prove. It asks the
    network for nothing. No target is imported or run, and the store may be in use.
    """
    snapshot = Store.open(store).snapshot()
    page = page_of(snapshot, shown_as=str(store) if store is not None else "")
    text = render_page(page)
    if output == "-":
        emit(text)
        return 0
    _write(Path(output), text)
    emit(f"Wrote {output}: {counted(len(page.cells), 'cell')}, {kinds_in_words(snapshot)}.\n")
    if snapshot.problems:
        count = counted(len(snapshot.problems), "file")
        emit(f"Not read: {count} of the store; the page says which, and why.\n")
    return 0


def page_of(snapshot: Snapshot, *, shown_as: str = "") -> Page:
    """Return what the page of a snapshot is made of.

    Args:
        snapshot: Of a store, with its epochs.
        shown_as: What the page calls the store; its path where it is left out.
    """
    folder = shown_as or snapshot.path
    causes = snapshot.causes[:_CAUSES_MAX]
    entries = {state.known.cause: _entry(state) for state in snapshot.ledger}
    problems = [*snapshot.problems, *snapshot.broken]
    if len(snapshot.causes) > len(causes):
        problems.append(f"{len(snapshot.causes)} causes: the first {len(causes)} are shown.")
    return Page(
        store=folder,
        made=snapshot.at,
        biprop=version_of("biprop"),
        cells=tuple(map(_cell, snapshot.cells)),
        causes=tuple(_cause(cause, folder, entries) for cause in causes),
        ledger=tuple(entries.values()),
        campaigns=_campaigns(snapshot),
        environments=_environments(snapshot),
        spans=tuple(
            Span(
                began=epoch.began,
                seconds=epoch.seconds,
                seconds_in_kernels=epoch.seconds_in_kernels,
                examples=epoch.examples,
                compared=epoch.compared,
                behaviours=epoch.behaviour_count,
            )
            for epochs in snapshot.epochs.values()
            for epoch in epochs
        ),
        warnings=tuple(problems),
        under_way=sum(state.status == "running" for state in snapshot.campaigns),
    )


def _cell(state: CellState) -> Cell:
    info, total = state.info, state.sum
    dtype = _SHORT.get(info.dtype, info.dtype)
    # A cache has no direction.
    column = dtype if info.kind == "cache" else f"{dtype} {info.direction}"
    return Cell(
        id=info.id,
        row=_row(info),
        backend=info.backend,
        column=column,
        verdict=state.verdict or UNTRIED,
        chain_index=info.chain_index,
        ran=total.actual_backend,
        epochs=total.epochs,
        lost=total.lost,
        examples=total.examples,
        rejected=total.rejected,
        launches=total.launches,
        compared=total.compared,
        seconds=total.seconds,
        seconds_in_kernels=total.seconds_in_kernels if total.seconds_known else None,
        seconds_known=total.seconds_known,
        behaviours=total.behaviours,
        power_kind=total.power_kind,
        power_share=total.power_share,
        classes={name: total.classes[name] for name in sorted(total.classes, key=_class_rank)},
        coverage=dict(total.coverage),
        findings=state.causes,
        message=state.message,
        is_cache=info.kind == "cache",
    )


def _row(info: CellInfo) -> str:
    """Return what the cells of one row have in common.

    Entries of a manifest may share a target, and have names of their own, which their ids begin
    with.
    """
    if info.backend == _TARGET:
        return info.id.removesuffix(f"-{info.dtype}-{info.direction}")
    return info.operator if info.form in _PLAIN_FORMS else f"{info.operator}/{info.form}"


def _class_rank(name: str) -> tuple[bool, str]:
    """Sort classes of transforms before what canonical runs were held against."""
    return name not in CLASSES, name


def _cause(state: CauseState, folder: str, entries: dict[str, KnownEntry]) -> FoundCause:
    record = state.record
    unreadable = ""
    if state.fixture is None:
        unreadable = f"Its fixture {record.fixture} cannot be read."
    return FoundCause(
        digest=record.digest,
        cell=record.cell,
        verdict=record.verdict,
        key=record.key,
        transforms=record.transforms,
        status=record.standing,
        count=state.count,
        first_seen=state.first_seen,
        last_seen=state.last_seen,
        fixture=state.fixture,
        path=str(Path(folder) / state.folder / f"{record.fixture}.json"),
        known=None if state.known is None else entries.get(state.known.cause),
        kind=state.kind,
        is_lost=record.is_lost,
        unreadable=unreadable,
    )


def _entry(state: LedgerState) -> KnownEntry:
    checked = ""
    if state.replay is not None:
        checked = f"replayed by {state.replay.campaign}: {state.replay.status}"
    return KnownEntry(
        cause=state.known.cause,
        link=state.known.link,
        reason=state.known.reason,
        state="stale" if state.is_stale else "known" if state.cause else "unseen",
        checked=checked,
        digests=(state.cause,) if state.cause else (),
    )


def _campaigns(snapshot: Snapshot) -> tuple[CampaignRow, ...]:
    return tuple(
        CampaignRow(
            id=state.record.id,
            host=state.record.place.host,
            began=state.record.began,
            ended=state.record.ended,
            state=state.record.reason or state.status,
            options=dict(state.record.options),
            seed=state.record.seed,
            shard=state.record.shard,
            workers=state.record.workers,
            devices=state.record.devices,
            source_digest=state.record.source_digest,
            epochs=state.sum.epochs,
            examples=state.sum.examples,
        )
        for state in snapshot.campaigns
    )


def _environments(snapshot: Snapshot) -> tuple[Environment, ...]:
    found: dict[Provenance, list[str]] = {}
    for state in snapshot.campaigns:
        if state.record.provenance is not None:
            found.setdefault(state.record.provenance, []).append(state.record.id)
    return tuple(
        Environment(campaigns=tuple(ids), provenance=provenance)
        for provenance, ids in found.items()
    )


def _write(path: Path, text: str) -> None:
    """Write the page at once or not at all: somebody may be reading the one before.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".report-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            # mkstemp makes it private; a page is there to be passed on.
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"--output {str(path)!r} cannot be written: {error.strerror or error}; give another."
        ) from error

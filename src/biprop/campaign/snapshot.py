"""What a store holds, summed up: the one object that summaries, events and reports are made of.

Sums of records only; the files are read by `biprop.campaign.store`, which asks for a snapshot. All
counts are sums over epochs, so that they reconcile whatever was killed in between.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs

from biprop.campaign.ledger import entries_of, entry_of
from biprop.campaign.records import (
    CampaignRecord,
    CauseRecord,
    CellInfo,
    EpochRecord,
    Known,
    ReplayRecord,
)
from biprop.campaign.replays import is_fixed
from biprop.fixtures.programs import AnyFixture
from biprop.judgment import Verdict
from biprop.reports.records import CauseKind, ClassCount

__all__ = [
    "POWERED_MIN",
    "CampaignState",
    "CampaignSum",
    "CauseState",
    "CellState",
    "CellSum",
    "LedgerState",
    "Snapshot",
    "Span",
    "causes_of",
    "cells_of",
    "kind_of",
    "last_seen_of",
    "ledger_of",
    "spans_of",
]

# As the nightly slice asks.
POWERED_MIN = 50
# Likewise, of the programs of a cache that reach each situation.
COVERAGE_MIN = 0.1
_SPANS = 120
_NONE = ClassCount()
_ENDED_BADLY = ("ERROR", Verdict.FALLBACK.value, Verdict.UNSUPPORTED.value)


@attrs.define(kw_only=True)
class CampaignSum:
    """What the epochs of one campaign come to.

    Attributes:
        epochs: How many, lost and stopped ones included.
        lost: Of these, those whose process was gone before they ended.
        examples: Cases or programs judged.
        seconds: Wall time.
    """

    epochs: int = 0
    lost: int = 0
    examples: int = 0
    seconds: float = 0.0

    def add(self, epoch: EpochRecord) -> None:
        """Count an epoch."""
        self.epochs += 1
        self.lost += epoch.is_lost
        self.examples += epoch.examples
        self.seconds += epoch.seconds


@attrs.frozen(kw_only=True)
class CampaignState:
    """One run of `biprop fuzz`.

    Attributes:
        record: As it wrote it.
        status: `running`, `ended`, or `lost` where its process is gone without a word.
        heartbeat: When it last wrote one; None where there is none.
        sum: Of its own epochs.
    """

    record: CampaignRecord
    status: Literal["running", "ended", "lost"]
    heartbeat: float | None = None
    sum: CampaignSum = attrs.field(factory=CampaignSum)


@attrs.define(kw_only=True)
class CellSum:
    """What all epochs of one cell showed together.

    Attributes:
        epochs: How many, lost and stopped ones included.
        lost: Of these, those whose process was gone before they ended.
        seconds: Wall time.
        seconds_in_kernels: Of these, launching and comparing, as far as it is known.
        seconds_known: Wall time of the epochs that know it.
        examples: Cases or programs judged.
        rejected: Of these, cases whose canonical run raised.
        launches: Made.
        compared: Sequences compared; tensors, for a cache.
        classes: Counts by class.
        coverage: Of a cache: programs that reached a situation.
        power_kind: `order` or `value`; empty where nothing was compared.
        power_sum: Power times examples; `power_share` is the mean.
        swept: Turns of the sweep of sizes that its epochs took.
        behaviours: Kinds of behaviour seen.
        counts: Cases that showed a cause, by its digest.
        first: When a cause was first seen, by its digest.
        last: When a cause was last seen, by its digest.
        ended: Verdict of the last epoch that was not lost or stopped.
        message: Its message.
        errors: Epochs that an error broke off, which is no verdict on the kernel.
        error: The message of the last one.
        actual_backend: What ran.
    """

    epochs: int = 0
    lost: int = 0
    seconds: float = 0.0
    seconds_in_kernels: float = 0.0
    seconds_known: float = 0.0
    examples: int = 0
    rejected: int = 0
    launches: int = 0
    compared: int = 0
    classes: dict[str, ClassCount] = attrs.field(factory=dict)
    coverage: dict[str, int] = attrs.field(factory=dict)
    power_kind: str = ""
    power_sum: float = 0.0
    swept: int = 0
    behaviours: int = 0
    counts: dict[str, int] = attrs.field(factory=dict)
    first: dict[str, float] = attrs.field(factory=dict)
    last: dict[str, float] = attrs.field(factory=dict)
    ended: str = ""
    message: str = ""
    errors: int = 0
    error: str = ""
    actual_backend: str = ""

    def add(self, epoch: EpochRecord) -> None:
        """Count an epoch."""
        self.epochs += 1
        self.lost += epoch.is_lost
        self.seconds += epoch.seconds
        if epoch.seconds_in_kernels is not None:
            self.seconds_in_kernels += epoch.seconds_in_kernels
            self.seconds_known += epoch.seconds
        self.examples += epoch.examples
        self.rejected += epoch.rejected
        self.launches += epoch.launches
        self.compared += epoch.compared
        for name, count in epoch.classes.items():
            self.classes[name] = _together(self.classes.get(name, _NONE), count)
        for word, reached in epoch.coverage.items():
            self.coverage[word] = self.coverage.get(word, 0) + reached
        self.power_kind = epoch.power_kind or self.power_kind
        self.power_sum += epoch.power_share * epoch.examples
        self.swept = max(self.swept, epoch.swept)
        self.behaviours += epoch.behaviour_count
        until = epoch.ended
        for finding in epoch.findings:
            cause = finding.cause
            self.counts[cause] = self.counts.get(cause, 0) + finding.count
            self.first[cause] = min(self.first.get(cause, until), until)
            self.last[cause] = max(self.last.get(cause, until), until)
        if not (epoch.is_lost or epoch.is_stopped):
            self.ended, self.message = epoch.verdict, epoch.message
            if epoch.verdict == "ERROR":
                self.errors, self.error = self.errors + 1, epoch.message
        self.actual_backend = epoch.actual_backend or self.actual_backend

    @property
    def power_share(self) -> float:
        """Mean power over the examples."""
        return self.power_sum / self.examples if self.examples else 0.0

    @property
    def share_in_kernels(self) -> float | None:
        """Share of the wall time that is launching and comparing; None where it is not known."""
        return self.seconds_in_kernels / self.seconds_known if self.seconds_known else None

    def lacking(self) -> dict[str, int]:
        """Return the classes that apply and have too few powered examples, with these."""
        return {
            name: count.powered
            for name, count in self.classes.items()
            if not count.reason and count.powered < POWERED_MIN
        }


@attrs.frozen(kw_only=True)
class CellState:
    """One cell over all campaigns of a store.

    Attributes:
        info: What it is.
        verdict: HOLDS, a violation, FALLBACK, VACUOUS (too little evidence), UNSUPPORTED, `ERROR`,
            or empty where it had no turn yet.
        message: Why it is not HOLDS.
        sum: Of its epochs.
        causes: Digests of its causes; what is fixed, and lost cases that hold, are left out.
        epochs: In order of time; empty where a snapshot was asked for without them.
    """

    info: CellInfo
    verdict: str
    message: str
    sum: CellSum
    causes: tuple[str, ...] = ()
    epochs: tuple[EpochRecord, ...] = ()


@attrs.frozen(kw_only=True)
class CauseState:
    """One cause over all campaigns of a store.

    Attributes:
        record: As it is stored.
        count: Cases that showed it, those of causes that turned out to be the same included.
        first_seen: When.
        last_seen: When.
        fixture: The smallest case, or the first one; None where its file cannot be read.
        known: Its entry in the ledger; None where people do not know of it.
        is_fixed: Whether it was run again since it was last seen, and holds.
        folder: Of the store, where its fixture lies.
    """

    record: CauseRecord
    count: int
    first_seen: float
    last_seen: float
    fixture: AnyFixture | None = None
    known: Known | None = None
    is_fixed: bool = False
    folder: str = "findings"

    @property
    def kind(self) -> CauseKind:
        """What it counts as; each cause is one of these alone."""
        return kind_of(self.record, is_known=self.known is not None, is_fixed=self.is_fixed)

    @property
    def is_finding(self) -> bool:
        """Whether it is to be reported: neither known, nor fixed, nor a lost case that holds."""
        return self.kind == "finding"


@attrs.frozen(kw_only=True)
class LedgerState:
    """One entry of the ledger.

    Attributes:
        known: It.
        cause: Digest of the cause that it names; empty where the store has none.
        replay: Of its last replay; None where it was not replayed yet.
        is_stale: Whether what it names is fixed: without the entry it would be no finding.
    """

    known: Known
    cause: str = ""
    replay: ReplayRecord | None = None
    is_stale: bool = False


@attrs.frozen(kw_only=True)
class Span:
    """What happened in a span of time.

    Attributes:
        began: When it began.
        seconds: How long it is.
        examples: Cases and programs judged in epochs that ended in it.
        launches: Likewise.
        compared: Likewise.
        worked: Wall time of these epochs, all processes together.
        in_kernels: Of this, launching and comparing.
        behaviours: New kinds of behaviour.
        causes: Causes first seen.
    """

    began: float
    seconds: float
    examples: int = 0
    launches: int = 0
    compared: int = 0
    worked: float = 0.0
    in_kernels: float = 0.0
    behaviours: int = 0
    causes: int = 0


@attrs.frozen(kw_only=True)
class Snapshot:
    """A store at one moment.

    Attributes:
        path: Its folder.
        at: When.
        campaigns: In order of time.
        cells: In order of the chain, then of their ids.
        causes: Those that are one of their own, in order of time.
        ledger: Its entries.
        throughput: In order of time, campaigns that overlap together; empty without epochs.
        problems: Files that could not be read, one sentence each.
    """

    path: str
    at: float
    campaigns: tuple[CampaignState, ...] = ()
    cells: tuple[CellState, ...] = ()
    causes: tuple[CauseState, ...] = ()
    ledger: tuple[LedgerState, ...] = ()
    throughput: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[CauseState, ...]:
        """Return the causes that are to be reported."""
        return tuple(cause for cause in self.causes if cause.is_finding)

    @property
    def not_searched(self) -> tuple[str, ...]:
        """Return, a sentence each, the cells that an error kept from being searched."""
        return tuple(
            f"{cell.info.id}: {cell.message}" for cell in self.cells if cell.verdict == "ERROR"
        )

    @property
    def broken(self) -> tuple[str, ...]:
        """Return, a sentence each, the cells that went on after an error broke an epoch off."""
        return tuple(
            f"{cell.info.id}: an error broke off {cell.sum.errors} of {cell.sum.epochs} epochs: "
            f"{cell.sum.error}"
            for cell in self.cells
            if cell.sum.errors and cell.verdict != "ERROR"
        )

    @property
    def epochs(self) -> dict[str, tuple[EpochRecord, ...]]:
        """Return the epochs by cell."""
        return {cell.info.id: cell.epochs for cell in self.cells}


def cells_of(
    infos: Mapping[str, CellInfo],
    sums: Mapping[str, CellSum],
    causes: Sequence[CauseState],
    epochs: Mapping[str, Sequence[EpochRecord]],
) -> tuple[CellState, ...]:
    """Return the cells, in order of the chain."""
    by_cell: dict[str, list[CauseState]] = {}
    for cause in causes:
        if cause.kind in {"finding", "known"}:
            by_cell.setdefault(cause.record.cell, []).append(cause)
    found: list[CellState] = []
    for name, info in infos.items():
        total = sums.get(name, CellSum())
        own = by_cell.get(name, [])
        verdict, message = _verdict(total, own)
        found.append(
            CellState(
                info=info,
                verdict=verdict,
                message=message,
                sum=total,
                causes=tuple(cause.record.digest for cause in own),
                epochs=tuple(sorted(epochs.get(name, ()), key=lambda epoch: epoch.began)),
            )
        )
    return tuple(sorted(found, key=_rank))


def causes_of(
    records: Mapping[str, CauseRecord],
    sums: Mapping[str, CellSum],
    fixtures: Mapping[str, AnyFixture],
    known: Sequence[Known],
    replays: Mapping[str, ReplayRecord],
    *,
    owners: Mapping[str, str],
) -> tuple[CauseState, ...]:
    """Return the causes that are one of their own, each with the counts of those that are it."""
    counts: dict[str, int] = {}
    first: dict[str, float] = {}
    for digest, record in records.items():
        own = owners[digest]
        total = sums.get(record.cell, CellSum())
        counts[own] = counts.get(own, 0) + total.counts.get(digest, 0)
        first[own] = min(first.get(own, record.found), record.found)
    last, entries = last_seen_of(records, sums, owners), entries_of(records, known, owners)
    return tuple(
        sorted(
            (
                CauseState(
                    record=records[digest],
                    count=counts[digest],
                    first_seen=first[digest],
                    last_seen=last[digest],
                    fixture=fixtures.get(records[digest].fixture),
                    known=entries.get(digest),
                    is_fixed=is_fixed(replays.get(records[digest].fixture), last_seen=last[digest]),
                )
                for digest in counts
            ),
            key=lambda cause: (cause.first_seen, cause.record.digest),
        )
    )


def kind_of(record: CauseRecord, *, is_known: bool, is_fixed: bool) -> CauseKind:
    """Return what a cause counts as."""
    if record.is_unreproduced:
        return "held"
    if is_fixed:
        return "fixed"
    return "known" if is_known else "finding"


def last_seen_of(
    records: Mapping[str, CauseRecord], sums: Mapping[str, CellSum], owners: Mapping[str, str]
) -> dict[str, float]:
    """Return when each cause was last seen, those that turned out to be it included."""
    last: dict[str, float] = {}
    for digest, record in records.items():
        own = owners[digest]
        total = sums.get(record.cell)
        seen = record.found if total is None else total.last.get(digest, record.found)
        last[own] = max(last.get(own, record.found), seen)
    return last


def ledger_of(
    known: Sequence[Known],
    records: Mapping[str, CauseRecord],
    replays: Mapping[str, ReplayRecord],
    causes: Sequence[CauseState],
    owners: Mapping[str, str],
) -> tuple[LedgerState, ...]:
    """Return the entries of the ledger, each with the cause that it names."""
    by_digest = {cause.record.digest: cause for cause in causes}
    states: list[LedgerState] = []
    for entry in known:
        record = next((item for item in records.values() if entry_of(item, (entry,))), None)
        if record is None:
            states.append(LedgerState(known=entry))
            continue
        cause = by_digest[owners[record.digest]]
        states.append(
            LedgerState(
                known=entry,
                cause=cause.record.digest,
                replay=replays.get(cause.record.fixture),
                is_stale=cause.is_fixed,
            )
        )
    return tuple(states)


def spans_of(epochs: Iterable[EpochRecord], causes: Sequence[CauseState]) -> tuple[Span, ...]:
    """Return what happened over time, in spans of equal length without those in which nothing ran.

    An epoch counts where it ended.
    """
    listed = sorted(epochs, key=lambda epoch: epoch.ended)
    if not listed:
        return ()
    start = min(epoch.began for epoch in listed)
    end = listed[-1].ended
    length = max(1.0, (end - start) / _SPANS)
    spans: dict[int, Span] = {}

    def span_at(when: float) -> Span:
        place = min(_SPANS - 1, max(0, int((when - start) / length)))
        return spans.setdefault(place, Span(began=start + place * length, seconds=length))

    def keep(span: Span) -> None:
        spans[round((span.began - start) / length)] = span

    for epoch in listed:
        span = span_at(epoch.ended)
        keep(
            attrs.evolve(
                span,
                examples=span.examples + epoch.examples,
                launches=span.launches + epoch.launches,
                compared=span.compared + epoch.compared,
                worked=span.worked + epoch.seconds,
                in_kernels=span.in_kernels + (epoch.seconds_in_kernels or 0.0),
                behaviours=span.behaviours + epoch.behaviour_count,
            )
        )
    for cause in causes:
        if cause.is_finding:
            span = span_at(cause.first_seen)
            keep(attrs.evolve(span, causes=span.causes + 1))
    return tuple(spans[place] for place in sorted(spans))


def _verdict(total: CellSum, causes: Sequence[CauseState]) -> tuple[str, str]:
    if total.ended == Verdict.FALLBACK:
        return total.ended, total.message
    if causes:
        return causes[0].record.verdict, ""
    if total.ended in _ENDED_BADLY:
        return total.ended, total.message
    if not total.epochs:
        return "", "It had no turn yet."
    if total.examples and 2 * total.rejected > total.examples:
        return Verdict.VACUOUS.value, (
            f"The target raised alone on {total.rejected} of {total.examples} cases."
        )
    lacking = total.lacking()
    if lacking:
        words = ", ".join(f"{name} has {count} of {POWERED_MIN}" for name, count in lacking.items())
        return Verdict.VACUOUS.value, f"Too few powered examples so far: {words}."
    short = [
        word for word, count in total.coverage.items() if count < COVERAGE_MIN * total.examples
    ]
    if short:
        return Verdict.VACUOUS.value, f"Too few programs so far reached a {short[0]}."
    if not total.compared:
        return Verdict.VACUOUS.value, total.message or "Nothing was compared yet."
    if not (total.classes or total.coverage):
        # Those that were lost with their process tell how much they compared, and no more.
        return Verdict.VACUOUS.value, (
            "What its epochs have shown is not known: they ended before they could tell it."
        )
    return Verdict.HOLDS.value, ""


def _together(one: ClassCount, other: ClassCount) -> ClassCount:
    shares = [share for share in (one.tolerance_share, other.tolerance_share) if share is not None]
    return ClassCount(
        examples=one.examples + other.examples,
        powered=one.powered + other.powered,
        vacuous=one.vacuous + other.vacuous,
        unpowered=one.unpowered + other.unpowered,
        reason=other.reason,
        tolerance_share=max(shares, default=None),
    )


def _rank(cell: CellState) -> tuple[bool, int, str]:
    place = cell.info.chain_index
    return (place is None, place or 0, cell.info.id)

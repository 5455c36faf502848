"""What a page of HTML is made of: records that whoever has a store fills.

Records only. `biprop.cli.report` fills them from a store of campaigns; how they look says
`biprop.reports.html.render`.
"""

from typing import Literal

import attrs

from biprop.fixtures.programs import AnyFixture
from biprop.provenance import Provenance
from biprop.reports.records import CauseKind, ClassCount

__all__ = [
    "UNTRIED",
    "CampaignRow",
    "Cell",
    "Environment",
    "FoundCause",
    "KnownEntry",
    "Page",
    "Span",
]

# Of a cell that had no turn yet.
UNTRIED = "NOT RUN"


@attrs.frozen(kw_only=True)
class Cell:
    """One cell, summed over its epochs.

    Attributes:
        id: As everywhere.
        row: What its row of the matrix is called: operator and form.
        backend: As it was asked for.
        column: `bf16 forward`.
        verdict: Of all epochs, `ERROR`, or `NOT RUN`.
        chain_index: For sorting.
        ran: What ran, where it is something else than the backend.
        epochs: How many.
        lost: Of these, those whose process ended before they did.
        examples: Judged.
        rejected: Of these, whose canonical run raised.
        launches: Made.
        compared: Sequences or tensors.
        seconds: Wall time.
        seconds_in_kernels: None where it is not known.
        seconds_known: Wall time of the epochs that know it.
        behaviours: Kinds of behaviour that it showed.
        power_kind: `order`, `value`, or empty.
        power_share: Mean over the cases compared.
        classes: Counts by class.
        coverage: Of a cache: programs by situation.
        findings: Digests of its causes.
        message: Why it does not hold.
        is_cache: Whether programs ran, and operations and tensors are counted.
    """

    id: str
    row: str
    backend: str
    column: str
    verdict: str = UNTRIED
    chain_index: int | None = None
    ran: str = ""
    epochs: int = 0
    lost: int = 0
    examples: int = 0
    rejected: int = 0
    launches: int = 0
    compared: int = 0
    seconds: float = 0.0
    seconds_in_kernels: float | None = None
    seconds_known: float = 0.0
    behaviours: int = 0
    power_kind: str = ""
    power_share: float = 0.0
    classes: dict[str, ClassCount] = attrs.field(factory=dict)
    coverage: dict[str, int] = attrs.field(factory=dict)
    findings: tuple[str, ...] = ()
    message: str = ""
    is_cache: bool = False


@attrs.frozen(kw_only=True)
class FoundCause:
    """One cause.

    Attributes:
        digest: Names it on the page.
        cell: Id.
        verdict: A violation.
        key: The cause in one word.
        transforms: Classes that it takes.
        status: How far shrinking has come, in words.
        count: Cases that showed it.
        first_seen: Seconds since 1970; None where it is not known.
        last_seen: Likewise.
        fixture: None where its file cannot be read.
        path: Of that file.
        known: Entry of the ledger, where there is one.
        kind: What it counts as, alone: to be reported, known, fixed, or a crash not reproduced.
        is_lost: Whether its process ended while it ran.
        unreadable: Why there is no fixture.
    """

    digest: str
    cell: str
    verdict: str
    key: str = ""
    transforms: tuple[str, ...] = ()
    status: str = "minimal"
    count: int = 1
    first_seen: float | None = None
    last_seen: float | None = None
    fixture: AnyFixture | None = None
    path: str = ""
    known: "KnownEntry | None" = None
    kind: CauseKind = "finding"
    is_lost: bool = False
    unreadable: str = ""


@attrs.frozen(kw_only=True)
class KnownEntry:
    """An entry of the ledger.

    Attributes:
        cause: As it is written there.
        link: Where it is followed.
        reason: Why it still fails.
        state: `known`: it was seen; `stale`: replayed, it no longer fails; `unseen`: no cause of
            the store is the one it names.
        checked: When it was last replayed, and how that ended, in words; empty where it was not.
        digests: Causes that it covers.
    """

    cause: str
    link: str = ""
    reason: str = ""
    state: Literal["known", "stale", "unseen"] = "known"
    checked: str = ""
    digests: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CampaignRow:
    """One run of `biprop fuzz`.

    Attributes:
        id: Its id.
        host: Where its parent ran.
        began: Seconds since 1970.
        ended: None where it runs, or was lost.
        state: `running`, `lost`, or why it ended.
        options: In words.
        seed: Of its searches.
        shard: `1/1` where it took all.
        workers: Processes.
        devices: That they are spread over.
        source_digest: Of biprop's sources.
        epochs: That it ended.
        examples: In them.
    """

    id: str
    host: str
    began: float
    ended: float | None = None
    state: str = ""
    options: dict[str, str] = attrs.field(factory=dict)
    seed: int = 0
    shard: str = "1/1"
    workers: int = 1
    devices: tuple[str, ...] = ()
    source_digest: str = ""
    epochs: int = 0
    examples: int = 0


@attrs.frozen(kw_only=True)
class Environment:
    """Where campaigns ran.

    Attributes:
        campaigns: Ids.
        provenance: Of their workers.
    """

    campaigns: tuple[str, ...]
    provenance: Provenance


@attrs.frozen(kw_only=True)
class Span:
    """One epoch, as a chart sees it.

    Attributes:
        began: Seconds since 1970.
        seconds: Wall time.
        seconds_in_kernels: None where it is not known.
        examples: Judged.
        compared: Sequences or tensors compared.
        behaviours: New ones.
    """

    began: float
    seconds: float
    seconds_in_kernels: float | None = None
    examples: int = 0
    compared: int = 0
    behaviours: int = 0


@attrs.frozen(kw_only=True)
class Page:
    """All of a report.

    Attributes:
        store: The folder, as it was given.
        made: When the page was made, seconds since 1970.
        biprop: Version that made it.
        cells: In the order of the registry.
        causes: Each once.
        ledger: All entries.
        campaigns: The latest last.
        environments: Each once.
        spans: Epochs, in any order.
        warnings: What could not be read.
        under_way: Campaigns that run right now.
    """

    store: str
    made: float
    biprop: str = ""
    cells: tuple[Cell, ...] = ()
    causes: tuple[FoundCause, ...] = ()
    ledger: tuple[KnownEntry, ...] = ()
    campaigns: tuple[CampaignRow, ...] = ()
    environments: tuple[Environment, ...] = ()
    spans: tuple[Span, ...] = ()
    warnings: tuple[str, ...] = ()
    under_way: int = 0

"""What lies in the store of campaigns, as records; every file is one of them, as JSON.

Records and their plain conversion only. Files are written and read by `biprop.campaign.store`, and
summed up by `biprop.campaign.snapshot`; what fills them is `biprop.campaign.working`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Literal, TypeVar

import attrs
import cattrs

from biprop.case import Json, canonical_json, reason_of
from biprop.errors import FixtureError
from biprop.fixtures.records import CONVERTER
from biprop.judgment import Verdict
from biprop.provenance import Provenance
from biprop.reports.records import ClassCount

__all__ = [
    "ATTEMPTS_MAX",
    "FORMAT",
    "Begun",
    "CampaignRecord",
    "CauseRecord",
    "CauseStatus",
    "CellInfo",
    "CellKind",
    "EpochFinding",
    "EpochRecord",
    "Heartbeat",
    "Known",
    "LedgerFile",
    "Place",
    "ReplayRecord",
    "Running",
    "TaskKind",
    "cause_digest",
    "owners_of",
    "record_from_text",
    "record_text",
]

FORMAT = "biprop-campaign-1"
# Processes that end while they shrink a cause, until nobody tries it again.
ATTEMPTS_MAX = 2
# Of any number of a record; sums of them stay far below what a float holds.
_NUMBER_MAX = 2**53

CellKind = Literal["kernel", "cache"]
TaskKind = Literal["epoch", "minimise", "replay"]
CauseStatus = Literal["raw", "minimising", "minimal", "unreproduced"]
_Record = TypeVar("_Record")


@attrs.frozen(kw_only=True)
class Place:
    """A process, so that another one can tell whether it still runs.

    Attributes:
        host: Name of its machine.
        namespace: In which its number means something: containers of one machine count apart.
        pid: Its number.
        started: When it began, in ticks of its machine: numbers are used again.
    """

    host: str
    namespace: str = ""
    pid: int
    started: int = 0


@attrs.frozen(kw_only=True)
class CellInfo:
    """One cell of a campaign, for whoever lists it.

    Attributes:
        id: As in `biprop matrix`; of a target, with its name in front.
        kind: `kernel` or `cache`.
        operator: Operator or cache; of a target, its text.
        form: `packed`, `padded`, ...; `given` for a target; of a cache, the layout of its pages.
        backend: `torch`, `triton`, or `target`.
        dtype: Of its cases.
        direction: Of its cases; a cache has only `forward`.
        op_class: Empty for a target and for a cache.
        chain_index: Of a declared operator, for sorting.
    """

    id: str
    kind: CellKind = "kernel"
    operator: str
    form: str = ""
    backend: str
    dtype: str
    direction: Literal["forward", "backward"] = "forward"
    op_class: str = ""
    chain_index: int | None = None


@attrs.frozen(kw_only=True)
class CampaignRecord:
    """One run of `biprop fuzz`: `campaigns/<id>.json`.

    Attributes:
        format: `biprop-campaign-1`, as of every record here.
        id: Unique, sorted by time.
        place: Its parent process.
        began: Seconds since 1970, as all times here.
        options: As they were given, in words.
        seed: Of all its searches.
        shard: Which part of the cells it took, as `1/4`.
        workers: Processes that search.
        devices: That they are spread over.
        source_digest: Of biprop's own sources.
        cells: All that it goes through, whether they had their turn or not.
        provenance: Of the first process that ran a kernel; None before.
        ended: When; None while it runs, and where it was lost.
        reason: Why it ended: `budget`, `interrupted`, `nothing left`, `failed`; empty before.
    """

    format: str
    id: str
    place: Place
    began: float
    options: dict[str, str] = attrs.field(factory=dict)
    seed: int = 0
    shard: str = "1/1"
    workers: int = 1
    devices: tuple[str, ...] = ()
    source_digest: str = ""
    cells: tuple[CellInfo, ...] = ()
    provenance: Provenance | None = None
    ended: float | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class EpochFinding:
    """A cause that an epoch showed.

    Attributes:
        cause: Its digest.
        count: Cases of the epoch that showed it.
    """

    cause: str
    count: int = 1


@attrs.frozen(kw_only=True)
class EpochRecord:
    """What one epoch of one cell showed: `epochs/<campaign>-<worker>-<number>.json`.

    Attributes:
        format: `biprop-campaign-1`.
        campaign: Id.
        worker: Number of the process in its campaign; a replaced one keeps it.
        number: Of the task among those of its worker; not all tasks are epochs.
        cell: Id.
        device: Where it ran.
        seed: Of its search.
        began: When.
        seconds: Wall time, but for what it waited.
        seconds_waited: For a disk that was full.
        seconds_in_kernels: Of `seconds`, launching and comparing; None where it is not known.
        examples: Cases or programs judged; those of shrinking are not among them.
        rejected: Of these, cases whose canonical run raised.
        launches: Made, those of repeats included; operations, of programs of a cache.
        compared: Sequences compared; tensors, of programs of a cache.
        verdict: Of the epoch alone: a `Verdict`, or `ERROR` where the search itself could not go
            on.
        classes: Counts by class, as in `CellReport`; of a cache, of its `programs`, where power is
            measured.
        coverage: Of a cache: programs that reached a situation.
        power_kind: `order` or `value`; empty where nothing was compared.
        power_share: Mean over the cases compared.
        swept: Turns of the sweep of sizes that it took; the next epoch of the cell goes on there.
        behaviours: Kinds of behaviour that the cell had not shown before; not all, where they are
            very many.
        behaviour_count: How many these are.
        findings: Causes, each once.
        message: Why it is not HOLDS, or how it ended.
        actual_backend: What ran.
        is_lost: Whether its process was gone before it ended; counts reach up to the case that was
            running then.
        is_stopped: Whether it was stopped before its time was over.
    """

    format: str
    campaign: str
    worker: int
    number: int
    cell: str
    device: str = ""
    seed: int = 0
    began: float
    seconds: float = 0.0
    seconds_waited: float = 0.0
    seconds_in_kernels: float | None = None
    examples: int = 0
    rejected: int = 0
    launches: int = 0
    compared: int = 0
    verdict: str
    classes: dict[str, ClassCount] = attrs.field(factory=dict)
    coverage: dict[str, int] = attrs.field(factory=dict)
    power_kind: str = ""
    power_share: float = 0.0
    swept: int = 0
    behaviours: tuple[str, ...] = ()
    behaviour_count: int = 0
    findings: tuple[EpochFinding, ...] = ()
    message: str = ""
    actual_backend: str = ""
    is_lost: bool = False
    is_stopped: bool = False

    @property
    def name(self) -> str:
        """Return the stem of its file, which no other epoch of any campaign has."""
        return f"{self.campaign}-{self.worker}-{self.number}"

    @property
    def ended(self) -> float:
        """Return when it ended."""
        return self.began + self.seconds + self.seconds_waited


@attrs.frozen(kw_only=True)
class Begun:
    """A task under way: `begun/<campaign>-<worker>.json`, gone once its record is written.

    Attributes:
        format: `biprop-campaign-1`.
        campaign: Id.
        worker: Number of the process.
        number: Of the task, among those of its worker.
        place: Of the process.
        parent: Of the campaign's parent process, without which it ends.
        task: What it does: an epoch, or something with a cause or a known fixture.
        about: Digest of the cause, or id of the fixture; empty for an epoch.
        cell: Id.
        device: Where it runs.
        seed: Of its search.
        began: When.
        findings: What it found so far.
    """

    format: str
    campaign: str
    worker: int
    number: int
    place: Place
    parent: Place
    task: TaskKind = "epoch"
    about: str = ""
    cell: str = ""
    device: str = ""
    seed: int = 0
    began: float
    findings: tuple[EpochFinding, ...] = ()

    @property
    def name(self) -> str:
        """Return the stem of its file, and of that of the case that is running."""
        return f"{self.campaign}-{self.worker}"


@attrs.frozen(kw_only=True)
class Running:
    """The case that is launched right now: `running/<campaign>-<worker>.json`.

    Written before each launch and removed after it, so that one that is left behind was running
    when its process ended. Counts are those of its epoch so far.

    Attributes:
        format: `biprop-campaign-1`.
        number: Of the task, as in `Begun`.
        kind: `kernel` or `cache`.
        device: Where it runs.
        examples: Judged before.
        launches: Made before.
        compared: Before.
        seconds_in_kernels: Before.
        provenance: Of the process that runs it.
        reference: Of the kernel or cache, as JSON.
        case: The case or program, as JSON.
        others: Cases that run together with it, as layouts of one set do.
    """

    format: str
    number: int
    kind: CellKind = "kernel"
    device: str = ""
    examples: int = 0
    launches: int = 0
    compared: int = 0
    seconds_in_kernels: float = 0.0
    provenance: Provenance | None = None
    reference: dict[str, Json]
    case: dict[str, Json]
    others: tuple[dict[str, Json], ...] = ()


@attrs.frozen(kw_only=True)
class CauseRecord:
    """One cause: `causes/<digest>.json`. How often it was seen say the epochs.

    Attributes:
        format: `biprop-campaign-1`.
        digest: Of cell, cause and transform classes, 16 hexadecimal digits.
        cell: Id.
        verdict: A violation.
        key: The cause in one word (`Cause.key`).
        judged: What was judged: outputs or a kind of gradients; empty for a cache.
        transforms: Classes that it takes.
        fixture: Id of its fixture: the smallest one, or the first case before it is minimal.
        status: `raw`, `minimising`, `minimal`; `unreproduced` where a case that crashed once, or
            was lost with its process, does not fail when it is judged again.
        same_as: Digest of the cause that it turned out to be when it was minimised; empty where it
            is one of its own.
        attempts: Processes that ended while they minimised it.
        is_lost: Whether it is a case that was running when its process ended.
        found: When it was first seen.
        found_by: Id of the campaign.
        settled: When it was minimised or given up; None before.
        formerly: Ids of the fixtures that it was told by before; their files are kept.
    """

    format: str
    digest: str
    cell: str
    verdict: str
    key: str
    judged: str = ""
    transforms: tuple[str, ...] = ()
    fixture: str
    status: CauseStatus = "raw"
    same_as: str = ""
    attempts: int = 0
    is_lost: bool = False
    found: float
    found_by: str
    settled: float | None = None
    formerly: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the cause in words, as people may write it into a ledger."""
        return " ".join((self.cell, self.key, "+".join(self.transforms))).strip()

    @property
    def is_unreproduced(self) -> bool:
        """Whether it was seen once, and holds since."""
        return self.status == "unreproduced"

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be shrunk: nobody has ended that, or given it up."""
        return self.status in {"raw", "minimising"} and self.settled is None and not self.same_as

    @property
    def standing(self) -> str:
        """How far shrinking has come, in words."""
        if self.is_unreproduced:
            return "not reproduced"
        if self.status == "minimal":
            return "minimal"
        if not self.is_waiting:
            return "cannot be shrunk" if self.attempts >= ATTEMPTS_MAX else "did not fail again"
        if self.is_lost and self.verdict == Verdict.CRASHES.value:
            return "to be judged again"
        return "being shrunk" if self.status == "minimising" else "to be shrunk"

    @property
    def seen_once_as(self) -> str:
        """What happened to a case that does not fail again, as part of a sentence."""
        return "was lost with its process" if self.is_lost else "crashed once"

    @property
    def may_be_another(self) -> bool:
        """Whether it may be another cause than it looks like.

        Of a case of several classes only shrinking tells; a program has none.
        """
        return len(self.transforms) > 1

    def told_by(self, fixture: str) -> "CauseRecord":
        """Return the cause with another fixture; the id of the one before is kept."""
        if fixture == self.fixture:
            return self
        before = (name for name in (*self.formerly, self.fixture) if name != fixture)
        return attrs.evolve(self, fixture=fixture, formerly=tuple(dict.fromkeys(before)))


@attrs.frozen(kw_only=True)
class Known:
    """A finding that people know of.

    Attributes:
        cause: The beginning of an id of its fixture, as summaries print it, or of the digest of its
            cause, at least 4 digits; or its name.
        link: Where it is followed, an address.
        reason: Why it still fails, one sentence.
    """

    cause: str
    link: str
    reason: str


@attrs.frozen(kw_only=True)
class LedgerFile:
    """`ledger.json`, written by people.

    Attributes:
        format: `biprop-campaign-1`.
        known: Its entries.
    """

    format: str
    known: tuple[Known, ...] = ()


@attrs.frozen(kw_only=True)
class ReplayRecord:
    """How the fixture of a cause did when it was last run again: `replays/<id>.json`.

    Attributes:
        format: `biprop-campaign-1`.
        fixture: Its id.
        status: `FAILED`, `DIFFERENT`, `FIXED`, ... (`biprop.fixtures.replay`); `ERROR` where it
            could not be run, `HELD` where it may fail now and then (`biprop.campaign.replays`).
        at: When.
        campaign: That ran it.
    """

    format: str
    fixture: str
    status: str
    at: float
    campaign: str


@attrs.frozen(kw_only=True)
class Heartbeat:
    """A campaign that runs: `heartbeats/<host>-<pid>.json`.

    Attributes:
        format: `biprop-campaign-1`.
        campaign: Id.
        place: Its parent process.
        at: When it was written; every half a minute.
    """

    format: str
    campaign: str
    place: Place
    at: float


def cause_digest(*parts: str) -> str:
    """Return the digest of what tells one cause from another."""
    return hashlib.sha256(canonical_json(list(parts)).encode()).hexdigest()[:16]


def owners_of(records: Mapping[str, CauseRecord]) -> dict[str, str]:
    """Return for each digest that of the cause that it turned out to be, or its own.

    Causes of a cell that are told by one fixture are one, whatever their first cases were.
    """
    ends = {digest: _end_of(records, digest) for digest in records}
    told: dict[tuple[str, str], str] = {}
    for digest in sorted(set(ends.values()), key=lambda digest: _rank(records[digest])):
        told.setdefault(_told_by(records[digest]), digest)
    return {digest: told[_told_by(records[end])] for digest, end in ends.items()}


def _told_by(record: CauseRecord) -> tuple[str, str]:
    return record.cell, record.fixture


def _end_of(records: Mapping[str, CauseRecord], digest: str) -> str:
    seen: set[str] = set()
    while digest not in seen and records[digest].same_as in records:
        seen.add(digest)
        digest = records[digest].same_as
    return digest


def _rank(record: CauseRecord) -> tuple[bool, bool, float, str]:
    """Sort what says most of a cause first."""
    is_held = record.is_unreproduced
    return is_held, record.status != "minimal", record.found, record.digest


def record_text(record: object) -> str:
    """Return a record as the text of its file."""
    return canonical_json(_CONVERTER.unstructure(record)) + "\n"


def record_from_text(text: str, kind: type[_Record]) -> _Record:
    """Return the record of a file's text.

    Raises:
        FixtureError: It is another record, or one of another version.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FixtureError(f"It is no record of format {FORMAT!r}.")
        _check_numbers(data)
        return _CONVERTER.structure(data, kind)
    except FixtureError:
        raise
    except (
        cattrs.BaseValidationError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        reason = reason_of(error).replace(" @ case.", " at ").removesuffix(" @ case")
        raise FixtureError(f"It cannot be read: {reason}.") from error


def _check_numbers(data: object) -> None:
    """Refuse numbers that no sum of records could hold.

    Raises:
        FixtureError: One is too large, or not finite.
    """
    rest = [data]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += item.values()
        elif isinstance(item, list):
            rest += item
        elif isinstance(item, int | float) and not abs(item) <= _NUMBER_MAX:
            raise FixtureError("It holds a number that is too large, or not finite.")


def _converter() -> cattrs.Converter:
    converter = CONVERTER.copy()
    # References, cases and programs are read by those whose they are.
    converter.register_structure_hook(Json, lambda value, _: value)
    return converter


_CONVERTER = _converter()

"""Evidence: what a lane on a device showed, as one JSON file a part.

Records, reading and writing only. What fills them: `recording` and `cells` (pr, nightly),
`finding` (findings), `timing` (times, speeds) and `campaigns`. `figures` turns the committed ones
into text.
"""

import json
import tempfile
from pathlib import Path
from typing import Literal, TypeVar, get_args

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override
from ci.lanes.runs import EvidenceError, Run, is_format, is_sha256

from biprop.case import Json, canonical_json, reason_of, strict_converter

__all__ = [
    "PARTS",
    "CacheResult",
    "CampaignResult",
    "CampaignsEvidence",
    "Cause",
    "CellResult",
    "CellsEvidence",
    "ClassResult",
    "Evidence",
    "FindingResult",
    "FindingsEvidence",
    "Part",
    "Power",
    "ReplayResult",
    "SpeedCell",
    "SpeedsEvidence",
    "TestCounts",
    "TimedCell",
    "TimesEvidence",
    "Totals",
    "evidence_text",
    "read_evidence",
    "totals_of",
    "write_evidence",
]

Part = Literal["pr", "nightly", "findings", "times", "speeds", "campaigns"]
PARTS: tuple[Part, ...] = get_args(Part)
_BYTES_MAX = 1 << 24
Record = TypeVar("Record")


@attrs.frozen(kw_only=True)
class ClassResult:
    """Examples of one transform class; `reason` where it does not apply."""

    examples: int
    powered: int
    vacuous: int
    unpowered: int
    reason: str


@attrs.frozen(kw_only=True)
class Power:
    """Kind and mean share of the power of a cell's data; an empty kind: nothing was compared."""

    kind: str
    share: float


@attrs.frozen(kw_only=True)
class CellResult:
    """One cell.

    Attributes:
        id: As `pytest` names it: operator, form, backend, dtype, direction.
        operator: Its name.
        target: Operator and form.
        backend: As it was asked for.
        actual_backend: What ran.
        dtype: Of the cases.
        direction: `forward` or `backward`.
        verdict: Of the search; empty where it could not be finished.
        causes: What was found, one key a cause.
        examples: Cases judged.
        rejected: Of these, cases whose canonical run raised.
        launches: Launches made.
        seconds: Of the search.
        power: Of the data.
        classes: By transform class.
        largest: Largest sizes of the cases that ran.
        wanted: Sizes of real models that they had to reach; empty in a part that asks for none.
        message: Why the cell is not HOLDS; empty where it is.
    """

    id: str
    operator: str
    target: str
    backend: str
    actual_backend: str
    dtype: str
    direction: str
    verdict: str
    causes: tuple[str, ...]
    examples: int
    rejected: int
    launches: int
    seconds: float
    power: Power
    classes: dict[str, ClassResult]
    largest: dict[str, int]
    wanted: dict[str, int]
    message: str

    @property
    def is_met(self) -> bool:
        """Whether it held, at the sizes that were wanted."""
        reached = all(self.largest.get(name, 0) >= size for name, size in self.wanted.items())
        return self.verdict == "HOLDS" and reached


@attrs.frozen(kw_only=True)
class CacheResult:
    """One KV cache in one layout, backend and dtype.

    Attributes:
        id: As `pytest` names it.
        cache: Its name.
        layout: Of its pages.
        backend: As it was asked for.
        actual_backend: What ran.
        dtype: Of queries, keys and values.
        verdict: Of the search.
        causes: What was found, one key a cause.
        programs: Drawn and judged.
        ops: Operations run in them.
        comparisons: Tensors compared.
        coverage: Share of the programs that reached each situation.
        fixed: Verdict of each fixed program, by its name; those in the sizes of a model are named
            `real-` and the tokens of a page.
        powered: Programs with power.
        seconds: Of the search.
        message: Why it is not HOLDS; empty where it is.
    """

    id: str
    cache: str
    layout: str
    backend: str
    actual_backend: str
    dtype: str
    verdict: str
    causes: tuple[str, ...]
    programs: int
    ops: int
    comparisons: int
    coverage: dict[str, float]
    fixed: dict[str, str]
    powered: int
    seconds: float
    message: str

    @property
    def is_met(self) -> bool:
        """Whether it held."""
        return self.verdict == "HOLDS"


@attrs.frozen(kw_only=True)
class TestCounts:
    """Tests of tests/gpu that ran beside the cells, and the names of those that failed."""

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Totals:
    """Sums over the cells of a file.

    Attributes:
        cells: Cells that ran.
        cells_registered: Cells that there are.
        holds: Cells that held.
        examples: Cases judged.
        launches: Launches made.
        examples_per_second: Examples over the wall time of the run, all workers together.
    """

    cells: int
    cells_registered: int
    holds: int
    examples: int
    launches: int
    examples_per_second: float


@attrs.frozen(kw_only=True)
class CellsEvidence:
    """Evidence of the parts pr and nightly.

    Attributes:
        format: `biprop-evidence-1`.
        part: `pr` or `nightly`.
        run: What ran.
        profile: Of the searches.
        seconds_max: Time that a cell had for drawing; None: as much as its examples took.
        powered_min: Powered examples of each class that HOLDS needed.
        totals: Over the cells.
        tests: Of tests/gpu.
        cells: Sorted by id.
        caches: KV caches, sorted by id.
    """

    format: str = attrs.field(validator=is_format)
    part: Literal["pr", "nightly"]
    run: Run
    profile: Literal["pr", "nightly"]
    seconds_max: float | None
    powered_min: int
    totals: Totals
    tests: TestCounts
    cells: tuple[CellResult, ...]
    caches: tuple[CacheResult, ...] = ()


@attrs.frozen(kw_only=True)
class ReplayResult:
    """A fixture, replayed in a fresh process.

    Attributes:
        command: As it was run, but for the place of the file.
        status: `FAILED` where the same cause showed again.
        exit_code: Of the command.
    """

    command: str
    status: str
    exit_code: int


@attrs.frozen(kw_only=True)
class Cause:
    """One cause that a check found.

    Attributes:
        verdict: Of the finding.
        output: What differs; empty for a launch that crashed.
        transforms: Classes left after minimising.
        key: Of the cause.
        count: Cases of the run that showed it.
        replay: Of its fixture, in a fresh process.
        fixture: The minimal fixture, whole.
    """

    verdict: str
    output: str
    transforms: tuple[str, ...]
    key: str
    count: int
    replay: ReplayResult
    fixture: dict[str, Json]


@attrs.frozen(kw_only=True)
class FindingResult:
    """One known finding of PyTorch, searched again.

    Attributes:
        name: Its name in `known`.
        claim: What is expected, in words.
        command: The check, as one would type it.
        verdict: Of the check; empty where it could not run.
        exit_code: Of the check.
        examples: Cases judged, after the first cause too.
        launches: Launches made.
        seconds: Of the search.
        causes: What it found.
        missed: What was expected and did not happen; empty where all did.
    """

    name: str
    claim: str
    command: str
    verdict: str
    exit_code: int
    examples: int
    launches: int
    seconds: float
    causes: tuple[Cause, ...]
    missed: tuple[str, ...]


@attrs.frozen(kw_only=True)
class FindingsEvidence:
    """Evidence of the part findings.

    Attributes:
        format: `biprop-evidence-1`.
        part: `findings`.
        run: What ran.
        findings: Sorted by name.
    """

    format: str = attrs.field(validator=is_format)
    part: Literal["findings"]
    run: Run
    findings: tuple[FindingResult, ...]


@attrs.frozen(kw_only=True)
class TimedSet:
    """The time of one example among several layouts that are judged together.

    Attributes:
        layouts: Of the set.
        seconds: Median by stage, each waited for; what is done once for a set as one share of it.
        materialising_to_launching: As of an example alone.
        judged_seconds: Median of the whole set, where nothing waits, divided by its layouts.
    """

    layouts: int
    seconds: dict[str, float]
    materialising_to_launching: float
    judged_seconds: float


@attrs.frozen(kw_only=True)
class TimedCell:
    """The time of an example of one operator, as `ci/benchmarks/example_time.py` found it.

    Attributes:
        target: Operator and form.
        backend: As it was asked for.
        dtype: Of the cases.
        dims: Sizes of the free dimensions.
        tokens: Of the transformed launch.
        examples: Measured.
        kernel_calls: Of one example.
        seconds: Median by stage, each waited for.
        device_microseconds: Median by stage of what kernels and copies take on the device alone,
            for values, arguments and launching; empty on a CPU.
        materialising_to_launching: Seconds of values and arguments over those of the kernel.
        judged_seconds: Median of the whole example, where nothing waits.
        in_set: The same of an example in a set; None where that was not measured.
    """

    target: str
    backend: str
    dtype: str
    dims: dict[str, int]
    tokens: int
    examples: int
    kernel_calls: int
    seconds: dict[str, float]
    device_microseconds: dict[str, int]
    materialising_to_launching: float
    judged_seconds: float
    in_set: TimedSet | None = None


@attrs.frozen(kw_only=True)
class TimesEvidence:
    """Evidence of the part times.

    Attributes:
        format: `biprop-evidence-1`.
        part: `times`.
        run: What ran.
        times: One a target and dtype, in the order of the benchmark.
    """

    format: str = attrs.field(validator=is_format)
    part: Literal["times"]
    run: Run
    times: tuple[TimedCell, ...]


@attrs.frozen(kw_only=True)
class SpeedCell:
    """A Triton kernel beside what torch has for the same (`ci/benchmarks/kernel_speed.py`).

    Attributes:
        target: Operator and form.
        dtype: Of its tensors.
        direction: `forward` or `backward`.
        dims: Sizes of the free dimensions.
        tokens: Of the launch.
        native: What torch was asked for.
        seconds: Median of the Triton kernel.
        native_seconds: Median of torch's.
    """

    target: str
    dtype: str
    direction: str
    dims: dict[str, int]
    tokens: int
    native: str
    seconds: float
    native_seconds: float


@attrs.frozen(kw_only=True)
class SpeedsEvidence:
    """Evidence of the part speeds.

    Attributes:
        format: `biprop-evidence-1`.
        part: `speeds`.
        run: What ran.
        speeds: One a target, dtype and direction, in the order of the benchmark.
    """

    format: str = attrs.field(validator=is_format)
    part: Literal["speeds"]
    run: Run
    speeds: tuple[SpeedCell, ...]


@attrs.frozen(kw_only=True)
class CampaignResult:
    """What a campaign said at its end.

    Attributes:
        command: As one would type it, but for its store.
        workers: Processes.
        devices: That they were spread over.
        seconds: Since it began, the start of its processes included.
        cells: How many there are.
        cells_seen: How many had a turn.
        cells_over: How many could not be searched any further.
        epochs: That ended.
        examples: Cases judged.
        examples_a_second: Of all processes.
        compared_a_second: Sequences, likewise.
        share_in_kernels: Of the time of all processes, launching and comparing.
        findings: Causes found that nobody knew of.
        lost: Processes that were lost.
        exit_code: Of the command.
        causes: Names of the findings; of evidence that does not name them, none.
        errors: By cell, what broke epochs off; None where nobody looked.
        source_sha256: Of the sources, where they are others than those of the run; else None.
    """

    command: str
    workers: int
    devices: int
    seconds: float
    cells: int
    cells_seen: int
    cells_over: int
    epochs: int
    examples: int
    examples_a_second: float
    compared_a_second: float
    share_in_kernels: float
    findings: int
    lost: int
    exit_code: int
    causes: tuple[str, ...] = ()
    errors: tuple[str, ...] | None = None
    source_sha256: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(is_sha256)
    )

    @property
    def is_met(self) -> bool:
        """Whether nothing was found, no process was lost, and no error broke an epoch off."""
        return not (self.exit_code or self.findings or self.lost or self.errors)


@attrs.frozen(kw_only=True)
class CampaignsEvidence:
    """Evidence of the part campaigns.

    Attributes:
        format: `biprop-evidence-1`.
        part: `campaigns`.
        run: What ran.
        campaigns: In the order of the runs.
    """

    format: str = attrs.field(validator=is_format)
    part: Literal["campaigns"]
    run: Run
    campaigns: tuple[CampaignResult, ...]


Evidence = CellsEvidence | FindingsEvidence | TimesEvidence | SpeedsEvidence | CampaignsEvidence
_RECORDS: dict[Part, type[Evidence]] = {
    "pr": CellsEvidence,
    "nightly": CellsEvidence,
    "findings": FindingsEvidence,
    "times": TimesEvidence,
    "speeds": SpeedsEvidence,
    "campaigns": CampaignsEvidence,
}


def totals_of(cells: tuple[CellResult, ...], *, registered: int, seconds: float) -> Totals:
    """Return the sums over some cells."""
    examples = sum(cell.examples for cell in cells)
    return Totals(
        cells=len(cells),
        cells_registered=registered,
        holds=sum(cell.verdict == "HOLDS" for cell in cells),
        examples=examples,
        launches=sum(cell.launches for cell in cells),
        examples_per_second=round(examples / seconds, 1) if seconds else 0.0,
    )


def evidence_text(evidence: Evidence) -> str:
    """Return the JSON text of evidence: every field written out, fixtures on one line each."""
    return _indented(_CONVERTER.unstructure(evidence), 0) + "\n"


def write_evidence(path: Path, evidence: Evidence) -> None:
    """Write a file at once or not at all, since a lane may be killed at any moment.

    Raises:
        EvidenceError: The folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8"
        ) as file:
            file.write(evidence_text(evidence))
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise EvidenceError(
            f"{path} cannot be written: {error.strerror or error}; give another --out."
        ) from error


def read_evidence(path: Path) -> Evidence:
    """Return the evidence of a file.

    Raises:
        EvidenceError: The file cannot be read, or holds something else.
    """
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise EvidenceError(
                f"{path.name} is larger than {_BYTES_MAX} bytes: it is no evidence."
            )
        data = json.loads(path.read_text(encoding="utf-8"))
        record = _RECORDS[data["part"]]
        return _CONVERTER.structure(data, record)
    except OSError as error:
        raise EvidenceError(
            f"{path} cannot be read: {error.strerror or error}; give another file."
        ) from error
    except (cattrs.BaseValidationError, LookupError, TypeError, ValueError) as error:
        raise EvidenceError(f"{path.name} is no evidence: {reason_of(error)}.") from error


def _indented(data: Json, depth: int) -> str:
    """Return readable JSON: what is flat stands on one line, as does a whole fixture."""
    pad = "  " * (depth + 1)
    if isinstance(data, dict) and data and not _is_flat(data):
        items = [
            f"{pad}{json.dumps(key)}: "
            + (canonical_json(value) if key == "fixture" else _indented(value, depth + 1))
            for key, value in data.items()
        ]
        return "{\n" + ",\n".join(items) + "\n" + "  " * depth + "}"
    if isinstance(data, list) and data and not _is_flat(data):
        items = [pad + _indented(value, depth + 1) for value in data]
        return "[\n" + ",\n".join(items) + "\n" + "  " * depth + "]"
    return json.dumps(data, allow_nan=False)


def _is_flat(data: "dict[str, Json] | list[Json]") -> bool:
    values = list(data.values()) if isinstance(data, dict) else data
    return all(not isinstance(value, (dict, list)) for value in values) and (
        len(json.dumps(data)) <= 120
    )


def _converter() -> cattrs.Converter:
    converter = strict_converter()
    converter.register_structure_hook_func(lambda kind: kind == Json, lambda value, _: value)
    # Every field is written: who reads a file must not know the defaults of a version.
    found = converter.copy(omit_if_default=False)
    # But this one, which files have from some version on.
    found.register_unstructure_hook(
        TimedCell,
        make_dict_unstructure_fn(TimedCell, found, in_set=override(omit_if_default=True)),
    )
    return found


_CONVERTER = _converter()

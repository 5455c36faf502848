"""What a run of power showed: what was found of what is planted, and what healthy twins were.

Records, and their JSON in both directions. `biprop.power` fills them; `biprop.reports.power_text`
tells them to people.
"""

import json
import math
from collections.abc import Iterable, Mapping
from statistics import median_high
from typing import Final, Literal, get_args

import attrs
import cattrs

from biprop.case import Dtype, Json, reason_of, strict_converter
from biprop.errors import UsageError
from biprop.provenance import Provenance
from biprop.reports.suite import Note

__all__ = [
    "METHODS",
    "SCHEMA",
    "Cell",
    "MethodName",
    "MethodTotals",
    "PowerReport",
    "Reach",
    "Shrunk",
    "Trial",
    "TwinTrial",
    "report_from_data",
    "report_from_text",
    "report_text",
    "report_to_data",
]

SCHEMA: Final = "biprop-power-1"
# What they are says `biprop.power.methods`.
MethodName = Literal[
    "biprop", "plain-data", "fixed-sawtooth", "fixed-normal", "needle", "one-of-many"
]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
# How the smallest structure that was reached compares with the known one.
Reach = Literal["reached", "above", "below", "unknown"]
_INTERRUPTED = 130
_BYTES_MAX = 1 << 26


@attrs.frozen(kw_only=True)
class Cell:
    """A planted kernel in one dtype.

    Attributes:
        name: Of the kernel.
        kind: Of its defect, as public reports show it.
        dtype: Of the cases.
    """

    name: str
    kind: str
    dtype: Dtype


@attrs.frozen(kw_only=True)
class Shrunk:
    """What became of the first failing case.

    Attributes:
        structure: The smallest structure that was reached, in words.
        cost: By component, as `biprop.minimize.cost` declares them, first ones first.
        least: Of the smallest failing structure; empty where none is known.
        runs: Cases judged on the way.
        seconds: That it took: of the process where it ran the kernel itself, else wall time.
    """

    structure: str
    cost: dict[str, tuple[int, ...]]
    least: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    runs: int
    seconds: float

    @property
    def reach(self) -> Reach:
        """How it compares; `below` says that the known one is not the smallest."""
        if not self.least:
            return "unknown"
        own, least = (tuple(found.values()) for found in (self.cost, self.least))
        if own == least:
            return "reached"
        return "above" if own > least else "below"

    @property
    def lacking(self) -> tuple[str, ...]:
        """Components of the cost that stayed above those of the smallest structure."""
        return tuple(name for name, least in self.least.items() if self.cost[name] > least)


@attrs.frozen(kw_only=True)
class Trial:
    """One method on one planted kernel with one seed.

    Attributes:
        method: What drew the cases.
        cell: What was searched.
        seed: Of the cases.
        found: Whether an example showed the defect.
        examples: Judged, the one that showed it included.
        launches: Launches made for them.
        seconds: Wall time.
        verdict: Of that example; empty where nothing was found.
        classes: Of transforms, that were left; of a method that does not shrink, all.
        shrunk: None where nothing was shrunk.
        error: Why the trial did not end; empty where it did.
    """

    method: MethodName
    cell: Cell
    seed: int
    found: bool = False
    examples: int = 0
    launches: int = 0
    seconds: float = 0.0
    verdict: str = ""
    classes: tuple[str, ...] = ()
    shrunk: Shrunk | None = None
    error: str = ""


@attrs.frozen(kw_only=True)
class TwinTrial:
    """One method on one healthy twin with one seed.

    Attributes:
        method: What drew the cases.
        cell: Of the planted kernel beside it.
        seed: Of the cases.
        examples: Judged.
        rejected: Of these, cases that the twin could not run even alone.
        false_alarms: Of these, cases that were judged a violation.
        seconds: Wall time.
        error: Why the trial did not end; empty where it did.
    """

    method: MethodName
    cell: Cell
    seed: int
    examples: int = 0
    rejected: int = 0
    false_alarms: int = 0
    seconds: float = 0.0
    error: str = ""


@attrs.frozen(kw_only=True)
class MethodTotals:
    """What one method amounts to, over some trials.

    Attributes:
        trials: How many there are.
        found: How many showed the defect.
        cells: Planted kernels and dtypes.
        cells_found: Of these, those that every seed found.
        median: Examples to the first detection, those that found nothing counted as the longest;
            None where at least half of the trials found nothing.
        worst: The most examples of a trial that found it; None where none did.
        launches: Median of launches to the first detection, as `median`.
        seconds: Likewise of seconds.
        known: Shrunk cases whose smallest structure is known.
        reached: Of these, those that reached it, or a smaller one yet.
        twin_examples: Examples of healthy twins.
        false_alarms: Of these, judged a violation.
        missed: Names and dtypes of cells, and how many seeds missed them.
    """

    trials: int
    found: int
    cells: int
    cells_found: int
    median: int | None
    worst: int | None
    launches: int | None
    seconds: float | None
    known: int
    reached: int
    twin_examples: int
    false_alarms: int
    missed: tuple[tuple[Cell, int], ...]

    @property
    def share(self) -> float:
        """Share of the trials that showed the defect."""
        return self.found / self.trials if self.trials else math.nan


@attrs.frozen(kw_only=True)
class PowerReport:
    """What a run of power showed.

    Attributes:
        schema: `biprop-power-1`.
        command: What made it, to be typed again.
        methods: What was run, the one that the exit code is about first.
        examples: Of each trial, at most.
        seeds: Of the trials.
        device: As it was asked for.
        trials: On planted kernels, in the order of the kernels.
        twins: On healthy twins.
        left_out: Planted kernels that were not run, each with its reason.
        provenance: Of the processes that ran kernels; None where none did.
        workers: Trials at a time.
        seconds: Wall time of all runs that it is made of.
        is_interrupted: Whether Ctrl-C or SIGTERM ended the run.
    """

    schema: Literal["biprop-power-1"] = SCHEMA
    command: str
    methods: tuple[MethodName, ...]
    examples: int
    seeds: tuple[int, ...]
    device: str
    trials: tuple[Trial, ...] = ()
    twins: tuple[TwinTrial, ...] = ()
    left_out: tuple[Note, ...] = ()
    provenance: Provenance | None = None
    workers: int = 1
    seconds: float = 0.0
    is_interrupted: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of defects, in the order of the kernels."""
        return tuple(dict.fromkeys(trial.cell.kind for trial in self.trials))

    @property
    def errors(self) -> tuple[Trial | TwinTrial, ...]:
        """Trials that did not end."""
        made: list[Trial | TwinTrial] = [*self.trials, *self.twins]
        return tuple(trial for trial in made if trial.error)

    def totals(
        self, method: MethodName, *, kind: str | None = None, cell: Cell | None = None
    ) -> MethodTotals:
        """Return what a method amounts to, of one kind of defect, of one cell, or of all."""

        def is_asked(trial: Trial | TwinTrial) -> bool:
            return (
                trial.method == method
                and kind in {None, trial.cell.kind}
                and cell in {None, trial.cell}
            )

        return _totals(filter(is_asked, self.trials), filter(is_asked, self.twins))

    @property
    def is_met(self) -> bool:
        """Whether the first method found all that is planted, and none reported a twin."""
        first = self.totals(self.methods[0])
        alarms = sum(twin.false_alarms for twin in self.twins)
        return bool(first.trials) and first.found == first.trials and not (alarms or self.errors)

    @property
    def exit_code(self) -> int:
        """0 where everything was found and no twin reported, 1 else; 130 where it was stopped."""
        if self.is_interrupted:
            return _INTERRUPTED
        return 0 if self.is_met else 1


def report_to_data(report: PowerReport) -> dict[str, Json]:
    """Return `report` as one JSON object, with the totals of each method for those who read it.

    Of a trial, fields that are as by default are left out: there are thousands of them.
    """
    data: dict[str, Json] = _CONVERTER.unstructure(report)
    totals: dict[str, Json] = {
        method: _for_people(report.totals(method)) for method in report.methods
    }
    head: dict[str, Json] = {
        "schema": report.schema,
        "exit_code": report.exit_code,
        "is_interrupted": report.is_interrupted,
        "totals": totals,
    }
    return {**head, **data, "trials": data.get("trials", []), "twins": data.get("twins", [])}


def report_text(report: PowerReport) -> str:
    """Return `report` as the text of a file: one line a trial."""
    lines = [
        f"{json.dumps(name)}: {_on_lines(value) if isinstance(value, list) else json.dumps(value)}"
        for name, value in report_to_data(report).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def report_from_data(data: object) -> PowerReport:
    """Return the report of a JSON object that `report_to_data` made.

    Raises:
        UsageError: It is none; the sentence says where.
    """
    if not isinstance(data, dict):
        raise UsageError("The report is no JSON object: give one that `biprop power` wrote.")
    if data.get("schema") != SCHEMA:
        found = data.get("schema")
        raise UsageError(f"The report has schema={found!r}: this version reads {SCHEMA}.")
    # What follows from the trials is told to people, and made anew.
    given = {name: value for name, value in data.items() if name not in {"exit_code", "totals"}}
    try:
        return _CONVERTER.structure(given, PowerReport)
    except cattrs.BaseValidationError as error:
        raise UsageError(f"The report cannot be read: {reason_of(error)}.") from None


def report_from_text(text: str) -> PowerReport:
    """Return the report of a JSON text.

    Raises:
        UsageError: It is none; the sentence says where.
    """
    if len(text) > _BYTES_MAX:
        raise UsageError(f"The report has {len(text)} characters: at most {_BYTES_MAX} are read.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The report is no JSON: {error}.") from None
    return report_from_data(data)


def _totals(trials: Iterable[Trial], twins: Iterable[TwinTrial]) -> MethodTotals:
    trials, twins = list(trials), list(twins)
    found = [trial for trial in trials if trial.found]
    by_cell: dict[Cell, list[Trial]] = {}
    for trial in trials:
        by_cell.setdefault(trial.cell, []).append(trial)
    missing = {cell: sum(not item.found for item in items) for cell, items in by_cell.items()}
    shrunk = [trial.shrunk for trial in found if trial.shrunk is not None]
    known = [item for item in shrunk if item.reach != "unknown"]
    examples = _median(trials, {id(trial): trial.examples for trial in found})
    launches = _median(trials, {id(trial): trial.launches for trial in found})
    return MethodTotals(
        trials=len(trials),
        found=len(found),
        cells=len(by_cell),
        cells_found=sum(not count for count in missing.values()),
        median=None if examples is None else int(examples),
        worst=max((trial.examples for trial in found), default=None),
        launches=None if launches is None else int(launches),
        seconds=_median(trials, {id(trial): trial.seconds for trial in found}),
        known=len(known),
        reached=sum(item.reach in {"reached", "below"} for item in known),
        twin_examples=sum(twin.examples for twin in twins),
        false_alarms=sum(twin.false_alarms for twin in twins),
        missed=tuple((cell, count) for cell, count in missing.items() if count),
    )


def _median(trials: list[Trial], values: Mapping[int, float]) -> float | None:
    """Return the median, where a trial that found nothing took longer than any other."""
    if not trials:
        return None
    middle = median_high(values.get(id(trial), math.inf) for trial in trials)
    return None if math.isinf(middle) else middle


def _for_people(totals: MethodTotals) -> dict[str, Json]:
    data: dict[str, Json] = _COMPLETE.unstructure(totals)
    missed: list[Json] = [
        {"name": cell.name, "dtype": cell.dtype, "seeds": count} for cell, count in totals.missed
    ]
    return {**data, "missed": missed}


def _on_lines(values: list[Json]) -> str:
    lines = ",\n".join(f" {json.dumps(value)}" for value in values)
    return f"[\n{lines}\n]" if values else "[]"


_CONVERTER = strict_converter()
# Of totals all that is said has a name, for those who read a file without this module.
_COMPLETE = _CONVERTER.copy(omit_if_default=False)

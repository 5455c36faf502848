"""What a run over one cell showed: counts by class, findings and a verdict.

Records only. `biprop.strategies.search` fills them; `biprop.reports.text`, `issue`, `script` and
`drift` tell them to people and machines.
"""

from typing import Literal

import attrs

from biprop.case import Dtype, Json, Judged
from biprop.fixtures.records import CONVERTER, Fixture, fixture_to_data
from biprop.judgment import Outcome, Verdict
from biprop.operators import KernelReference

__all__ = [
    "CauseKind",
    "CellReport",
    "ClassCount",
    "Finding",
    "FixedCount",
    "JudgedCount",
    "cell_report_to_data",
]

# What a cause in a store counts as; `held` is a case that crashed once, and holds.
CauseKind = Literal["finding", "known", "fixed", "held"]


@attrs.frozen(kw_only=True)
class ClassCount:
    """How well a transform class was tested.

    Attributes:
        examples: Cases whose composition held the class.
        powered: Of these, cases whose physical call it changed and whose data had power.
        vacuous: Cases whose physical call it did not change.
        unpowered: Cases whose data could have shown nothing.
        reason: Why the class does not apply; empty where it does.
        tolerance_share: Of relations A and P, which are counted like classes: the largest error as
            a share of what is allowed; None for a class of transforms, and where none was measured.
    """

    examples: int = 0
    powered: int = 0
    vacuous: int = 0
    unpowered: int = 0
    reason: str = ""
    tolerance_share: float | None = None


@attrs.frozen(kw_only=True)
class FixedCount:
    """How the fixed configurations went (`biprop.generation.fixed`); nothing else counts them.

    Attributes:
        configurations: How many there are.
        judged: Of these, how many the kernel was run in; several may share one case.
        powered: Of these, how many changed the physical call, with data that had power.
        not_applicable: By name of every other one, why the kernel cannot take it.
        is_composed: Whether several of them share a case, as in Triton's interpreter.
    """

    configurations: int = 0
    judged: int = 0
    powered: int = 0
    not_applicable: dict[str, str] = attrs.field(factory=dict)
    is_composed: bool = False


@attrs.frozen(kw_only=True)
class JudgedCount:
    """How well one thing that is judged was tested: outputs, or one kind of gradients.

    Attributes:
        examples: Cases of relation I in which it was compared.
        lacking: Classes that apply to it, and have too few powered examples.
    """

    examples: int = 0
    lacking: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Finding:
    """One cause.

    Attributes:
        fixture: The smallest case, with its evidence.
        outcome: Of judging that case.
        count: Cases of the run that showed the cause.
        path: Of the fixture's file, empty where it was not stored.
    """

    fixture: Fixture
    outcome: Outcome
    count: int = 1
    path: str = ""


@attrs.frozen(kw_only=True)
class CellReport:
    """One cell: a kernel, a dtype and a direction on a device.

    Attributes:
        reference: The kernel.
        dtype: Of the cases.
        direction: `forward` or `backward`.
        device: As it was asked for.
        verdict: HOLDS, a violation (of the first finding), FALLBACK, VACUOUS or UNSUPPORTED.
        findings: One a cause, in the order in which they were found.
        examples: Cases judged.
        rejected: Of these, cases whose canonical run raised.
        launches: Launches made.
        classes: Counts by class: `T1`, ..., `T4.finite`, `T4.nonfinite`, ..., `T8`; then by what
            canonical runs were held against, where they were: `A`, `P torch`.
        power_kind: `order` or `value`; empty where nothing was compared.
        power_share: Mean over the cases compared.
        seconds: Wall time.
        seed: That the run began with.
        message: Why it is FALLBACK, VACUOUS or UNSUPPORTED.
        actual_backend: What ran, e.g. `triton-interpreter`.
        chain_index: Of a declared operator, for sorting.
        owner: URL of who looks after the operator; empty where nobody is named.
        judged: Counts by what was judged.
        fixed: Counts of the fixed configurations; None where they are not run, as for what is not
            registered.
        largest: Largest sizes of the cases that ran, by name of the dimension; besides `length` (of
            a watched sequence), `sequences` and `tokens` (of all sequences of a case).
        swept: The turn that the sweep of sizes came to, for a search that goes on there.
    """

    reference: KernelReference
    dtype: Dtype
    direction: Literal["forward", "backward"]
    device: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    examples: int = 0
    rejected: int = 0
    launches: int = 0
    classes: dict[str, ClassCount] = attrs.field(factory=dict)
    power_kind: Literal["order", "value", ""] = ""
    power_share: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    message: str = ""
    actual_backend: str = ""
    chain_index: int | None = None
    owner: str = ""
    largest: dict[str, int] = attrs.field(factory=dict)
    judged: dict[Judged, JudgedCount] = attrs.field(factory=dict)
    fixed: FixedCount | None = None
    swept: int = 0

    @property
    def exit_code(self) -> int:
        """0 held, 1 violated, 2 unsupported or mostly rejected, 3 vacuous."""
        if self.verdict.is_violation:
            return 1
        if self.verdict is Verdict.UNSUPPORTED or 2 * self.rejected > self.examples:
            return 2
        return 3 if self.verdict is Verdict.VACUOUS else 0


def cell_report_to_data(report: CellReport) -> dict[str, Json]:
    """Return `report` as one JSON object: verdict, causes with id and path, and all counts."""
    findings: list[Json] = [
        {
            "fixture_id": finding.fixture.id,
            "path": finding.path,
            "cause": CONVERTER.unstructure(finding.fixture.expect.cause),
            "key": finding.fixture.expect.cause.key,
            "count": finding.count,
            "fixture": fixture_to_data(finding.fixture),
        }
        for finding in report.findings
    ]
    return {
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "operator": report.reference.operator,
        "target": report.reference.target,
        "backend": report.reference.backend,
        "actual_backend": report.actual_backend,
        "signature": report.reference.signature,
        "dtype": report.dtype,
        "direction": report.direction,
        "device": report.device,
        "causes": findings,
        "examples": report.examples,
        "rejected": report.rejected,
        "launches": report.launches,
        "power": {"kind": report.power_kind, "share": report.power_share},
        "classes": {name: attrs.asdict(count) for name, count in report.classes.items()},
        "largest": dict(report.largest),
        "judged": {name: attrs.asdict(count) for name, count in report.judged.items()},
        "fixed": None if report.fixed is None else attrs.asdict(report.fixed),
        "seconds": report.seconds,
        "seed": report.seed,
        "message": report.message,
    }

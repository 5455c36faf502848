"""What a search over programs of a KV cache showed: counts, coverage, findings and a verdict.

Records only. `biprop.strategies.programs` fills them, `biprop.reports.programs` tells them to
people.
"""

import attrs

from biprop.case import Dtype, Json
from biprop.fixtures.programs import ProgramFixture, program_fixture_to_data
from biprop.judgment import Verdict
from biprop.kvcache.converting import CONVERTER
from biprop.kvcache.records import COVERAGE, CacheReference, ProgramOutcome
from biprop.kvcache.shape import CacheLayout

__all__ = ["CacheReport", "ProgramFinding", "cache_report_to_data"]


@attrs.frozen(kw_only=True)
class ProgramFinding:
    """One cause.

    Attributes:
        fixture: The smallest program, with its evidence.
        outcome: Of judging that program.
        count: Programs of the run that showed the cause.
        found_after: Programs judged up to the first that showed it, that one included; 0 where a
            fixed program did.
        path: Of the fixture's file, empty where it was not stored.
    """

    fixture: ProgramFixture
    outcome: ProgramOutcome
    count: int = 1
    found_after: int = 1
    path: str = ""


@attrs.frozen(kw_only=True)
class CacheReport:
    """One cache: a backend, a layout of pages and a dtype on a device.

    Attributes:
        reference: The cache.
        layout: Of the pages.
        dtype: Of queries, keys and values.
        storage: Of what is stored; None: drawn for each program.
        device: As it was asked for.
        verdict: HOLDS, a violation (of the first finding), FALLBACK, VACUOUS or UNSUPPORTED.
        findings: One a cause, in the order in which they were found.
        programs: Drawn and judged.
        ops: Operations run in them, legal ones.
        comparisons: Tensors compared in them.
        coverage: Programs that reached a situation, by its name in `COVERAGE`.
        smoke: Verdict of each fixed program, by its name; they are not among `programs`.
        measured: Programs whose power was measured.
        powered: Programs with power.
        power_share: Mean share of compared results whose bits change under another order of keys,
            over the programs that attended.
        seconds: Wall time.
        seed: That the search began with.
        message: Why it is FALLBACK, VACUOUS or UNSUPPORTED.
        actual_backend: What ran, e.g. `triton-interpreter`.
    """

    reference: CacheReference
    layout: CacheLayout
    dtype: Dtype
    storage: Dtype | None = None
    device: str
    verdict: Verdict
    findings: tuple[ProgramFinding, ...] = ()
    programs: int = 0
    ops: int = 0
    comparisons: int = 0
    coverage: dict[str, int] = attrs.field(factory=dict)
    smoke: dict[str, Verdict] = attrs.field(factory=dict)
    measured: int = 0
    powered: int = 0
    power_share: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    message: str = ""
    actual_backend: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """Share of the programs that reached each situation."""
        count = max(1, self.programs)
        return {word: self.coverage.get(word, 0) / count for word in COVERAGE}

    @property
    def exit_code(self) -> int:
        """0 held, 1 violated, 2 unsupported, 3 vacuous."""
        if self.verdict.is_violation:
            return 1
        return {Verdict.UNSUPPORTED: 2, Verdict.VACUOUS: 3}.get(self.verdict, 0)


def cache_report_to_data(report: CacheReport) -> dict[str, Json]:
    """Return `report` as one JSON object: verdict, causes with id and path, and all counts."""
    findings: list[Json] = [
        {
            "fixture_id": finding.fixture.id,
            "path": finding.path,
            "cause": CONVERTER.unstructure(finding.fixture.expect.cause),
            "key": finding.fixture.expect.cause.key,
            "count": finding.count,
            "found_after": finding.found_after,
            "fixture": program_fixture_to_data(finding.fixture),
        }
        for finding in report.findings
    ]
    return {
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "cache": report.reference.cache,
        "target": report.reference.target,
        "backend": report.reference.backend,
        "actual_backend": report.actual_backend,
        "layout": report.layout,
        "dtype": report.dtype,
        "storage": report.storage,
        "device": report.device,
        "causes": findings,
        "programs": report.programs,
        "ops": report.ops,
        "comparisons": report.comparisons,
        "coverage": {word: round(share, 4) for word, share in report.shares.items()},
        "smoke": {name: verdict.value for name, verdict in report.smoke.items()},
        "power": (
            {"measured": report.measured, "powered": report.powered, "share": report.power_share}
            if report.measured
            else None
        ),
        "seconds": report.seconds,
        "seed": report.seed,
        "message": report.message,
    }

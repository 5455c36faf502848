"""Which failing composites may fail because of a part that fails too.

Only a composite that declares what it is built from (`Operator.built_from`) can be tried; what a
trial is, says `biprop.suite.parts`.
"""

from collections.abc import Mapping

from biprop.judgment import Verdict
from biprop.operators import Operator, Registry
from biprop.reports.suite import SuiteCell
from biprop.suite.searching import PartsTask

__all__ = ["to_try"]


def to_try(registry: Registry, cells: Mapping[str, SuiteCell]) -> tuple[PartsTask, ...]:
    """Return a trial for every failing cell of a composite one of whose parts fails too."""
    operators = {operator.name: operator for operator in registry.operators}
    tasks: list[PartsTask] = []
    for cell in cells.values():
        if cell.report is None or not cell.report.findings:
            continue
        parts = _failing_parts(operators[cell.operator], cell, cells)
        if parts:
            tasks.append(
                PartsTask(
                    cell=cell.id,
                    reference=cell.reference,
                    dtype=cell.dtype,
                    direction=cell.direction,
                    parts=parts,
                    backends=_holding_backends(parts, cell, cells),
                    cases=tuple(item.fixture.case for item in cell.report.findings),
                )
            )
    return tuple(tasks)


def _failing_parts(
    operator: Operator, cell: SuiteCell, cells: Mapping[str, SuiteCell]
) -> tuple[str, ...]:
    """Return the parts that fail under the same backend and dtype, the first in the chain first."""
    found = {
        other.operator: other.chain_index
        for other in cells.values()
        if other.operator in operator.built_from
        and (other.backend, other.dtype) == (cell.backend, cell.dtype)
        and other.is_violated
    }
    return tuple(sorted(found, key=lambda name: (found[name], name)))


def _holding_backends(
    parts: tuple[str, ...], cell: SuiteCell, cells: Mapping[str, SuiteCell]
) -> dict[str, str]:
    """Return a backend of each part all of whose cells of this dtype hold."""
    holding: dict[str, str] = {}
    for part in parts:
        own = [other for other in cells.values() if other.operator == part]
        own = [other for other in own if other.dtype == cell.dtype]
        for backend in dict.fromkeys(other.backend for other in own):
            reports = [other.report for other in own if other.backend == backend]
            if all(report and report.verdict is Verdict.HOLDS for report in reports):
                holding.setdefault(part, backend)
    return holding

"""What a run over all cells showed: every cell, what was not run and why, and what it amounts to.

Records, and their JSON. `biprop.suite` fills them; `biprop.reports.suite_text` tells them to
people.
"""

from typing import Literal

import attrs

from biprop.case import Dtype, Json
from biprop.contract import Contract, Deferred
from biprop.fixtures.records import CONVERTER
from biprop.judgment import Verdict
from biprop.operators import KernelReference, OpClass
from biprop.provenance import Provenance
from biprop.reports.drift import checked_object
from biprop.reports.records import CellReport

__all__ = [
    "NOT_CLAIMED",
    "SCHEMA",
    "CellError",
    "ContractUsed",
    "Dependence",
    "InvarianceReport",
    "Note",
    "SuiteCell",
    "report_to_data",
]

SCHEMA = "biprop-invariance-report-1"
# Said by every green report: what all green does not prove.
NOT_CLAIMED = (
    "Not claimed: multi-GPU collectives, equality of one engine with another, fp8, MoE. What holds "
    "here is operator-level, single-device self-consistency."
)
_INTERRUPTED = 130
# The error of a backend that another one stood in for.
_FALLBACK = "BackendError"


@attrs.frozen(kw_only=True)
class Note:
    """Something that was not run.

    Attributes:
        name: Of an operator, or of a dtype.
        reason: Why, in words.
    """

    name: str
    reason: str


@attrs.frozen(kw_only=True)
class CellError:
    """Why a cell has no report.

    Attributes:
        kind: `lost`: the process that searched it ended; `error`: biprop refused to go on.
        name: Class of the error, empty for `lost`.
        message: One sentence.
    """

    kind: Literal["lost", "error"]
    message: str
    name: str = ""


@attrs.frozen(kw_only=True)
class SuiteCell:
    """One cell of the matrix, and what became of it.

    Attributes:
        id: `rms_norm-triton-bfloat16-backward`; forms other than packed are named.
        reference: The kernel.
        form: Of the operator.
        op_class: Of the operator.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
        chain_index: Rank of the operator's first place in the chain.
        is_mandatory: Whether the contract asks for it; an optional one may be unsupported.
        report: What the search found; None where it did not end.
        error: Why there is no report; None too where the run was stopped before.
    """

    id: str
    reference: KernelReference
    op_class: OpClass
    dtype: Dtype
    direction: Literal["forward", "backward"]
    chain_index: int
    form: str = "packed"
    is_mandatory: bool = True
    report: CellReport | None = None
    error: CellError | None = None

    @property
    def operator(self) -> str:
        """Name of the operator."""
        return self.reference.operator

    @property
    def backend(self) -> str:
        """As it was asked for."""
        return self.reference.backend

    @property
    def word(self) -> str:
        """The verdict, or CRASHES (its process was lost), FALLBACK, ERROR or NOT RUN."""
        if self.report is not None:
            return self.report.verdict.value
        if self.error is None:
            return "NOT RUN"
        if self.error.kind == "lost":
            return Verdict.CRASHES.value
        return "FALLBACK" if self.error.name == _FALLBACK else "ERROR"

    @property
    def is_green(self) -> bool:
        """Whether it holds; an optional cell may also be unsupported or lack evidence."""
        if self.report is None:
            return False
        if self.report.verdict is Verdict.HOLDS:
            return True
        excused = {Verdict.UNSUPPORTED, Verdict.VACUOUS}
        return not self.is_mandatory and self.report.verdict in excused

    @property
    def is_violated(self) -> bool:
        """Whether something was found wrong, rather than too little found out."""
        if self.report is not None:
            return self.report.verdict.is_violation
        return self.error is not None


@attrs.frozen(kw_only=True)
class ContractUsed:
    """Which contract judged.

    Attributes:
        version: As the file names itself.
        digest: SHA-256 of its canonical JSON, in hexadecimal.
        name: For people; it says how many thresholds are wider than biprop's own.
        wider: Paths of these thresholds.
    """

    version: str
    digest: str
    name: str
    wider: tuple[str, ...] = ()

    @classmethod
    def of(cls, contract: Contract) -> "ContractUsed":
        """Return what a report says of a contract."""
        return cls(
            version=contract.version,
            digest=contract.digest,
            name=contract.name,
            wider=contract.wider,
        )


@attrs.frozen(kw_only=True)
class Dependence:
    """Whether a failing composite fails because one of its parts does.

    Attributes:
        cell: Id of the composite's cell.
        part: Name of the operator that it is built from, and that fails too.
        status: `downstream`: with reference parts in the place of its own the composite holds;
            `independent`: it fails all the same, or it could not be tried.
        reason: What was tried, in words.
    """

    cell: str
    part: str
    status: Literal["downstream", "independent"]
    reason: str


@attrs.frozen(kw_only=True)
class InvarianceReport:
    """What a run over all cells showed.

    Attributes:
        cells: By id, in the order of the registry.
        exempt: Operators that promise nothing, each with its reason.
        skipped: What may be run and was not, each with its reason: optional dtypes, gradients that
            an operator does not promise.
        deferred: What this version does not test (P1, P2 of the contract).
        missing: Operators that the contract asks for, and that no registry offers.
        unasked: Mandatory cells that the run was not asked for.
        dependences: Of failing composites that declare what they are built from.
        slice_name: `pr` or `nightly`: how thorough the searches are.
        device: As it was asked for.
        contract: Which contract judged.
        provenance: Of the processes that ran kernels; None where none did.
        seconds: Wall time.
        seed: That the run was given; None: cells have seeds of their own.
        workers: Cells searched at a time.
        is_interrupted: Whether Ctrl-C or SIGTERM ended the run.
    """

    cells: dict[str, SuiteCell]
    slice_name: Literal["pr", "nightly"]
    device: str
    contract: ContractUsed
    exempt: tuple[Note, ...] = ()
    skipped: tuple[Note, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    missing: tuple[str, ...] = ()
    unasked: int = 0
    dependences: tuple[Dependence, ...] = ()
    provenance: Provenance | None = None
    seconds: float = 0.0
    seed: int | None = None
    workers: int = 1
    is_interrupted: bool = False

    @property
    def red(self) -> tuple[SuiteCell, ...]:
        """Cells that are not green, violated ones first, then by place in the chain."""
        found = [cell for cell in self.cells.values() if not cell.is_green]
        return tuple(sorted(found, key=lambda cell: (not cell.is_violated, cell.chain_index)))

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of the operators with a violated cell, by place in the chain."""
        return tuple(dict.fromkeys(cell.operator for cell in self.red if cell.is_violated))

    @property
    def primary(self) -> str | None:
        """Of all failing operators the first in the chain; None where none fails."""
        return next(iter(self.failing), None)

    @property
    def downstream(self) -> dict[str, str]:
        """Name of the failing part, by id of each composite cell that fails because of it."""
        return {item.cell: item.part for item in self.dependences if item.status == "downstream"}

    @property
    def is_green(self) -> bool:
        """Whether all that was asked for holds."""
        return bool(self.cells) and not (self.red or self.missing)

    @property
    def exit_code(self) -> int:
        """0 green, 1 not; 130 where the run was stopped."""
        if self.is_interrupted:
            return _INTERRUPTED
        return 0 if self.is_green else 1

    def text(self) -> str:
        """Return what `biprop matrix` prints, fixtures named by their paths."""
        # The text is made of these records, so its module imports this one.
        from biprop.reports.suite_text import render_suite  # noqa: PLC0415

        return render_suite(self, by_path=True)


def report_to_data(report: InvarianceReport) -> dict[str, Json]:
    """Return `report` as one JSON object; every drift record is in its cell."""
    cells = list(report.cells.values())
    reports = [cell.report for cell in cells if cell.report is not None]
    plain = CONVERTER.copy(omit_if_default=False).unstructure
    return {
        "schema": SCHEMA,
        "is_green": report.is_green,
        "exit_code": report.exit_code,
        "is_interrupted": report.is_interrupted,
        "slice": report.slice_name,
        "device": report.device,
        "seed": report.seed,
        "workers": report.workers,
        "seconds": report.seconds,
        "contract": plain(report.contract),
        "source_digest": "" if report.provenance is None else report.provenance.source_digest,
        "provenance": None if report.provenance is None else plain(report.provenance),
        "totals": {
            "cells": len(cells),
            "green": sum(cell.is_green for cell in cells),
            "mandatory": sum(cell.is_mandatory for cell in cells),
            "unasked": report.unasked,
            "examples": sum(item.examples for item in reports),
            "launches": sum(item.launches for item in reports),
        },
        "primary": report.primary,
        "failing": list(report.failing),
        "red": [cell.id for cell in report.red],
        "dependences": plain(report.dependences),
        "cells": [_cell_to_data(cell) for cell in cells],
        "exempt": plain(report.exempt),
        "skipped": plain(report.skipped),
        "deferred": plain(report.deferred),
        "missing": list(report.missing),
        "not_claimed": NOT_CLAIMED,
    }


def _cell_to_data(cell: SuiteCell) -> dict[str, Json]:
    error = cell.error
    return {
        "id": cell.id,
        "operator": cell.operator,
        "form": cell.form,
        "backend": cell.backend,
        "op_class": cell.op_class,
        "dtype": cell.dtype,
        "direction": cell.direction,
        "chain_index": cell.chain_index,
        "is_mandatory": cell.is_mandatory,
        "is_green": cell.is_green,
        "word": cell.word,
        "error": None
        if error is None
        else {"kind": error.kind, "name": error.name, "message": error.message},
        "report": None if cell.report is None else checked_object(cell.report),
    }

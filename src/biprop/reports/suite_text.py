"""A run over all cells as plain text: the matrix, its evidence, what failed, what was left out.

Strings in, strings out. Cells, findings and words are those of `biprop.reports.text` and `words`;
the JSON of the same report is made by `biprop.reports.suite`.
"""

import textwrap
from collections.abc import Iterable, Sequence

from biprop.generation import CLASSES
from biprop.reports.judged import ForwardInvarianceReport, GradientInvarianceReport
from biprop.reports.records import CellReport, Finding
from biprop.reports.suite import NOT_CLAIMED, InvarianceReport, SuiteCell
from biprop.reports.text import counted, render_check, render_finding
from biprop.reports.words import plain, replay_command

__all__ = [
    "render_evidence",
    "render_failed",
    "render_failures",
    "render_judged",
    "render_matrix",
    "render_notes",
    "render_suite",
]

_WIDTH = 110
_NONE = "-"
_INTERPRETER = "triton-interpreter"
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def render_suite(report: InvarianceReport, *, by_path: bool = False) -> str:
    """Return all of a run; whether it is green comes last.

    Args:
        report: What was found.
        by_path: Whether commands name fixtures by their paths, as no store would find their ids.
    """
    parts = (
        render_matrix(report),
        render_evidence(report),
        render_failures(report, by_path=by_path),
        render_notes(report),
        _where(report),
        _conclusion(report),
    )
    return "\n".join(part for part in parts if part)


def render_judged(report: ForwardInvarianceReport | GradientInvarianceReport) -> str:
    """Return what an assertion found, cell by cell."""
    return "\n".join(map(render_failed, report.cells.values()))


def render_failed(report: CellReport) -> str:
    """Return a cell whose first line has the verdict, and why where that is known.

    Test runners show the first line alone.
    """
    reason = "" if report.findings else plain(report.message)
    *body, last = render_check(report).splitlines()
    lines = _possible((line for line in body if line != reason), report.findings)
    first = [f"{report.verdict}  {reason}", *lines, last] if reason else [last, *lines]
    return "\n".join(first) + "\n"


def render_matrix(report: InvarianceReport) -> str:
    """Return one row an operator, form and backend, one column a dtype and direction.

    Beside the backend that was asked for stands what ran.

    A row whose operator fails says whether it is the primary one, and of which part it is
    downstream.
    """
    cells = list(report.cells.values())
    columns = list(dict.fromkeys((cell.dtype, cell.direction) for cell in cells))
    rows: dict[tuple[str, str, str], dict[tuple[str, str], SuiteCell]] = {}
    for cell in cells:
        row = rows.setdefault((cell.operator, cell.form, cell.backend), {})
        row[cell.dtype, cell.direction] = cell
    heads = (
        *("operator", "backend", "ran"),
        *(f"{_SHORT[dtype]} {direction}" for dtype, direction in columns),
        "",
    )
    table = [
        (
            name if form == "packed" else f"{name}/{form}",
            plain(backend),
            _actual(row.values()),
            *(row[column].word if column in row else _NONE for column in columns),
            _mark(report, row.values()),
        )
        for (name, form, backend), row in rows.items()
    ]
    return _table((heads, *table))


def render_evidence(report: InvarianceReport) -> str:
    """Return powered of all examples by class and relation, and why some do not apply.

    One row a cell; `fixed` counts configurations, not examples.
    """
    found = [(cell, cell.report) for cell in report.cells.values() if cell.report is not None]
    if not found:
        return ""
    names = list(dict.fromkeys(name for _, item in found for name in item.classes))
    heads = ("powered/examples", *names, "fixed", "all", "rejected", "power", "seconds")
    rows = [(cell.id, *_evidence(item, names)) for cell, item in found]
    lines = [
        line
        for what, ids in _reasons(found).items()
        for line in _wrapped(f"{what} ({_these(ids, len(found))})", indent="  ")
    ]
    return _table((heads, *rows)) + "".join(f"{line}\n" for line in lines)


def render_failures(report: InvarianceReport, *, by_path: bool = False) -> str:
    """Return the findings of every cell that is not green, those of the primary operator first."""
    first = report.primary
    # A stable sort: the order of `red` stays among the others.
    ordered = sorted(report.red, key=lambda cell: cell.operator != first or not cell.is_violated)
    lines: list[str] = []
    for cell in ordered:
        lines += [f"{cell.word}  {cell.id}{_notes_of(report, cell)}"]
        if cell.report is not None:
            for finding in cell.report.findings:
                text = render_finding(finding, chain_index=cell.chain_index, by_path=by_path)
                lines += _possible(text.splitlines(), (finding,))
            if cell.report.message:
                lines += _wrapped(cell.report.message, indent="  ")
        if cell.error is not None:
            lines += _wrapped(cell.error.message, indent="  ")
        lines.append("")
    return "\n".join(lines)


def render_notes(report: InvarianceReport) -> str:
    """Return what was not run, each with its reason."""
    named = [
        *(("missing", name, "the contract asks for it (P0)") for name in report.missing),
        *(("exempt", note.name, note.reason) for note in report.exempt),
        *(("skipped", note.name, note.reason) for note in report.skipped),
        *((f"deferred {item.priority}", item.name, item.reason) for item in report.deferred),
    ]
    lines = [line for what, name, reason in named for line in _wrapped(f"{what}  {name}: {reason}")]
    if report.unasked:
        count = report.unasked
        lines.append(f"not asked for  {count} mandatory cell{'s' * (count > 1)}")
    return "".join(f"{line}\n" for line in lines)


def _where(report: InvarianceReport) -> str:
    where = report.provenance
    seed = "seeds of the cells" if report.seed is None else f"seed {report.seed}"
    count = counted(len(report.cells), "cell")
    how = f"slice {report.slice_name}, {count}, {report.workers} at a time"
    lines = [f"{how}, {report.seconds:.1f} s, {seed}", f"contract {report.contract.name}"]
    if where is not None:
        lines.append(
            f"device {where.device} {where.device_name} {where.arch_key}, torch {where.torch}, "
            f"triton {where.triton or 'none'}, biprop {where.biprop} {where.source_digest}"
            + (f", {where.environment}" if where.environment else "")
        )
    found = (cell.report for cell in report.cells.values())
    if any(item is not None and item.actual_backend == _INTERPRETER for item in found):
        lines.append(f"What ran in {_INTERPRETER} certifies the interpreter, and no GPU.")
    shown = [plain(line) for line in lines]
    if report.contract.wider:
        shown[2:2] = _wrapped(f"wider: {', '.join(report.contract.wider)}", indent="  ")
    return "".join(f"{line}\n" for line in shown)


def _conclusion(report: InvarianceReport) -> str:
    if report.is_green:
        whole = "" if not report.unasked else " of those that were asked for"
        words = textwrap.fill(NOT_CLAIMED, _WIDTH)
        return f"{words}\nGREEN  {counted(len(report.cells), 'cell')}{whole}\n"
    stopped = "STOPPED by Ctrl-C or SIGTERM. " if report.is_interrupted else ""
    words = f"{stopped}RED  {len(report.red)} of {counted(len(report.cells), 'cell')}"
    if report.missing:
        words += f", {len(report.missing)} missing"
    if report.primary is not None:
        words += f"; primary: {report.primary}"
    return f"{plain(words)}\n"


def _possible(lines: Iterable[str], findings: Iterable[Finding]) -> list[str]:
    """Return lines without the commands that replay what was not stored: nothing would find it."""
    impossible = {
        replay_command(item.fixture, item.fixture.id[:8]) for item in findings if not item.path
    }
    return [line for line in lines if line not in impossible]


def _mark(report: InvarianceReport, cells: Iterable[SuiteCell]) -> str:
    """Return what a row says of its failure; empty where nothing in it fails."""
    failing = [cell for cell in cells if cell.is_violated]
    if not failing:
        return ""
    parts = sorted({report.downstream[cell.id] for cell in failing if cell.id in report.downstream})
    words = [f"downstream of {', '.join(parts)}"] if parts else []
    if failing[0].operator == report.primary:
        words.insert(0, "primary")
    return "; ".join(words)


def _notes_of(report: InvarianceReport, cell: SuiteCell) -> str:
    words = ["primary"] if cell.is_violated and cell.operator == report.primary else []
    for item in report.dependences:
        if item.cell == cell.id:
            of = f"of {item.part}: {item.reason}"
            words.append(f"{item.status} {of}")
    return f"  ({plain('; '.join(words))})" if words else ""


def _reasons(found: Sequence[tuple[SuiteCell, CellReport]]) -> dict[str, list[str]]:
    """Return ids of cells, by what does not apply to them and why."""
    reasons: dict[str, list[str]] = {}
    for cell, item in found:
        for name, count in item.classes.items():
            if count.reason:
                # Names of relations are no classes of transforms.
                word = "applicable" if name in CLASSES else "judged"
                reasons.setdefault(f"{name} not {word}: {count.reason}", []).append(cell.id)
        untaken = {} if item.fixed is None else item.fixed.not_applicable
        for reason in dict.fromkeys(untaken.values()):
            names = "; ".join(name for name, why in untaken.items() if why == reason)
            reasons.setdefault(f"fixed not applicable: {names}: {reason}", []).append(cell.id)
    return reasons


def _evidence(report: CellReport, names: Sequence[str]) -> tuple[str, ...]:
    shown: list[str] = []
    for name in names:
        count = report.classes.get(name)
        is_tested = count is not None and not count.reason
        shown.append(f"{count.powered}/{count.examples}" if count and is_tested else _NONE)
    power = f"{report.power_share:.2f} {report.power_kind}".strip() if report.power_kind else _NONE
    fixed = report.fixed
    return (
        *shown,
        _NONE if fixed is None else f"{fixed.powered}/{fixed.judged}",
        str(report.examples),
        str(report.rejected),
        power,
        f"{report.seconds:.1f}",
    )


def _actual(cells: Iterable[SuiteCell]) -> str:
    """Return what ran, where that is known."""
    ran = {cell.report.actual_backend for cell in cells if cell.report is not None}
    return plain(", ".join(sorted(filter(None, ran))) or _NONE)


def _these(ids: Sequence[str], count: int) -> str:
    if len(ids) == count:
        return "all cells"
    return ids[0] if len(ids) == 1 else f"{len(ids)} cells, {ids[0]} among them"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str, *, indent: str = "") -> list[str]:
    return textwrap.wrap(
        plain(text), _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    "
    )

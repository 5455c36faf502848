"""What a run of power showed, as tables and sentences for people.

Words in, words out: whether a table has lines around it says whoever prints it. The records are
those of `biprop.reports.power`.
"""

from collections.abc import Iterator, Mapping

import attrs

from biprop.reports.power import Cell, MethodName, MethodTotals, PowerReport, Trial, TwinTrial
from biprop.reports.words import plain

__all__ = [
    "Table",
    "conclusion",
    "kinds_table",
    "left_out",
    "methods_table",
    "plain_table",
    "power_tables",
    "said",
    "uncompared",
]

_NONE = "-"
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@attrs.frozen(kw_only=True)
class Table:
    """A table.

    Attributes:
        title: What it is about.
        head: Names of the columns.
        rows: Words, as many as there are columns.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def power_tables(report: PowerReport, descriptions: Mapping[MethodName, str]) -> tuple[Table, ...]:
    """Return every table of a report: planted kernels, kinds of defects, methods.

    Args:
        report: What was found.
        descriptions: One line on each method.
    """
    tables = [_kernels_table(report), kinds_table(report), methods_table(report, descriptions)]
    return tuple(table for table in tables if table.rows)


def methods_table(report: PowerReport, descriptions: Mapping[MethodName, str]) -> Table:
    """Return one row a method: what it found, how soon, and what it said of healthy twins."""
    rows = []
    for method in report.methods:
        totals = report.totals(method)
        if not totals.trials:
            continue
        alarms = f"{totals.false_alarms} of {totals.twin_examples:,}"
        rows.append(
            (
                method,
                descriptions.get(method, ""),
                f"{totals.found} of {totals.trials} ({_percent(totals.share)})",
                f"{totals.cells_found} of {totals.cells}",
                _median(totals),
                _number(totals.worst),
                _number(totals.launches),
                _NONE if totals.seconds is None else f"{totals.seconds:.2f}",
                alarms if totals.twin_examples else _NONE,
            )
        )
    head = (
        *("method", "what it is", "trials that found it", "found by every seed"),
        *("median examples", "worst", "median launches", "median s", "false alarms"),
    )
    return Table(title="Methods, on the same kernels", head=head, rows=tuple(rows))


def kinds_table(report: PowerReport) -> Table:
    """Return one row a kind of defect, one column a method: the share of trials that found it."""
    rows = []
    for kind in report.kinds:
        totals = {method: report.totals(method, kind=kind) for method in report.methods}
        first = totals[report.methods[0]]
        names = {trial.cell.name for trial in report.trials if trial.cell.kind == kind}
        shrunk = f"{first.reached} of {first.known}" if first.known else _NONE
        shares = [
            _percent(item.share) if item.trials else _NONE
            for item in (totals[method] for method in report.methods)
        ]
        rows.append((plain(kind), str(len(names)), *shares, shrunk))
    head = ("kind", "kernels", *report.methods, "shrunk to the smallest")
    return Table(title="Found, by kind of defect", head=head, rows=tuple(rows))


def _kernels_table(report: PowerReport) -> Table:
    """Return one row a planted kernel and dtype, of the first method."""
    by_cell: dict[Cell, list[Trial]] = {}
    for trial in report.trials:
        if trial.method == report.methods[0]:
            by_cell.setdefault(trial.cell, []).append(trial)
    rows = []
    for cell, trials in by_cell.items():
        totals = report.totals(report.methods[0], cell=cell)
        rows.append(
            (
                plain(cell.name),
                plain(cell.kind),
                _SHORT[cell.dtype],
                f"{totals.found} of {totals.trials}",
                _median(totals),
                _number(totals.worst),
                _number(totals.launches),
                _NONE if totals.seconds is None else f"{totals.seconds:.2f}",
                _shrunk(trials),
            )
        )
    head = (
        *("kernel", "kind", "dtype", "seeds", "median examples", "worst"),
        *("launches", "s", "shrunk"),
    )
    title = f"Planted kernels, by {report.methods[0]}"
    return Table(title=title, head=head, rows=tuple(rows))


def said(report: PowerReport) -> Iterator[str]:
    """Yield sentences: what was missed, what did not shrink, who cried wolf, what was left out."""
    for method in report.methods:
        totals = report.totals(method)
        if totals.missed:
            names = ", ".join(
                f"{plain(cell.name)} {_SHORT[cell.dtype]} ({count})"
                for cell, count in totals.missed
            )
            yield f"Missed by {method}, and by how many seeds: {names}."
    yield from _unshrunk(report)
    for twin in report.twins:
        if twin.false_alarms:
            yield (
                f"FALSE ALARM of {twin.method} on the healthy twin of {_of(twin)}: "
                f"{twin.false_alarms} of {twin.examples} examples."
            )
    for trial in report.errors:
        what = "the twin of " if isinstance(trial, TwinTrial) else ""
        yield f"NOT RUN: {trial.method} on {what}{_of(trial)}: {plain(trial.error)}"
    for reason, kernels in left_out(report).items():
        yield f"Left out ({len(kernels)}): {reason}."


def conclusion(report: PowerReport) -> str:
    """Return the last line: whether everything was found and no twin reported."""
    if report.is_interrupted:
        return f"STOPPED after {len(report.trials)} trials: what ended is told above."
    first = report.totals(report.methods[0])
    alarms = sum(twin.false_alarms for twin in report.twins)
    examples = sum(twin.examples for twin in report.twins)
    word = "FOUND" if report.is_met else "NOT ALL"
    seeds = f"{len(report.seeds)} seed{'s' if len(report.seeds) > 1 else ''}"
    return (
        f"{word}  {report.methods[0]} found {first.found} of {first.trials} within "
        f"{report.examples} examples, {seeds}, on {report.device}; {alarms} false alarms in "
        f"{examples:,} examples of healthy twins; {report.seconds:.0f} s"
    )


def left_out(report: PowerReport) -> dict[str, list[str]]:
    """Return the names of what was not tried, by reason, as they may be printed."""
    found: dict[str, list[str]] = {}
    for note in report.left_out:
        found.setdefault(plain(note.reason), []).append(plain(note.name))
    return found


def uncompared(report: PowerReport) -> Iterator[str]:
    """Yield how many were shrunk where no smallest structure is known, if any were."""
    shrunk = [trial.shrunk for trial in report.trials if trial.shrunk is not None]
    count = sum(item.reach == "unknown" for item in shrunk)
    if count:
        yield (
            f"Shrunk, and compared with none: {count} of {len(shrunk)}, since no smallest one is "
            f"known on {report.device}."
        )


def plain_table(table: Table) -> str:
    """Return a table as lines of text in columns."""
    lines = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "".join(f"{line}\n" for line in (table.title, *text))


def _unshrunk(report: PowerReport) -> Iterator[str]:
    """Yield what did not reach the smallest structure, and by which components of its cost."""
    found = [trial for trial in report.trials if trial.shrunk is not None]
    known = [trial for trial in found if trial.shrunk and trial.shrunk.reach != "unknown"]
    if known:
        reached = sum(1 for trial in known if trial.shrunk and trial.shrunk.reach == "reached")
        yield (
            f"Shrunk to the smallest failing structure: {reached} of {len(known)} "
            f"({_percent(reached / len(known))}) of those where it is known."
        )
    yield from uncompared(report)
    for trial in known:
        shrunk = trial.shrunk
        assert shrunk is not None, "only shrunk trials are known"
        if shrunk.reach == "above":
            parts = "; ".join(
                f"{name} {_cost(shrunk.cost[name])} instead of {_cost(shrunk.least[name])}"
                for name in shrunk.lacking
            )
            yield (
                f"Not shrunk: {_of(trial)} seed {trial.seed}: {parts} ({plain(shrunk.structure)})."
            )
        elif shrunk.reach == "below":
            yield (
                f"Smaller than the known one: {_of(trial)} seed {trial.seed}: "
                f"{plain(shrunk.structure)}; kernels/planted/smallest.json is wrong on "
                f"{report.device}."
            )


def _of(trial: Trial | TwinTrial) -> str:
    return f"{plain(trial.cell.name)} {_SHORT[trial.cell.dtype]}"


def _shrunk(trials: list[Trial]) -> str:
    """Return how many reached the smallest structure, and which components stayed above."""
    found = [trial.shrunk for trial in trials if trial.shrunk is not None]
    known = [item for item in found if item.reach != "unknown"]
    if not known:
        return plain(found[0].structure) if found else _NONE
    reached = sum(item.reach == "reached" for item in known)
    above = list(dict.fromkeys(name for item in known for name in item.lacking))
    if any(item.reach == "below" for item in known):
        above.append("below")
    return f"{reached} of {len(known)}" + (f": {', '.join(above)}" if above else "")


def _cost(parts: tuple[int, ...]) -> str:
    return "x".join(map(str, parts))


def _percent(share: float) -> str:
    # Not all is not 100 %.
    return f"{int(1000 * share) / 10:g} %"


def _number(value: int | None) -> str:
    return _NONE if value is None else f"{value:,}"


def _median(totals: MethodTotals) -> str:
    if not totals.trials:
        return _NONE
    return "not found" if totals.median is None else f"{totals.median:,}"

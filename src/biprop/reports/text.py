"""Reports as plain text for terminals: a finding, a check, a replay, a table of cells.

Strings in, strings out: nothing is printed here. Markdown for issues stands in
`biprop.reports.issue`.
"""

import textwrap
from collections.abc import Sequence

from biprop.case import Against
from biprop.fixtures.records import Fixture
from biprop.fixtures.replay import Replayed
from biprop.generation import CLASSES
from biprop.judgment import BitDifference, Mismatch, Verdict
from biprop.reports.records import CellReport, ClassCount, Finding
from biprop.reports.words import (
    against_in_words,
    case_in_words,
    claims_in_words,
    data_in_words,
    errors_in_words,
    launches_in_words,
    place_in_words,
    plain,
    replay_command,
    sides_in_words,
    transforms_in_words,
    ulps_between,
)
from biprop.signature import parse_signature

__all__ = [
    "NOT_CLAIMED",
    "counted",
    "first_difference_lines",
    "line_of",
    "render_cells",
    "render_check",
    "render_finding",
    "render_fixture",
    "render_replay",
    "table_of",
    "wrapped_lines",
]

_WIDTH = 110
_CHANGES_SHOWN = 4
NOT_CLAIMED = (
    "Not claimed: multi-GPU collectives, equality of one engine with another, fp8, MoE. What holds",
    "here is operator-level, single-device self-consistency.",
)


def render_check(report: CellReport, *, by_path: bool = False) -> str:
    """Return a check for its user: the findings, or what was tested; the verdict comes last.

    Args:
        report: What was found.
        by_path: Whether commands name fixtures by their paths, as no store would find their ids.
    """
    lines: list[str] = []
    for finding in report.findings:
        lines += [*render_finding(finding, by_path=by_path).splitlines(), ""]
    lines += _class_lines(report)
    power = f", {report.power_kind} power {report.power_share:.2f}" if report.power_kind else ""
    rejected = f", {report.rejected} rejected" if report.rejected else ""
    lines.append(
        f"{counted(report.examples, 'example')}{rejected}, {counted(report.launches, 'launch')},"
        f" {report.seconds:.1f} s, seed {report.seed}{power}"
    )
    if report.message:
        lines.append(plain(report.message))
    if report.verdict is Verdict.HOLDS:
        lines += NOT_CLAIMED
    lines.append(f"{report.verdict}  {_cell_in_words(report)}")
    return "\n".join(lines) + "\n"


def render_finding(
    finding: Finding, *, chain_index: int | None = None, by_path: bool = False
) -> str:
    """Return one finding in at most 25 lines; the last one is the command that replays it."""
    found = f"{finding.count} cases of this run showed it" if finding.count > 1 else ""
    source = finding.path if by_path and finding.path else finding.fixture.id[:8]
    return render_fixture(
        finding.fixture, source=source, path=finding.path, note=found, chain_index=chain_index
    )


def render_fixture(
    fixture: Fixture,
    *,
    source: str = "",
    path: str = "",
    note: str = "",
    chain_index: int | None = None,
    options: Sequence[str] = (),
) -> str:
    """Return a fixture in at most 25 lines; the last one is the command that replays it.

    Args:
        fixture: The fixture.
        source: What the command reads: an id, a path or `-`; the id where it is left out.
        path: Of its file, shown where given.
        note: One more line of the caller's.
        chain_index: Of a declared operator.
        options: That the command needs to find it, such as `--store`.
    """
    case, expect, where = fixture.case, fixture.expect, fixture.provenance
    classes = ", ".join(expect.cause.transforms) or "no class"
    lines = [
        _headline(fixture),
        line_of("transform", f"{transforms_in_words(case)}  [{classes}]")
        if case.against is None
        else line_of("against", against_in_words(case.against)),
        line_of("case", case_in_words(case, parse_signature(fixture.signature))),
        line_of("data", data_in_words(case)),
    ]
    if expect.mismatches:
        lines += first_difference_lines(fixture, expect.mismatches[0])
    if expect.message:
        lines += wrapped_lines("message", plain(expect.message), lines_max=3)
    if expect.rate is not None:
        lines.append(line_of("rate", f"{expect.rate:.3g} of {expect.repeats} repeats differ"))
    if fixture.proof.needed:
        lines += wrapped_lines("needed", claims_in_words(case, fixture.proof.needed), lines_max=3)
    if fixture.proof.free:
        places = [place_in_words(case, claim.path) for claim in fixture.proof.free]
        lines.append(line_of("free", ", ".join(places)))
    lines += [line_of("launch", words) for words in launches_in_words(expect.facts)]
    if not fixture.proof.complete and not (case.against is not None and case.against.probe):
        lines.append(line_of("proof", "not complete: the budget was spent before"))
    if chain_index is not None:
        lines.append(line_of("chain", f"index {chain_index}"))
    backend = f", {where.actual_backend}" if where.actual_backend else ""
    lines.append(
        line_of(
            "where",
            plain(
                f"{where.device} {where.arch_key}, torch {where.torch}{backend}, "
                f"threads {where.threads}, biprop {where.biprop or where.source_digest}"
                + (f", {where.environment}" if where.environment else "")
            ),
        )
    )
    lines += [line_of(name, plain(text)) for name, text in (("note", note), ("file", path)) if text]
    # The command is never cut: it is there to be copied.
    lines.append(replay_command(fixture, source or fixture.id[:8], options=options))
    return "\n".join(lines) + "\n"


def first_difference_lines(fixture: Fixture, mismatch: Mismatch) -> list[str]:
    """Return the first difference: where, both bit patterns and values, how far apart, how many.

    Args:
        fixture: Says what its sides are, and how far apart they may lie.
        mismatch: Of this fixture, or of judging its case again.
    """
    first = mismatch.first
    index = ",".join(map(str, first.coordinate))
    place = f"{mismatch.output}[{index}]"
    if first.sequence_id >= 0:
        place += f" of token {first.token} of sequence {first.sequence_id}"
    against, sides = fixture.case.against, sides_in_words(fixture)
    tokens = f", {mismatch.tokens} of {mismatch.tokens_compared} tokens"
    errors = errors_in_words(mismatch)
    return [
        line_of("first", f"{plain(place)}, {_apart(mismatch, against)}"),
        line_of("", _side(sides[0], first, is_other=False)),
        line_of("", _side(sides[1], first, is_other=True)),
        line_of(
            "differ" if against is None else "beyond",
            f"{mismatch.elements} of {mismatch.elements_compared} {plain(mismatch.dtype)} elements"
            + (tokens if mismatch.tokens_compared else "")
            + "".join(f", {error}" for error in errors),
        ),
    ]


def render_replay(replayed: Replayed) -> str:
    """Return what became of a finding; the first word is the status."""
    fixture, outcome = replayed.fixture, replayed.outcome
    cause = fixture.expect.cause
    what = f"{cause.verdict} of {cause.output or 'launch'}, {fixture.dtype} {fixture.direction}"
    lines = [f"{replayed.status}  {fixture.id[:8]}  {plain(fixture.operator)}  {what}"]
    if replayed.refuted:
        lines.append(
            line_of("REFUTED", f"{replayed.refuted} of {counted(len(replayed.verified), 'claim')}")
        )
    if replayed.message:
        lines += wrapped_lines("message", plain(replayed.message), lines_max=6)
    if outcome is not None and outcome.cause is not None:
        if replayed.status == "DIFFERENT":
            lines.append(line_of("now", f"{outcome.cause.key} instead of {cause.key}"))
        if outcome.mismatches:
            lines += first_difference_lines(fixture, outcome.mismatches[0])
        if outcome.message:
            lines.append(line_of("message", plain(outcome.message)))
        if outcome.rate is not None:
            lines.append(line_of("rate", f"{outcome.rate:.3g} of {outcome.repeats} repeats differ"))
    elif outcome is not None and replayed.status != "ERROR":
        lines.append(line_of("now", f"{outcome.verdict}, {outcome.repeats} runs of each side"))
    lines += [line_of("here", plain(text)) for text in replayed.differences]
    lines += [line_of("changed", plain(text)) for text in replayed.changes[:_CHANGES_SHOWN]]
    for claim in replayed.verified:
        place = place_in_words(fixture.case, claim.path)
        value = "taken out" if claim.value is None else f"= {claim.value}"
        state = "confirmed" if claim.confirmed else "REFUTED"
        why = f" ({plain(claim.message)})" if claim.message else ""
        lines.append(line_of("proof", plain(f"{state}: {place} {value} {claim.expected}") + why))
    return "\n".join(lines) + "\n"


def render_cells(reports: Sequence[CellReport]) -> str:
    """Return a table, one row a cell, violations first and then by place in the chain."""
    heads = ("verdict", "operator", "backend", "dtype", "direction", "examples", "power", "causes")
    ordered = sorted(
        reports,
        key=lambda report: (
            not report.verdict.is_violation,
            report.chain_index if report.chain_index is not None else 1 << 30,
            report.reference.target,
        ),
    )
    rows = [
        (
            report.verdict.value,
            plain(report.reference.target),
            plain(report.actual_backend or report.reference.backend),
            report.dtype,
            report.direction,
            str(report.examples),
            f"{report.power_share:.2f} {report.power_kind}".strip(),
            ", ".join(finding.fixture.id[:8] for finding in report.findings) or "-",
        )
        for report in ordered
    ]
    return table_of(heads, rows)


def table_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, its columns as wide as they need be."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join(lines) + "\n"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 launch`, `2 launches`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def _headline(fixture: Fixture) -> str:
    output = fixture.expect.cause.output or "launch"
    return plain(
        f"{fixture.expect.verdict} {fixture.operator} {output} {fixture.dtype} {fixture.direction} "
        f"{fixture.backend}, id {fixture.id[:8]}"
    )


def line_of(name: str, text: str) -> str:
    """Return a line of a report: a name, and a text that is cut where it is too long."""
    shown = text if len(text) <= _WIDTH - 13 else text[: _WIDTH - 16] + "..."
    return f"  {name:<11}{shown}"


def wrapped_lines(name: str, text: str, *, lines_max: int) -> list[str]:
    """Return a line, and more of them where the text is long."""
    parts = textwrap.wrap(text, _WIDTH - 13, max_lines=lines_max, placeholder=" ...")
    return [line_of(name if index == 0 else "", part) for index, part in enumerate(parts)]


def _apart(mismatch: Mismatch, against: Against | None) -> str:
    """Return how far apart the first difference is, in what decides."""
    first = mismatch.first
    if against is not None:
        try:
            own, other = float(first.canonical_value), float(first.transformed_value)
        except ValueError:
            return "not comparable"
        allowed = against.atol + against.rtol * abs(other)
        return f"{abs(own - other):.3g} apart, {allowed:.3g} allowed"
    ulps = ulps_between(first, mismatch.dtype)
    if ulps is None:
        return "not comparable"
    return f"{ulps} ULP apart" if ulps else "zeros of different sign"


def _side(name: str, first: BitDifference, *, is_other: bool) -> str:
    bits = first.transformed_bits if is_other else first.canonical_bits
    value = first.transformed_value if is_other else first.canonical_value
    row = first.transformed_row if is_other else first.canonical_row
    where = "" if row < 0 else f"row {row}"
    if is_other and first.transformed_launch > 0:
        where += f" of launch {first.transformed_launch}"
    return f"{name:<12}{plain(bits)}  {plain(value):<24}{where}".rstrip()


def _class_lines(report: CellReport) -> list[str]:
    lines = []
    for name, count in report.classes.items():
        # Names of relations are no classes of transforms.
        word = "applicable" if name in CLASSES else "judged"
        text = (
            f"not {word}: {plain(count.reason)}"
            if count.reason
            else f"{count.powered} of {count.examples} examples with power"
            + (f", {count.vacuous} vacuous" if count.vacuous else "")
            + (f", {count.unpowered} without power" if count.unpowered else "")
            + _margin(count)
        )
        # Wider than other names, as T4.nonfinite is.
        lines.append(line_of(f"{name:<13}", text))
    return lines + _fixed_lines(report)


def _fixed_lines(report: CellReport) -> list[str]:
    """Return how the fixed configurations went, and why some of them do not apply."""
    fixed = report.fixed
    if fixed is None:
        return []
    shared = ", several in one case" if fixed.is_composed else ""
    lines = [
        line_of(
            f"{'fixed':<13}",
            f"{fixed.judged} of {fixed.configurations} configurations, {fixed.powered} with power"
            + shared,
        )
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in fixed.not_applicable.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(line_of("", plain(f"not applicable: {names[0]}{more}: {reason}")))
    return lines


def _margin(count: ClassCount) -> str:
    share = count.tolerance_share
    return "" if share is None else f", largest error {share:.2g} of what is allowed"


def _cell_in_words(report: CellReport) -> str:
    backend = report.actual_backend or report.reference.backend
    operator = report.reference.operator
    return plain(f"{operator} {backend} {report.dtype} {report.direction} on {report.device}")

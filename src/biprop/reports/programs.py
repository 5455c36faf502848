"""Reports about programs for a KV cache: a finding, a search, a replay, a table, an issue.

As `biprop.reports.text` and `biprop.reports.issue` for cases: strings in, strings out. The
stand-alone script is `biprop.reports.program_script`.
"""

import html
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from biprop.fixtures.program_replay import ProgramReplayed
from biprop.fixtures.programs import ProgramFixture, text_of
from biprop.judgment import Verdict
from biprop.kvcache.records import (
    Allocate,
    Append,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Poison,
    Program,
    ProgramDifference,
    Read,
    Rescore,
)
from biprop.reports.issue import code_span, fenced
from biprop.reports.program_records import CacheReport, ProgramFinding
from biprop.reports.text import NOT_CLAIMED, counted, line_of, table_of, wrapped_lines
from biprop.reports.words import (
    launch_in_words,
    launches_in_words,
    plain,
    recipes_in_words,
    replay_command,
    ulps_of_bits,
)

__all__ = [
    "CHECKS_IN_WORDS",
    "data_of_program_in_words",
    "op_in_words",
    "program_in_words",
    "render_cache_check",
    "render_cache_table",
    "render_program_finding",
    "render_program_fixture",
    "render_program_issue",
    "render_program_replay",
]

CHECKS_IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "stored": "what is read back has the bits that were written, in the storage dtype",
        "input": "a call leaves the tensors that it is given as they are",
        "length": "as many tokens are stored as were written",
        "untouched": "an operation changes nothing of other sequences",
        "fork": "a fork holds the bits of its parent's first tokens",
        "prefix": "a chunk after a shared prefix equals the same positions of a full prefill",
        "chunk": "a chunk equals the same positions of a full prefill",
        "decode": "a decode step equals the same position of a full prefill",
        "reuse": "on pages that held something else, results equal those of a full prefill",
        "rescore": "results of the rollout equal those of one full prefill of the sequence",
        "repeat": "the same program gives the same bits every time",
        "accuracy": "results lie within the contract's tolerance of the float32 reference",
    }
)
_PROMISE = (
    "The same tokens must give the same bits through the cache as by one full prefill, whatever "
    "happened to its pages before."
)
_REPLAY = "Replay it from the text of this issue, saved as `issue.md`:"
# Beyond it exp(d) is no float.
_RATIO_EXPONENT_MAX = 700.0
_PROGRAM_LINES_MAX = 7


def _power_in_words(report: CacheReport) -> str:
    if not report.measured:
        return "power not measured"
    return f"{report.powered} programs with power, order power {report.power_share:.2f}"


def render_cache_check(report: CacheReport, *, by_path: bool = False) -> str:
    """Return a search for its user: the findings, what was tested, and the verdict at the end.

    Args:
        report: What was found.
        by_path: Whether commands name fixtures by their paths, as no store would find their ids.
    """
    lines: list[str] = []
    for finding in report.findings:
        lines += [*render_program_finding(finding, by_path=by_path).splitlines(), ""]
    lines += [
        line_of(
            f"{word:<24}",
            f"{report.coverage.get(word, 0)} of {report.programs} programs, share {share:.2f}",
        )
        for word, share in report.shares.items()
    ]
    if report.smoke:
        found = ", ".join(f"{name} {verdict}" for name, verdict in report.smoke.items())
        lines.append(line_of(f"{'smoke':<24}", found))
    lines.append(
        f"{counted(report.programs, 'program')}, {counted(report.ops, 'operation')}, "
        f"{counted(report.comparisons, 'comparison')}, {report.seconds:.1f} s, seed {report.seed}, "
        f"{_power_in_words(report)}"
    )
    if report.message:
        lines.append(plain(report.message))
    if report.verdict is Verdict.HOLDS:
        lines += NOT_CLAIMED
    lines.append(f"{report.verdict}  {_cell_in_words(report)}")
    return "\n".join(lines) + "\n"


def render_program_finding(finding: ProgramFinding, *, by_path: bool = False) -> str:
    """Return one finding in at most 25 lines; the last one is the command that replays it."""
    found = f"first seen in program {finding.found_after}"
    if not finding.found_after:
        found = "first seen in a fixed program"
    if finding.count > 1:
        found += f", {finding.count} programs of this run showed it"
    source = finding.path if by_path and finding.path else finding.fixture.id[:8]
    return render_program_fixture(finding.fixture, source=source, path=finding.path, note=found)


def render_program_fixture(
    fixture: ProgramFixture,
    *,
    source: str = "",
    path: str = "",
    note: str = "",
    options: Sequence[str] = (),
) -> str:
    """Return a fixture in at most 25 lines; the last one is the command that replays it.

    Args:
        fixture: The fixture.
        source: What the command reads: an id, a path or `-`; the id where it is left out.
        path: Of its file, shown where given.
        note: One more line of the caller's.
        options: That the command needs to find it, such as `--store`.
    """
    expect, where = fixture.expect, fixture.provenance
    lines = [_headline(fixture), *_program_lines(fixture)]
    lines += [line_of("launch", words) for words in launches_in_words(expect.facts)]
    if not fixture.proof.complete:
        lines.append(line_of("proof", "not complete: the budget was spent before"))
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
    command = replay_command(fixture, source or fixture.id[:8], options=options)
    return "\n".join([*lines, command]) + "\n"


def render_program_replay(replayed: ProgramReplayed) -> str:
    """Return what became of a finding; the first word is the status."""
    fixture, outcome = replayed.fixture, replayed.outcome
    cause = fixture.expect.cause
    what = f"{cause.verdict} of {cause.check or 'launch'} {cause.output}".rstrip()
    lines = [
        (
            f"{replayed.status}  {fixture.id[:8]}  {plain(fixture.cache)}  {what}, "
            f"{fixture.program.shape.dtype} {fixture.program.shape.layout} {plain(fixture.backend)}"
        )
    ]
    if replayed.refuted:
        of = counted(len(replayed.verified), "claim")
        lines.append(line_of("REFUTED", f"{replayed.refuted} of {of}"))
    if replayed.message:
        lines += wrapped_lines("message", plain(replayed.message), lines_max=6)
    if outcome is not None and outcome.cause is not None:
        if replayed.status == "DIFFERENT":
            lines.append(line_of("now", f"{outcome.cause.key} instead of {cause.key}"))
        if outcome.difference is not None:
            lines += _difference_lines(outcome.difference, outcome.cause.output)
        if outcome.message and not replayed.message:
            lines.append(line_of("message", plain(outcome.message)))
        if outcome.rate is not None:
            lines.append(line_of("rate", f"{outcome.rate:.3g} of {outcome.repeats} repeats differ"))
    elif outcome is not None and replayed.status != "ERROR":
        lines.append(line_of("now", f"{outcome.verdict}, {counted(outcome.ops_run, 'operation')}"))
    lines += [line_of("here", plain(text)) for text in replayed.differences]
    lines += [line_of("changed", plain(text)) for text in replayed.changes[:4]]
    for claim in replayed.verified:
        place = claim.path[-1]
        op = op_in_words(fixture.program.ops[int(place)])
        state = "confirmed" if claim.confirmed else "REFUTED"
        why = f" ({plain(claim.message)})" if claim.message else ""
        lines.append(line_of("proof", plain(f"{state}: without {place} ({op}) it passes") + why))
    return "\n".join(lines) + "\n"


def render_cache_table(reports: Sequence[CacheReport]) -> str:
    """Return a table, one row a cache in a layout and dtype, violations first."""
    heads = (
        *("verdict", "cache", "layout", "backend", "dtype", "programs", "ops"),
        *("partial fork", "shared evict", "dirty reuse", "moved decode", "power", "causes"),
    )
    ordered = sorted(reports, key=lambda report: not report.verdict.is_violation)
    rows = [
        (
            report.verdict.value,
            plain(report.reference.cache),
            report.layout,
            plain(report.actual_backend or report.reference.backend),
            report.dtype,
            str(report.programs),
            str(report.ops),
            *(f"{share:.2f}" for share in report.shares.values()),
            f"{report.power_share:.2f}",
            ", ".join(finding.fixture.id[:8] for finding in report.findings) or "-",
        )
        for report in ordered
    ]
    return table_of(heads, rows)


def render_program_issue(fixture: ProgramFixture) -> str:
    """Return the Markdown to paste into an issue; `biprop replay -` reads it back."""
    expect, where, cause = fixture.expect, fixture.provenance, fixture.expect.cause
    shape = fixture.program.shape
    lines = _program_lines(fixture)
    lines += [
        f"  launch     {plain(fact.role)}: {launch_in_words(fact)}"
        for fact in dict.fromkeys(expect.facts)
    ]
    lines.append(f"  repeats    {counted(expect.repeats, 'run')}")
    versions = (
        f"python {where.python}, torch {where.torch}"
        + (f", triton {where.triton}" if where.triton else "")
        + f", biprop {where.biprop or where.source_digest}"
        + (f", commit {where.commit}" if where.commit else "")
        + (f", {where.environment}" if where.environment else "")
    )
    lines += [
        f"  device     {plain(f'{where.device}, {where.device_name}, {where.arch_key}')}",
        f"  where      {plain(f'{where.platform}, {versions}, threads {where.threads}')}",
    ]
    if where.actual_backend:
        lines.append(f"  ran        {plain(where.actual_backend)} for {plain(fixture.backend)}")
    blocks = [
        (
            f"**{cause.verdict}**: {code_span(fixture.cache)}, check "
            f"{code_span(cause.check or 'launch')}, output {code_span(cause.output or 'launch')}, "
            f"{shape.dtype}, layout {shape.layout}"
        ),
        fenced("text", "\n".join(line.rstrip() for line in lines)),
        "\n".join(f"- {html.escape(line)}" for line in _figures(fixture)),
        f"{_PROMISE} {_REPLAY}",
        fenced("sh", f"{replay_command(fixture, '-')} < issue.md"),
        f"<details><summary>Fixture {fixture.id}</summary>",
        fenced("json", text_of(fixture).rstrip("\n")),
        "</details>",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def op_in_words(op: Op) -> str:
    """Return an operation: `append s0 +5, s1 +1`, `fork s2 = s0[:4]`."""
    match op:
        case Allocate():
            return f"allocate {op.sequence}"
        case Append():
            return "append " + ", ".join(f"{part.sequence} +{part.count}" for part in op.parts)
        case Decode():
            return "decode " + ", ".join(op.sequences)
        case Fork():
            return f"fork {op.sequence} = {op.parent}[:{op.at}]"
        case Read():
            return f"read {op.sequence}"
        case Evict():
            return f"evict {op.sequence}[{op.keep}:]"
        case Free():
            return f"free {op.sequence}"
        case Defragment():
            return "defragment"
        case Poison():
            return f"poison {op.fill}"
        case Rescore():
            return f"rescore {op.sequence}"
        case Generate():
            return f"generate {op.sequence} +{op.count}"


def program_in_words(program: Program) -> str:
    """Return the operations in their order."""
    return plain("; ".join(map(op_in_words, program.ops))) or "no operation"


def data_of_program_in_words(program: Program) -> str:
    """Return what tokens bring, or what makes them."""
    if program.vocabulary is None:
        return recipes_in_words(program.data, seed=program.seed)
    words = recipes_in_words(program.data, seed=program.seed) if program.data else ""
    made = f"tokens of a small model with normal weights; seed {program.seed}"
    return f"{made}; {words}" if words else made


def _cache_in_words(program: Program) -> str:
    """Return the sizes of a cache, and the switches of the process."""
    shape = program.shape
    words = [
        f"{counted(shape.block_count, 'page')} of {counted(shape.block_size, 'token')}",
        shape.layout,
        f"heads {shape.query_heads}/{shape.heads}",
        f"width {shape.width}",
        shape.dtype + (f" stored as {shape.storage}" if shape.storage != shape.dtype else ""),
    ]
    if program.vocabulary is not None:
        words.append(f"vocabulary {program.vocabulary}")
    if program.execution.threads != 1:
        words.append(f"{program.execution.threads} threads")
    return plain(", ".join([*words, *program.execution.words]))


def _headline(fixture: ProgramFixture) -> str:
    cause, shape = fixture.expect.cause, fixture.program.shape
    what = " ".join(filter(None, (cause.check or "launch", cause.output)))
    return plain(
        f"{fixture.expect.verdict} {fixture.cache} {what} {shape.dtype} {shape.layout} "
        f"{fixture.backend}, id {fixture.id[:8]}"
    )


def _program_lines(fixture: ProgramFixture) -> list[str]:
    """Return what was promised, what ran and what differs."""
    program, expect = fixture.program, fixture.expect
    lines = []
    if expect.cause.check:
        lines.append(line_of("promise", CHECKS_IN_WORDS[expect.cause.check]))
    lines += wrapped_lines("program", program_in_words(program), lines_max=_PROGRAM_LINES_MAX)
    if expect.step is not None:
        op = op_in_words(program.ops[expect.step])
        ordinal = f"{expect.step + 1} of {len(program.ops)}"
        lines.append(line_of("shown by", plain(f"operation {ordinal}, {op}")))
    lines.append(line_of("cache", _cache_in_words(program)))
    lines.append(line_of("data", data_of_program_in_words(program)))
    if expect.difference is not None:
        lines += _difference_lines(expect.difference, expect.cause.output)
    if expect.message:
        lines += wrapped_lines("message", plain(expect.message), lines_max=3)
    if expect.rate is not None:
        lines.append(line_of("rate", f"{expect.rate:.3g} of {expect.repeats} repeats differ"))
    return lines


def _difference_lines(difference: ProgramDifference, output: str) -> list[str]:
    """Return the first difference: where, both bit patterns and values, how far apart, how many."""
    index = ",".join(map(str, difference.coordinate))
    place = f"{output or 'value'}[{index}]" if index else output or "value"
    if difference.sequence:
        place += f" of token {difference.token} of {difference.sequence}"
    sides = (
        ("expected", difference.expected_bits, difference.expected_value),
        ("got", difference.got_bits, difference.got_value),
    )
    ulps = ulps_of_bits((difference.expected_bits, difference.got_bits), difference.dtype)
    apart = "not comparable"
    if ulps is not None:
        apart = f"{ulps} ULP apart" if ulps else "zeros of different sign"
    error = difference.max_abs_error
    return [
        line_of("first", f"{plain(place)}, {apart}"),
        *(line_of("", f"{name:<10}{plain(bits)}  {plain(value)}") for name, bits, value in sides),
        line_of(
            "differ",
            f"{difference.elements} of {difference.elements_compared} {plain(difference.dtype)} "
            "elements" + ("" if error is None else f", max abs {error:.3g}"),
        ),
    ]


def _figures(fixture: ProgramFixture) -> list[str]:
    """Return what the difference would mean to reinforcement learning."""
    difference, output = fixture.expect.difference, fixture.expect.cause.output
    if difference is None:
        return []
    share = difference.elements / max(1, difference.elements_compared)
    lines = [
        (
            f"{output or 'value'}: {difference.elements} of {difference.elements_compared} "
            f"elements differ ({share:.1%})"
        )
    ]
    largest = difference.max_abs_error
    if largest is not None and largest < _RATIO_EXPONENT_MAX:
        lines.append(
            f"{output or 'value'}: largest |d| {largest:.6g}; read as a log-probability, the "
            f"largest importance ratio is {math.exp(largest):.6g}"
        )
    lines.append(
        "The rollout scores a token by what its cache gives, training by a full prefill: where "
        "both differ, the importance ratio of an unchanged policy is not 1."
    )
    return lines


def _cell_in_words(report: CacheReport) -> str:
    backend = report.actual_backend or report.reference.backend
    return plain(
        f"{report.reference.cache} {report.layout} {backend} {report.dtype} on {report.device}"
    )

"""The Markdown of a finding to paste into an issue; `biprop replay -` reads it back.

What a fixture holds is enough for it: nothing is run and nothing is asked of this machine.
"""

import html
import math
import re

from biprop.fixtures.records import Fixture, fixture_text
from biprop.reports.text import first_difference_lines
from biprop.reports.words import (
    against_in_words,
    case_in_words,
    claims_in_words,
    data_in_words,
    launch_in_words,
    place_in_words,
    plain,
    replay_command,
    transforms_in_words,
)
from biprop.signature import parse_signature

__all__ = ["code_span", "fenced", "render_issue"]

_PROMISES = {
    "I": "The same call on the same tokens must give the same bits, whatever else is in the batch.",
    "A": "The result must lie within the contract's tolerance of the float32 reference.",
    "P": "Two backends that each keep their bits must lie within the contract's tolerance.",
}
_REPLAY = "Replay it from the text of this issue, saved as `issue.md`:"
# Beyond it exp(d) is no float.
_RATIO_EXPONENT_MAX = 700.0


def render_issue(fixture: Fixture) -> str:
    """Return the Markdown, from the verdict to the fixture in a fenced block.

    Case in words, first difference, launch facts, environment and RL figures lie between, and one
    command that replays the fixture from the pasted text.
    """
    text = fixture_text(fixture)
    blocks = [
        _headline(fixture),
        fenced("text", _summary(fixture)),
        "\n".join(f"- {html.escape(line)}" for line in _figures(fixture)),
        f"{_PROMISES[fixture.case.relation]} {_REPLAY}",
        fenced("sh", f"{replay_command(fixture, '-')} < issue.md"),
        f"<details><summary>Fixture {fixture.id}</summary>",
        fenced("json", text.rstrip("\n")),
        "</details>",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _headline(fixture: Fixture) -> str:
    cause = fixture.expect.cause
    classes = ", ".join(cause.transforms) or "no transform"
    where = f"under {code_span(classes)}"
    if fixture.case.against is not None:
        where = f"against {code_span(fixture.case.against.backend or 'float32 reference')}"
    return (
        f"**{cause.verdict}**: {code_span(fixture.operator)}, "
        f"output {code_span(cause.output or 'launch')}, "
        f"{fixture.dtype} {fixture.direction}, {where}"
    )


def _summary(fixture: Fixture) -> str:
    case, expect, where = fixture.case, fixture.expect, fixture.provenance
    signature = parse_signature(fixture.signature)
    lines = [
        f"  signature  {plain(fixture.signature)}",
        f"  transform  {transforms_in_words(case)}"
        if case.against is None
        else f"  against    {against_in_words(case.against)}",
        f"  case       {case_in_words(case, signature)}",
        f"  data       {data_in_words(case)}",
    ]
    if expect.mismatches:
        lines += first_difference_lines(fixture, expect.mismatches[0])
    if expect.message:
        lines.append(f"  message    {plain(expect.message)}")
    if expect.rate is not None:
        lines.append(f"  rate       {expect.rate:.3g} of {expect.repeats} repeats differ")
    if fixture.proof.needed:
        lines.append(f"  needed     {claims_in_words(case, fixture.proof.needed)}")
    if fixture.proof.free:
        places = ", ".join(place_in_words(case, claim.path) for claim in fixture.proof.free)
        lines.append(f"  free       {places}")
    lines += [
        f"  launch     {plain(fact.role)}: {launch_in_words(fact)}"
        for fact in dict.fromkeys(expect.facts)
    ]
    lines.append(f"  repeats    {expect.repeats} runs of each side")
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
    return "\n".join(line.rstrip() for line in lines)


def _figures(fixture: Fixture) -> list[str]:
    """Return what the difference would mean to reinforcement learning."""
    beyond = "d != 0" if fixture.case.against is None else "d beyond what is allowed"
    lines = []
    for mismatch in fixture.expect.mismatches:
        if mismatch.tokens_compared:
            share = mismatch.tokens / mismatch.tokens_compared
            lines.append(
                f"{mismatch.output}: {beyond} on {mismatch.tokens} of {mismatch.tokens_compared} "
                f"tokens ({share:.1%})"
            )
        largest = mismatch.max_abs_error
        if largest is not None and largest < _RATIO_EXPONENT_MAX:
            lines.append(
                f"{mismatch.output}: largest |d| {largest:.6g}; read as a log-probability, the "
                f"largest importance ratio is {math.exp(largest):.6g}"
            )
    return lines


def code_span(text: str) -> str:
    """Return a text as a code span of Markdown."""
    # A code span shows a stranger's text as it is, and a backtick would end it.
    return f"`{plain(text).replace('`', chr(39))}`"


def fenced(language: str, text: str) -> str:
    """Return a text as a fenced block of Markdown, whatever it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

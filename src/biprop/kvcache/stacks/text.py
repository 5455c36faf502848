"""Reports of stacks as people read them: a table in text, and the block of an issue."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from biprop.judgment import Verdict
from biprop.kvcache.stacks.records import (
    SCENARIOS,
    Finding,
    StackReport,
    report_to_data,
)

__all__ = ["issue_of", "issues_of", "meaning_of", "text_of"]

_WIDTH = max(map(len, SCENARIOS))
_MEANINGS = {
    "generate": (
        "A rollout that decodes with this cache and a trainer that runs the sequence at once read "
        "other log probabilities of the very same tokens under the very same weights, so that the "
        "policy ratio is not 1 before the first update."
    ),
    "chunks": (
        "Where a scheduler cuts a prompt, which follows from who else is in the queue, decides the "
        "log probabilities that the rollout keeps."
    ),
    "prefix": (
        "Whether a prompt hits the prefix cache, which follows from what was asked before, decides "
        "the log probabilities that the rollout keeps."
    ),
    "left padding": (
        "The longest neighbour of a batch decides how much a prompt is padded, and thereby its log "
        "probabilities."
    ),
    "right padding": (
        "The longest neighbour of a batch decides how much a prompt is padded, and thereby its log "
        "probabilities."
    ),
    "batch": (
        "How many sequences share a step decides the log probabilities of each of them: rollout "
        "and trainer never batch alike."
    ),
    "padded batch": (
        "Who shares a batch decides the log probabilities of each sequence: rollout and trainer "
        "never batch alike."
    ),
    "fork": "A sequence depends on what its fork does: samples of one prompt are not independent.",
    "reset": "A sequence depends on who used the cache before it.",
    "crop": "Tokens that were taken back still count, as after a draft that was refused.",
    "room": "The size of the buffer, which no sequence needs, decides its log probabilities.",
    "repeat": "The stack differs from itself, so that no other scenario tells anything.",
}


def text_of(reports: Sequence[StackReport]) -> str:
    """Return all reports as text, a line a scenario."""
    return "\n".join(line for report in reports for line in _lines(report)) + "\n"


def issues_of(reports: Sequence[StackReport]) -> str:
    """Return the Markdown block of each drift, and a sentence where there is none."""
    blocks = [
        issue_of(report, finding)
        for report in reports
        for finding in report.findings
        if finding.verdict is Verdict.DRIFTS
    ]
    return "\n".join(blocks) or "Nothing drifts.\n"


def meaning_of(finding: Finding) -> str:
    """Return what a drift means for the consistency of training and inference."""
    return _MEANINGS[finding.scenario]


def issue_of(report: StackReport, finding: Finding) -> str:
    """Return the Markdown block of one finding: what differs, where, what it means, how to see it.

    Args:
        report: Of a stack that is bound.
        finding: One of its findings.
    """
    expected, got = SCENARIOS[finding.scenario]
    record = json.dumps(report_to_data(_only(report, finding)), indent=2)
    meaning = (
        f"What it means: {meaning_of(finding)} The stack promises none of this, and its kernels "
        "are not biprop's: it is a drift of the stack, and no failure of a test."
    )
    command = shlex.join(
        [
            *("biprop", "stacks", report.stack, "--model", finding.model),
            *("--dtype", finding.dtype, "--attention", finding.attention),
            *("--cache", finding.cache, "--scenario", finding.scenario),
            *("--seed", str(report.seed), "--device", report.device),
        ]
    )
    lines = [
        f"### {report.stack} {report.version}: {finding.verdict.value}, {finding.scenario}",
        "",
        f"{expected[0].upper()}{expected[1:]}, against {got}: {_numbers(finding)}.",
        "",
        f"- model: {finding.model}, 2 layers, weights from seed {report.seed}, {finding.dtype}",
        f"- attention: {finding.attention}; cache: {finding.cache}",
        f"- {_first(finding)}" if finding.difference else "- no difference",
        f"- {_policy(finding)}",
        f"- torch {report.torch}, {report.device} ({report.device_name}, {report.arch_key})",
        "",
        meaning,
        "",
        "```sh",
        command,
        "```",
        "",
        "```json",
        record,
        "```",
    ]
    return "\n".join(lines) + "\n"


def _only(report: StackReport, finding: Finding) -> StackReport:
    return StackReport(
        stack=report.stack,
        binding=report.binding,
        version=report.version,
        torch=report.torch,
        device=report.device,
        device_name=report.device_name,
        arch_key=report.arch_key,
        seed=report.seed,
        findings=(finding,),
    )


def _lines(report: StackReport) -> Iterator[str]:
    if report.binding != "bound":
        yield f"{report.stack}: {report.binding}. {report.reason}"
        return
    counts = ", ".join(
        f"{report.count(verdict)} {verdict.value}" for verdict in Verdict if report.count(verdict)
    )
    yield (
        f"{report.stack} {report.version}: bound, torch {report.torch}, {report.device} "
        f"({report.arch_key}), seed {report.seed}: {counts}"
    )
    for subject, findings in groupby(report.findings, _subject):
        yield f"  {subject}"
        for finding in findings:
            yield f"    {finding.scenario:{_WIDTH}}  {_verdict(finding)}"
    drifting = {f.scenario: f for f in report.findings if f.verdict == Verdict.DRIFTS}
    if drifting:
        yield "  What the drifts mean; the stack promises nothing, so none of them is a failure:"
    for scenario, finding in drifting.items():
        yield f"    {scenario}: {meaning_of(finding)}"


def _subject(finding: Finding) -> str:
    return f"{finding.model}, {finding.dtype}, {finding.attention}, {finding.cache} cache"


def _verdict(finding: Finding) -> str:
    words = [finding.verdict.value]
    if finding.message:
        words.append(finding.message)
    if finding.verdict == Verdict.HOLDS:
        words.append(f"{finding.tokens_compared} tokens")
    if finding.difference is not None:
        words += [_numbers(finding), _first(finding), _policy(finding)]
    return f"{words[0]:7} {'; '.join(words[1:])}".rstrip()


def _numbers(finding: Finding) -> str:
    return (
        f"{finding.tokens} of {finding.tokens_compared} tokens, {finding.logits} of "
        f"{finding.logits_compared} logits"
    )


def _first(finding: Finding) -> str:
    told = finding.difference
    assert told is not None, "asked only of what differs"
    apart = "not finite" if told.ulps is None else f"{told.ulps} ULP"
    # The largest distance in ULP is that of a logit near 0, and tells little beside this one.
    most = "" if told.max_abs_error is None else f", max abs {told.max_abs_error:.3g}"
    return (
        f"first at token {told.token} of sequence {told.sequence}, logit {told.logit}: "
        f"{told.expected_value} ({told.expected_bits}) against {told.got_value} "
        f"({told.got_bits}), {apart}{most}"
    )


def _policy(finding: Finding) -> str:
    if not finding.logp_tokens:
        return "no log probability of a next token differs"
    return (
        f"{finding.logp_tokens} log probabilities of next tokens differ, by at most "
        f"{finding.logp_max:.3g} (a ratio of {math.exp(finding.logp_max):.9g})"
    )

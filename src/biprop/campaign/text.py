"""A campaign told to people when it ends: what its store holds, in a few lines.

The page with everything is made by `biprop report`; one finding is told by `biprop show`.
"""

import shlex
from collections import Counter

from biprop.campaign.records import CampaignRecord
from biprop.campaign.snapshot import CampaignSum, CauseState, Snapshot
from biprop.fixtures.programs import ProgramFixture
from biprop.judgment import Verdict
from biprop.reports.records import CauseKind
from biprop.reports.words import transforms_in_words

__all__ = ["counted", "duration", "kinds_in_words", "render_summary"]

_FINDINGS_MAX, _IDS_MAX = 40, 8
_KINDS: dict[CauseKind, str] = {
    "known": "known",
    "fixed": "fixed",
    "held": "not reproduced",
}
_REASONS = {
    "budget": "its time is over",
    "interrupted": "stopped by Ctrl-C or SIGTERM",
    "nothing left": "no cell is left to search",
    "failed": "it could not go on",
}


def render_summary(snapshot: Snapshot, record: CampaignRecord) -> str:
    """Return what a store holds after a campaign, its findings first."""
    until = snapshot.at if record.ended is None else record.ended
    reason = _REASONS.get(record.reason, "it runs")
    lines = [f"Campaign {record.id}: {reason}, after {duration(until - record.began)}.", ""]
    lines += _findings(snapshot)
    lines += _cells(snapshot, record)
    lines += _rest(snapshot)
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    """Return a time as people say it: `8 h 05 min`, `3 min 20 s`, `4.2 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def counted(count: int, word: str) -> str:
    """Return a number of things: `1 cell`, `2 cells`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def kinds_in_words(snapshot: Snapshot) -> str:
    """Return what the causes of a store count as; each is counted once: `2 findings, 1 known`."""
    counts = Counter(cause.kind for cause in snapshot.causes)
    words = [counted(counts["finding"], "finding")]
    words += [f"{counts[kind]} {word}" for kind, word in _KINDS.items() if counts[kind]]
    return ", ".join(words)


def _findings(snapshot: Snapshot) -> list[str]:
    found = snapshot.findings
    if not found:
        return ["No findings in what can be read." if snapshot.problems else "No findings.", ""]
    names = Counter(cause.record.name for cause in found)
    lines = [f"{counted(len(found), 'finding')} in the store:"]
    lines += [
        f"  {_finding(cause, is_told_apart=names[cause.record.name] > 1)}"
        for cause in found[:_FINDINGS_MAX]
    ]
    if len(found) > _FINDINGS_MAX:
        lines.append(f"  and {len(found) - _FINDINGS_MAX} more")
    # A small one says more.
    readable = [cause for cause in found if cause.fixture is not None]
    ranked = sorted(readable, key=lambda cause: cause.record.status != "minimal")
    if ranked:
        which = "Look at it" if len(found) == 1 else "Look at one by its id"
        store = shlex.quote(snapshot.path)
        lines.append(f"{which}: biprop show {ranked[0].record.fixture[:8]} --store {store}")
    return [*lines, ""]


def _finding(cause: CauseState, *, is_told_apart: bool) -> str:
    record = cause.record
    words = [counted(cause.count, "case")]
    if is_told_apart:
        words += _apart(cause)
    if record.is_lost and record.verdict == Verdict.CRASHES.value:
        words.append("its process was lost")
    if record.status != "minimal":
        words.append(record.standing)
    if cause.fixture is None:
        words.append("its fixture cannot be read")
    return f"{record.fixture[:8]}  {record.name}  ({', '.join(words)})"


def _apart(cause: CauseState) -> list[str]:
    """Return what tells a cause from another one of its name."""
    fixture = cause.fixture
    if fixture is None:
        return []
    if isinstance(fixture, ProgramFixture):
        return [counted(len(fixture.program.ops), "operation")]
    judged = cause.record.judged.replace("_", " ")
    transforms = transforms_in_words(fixture.case)
    return [*([judged] if judged not in {"", "outputs"} else []), transforms]


def _cells(snapshot: Snapshot, record: CampaignRecord) -> list[str]:
    verdicts = Counter(cell.verdict or "no turn yet" for cell in snapshot.cells)
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    sums = {state.record.id: state.sum for state in snapshot.campaigns}
    own, total = sums.get(record.id, CampaignSum()), CampaignSum()
    for item in sums.values():
        total.epochs += item.epochs
        total.lost += item.lost
        total.examples += item.examples
        total.seconds += item.seconds
    lines = [f"{counted(len(snapshot.cells), 'cell')}: {words}."]
    lacking = verdicts[Verdict.VACUOUS.value] + verdicts["no turn yet"]
    if lacking:
        lines.append(
            f"Too little evidence so far for {counted(lacking, 'cell')}: the next start goes on, "
            "and `biprop report` says what is missing."
        )
    lines.append(f"This campaign: {_worked(own)}.")
    if len(sums) > 1:
        lines.append(f"All {len(sums)} campaigns of the store: {_worked(total)}.")
    return lines


def _unreproduced(snapshot: Snapshot) -> list[str]:
    held = [cause.record for cause in snapshot.causes if cause.kind == "held"]
    crashed = [record for record in held if not record.is_lost]
    lines = [
        f"Not reproduced: {record.fixture[:8]}  {record.name}, which crashed once."
        for record in crashed[:_FINDINGS_MAX]
    ]
    if len(crashed) > _FINDINGS_MAX:
        lines.append(f"Not reproduced: {len(crashed) - _FINDINGS_MAX} more, which crashed once.")
    # Most processes are lost by what has nothing to do with their cases, each with several of them.
    lost = [record.fixture[:8] for record in held if record.is_lost]
    if lost:
        more = f", and {len(lost) - _IDS_MAX} more" if len(lost) > _IDS_MAX else ""
        was = (
            "was lost with its process, and holds"
            if len(lost) == 1
            else "were lost with their processes, and hold"
        )
        lines.append(
            f"Not reproduced: {counted(len(lost), 'case')} that {was}: "
            f"{', '.join(lost[:_IDS_MAX])}{more}."
        )
    return lines


def _worked(total: CampaignSum) -> str:
    lost = f", {total.lost} of them lost with their processes" if total.lost else ""
    return (
        f"{counted(total.examples, 'example')} in {counted(total.epochs, 'epoch')}{lost}, "
        f"searched for {duration(total.seconds)} of all processes"
    )


def _rest(snapshot: Snapshot) -> list[str]:
    lines: list[str] = []
    counts = Counter(cause.kind for cause in snapshot.causes)
    known = counts["known"]
    if known:
        verb = "is" if known == 1 else "are"
        lines.append(f"{counted(known, 'cause')} {verb} known (ledger.json).")
    lines += [
        f"Fixed: {cause.record.fixture[:8]}  {cause.record.name}, which fails no more."
        for cause in snapshot.causes
        if cause.kind == "fixed"
    ]
    lines += _unreproduced(snapshot)
    lines += [
        f"Stale: the ledger names {state.known.cause!r}, which fails no more; take the entry out."
        for state in snapshot.ledger
        if state.is_stale
    ]
    lines += [
        f"Unknown: the ledger names {state.known.cause!r}, which no cause of the store is; correct "
        "the entry, or take it out."
        for state in snapshot.ledger
        if not state.cause
    ]
    lines += [f"Not searched: {words}" for words in snapshot.not_searched]
    lines += [f"Broken off: {words}" for words in snapshot.broken]
    lines += [f"Not read: {problem}" for problem in snapshot.problems]
    return lines

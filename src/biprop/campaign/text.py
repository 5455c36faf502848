"""A campaign told to people when it ends: what its store holds, in a few lines.

The page with everything is made by `biprop report`; one finding is told by `biprop show`.
"""

from collections import Counter
from pathlib import Path

from biprop.campaign.records import CampaignRecord
from biprop.campaign.snapshot import CauseState, Snapshot

__all__ = ["counted", "duration", "render_summary"]

_FINDINGS_MAX = 40
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
    lines += _cells(snapshot)
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


def _findings(snapshot: Snapshot) -> list[str]:
    found = snapshot.findings
    if not found:
        return ["No findings.", ""]
    folder = Path(snapshot.path) / "findings"
    lines = [f"{counted(len(found), 'finding')}:"]
    lines += [f"  {_finding(cause)}" for cause in found[:_FINDINGS_MAX]]
    if len(found) > _FINDINGS_MAX:
        lines.append(f"  and {len(found) - _FINDINGS_MAX} more")
    small = next((cause for cause in found if cause.record.status == "minimal"), None)
    if small is not None:
        lines.append(f"Look at one: biprop show {small.record.fixture[:8]} --store {folder}")
    return [*lines, ""]


def _finding(cause: CauseState) -> str:
    record = cause.record
    state = {
        "raw": "" if record.settled is not None else ", to be shrunk",
        "minimising": ", to be shrunk",
    }.get(record.status, "")
    lost = ", its process was lost" if record.is_lost else ""
    times = counted(cause.count, "case")
    return f"{record.fixture[:8]}  {record.name}  ({times}{lost}{state})"


def _cells(snapshot: Snapshot) -> list[str]:
    verdicts = Counter(cell.verdict or "no turn yet" for cell in snapshot.cells)
    examples = sum(cell.sum.examples for cell in snapshot.cells)
    epochs = sum(cell.sum.epochs for cell in snapshot.cells)
    worked = sum(cell.sum.seconds for cell in snapshot.cells)
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    taken = duration(worked)
    return [
        f"{counted(len(snapshot.cells), 'cell')}: {words}.",
        f"{counted(examples, 'example')} in {counted(epochs, 'epoch')}, {taken} of all processes.",
    ]


def _rest(snapshot: Snapshot) -> list[str]:
    lines: list[str] = []
    known = sum(cause.known is not None for cause in snapshot.causes)
    if known:
        verb = "is" if known == 1 else "are"
        lines.append(f"{counted(known, 'cause')} {verb} known (ledger.json).")
    held = sum(cause.record.status == "unreproduced" for cause in snapshot.causes)
    if held:
        lines.append(f"{counted(held, 'lost case')} held when judged again: no finding.")
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
    failing = [cell for cell in snapshot.cells if cell.verdict == "ERROR"]
    lines += [f"Not searched: {cell.info.id}: {cell.message}" for cell in failing]
    lines += [f"Not read: {problem}" for problem in snapshot.problems]
    return lines

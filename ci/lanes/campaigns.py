"""The part campaigns: `biprop fuzz` over all cells with several numbers of processes.

Each has a store of its own, so that none goes on where another ended, and is kept as it ends. What
a campaign says at its end is written down; nothing is measured here. Where something was found or
lost, the store and the events stay beside the evidence.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import attrs
from ci.lanes.records import (
    CampaignResult,
    CampaignsEvidence,
    read_evidence,
    write_evidence,
)
from ci.lanes.runs import DIGITS_SHOWN, FORMAT, EvidenceError, Run, same_run
from ci.lanes.where import ROOT

from biprop.campaign.store import Store

__all__ = ["PLANS", "Plan", "campaigns_table", "parse_plans", "result_of", "run_campaigns"]

_PLAN = re.compile(r"(?P<workers>all|[1-9]\d{0,3}):(?P<seconds>[1-9]\d{0,4})", re.ASCII)
# A campaign ends within ten seconds of its budget; what is left has come to nothing.
_GRACE = 60.0
_PROGRAM = ("-m", "biprop")


@attrs.frozen(kw_only=True)
class Plan:
    """One campaign.

    Attributes:
        workers: Processes; None: as many as `biprop fuzz` takes by itself.
        seconds: Its budget.
    """

    workers: int | None
    seconds: int

    @property
    def words(self) -> list[str]:
        """What is typed after `biprop`, but for the store."""
        count = [] if self.workers is None else ["--workers", str(self.workers)]
        return ["fuzz", "--budget", f"{self.seconds}s", *count]


PLANS = (
    Plan(workers=None, seconds=540),
    *(Plan(workers=count, seconds=120) for count in (1, 2, 4)),
)


def parse_plans(text: str) -> tuple[Plan, ...]:
    """Return the plans of `all:540,1:120`: processes and seconds of each; of an empty text, all.

    Raises:
        EvidenceError: A word is none.
    """
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _PLAN.fullmatch(word)
        if match is None:
            raise EvidenceError(f"--campaigns has {word!r}: write all:540 or 4:120, with commas.")
        workers = None if match["workers"] == "all" else int(match["workers"])
        found.append(Plan(workers=workers, seconds=int(match["seconds"])))
    return tuple(found) or PLANS


def run_campaigns(
    plans: Sequence[Plan], run: Run, path: Path, *, device: str, more: Sequence[str] = ()
) -> CampaignsEvidence:
    """Run campaigns one after the other, and return their evidence, which is in `path` too.

    Those that the file holds of the same device and versions stay until they are run again; of
    other sources, they say of which.

    Args:
        plans: What is run.
        run: What is known of the run beforehand.
        path: Of the file.
        device: Where.
        more: Further words for `biprop fuzz`.

    Raises:
        EvidenceError: `path` cannot be written.
    """
    evidence = _begun(run, path)
    before, start, failed = evidence.run.seconds, time.monotonic(), 0
    write_evidence(path, evidence)
    for plan in plans:
        words = [*plan.words, *(() if device == "cpu" else ("--device", device)), *more]
        kept_in = path.parent / f"campaign-{plan.workers or 'all'}-{plan.seconds}s"
        result = _campaign(words, seconds=plan.seconds, devices=run.device.count, kept_in=kept_in)
        failed += result is None
        if result is not None:
            kept = tuple(item for item in evidence.campaigns if item.command != result.command)
            evidence = attrs.evolve(evidence, campaigns=(*kept, result))
            sys.stdout.write(f"{result.command}: {_words(result)}\n")
            sys.stdout.flush()
        ran = attrs.evolve(
            evidence.run,
            commands=(*evidence.run.commands, shlex.join(["biprop", *words])),
            seconds=round(before + time.monotonic() - start, 1),
            is_complete=not failed,
            is_met=not failed and all(item.is_met for item in evidence.campaigns),
        )
        evidence = attrs.evolve(evidence, run=ran)
        write_evidence(path, evidence)
    return evidence


def campaigns_table(evidence: CampaignsEvidence) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of campaigns."""
    head = (
        *("command", "processes", "GPUs", "time", "cells", "examples", "examples a second"),
        *("compared sequences a second", "in kernels and comparison", "findings", "lost"),
        "sources",
    )
    rows: list[tuple[str, ...]] = [
        (
            f"`{item.command}`",
            f"{item.workers}",
            f"{item.devices}",
            f"{item.seconds:.0f} s",
            f"{item.cells_seen} of {item.cells}",
            f"{item.examples:,}",
            f"{item.examples_a_second:.1f}",
            f"{item.compared_a_second:,.0f}",
            f"{item.share_in_kernels:.2f}",
            *(f"{item.findings}", f"{item.lost}"),
            f"`{(item.source_sha256 or evidence.run.source_sha256)[:DIGITS_SHOWN]}`",
        )
        for item in evidence.campaigns
    ]
    return head, rows


def _begun(run: Run, path: Path) -> CampaignsEvidence:
    """Return what the file holds of the same run; of other sources, campaigns that say so."""
    kept: tuple[CampaignResult, ...] = ()
    if path.is_file():
        found = read_evidence(path)
        if isinstance(found, CampaignsEvidence):
            if same_run(found.run, run):
                return attrs.evolve(found, run=attrs.evolve(found.run, date=run.date))
            if same_run(_like(found.run, run), run):
                kept = tuple(
                    attrs.evolve(item, source_sha256=item.source_sha256 or found.run.source_sha256)
                    for item in found.campaigns
                )
    return CampaignsEvidence(format=FORMAT, part="campaigns", run=run, campaigns=kept)


def _like(one: Run, other: Run) -> Run:
    """Return a run with the sources of another, and as many devices: a campaign says how many."""
    device = attrs.evolve(one.device, count=other.device.count)
    return attrs.evolve(one, source_sha256=other.source_sha256, device=device)


def _campaign(
    words: list[str], *, seconds: int, devices: int, kept_in: Path
) -> CampaignResult | None:
    """Run one campaign; None where it did not come to its end, and said why itself.

    Args:
        words: After `biprop`.
        seconds: Its budget.
        devices: That there are.
        kept_in: Where its store and events go, unless all was as it should be.
    """
    with tempfile.TemporaryDirectory() as folder:
        events, store = Path(folder, "events.jsonl"), Path(folder, "store")
        command = [sys.executable, *_PROGRAM, *words, "--store", str(store)]
        try:
            done = subprocess.run(
                [*command, "--events", str(events)],
                cwd=ROOT,
                check=False,
                timeout=seconds + _GRACE,
            )
        except subprocess.TimeoutExpired:
            _keep(folder, kept_in)
            return None
        if not events.is_file():
            return None
        lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        result = result_of(words, lines, devices=devices, exit_code=done.returncode)
        if result is not None:
            snapshot = Store.open(store).snapshot(with_epochs=False)
            result = attrs.evolve(
                result,
                causes=tuple(cause.record.name for cause in snapshot.findings),
                errors=(*snapshot.not_searched, *snapshot.broken),
            )
        if result is None or not result.is_met:
            _keep(folder, kept_in)
        return result


def _keep(folder: str, place: Path) -> None:
    """Copy a folder to one of this name, or of the next number where there is one already."""
    places = chain([place], (place.with_name(f"{place.name}-{number}") for number in count(2)))
    free = next(path for path in places if not path.exists())
    shutil.copytree(folder, free)
    sys.stdout.write(f"Its store and events are kept in {free}.\n")


def result_of(
    words: list[str], events: list[dict[str, Any]], *, devices: int, exit_code: int
) -> CampaignResult | None:
    """Return what the last event says; None where a campaign did not end."""
    ended = [event for event in events if event["event"] == "ended"]
    if not ended:
        return None
    status = ended[-1]["status"]
    workers = len(status["workers"])
    return CampaignResult(
        command=shlex.join(["biprop", *words]),
        workers=workers,
        devices=min(workers, devices),
        seconds=round(status["seconds"], 1),
        cells=status["cells"],
        cells_seen=status["cells_seen"],
        cells_over=status["cells_over"],
        epochs=status["epochs"],
        examples=status["examples"],
        examples_a_second=round(status["examples_a_second"], 2),
        compared_a_second=round(status["compared_a_second"], 1),
        share_in_kernels=round(status["share_in_kernels"], 3),
        findings=status["findings"],
        lost=status["lost"],
        exit_code=exit_code,
    )


def _words(result: CampaignResult) -> str:
    return (
        f"{result.examples} examples of {result.cells_seen} of {result.cells} cells, "
        f"{result.examples_a_second:.1f} a second, {result.share_in_kernels:.2f} of the time in "
        f"kernels and comparison, {result.findings} findings, {result.lost} lost"
    )

"""The part findings: each known finding of PyTorch, searched, and replayed in a fresh process.

What is expected stands in `ci.lanes.known`. Whatever comes of a command is written down, and what
was expected and did not happen is listed beside it.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import attrs
from ci.lanes.known import KNOWN, Expected, Known
from ci.lanes.records import (
    Cause,
    FindingResult,
    FindingsEvidence,
    ReplayResult,
    read_evidence,
    write_evidence,
)
from ci.lanes.runs import FORMAT, EvidenceError, Run, same_run
from ci.lanes.where import ROOT, without_folders

from biprop.case import Json

__all__ = ["run_findings"]

# A check ends long before; after this it is stopped as with Ctrl-C, and tells what it has.
_SECONDS_MAX = 300.0
_GRACE = 60.0
_SECONDS_REPLAY = 180.0


@attrs.frozen(kw_only=True)
class _Ended:
    """What a command left."""

    code: int
    data: dict[str, Any]
    complaint: str


def run_findings(
    known: Sequence[Known], run: Run, path: Path, *, device: str, workers: int
) -> FindingsEvidence:
    """Run known findings, several at a time, and return their evidence, which is in `path` too.

    Findings that the file holds of the same sources, device and versions stay.

    Raises:
        EvidenceError: `path` cannot be written.
    """
    evidence = _begun(run, path, device=device, known=known)
    before = evidence.run.seconds
    write_evidence(path, evidence)
    start = time.monotonic()
    for result in _results(known, path.parent / "found", device=device, workers=workers):
        seconds = round(before + time.monotonic() - start, 1)
        evidence = attrs.evolve(
            evidence,
            findings=_placed(evidence.findings, result),
            run=attrs.evolve(evidence.run, seconds=seconds),
        )
        write_evidence(path, evidence)
        word = "not as expected" if result.missed else "as expected"
        sys.stdout.write(f"{result.seconds:6.1f} s  {word:15}  {result.claim}\n")
        sys.stdout.writelines(f"          {sentence}\n" for sentence in result.missed)
        sys.stdout.flush()
    ran = {result.name for result in evidence.findings}
    ended = attrs.evolve(
        evidence,
        run=attrs.evolve(
            evidence.run,
            is_complete=ran >= {item.name for item in KNOWN},
            is_met=not any(result.missed for result in evidence.findings),
        ),
    )
    write_evidence(path, ended)
    return ended


def _begun(run: Run, path: Path, *, device: str, known: Sequence[Known]) -> FindingsEvidence:
    commands = tuple(shlex.join(_shown(item, device)) for item in known)
    try:
        before = read_evidence(path) if path.is_file() else None
    except EvidenceError:
        # Of another version: it is written anew.
        before = None
    if isinstance(before, FindingsEvidence) and same_run(before.run, run):
        both = tuple(dict.fromkeys((*before.run.commands, *commands)))
        going_on = attrs.evolve(
            before.run, date=run.date, commands=both, is_complete=False, is_met=False
        )
        return attrs.evolve(before, run=going_on)
    return FindingsEvidence(
        format=FORMAT, part="findings", run=attrs.evolve(run, commands=commands), findings=()
    )


def _results(
    known: Sequence[Known], store: Path, *, device: str, workers: int
) -> Iterator[FindingResult]:
    pool = ThreadPoolExecutor(max_workers=workers)
    futures: list[Future[FindingResult]] = []
    try:
        futures += [
            pool.submit(_searched, item, store / item.name, device=device) for item in known
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _placed(results: tuple[FindingResult, ...], result: FindingResult) -> tuple[FindingResult, ...]:
    others = [other for other in results if other.name != result.name]
    return tuple(sorted([*others, result], key=lambda item: item.name))


def _shown(known: Known, device: str) -> list[str]:
    return ["biprop", "check", *known.words, "--device", device]


def _searched(known: Known, store: Path, *, device: str) -> FindingResult:
    """Run one check, and replay what it found."""
    shown = _shown(known, device)
    start = time.monotonic()
    ended = _run([*shown[1:], "--store", str(store.resolve()), "--json"], seconds=_SECONDS_MAX)
    data = ended.data
    causes = tuple(_cause(found, target=known.words[0]) for found in data.get("causes", ()))
    return FindingResult(
        name=known.name,
        claim=known.claim,
        command=shlex.join(shown),
        verdict=str(data.get("verdict", "")),
        exit_code=ended.code,
        examples=int(data.get("examples", 0)),
        launches=int(data.get("launches", 0)),
        seconds=round(time.monotonic() - start, 1),
        causes=causes,
        missed=tuple(_missed(known, ended, causes)),
    )


def _cause(found: dict[str, Any], *, target: str) -> Cause:
    cause, fixture = found["cause"], found["fixture"]
    words = ["--allow-target", target]
    replayed = _run(["replay", str(found["path"]), *words, "--json"], seconds=_SECONDS_REPLAY)
    return Cause(
        verdict=str(cause["verdict"]),
        output=str(cause.get("output", "")),
        transforms=tuple(cause.get("transforms", ())),
        key=str(found["key"]),
        count=int(found["count"]),
        replay=ReplayResult(
            command=shlex.join(["biprop", "replay", str(fixture["id"])[:8], *words]),
            status=str(replayed.data.get("status", "")),
            exit_code=replayed.code,
        ),
        fixture=_without_folders(fixture),
    )


def _missed(known: Known, ended: _Ended, causes: tuple[Cause, ...]) -> Iterator[str]:
    """Yield a sentence for each thing that was expected and did not happen."""
    if ended.complaint:
        yield without_folders(ended.complaint)
    if ended.code != known.exit_code:
        yield f"The check ended with {ended.code}, not with {known.exit_code}."
    for expected in known.causes:
        matching = [cause for cause in causes if _matches(cause, expected)]
        words = " ".join((expected.verdict, *expected.transforms))
        if not matching:
            yield f"No cause {words} was found."
        elif not any(cause.replay.exit_code == 1 for cause in matching):
            yield f"The fixture of {words} did not fail again: {matching[0].replay.status}."


def _matches(cause: Cause, expected: Expected) -> bool:
    return cause.verdict == expected.verdict and set(expected.transforms) <= set(cause.transforms)


def _run(words: list[str], *, seconds: float) -> _Ended:
    """Run a command of biprop to its end, or to that of its time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "biprop", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    complaint = ""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        complaint = f"It did not end within {seconds:.0f} s."
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    try:
        data = json.loads(out)
    except ValueError:
        data, complaint = {}, complaint or (err.strip().splitlines() or ["It said nothing."])[-1]
    return _Ended(code=process.returncode, data=data, complaint=complaint)


def _without_folders(data: Json) -> Any:  # noqa: ANN401  # JSON in, JSON out
    if isinstance(data, str):
        return without_folders(data)
    if isinstance(data, list):
        return [_without_folders(value) for value in data]
    if isinstance(data, dict):
        return {key: _without_folders(value) for key, value in data.items()}
    return data

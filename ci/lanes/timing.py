"""The parts times and speeds: where the time of an example goes, and how fast kernels are.

What is measured and how say `ci/benchmarks/example_time.py` and `kernel_speed.py`, which run here
once a target, so that each is kept as it ends.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import attrs
from ci.lanes.records import (
    SpeedCell,
    SpeedsEvidence,
    TimedCell,
    TimedSet,
    TimesEvidence,
    write_evidence,
)
from ci.lanes.runs import FORMAT, EvidenceError, Run
from ci.lanes.where import ROOT

__all__ = ["run_speeds", "run_times", "speeds_table", "times_table"]

_SCRIPT = "ci/benchmarks/example_time.py"
_SPEED_SCRIPT = "ci/benchmarks/kernel_speed.py"
_DTYPES = ("float32", "bfloat16")
_DIGITS = 7
_SET_HEAD = ("layouts of a set", "whole, in a set", "materialising / launching, in a set")
_DEVICE_STAGES = ("values", "arguments", "launching")

_Measuring = TypeVar("_Measuring", TimesEvidence, SpeedsEvidence)


def run_times(run: Run, path: Path, *, device: str, more: tuple[str, ...] = ()) -> TimesEvidence:
    """Run the benchmark, and return its evidence, which is in `path` too.

    Args:
        run: What is known of the run beforehand.
        path: Of the file.
        device: Where.
        more: Further words for the benchmark.

    Raises:
        EvidenceError: `path` cannot be written.
    """
    # Imports torch and every kernel, which the other parts leave to processes of their own.
    from ci.benchmarks.example_time import LARGE  # noqa: PLC0415

    evidence = TimesEvidence(format=FORMAT, part="times", run=run, times=())
    return _run_each(
        evidence, path, script=_SCRIPT, targets=LARGE, device=device, more=more, add=_with_times
    )


def run_speeds(run: Run, path: Path, *, device: str, more: tuple[str, ...] = ()) -> SpeedsEvidence:
    """Run the benchmark of the kernels; arguments, result and errors as of `run_times`."""
    # As above.
    from ci.benchmarks.kernel_speed import COMPARED  # noqa: PLC0415

    evidence = SpeedsEvidence(format=FORMAT, part="speeds", run=run, speeds=())
    return _run_each(
        evidence,
        path,
        script=_SPEED_SCRIPT,
        targets=COMPARED,
        device=device,
        more=more,
        add=_with_speeds,
    )


def times_table(evidence: TimesEvidence) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of times, in milliseconds."""
    stages = list(dict.fromkeys(stage for cell in evidence.times for stage in cell.seconds))
    head = (
        *("operator", "dtype", "sizes", "tokens", *stages, "whole"),
        *("materialising / launching", "on the device alone"),
    )
    has_sets = any(cell.in_set is not None for cell in evidence.times)
    rows = [
        (
            f"{cell.target} {cell.backend}",
            cell.dtype,
            " ".join(f"{name}={size:,}" for name, size in cell.dims.items()),
            f"{cell.tokens:,}",
            *(_milliseconds(cell.seconds.get(stage)) for stage in stages),
            _milliseconds(cell.judged_seconds),
            f"{cell.materialising_to_launching:.2f}",
            _device_ratio(cell),
            *(_set_columns(cell.in_set) if has_sets else ()),
        )
        for cell in evidence.times
    ]
    return (*head, *(_SET_HEAD if has_sets else ())), rows


def speeds_table(evidence: SpeedsEvidence) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of speeds, in milliseconds."""
    head = ("operator", "dtype", "direction", "sizes", "tokens", "Triton", "torch", "ratio", "of")
    rows: list[tuple[str, ...]] = [
        (
            *(cell.target, cell.dtype, cell.direction),
            " ".join(f"{name}={size:,}" for name, size in cell.dims.items()) or "-",
            f"{cell.tokens:,}",
            *(_milliseconds(cell.seconds), _milliseconds(cell.native_seconds)),
            f"{cell.seconds / cell.native_seconds:.2f}" if cell.native_seconds else "-",
            cell.native,
        )
        for cell in evidence.speeds
    ]
    return head, rows


def _run_each(
    evidence: _Measuring,
    path: Path,
    *,
    script: str,
    targets: Iterable[str],
    device: str,
    more: tuple[str, ...],
    add: Callable[[_Measuring, list[dict[str, Any]]], _Measuring],
) -> _Measuring:
    """Run a benchmark once a target, and keep each as it ends."""
    write_evidence(path, evidence)
    start, failed = time.monotonic(), 0
    for target in targets:
        words: list[str] = [script, "--device", device, "--targets", target]
        words += ["--dtypes", *_DTYPES, *more]
        cells = _measured(words)
        failed += cells is None
        evidence = add(evidence, cells or [])
        ran = attrs.evolve(
            evidence.run,
            commands=(*evidence.run.commands, shlex.join(["python3", *words])),
            seconds=round(time.monotonic() - start, 1),
        )
        evidence = attrs.evolve(evidence, run=ran)
        write_evidence(path, evidence)
    ended = attrs.evolve(
        evidence, run=attrs.evolve(evidence.run, is_complete=not failed, is_met=not failed)
    )
    write_evidence(path, ended)
    return ended


def _with_times(evidence: TimesEvidence, cells: list[dict[str, Any]]) -> TimesEvidence:
    return attrs.evolve(evidence, times=(*evidence.times, *map(_timed, cells)))


def _with_speeds(evidence: SpeedsEvidence, cells: list[dict[str, Any]]) -> SpeedsEvidence:
    return attrs.evolve(evidence, speeds=(*evidence.speeds, *map(_speed, cells)))


def _measured(words: list[str]) -> list[dict[str, Any]] | None:
    """Return what a benchmark found; None where it failed, and said why itself."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "times.json")
        done = subprocess.run([sys.executable, *words, "--out", str(out)], cwd=ROOT, check=False)
        if done.returncode or not out.is_file():
            return None
        found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["cells"]
    return found


def _speed(data: dict[str, Any]) -> SpeedCell:
    rounded = {name: round(data[name], _DIGITS) for name in ("seconds", "native_seconds")}
    return SpeedCell(**{**data, **rounded})


def _timed(data: dict[str, Any]) -> TimedCell:
    try:
        return TimedCell(
            target=data["target"],
            backend=data["backend"],
            dtype=data["dtype"],
            dims=data["dims"],
            tokens=data["tokens"],
            examples=data["examples"],
            kernel_calls=data["kernel_calls"],
            seconds={stage: round(found, _DIGITS) for stage, found in data["seconds"].items()},
            device_microseconds={
                stage: work["microseconds"]
                for stage, work in (data["device_work"] or {}).items()
                if stage in _DEVICE_STAGES
            },
            materialising_to_launching=round(data["materialising_to_launching"], 3),
            judged_seconds=round(data["judged_seconds"], _DIGITS),
            in_set=_timed_set(data.get("set")),
        )
    except KeyError as error:
        raise EvidenceError(
            f"{_SCRIPT} says nothing of {error}: adapt ci/lanes/timing.py."
        ) from error


def _set_columns(found: TimedSet | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * len(_SET_HEAD)
    ratio = f"{found.materialising_to_launching:.2f}"
    return (str(found.layouts), _milliseconds(found.judged_seconds), ratio)


def _timed_set(data: dict[str, Any] | None) -> TimedSet | None:
    if data is None:
        return None
    return TimedSet(
        layouts=data["layouts"],
        seconds={stage: round(found, _DIGITS) for stage, found in data["seconds"].items()},
        materialising_to_launching=round(data["materialising_to_launching"], 3),
        judged_seconds=round(data["judged_seconds"], _DIGITS),
    )


def _device_ratio(cell: TimedCell) -> str:
    found = cell.device_microseconds
    if not found.get("launching"):
        return "-"
    return f"{(found['values'] + found['arguments']) / found['launching']:.2f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.2f}"

"""Errors of a device end the worker without loss: told, replaced, replayed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from biprop.case import Case, TransformData
from biprop.data.recipe import Recipe
from biprop.judgment import Verdict
from biprop.operators import KernelReference
from biprop.sequence import LogicalSequence
from biprop.supervision import Child, SupervisedJudge

# Each does as its name says where the launch holds more than one token, or has another width.
TARGETS = """
import torch
import triton
import triton.language as tl


@triton.jit
def store_far(x, distance):
    tl.store(x + distance, 1.0)


@triton.jit
def store_askew(address):
    tl.store((address + 1).to(tl.pointer_type(tl.float32)), 1.0)


# A minute long at least, and no longer than it takes: a device that is still busy then is nobody's.
@triton.jit
def spin(x, rounds):
    count = 0
    while (count < rounds) & (tl.load(x, volatile=True) == 1.0):
        count += 1
    tl.store(x, count.to(tl.float32))


def illegal(x):
    if len(x) > 1:
        store_far[(1,)](x, 1 << 44)
    return x + 1


def misaligned(x):
    if len(x) > 1:
        store_askew[(1,)](x.data_ptr())
    return x + 1


def asserting(x):
    if len(x) > 1:
        x[torch.full((1,), 1 << 30, device=x.device)]
    return x + 1


def alone(x):
    if x.shape[1] == 8:
        x[torch.full((1,), 1 << 30, device=x.device)]
    return x + 1


def hanging(x):
    if len(x) > 1:
        spin[(1,)](torch.ones(1, device=x.device), 150_000_000)
    return x + 1


def both(x, offsets):
    if len(offsets) > 3:
        x[torch.full((1,), 1 << 30, device=x.device)]
    return x + 1 if x.data_ptr() % 256 == 0 else x + 2
"""
NEIGHBOURS = TransformData(name="AddNeighbours", values={"count": 3})


def case_of(*transforms: TransformData, width: int = 4) -> Case:
    """Return a case of one token of `x[T,H]`."""
    return Case(
        dtype="float32",
        dims={"H": width},
        sequences=(LogicalSequence(id=0, length=1),),
        data={"x": Recipe(kind="normal")},
        transforms=transforms,
    )


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    """Return a file of targets."""
    path = tmp_path / "targets.py"
    path.write_text(TARGETS, encoding="utf-8")
    return path


@pytest.fixture
def child(device: torch.device) -> Iterator[Child]:
    """Return a worker on the device."""
    started = Child(device=str(device))
    yield started
    started.close()


def judge_of(targets: Path, name: str, child: Child, *, timeout: float = 60.0) -> SupervisedJudge:
    """Return a judge of one target."""
    target = f"{targets}:{name}"
    reference = KernelReference(operator=target, target=target, signature="x[T,H] -> y[T,H]")
    return SupervisedJudge(reference=reference, device=child.device, child=child, timeout=timeout)


@pytest.mark.parametrize("name", ["illegal", "misaligned", "asserting"])
def test_device_error_is_a_crash_and_the_next_case_runs(
    targets: Path, child: Child, name: str
) -> None:
    """The run that caused it is named; no worker that lost its device is used again."""
    judge = judge_of(targets, name, child)
    outcome = judge.judge(case_of(NEIGHBOURS))
    after = child.starts
    healthy = judge.judge(case_of())

    assert outcome.verdict is Verdict.CRASHES
    assert outcome.message.startswith("The device was lost in the transformed run: ")
    assert outcome.launches >= 1
    # Once as it came, and once run by run.
    assert after == 2
    assert healthy.verdict is Verdict.VACUOUS
    assert not healthy.rejected
    assert child.starts == 3


def test_loss_in_the_canonical_run_is_a_crash_too(targets: Path, child: Child) -> None:
    """It is no rejected case, and the message says which run it was."""
    judge = judge_of(targets, "alone", child)
    outcome = judge.judge(case_of(NEIGHBOURS, width=8))

    assert outcome.verdict is Verdict.CRASHES
    assert outcome.message.startswith("The device was lost in the canonical run: ")


def test_endless_kernel_is_a_hang_of_its_run(targets: Path, child: Child) -> None:
    """The process waits for the device, and what it waits for is told."""
    judge = judge_of(targets, "hanging", child, timeout=10.0)
    judge.judge(case_of())
    outcome = judge.judge(case_of(NEIGHBOURS))

    assert outcome.verdict is Verdict.CRASHES
    assert "hung for" in outcome.message
    assert "in the transformed run" in outcome.message


def test_search_goes_on_after_a_lost_device(targets: Path, device: torch.device) -> None:
    """One check finds what crashes and what drifts, and the crash replays in a fresh process."""
    # Few sizes to shrink, and no sequence that crashes alone.
    signature = "x[T], offsets: offsets[B+1] -> y[T]"
    words = ("targets.py:both", "--signature", signature, "--transforms", "T1,T8")
    checked = _biprop(
        targets.parent, "check", *words, "--device", str(device), "--max-examples", "30", "--json"
    )
    causes = json.loads(checked.stdout)["causes"]
    found = {cause["cause"]["verdict"]: cause for cause in causes}

    assert checked.returncode == 1, checked.stderr
    assert {"CRASHES", "DRIFTS"} <= set(found)
    crash = found["CRASHES"]
    again = _biprop(
        targets.parent, "replay", crash["fixture_id"], "--allow-target", "targets.py:both"
    )
    assert again.stdout.startswith("FAILED"), again.stdout + again.stderr


def _biprop(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / ".hypothesis").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "biprop", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

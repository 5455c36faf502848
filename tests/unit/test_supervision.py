"""Supervision: kernels that crash, hang, print or exit, each in a process of its own."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import biprop
from biprop.case import Against, Case, TransformData, case_to_data
from biprop.data.recipe import Recipe
from biprop.errors import (
    BipropError,
    CaseError,
    DeviceError,
    OutputError,
    SignatureError,
    TargetError,
)
from biprop.judgment import Cause, Verdict
from biprop.operators import KernelReference, Registry
from biprop.relations import JudgeOptions
from biprop.sequence import LogicalSequence
from biprop.supervision import Child, Journal, SupervisedJudge
from biprop.supervision.child import ChildDiedError
from biprop.supervision.in_process import InProcessJudge
from biprop.supervision.pipes import Lines
from biprop.supervision.resolve import check_device, resolve

# How workers are started is part of it.
pytestmark = pytest.mark.usefixtures("started_anew")

TARGETS = """
import ctypes, os, sys
import torch

SIGNATURE = "x[T,H] -> y[T,H]"

def healthy(x):
    return x + 1

def loud(x):
    print("out" * 100_000)
    print("err" * 100_000, file=sys.stderr)
    os.write(1, b"raw" * 100_000)
    return x + 1

def drifting(x):
    y = x + 1
    return y + 1 if len(x) > 1 else y

def leaving(x):
    if len(x) > 1:
        sys.exit("bye")
    return x + 1

def interrupted(x):
    if len(x) > 1:
        raise KeyboardInterrupt
    return x + 1

def breaking(x):
    if len(x) > 1:
        ctypes.string_at(0)
    return x + 1

def breaking_on_nan(x):
    if bool(x.isnan().any()):
        os._exit(3)
    return x + 1

def raising(x):
    raise ValueError("no tensors today")

def double(x):
    return x.double()
"""

NEIGHBOURS = TransformData(name="AddNeighbours", values={"count": 3})
NAN = TransformData(name="PadSlots", values={"amount": 1, "side": "right", "fill": "nan"})


def case_of(*transforms: TransformData, kind: str = "normal") -> Case:
    """Return a case of one token of `x[T,H]`."""
    return Case(
        dtype="float32",
        dims={"H": 8},
        sequences=(LogicalSequence(id=0, length=1),),
        data={"x": Recipe(kind=kind)},
        transforms=transforms,
    )


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of targets."""
    path = tmp_path_factory.mktemp("targets") / "targets.py"
    path.write_text(TARGETS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """Return a worker for all tests of this file; the few that kill it cost another start."""
    shared = Child(device="cpu")
    yield shared
    shared.close()


def reference_to(targets: Path, name: str, signature: str = "x[T,H] -> y[T,H]") -> KernelReference:
    """Return a reference to a function of the file."""
    target = f"{targets}:{name}"
    return KernelReference(operator=target, target=target, signature=signature)


class TestSupervisedJudge:
    """Kernels in a real worker."""

    def test_kernel_is_judged_as_in_this_process(self, targets: Path, child: Child) -> None:
        """Both kinds of judge give the same outcome, description and reference."""
        reference = reference_to(targets, "drifting")
        supervised = SupervisedJudge(reference=reference, child=child)
        direct = InProcessJudge(resolve(reference, Registry()))
        outcomes = [judge.judge(case_of(NEIGHBOURS)) for judge in (supervised, direct)]

        assert outcomes[0].verdict is Verdict.DRIFTS
        assert outcomes[0].mismatches == outcomes[1].mismatches
        assert outcomes[0].cause == outcomes[1].cause
        assert outcomes[0].facts == outcomes[1].facts
        assert supervised.reference == direct.reference == reference
        assert supervised.description.constants == direct.description.constants
        assert supervised.description.provenance.target_digest

    def test_verdict_is_sticky(self, targets: Path, child: Child) -> None:
        """The same case gives the same outcome object, unless it is asked for afresh."""
        judge = SupervisedJudge(reference=reference_to(targets, "healthy"), child=child)
        first = judge.judge(case_of(NEIGHBOURS))

        assert judge.judge(case_of(NEIGHBOURS)) is first
        assert judge.judge(case_of(NEIGHBOURS), JudgeOptions(fresh=True)) is not first

    def test_one_worker_serves_many_kernels(self, targets: Path, child: Child) -> None:
        """Kernels of several targets and of the registry share one start."""
        own = [
            SupervisedJudge(reference=reference_to(targets, name), child=child)
            for name in ("healthy", "drifting")
        ]
        starts = child.starts
        registered = SupervisedJudge(
            reference=KernelReference(
                operator="rms_norm", target="rms_norm/packed", signature="", backend="torch"
            ),
            child=child,
        )
        verdicts = [judge.judge(case_of(NEIGHBOURS)).verdict for judge in own]

        assert verdicts == [Verdict.HOLDS, Verdict.DRIFTS]
        assert registered.description.op_class == "reduction"
        assert registered.description.declaration is not None
        assert registered.description.provenance.actual_backend == "torch"
        assert registered.reference.signature == ("x[T,H], weight[H] -> y[T,H], rstd: float32[T]")
        assert child.starts == starts

    def test_accuracy_is_judged_by_the_worker(self, child: Child) -> None:
        """The case says which relation is judged, and the operator's reference lies there."""
        registered = SupervisedJudge(
            reference=KernelReference(
                operator="rms_norm", target="rms_norm/packed", signature="", backend="torch"
            ),
            child=child,
        )
        case = attrs.evolve(
            case_of(),
            data={"x": Recipe(kind="normal")},
            policy_state={"weight": Recipe(kind="normal")},
            against=Against(relation="A", atol=1e-4, rtol=1e-4),
        )
        outcome = registered.judge(case)

        assert (outcome.verdict, outcome.classes) == (Verdict.HOLDS, {"A": "powered"})
        assert registered.description.has_reference
        assert registered.relative("torch").reference == registered.reference
        with pytest.raises(TargetError, match="No operator 'rms_norm/packed' with backend 'none'"):
            registered.relative("none")

    def test_prints_of_a_target_reach_no_result(
        self, targets: Path, child: Child, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """However much a target prints, by whatever way, the answers come through."""
        judge = SupervisedJudge(reference=reference_to(targets, "loud"), child=child)

        assert judge.judge(case_of(NEIGHBOURS)).verdict is Verdict.HOLDS
        assert capfd.readouterr().out == ""

    @pytest.mark.parametrize(
        ("name", "message"),
        [("leaving", "SystemExit: bye"), ("interrupted", "KeyboardInterrupt")],
    )
    def test_target_that_leaves_crashes_without_a_new_worker(
        self, targets: Path, child: Child, name: str, message: str
    ) -> None:
        """`sys.exit` and KeyboardInterrupt of a target are judged, and end nothing."""
        judge = SupervisedJudge(reference=reference_to(targets, name), child=child)
        starts = child.starts
        outcome = judge.judge(case_of(NEIGHBOURS))

        assert (outcome.verdict, outcome.message) == (Verdict.CRASHES, message)
        assert child.starts == starts

    @pytest.mark.parametrize(
        ("name", "signature", "error"),
        [
            (
                "raising",
                "x[T,H] -> y[T,H]",
                TargetError("simplest case: ValueError: no tensors"),
            ),
            ("double", "x[T,H] -> y[T,H]", OutputError("Output 'y' has dtype float64")),
            ("healthy", "", SignatureError("has no signature: give --signature")),
            ("healthy", "x[T,H], w[H] -> y[T,H]", SignatureError("cannot be called")),
            ("helthy", "x[T,H] -> y[T,H]", TargetError("write 'healthy'")),
        ],
    )
    def test_wrong_use_comes_back_as_the_same_error(
        self, targets: Path, child: Child, name: str, signature: str, error: BipropError
    ) -> None:
        """An error of the worker is raised here, of the same class and with the same sentence."""

        with pytest.raises(type(error)) as caught:
            SupervisedJudge(reference=reference_to(targets, name, signature), child=child)

        assert str(error) in str(caught.value)

    def test_illegal_case_comes_back_as_an_error(self, targets: Path, child: Child) -> None:
        """A case that is illegal for the kernel is refused, and the worker goes on."""
        judge = SupervisedJudge(reference=reference_to(targets, "healthy"), child=child)
        rows = TransformData(name="AddDeadRows", values={"count": 1})

        with pytest.raises(CaseError, match="AddDeadRows"):
            judge.judge(case_of(rows))
        assert judge.judge(case_of(NEIGHBOURS)).verdict is Verdict.HOLDS

    def test_fatal_signal_is_a_crash_and_the_next_case_runs(
        self, targets: Path, child: Child, tmp_path: Path
    ) -> None:
        """A SIGSEGV is told with run and place; the journal is clean, another worker goes on."""
        journal = Journal(tmp_path)
        judge = SupervisedJudge(
            reference=reference_to(targets, "breaking"), child=child, journal=journal
        )
        outcome = judge.judge(case_of(NEIGHBOURS))

        assert outcome.verdict is Verdict.CRASHES
        assert outcome.cause == Cause(verdict=Verdict.CRASHES, direction="forward")
        assert (
            "killed by SIGSEGV in the transformed run, at breaking (targets.py:" in outcome.message
        )
        assert outcome.classes == {}
        assert list(tmp_path.iterdir()) == []
        assert judge.judge(case_of(NEIGHBOURS)) is outcome
        assert judge.judge(case_of()).verdict is Verdict.VACUOUS

    def test_death_by_nan_alone_is_nonfinite(self, targets: Path, child: Child) -> None:
        """A worker that only a non-finite fill kills is a non-finite cause."""
        judge = SupervisedJudge(reference=reference_to(targets, "breaking_on_nan"), child=child)
        outcome = judge.judge(case_of(NAN))

        assert "ended the process with exit status 3" in outcome.message
        assert outcome.cause is not None
        assert not outcome.cause.finite

    def test_worker_dies_with_its_supervisor(self, tmp_path: Path) -> None:
        """A killed supervisor takes its busy worker along, and leaves its journal behind."""
        script = tmp_path / "parent.py"
        endless = tmp_path / "endless.py"
        endless.write_text("def run(x):\n    while len(x) > 1:\n        pass\n    return x + 1\n")
        script.write_text(
            textwrap.dedent(f"""
            import os, sys, threading, time
            from pathlib import Path
            from biprop.case import case_from_data
            from biprop.operators import KernelReference
            from biprop.supervision import Child, Journal, SupervisedJudge

            child = Child(device="cpu")
            judge = SupervisedJudge(
                reference=KernelReference(
                    operator="e", target="endless.py:run", signature="x[T,H] -> y[T,H]"
                ),
                child=child,
                journal=Journal(Path("journal")),
            )
            assert "torch" not in sys.modules, "a supervisor needs no torch"
            print(child.process, flush=True)
            case = case_from_data({case_to_data(case_of(NEIGHBOURS))!r})
            judge.judge(case)
            """)
        )
        parent = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(biprop.__file__).parent.parent)},
        )
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        _wait_until(lambda: any((tmp_path / "journal").glob("inflight-*.json")))
        time.sleep(0.3)
        parent.kill()
        parent.wait()
        parent.stdout.close()

        _wait_until(lambda: not _is_running(worker))
        (leftover,) = Journal(tmp_path / "journal").leftovers()
        assert leftover.case == case_of(NEIGHBOURS)
        assert leftover.reference.target == "endless.py:run"


# A worker without torch, which starts in a tenth of the time.
STUB = """
import argparse, ctypes, os, signal, sys, time
from biprop.supervision.keeper import keep
from biprop.supervision.messages import decode, encode
from biprop.supervision.pipes import Lines
from biprop.supervision.vitals import VitalsWriter

def spin():
    while True:
        pass

def work(descriptors):
    request, answer, lifeline, block, report = descriptors
    vitals = VitalsWriter(block_fd=block, report_fd=report)
    lines = Lines(read_fd=request, write_fd=answer)
    lines.send(encode({"ready": 1}))
    while True:
        what = decode(lines.receive())["do"]
        vitals.mark("transformed")
        if what == "end":
            os._exit(0)
        elif what == "spin":
            spin()
        elif what == "slow":
            for _ in range(10):
                time.sleep(0.15)
                vitals.mark("canonical")
        elif what == "exit":
            os._exit(7)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "close":
            os.closerange(3, 100)
            time.sleep(60)
        elif what == "garbage":
            os.write(answer, b"no json\\n")
        elif what == "flood":
            os.set_blocking(answer, True)
            while True:
                os.write(answer, b"x" * 65536)
        elif what == "fork":
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            os._exit(9)
        lines.send(encode({"did": what}))

parser = argparse.ArgumentParser()
for option in ("--device", "--threads", "--parent", "--pipes"):
    parser.add_argument(option)
parser.add_argument("--keep", type=int)
options = parser.parse_args()
if options.keep is not None:
    keep(options.keep, work)
work(tuple(map(int, options.pipes.split(","))))
"""


class TestChild:
    """How the end of a worker is told."""

    @pytest.fixture
    def stub(self, tmp_path: Path) -> Iterator[Child]:
        """Return a worker that does as it is told."""
        path = tmp_path / "stub.py"
        path.write_text(STUB, encoding="utf-8")
        started = Child(device="cpu", command=(sys.executable, str(path)))
        yield started
        started.close()

    @pytest.mark.parametrize(
        ("what", "reason"),
        [
            ("spin", "hung for 0.5 s in the transformed run, at spin (stub.py:"),
            ("exit", "ended the process with exit status 7 in the transformed run"),
            ("kill", "was killed by SIGKILL in the transformed run"),
            ("close", "closed the worker's pipes in the transformed run"),
            ("garbage", "wrote into the worker's pipes in the transformed run"),
            ("flood", "wrote into the worker's pipes in the transformed run"),
            ("fork", "ended the process with exit status 9 in the transformed run"),
        ],
    )
    def test_end_is_told_in_words(self, stub: Child, what: str, reason: str) -> None:
        """Every way to end or fall silent has its words, and the next message a new worker."""

        with pytest.raises(ChildDiedError) as caught:
            stub.ask({"do": what}, seconds=0.5)

        assert caught.value.reason.startswith(reason)
        assert not stub.is_running
        assert stub.ask({"do": "nothing"}, seconds=5) == {"did": "nothing"}
        assert stub.starts == 2
        # The second one is a fork of a keeper, and its end is told alike.
        with pytest.raises(ChildDiedError) as caught:
            stub.ask({"do": what}, seconds=0.5)
        assert caught.value.reason.startswith(reason)
        assert stub.ask({"do": "nothing"}, seconds=5) == {"did": "nothing"}

    def test_progress_is_no_hang(self, stub: Child) -> None:
        """A worker that keeps beginning new stages may take longer than one of them may."""

        assert stub.ask({"do": "slow"}, seconds=0.6) == {"did": "slow"}

    def test_interrupt_ends_the_worker(self, stub: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """After Ctrl-C the late answer of a worker is not taken for the next one."""
        stub.start()
        process = stub.process
        assert process is not None

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Lines, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                stub.ask({"do": "nothing"}, seconds=5)

        assert not stub.is_running
        assert not _is_running(process)

    def test_worker_that_cannot_start_is_a_device_error(self) -> None:
        """A worker that ends before it is ready names the device and what to run."""
        broken = Child(device="cpu", command=(sys.executable, "-c", "raise SystemExit(5)"))

        with pytest.raises(DeviceError, match="device=cpu ended the process with exit status 5"):
            broken.start()

    def test_unknown_device_is_refused(self) -> None:
        """A device that torch does not know, or that is absent, is one sentence."""

        for device in ("quantum", "cuda:99"):
            with pytest.raises(DeviceError, match=f"Device '{device}' cannot be used here"):
                check_device(device)


def _wait_until(is_so: object, *, seconds: float = 30.0) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # Dead, and not yet reaped by whoever inherited it.
    return state.rpartition(")")[2].split()[0] != "Z"

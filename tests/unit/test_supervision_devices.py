"""Lost devices, compilers and workers in reserve: what supervision makes of them.

No device is needed: a worker without torch says that it lost one, or does as it is told.
"""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from biprop.case import Case, TransformData
from biprop.data.recipe import Recipe
from biprop.errors import DeviceError
from biprop.execution.device import Mark, is_lost, wait_for
from biprop.judgment import Cause, Verdict
from biprop.operators import KernelReference, Registry
from biprop.relations import JudgeOptions
from biprop.sequence import LogicalSequence
from biprop.supervision import Child, SupervisedJudge
from biprop.supervision.child import EXIT_DEVICE_LOST, ChildDiedError
from biprop.supervision.in_process import InProcessJudge
from biprop.supervision.messages import CONVERTER
from biprop.supervision.resolve import resolve
from biprop.supervision.serve import _Session
from biprop.supervision.vitals import VitalsWriter

# How workers are started is part of it.
pytestmark = pytest.mark.usefixtures("started_anew")

NEIGHBOURS = TransformData(name="AddNeighbours", values={"count": 3})
NAN = TransformData(name="PadSlots", values={"amount": 1, "side": "right", "fill": "nan"})
REFERENCE = KernelReference(operator="m:f", target="m:f", signature="x[T,H] -> y[T,H]")

# Answers as a worker does, without torch, and writes a line for each start and each question.
STUB = """
import argparse, os
from biprop.supervision.keeper import keep
from biprop.supervision.messages import decode, encode
from biprop.supervision.pipes import Lines
from biprop.supervision.vitals import VitalsWriter

DESCRIPTION = {"provenance": {"device": "cuda"}}

def tell(what):
    with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
        log.write(f"{os.getpid()} {os.getppid()} {what}\\n")

def lost(careful):
    place = "the transformed run" if careful else "one of the two runs"
    outcome = {
        "verdict": "CRASHES",
        "cause": {"verdict": "CRASHES", "direction": "forward"},
        "message": f"The device was lost in {place}: misaligned address",
        "launches": 7,
    }
    return {"outcome": outcome, "device_is_lost": True}

def work(descriptors):
    request, answer, lifeline, block, report = descriptors
    vitals = VitalsWriter(block_fd=block, report_fd=report)
    lines = Lines(read_fd=request, write_fd=answer)
    lines.send(encode({"ready": 1}))
    tell("started")
    while True:
        message = decode(lines.receive())
        what = message["do"]
        if what == "end":
            os._exit(0)
        if what == "open":
            if message["trial"] is not None and os.environ.get("STUB_LOSES_AT_ONCE"):
                vitals.mark("open")
                os._exit(72)
            reference = message["reference"]
            opened = {"kernel": 0, "reference": reference, "description": DESCRIPTION}
            lines.send(encode(opened))
            continue
        transforms = message["case"].get("transforms", [])
        fill = transforms[0]["values"].get("fill") if transforms else None
        careful = message["options"].get("careful", False)
        tell(f"judge careful={careful} fill={fill}")
        vitals.mark("canonical", 0)
        vitals.mark("transformed", 3)
        mode = os.environ["STUB_MODE"]
        if mode == "exit":
            os._exit(5)
        if mode == "nan" and fill != "nan":
            lines.send(encode({"outcome": {"verdict": "HOLDS"}, "device_is_lost": False}))
            continue
        lines.send(encode(lost(careful)))
        os._exit(72)

parser = argparse.ArgumentParser()
for option in ("--device", "--threads", "--parent", "--pipes"):
    parser.add_argument(option)
parser.add_argument("--keep", type=int)
options = parser.parse_args()
if options.keep is not None:
    keep(options.keep, work)
work(tuple(map(int, options.pipes.split(","))))
"""


def case_of(*transforms: TransformData) -> Case:
    """Return a case of one token of `x[T,H]`."""
    return Case(
        dtype="float32",
        dims={"H": 8},
        sequences=(LogicalSequence(id=0, length=1),),
        data={"x": Recipe(kind="normal")},
        transforms=transforms,
    )


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """Return a worker that loses its device whenever it judges."""
    path = tmp_path / "stub.py"
    path.write_text(STUB, encoding="utf-8")
    monkeypatch.setenv("STUB_MODE", "always")
    started = Child(device="cuda", command=(sys.executable, str(path)))
    yield started
    started.close()


def target(folder: Path, body: str) -> KernelReference:
    """Return a reference to a function of a file, whose body is given."""
    path = folder / "target.py"
    path.write_text(f"def run(x):\n    {body}\n")
    return KernelReference(operator="t", target=f"{path}:run", signature="x[T,H] -> y[T,H]")


def told(folder: Path) -> list[str]:
    """Return what workers wrote, without their numbers."""
    return [line.split(" ", 2)[2] for line in (folder / "log").read_text().splitlines()]


def started(folder: Path) -> list[tuple[int, int]]:
    """Return the numbers of all workers so far, and of their parents."""
    lines = (folder / "log").read_text().splitlines()
    return [
        (int(line.split()[0]), int(line.split()[1])) for line in lines if line.endswith("started")
    ]


class TestLostDevice:
    """A device error ends the worker, and nothing else."""

    def test_loss_is_a_crash_of_the_run_that_caused_it(self, stub: Child, tmp_path: Path) -> None:
        """The first loss is judged again, run by run; later cases are judged so at once."""
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        first = judge.judge(case_of(NEIGHBOURS))
        second = judge.judge(case_of())

        assert first.verdict is second.verdict is Verdict.CRASHES
        assert first.cause == Cause(verdict=Verdict.CRASHES, direction="forward")
        assert first.message == "The device was lost in the transformed run: misaligned address"
        assert first.launches == 7
        assert [line for line in told(tmp_path) if line.startswith("judge")] == [
            "judge careful=False fill=None",
            "judge careful=True fill=None",
            "judge careful=True fill=None",
        ]

    def test_what_confirms_a_loss_is_judged_whatever_time_is_left(self, stub: Child) -> None:
        """Else it would be told though nobody has looked; which fill it takes is for later."""
        due: list[bool] = []

        class Noted:
            @contextmanager
            def entries(self, *, is_due: bool = False, **_: object) -> Iterator[None]:
                due.append(is_due)
                yield

        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub, journal=Noted())
        judge.judge(case_of(TransformData(name="AddNeighbours", values={"fill": "nan"})))

        assert due == [False, True, False]

    def test_no_worker_judges_after_its_loss(self, stub: Child, tmp_path: Path) -> None:
        """Every case that follows a loss is another worker's."""
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        for count in (1, 2, 3):
            neighbours = TransformData(name="AddNeighbours", values={"count": count})
            judge.judge(case_of(neighbours))
        lines = (tmp_path / "log").read_text().splitlines()
        judged = [line.split()[0] for line in lines if " judge" in line]

        assert len(judged) == 4
        assert len(set(judged)) == len(judged)

    def test_loss_by_nan_alone_is_nonfinite(
        self, stub: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether finite fills cost the device too is tried in workers of their own."""
        monkeypatch.setenv("STUB_MODE", "nan")
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        outcome = judge.judge(case_of(NAN))

        assert outcome.cause is not None
        assert not outcome.cause.finite
        assert "misaligned address" in outcome.message

    def test_loss_on_the_simplest_case_is_left_to_the_cases(
        self, stub: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kernel that loses the device at once is judged as one that kills its worker."""
        monkeypatch.setenv("STUB_LOSES_AT_ONCE", "1")
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)

        assert judge.judge(case_of(NEIGHBOURS)).verdict is Verdict.CRASHES

    def test_death_tells_the_launches_made(
        self, stub: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The launches before the run that killed the worker count, and its own first one."""
        monkeypatch.setenv("STUB_MODE", "exit")
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        outcome = judge.judge(case_of(NEIGHBOURS))

        assert "exit status 5 in the transformed run" in outcome.message
        assert outcome.launches == 4

    def test_lost_device_ends_the_worker_with_words_of_its_own(self, tmp_path: Path) -> None:
        """The exit status of a worker without device is told as what it means."""
        path = tmp_path / "lost.py"
        path.write_text(f"import os\nos._exit({EXIT_DEVICE_LOST})\n")
        child = Child(device="cuda", command=(sys.executable, str(path)))

        with pytest.raises(DeviceError, match="lost its device before it was ready"):
            child.start()

    def test_worker_says_that_its_device_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A canonical run that costs the device is no rejected case, but a crash."""
        session = _Session(Registry(), vitals=_Marks(), device="cpu")
        reference = target(tmp_path, "raise RuntimeError('illegal address')")
        opened = session.open(
            {
                "folder": str(tmp_path),
                "reference": CONVERTER.unstructure(reference),
                "trial": None,
            }
        )
        monkeypatch.setattr("biprop.supervision.serve.is_lost", lambda _: True)
        options = CONVERTER.unstructure(JudgeOptions(careful=True))
        answer = session.judge(
            {
                "kernel": opened["kernel"],
                "case": CONVERTER.unstructure(case_of()),
                "options": options,
            }
        )
        outcome = answer["outcome"]

        assert isinstance(outcome, dict)
        assert answer["device_is_lost"] is True
        assert outcome["verdict"] == "CRASHES"
        assert outcome["message"] == (
            "The device was lost in the canonical run: RuntimeError: illegal address"
        )

    def test_process_without_device_judges_no_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a supervisor the loss is final, and said in one sentence."""
        reference = target(tmp_path, "return x if len(x) < 2 else 1 / 0")
        judge = InProcessJudge(resolve(reference, Registry()))
        monkeypatch.setattr("biprop.supervision.in_process.is_lost", lambda _: True)
        crash = judge.judge(case_of(NEIGHBOURS))

        assert crash.verdict is Verdict.CRASHES
        assert judge.judge(case_of(NEIGHBOURS)) is crash
        with pytest.raises(DeviceError, match="an earlier case broke it"):
            judge.judge(case_of())


class TestKeeper:
    """Workers after the first that died are forks of a process that has imported all."""

    def test_first_worker_has_no_keeper(self, stub: Child, tmp_path: Path) -> None:
        """Where nothing dies, nothing stands ready."""
        SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)

        assert [parent for _, parent in started(tmp_path)] == [os.getpid()]

    def test_later_workers_are_forks(self, stub: Child, tmp_path: Path) -> None:
        """All of them have one parent, which is not this process, and numbers of their own."""
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        for count in (1, 2, 3):
            neighbours = TransformData(name="AddNeighbours", values={"count": count})
            judge.judge(case_of(neighbours))
        workers = started(tmp_path)
        parents = {parent for _, parent in workers[1:]}

        assert len(workers) == stub.starts == 4
        assert len({number for number, _ in workers}) == 4
        assert len(parents) == 1
        assert os.getpid() not in parents

    def test_all_end_with_their_owner(self, stub: Child, tmp_path: Path) -> None:
        """Closing leaves neither keeper nor worker behind."""
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        judge.judge(case_of(NEIGHBOURS))
        stub.start()
        _wait_until(lambda: len(started(tmp_path)) == 3)
        stub.close()
        numbers = {number for worker in started(tmp_path) for number in worker} - {os.getpid()}

        assert len(numbers) == 4
        assert not any(_is_running(number) for number in numbers)

    def test_lost_keeper_is_no_loss(self, stub: Child, tmp_path: Path) -> None:
        """Its workers die with it, and the next one is started as the first one was."""
        judge = SupervisedJudge(reference=REFERENCE, device="cuda", child=stub)
        judge.judge(case_of(NEIGHBOURS))
        (keeper,) = {parent for _, parent in started(tmp_path)} - {os.getpid()}
        os.kill(keeper, signal.SIGKILL)
        outcome = judge.judge(case_of())

        assert outcome.verdict is Verdict.CRASHES
        assert started(tmp_path)[-1][1] == os.getpid()

    def test_command_that_cannot_keep_is_started_each_time(self, tmp_path: Path) -> None:
        """A worker whose command knows nothing of keepers is replaced all the same."""
        path = tmp_path / "old.py"
        path.write_text(
            "import os, sys\n"
            "from biprop.supervision.messages import encode\n"
            "sys.exit(3) if '--keep' in sys.argv else None\n"
            "descriptors = sys.argv[sys.argv.index('--pipes') + 1].split(',')\n"
            "os.write(int(descriptors[1]), encode({'ready': 1}))\n"
            "os.read(int(descriptors[0]), 100)\n"
            "os._exit(4)\n"
        )
        child = Child(device="cpu", command=(sys.executable, str(path)))
        for _ in range(2):
            with pytest.raises(ChildDiedError, match="ended the process with exit status 4"):
                child.ask({"do": "nothing"}, seconds=30)
        child.close()

        assert child.starts == 2


# Sleeps in a function of a file that looks like Triton's compiler.
COMPILING = """
import time

def compile(seconds):
    time.sleep(seconds)
"""
COMPILED = """
import argparse, importlib.util, os
from biprop.supervision.messages import decode, encode
from biprop.supervision.pipes import Lines
from biprop.supervision.vitals import VitalsWriter

parser = argparse.ArgumentParser()
for option in ("--device", "--threads", "--parent", "--pipes"):
    parser.add_argument(option)
request, answer, lifeline, block, report = map(int, parser.parse_args().pipes.split(","))
vitals = VitalsWriter(block_fd=block, report_fd=report)
lines = Lines(read_fd=request, write_fd=answer)
place = os.path.join(os.path.dirname(__file__), "triton", "compiler", "compiler.py")
spec = importlib.util.spec_from_file_location("compiler", place)
compiler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiler)
lines.send(encode({"ready": 1}))

def spin():
    while True:
        pass

while True:
    message = decode(lines.receive())
    vitals.mark("canonical")
    if message["do"] == "end":
        os._exit(0)
    compiler.compile(message["seconds"])
    if message["do"] == "hang":
        spin()
    lines.send(encode({"did": message["do"]}))
"""


class TestCompiling:
    """Time in a compiler is no hang."""

    @pytest.fixture
    def compiling(self, tmp_path: Path) -> Iterator[Child]:
        """Return a worker that compiles whatever it is asked."""
        folder = tmp_path / "triton" / "compiler"
        folder.mkdir(parents=True)
        (folder / "compiler.py").write_text(textwrap.dedent(COMPILING))
        path = tmp_path / "stub.py"
        path.write_text(COMPILED)
        started = Child(device="cpu", command=(sys.executable, str(path)))
        yield started
        started.close()

    def test_worker_may_compile_longer_than_a_run_may_take(self, compiling: Child) -> None:
        """A stage that spends its time in a compiler has all of it again afterwards."""

        assert compiling.ask({"do": "compile", "seconds": 1.5}, seconds=0.4) == {"did": "compile"}

    def test_hang_after_compiling_is_a_hang(self, compiling: Child) -> None:
        """What does not return once it is compiled hangs as ever, and is told where."""

        with pytest.raises(ChildDiedError, match=r"hung for 0.4 s .* at spin \(stub.py:"):
            compiling.ask({"do": "hang", "seconds": 0.6}, seconds=0.4)


def test_deterministic_worker_is_told_before_it_starts(tmp_path: Path) -> None:
    """CUDA's libraries read their variable once, so the process is started with it."""
    path = tmp_path / "stub.py"
    path.write_text(
        "import os, pathlib\n"
        "value = os.environ.get('CUBLAS_WORKSPACE_CONFIG', '')\n"
        "pathlib.Path(__file__).with_suffix('.txt').write_text(value)\n"
    )
    for is_deterministic in (True, False):
        child = Child(
            device="cpu", is_deterministic=is_deterministic, command=(sys.executable, str(path))
        )
        with pytest.raises(DeviceError):
            child.start()
        set_to = path.with_suffix(".txt").read_text()
        expected = ":4096:8" if is_deterministic else ""
        assert set_to == os.environ.get("CUBLAS_WORKSPACE_CONFIG", expected)


class _Marks(VitalsWriter):
    """Keeps the last stage, and leaves this process's own reports of signals alone."""

    def __init__(self) -> None:
        self.stage = ""

    def mark(self, stage: str, launches: int = 0) -> None:
        """Keep a stage."""
        assert launches >= 0
        self.stage = stage


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


def test_cpu_is_never_lost() -> None:
    """A process that still runs has its processor."""
    cpu = torch.device("cpu")
    wait_for(cpu)
    Mark.now(cpu).wait()

    assert not is_lost(cpu)


def test_a_device_that_others_have_filled_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes, and has no memory; what raises anything else is lost."""

    def raised(error: Exception) -> bool:
        def ones(*_: object, **__: object) -> torch.Tensor:
            raise error

        monkeypatch.setattr("biprop.execution.device.torch.ones", ones)
        return is_lost(torch.device("cuda"))

    assert not raised(torch.OutOfMemoryError("CUDA out of memory."))
    assert raised(RuntimeError("CUDA error: an illegal memory access was encountered"))

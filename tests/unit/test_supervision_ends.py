"""How workers end that are killed while they start, or broken off late, and what they print."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.test_supervision import STUB

from biprop.errors import DeviceError, WorkerKilledError
from biprop.supervision import Child, child
from biprop.supervision.child import BrokenOffHangError
from biprop.supervision.output import BYTES_MAX, Tail
from biprop.supervision.pipes import Lines

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
TALKS = "print('some words'); print('no such library\\x1b[0m'); raise SystemExit(3)"


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Child]:
    """Return a worker without torch that does as it is told."""
    path = tmp_path / "stub.py"
    path.write_text(STUB, encoding="utf-8")
    started = Child(device="cpu", command=(sys.executable, str(path)))
    yield started
    started.close()


def interrupting(*_: object, **__: object) -> None:
    """Press Ctrl-C."""
    raise KeyboardInterrupt


class TestStart:
    """Workers that end before they are ready."""

    def test_one_that_is_killed_is_told_apart(self) -> None:
        """Whoever does that has nothing against what is searched."""
        with pytest.raises(WorkerKilledError, match="was killed by SIGKILL before it was ready"):
            Child(device="cpu", command=(sys.executable, "-c", KILLED)).start()

    def test_one_that_ends_by_itself_is_not(self) -> None:
        """Its last words are told, where they are read."""
        output = Tail()
        worker = Child(device="cpu", command=(sys.executable, "-c", TALKS), output=output)
        with pytest.raises(DeviceError, match="before it was ready: no such library") as refused:
            worker.start()
        output.close()

        assert not isinstance(refused.value, WorkerKilledError)


class TestInterrupt:
    """Ctrl-C while a worker is silent."""

    def test_one_whose_time_was_up_has_hung(
        self, stub: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though nobody had told it yet."""
        ask = child._ask_for_place
        calls: list[object] = []

        def asking(running: object) -> None:
            calls.append(running)
            if len(calls) == 1:
                raise KeyboardInterrupt
            ask(running)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(child, "_ask_for_place", asking)
        with pytest.raises(KeyboardInterrupt) as broken:
            stub.ask({"do": "spin"}, seconds=0.3)

        assert isinstance(broken.value, BrokenOffHangError)
        death = broken.value.death
        assert death.reason.startswith("hung for 0.3 s in the transformed run, at spin (stub.py:")
        assert death.is_hung
        assert not stub.is_running

    def test_one_that_had_time_left_has_not(
        self, stub: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody knows what would have become of it."""
        stub.start()
        monkeypatch.setattr(Lines, "receive", interrupting)
        with pytest.raises(KeyboardInterrupt) as broken:
            stub.ask({"do": "spin"}, seconds=60)

        assert not isinstance(broken.value, BrokenOffHangError)
        assert not stub.is_running


class TestTail:
    """What is kept of what workers print."""

    def test_the_end_is_kept_and_no_more(self) -> None:
        """However much is printed; whoever prints does not wait."""
        output = Tail()
        blocks = [bytes([65 + number % 26]) * 30_000 for number in range(100)]
        for block in blocks:
            assert os.write(output.descriptor, block)
        os.write(output.descriptor, b"\nthe end\n")
        output.close()

        assert output.last_line() == "the end"
        deadline = time.monotonic() + 10
        while len(output.text) != BYTES_MAX and time.monotonic() < deadline:
            time.sleep(0.01)
        expected = b"".join(blocks) + b"\nthe end\n"
        assert output.text.encode() == expected[-BYTES_MAX:]

    def test_what_a_worker_prints_goes_nowhere_else(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Of a process of its own, and of forks of its keeper; it has no input."""
        path = tmp_path / "stub.py"
        path.write_text(STUB.replace("    while True:\n        what", PRINTS), encoding="utf-8")
        output = Tail()
        worker = Child(device="cpu", command=(sys.executable, str(path)), output=output)
        for _ in range(2):
            worker.ask({"do": "nothing"}, seconds=5)
            worker.give_up()
        worker.close()
        output.close()

        assert output.last_line() == "input ended, to standard error"
        assert output.text.count("input ended, to standard error") == 2
        assert not any(capfd.readouterr())


PRINTS = """\
    try:
        input("a prompt\\n")
    except EOFError:
        print("input ended, to standard error", file=sys.stderr, flush=True)
    while True:
        what"""

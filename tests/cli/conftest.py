"""Run commands in the process of the tests.

Starting a worker imports torch, which costs seconds, so the commands share one worker where what a
target leaves behind does not matter.
"""

import sys
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.commands import Result, Run

from biprop.cli import main
from biprop.supervision import Child, SupervisedJudge

if TYPE_CHECKING:
    from tests.forked import Forks


class _SharedChild(Child):
    """A worker that outlives the commands that use it."""

    def close(self) -> None:
        """Leave it running."""

    def end(self) -> None:
        """End it."""
        super().close()


@pytest.fixture(scope="session", autouse=True)
def _forked(forks: "Forks") -> "Forks":
    """Have workers forked, those of commands too that have one of their own."""
    return forks


@pytest.fixture(scope="session")
def worker() -> Iterator[Child]:
    """Yield one worker for all commands that run in this process."""
    child = _SharedChild(device="cpu")
    yield child
    child.end()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty project."""
    (tmp_path / ".hypothesis").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def alone(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command in this process, with a worker of its own."""
    # A command sets it for its process.
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(folder / ".hypothesis"))

    def run(*arguments: str, text: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", StringIO(text))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(code=ended.value.code, out=out, err=err)

    return run


@pytest.fixture
def biprop(alone: Run, worker: Child, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process, with the worker that all share."""
    monkeypatch.setattr("biprop.cli.searching.Child", lambda **_: worker)
    monkeypatch.setattr("biprop.cli.replay.SupervisedJudge", partial(SupervisedJudge, child=worker))
    return alone

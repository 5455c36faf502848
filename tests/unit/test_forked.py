"""Workers of the tests are forks where they may be, and find what a process of its own would."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked import Forks

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.operators import KernelReference
from biprop.sequence import LogicalSequence
from biprop.supervision import SupervisedJudge

TARGET = """
import os

def told(x):
    with open("told.txt", "w") as stream:
        stream.write(f"{os.getppid()} {os.environ.get('HYPOTHESIS_STORAGE_DIRECTORY')}")
    return x + 1
"""
CASE = Case(
    dtype="float32",
    dims={"H": 2},
    sequences=(LogicalSequence(id=0, length=1),),
    data={"x": Recipe(kind="normal")},
)


def told(folder: Path) -> tuple[int, str]:
    """Return the parent of a worker, and the folder of Hypothesis as far as the worker knows."""
    (folder / "target.py").write_text(TARGET)
    target = f"{folder / 'target.py'}:told"
    reference = KernelReference(operator=target, target=target, signature="x[T,H] -> y[T,H]")
    with SupervisedJudge(reference=reference, device="cpu") as judge:
        judge.judge(CASE)
    parent, storage = (folder / "told.txt").read_text().split(" ", 1)
    return int(parent), storage


@pytest.fixture
def _own(forks: Forks) -> Iterator[None]:
    """Fork from a keeper of its own: others may have left that of the session without use."""
    forks.restore()
    own = Forks()
    yield
    own.close()
    forks.change()


@pytest.mark.usefixtures("_own")
def test_a_worker_is_a_fork_in_the_place_of_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder and its environment are those of now, not those of the keeper's start."""

    monkeypatch.chdir(tmp_path)
    keeper, _ = told(tmp_path)
    assert keeper != os.getpid()
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", "elsewhere")
    assert told(tmp_path) == (keeper, "elsewhere")


def test_what_an_import_may_have_read_takes_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that the keeper has not."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOMETHING_OF_A_LIBRARY", "1")
    assert told(tmp_path)[0] == os.getpid()


@pytest.mark.usefixtures("started_anew")
def test_a_module_may_start_workers_as_users_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own child, where it asks for that; the last test here, as all of the module's have it."""

    monkeypatch.chdir(tmp_path)
    assert told(tmp_path)[0] == os.getpid()

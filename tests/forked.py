"""Workers of the tests' own process: forks of one process that has torch already.

A worker imports torch, which takes two seconds, and most tests start one only to have a kernel
judged. Here the first worker of a supervisor is a fork of a keeper that all tests of a process
share, and so is each that follows: environment, folder and streams are those of the test. Tests of
how workers start ask for the fixture `started_anew` of `tests/conftest.py`.

This file is both sides: `Forks` is the test's, and run as a script it is the keeper.
"""

import json
import os
import sys
from collections.abc import Mapping
from tempfile import TemporaryFile

from biprop.supervision import child
from biprop.supervision.keeper import CAN_KEEP, Keeper, KeeperLostError, keep
from biprop.supervision.processes import WorkerProcess

__all__ = ["Forks"]

_SECONDS_TO_IMPORT = 180.0
# What is read when it is needed; all else may have been read at an import.
_LATE = frozenset({"HYPOTHESIS_STORAGE_DIRECTORY", "PWD", "PYTEST_CURRENT_TEST"})


class Forks:
    """Has the supervisors of this process fork their workers."""

    def __init__(self) -> None:
        """Change them; the keeper is started with the first worker."""
        self._spawned, self._give_up = child.Child._spawned, child.Child.give_up
        self._keeper: Keeper | None = None
        # That of now: what a test sets is not the keeper's.
        self._environment = child._environment({})
        self.change()

    def change(self) -> None:
        """Have workers forked from now on."""
        if not CAN_KEEP:
            return
        forks = self

        def spawned(self: child.Child, handed: tuple[int, ...]) -> WorkerProcess:
            return forks._fork(self, handed) or forks._spawned(self, handed)

        def give_up(self: child.Child) -> None:
            if forks._may(self):
                # The next one is a fork as it is, without a keeper of its own.
                self._kill()
            else:
                forks._give_up(self)

        child.Child._spawned = spawned  # type: ignore[method-assign]
        child.Child.give_up = give_up  # type: ignore[method-assign]

    def restore(self) -> None:
        """Have workers started as users have them."""
        child.Child._spawned = self._spawned  # type: ignore[method-assign]
        child.Child.give_up = self._give_up  # type: ignore[method-assign]

    def close(self) -> None:
        """End the keeper, and change nothing any more."""
        self.restore()
        if self._keeper is not None:
            self._keeper.end()

    def _may(self, supervisor: child.Child) -> bool:
        """Say whether a worker may be a fork, or must be a process of its own."""
        is_usual = supervisor._command == child.WORKER_COMMAND and supervisor.device == "cpu"
        return is_usual and _early(supervisor._environment()) == _early(self._environment)

    def _fork(self, supervisor: child.Child, handed: tuple[int, ...]) -> WorkerProcess | None:
        """Fork a worker; None where it must be a process of its own."""
        if not self._may(supervisor):
            return None
        if self._keeper is None:
            self._keeper = Keeper((sys.executable, "-P", __file__), environment=self._environment)
        words = supervisor._arguments()[len(child.WORKER_COMMAND) :]
        with TemporaryFile("w+") as request:
            folder = os.getcwd()  # noqa: PTH109  # as it is
            environment = supervisor._environment()
            json.dump({"words": words, "cwd": folder, "env": environment}, request)
            request.seek(0)
            try:
                output = supervisor.output_descriptor
                return self._keeper.fork(
                    (*handed, request.fileno(), output), seconds=_SECONDS_TO_IMPORT
                )
            except KeeperLostError as error:
                raise AssertionError("the keeper of the tests' workers is gone") from error


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an import may have read: of a cluster that was joined here, nothing does."""
    # What a worker has by itself, a command that ran in this process may have set already.
    whole = {"TRITON_INTERPRET": "1", **environment}
    return {
        name: value
        for name, value in whole.items()
        if name not in _LATE and not name.startswith("RAY_")
    }


def _work(descriptors: tuple[int, ...]) -> None:
    """Become a worker, in the fork; does not return."""
    *handed, request, errors = descriptors
    for stream in (1, 2):
        os.dup2(errors, stream)
    os.close(errors)
    with os.fdopen(request) as opened:
        asked = json.load(opened)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    pipes = ",".join(map(str, handed))
    worker.main([*asked["words"], "--pipes", pipes, "--parent", str(os.getppid())])


if __name__ == "__main__":
    # Only here: `biprop.worker` is a program.
    from biprop import worker

    worker._set_environment("cpu", 1)
    worker._end_with_parent(os.getppid())
    worker._import_for_workers("cpu")
    keep(int(sys.argv[2]), _work)

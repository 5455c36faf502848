"""Processes of Python that have torch already: forks of one that has imported it, and nothing else.

torch takes two seconds to import, and a test that runs a command, or pytest over a project, waits
for it two or three times. Here a command finds it imported, and so does the worker that the command
starts; all else is as in a process of its own: arguments, folder, environment, streams, exit
status, and what is imported when. Tests of a start from nothing start a command themselves.

This file is both sides: `Preloaded` is the test's, and run as a script it is what forks.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from biprop.supervision import Child

__all__ = ["Preloaded"]

_REQUEST_BYTES = 1 << 17
_SECONDS_A_LOOK = 5.0
# What a shell runs in the place of `python WORDS`: hands over its streams, and ends as that ends.
TOOL = """#!{python} -IS
import json, os, socket, sys
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect({place!r})
words = [*{words!r}, *sys.argv[1:]]
request = json.dumps({{"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
socket.send_fds(channel, [request], [0, 1, 2])
channel.recv(64)
sys.exit(int(channel.recv(64)) % 256)
"""


class Preloaded:
    """The process that forks, as tests see it."""

    def __init__(self) -> None:
        """Start it; it imports while the test goes on."""
        self._folder = tempfile.TemporaryDirectory(prefix="preloaded-")
        self._place = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self._place)
            listening.listen()
            # Each command brings its path.
            variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listening.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
                env=variables,
            )

    def write_tool(self, path: Path, *words: str) -> None:
        """Write a program that runs `python WORDS ARGUMENTS`, for a shell to run."""
        path.write_text(TOOL.format(python=sys.executable, place=self._place, words=words))
        path.chmod(0o755)

    def run(
        self,
        *words: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        text: str = "",
        merged: bool = False,
        timeout: float = 170,
    ) -> "subprocess.CompletedProcess[str]":
        """Run `python WORDS`, and wait for it.

        Args:
            words: `-m` and a module, `-c` and code, or a script, and what follows.
            cwd: Its folder.
            env: Its environment; None for that of this process.
            text: Its standard input.
            merged: Whether its standard error goes where its standard output goes.
            timeout: Seconds that it may take.
        """
        variables = dict(os.environ if env is None else env)
        request = json.dumps({"words": words, "cwd": str(cwd), "env": variables}).encode()
        assert len(request) < _REQUEST_BYTES, "a request is one packet"
        with contextlib.ExitStack() as stack:
            streams: list[IO[str]] = [
                stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
                for _ in range(2 if merged else 3)
            ]
            streams[0].write(text)
            streams[0].seek(0)
            descriptors = [stream.fileno() for stream in streams]
            # One description of the file for both, so that neither writes over the other.
            descriptors += [streams[1].fileno()] if merged else []
            status = self._ask(request, descriptors, timeout)
            told = [""] * 2
            for index, stream in enumerate(streams[1:]):
                stream.seek(0)
                told[index] = stream.read()
        return subprocess.CompletedProcess(["python", *words], status, told[0], told[1])

    def _ask(self, request: bytes, descriptors: Sequence[int], seconds: float) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(self._place)
            channel.settimeout(seconds)
            socket.send_fds(channel, [request], list(descriptors))
            pid = int(channel.recv(64))
            try:
                return int(channel.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def _serve(listening: socket.socket, *, parent: int) -> tuple[list[str], list[int]]:
    """Fork for each request; returns in the forks alone, with their words and their streams."""
    while True:
        while not select.select([listening], [], [], _SECONDS_A_LOOK)[0]:
            if os.getppid() != parent:
                # The tests have ended without a word.
                os._exit(1)
        channel, _ = listening.accept()
        packet, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 3)
        pid = os.fork()
        if not pid:
            channel.close()
            listening.close()
            request = json.loads(packet)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            return request["words"], descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        with channel, contextlib.suppress(OSError):
            channel.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(words: Sequence[str], descriptors: Sequence[int], *, path: Sequence[str]) -> None:
    """Go on as `python WORDS` would; what it raises is left to the caller."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    added = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    match words:
        case ["-m", module, *rest]:
            sys.path[:] = [str(Path.cwd()), *added, *path]
            sys.argv[:] = [module, *rest]
            sys.meta_path.insert(0, _Changing())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.path[:] = ["", *added, *path]
            sys.argv[:] = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  # as python -c
        case [script, *rest]:
            sys.path[:] = [str(Path(script).resolve().parent), *added, *path]
            sys.argv[:] = [script, *rest]
            runpy.run_path(script, run_name="__main__")


class _ForkedWorker:
    """What `subprocess.Popen` would be of a worker that was forked instead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Reap it, and return its status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class _Changing:
    """Finds the supervisor's module as others find it, and has it changed once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the module is; None for any other."""
        del path, target
        if name != "biprop.supervision.child":
            return None
        sys.meta_path.remove(self)
        found = find_spec(name)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader)
        return found


class _Loader(Loader):
    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the module's own loader."""
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it, and change it."""
        self._own.exec_module(module)
        _fork_workers(module)


def _fork_workers(child: ModuleType) -> None:
    """Have a supervisor of this process fork its first worker, as its keeper forks later ones."""
    start = child.Child._spawned

    def forked(self: "Child", handed: tuple[int, ...]) -> object:
        if self._command != child.WORKER_COMMAND:
            return start(self, handed)
        words = [*self._arguments()[len(self._command) :], "--pipes", ",".join(map(str, handed))]
        variables = self._environment()
        pid = os.fork()
        if not pid:
            _work(words, variables, handed)
        return child.Spawned(started=_ForkedWorker(pid))

    child.Child._spawned = forked


def _work(words: list[str], variables: Mapping[str, str], handed: tuple[int, ...]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        for told in (signal.SIGINT, signal.SIGTERM):
            signal.signal(told, signal.SIG_DFL)
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # a descriptor is wanted
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        bound = max(handed) + 1
        for number in range(3, bound):
            if number not in handed:
                with contextlib.suppress(OSError):
                    os.close(number)
        os.closerange(bound, 1 << 16)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        # Whoever forked may have made errors of them.
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        os.environ.clear()
        os.environ.update(variables)
        from biprop.worker import main  # noqa: PLC0415  # the path is set only now

        main(words)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's own work
        traceback.print_exc()
    finally:
        os._exit(status)


def _status_of(words: Sequence[str], descriptors: Sequence[int], *, path: Sequence[str]) -> int:
    """Run what was asked for to its end, and return its status as the interpreter would."""
    try:
        _become(words, descriptors, path=path)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def _leave(status: int) -> NoReturn:
    """End as the interpreter does, but for the taking down of every module, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]  # what waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    path = sys.path[:]
    # What forks are for; without it they find nothing imported, and are slow.
    for name in ("attrs", "cattrs", "click", "torch"):
        import_module(name)
    # Pages that no collection touches stay shared with the forks.
    gc.freeze()
    listening = socket.socket(fileno=int(sys.argv[1]))
    _leave(_status_of(*_serve(listening, parent=int(sys.argv[2])), path=path))

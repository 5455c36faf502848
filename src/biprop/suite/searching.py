"""What a search process does: search the cells that it is given, kernels behind it in a child.

Started by `biprop.suite.pool` and asked by pickled records. Operators that the installation does
not know (`biprop.suite.parcels`) are run here, in this process, so that one of them that brings it
down is lost with it.
"""

import contextlib
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import attrs
import torch

from biprop.case import Case, Dtype
from biprop.contract import Contract
from biprop.data.words import hash_words
from biprop.errors import BipropError
from biprop.fixtures.records import Fixture
from biprop.fixtures.store import Store, project_root
from biprop.generation.space import Direction
from biprop.operators import KernelReference, Registry
from biprop.provenance import Provenance
from biprop.registry import build_registry
from biprop.reports.records import CellReport
from biprop.reports.suite import CellError
from biprop.strategies.profiles import PROFILES, Profile
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.suite.parcels import Parcel, unpacked
from biprop.suite.parts import with_parts
from biprop.supervision import Child, Judge, SupervisedJudge
from biprop.supervision.in_process import InProcessJudge
from biprop.supervision.resolve import resolve

__all__ = [
    "CellTask",
    "PartsTask",
    "Ready",
    "Result",
    "Searched",
    "Settings",
    "Task",
    "Tried",
    "serve",
]


@attrs.frozen(kw_only=True)
class Settings:
    """What all search processes of a run are told.

    Attributes:
        slice_name: Profile of the searches.
        contract: What judges.
        seed: Of the searches; None: as the profile says.
        max_examples: Of each cell; None: as the profile says.
        max_seconds: After which a cell draws no further example, or after ten times as long where
            evidence is lacking; None: no limit.
        store: Folder for what is found; None: nothing is stored.
        registry: Operators that the installation does not know; None: there are none.
    """

    slice_name: Literal["pr", "nightly"]
    contract: Contract
    seed: int | None = None
    max_examples: int | None = None
    max_seconds: float | None = None
    store: Path | None = None
    registry: Parcel | None = None


@attrs.frozen(kw_only=True)
class CellTask:
    """A cell to search.

    Attributes:
        cell: Its id.
        reference: The kernel.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
    """

    cell: str
    reference: KernelReference
    dtype: Dtype
    direction: Direction


@attrs.frozen(kw_only=True)
class PartsTask:
    """A failing composite to try with other parts.

    Attributes:
        cell: Id of its cell.
        reference: The kernel.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
        parts: Names of the parts that fail too, the first in the chain first.
        backends: By name of the part, a backend of it that holds; parts without one are left out.
        cases: That the composite fails.
    """

    cell: str
    reference: KernelReference
    dtype: Dtype
    direction: Direction
    parts: tuple[str, ...]
    backends: dict[str, str]
    cases: tuple[Case, ...]


Task = CellTask | PartsTask


@attrs.frozen(kw_only=True)
class Ready:
    """A process can be given tasks."""


@attrs.frozen(kw_only=True)
class Searched:
    """What became of a cell: a report, or an error.

    Attributes:
        report: None where the search did not end.
        error: None where it did.
        provenance: Of the process that ran the kernel, without what is the kernel's own.
    """

    report: CellReport | None = None
    error: CellError | None = None
    provenance: Provenance | None = None


@attrs.frozen(kw_only=True)
class Tried:
    """What a composite did with other parts.

    Attributes:
        status: `downstream` where it holds with them.
        reason: What was tried, in words.
    """

    status: Literal["downstream", "independent"]
    reason: str


Result = Searched | Tried


def serve(connection: Connection, settings: Settings, device: str) -> None:
    """Run tasks until there is none; the target of a search process."""
    _prepare(settings, device)
    session = _Session(settings, device)
    connection.send(Ready())
    # The other side is gone, or has told that there is no more.
    with contextlib.suppress(EOFError, OSError):
        while (task := connection.recv()) is not None:
            connection.send(session.run(task))
    session.close()


def _prepare(settings: Settings, device: str) -> None:
    """Set what kernels, torch and Hypothesis read, for this process and its children."""
    # Ctrl-C is for whoever started this process, which ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = settings.store or project_root() / ".hypothesis"
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(folder))
    # One process a core: threads of their own would only compete.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    if device == "cpu":
        # Triton compiles for no CPU; whoever wants it otherwise has said so already.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a search process is started by another"
    wait([parent.sentinel])
    os._exit(1)


class _Session:
    """What the tasks of one process share."""

    def __init__(self, settings: Settings, device: str) -> None:
        self._settings = settings
        self._device = device
        self._profile: Profile = PROFILES[settings.slice_name]
        self._child = Child(device=device, threads=1)
        self._own: frozenset[str] = frozenset()
        self._registry: Registry | None = None
        if settings.registry is not None:
            self._own = settings.registry.own
            self._registry = unpacked(settings.registry)

    def run(self, task: Task) -> Result:
        if isinstance(task, PartsTask):
            return self._tried(task)
        try:
            return self._searched(task)
        except BipropError as error:
            message = str(error)
            return Searched(
                error=CellError(kind="error", name=type(error).__name__, message=message)
            )
        # A mistake of biprop itself: the whole story to people, a sentence to the report.
        except Exception as error:  # noqa: BLE001  # reported, not swallowed
            traceback.print_exc()
            message = f"The search itself failed with {type(error).__name__}: {error}"
            return Searched(
                error=CellError(kind="error", name=type(error).__name__, message=message)
            )

    def close(self) -> None:
        """End the worker."""
        self._child.close()

    def _searched(self, task: CellTask) -> Searched:
        settings = self._settings
        judge = self._judge(task)
        try:
            space = space_for(
                judge.reference,
                judge.description,
                dtype=task.dtype,
                direction=task.direction,
                profile=self._profile,
                contract=settings.contract,
            )
            report = search(
                judge,
                space,
                device=self._device,
                lane=lane_of(judge.description),
                profile=self._profile,
                max_examples=settings.max_examples,
                seconds_max=settings.max_seconds,
                seed=self._seed(task.cell),
                keep=self._keep(),
            )
            provenance = attrs.evolve(
                judge.description.provenance, actual_backend="", target_digest=""
            )
        finally:
            judge.close()
        return Searched(report=report, provenance=provenance)

    def _judge(self, task: CellTask) -> Judge:
        if task.reference.operator in self._own:
            assert self._registry is not None, "operators came with their registry"
            return InProcessJudge(
                resolve(task.reference, self._registry),
                device=self._device,
                dtype=task.dtype,
                direction=task.direction,
            )
        return SupervisedJudge(
            reference=task.reference,
            device=self._device,
            dtype=task.dtype,
            direction=task.direction,
            child=self._child,
        )

    def _seed(self, cell: str) -> int:
        if self._settings.seed is not None:
            return hash_words(cell, self._settings.seed)
        # The same cases in every run, and in tests/props.
        return hash_words(cell) if self._profile.derandomized else secrets.randbits(32)

    def _keep(self) -> Callable[[Fixture], str] | None:
        if self._settings.store is None:
            return None
        store = Store(self._settings.store)
        return lambda fixture: _shown(store.save(fixture))

    def _tried(self, task: PartsTask) -> Tried:
        """Judge the failing cases of a composite again, with other parts in the place of its own.

        Here and not in a child: the composite has run before without bringing anything down.
        """
        registry = self._registry or build_registry()
        try:
            kernel, words = with_parts(
                resolve(task.reference, registry),
                registry,
                parts=task.parts,
                backends=task.backends,
                direction=task.direction,
            )
            judge = InProcessJudge(
                kernel, device=self._device, dtype=task.dtype, direction=task.direction
            )
            outcomes = [judge.judge(case) for case in task.cases]
        except BipropError as error:
            return Tried(status="independent", reason=f"It could not be tried: {error}")
        failing = [item for item in outcomes if item.verdict.is_violation or item.rejected]
        if failing:
            verdict = "raises" if failing[0].rejected else str(failing[0].verdict)
            return Tried(status="independent", reason=f"With {words} it {verdict} all the same.")
        return Tried(status="downstream", reason=f"With {words} it holds.")


def _shown(path: Path) -> str:
    """Return a path as one would type it here."""
    folder = Path.cwd().resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

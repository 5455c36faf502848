"""What a process of a run of power does: the trials that it is given, one after the other.

Started by `biprop.power.pool` and asked by pickled records. Biprop's own planted kernels run here;
targets of a manifest run in a worker behind this process, which all its trials share.
"""

import contextlib
import os
import signal
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import attrs
import torch

from biprop.case import Dtype
from biprop.errors import BipropError
from biprop.power.benches import Bench, open_bench
from biprop.power.smallest import known_smallest
from biprop.power.subjects import Subject
from biprop.power.trials import trial_of, twin_trial_of
from biprop.provenance import Provenance, collect
from biprop.reports.power import MethodName, Trial, TwinTrial
from biprop.supervision import Child

__all__ = ["Answer", "Ready", "Task", "make", "serve"]


@attrs.frozen(kw_only=True)
class Task:
    """One trial to be made.

    Attributes:
        subject: Of which.
        dtype: Of the cases.
        method: What draws them.
        seed: Of them.
        examples: At most.
        healthy: Whether the twin is judged.
        is_shrunk: Whether what failed is shrunk.
    """

    subject: Subject
    dtype: Dtype
    method: MethodName
    seed: int
    examples: int
    healthy: bool = False
    is_shrunk: bool = False

    def failed(self, error: str) -> Trial | TwinTrial:
        """Return the trial that did not end, with the reason."""
        kind = TwinTrial if self.healthy else Trial
        return kind(
            method=self.method, cell=self.subject.cell(self.dtype), seed=self.seed, error=error
        )


@attrs.frozen(kw_only=True)
class Ready:
    """A process can be given tasks.

    Attributes:
        provenance: Of the process.
    """

    provenance: Provenance


Answer = Ready | Trial | TwinTrial


def serve(connection: Connection, device: str) -> None:
    """Make trials until there is none; the target of a process."""
    _prepare(device)
    child = Child(device=device, threads=1)
    # The other side is gone, or has told that there is no more.
    with contextlib.suppress(EOFError, OSError):
        connection.send(Ready(provenance=collect(device)))
        while (task := connection.recv()) is not None:
            connection.send(make(task, device, child))
    child.close()


def _prepare(device: str) -> None:
    """Set what kernels and torch read, for this process and its worker."""
    # Ctrl-C is for whoever started this process, which ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # One process a core: threads of their own would only compete.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    if device == "cpu":
        # Triton compiles for no CPU; whoever wants it otherwise has said so already.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a process of a pool is started by another"
    wait([parent.sentinel])
    os._exit(1)


def make(task: Task, device: str, child: Child) -> Trial | TwinTrial:
    """Make one trial.

    Args:
        task: Which.
        device: Where biprop's own planted kernels run.
        child: Worker that runs targets of a manifest.
    """
    try:
        bench = open_bench(
            task.subject, task.dtype, device=device, child=child, healthy=task.healthy
        )
        try:
            return _on(bench, task, device)
        finally:
            bench.close()
    except BipropError as error:
        return task.failed(str(error))
    # A mistake of biprop or of a planted kernel: the whole story to people, a sentence to the
    # report.
    except Exception as error:  # noqa: BLE001  # reported, not swallowed
        traceback.print_exc()
        return task.failed(f"The trial failed with {type(error).__name__}: {error}")


def _on(bench: Bench, task: Task, device: str) -> Trial | TwinTrial:
    cell = task.subject.cell(task.dtype)
    if task.healthy:
        return twin_trial_of(bench, cell, task.method, seed=task.seed, examples=task.examples)
    return trial_of(
        bench,
        cell,
        task.method,
        seed=task.seed,
        examples=task.examples,
        is_shrunk=task.is_shrunk,
        smallest=known_smallest(task.subject, task.dtype, device=device),
    )

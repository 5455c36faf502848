"""What a process of a campaign does with its tasks: run one, record what it showed, then the next.

Started by `biprop.campaign.crew`. What a task is about is left to `Hands`; here are the process,
its signals, and the order in which things are written, on which it rests that nothing is lost and
nothing counted twice: first the cases that are launched, then causes, then the record of the epoch,
and only then is taken away what says that the epoch is under way.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import attrs

from biprop.campaign.log import Log, Stopping
from biprop.campaign.messages import (
    Answer,
    EpochDone,
    EpochTask,
    Hands,
    MinimiseDone,
    MinimiseTask,
    Ready,
    ReplayDone,
    ReplayTask,
    Settings,
    Shown,
    Task,
)
from biprop.campaign.records import ATTEMPTS_MAX, FORMAT, EpochRecord, ReplayRecord, TaskKind

__all__ = ["run_task", "serve"]

# A launch may end by itself in this time after a stop was asked for; then it is broken off.
_SECONDS_TO_BREAK = 3.0
_SECONDS_SHIELDED = 0.2


def serve(connection: Connection, settings: Settings, worker: int, device: str) -> None:
    """Run tasks until there is none, or a stop is asked for; the target of a process."""
    stopping = Stopping()
    _prepare(settings, device, stopping)
    hands = settings.open_hands(settings, device)

    def tell(answer: Answer) -> None:
        # A parent that is gone ends this process by itself.
        with stopping.shielded(), suppress(OSError):
            connection.send(answer)

    tell(Ready())
    # The other side is gone, or has told that there is no more.
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while not stopping.is_asked:
            task: Task | None = connection.recv()
            if task is None:
                break
            tell(
                run_task(
                    task,
                    hands,
                    settings=settings,
                    worker=worker,
                    device=device,
                    stopping=stopping,
                    tell=tell,
                )
            )
    with suppress(KeyboardInterrupt):
        hands.close()


def run_task(
    task: Task,
    hands: Hands,
    *,
    settings: Settings,
    worker: int,
    device: str,
    stopping: Stopping,
    tell: Callable[[Answer], None],
) -> Answer:
    """Run one task, and return what came of it, which is stored by then.

    Args:
        task: What is asked for.
        hands: What does it.
        settings: Of the campaign.
        worker: Number of this process.
        device: Where it runs kernels.
        stopping: Whether a stop was asked for.
        tell: Gets what happens meanwhile.
    """
    kind, about = _named(task)
    log = Log(
        task,
        kind=kind,
        about=about,
        worker=worker,
        device=device,
        settings=settings,
        stopping=stopping,
        tell=tell,
    )
    if isinstance(task, EpochTask):
        return _epoch(task, hands, log)
    if isinstance(task, MinimiseTask):
        return _minimise(task, hands, log)
    return _replay(task, hands, log)


def _epoch(task: EpochTask, hands: Hands, log: Log) -> EpochDone:
    start = time.monotonic() - log.seconds_waited
    try:
        shown = hands.search(task, log)
    except KeyboardInterrupt:
        # Broken off where a search could not say itself what it has.
        shown = _counted(log)
    record = EpochRecord(
        format=FORMAT,
        campaign=log.begun.campaign,
        worker=log.begun.worker,
        number=task.number,
        cell=task.cell.id,
        device=log.begun.device,
        seed=task.seed,
        began=log.begun.began,
        seconds=time.monotonic() - start - log.seconds_waited,
        seconds_waited=log.seconds_waited,
        behaviours=tuple(log.behaviours.texts),
        behaviour_count=len(log.behaviours.found),
        **{name: getattr(shown, name) for name in attrs.fields_dict(Shown) if name != "provenance"},
    )
    is_stored = log.keep(lambda: log.store.write_epoch(record))
    _over(log, is_stored=is_stored)
    return EpochDone(
        record=record,
        behaviours=frozenset(log.behaviours.found),
        provenance=shown.provenance,
        is_stored=is_stored,
    )


def _minimise(task: MinimiseTask, hands: Hands, log: Log) -> MinimiseDone:
    held = attrs.evolve(task.cause, status="minimising")
    log.keep(lambda: log.store.update_cause(held))
    try:
        done = hands.minimise(task, log)
    except KeyboardInterrupt:
        done = MinimiseDone(cause=attrs.evolve(task.cause, status="raw"), is_stopped=True)
        log.keep(lambda: log.store.update_cause(done.cause))
    if done.error:
        attempts = task.cause.attempts + 1
        cause = attrs.evolve(
            task.cause,
            status="raw",
            attempts=attempts,
            settled=time.time() if attempts >= ATTEMPTS_MAX else None,
        )
        log.keep(lambda: log.store.update_cause(cause))
        done = attrs.evolve(done, cause=cause)
    log.store.release_minimising(task.cause.digest)
    _over(log, is_stored=True)
    return done


def _replay(task: ReplayTask, hands: Hands, log: Log) -> ReplayDone:
    try:
        status = hands.replay(task, log)
    except KeyboardInterrupt:
        _over(log, is_stored=True)
        return ReplayDone(record=None)
    record = ReplayRecord(
        format=FORMAT,
        fixture=task.fixture,
        status=status,
        at=time.time(),
        campaign=log.begun.campaign,
    )
    log.keep(lambda: log.store.write_replay(record))
    _over(log, is_stored=True)
    return ReplayDone(record=record)


def _over(log: Log, *, is_stored: bool) -> None:
    """Take away what says that the task is under way.

    Where its record could not be stored, that stays: the next campaign records what it says.
    """
    with log.stopping.shielded():
        if is_stored:
            log.store.remove_begun(log.begun.name)
        else:
            log.store.remove_running(log.begun.name)


def _counted(log: Log) -> Shown:
    return Shown(
        verdict="ERROR",
        message="It was stopped.",
        examples=log.examples,
        launches=log.launches,
        compared=log.compared,
        seconds_in_kernels=log.seconds_in_kernels,
        findings=log.begun.findings,
        is_stopped=True,
    )


def _named(task: Task) -> tuple[TaskKind, str]:
    if isinstance(task, EpochTask):
        return "epoch", ""
    if isinstance(task, MinimiseTask):
        return "minimise", task.cause.digest
    return "replay", task.fixture


def _prepare(settings: Settings, device: str, stopping: Stopping) -> None:
    """Set signals, and what kernels, torch and Hypothesis read, for this process and its child."""

    def break_off(*_: object) -> None:
        if stopping.shields:
            signal.setitimer(signal.ITIMER_REAL, _SECONDS_SHIELDED)
            return
        raise KeyboardInterrupt

    def ask(*_: object) -> None:
        if not stopping.is_asked:
            stopping.is_asked = True
            signal.setitimer(signal.ITIMER_REAL, _SECONDS_TO_BREAK)

    # Ctrl-C is for whoever started this process, which then tells it by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGALRM, break_off)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(settings.store / "engine"))
    # One process a core: threads of their own would only compete.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if device == "cpu":
        # Triton compiles for no CPU; whoever wants it otherwise has said so already.
        os.environ.setdefault("TRITON_INTERPRET", "1")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a process of a campaign is started by another"
    wait([parent.sentinel])
    os._exit(1)

"""What the parent of a campaign knows and decides: tasks, causes, sums, and what is told of them.

Driven by `biprop.campaign.run`, which owns the processes. Known findings are run again first, other
findings of earlier campaigns by one process at a time; a cause is shrunk as soon as a process is
free, by no more than half of them. No process does either twice between two epochs, so that these
go on meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from biprop.campaign.causes import Causes, data_of, shrunk_in_words, told
from biprop.campaign.cells import Cell
from biprop.campaign.crew import Answered, Crew, Died
from biprop.campaign.events import Doing, Event, EventKind, Status, Working
from biprop.campaign.files import full_in_words, is_full
from biprop.campaign.messages import (
    Answer,
    Done,
    EpochDone,
    EpochTask,
    Found,
    MinimiseDone,
    MinimiseTask,
    Progress,
    ReplayDone,
    ReplayTask,
    Task,
    Waiting,
)
from biprop.campaign.records import (
    FORMAT,
    CampaignRecord,
    CauseRecord,
    EpochRecord,
    Heartbeat,
    Known,
    ReplayRecord,
)
from biprop.campaign.recovery import Lost, recover, take_up
from biprop.campaign.replays import Replays
from biprop.campaign.scheduler import Scheduler
from biprop.campaign.snapshot import CellSum
from biprop.campaign.store import Store
from biprop.campaign.text import counted
from biprop.case import Json
from biprop.data.words import hash_words
from biprop.generation import Sweep

__all__ = ["Parent"]

_SECONDS_A_HEARTBEAT = 30.0
_SECONDS_A_STATUS = 1.0
# Of so many epochs of a cell, one draws all classes, those that were found to fail too.
_WHOLE_EVERY = 4
# Turns of a sweep between epochs of one cell that run at once: about what one of them takes.
_TURNS_APART = 64


@attrs.define(kw_only=True, eq=False)
class _Worker:
    """What one process was given."""

    number: int = 0
    task: Task | None = None
    since: float = 0.0
    progress: Progress | None = None
    # Since its last epoch.
    has_shrunk: bool = False
    has_replayed: bool = False
    waiting: str = ""


@attrs.define(kw_only=True, eq=False)
class _Totals:
    """Sums of this campaign."""

    epochs: int = 0
    examples: int = 0
    compared: int = 0
    in_kernels: float = 0.0
    worked: float = 0.0
    lost: int = 0


class Parent:
    """The parent of one campaign."""

    def __init__(
        self,
        *,
        store: Store,
        record: CampaignRecord,
        ledger: Sequence[Known],
        cells: Sequence[Cell],
        deadline: float,
        seconds_an_epoch: float,
        tell: Callable[[Event], None],
    ) -> None:
        """Read what earlier campaigns left in the store: sums, behaviours and causes."""
        self._store = store
        self._record = record
        self._ledger = tuple(ledger)
        self._deadline = deadline
        self._seconds_an_epoch = seconds_an_epoch
        self._tell_event = tell
        self._start = time.monotonic()
        self._beat_at = self._status_at = -1e9
        self._is_stopping = False
        self._scheduler = Scheduler(cells, seed=record.seed)
        self._sums: dict[str, CellSum] = {}
        self._causes = Causes(ledger=self._ledger, sums=self._sums)
        self._to_shrink: deque[str] = deque()
        self._to_replay = Replays({}, (), {}, cells=())
        self._to_take_up: list[Died] = []
        self._workers = [_Worker() for _ in range(record.workers)]
        self._totals = _Totals()
        self._waiting = ""

    def begin(self, recovered: Sequence[Lost]) -> None:
        """Take over what the store holds, what was just recovered included."""
        for epoch in self._store.each_epoch():
            turn = self._scheduler.turns.get(epoch.cell)
            if turn is None:
                continue
            turn.epochs += 1
            turn.begun += 1
            turn.seconds += epoch.seconds
            turn.known.update(hash_words(text) for text in epoch.behaviours)
            self._sums.setdefault(epoch.cell, CellSum()).add(epoch)
        # What was just recovered has been told to nobody.
        news = {
            cause.digest
            for lost in recovered
            for cause in lost.causes
            if lost.is_epoch and cause.settled is None
        }
        stored = self._store.causes()
        self._causes.put(*(stored[digest] for digest in stored if digest not in news))
        self._causes.replays.update(self._store.replays())
        self._to_shrink.extend(
            digest
            for digest, record in self._causes.records.items()
            if self._wants_shrinking(record)
        )
        self._beat()
        count = counted(len(self._scheduler.turns), "cell")
        self._tell("begun", f"Campaign {self._record.id}: {count}.", id=self._record.id)
        for lost in recovered:
            self._tell_lost(lost)
        self._plan_replays()

    def seconds_left(self) -> float:
        """Return how much of the budget is left."""
        return self._deadline - time.monotonic()

    def has_nothing_left(self) -> bool:
        """Say whether no task is left to hand out."""
        is_waiting = self._to_shrink or self._to_replay or self._to_take_up
        return self._is_searched() and not is_waiting

    def next_task(self, worker: int) -> Task | None:
        """Return the next task of a process; None where there is none for it."""
        slot = self._workers[worker]
        task = self._replay_task(slot) or self._shrink_task(slot) or self._epoch_task(slot)
        if task is not None:
            slot.task, slot.since, slot.progress = task, time.monotonic(), None
            is_epoch = isinstance(task, EpochTask)
            slot.has_shrunk = not is_epoch and (slot.has_shrunk or isinstance(task, MinimiseTask))
            slot.has_replayed = not is_epoch and (slot.has_replayed or isinstance(task, ReplayTask))
        return task

    def hear(self, event: Answered | Died) -> None:
        """Take what a process said, or that it ended."""
        slot = self._workers[event.worker]
        if isinstance(event, Died):
            self._totals.lost += event.task is not None
            self._to_take_up.append(event)
            slot.waiting = ""
            return
        answer = event.answer
        slot.waiting = answer.reason if isinstance(answer, Waiting) else ""
        if isinstance(answer, Progress):
            slot.progress = answer
            return
        if isinstance(answer, Done):
            slot.task, slot.progress = None, None
        self._take(answer)

    def take_up(self, crew: Crew) -> None:
        """Take up what processes that died left behind, then have them replaced."""
        for died in tuple(self._to_take_up):
            if self._taken_up(died):
                self._to_take_up.remove(died)
                self._workers[died.worker].task = None
                crew.renew(died.worker)

    def look(self) -> None:
        """Say that the campaign runs, and how it stands, when it is time to."""
        now = time.monotonic()
        if now - self._beat_at >= _SECONDS_A_HEARTBEAT:
            self._beat()
            self._look_around()
        if now - self._status_at >= _SECONDS_A_STATUS:
            self._status_at = now
            self._tell("status")

    def stopping(self) -> None:
        """Hand out nothing more."""
        self._is_stopping = True
        self._tell("stopping", "Stopping: what runs is ended and recorded.")

    def end(self, reason: str) -> CampaignRecord:
        """Record what killed processes were doing, and that the campaign is over."""
        self._is_stopping = True
        try:
            for worker in range(len(self._workers)):
                died = next((item for item in self._to_take_up if item.worker == worker), None)
                task = self._workers[worker].task if died is None else died.task
                words = "was ended with its campaign" if died is None else died.words
                self._record_end(worker, task, words, is_stopped=died is None)
            self._record = attrs.evolve(self._record, ended=time.time(), reason=reason)
            self._store.write_campaign(self._record)
            # Others may have written into the store meanwhile.
            self._causes.put(*self._store.causes().values())
            self._causes.replays.update(self._store.replays())
        except OSError as error:
            # The next campaign finds what is left.
            self._waiting = error.strerror or str(error)
        self._store.remove_heartbeat(self._record.place)
        self._tell("ended", reason=reason, id=self._record.id)
        return self._record

    def _look_around(self) -> None:
        """Take up what other campaigns of the store have left since this one began."""
        try:
            found = recover(self._store, campaign=self._record.id, is_begun=True)
        except OSError as error:
            if not is_full(error):
                raise
            return
        for lost in found:
            self._tell_lost(lost)

    def _taken_up(self, died: Died) -> bool:
        try:
            self._record_end(died.worker, died.task, died.words, is_stopped=False)
        except OSError as error:
            if not is_full(error):
                raise
            self._waiting = full_in_words(error, self._store.path)
            return False
        self._waiting = ""
        return True

    def _record_end(self, worker: int, task: Task | None, words: str, *, is_stopped: bool) -> None:
        """Record what a process was doing that is gone."""
        name = f"{self._record.id}-{worker}"
        lost = take_up(
            self._store, name, campaign=self._record.id, words=words, is_stopped=is_stopped
        )
        if isinstance(task, EpochTask):
            # It may have recorded the epoch, and ended before it could say so.
            stored = self._store.epoch(f"{name}-{task.number}")
            if stored is None:
                self._scheduler.not_begun(task.cell.id)
            else:
                self._count(stored)
        elif isinstance(task, MinimiseTask):
            cause = self._store.cause(task.cause.digest)
            self._store.release_minimising(task.cause.digest)
            if cause is not None:
                self._causes.put(cause)
                if self._wants_shrinking(cause) and not is_stopped:
                    self._to_shrink.append(cause.digest)
        if lost is not None and not is_stopped:
            self._tell_lost(lost)

    def _replay_task(self, slot: _Worker) -> Task | None:
        is_alone = not any(isinstance(other.task, ReplayTask) for other in self._workers)
        has_time = is_alone and (not slot.has_replayed or self._is_searched())
        record = None if self._is_stopping else self._to_replay.next(has_time=has_time)
        if record is None:
            return None
        slot.number += 1
        cell = self._scheduler.turns[record.cell].cell
        return ReplayTask(number=slot.number, cell=cell, fixture=record.fixture)

    def _is_searched(self) -> bool:
        """Say whether no cell can be searched any further."""
        return all(turn.over for turn in self._scheduler.turns.values())

    def _shrink_task(self, slot: _Worker) -> Task | None:
        shrinking = sum(isinstance(other.task, MinimiseTask) for other in self._workers)
        is_enough = slot.has_shrunk or shrinking >= max(1, len(self._workers) // 2)
        may = self._is_searched() or not is_enough
        if self._is_stopping or not may:
            return None
        holder = Heartbeat(
            format=FORMAT, campaign=self._record.id, place=self._record.place, at=time.time()
        )
        while self._to_shrink:
            digest = self._next_to_shrink()
            cause = self._store.cause(digest)
            if cause is None or not self._wants_shrinking(cause):
                continue
            try:
                is_ours = self._store.claim_minimising(digest, holder)
            except OSError as error:
                if not is_full(error):
                    raise
                self._to_shrink.appendleft(digest)
                return None
            if is_ours:
                slot.number += 1
                return MinimiseTask(
                    number=slot.number,
                    cell=self._scheduler.turns[cause.cell].cell,
                    cause=cause,
                    is_first=not any(
                        other.cell == cause.cell and other.status == "minimal"
                        for other in self._causes.records.values()
                    ),
                )
        return None

    def _next_to_shrink(self) -> str:
        """Take the oldest cause of a cell that has no smallest case yet; without one, the oldest.

        Where many cells fail, the second causes of some must not keep all others waiting.
        """
        served = {
            cause.cell for cause in self._causes.records.values() if cause.status == "minimal"
        }
        for digest in self._to_shrink:
            cause = self._causes.records.get(digest)
            if cause is not None and cause.cell not in served:
                self._to_shrink.remove(digest)
                return digest
        return self._to_shrink.popleft()

    def _epoch_task(self, slot: _Worker) -> Task | None:
        left = self.seconds_left()
        turn = None if self._is_stopping or left <= 0 else self._scheduler.next()
        if turn is None:
            return None
        slot.number += 1
        total = self._sums.get(turn.cell.id)
        is_whole = turn.begun % _WHOLE_EVERY == 0
        return EpochTask(
            number=slot.number,
            cell=turn.cell,
            seed=hash_words(turn.cell.id, self._record.seed, turn.begun),
            seconds=min(self._seconds_an_epoch, left),
            is_first=not turn.epochs,
            lacks_power=total is None or bool(total.lacking()) or not total.classes,
            excluded=() if is_whole else self._causes.exclusions(turn.cell.id),
            known=frozenset(turn.known),
            sweep=Sweep(
                seed=hash_words("sweep", turn.cell.id, self._record.seed),
                index=self._swept(turn.cell.id),
            ),
        )

    def _swept(self, cell: str) -> int:
        """Return where the sweep of a cell goes on, apart from where its other epochs are at it."""
        tasks = (worker.task for worker in self._workers)
        others = sum(isinstance(task, EpochTask) and task.cell.id == cell for task in tasks)
        return (self._sums[cell].swept if cell in self._sums else 0) + _TURNS_APART * others

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Found):
            self._add_cause(answer.cause)
        elif isinstance(answer, EpochDone):
            if self._record.provenance is None and answer.provenance is not None:
                provenance = attrs.evolve(answer.provenance, target_digest="", actual_backend="")
                self._record = attrs.evolve(self._record, provenance=provenance)
                self._write_record()
            self._count(answer.record, answer.behaviours)
            if not answer.is_stored:
                name = answer.record.name
                self._tell(
                    "waiting", f"The disk is full: epoch {name} counts up to its last case on disk."
                )
        elif isinstance(answer, MinimiseDone):
            self._shrunk(answer)
        elif isinstance(answer, ReplayDone) and answer.record is not None:
            self._replayed(answer.record)

    def _replayed(self, record: ReplayRecord) -> None:
        """Tell how a finding of an earlier campaign did."""
        for cause, was_fixed, is_fixed in self._causes.take_replay(record):
            data: dict[str, Json] = {**data_of(cause), "status": record.status}
            if is_fixed and self._causes.is_known(cause.digest):
                text = f"The ledger names {told(cause)}, which fails no more: take the entry out."
                self._tell("stale", text, **data)
            elif is_fixed:
                self._tell("fixed", f"fixed: {told(cause)} fails no more", **data)
            elif was_fixed and record.status in {"FAILED", "DIFFERENT"}:
                self._tell("found", f"found again: {told(cause)}", **data)

    def _count(self, record: EpochRecord, behaviours: frozenset[int] = frozenset()) -> None:
        """Count an epoch that is recorded."""
        self._sums.setdefault(record.cell, CellSum()).add(record)
        was_over = self._scheduler.turns[record.cell].over
        turn = self._scheduler.ended(record, behaviours)
        totals = self._totals
        totals.epochs += 1
        totals.examples += record.examples
        totals.compared += record.compared
        totals.in_kernels += record.seconds_in_kernels or 0.0
        totals.worked += record.seconds
        self._tell(
            "epoch",
            cell=record.cell,
            # Of the epoch alone: what the cell has shown is told by its whole store.
            epoch_verdict=record.verdict,
            examples=record.examples,
            launches=record.launches,
            compared=record.compared,
            seconds=round(record.seconds, 3),
            behaviours=record.behaviour_count,
            findings=[finding.cause for finding in record.findings],
            lost=record.is_lost,
        )
        if turn.over and not was_over:
            text = f"{record.cell} is not searched any further: {turn.over}"
            self._tell("over", text, cell=record.cell, message=turn.over)

    def _add_cause(self, record: CauseRecord) -> None:
        is_back = record.digest in self._causes.records
        if not self._causes.take_found(record):
            return
        if self._wants_shrinking(record):
            self._to_shrink.append(record.digest)
        is_known = self._causes.is_known(record.digest)
        words = "known" if is_known else "found again" if is_back else "found"
        text = f"{words}: {told(record)}"
        if record.is_lost and not is_known:
            # Most are lost by what has nothing to do with them.
            text = f"to be judged again: {told(record)}, which was lost with its process"
        self._tell("found", text, **data_of(record))

    def _shrunk(self, done: MinimiseDone) -> None:
        cause = done.cause
        before = self._causes.records.get(cause.digest, cause)
        self._causes.put(cause)
        if done.error:
            if cause.settled is None:
                self._to_shrink.append(cause.digest)
            self._tell("note", f"{told(cause)} cannot be shrunk: {done.error}", **data_of(cause))
            return
        if self._causes.held_last(cause.same_as):
            back = self._store.cause(cause.same_as)
            if back is not None and self._causes.take_found(back):
                self._tell("found", f"found again: {told(back)}", **data_of(back))
        self._tell_shrunk(before, cause)
        # Whoever shrank it may have merged these too.
        for digest, other in self._causes.records.items():
            is_waiting = other.status == "raw" and not other.same_as and digest != cause.digest
            if is_waiting and other.name == cause.name:
                stored = self._store.cause(digest)
                if stored is not None and stored.same_as:
                    self._causes.put(stored)
                    self._tell_shrunk(other, stored)
        if cause.status == "raw" and cause.found_by != self._record.id and not done.is_stopped:
            self._to_replay.add(cause)

    def _tell_shrunk(self, before: CauseRecord, after: CauseRecord) -> None:
        other = self._causes.records.get(after.same_as)
        text = shrunk_in_words(before, after, other)
        if text:
            self._tell("small", text, **data_of(after))

    def _tell_lost(self, lost: Lost) -> None:
        begun = lost.begun
        cell = begun.cell or "nothing"
        text = f"lost: a process with {cell}"
        if lost.epoch is not None:
            text += f"; {lost.epoch.message[0].lower()}{lost.epoch.message[1:]}"
        self._tell("lost", text, cell=begun.cell, campaign=begun.campaign, worker=begun.worker)
        if lost.is_epoch:
            for cause in lost.causes:
                self._add_cause(cause)

    def _plan_replays(self) -> None:
        """Have what earlier campaigns found run again."""
        self._to_replay = Replays(
            self._causes.records,
            self._ledger,
            self._causes.replays,
            cells=self._scheduler.turns.keys(),
        )
        for entry in self._to_replay.unknown:
            text = f"The ledger names {entry.cause!r}, which the store does not hold."
            self._tell("note", text)

    def _wants_shrinking(self, record: CauseRecord) -> bool:
        return (
            record.is_waiting
            and record.cell in self._scheduler.turns
            and not self._causes.is_known(record.digest)
        )

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        beat = Heartbeat(
            format=FORMAT, campaign=self._record.id, place=self._record.place, at=time.time()
        )
        try:
            self._store.write_heartbeat(beat)
        except OSError as error:
            if not is_full(error):
                raise
            self._waiting = full_in_words(error, self._store.path)

    def _write_record(self) -> None:
        try:
            self._store.write_campaign(self._record)
        except OSError as error:
            if not is_full(error):
                raise

    def _tell(self, kind: EventKind, text: str = "", **data: Json) -> None:
        self._tell_event(
            Event(kind=kind, at=time.time(), text=text, data=data, status=self.status())
        )

    def status(self) -> Status:
        """Return how the campaign stands."""
        now = time.monotonic()
        seconds = max(now - self._start, 1e-3)
        turns = self._scheduler.turns.values()
        totals = self._totals
        # What is judged to shrink a cause, or to run one again, is no example of the search.
        searching = [slot for slot in self._workers if isinstance(slot.task, EpochTask)]
        under_way = [slot.progress for slot in searching if slot.progress is not None]
        busy = sum(now - slot.since for slot in searching if slot.progress is not None)
        examples = totals.examples + sum(item.examples for item in under_way)
        compared = totals.compared + sum(item.compared for item in under_way)
        in_kernels = totals.in_kernels + sum(item.seconds_in_kernels for item in under_way)
        causes = self._causes.counts()
        waits = next((slot.waiting for slot in self._workers if slot.waiting), self._waiting)
        return Status(
            seconds=seconds,
            seconds_left=max(0.0, self._deadline - now),
            cells=len(turns),
            cells_seen=sum(bool(turn.epochs) for turn in turns),
            cells_over=sum(bool(turn.over) for turn in turns),
            epochs=totals.epochs,
            examples=examples,
            examples_a_second=examples / seconds,
            compared_a_second=compared / seconds,
            share_in_kernels=in_kernels / max(totals.worked + busy, 1e-9),
            findings=causes["finding"],
            to_shrink=sum(map(self._wants_shrinking, self._causes.records.values())),
            known=causes["known"],
            fixed=causes["fixed"],
            lost=totals.lost,
            waiting=waits,
            workers=tuple(_working(number, slot, now) for number, slot in enumerate(self._workers)),
        )


def _working(number: int, slot: _Worker, now: float) -> Working:
    task = slot.task
    if task is None:
        return Working(worker=number, doing="idle")
    doing: Doing = "replays"
    if slot.waiting:
        doing = "waits"
    elif isinstance(task, EpochTask):
        doing = "searches"
    elif isinstance(task, MinimiseTask):
        doing = "shrinks"
    return Working(
        worker=number,
        doing=doing,
        cell=task.cell.id,
        seconds=now - slot.since,
        examples=0 if slot.progress is None else slot.progress.examples,
    )

"""What a process of a campaign does: search a cell, make a cause small, run a known finding again.

Kernels and caches run in a child (`biprop.supervision`), every launch is written into a `Log`
before it is made, and searches are those of `biprop.strategies`; only what they are told is decided
here. Failures are not shrunk in an epoch: they are stored as they are, and the epoch goes on.
"""

import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs

from biprop.campaign.cells import CacheWork, KernelWork
from biprop.campaign.log import CaseJournal, Log
from biprop.campaign.messages import (
    EpochTask,
    Hands,
    MinimiseDone,
    MinimiseTask,
    ReplayTask,
    Settings,
    Shown,
)
from biprop.campaign.records import EpochFinding
from biprop.campaign.replays import status_of
from biprop.campaign.small import minimised_case, minimised_program
from biprop.campaign.watching import WatchedJudge, WatchedPrograms
from biprop.errors import BipropError, WorkerKilledError
from biprop.fixtures.program_replay import replay_program
from biprop.fixtures.programs import AnyFixture, ProgramFixture
from biprop.fixtures.records import Fixture
from biprop.fixtures.replay import replay
from biprop.generation import Space
from biprop.reports.program_records import CacheReport
from biprop.reports.records import CellReport, ClassCount
from biprop.strategies.profiles import PROFILES, Profile
from biprop.strategies.programs import InterruptedProgramsError, search_programs
from biprop.strategies.search import InterruptedSearchError, search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision import Child, SupervisedJudge
from biprop.supervision.output import Tail
from biprop.supervision.programs import SupervisedPrograms

__all__ = ["CAMPAIGN", "SearchHands", "open_search_hands"]

# As large cases as in the nightly slice, as many as the time of an epoch allows, and none shrunk.
CAMPAIGN: Profile = attrs.evolve(PROFILES["nightly"], minimise_runs=0, minimise_seconds=0.0)
# Kernels that a child has opened stay in its memory; a new one is started now and then.
_OPENS_MAX = 256
_Report = TypeVar("_Report", CellReport, CacheReport)


def open_search_hands(settings: Settings, device: str) -> Hands:
    """Return the hands of a process that searches on a device."""
    return SearchHands(settings, device)


class SearchHands:
    """Searches by `biprop.strategies`, in one child after the other."""

    def __init__(self, settings: Settings, device: str) -> None:
        """Start no child yet; what children print is read from now on."""
        self._settings = settings
        self._device = device
        # What targets print would bury how the campaign stands.
        self._output = Tail()
        self._child = Child(device=device, threads=1, output=self._output)
        self._opens = 0

    def search(self, task: EpochTask, log: Log) -> Shown:
        """Search a cell for an epoch; what goes wrong is shown, not raised."""
        work = task.cell.work
        try:
            if isinstance(work, CacheWork):
                return self._search_cache(task, work, log)
            return self._search_kernel(task, work, log)
        except WorkerKilledError as error:
            # Whoever did that had nothing against the cell, which is searched again.
            return attrs.evolve(_went_wrong(log, str(error)), is_lost=True)
        except BipropError as error:
            return _went_wrong(log, str(error))
        # A mistake of biprop itself: the whole story to people, a sentence to the record.
        except Exception as error:  # noqa: BLE001  # recorded, not swallowed
            traceback.print_exc()
            message = f"The search itself failed with {type(error).__name__}: {error}"
            return _went_wrong(log, message)

    def minimise(self, task: MinimiseTask, log: Log) -> MinimiseDone:
        """Make a cause small, and store what came of it."""
        fixture = log.store.fixture(task.cause.fixture)
        work = task.cell.work
        try:
            if isinstance(fixture, ProgramFixture) and isinstance(work, CacheWork):
                return minimised_program(self._programs(work), fixture, task, log)
            if isinstance(fixture, Fixture) and isinstance(work, KernelWork):
                judge = self._judge(work, log)
                space = self._space(work, judge, profile=CAMPAIGN)
                return minimised_case(judge, space, fixture, task, log)
        except BipropError as error:
            return MinimiseDone(cause=task.cause, error=str(error))
        # As in search.
        except Exception as error:  # noqa: BLE001  # recorded, not swallowed
            traceback.print_exc()
            message = f"Shrinking itself failed with {type(error).__name__}: {error}"
            return MinimiseDone(cause=task.cause, error=message)
        return MinimiseDone(cause=task.cause, error="Its fixture cannot be read.")

    def replay(self, task: ReplayTask, log: Log) -> str:
        """Run a finding again; return its status (`biprop.campaign.replays`)."""
        fixture: AnyFixture | None = log.store.fixture(task.fixture)
        work = task.cell.work
        if isinstance(fixture, ProgramFixture) and isinstance(work, CacheWork):
            programs = WatchedPrograms(self._programs(work), log)
            return status_of(replay_program(fixture, lambda _: programs))
        if isinstance(fixture, Fixture) and isinstance(work, KernelWork):
            allowed = () if work.reference.is_registered else (work.reference.target,)
            judge = WatchedJudge(self._judge(work, log), log)
            return status_of(replay(fixture, lambda _: judge, allow_targets=allowed))
        return "ERROR"

    def close(self) -> None:
        """End the child."""
        self._child.close()
        self._output.close()

    def _search_kernel(self, task: EpochTask, work: KernelWork, log: Log) -> Shown:
        judge = self._judge(work, log)
        powered = 1 if task.lacks_power else 0
        profile = attrs.evolve(CAMPAIGN, powered_min=powered, powered_min_interpreted=powered)
        space = attrs.evolve(self._space(work, judge, profile=profile), excluded=task.excluded)
        try:
            report = search(
                WatchedJudge(judge, log),
                space,
                device=self._device,
                lane=lane_of(judge.description),
                profile=profile,
                max_examples=self._settings.max_examples,
                seconds_max=task.seconds,
                seed=task.seed,
                sweep=task.sweep,
                has_fixed=task.is_first,
                keep=_keeping(log),
            )
        except InterruptedSearchError as error:
            report = _ended_early(error.report, log)
        return attrs.evolve(_shown_of_cell(report, log), provenance=judge.description.provenance)

    def _search_cache(self, task: EpochTask, work: CacheWork, log: Log) -> Shown:
        judge = self._programs(work)
        try:
            report = search_programs(
                WatchedPrograms(judge, log, is_quick=True),
                layout=work.layout,
                dtype=work.dtype,
                device=self._device,
                profile="nightly",
                max_programs=self._settings.max_examples,
                seconds_max=task.seconds,
                seed=task.seed,
                has_smoke=task.is_first,
                keep=_keeping(log),
            )
        except InterruptedProgramsError as error:
            report = _ended_early(error.report, log)
        return attrs.evolve(_shown_of_cache(report, log), provenance=judge.provenance)

    def _judge(self, work: KernelWork, log: Log) -> SupervisedJudge:
        self._recycle()
        return SupervisedJudge(
            reference=work.reference,
            device=self._device,
            timeout=self._settings.timeout,
            dtype=work.dtype,
            direction=work.direction,
            child=self._child,
            journal=CaseJournal(log),
        )

    def _programs(self, work: CacheWork) -> SupervisedPrograms:
        self._recycle()
        return SupervisedPrograms(
            work.reference,
            device=self._device,
            timeout=self._settings.timeout,
            child=self._child,
        )

    def _space(self, work: KernelWork, judge: SupervisedJudge, *, profile: Profile) -> Space:
        return space_for(
            judge.reference,
            judge.description,
            dtype=work.dtype,
            direction=work.direction,
            transforms=work.classes,
            profile=profile,
            contract=self._settings.contract,
        )

    def _recycle(self) -> None:
        self._opens += 1
        if self._opens % _OPENS_MAX == 0:
            self._child.close()


def _keeping(log: Log) -> Callable[[AnyFixture], str]:
    """Return what stores a failure at once, so that it outlives its epoch."""
    return log.found


def _ended_early(report: _Report, log: Log) -> _Report:
    """Return the report of a search that was broken off.

    A search takes all for Ctrl-C, and says so: that its campaign was stopped or has spent its
    budget, that the time of its epoch is over, or that it found something.
    """
    message = "It was ended with its campaign." if log.stopping.is_asked else ""
    return attrs.evolve(report, message=message)


def _went_wrong(log: Log, message: str) -> Shown:
    """Return what an epoch showed that could not go on: what it had counted before."""
    return Shown(
        verdict="ERROR",
        message=message,
        examples=log.examples,
        launches=log.launches,
        compared=log.compared,
        seconds_in_kernels=log.seconds_in_kernels,
        findings=log.begun.findings,
    )


def _shown_of_cell(report: CellReport, log: Log) -> Shown:
    return Shown(
        verdict=report.verdict.value,
        message=report.message,
        is_stopped=log.stopping.is_asked,
        examples=_judged(report.examples, log),
        rejected=report.rejected,
        launches=report.launches,
        compared=log.compared,
        seconds_in_kernels=log.seconds_in_kernels,
        classes=dict(report.classes),
        power_kind=report.power_kind,
        power_share=report.power_share,
        swept=report.swept,
        findings=_counted(log, ((finding.path, finding.count) for finding in report.findings)),
        actual_backend=report.actual_backend,
    )


def _shown_of_cache(report: CacheReport, log: Log) -> Shown:
    return Shown(
        verdict=report.verdict.value,
        message=report.message,
        is_stopped=log.stopping.is_asked,
        examples=_judged(report.programs, log),
        launches=report.ops,
        compared=report.comparisons,
        seconds_in_kernels=log.seconds_in_kernels,
        classes=_power_of(report),
        coverage=dict(report.coverage),
        power_kind="order" if report.measured else "",
        power_share=report.power_share,
        findings=_counted(log, ((finding.path, finding.count) for finding in report.findings)),
        actual_backend=report.actual_backend,
    )


def _judged(count: int, log: Log) -> int:
    """Return how many cases were judged: fixed programs, and what was broken off, no report counts.

    As many were told while the epoch ran, and this is their record.
    """
    return max(count, log.examples)


def _power_of(report: CacheReport) -> dict[str, ClassCount]:
    """Return how many programs had power, as one class; none where it is not measured."""
    if not report.measured:
        return {}
    unpowered = report.measured - report.powered
    count = ClassCount(examples=report.measured, powered=report.powered, unpowered=unpowered)
    return {"programs": count}


def _counted(log: Log, found: Iterable[tuple[str, int]]) -> tuple[EpochFinding, ...]:
    """Return the causes of a report, which knows them by what `Log.found` gave it as a path.

    What Ctrl-C cut off before it was in the report was stored all the same.
    """
    counts: dict[str, int] = {finding.cause: 0 for finding in log.begun.findings}
    for digest, count in found:
        counts[digest] = counts.get(digest, 0) + count
    return tuple(
        EpochFinding(cause=digest, count=max(1, count)) for digest, count in counts.items()
    )

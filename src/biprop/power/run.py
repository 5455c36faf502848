"""Run power: make the trials of all methods, seeds and planted kernels, and report on them.

Trials that an earlier report holds are taken from it. Ctrl-C keeps what ended. Which cases a method
draws says `biprop.power.methods`, what a trial does `biprop.power.trials`.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import attrs

from biprop.errors import UsageError
from biprop.power.pool import made
from biprop.power.smallest import entries
from biprop.power.subjects import Subject
from biprop.power.working import Task
from biprop.provenance import source_digest
from biprop.reports.power import Cell, MethodName, PowerReport, Trial, TwinTrial
from biprop.reports.suite import Note

__all__ = ["PowerEvent", "Settings", "check_resumed", "run_power"]

# Examples of a twin as a share of those of a trial: five seeds of 200 make 500 a control.
_TWIN_SHARE = 2
# Methods that compare with a reference where a defect is the same in every batch.
_ACCURATE: tuple[MethodName, ...] = ("biprop", "plain-data")
# What is found by them is shrunk; others do not shrink.
_SHRINKING = _ACCURATE

# What tells trials apart: method, cell, seed, and whether it is one of a twin.
_Key = tuple[MethodName, Cell, int, bool]


@attrs.frozen(kw_only=True)
class Settings:
    """What is run.

    Attributes:
        command: What makes the report, to be typed again.
        methods: The one that the exit code is about first.
        examples: Of each trial, at most.
        seeds: Of the trials.
        device: As it was asked for.
    """

    command: str
    methods: tuple[MethodName, ...]
    examples: int
    seeds: tuple[int, ...]
    device: str


@attrs.frozen(kw_only=True)
class PowerEvent:
    """A trial that ended.

    Attributes:
        trial: What it showed.
        done: Trials that ended so far, those of an earlier report included.
        count: Trials of the run.
    """

    trial: Trial | TwinTrial
    done: int
    count: int


def run_power(
    subjects: Sequence[Subject],
    settings: Settings,
    *,
    devices: Sequence[str],
    workers: int,
    left_out: tuple[Note, ...] = (),
    earlier: PowerReport | None = None,
    tell: Callable[[PowerEvent], None] | None = None,
) -> PowerReport:
    """Make all trials, and return what they showed.

    Args:
        subjects: What is planted, of the dtypes wanted.
        settings: What is run.
        devices: That processes are spread over.
        workers: Trials at a time.
        left_out: Planted kernels that are not run, for the report.
        earlier: Report to be completed; its trials are not made again. None: all are made.
        tell: Gets an event whenever a trial ends.

    Raises:
        BipropError: The earlier report is of something else, or no process starts.
    """
    start = time.monotonic()
    if earlier is not None:
        check_resumed(earlier, settings)
    tasks = {_key(task): task for task in _tasks(subjects, settings)}
    held: list[Trial | TwinTrial] = []
    if earlier is not None:
        held = [*earlier.trials, *earlier.twins]
    found = {_key_of(trial): trial for trial in held if not trial.error and _key_of(trial) in tasks}
    provenance = None if earlier is None else earlier.provenance
    is_interrupted = False
    try:
        missing = [task for key, task in tasks.items() if key not in found]
        for ended in made(missing, devices=devices, workers=workers) if missing else ():
            trial, provenance = ended.trial, provenance or ended.provenance
            found[_key_of(trial)] = trial
            if tell is not None:
                tell(PowerEvent(trial=trial, done=len(found), count=len(tasks)))
    except KeyboardInterrupt:
        is_interrupted = True
    ordered = [found[key] for key in tasks if key in found]
    return PowerReport(
        command=settings.command,
        methods=settings.methods,
        examples=settings.examples,
        seeds=settings.seeds,
        device=settings.device,
        trials=tuple(trial for trial in ordered if isinstance(trial, Trial)),
        twins=tuple(trial for trial in ordered if isinstance(trial, TwinTrial)),
        left_out=left_out,
        provenance=provenance,
        workers=workers,
        seconds=time.monotonic() - start + (0.0 if earlier is None else earlier.seconds),
        is_interrupted=is_interrupted,
    )


def check_resumed(earlier: PowerReport, settings: Settings) -> None:
    """Refuse to complete a report of other sources, another device or fewer examples.

    Raises:
        UsageError: The sentence says what differs.
    """
    digest = "" if earlier.provenance is None else earlier.provenance.source_digest
    for what, old, new in (
        ("examples", earlier.examples, settings.examples),
        ("device", earlier.device, settings.device),
        # What others found is not shrunk, and their twins are not judged.
        ("first method", earlier.methods[0], settings.methods[0]),
        ("source_digest", digest or source_digest(), source_digest()),
    ):
        if old != new:
            raise UsageError(
                f"The report cannot be resumed: it has {what}={old}, and this run {what}={new}; "
                "write another file."
            )


def _tasks(subjects: Sequence[Subject], settings: Settings) -> Iterator[Task]:
    """Yield all trials, a method and a seed after the other, so that early ones say most."""
    known = entries()
    for place, method in enumerate(settings.methods):
        for seed in settings.seeds:
            for subject in subjects:
                if subject.relation == "A" and method not in _ACCURATE:
                    continue
                for dtype in subject.dtypes:
                    # Where it is the smallest on another device alone, what is left is shown.
                    is_known = "cost" in known.get((subject.name, dtype), {})
                    yield Task(
                        subject=subject,
                        dtype=dtype,
                        method=method,
                        seed=seed,
                        examples=settings.examples,
                        is_shrunk=method in _SHRINKING
                        and not place
                        and (is_known or subject.source == "target"),
                    )
        if not place:
            # Methods differ in what they draw, and the judge is one: the first stands for all.
            yield from _twins(subjects, settings, method)


def _twins(subjects: Sequence[Subject], settings: Settings, method: MethodName) -> Iterator[Task]:
    for seed in settings.seeds:
        seen: set[tuple[str, str]] = set()
        for subject in subjects:
            if not subject.twin or (subject.relation == "A" and method not in _ACCURATE):
                continue
            for dtype in subject.dtypes:
                if (subject.twin, dtype) not in seen:
                    seen.add((subject.twin, dtype))
                    yield Task(
                        subject=subject,
                        dtype=dtype,
                        method=method,
                        seed=seed,
                        examples=max(1, settings.examples // _TWIN_SHARE),
                        healthy=True,
                    )


def _key(task: Task) -> _Key:
    return task.method, task.subject.cell(task.dtype), task.seed, task.healthy


def _key_of(trial: Trial | TwinTrial) -> _Key:
    return trial.method, trial.cell, trial.seed, isinstance(trial, TwinTrial)

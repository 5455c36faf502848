"""The runs of one judgement: made, counted, timed, waited for, and their errors told apart.

Shared by the relations; what the runs amount to is decided by the module of each.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Protocol, TypeVar

import attrs
import torch

from biprop.case import Case
from biprop.errors import BipropError
from biprop.execution import Prepared, Run, prepare, run_canonical
from biprop.execution.device import Mark, wait_for
from biprop.execution.weights import free_memory
from biprop.judgment import Outcome, Verdict
from biprop.operators import Kernel
from biprop.relations.messages import message_of
from biprop.relations.options import JudgeOptions

__all__ = ["Judgement", "Raised", "Runs", "Stage", "judged_by"]

# Told a stage before it begins, and the launches made before it.
Stage = Callable[[str, int], None]

Made = TypeVar("Made")

# A case of many launches names each kernel once.
_FACTS_MAX = 32


@attrs.frozen(kw_only=True)
class Raised:
    """What a run raised instead of returning.

    Attributes:
        message: In one line.
        error: Where it is an error of biprop's own, without its frames.
        role: Of the run that raised it, where that is known.
    """

    message: str
    error: BipropError | None = None
    role: str = ""


class Judgement(Protocol):
    """What a relation makes of the runs of one case."""

    def __init__(self, runs: "Runs") -> None:
        """Judge by `runs`."""

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""


def judged_by(
    judgement: type[Judgement],
    kernel: Kernel,
    case: Case,
    *,
    device: str,
    options: JudgeOptions,
    on_stage: Stage | None,
) -> Outcome:
    """Return the outcome of a case.

    Args:
        judgement: Of the relation.
        kernel: What is run.
        case: The case.
        device: Where it runs.
        options: How thoroughly it is judged.
        on_stage: Told each stage before it begins.

    Raises:
        BipropError: The case cannot be judged.
    """
    # The runs are no variable of this frame, which raises: whoever keeps the error must not keep
    # tensors.
    judged = _judged(
        judgement, Runs(kernel, case, device=device, options=options, on_stage=on_stage)
    )
    if isinstance(judged, BipropError):
        raise judged
    return judged


class Runs:
    """The runs of one case.

    Attributes:
        kernel: What is run.
        case: The case.
        device: Where it runs.
        options: How thoroughly it is judged.
    """

    def __init__(
        self,
        kernel: Kernel,
        case: Case,
        *,
        device: str,
        options: JudgeOptions,
        on_stage: Stage | None,
    ) -> None:
        """Run nothing yet."""
        self.kernel = kernel
        self.case = case
        self.device = torch.device(device)
        self.options = options
        self._on_stage = on_stage
        self._launches = 0
        self._seconds = {"prepare": 0.0, "launch": 0.0, "compare": 0.0, "power": 0.0}
        self._prepared: Prepared | None = None
        self._marks: dict[str, Mark] = {}

    @property
    def prepared(self) -> Prepared:
        """The case with its values."""
        assert self._prepared is not None, "a judgement begins with its values"
        return self._prepared

    def judged(self, judge: Callable[[], Outcome | BipropError]) -> Outcome | BipropError:
        """Return what `judge` returns, once the values are there.

        A device without memory says nothing of the kernel: the case is tried once more, and
        rejected then.
        """
        for _ in range(2):
            try:
                self._prepare()
                return judge()
            except torch.OutOfMemoryError as error:
                message = message_of(error)
            # What was cached for other sizes may be all that is missing.
            self._prepared = None
            free_memory()
        return self.filled(Outcome(verdict=Verdict.VACUOUS, rejected=message))

    def take(self, prepared: Prepared) -> None:
        """Judge by values that are there already, as those of a set are."""
        self._prepared = prepared

    def spend(self, part: str, seconds: float) -> None:
        """Count time that was spent elsewhere, as for a whole set."""
        self._seconds[part] += seconds

    def canonical(
        self,
        prepared: Prepared | None = None,
        *,
        wait: bool = False,
        everywhere: bool | None = None,
    ) -> Run | Raised:
        """Run the canonical side once.

        Args:
            prepared: What else than the case, as for a set.
            wait: As in `run`.
            everywhere: Whether all free memory is poisoned; None: as the options say.
        """
        if everywhere is None:
            everywhere = self.options.repeat_canonical
        ready, is_everywhere = prepared or self.prepared, everywhere
        return self.run(
            "canonical", lambda: run_canonical(ready, everywhere=is_everywhere), wait=wait
        )

    def run(self, role: str, make: Callable[[], Run], *, wait: bool = False) -> Run | Raised:
        """Run one side; with `wait`, or where errors must be told apart, until it is done."""
        self.begin(role)
        started = perf_counter()
        try:
            run = make()
            if wait or self.options.careful:
                wait_for(self.device)
            self._marks[role] = Mark.now(self.device)
        except BipropError as error:
            return Raised(message=str(error), error=_bare(error), role=role)
        except torch.OutOfMemoryError:
            # It says nothing of the kernel: other processes use the device too.
            raise
        # A target may raise anything, and may call sys.exit(); what it says is kept, its frames are
        # not.
        except (Exception, SystemExit) as error:  # noqa: BLE001  # judged, not swallowed
            return Raised(message=message_of(error), role=role)
        finally:
            self._seconds["launch"] += perf_counter() - started
        self._launches += run.launches
        return run

    def waited(self, compare: Callable[[], Made]) -> Made | Raised:
        """Wait for all runs, and return what `compare` makes of them."""
        started = perf_counter()
        try:
            for role, mark in self._marks.items():
                if mark.event is not None:
                    self.begin(role)
                    mark.wait()
            self._seconds["launch"] += perf_counter() - started
            return self.compared(compare)
        except torch.OutOfMemoryError:
            raise
        except BipropError as error:
            return Raised(message=str(error), error=_bare(error))
        # What a device says of its kernels, and of any run.
        except Exception as error:  # noqa: BLE001  # judged, not swallowed
            return Raised(message=message_of(error))

    def compared(self, compare: Callable[[], Made]) -> Made:
        """Return what `compare` returns, and count its time."""
        started = perf_counter()
        try:
            return compare()
        finally:
            self._seconds["compare"] += perf_counter() - started

    def measured(self, measure: Callable[[], Made]) -> Made:
        """Return what `measure` says of the evidence, and count its time."""
        self.begin("power")
        started = perf_counter()
        try:
            return measure()
        finally:
            self._seconds["power"] += perf_counter() - started

    def filled(self, outcome: Outcome, *runs: Run) -> Outcome:
        """Return `outcome` with what every outcome tells of its runs."""
        facts = dict.fromkeys(fact for run in runs for fact in run.facts)
        poisons = dict.fromkeys(poison for run in runs for poison in run.poisons)
        return attrs.evolve(
            outcome,
            launches=self._launches,
            seconds=dict(self._seconds),
            facts=tuple(facts)[:_FACTS_MAX],
            poisons=tuple(poisons),
            actual_backend=runs[0].actual_backend if runs else "",
        )

    def begin(self, stage: str) -> None:
        """Tell that a stage begins."""
        if self._on_stage is not None:
            self._on_stage(stage, self._launches)

    def _prepare(self) -> None:
        self._marks.clear()
        self.begin("prepare")
        started = perf_counter()
        self._prepared = prepare(self.kernel, self.case, device=self.device)
        self._seconds["prepare"] = perf_counter() - started


def _judged(judgement: type[Judgement], runs: Runs) -> Outcome | BipropError:
    return runs.judged(judgement(runs).outcome)


def _bare(error: BipropError) -> BipropError:
    """Return `error` without the frames that it came through and the errors that led to it."""
    error.__cause__ = None
    error.__context__ = None
    return error.with_traceback(None)

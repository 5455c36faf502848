"""Relation I: a kernel against itself, canonical and transformed, bit for bit.

One case in, one outcome out. Runs are made by `biprop.execution`, bits compared by
`biprop.relations.comparison`, repeats interpreted by `biprop.relations.repeats`. A process that the
kernel brings down is no business of this module: `biprop.supervision` is told each stage before it
begins. The two runs of a case are given to a device one after the other and waited for together.
"""

from collections.abc import Callable
from time import perf_counter

import attrs
import torch

from biprop.case import Case
from biprop.errors import BipropError, CaseError, OutputError, UnsupportedError
from biprop.execution import Prepared, Run, prepare, run_canonical, run_transformed
from biprop.execution.device import Mark, is_lost, wait_for
from biprop.execution.power import measure_power
from biprop.generation.legal import legal_for
from biprop.judgment import Cause, ClassEvidence, Mismatch, Outcome, Verdict
from biprop.layout.records import CANONICAL, Layout
from biprop.operators import Kernel
from biprop.relations.comparison import compare_runs, element_count
from biprop.relations.evidence import class_evidence, no_evidence
from biprop.relations.messages import message_of
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.repeats import Repeats, estimate_rate, find_flip
from biprop.relations.sharpening import FILLS_TRIED, has_nonfinite_fill, with_finite_fill
from biprop.transforms import apply_all, transforms_of

__all__ = ["Stage", "judge_invariance"]

# Told a stage before it begins, and the launches made before it.
Stage = Callable[[str, int], None]

# A case of many launches names each kernel once.
_FACTS_MAX = 32


def judge_invariance(
    kernel: Kernel,
    case: Case,
    *,
    device: str = "cpu",
    options: JudgeOptions = JUDGE_OPTIONS,
    on_stage: Stage | None = None,
) -> Outcome:
    """Judge relation I for one case.

    Args:
        kernel: What is run.
        case: One experiment, with one composition of transforms.
        device: Where it runs.
        options: How thoroughly it is judged.
        on_stage: Told `prepare`, `canonical`, `transformed` and `power` before each begins, and how
            many launches were made before. Where a device is waited for, the runs are told again.

    Returns:
        HOLDS, a violation with its cause, VACUOUS (nothing compared, no power, the call unchanged,
        or the canonical run raised: `rejected`), or UNSUPPORTED where the operator says so itself.

    Raises:
        CaseError: The case is illegal for the kernel.
        OutputError: The canonical run returned something else than the signature says.
    """
    reason = legal_for(kernel)(case)
    if reason:
        raise CaseError(reason)
    judged = _Judgement(kernel, case, device=device, options=options, on_stage=on_stage).outcome()
    if isinstance(judged, BipropError):
        # Raised here, from a frame without tensors: whoever keeps the error must not keep them.
        raise judged
    return judged


@attrs.frozen(kw_only=True)
class _Raised:
    """What a run raised instead of returning."""

    message: str
    error: BipropError | None = None
    role: str = "transformed"


class _Judgement:
    """The runs of one case, counted and timed."""

    def __init__(
        self,
        kernel: Kernel,
        case: Case,
        *,
        device: str,
        options: JudgeOptions,
        on_stage: Stage | None,
    ) -> None:
        self._kernel = kernel
        self._case = case
        self._device = torch.device(device)
        self._options = options
        self._on_stage = on_stage
        self._layout = apply_all(transforms_of(case))
        self._launches = 0
        self._seconds = {"prepare": 0.0, "launch": 0.0, "compare": 0.0, "power": 0.0}
        self._prepared: Prepared | None = None
        self._marks: dict[str, Mark] = {}

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        for _ in range(2):
            try:
                return self._outcome()
            except torch.OutOfMemoryError as error:
                message = message_of(error)
            # What was cached for other sizes may be all that is missing.
            self._prepared = None
            torch.cuda.empty_cache()
        return self._filled(Outcome(verdict=Verdict.VACUOUS, rejected=message))

    def _outcome(self) -> Outcome | BipropError:
        self._marks.clear()
        started = perf_counter()
        self._begin("prepare")
        self._prepared = prepare(self._kernel, self._case, device=self._device)
        self._seconds["prepare"] = perf_counter() - started
        canonical = self._run("canonical", CANONICAL)
        if isinstance(canonical, _Raised):
            return self._without_canonical(canonical)
        transformed = self._run("transformed", self._layout)
        if isinstance(transformed, _Raised):
            return self._crashed(canonical, transformed)
        found = self._waited(canonical, transformed)
        if isinstance(found, _Raised):
            if found.role == "canonical":
                return self._without_canonical(found)
            return self._crashed(canonical, found)
        flip = self._flip(canonical, transformed, differ=bool(found))
        if isinstance(flip, _Raised):
            return self._crashed(canonical, flip)
        evidence = _Evidence(canonical=canonical, transformed=transformed)
        if flip is not None and flip.mismatches:
            return self._nondeterministic(flip, evidence)
        if found:
            return self._drifts(found, evidence)
        return self._equal(evidence)

    def _run(self, role: str, layout: Layout, *, wait: bool = False) -> "Run | _Raised":
        """Run one side; with `wait`, or where errors must be told apart, until it is done."""
        self._begin(role)
        assert self._prepared is not None
        everywhere = self._options.repeat_canonical
        started = perf_counter()
        try:
            if role == "canonical":
                run = run_canonical(self._prepared, everywhere=everywhere)
            else:
                run = run_transformed(self._prepared, layout, everywhere=everywhere)
            if wait or self._options.careful:
                wait_for(self._device)
            self._marks[role] = Mark.now(self._device)
        except BipropError as error:
            return _Raised(message=str(error), error=_bare(error))
        except torch.OutOfMemoryError:
            # It says nothing of the kernel: other processes use the device too.
            raise
        # A target may raise anything, and may call sys.exit(); what it says is kept, its frames are
        # not.
        except (Exception, SystemExit) as error:  # noqa: BLE001  # judged, not swallowed
            return _Raised(message=message_of(error))
        finally:
            self._seconds["launch"] += perf_counter() - started
        self._launches += run.launches
        return run

    def _waited(self, canonical: Run, transformed: Run) -> "tuple[Mismatch, ...] | _Raised":
        """Wait for both runs, and compare them."""
        started = perf_counter()
        try:
            for role, mark in self._marks.items():
                if mark.event is not None:
                    self._begin(role)
                    mark.wait()
            self._seconds["launch"] += perf_counter() - started
            return self._compared(canonical, transformed)
        except torch.OutOfMemoryError:
            raise
        except BipropError as error:
            return _Raised(message=str(error), error=_bare(error))
        # What a device says of its kernels, and of either run.
        except Exception as error:  # noqa: BLE001  # judged, not swallowed
            return _Raised(message=message_of(error))

    def _compared(self, first: Run, second: Run) -> "tuple[Mismatch, ...] | _Raised":
        started = perf_counter()
        found = compare_runs(first, second)
        self._seconds["compare"] += perf_counter() - started
        if found.first_wrote:
            wrong = OutputError(found.first_wrote)
            return _Raised(message=found.first_wrote, error=wrong, role="canonical")
        if found.second_wrote:
            return _Raised(message=found.second_wrote, error=OutputError(found.second_wrote))
        return found.mismatches

    def _flip(self, canonical: Run, transformed: Run, *, differ: bool) -> Repeats | _Raised | None:
        """Repeat both sides as asked until one differs from itself; None without repeats."""
        options = self._options
        count = options.repeats if differ or options.rate is not None else 1
        count_canonical = max(count, 2) if options.repeat_canonical else count
        if count_canonical == 1:
            return None
        sides = (
            ("canonical", canonical, count_canonical),
            ("transformed", transformed, count),
        )
        found = find_flip(sides, self._again)
        if found is None:
            return Repeats(runs=count)
        if isinstance(found, Repeats):
            return estimate_rate(found, self._again, runs_max=options.repeats_max)
        return _Raised(message=found)

    def _again(self, role: str) -> Run | str:
        """Run one side once more; a message instead of a run if it raised."""
        run = self._run(role, CANONICAL if role == "canonical" else self._layout, wait=True)
        return f"{run.message} (in a repeat of the {role} run)" if isinstance(run, _Raised) else run

    def _without_canonical(self, raised: _Raised) -> Outcome | BipropError:
        if isinstance(raised.error, UnsupportedError):
            return self._filled(Outcome(verdict=Verdict.UNSUPPORTED, message=raised.message))
        if raised.error is not None:
            return raised.error
        return self._filled(Outcome(verdict=Verdict.VACUOUS, rejected=raised.message))

    def _crashed(self, canonical: Run, raised: _Raised) -> Outcome | BipropError:
        if isinstance(raised.error, UnsupportedError):
            return self._filled(Outcome(verdict=Verdict.UNSUPPORTED, message=raised.message))
        if raised.error is not None and not isinstance(raised.error, OutputError):
            return raised.error
        # A lost device fails whatever the fills are: only another process can tell.
        finite = is_lost(self._device) or self._is_finite(canonical, "")
        cause = Cause(verdict=Verdict.CRASHES, direction=self._case.direction, finite=finite)
        outcome = Outcome(
            verdict=Verdict.CRASHES,
            cause=cause,
            message=raised.message,
            classes=self._classes(powered=True),
        )
        return self._filled(outcome, canonical)

    def _drifts(self, found: tuple[Mismatch, ...], evidence: "_Evidence") -> Outcome:
        cause = Cause(
            verdict=Verdict.DRIFTS,
            direction=self._case.direction,
            output=found[0].output,
            finite=self._is_finite(evidence.canonical, found[0].output),
        )
        outcome = Outcome(
            verdict=Verdict.DRIFTS,
            cause=cause,
            mismatches=found,
            repeats=self._options.repeats,
            classes=self._classes(powered=True),
        )
        return self._filled(outcome, *evidence.runs)

    def _nondeterministic(self, flip: Repeats, evidence: "_Evidence") -> Outcome:
        cause = Cause(
            verdict=Verdict.NONDETERMINISTIC,
            direction=self._case.direction,
            output=flip.mismatches[0].output,
        )
        outcome = Outcome(
            verdict=Verdict.NONDETERMINISTIC,
            cause=cause,
            mismatches=flip.mismatches,
            rate=flip.rate,
            repeats=flip.runs,
            message=f"Two runs of the same {flip.role} configuration differ.",
            classes=self._classes(powered=True),
        )
        return self._filled(outcome, *evidence.runs)

    def _equal(self, evidence: "_Evidence") -> Outcome:
        """Return HOLDS, or VACUOUS where equal bits are no evidence."""
        options = self._options
        repeats = options.repeats if options.rate is not None else 1
        if not element_count(evidence.canonical):
            vacuous = Outcome(verdict=Verdict.VACUOUS, message="Nothing was compared.")
            return self._filled(vacuous, *evidence.runs)
        if not options.measure:
            return self._filled(Outcome(verdict=Verdict.HOLDS, repeats=repeats), *evidence.runs)
        self._begin("power")
        started = perf_counter()
        assert self._prepared is not None
        power = measure_power(self._prepared, evidence.canonical)
        poisoned = bool(evidence.transformed.poisons)
        classes = self._classes(powered=power.share > 0, poison_reached=poisoned)
        reason = no_evidence(self._kernel, self._case, power=power, classes=classes)
        self._seconds["power"] += perf_counter() - started
        outcome = Outcome(
            verdict=Verdict.VACUOUS if reason else Verdict.HOLDS,
            message=reason,
            power=power,
            classes=classes,
            repeats=repeats,
        )
        return self._filled(outcome, *evidence.runs)

    def _classes(self, *, powered: bool, poison_reached: bool = True) -> dict[str, ClassEvidence]:
        if not self._options.measure:
            return {}
        return class_evidence(
            self._kernel, self._case, powered=powered, poison_reached=poison_reached
        )

    def _is_finite(self, canonical: Run, output: str) -> bool:
        """Return whether the case fails in the same way with finite fills too.

        Args:
            canonical: The canonical run, which fills do not touch.
            output: The output that differs first; empty where the transformed run raised.
        """
        if not has_nonfinite_fill(self._case):
            return True
        is_legal = legal_for(self._kernel)
        for fill in FILLS_TRIED:
            milder = with_finite_fill(self._case, fill)
            if is_legal(milder):
                continue
            run = self._run("transformed", apply_all(transforms_of(milder)), wait=True)
            if isinstance(run, _Raised):
                if not output:
                    return True
                continue
            found = self._compared(canonical, run) if output else ()
            if not isinstance(found, _Raised) and found and found[0].output == output:
                return True
        return False

    def _filled(self, outcome: Outcome, *runs: Run) -> Outcome:
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

    def _begin(self, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage(stage, self._launches)


@attrs.frozen(kw_only=True, eq=False)
class _Evidence:
    """The first run of each side."""

    canonical: Run
    transformed: Run

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.canonical, self.transformed


def _bare(error: BipropError) -> BipropError:
    """Return `error` without the frames that it came through and the errors that led to it."""
    error.__cause__ = None
    error.__context__ = None
    return error.with_traceback(None)

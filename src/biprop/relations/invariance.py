"""Relation I: a kernel against itself, canonical and transformed, bit for bit.

One case in, one outcome out. Runs are made through `biprop.relations.runs`, bits compared by
`biprop.relations.comparison`, repeats interpreted by `biprop.relations.repeats`. A process that the
kernel brings down is no business of this module: `biprop.supervision` is told each stage before it
begins. The two runs of a case are given to a device one after the other and waited for together.
"""

import attrs

from biprop.case import Case
from biprop.errors import BipropError, CaseError, OutputError, UnsupportedError
from biprop.execution import Run, run_transformed
from biprop.execution.device import is_lost
from biprop.execution.power import measure_power
from biprop.generation.legal import legal_for
from biprop.judgment import ClassEvidence, Mismatch, Outcome, Power, Verdict
from biprop.layout.records import Layout
from biprop.operators import Kernel
from biprop.relations.causes import cause_of
from biprop.relations.comparison import compare_runs, element_count
from biprop.relations.evidence import class_evidence, no_evidence
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.repeats import Repeats, estimate_rate, find_flip
from biprop.relations.runs import Raised, Runs, Stage, judged_by
from biprop.relations.sharpening import FILLS_TRIED, has_nonfinite_fill, with_finite_fill
from biprop.transforms import apply_all, transforms_of

__all__ = ["Evidence", "InvarianceJudgement", "judge_invariance"]


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
    return judged_by(
        InvarianceJudgement, kernel, case, device=device, options=options, on_stage=on_stage
    )


class InvarianceJudgement:
    """What the runs of one case amount to."""

    def __init__(self, runs: Runs) -> None:
        """Judge by `runs`."""
        self._runs = runs
        self._kernel = runs.kernel
        self._case = runs.case
        self._options = runs.options
        self._layout = apply_all(transforms_of(runs.case))

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        canonical = self._runs.canonical()
        if isinstance(canonical, Raised):
            return self._without_canonical(canonical)
        transformed = self.transformed()
        if isinstance(transformed, Raised):
            return self._crashed(canonical, transformed)
        found = self._runs.waited(lambda: _compared(canonical, transformed))
        if isinstance(found, Raised):
            if found.role == "canonical":
                return self._without_canonical(found)
            return self._crashed(canonical, found)
        flip = self._flip(canonical, transformed, differ=bool(found))
        if isinstance(flip, Raised):
            return self._crashed(canonical, flip)
        evidence = Evidence(canonical=canonical, transformed=transformed)
        if flip is not None and flip.mismatches:
            return self._nondeterministic(flip, evidence)
        if found:
            return self._drifts(found, evidence)
        return self.agreeing(evidence)

    def transformed(self) -> Run | Raised:
        """Run the transformed side once."""
        return self._transformed(self._layout)

    def _transformed(self, layout: Layout, *, wait: bool = False) -> Run | Raised:
        everywhere = self._options.repeat_canonical
        return self._runs.run(
            "transformed",
            lambda: run_transformed(self._runs.prepared, layout, everywhere=everywhere),
            wait=wait,
        )

    def _flip(self, canonical: Run, transformed: Run, *, differ: bool) -> Repeats | Raised | None:
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
        return Raised(message=found)

    def _again(self, role: str) -> Run | str:
        """Run one side once more; a message instead of a run if it raised."""
        run = (
            self._runs.canonical(wait=True)
            if role == "canonical"
            else self._transformed(self._layout, wait=True)
        )
        return f"{run.message} (in a repeat of the {role} run)" if isinstance(run, Raised) else run

    def _without_canonical(self, raised: Raised) -> Outcome | BipropError:
        if isinstance(raised.error, UnsupportedError):
            return self._runs.filled(Outcome(verdict=Verdict.UNSUPPORTED, message=raised.message))
        if raised.error is not None:
            return raised.error
        return self._runs.filled(Outcome(verdict=Verdict.VACUOUS, rejected=raised.message))

    def _crashed(self, canonical: Run, raised: Raised) -> Outcome | BipropError:
        if isinstance(raised.error, UnsupportedError):
            return self._runs.filled(Outcome(verdict=Verdict.UNSUPPORTED, message=raised.message))
        if raised.error is not None and not isinstance(raised.error, OutputError):
            return raised.error
        # A lost device fails whatever the fills are: only another process can tell.
        finite = is_lost(self._runs.device) or self._is_finite(canonical, "")
        cause = cause_of(self._case, Verdict.CRASHES, finite=finite)
        outcome = Outcome(
            verdict=Verdict.CRASHES,
            cause=cause,
            message=raised.message,
            classes=self._classes(powered=True),
        )
        return self._runs.filled(outcome, canonical)

    def _drifts(self, found: tuple[Mismatch, ...], evidence: "Evidence") -> Outcome:
        cause = cause_of(
            self._case,
            Verdict.DRIFTS,
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
        return self._runs.filled(outcome, *evidence.runs)

    def _nondeterministic(self, flip: Repeats, evidence: "Evidence") -> Outcome:
        cause = cause_of(self._case, Verdict.NONDETERMINISTIC, output=flip.mismatches[0].output)
        outcome = Outcome(
            verdict=Verdict.NONDETERMINISTIC,
            cause=cause,
            mismatches=flip.mismatches,
            rate=flip.rate,
            repeats=flip.runs,
            message=f"Two runs of the same {flip.role} configuration differ.",
            classes=self._classes(powered=True),
        )
        return self._runs.filled(outcome, *evidence.runs)

    def agreeing(self, evidence: "Evidence", power: Power | None = None) -> Outcome:
        """Return HOLDS, or VACUOUS where equal bits are no evidence.

        Args:
            evidence: Runs of the same bits.
            power: Of the data, where it was measured before.
        """
        options = self._options
        repeats = options.repeats if options.rate is not None else 1
        if not element_count(evidence.canonical):
            vacuous = Outcome(verdict=Verdict.VACUOUS, message="Nothing was compared.")
            return self._runs.filled(vacuous, *evidence.runs)
        if not options.measure:
            return self._runs.filled(
                Outcome(verdict=Verdict.HOLDS, repeats=repeats), *evidence.runs
            )
        power, classes, reason = self._runs.measured(lambda: self._measured(evidence, power))
        outcome = Outcome(
            verdict=Verdict.VACUOUS if reason else Verdict.HOLDS,
            message=reason,
            power=power,
            classes=classes,
            repeats=repeats,
        )
        return self._runs.filled(outcome, *evidence.runs)

    def _measured(
        self, evidence: "Evidence", power: Power | None
    ) -> tuple[Power, dict[str, ClassEvidence], str]:
        """Return power, evidence by class, and why equal bits show nothing."""
        power = power or measure_power(self._runs.prepared, evidence.canonical)
        poisoned = bool(evidence.transformed.poisons)
        classes = self._classes(powered=power.share > 0, poison_reached=poisoned)
        return power, classes, no_evidence(self._kernel, self._case, power=power, classes=classes)

    def _classes(self, *, powered: bool, poison_reached: bool = True) -> dict[str, ClassEvidence]:
        if not self._options.measure:
            return {}
        return class_evidence(
            self._kernel,
            self._case,
            powered=powered,
            poison_reached=poison_reached,
            known=self._runs.prepared.maps,
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
            run = self._transformed(apply_all(transforms_of(milder)), wait=True)
            if isinstance(run, Raised):
                if not output:
                    return True
                continue
            found = _compared(canonical, run) if output else ()
            if not isinstance(found, Raised) and found and found[0].output == output:
                return True
        return False


@attrs.frozen(kw_only=True, eq=False)
class Evidence:
    """The first run of each side."""

    canonical: Run
    transformed: Run

    @property
    def runs(self) -> tuple[Run, Run]:
        """Both of them."""
        return self.canonical, self.transformed


def _compared(first: Run, second: Run) -> tuple[Mismatch, ...] | Raised:
    found = compare_runs(first, second)
    if found.first_wrote:
        wrong = OutputError(found.first_wrote)
        return Raised(message=found.first_wrote, error=wrong, role="canonical")
    if found.second_wrote:
        return Raised(message=found.second_wrote, error=OutputError(found.second_wrote))
    return found.mismatches

"""Relation A: the canonical run of a kernel against its operator's float32 reference.

Both take the same values, which the reference widens to float32. The reference is deterministic by
construction, so that only the kernel is repeated where they disagree. How a tolerance is applied
says `biprop.relations.within`.
"""

from biprop.case import Case
from biprop.errors import BipropError, CaseError
from biprop.execution.reference import run_reference
from biprop.generation.legal import legal_for
from biprop.judgment import Outcome
from biprop.operators import Kernel
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.runs import Runs, Stage, judged_by
from biprop.relations.within import Within

__all__ = ["judge_accuracy"]


def judge_accuracy(
    kernel: Kernel,
    case: Case,
    *,
    device: str = "cpu",
    options: JudgeOptions = JUDGE_OPTIONS,
    on_stage: Stage | None = None,
) -> Outcome:
    """Judge relation A for one case.

    Args:
        kernel: What is run; its operator has a reference.
        case: One experiment of relation A.
        device: Where both run.
        options: How thoroughly it is judged.
        on_stage: Told `prepare`, `canonical` and `reference` before each begins.

    Returns:
        HOLDS, INACCURATE or NONDETERMINISTIC with its cause, VACUOUS (nothing compared, or all of
        it zero or not finite, or the run raised: `rejected`), or UNSUPPORTED where the operator
        says so itself.

    Raises:
        CaseError: The case is illegal for the kernel.
        OutputError: A side returned something else than the signature says.
        TargetError: The reference raised.
    """
    reason = legal_for(kernel)(case)
    if reason:
        raise CaseError(reason)
    return judged_by(_Judgement, kernel, case, device=device, options=options, on_stage=on_stage)


class _Judgement:
    """What a kernel and its reference amount to."""

    def __init__(self, runs: Runs) -> None:
        """Judge by `runs`."""
        self._within = Within(
            runs,
            role="reference",
            other=lambda: run_reference(runs.prepared),
            is_repeated=False,
        )

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        return self._within.outcome()

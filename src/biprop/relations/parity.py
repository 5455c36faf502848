"""Relation P: the canonical run of a backend against that of another backend of the same operator.

Both take the same values, and what each returns is compared as it is. That both of them hold
relation I is asked by whoever draws the cases (`biprop.strategies`): a backend that drifts is no
yardstick. How a tolerance is applied says `biprop.relations.within`.
"""

import attrs

from biprop.case import Case
from biprop.errors import BipropError, CaseError
from biprop.execution import Run, run_canonical
from biprop.generation.legal import legal_for
from biprop.judgment import Outcome
from biprop.operators import Kernel
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.runs import Runs, Stage, judged_by
from biprop.relations.within import Within

__all__ = ["judge_parity"]


def judge_parity(
    kernel: Kernel,
    case: Case,
    *,
    device: str = "cpu",
    options: JudgeOptions = JUDGE_OPTIONS,
    on_stage: Stage | None = None,
) -> Outcome:
    """Judge relation P for one case.

    Args:
        kernel: What is run; it has the other backend as a relative.
        case: One experiment of relation P, which names the other backend.
        device: Where both run.
        options: How thoroughly it is judged.
        on_stage: Told `prepare`, `canonical` and `parity` before each begins.

    Returns:
        As for relation A. Where the other backend raises or differs from run to run: VACUOUS, with
        the reason.

    Raises:
        CaseError: The case is illegal for the kernel.
        OutputError: A side returned something else than the signature says.
    """
    reason = legal_for(kernel)(case)
    if reason:
        raise CaseError(reason)
    return judged_by(_Judgement, kernel, case, device=device, options=options, on_stage=on_stage)


class _Judgement:
    """What two backends amount to."""

    def __init__(self, runs: Runs) -> None:
        """Judge by `runs`."""
        against = runs.case.against
        assert against is not None, "the caller looked"
        other = runs.kernel.relative(backend=against.backend)

        def run() -> Run:
            everywhere = runs.options.repeat_canonical
            made = run_canonical(attrs.evolve(runs.prepared, kernel=other), everywhere=everywhere)
            facts = tuple(attrs.evolve(fact, role=against.backend) for fact in made.facts)
            return attrs.evolve(made, facts=facts)

        self._within = Within(runs, role="parity", other=run, is_repeated=True)

    def outcome(self) -> Outcome | BipropError:
        """Judge the case; an error to be raised is returned."""
        return self._within.outcome()

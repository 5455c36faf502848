"""Judge a case: which relation it is about says the case itself.

Each relation has a module of its own; whoever judges cases (`biprop.supervision`) calls this one.
"""

from biprop.case import Case
from biprop.judgment import Outcome
from biprop.operators import Kernel
from biprop.relations.accuracy import judge_accuracy
from biprop.relations.invariance import judge_invariance
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions
from biprop.relations.parity import judge_parity
from biprop.relations.probes import judge_probe
from biprop.relations.runs import Stage

__all__ = ["judge_case"]

_JUDGES = {"I": judge_invariance, "A": judge_accuracy, "P": judge_parity}


def judge_case(
    kernel: Kernel,
    case: Case,
    *,
    device: str = "cpu",
    options: JudgeOptions = JUDGE_OPTIONS,
    on_stage: Stage | None = None,
) -> Outcome:
    """Judge the relation that a case is about.

    Args:
        kernel: What is run.
        case: One experiment.
        device: Where it runs.
        options: How thoroughly it is judged.
        on_stage: Told each stage before it begins, and how many launches were made before.

    Returns:
        The outcome, as the module of the relation says.

    Raises:
        CaseError: The case is illegal for the kernel.
        OutputError: The canonical run returned something else than the signature says.
        TargetError: The reference raised.
    """
    is_probe = case.against is not None and case.against.probe
    judge = judge_probe if is_probe else _JUDGES[case.relation]
    return judge(kernel, case, device=device, options=options, on_stage=on_stage)

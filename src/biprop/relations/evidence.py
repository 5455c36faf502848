"""Evidence: did the transforms change the call, and could the data have shown a defect?

Equal bits prove something only if both hold. The call is described by `biprop.layout.physical`, the
power of the data measured by `biprop.execution.power`; verdicts are given by
`biprop.relations.invariance`.
"""

from biprop.case import Case
from biprop.judgment import ClassEvidence, Power
from biprop.layout.physical import physical
from biprop.layout.records import CANONICAL
from biprop.operators import Kernel
from biprop.transforms import apply_all, transforms_of
from biprop.transforms.effect import KnownMaps, changed_classes

__all__ = ["class_evidence", "no_evidence"]


def class_evidence(
    kernel: Kernel,
    case: Case,
    *,
    powered: bool,
    poison_reached: bool = True,
    known: KnownMaps | None = None,
) -> dict[str, ClassEvidence]:
    """Return what the case shows of each class of its composition.

    Args:
        kernel: What was run.
        case: The case.
        powered: Whether its data had power.
        poison_reached: Whether poisons reached outputs or workspaces.
        known: Pools and launches that were made for the case, or its set.

    Returns:
        By class: `vacuous` if taking the class out leaves the call as it is, else `powered` or
        `unpowered`.
    """
    changed = changed_classes(
        kernel.signature,
        case,
        backward_signature=kernel.backward_signature,
        align=kernel.align,
        poison_reached=poison_reached,
        forms=kernel.forms,
        known=known,
    )
    shown: ClassEvidence = "powered" if powered else "unpowered"
    return {name: shown if is_changed else "vacuous" for name, is_changed in changed.items()}


def no_evidence(
    kernel: Kernel, case: Case, *, power: Power, classes: dict[str, ClassEvidence]
) -> str:
    """Return why equal bits of a case show nothing; empty if they do show something."""
    if not power.share:
        return f"The data has no {power.kind} power: no defect could have shown."
    # Two classes may stand in for each other, so that neither is missed.
    if all(shown == "vacuous" for shown in classes.values()) and not _is_changed(kernel, case):
        return "The transforms left the physical call unchanged."
    return ""


def _is_changed(kernel: Kernel, case: Case) -> bool:
    layout = apply_all(transforms_of(case))
    if layout.selection.form:
        return True
    canonical, transformed = (
        physical(
            kernel.signature,
            case,
            each,
            backward_signature=kernel.backward_signature,
            align=kernel.align,
        )
        for each in (CANONICAL, layout)
    )
    return canonical != transformed

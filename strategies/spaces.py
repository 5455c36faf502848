"""Spaces of kernels: what a search draws for a kernel that a judge holds.

The texts of a reference become records again here, in a process that need not have the kernel.
"""

from collections.abc import Sequence

from biprop.case import Dtype, Execution
from biprop.generation import Lane, Space, wanted_classes
from biprop.generation.space import Direction
from biprop.operators import KernelReference
from biprop.signature import parse_backward, parse_restrictions, parse_signature
from biprop.strategies.profiles import PROFILES, Profile
from biprop.supervision import Description

__all__ = ["lane_of", "space_for"]


def lane_of(description: Description) -> Lane:
    """Return which limits and numbers of examples suit where a kernel runs."""
    provenance = description.provenance
    if "interpreter" in provenance.actual_backend:
        return "interpreter"
    if not provenance.device.startswith("cuda"):
        return "cpu"
    # What is registered has a backend of many small calls too, and its cells are many.
    return "gpu" if description.is_registered else "gpu-target"


def space_for(
    reference: KernelReference,
    description: Description,
    *,
    dtype: Dtype,
    direction: Direction,
    transforms: Sequence[str] = (),
    profile: Profile = PROFILES["dev"],
    execution: Execution | None = None,
) -> Space:
    """Return what is drawn for a kernel.

    Args:
        reference: Of the kernel, its signature written out.
        description: Of the kernel.
        dtype: Of every float argument without a dtype of its own.
        direction: Whether outputs or gradients are judged.
        transforms: Classes wanted, `T1`, `T4.finite`, ...; empty: all that apply.
        profile: How large cases may be.
        execution: Switches of the process; None: as a case has them by default.

    Raises:
        BipropError: A text of the reference cannot be read, or a class is unknown.
    """
    signature = parse_signature(reference.signature)
    backward = reference.backward_signature
    return Space(
        signature=signature,
        dtype=dtype,
        direction=direction,
        backward_signature=parse_backward(backward, signature) if backward else None,
        restrictions=parse_restrictions(reference.dims).check_against(signature),
        registered=description.is_registered,
        declaration=description.declaration,
        op_class=description.op_class,
        classes=wanted_classes(transforms),
        align=reference.align,
        constants=description.constants,
        limits=profile.limits_of(lane_of(description)),
        execution=execution or Execution(),
    )

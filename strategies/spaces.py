"""Spaces of kernels: what a search draws for a kernel that a judge holds.

The texts of a reference become records again here, in a process that need not have the kernel.
"""

from collections.abc import Sequence
from typing import Literal

from biprop.case import Against, Dtype, Execution
from biprop.contract import Contract, judgment_of
from biprop.generation import CLASSES, Lane, Space, wanted_classes
from biprop.generation.space import Direction
from biprop.operators import KernelReference
from biprop.signature import parse_backward, parse_restrictions, parse_signature
from biprop.signature.forms import Forms, FormSignatures
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
    contract: Contract | None = None,
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
        contract: Thresholds of relations A and P, which are judged of a declared operator where all
            classes are wanted; None: only invariance is judged.

    Raises:
        BipropError: A text of the reference cannot be read, or a class is unknown.
    """
    signature = parse_signature(reference.signature)
    switches = execution or Execution()
    is_returned = not any(argument.marked for argument in signature.arguments)
    classes = wanted_classes(transforms)
    is_whole = set(classes) == set(CLASSES)
    is_held = is_returned and is_whole and not switches.has_reduced_precision
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
        classes=classes,
        align=reference.align,
        constants=description.constants,
        thresholds=description.thresholds,
        limits=profile.limits_of(lane_of(description)),
        execution=switches,
        forms=_forms(description),
        takes_shards=description.takes_shards,
        against=_against(contract, description, reference.backend, dtype=dtype, direction=direction)
        if contract is not None and is_held
        else (),
    )


def _forms(description: Description) -> Forms:
    """Return the other forms of an operator, from their texts."""
    forms = {}
    for name, text in description.forms.items():
        signature = parse_signature(text)
        backward = description.form_backwards.get(name)
        forms[name] = FormSignatures(
            signature=signature,
            backward_signature=parse_backward(backward, signature) if backward else None,
        )
    return forms


def _against(
    contract: Contract,
    description: Description,
    backend: str,
    *,
    dtype: Dtype,
    direction: Direction,
) -> tuple[Against, ...]:
    """Return what the canonical runs of a declared operator are held against."""
    op_class = description.op_class
    if description.declaration is None or op_class is None:
        return ()

    def held(relation: Literal["A", "P"], other: str = "") -> tuple[Against, ...]:
        tolerance = contract.tolerance(
            judgment=judgment_of(relation, direction),
            op_class=op_class,
            dtype=dtype,
            backends=(backend, other) if other else None,
            # A contract names architectures as `sm90`, whatever the maker of the device.
            arch_key=description.provenance.arch_key.removeprefix("cuda-"),
        )
        if tolerance is None:
            return ()
        return (
            Against(relation=relation, backend=other, atol=tolerance.atol, rtol=tolerance.rtol),
        )

    accuracy = held("A") if description.has_reference else ()
    return accuracy + tuple(item for other in description.yardsticks for item in held("P", other))

"""Forms that can stand for one another: the same values in, the same rows out.

A case is drawn for one form of an operator. Another form launches it (`biprop.transforms.UseForm`)
if the values of the case are all that it takes, and if it gives out something that can be compared.
What the launches are then, its signature says.
"""

from collections.abc import Mapping

from biprop.case import Judged
from biprop.generation.needs import recipes_needed
from biprop.signature import Argument, Signature
from biprop.signature.forms import Forms, FormSignatures
from biprop.signature.records import DTYPE_KINDS
from biprop.signature.roles import has_contexts

__all__ = ["fault_of_form", "shared_outputs", "usable_forms"]

# Kinds of arguments whose values a case decides; all others follow from a launch.
_VALUES = (*DTYPE_KINDS, "token", "scalar")
# Axes along which the same tokens lie.
_LEVELS = {"T": "token", "S": "token", "Q": "token", "TQ": "token", "C": "context", "TC": "context"}


def usable_forms(own: FormSignatures, forms: Forms, judged: Judged) -> tuple[str, ...]:
    """Return the names of the forms that can stand for a kernel's own, sorted."""
    return tuple(
        sorted(name for name, form in forms.items() if not fault_of_form(own, form, judged))
    )


def fault_of_form(own: FormSignatures, other: FormSignatures, judged: Judged) -> str:
    """Return why another form cannot launch the cases of a form; empty if it can.

    Args:
        own: The form that cases are drawn for.
        other: The form that is to launch them.
        judged: What is compared.
    """
    if has_contexts(own.signature) != has_contexts(other.signature):
        return "only one of the two forms has queries and contexts"
    if judged != "outputs" and (own.backward_signature is None) != (
        other.backward_signature is None
    ):
        return "only one of the two forms has a backward of its own"
    held = {item.name: item for item in own.signature.arguments}
    for item in other.signature.arguments:
        if item.kind not in _VALUES or item.is_supplied_output:
            continue
        if item.name not in held or not _is_alike(held[item.name], item):
            return f"its argument '{item.name}' has no values in the form of the case"
    recipes, wanted = (
        set(recipes_needed(form.signature, judged, form.backward_signature)[0])
        for form in (own, other)
    )
    if recipes != wanted:
        name = min(recipes ^ wanted)
        return f"'{name}' is taken by only one of the two forms"
    if not shared_outputs(own, other, judged):
        return "the two forms give out nothing that could be compared"
    return ""


def shared_outputs(own: FormSignatures, other: FormSignatures, judged: Judged) -> tuple[str, ...]:
    """Return the names of what both forms give out and can be compared row by row."""
    theirs = _judged_items(other, judged)
    return tuple(
        name
        for name, item in _judged_items(own, judged).items()
        if name in theirs and _is_alike(item, theirs[name])
    )


def _judged_items(form: FormSignatures, judged: Judged) -> Mapping[str, Argument]:
    """Return what is compared of a form, by name."""
    if judged == "outputs":
        return {item.name: item for item in form.signature.judged_outputs}
    if form.backward_signature is None:
        items = {f"d{item.name}": item for item in _differentiable(form.signature)}
    else:
        items = {item.name: item for item in form.backward_signature.judged_outputs}
    parameters = judged == "parameter_gradients"
    return {name: item for name, item in items.items() if (item.token_axis is None) == parameters}


def _differentiable(signature: Signature) -> tuple[Argument, ...]:
    return (*signature.token_arguments, *signature.parameters)


def _is_alike(one: Argument, other: Argument) -> bool:
    """Return whether two tensors hold the same rows, however their slots lie."""
    return (
        (one.kind, one.parameter, one.is_mutated) == (other.kind, other.parameter, other.is_mutated)
        and [dim.text for dim in one.free_dims] == [dim.text for dim in other.free_dims]
        and _level(one) == _level(other)
    )


def _level(item: Argument) -> str:
    axis = item.token_axis
    return "" if axis is None else _LEVELS.get(axis, axis)

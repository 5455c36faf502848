"""Which transform classes apply to a kernel, and why the others do not.

What a class means for each layout, and for gradients of parameters, is decided here once; whether
one case keeps to it checks `biprop.generation.legal`.
"""

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from biprop.case import Judged
from biprop.errors import UsageError
from biprop.generation.contexts import knows_dead, reasons_of_contexts
from biprop.generation.forms import usable_forms
from biprop.operators import InvarianceDeclaration
from biprop.signature import Signature
from biprop.signature.forms import Forms, FormSignatures
from biprop.signature.query_context import sides_of
from biprop.signature.roles import has_contexts

__all__ = [
    "CLASSES",
    "applicability",
    "carried_classes",
    "judged_kinds",
    "padding_sides",
    "takes_order",
    "wanted_classes",
]

# As they are counted: finite and non-finite fills are separate causes.
CLASSES = ("T1", "T2", "T3", "T4.finite", "T4.nonfinite", "T5", "T6", "T7", "T8", "shards")
_NO_FORMS: Forms = MappingProxyType({})


def wanted_classes(words: Iterable[str]) -> tuple[str, ...]:
    """Return the counted classes of `T1`, `T4`, `T4.nonfinite`, ...; no words mean all.

    T2 and T3 change where and what neighbours are, which needs neighbours: they bring T1 with them.

    Raises:
        UsageError: A word is no class.
    """
    wanted: set[str] = set()
    for word in words:
        found = [name for name in CLASSES if word.strip() in {name, name.split(".")[0]}]
        if not found:
            raise UsageError(
                f"Transform class {word.strip()!r} is unknown: "
                f"use {', '.join(CLASSES)}, or T4 for both."
            )
        wanted.update(found)
    if not wanted:
        return CLASSES
    if wanted & {"T2", "T3"}:
        wanted.add("T1")
    return tuple(name for name in CLASSES if name in wanted)


def judged_kinds(
    signature: Signature, direction: str, *, backward_signature: Signature | None = None
) -> tuple[Judged, ...]:
    """Return what can be judged: outputs, or those gradients that the signature has."""
    if direction == "forward":
        return ("outputs",)
    if backward_signature is None:
        tokens, parameters = bool(signature.token_arguments), bool(signature.parameters)
    else:
        judged = backward_signature.judged_outputs
        tokens = any(item.token_axis for item in judged)
        parameters = any(item.token_axis is None for item in judged)
    kinds: list[Judged] = []
    if tokens:
        kinds.append("token_gradients")
    if parameters:
        kinds.append("parameter_gradients")
    return tuple(kinds)


def padding_sides(
    signature: Signature, backward_signature: Signature | None = None
) -> tuple[str, ...]:
    """Return on which sides dead slots may lie; none, if there may be no dead slot."""
    if has_contexts(signature):
        sides = sides_of(signature)
        if signature.has_order and backward_signature is not None:
            # A backward without the order takes live slots to come first.
            sides = tuple(s for s in sides if s == "right" or s in sides_of(backward_signature))
        return sides
    if signature.layout == "packed":
        # A launch with offsets or lengths ends where they say; only a token-wise one begins
        # anywhere, if its backward needs no sequences either, or finds tokens by their order.
        target = backward_signature or signature
        free = signature.token_wise and (target.token_wise or target.has_order)
        return ("right", "left") if free else ("right",)
    if signature.has_lengths or (signature.has_offsets and not signature.has_order):
        return ("right",)
    if signature.has_mask or signature.token_local or signature.has_order:
        return ("right", "left")
    return ()


def takes_order(signature: Signature, backward_signature: Signature | None) -> bool:
    """Return whether the callable that makes gradients knows the tokens' logical order."""
    target = backward_signature or signature
    return target.has_offsets and target.has_order


def applicability(
    signature: Signature,
    *,
    judged: Judged = "outputs",
    backward_signature: Signature | None = None,
    registered: bool = False,
    declaration: InvarianceDeclaration | None = None,
    classes: Sequence[str] = (),
    forms: Forms = _NO_FORMS,
    takes_shards: bool = False,
) -> dict[str, str]:
    """Say of every class whether it applies: an empty text, or the reason why not.

    Args:
        signature: Forward signature.
        judged: What is compared.
        backward_signature: Of the registered backward; None where autograd differentiates.
        registered: Whether the kernel is a registered operator.
        declaration: What it promises; None where nothing is declared, and everything is tried.
        classes: Counted classes that are wanted; empty: all.
        forms: Other forms of the operator, by name: T6 applies where one of them can launch the
            same tokens, whatever the signature itself allows.
        takes_shards: Whether the kernel computes as any number of ranks.
    """
    gradients = judged == "parameter_gradients"
    reasons = dict.fromkeys(CLASSES, "")
    reasons["T7"] = "it needs a cache or a chain of operators"
    reasons["shards"] = _no_shards(judged, takes_shards=takes_shards)
    if not signature.token_wise:
        reasons["T6"] = "a launch needs every token of its sequences"
    if has_contexts(signature):
        reasons |= reasons_of_contexts(signature, judged)
    if gradients:
        knows = takes_order(signature, backward_signature)
        own = _reasons_of_gradients(
            signature, backward_signature, promised=registered or knows, knows=knows
        )
        reasons |= {name: reasons[name] or reason for name, reason in own.items()}
    if reasons["T6"] and usable_forms(
        FormSignatures(signature=signature, backward_signature=backward_signature), forms, judged
    ):
        reasons["T6"] = ""
    promised = None
    if declaration is not None:
        promised = declaration.parameter_gradients if gradients else declaration.transforms
    wanted = set(classes or CLASSES)
    for name in CLASSES:
        if reasons[name]:
            continue
        if promised is not None and name.split(".")[0] not in promised:
            what = " for gradients of parameters" if gradients else ""
            reasons[name] = f"the operator does not declare it{what}"
        elif name not in wanted:
            reasons[name] = "it was not asked for"
    if not gradients and reasons["T1"]:
        for name in ("T2", "T3"):
            reasons[name] = reasons[name] or "it needs neighbours, which T1 brings"
    return reasons


def carried_classes(names: Iterable[str], *, judged: Judged) -> tuple[str, ...]:
    """Return `names` without those that nothing is left to carry once others were taken out."""
    present = set(names)
    if judged != "parameter_gradients" and "T1" not in present:
        present -= {"T2", "T3"}
    return tuple(name for name in CLASSES if name in present)


def _no_shards(judged: Judged, *, takes_shards: bool) -> str:
    if not takes_shards:
        return "the kernel takes no shards"
    return "" if judged == "outputs" else "only the forward is computed in shards"


def _reasons_of_gradients(
    signature: Signature, backward_signature: Signature | None, *, promised: bool, knows: bool
) -> dict[str, str]:
    """Reasons that hold only for gradients of parameters, whose set of sequences is complete."""
    reasons = {
        "T1": "gradients of parameters compare the same complete set of sequences",
        "T3": "gradients of parameters compare the same complete set of sequences",
    }
    if not promised:
        unordered = "the target does not take offsets and order"
        reasons |= {"T2": unordered, "T6": unordered}
    if signature.token_wise and not knows:
        reasons["T6"] = "the target does not take offsets and order"
    accumulates = backward_signature is not None and any(
        item.marked and item.token_axis is None for item in backward_signature.arguments
    )
    if not accumulates:
        reasons["T5"] = "the target has no accumulator that launches could carry on"
    if not knows_dead(backward_signature or signature):
        reasons["T4.nonfinite"] = (
            "the target takes neither mask nor offsets, so 0 * NaN is not its fault"
        )
    return reasons

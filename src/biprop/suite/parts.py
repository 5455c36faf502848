"""A composite with other parts in the place of its own, to see whose fault its failure is.

The part's float32 reference where outputs are judged: its sums have one order whatever the batch
is. Gradients through a reference have none, so there a backend of the part that holds stands in.
"""

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import torch
from torch import Tensor

from biprop.errors import UnsupportedError
from biprop.execution.orders import sum_in_pairs
from biprop.generation.space import Direction
from biprop.operators import CallValue, Form, Implementation, Kernel, Operator, Registry
from biprop.signature import Signature

__all__ = ["reference_part", "with_parts"]


def with_parts(
    kernel: Kernel,
    registry: Registry,
    *,
    parts: tuple[str, ...],
    backends: Mapping[str, str],
    direction: Direction,
) -> tuple[Kernel, str]:
    """Return a composite that calls other parts, and in words which.

    Args:
        kernel: The composite; its functions take the keyword `parts`.
        registry: Where the parts are found.
        parts: Names of those to be replaced.
        backends: By name of the part, a backend of it that holds.
        direction: Whether outputs or gradients are judged.

    Raises:
        UnsupportedError: There is nothing to put in the place of a part.
    """
    operators = {operator.name: operator for operator in registry.operators}
    others: dict[str, Implementation] = {}
    words: list[str] = []
    for name in parts:
        form = operators[name].forms[0]
        if direction == "forward" and form.reference is not None:
            others[name] = reference_part(operators[name], form)
            words.append(f"the reference of {name}")
        elif name in backends:
            others[name] = _implementation(form, backends[name])
            words.append(f"{name} of backend {backends[name]}")
        else:
            what = "no backend that holds" if direction == "backward" else "no reference"
            raise UnsupportedError(f"Part {name} has {what} to stand in for it.")
    replaced = attrs.evolve(
        kernel,
        function=partial(kernel.function, parts=others),
        backward=None if kernel.backward is None else partial(kernel.backward, parts=others),
    )
    return replaced, " and ".join(words)


def reference_part(operator: Operator, form: Form) -> Implementation:
    """Return a form's reference as an implementation: float32 sums in one order, then narrowed.

    Raises:
        UnsupportedError: The form has no reference.
    """
    if form.reference is None:
        raise UnsupportedError(f"Form {form.name} of {operator.name} has no reference.")
    forward = partial(_run_reference, form.reference, form.signature, dict(operator.call))
    return Implementation(backend="reference", forward=forward)


def _run_reference(
    reference: Callable[..., object],
    signature: Signature,
    fixed: Mapping[str, CallValue],
    *arguments: object,
    **call: CallValue,
) -> object:
    returned = reference(*arguments, reduce=sum_in_pairs, **{**fixed, **call})
    values = returned if isinstance(returned, tuple) else (returned,)
    given = zip(signature.arguments, arguments, strict=True)
    own = next(
        (
            value.dtype
            for item, value in given
            if item.kind == "float" and isinstance(value, Tensor)
        ),
        torch.float32,
    )
    narrowed = tuple(
        value.to(own if item.kind == "float" else getattr(torch, item.kind))
        for item, value in zip(signature.outputs, values, strict=True)
    )
    return narrowed if isinstance(returned, tuple) else narrowed[0]


def _implementation(form: Form, backend: str) -> Implementation:
    return next(item for item in form.implementations if item.backend == backend)

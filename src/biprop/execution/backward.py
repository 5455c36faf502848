"""Gradients: one launch of a kernel's forward and backward.

A registered backward is called with what its signature names: upstream gradients, the tensors that
the forward took, the state that this configuration's own forward saved, and accumulators that are
carried from launch to launch. Without one, autograd differentiates. Gradients are collected as the
kernel returned them; nothing is added up here.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from biprop.errors import CaseError, OutputError, UnsupportedError
from biprop.execution.frame import Frame
from biprop.execution.launching import Session
from biprop.execution.outputs import checked
from biprop.execution.stand_ins import no_stand_ins
from biprop.signature import Argument, Signature

__all__ = ["Accumulators", "collect_accumulators", "launch_backward"]

Accumulators = dict[str, Tensor]


def launch_backward(
    session: Session, frame: Frame, accumulators: Accumulators, *, launch: int
) -> None:
    """Launch forward and backward once, and collect the gradients that are judged.

    Args:
        session: Of the configuration.
        frame: The launch.
        accumulators: By name; filled at the first launch.
        launch: Its index.

    Raises:
        BackendError: It is a registered Triton backend, and torch computed in its place.
        CaseError: Gradients of parameters of several launches have no accumulator to meet in.
        OutputError: The target's outputs do not depend on its arguments.
        UnsupportedError: Autograd cannot differentiate a target that writes into its arguments.
    """
    if session.kernel.backward is not None and session.kernel.backward_signature is not None:
        _registered(session, frame, accumulators, session.kernel.backward_signature, launch=launch)
    else:
        _differentiated(session, frame, launch=launch)


def collect_accumulators(session: Session, accumulators: Accumulators) -> None:
    """Collect what the accumulators hold after the last launch, where they are judged."""
    if session.case.judged == "parameter_gradients":
        for name, values in accumulators.items():
            session.collector.whole(name, values)


def _registered(
    session: Session,
    frame: Frame,
    accumulators: Accumulators,
    target: Signature,
    *,
    launch: int,
) -> None:
    kernel, case, materialiser = session.kernel, session.case, session.materialiser
    forward = kernel.signature
    arguments = materialiser.arguments(forward, frame)
    returned = session.call(kernel.function, arguments, forward, frame)
    given: dict[str, object] = {
        argument.name: value for argument, value in zip(forward.arguments, arguments, strict=True)
    }
    # A mutated argument keeps its place: as state, it is the tensor that the forward left behind.
    given |= checked(forward, returned, frame, case)
    given = _as_seen_by(target, given, forward, frame)
    taken = {argument.name for argument in target.arguments}
    for output in forward.judged_outputs:
        if f"d{output.name}" in taken and output.is_float:
            given[f"d{output.name}"] = materialiser.upstream(target, output, frame)
    for argument in target.arguments:
        if argument.marked:
            if argument.name not in accumulators:
                accumulators[argument.name] = materialiser.zeros(argument, frame)
            given[argument.name] = accumulators[argument.name]
    assert kernel.backward is not None, "the caller looked"
    handed = materialiser.arguments(target, frame, given)
    returned = session.call(kernel.backward, handed, target, frame, role="backward")
    gradients = checked(target, returned, frame, case)
    for output in target.outputs:
        if not output.ignored and _is_judged(session, output, launch):
            session.collector.add(target, output, gradients[output.name], frame, launch=launch)


def _as_seen_by(
    target: Signature, given: Mapping[str, object], forward: Signature, frame: Frame
) -> dict[str, object]:
    """Drop what is derived anew, and reorder rows: with an order, both mean another thing."""
    if forward.has_order == target.has_order:
        return dict(given)
    anew = {
        argument.name for argument in target.arguments if argument.kind in {"offsets", "lengths"}
    }
    found = {name: value for name, value in given.items() if name not in anew}
    before, after = frame.launch.rows(forward), frame.launch.rows(target)
    if before != after:
        rows = torch.tensor([before.index(row) for row in after], device=frame.device)
        for item in (*forward.arguments, *forward.outputs):
            value = found.get(item.name)
            if item.token_axis == "B" and isinstance(value, Tensor):
                place = [dim.name for dim in item.dims].index("B")
                found[item.name] = value.index_select(place, rows)
    return found


def _differentiated(session: Session, frame: Frame, *, launch: int) -> None:
    signature = session.kernel.signature
    written = next((argument for argument in signature.arguments if argument.marked), None)
    if written is not None:
        raise UnsupportedError(
            f"Argument '{written.name}' is written in place, which autograd cannot differentiate: "
            "check it with --direction forward, or register a backward."
        )
    arguments = session.materialiser.arguments(signature, frame)
    leaves = [
        (argument, value.requires_grad_())
        for argument, value in zip(signature.arguments, arguments, strict=True)
        if isinstance(value, Tensor) and argument.is_float and _is_judged(session, argument, launch)
    ]
    with torch.enable_grad():
        returned = session.call(session.kernel.function, arguments, signature, frame)
    outputs = _differentiable(signature, returned)
    checked(signature, returned, frame, session.case)
    upstream = [session.materialiser.upstream(signature, output, frame) for output, _ in outputs]
    session.dirty([(leaf.numel(), leaf.dtype) for _, leaf in leaves], frame, role="backward")
    with (
        no_stand_ins(session.kernel, upstream, role="backward") as observer,
        session.poisoner.watching("backward", observer=observer),
    ):
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            [values for _, values in outputs],
            [leaf for _, leaf in leaves],
            upstream,
            allow_unused=True,
        )
    session.poisoner.look_at(gradients)
    if all(gradient is None for gradient in gradients):
        raise OutputError(
            "No output of the target depends on an argument whose gradient is judged: "
            "check it with --direction forward, or register a backward."
        )
    for (argument, leaf), gradient in zip(leaves, gradients, strict=True):
        # Unused in this configuration is a gradient of zero: it must be so in the other one too.
        values = torch.zeros_like(leaf) if gradient is None else gradient
        session.collector.add(
            signature, argument, values, frame, launch=launch, name=f"d{argument.name}"
        )


def _differentiable(signature: Signature, returned: object) -> list[tuple[Argument, Tensor]]:
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    outputs = [
        (output, values)
        for output, values in zip(signature.outputs, found, strict=False)
        if not output.ignored and isinstance(values, Tensor) and values.requires_grad
    ]
    if not outputs:
        raise OutputError(
            "The outputs of the target carry no gradient, so autograd cannot differentiate it: "
            "check it with --direction forward, or register a backward."
        )
    return outputs


def _is_judged(session: Session, item: Argument, launch: int) -> bool:
    parameters = session.case.judged == "parameter_gradients"
    if parameters and item.token_axis is None and launch:
        raise CaseError(
            f"The gradient of '{item.name.removeprefix('d')}' comes from several launches "
            "and has no accumulator: take SplitBatch out."
        )
    return (item.token_axis is None) == parameters

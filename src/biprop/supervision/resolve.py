"""From a reference to a kernel and back, and what a kernel's judge says of it.

A reference is JSON and crosses processes, a kernel holds the callable. Imports the target, so
whether it may run must be settled before (`biprop.fixtures.load`).
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from biprop.case import Dtype, Execution
from biprop.errors import (
    BackendError,
    BipropError,
    DeviceError,
    SignatureError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from biprop.execution import prepare, run_canonical
from biprop.execution.backend import actual_backend
from biprop.execution.device import wait_for
from biprop.generation.generator import simplest_case
from biprop.generation.space import Direction, Space
from biprop.loading import (
    SPEC_ATTRIBUTE,
    OperatorSpec,
    check_call,
    load_target,
    operator_spec,
    source_constants,
    source_thresholds,
)
from biprop.operators import Kernel, KernelReference, Registry
from biprop.provenance import collect
from biprop.relations.messages import message_of
from biprop.signature import parse_signature
from biprop.supervision.records import Description

__all__ = ["check_device", "describe", "file_of", "reference_of", "resolve", "run_simplest"]

_AS_BY_DEFAULT = Execution()


def resolve(reference: KernelReference, registry: Registry) -> Kernel:
    """Return the kernel of a reference.

    Raises:
        TargetError: It cannot be found, or the registry's operator is no longer the one referred
            to.
        SignatureError: An unregistered target comes without a signature, or its own does not fit.
        UsageError: An alignment or fixed argument cannot be used.
    """
    if reference.is_registered:
        return _registered(reference, registry)
    function = load_target(reference.target)
    spec = _spec(reference, getattr(function, SPEC_ATTRIBUTE, None))
    check_call(function, spec, name=reference.target)
    return Kernel(
        operator=reference.operator,
        target=reference.target,
        signature=spec.signature,
        function=function,
        backward_signature=spec.backward_signature,
        backward=spec.backward,
        restrictions=spec.restrictions,
        align=spec.align,
        call=spec.call,
    )


def reference_of(kernel: Kernel) -> KernelReference:
    """Return how a kernel is found again, everything written out."""
    backward = kernel.backward_signature
    return KernelReference(
        operator=kernel.operator,
        target=kernel.target,
        signature=kernel.signature.text,
        backend=kernel.backend,
        backward_signature="" if backward is None else backward.text,
        dims=kernel.restrictions.text,
        align=kernel.align,
        call=dict(kernel.call),
    )


def describe(kernel: Kernel, *, device: str, actual_backend: str = "") -> Description:
    """Return what a kernel is, and where it runs."""
    functions = (kernel.function, *([] if kernel.backward is None else [kernel.backward]))
    constants = {size for function in functions for size in source_constants(function)}
    thresholds = {size for function in functions for size in source_thresholds(function)}
    return Description(
        provenance=collect(
            device,
            threads=torch.get_num_threads(),
            target_file=file_of(kernel.function),
            actual_backend=actual_backend,
        ),
        op_class=kernel.op_class,
        declaration=kernel.declaration,
        exempt_reason=kernel.exempt_reason,
        constants=tuple(sorted(constants)),
        thresholds=tuple(sorted(thresholds)),
        owner=kernel.owner,
        has_reference=kernel.reference is not None,
        forms={name: form.signature.text for name, form in kernel.forms.items()},
        form_backwards={
            name: form.backward_signature.text
            for name, form in kernel.forms.items()
            if form.backward_signature is not None
        },
        takes_shards=kernel.takes_shards,
        yardsticks=tuple(
            other.backend
            for other in kernel.relatives
            if other.backend in kernel.counterparts
            and other.form == kernel.form
            and other.place < kernel.place
        ),
    )


def run_simplest(
    kernel: Kernel,
    *,
    device: str,
    dtype: Dtype,
    direction: Direction,
    execution: Execution = _AS_BY_DEFAULT,
) -> str:
    """Run the simplest case once and return what ran; empty where the operator declines it.

    Raises:
        TargetError: The target raised; the sentence holds what it said.
        OutputError: It returned something else than its signature says.
        UnsupportedError: There is nothing to judge.
    """
    case = simplest_case(
        Space(
            signature=kernel.signature,
            backward_signature=kernel.backward_signature,
            restrictions=kernel.restrictions,
            dtype=dtype,
            direction=direction,
            registered=kernel.is_registered,
            declaration=kernel.declaration,
            op_class=kernel.op_class,
            align=kernel.align,
            execution=execution,
        )
    )
    prepared = prepare(kernel, case, device=device)
    try:
        run = run_canonical(prepared)
        run.settle()
        wait_for(prepared.device)
    except UnsupportedError:
        return ""
    except BackendError:
        # A verdict of the cell: whoever judges cases of it meets it again, and reports it.
        return actual_backend(kernel)
    except BipropError:
        raise
    # A target may raise anything, and may call sys.exit().
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"The target raised on the simplest case: {message_of(error)}; correct the target, its "
            "signature, --dims or --call."
        ) from error
    return run.actual_backend


def check_device(device: str) -> None:
    """Refuse a device that torch does not know, or that this machine has not.

    Raises:
        DeviceError: The sentence names the device.
    """
    try:
        torch.empty(1, device=device)
    # Torch says so by errors of several classes, AssertionError among them.
    except Exception as error:
        raise DeviceError(
            f"Device {device!r} cannot be used here ({message_of(error)}): "
            "write cpu, or a device that exists."
        ) from error


def _registered(reference: KernelReference, registry: Registry) -> Kernel:
    kernel = registry.find(target=reference.target, backend=reference.backend)
    if reference.signature and parse_signature(reference.signature) != kernel.signature:
        raise TargetError(
            f"Operator {reference.target} ({reference.backend}) has the signature "
            f"{kernel.signature.text!r} now, not {reference.signature!r}: use the biprop "
            "that the reference was made with."
        )
    return kernel


def _spec(reference: KernelReference, written: object) -> OperatorSpec:
    """Join what the reference says with what the function's author wrote; the reference wins."""
    own = written if isinstance(written, OperatorSpec) else None
    if not reference.signature and own is None:
        raise SignatureError(
            f"Target {reference.target} has no signature: give --signature, or describe "
            "the function with @biprop.operator."
        )
    backward = None
    if own is not None and own.backward is not None and own.backward_signature is not None:
        backward = (own.backward, reference.backward_signature or own.backward_signature.text)
    elif reference.backward_signature:
        raise UsageError(
            f"A backward signature is given for {reference.target}, but no function to go with it: "
            "describe the target with @biprop.operator(..., backward=(function, signature))."
        )
    base = OperatorSpec(signature=parse_signature(reference.signature)) if own is None else own
    same = not reference.signature or parse_signature(reference.signature) == base.signature
    return operator_spec(
        base.signature.text if same else reference.signature,
        dims=reference.dims or base.restrictions.text,
        align=reference.align if reference.align != 1 else base.align,
        call={**base.call, **reference.call},
        backward=backward if same else None,
    )


def file_of(function: Callable[..., object]) -> Path | None:
    """Return the file that a callable is written in; None where there is none."""
    found: object = function
    while isinstance(found, partial):
        found = found.func
    try:
        # It asks by itself what kind of object it was given.
        file = inspect.getsourcefile(inspect.unwrap(found))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if file is None else Path(file)

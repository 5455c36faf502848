"""Check a callable in this process: `check_invariance`, for people's own tests.

What the command line does with a worker process and a store, without either: a kernel that ends the
process ends the caller.
"""

from collections.abc import Callable, Mapping, Sequence

from biprop.case import Dtype, Execution
from biprop.errors import TargetError, UsageError
from biprop.generation.space import Direction
from biprop.loading import SPEC_ATTRIBUTE, OperatorSpec, check_call, operator_spec
from biprop.operators import CallValue, Kernel
from biprop.reports.records import CellReport
from biprop.strategies.profiles import PROFILES, ProfileName
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision.in_process import InProcessJudge

__all__ = ["check_invariance", "kernel_of"]


def check_invariance(
    function: Callable[..., object],
    signature: str | None = None,
    *,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    transforms: Sequence[str] = (),
    max_examples: int | None = None,
    seed: int = 0,
    dims: str = "",
    call: Mapping[str, CallValue] | None = None,
    align: int = 1,
    device: str = "cpu",
    threads: int = 1,
    profile: ProfileName = "dev",
) -> CellReport:
    """Search `function` for batch variance, and return what was found, shrunk.

    Args:
        function: Takes tensors in the order of the signature, fixed values by keyword.
        signature: Notation of `biprop.signature.parse_signature`; None: what `biprop.operator` says
            of the function, which then brings `dims`, `call` and `align` too.
        dtype: Of every float argument without a dtype of its own.
        direction: Whether outputs or gradients are judged.
        transforms: Classes, `T1` to `T8`; empty: all that apply.
        max_examples: Cases; None: what the profile says.
        seed: The same seed draws the same cases.
        dims: Restrictions of the free dimensions.
        call: Fixed keyword arguments.
        align: Bytes that base pointers must be aligned to.
        device: `cpu`, `cuda:0`, ...
        threads: Intra-op threads of torch on the CPU.
        profile: How thorough the search is.

    Raises:
        BipropError: An argument cannot be used, or the function raises on the simplest case or
            returns something else than its signature says.
    """
    if max_examples is not None and max_examples < 1:
        raise UsageError(f"max_examples={max_examples}: give 1 or more.")
    kernel = kernel_of(function, _spec(function, signature, dims=dims, call=call, align=align))
    judge = InProcessJudge(kernel, device=device, dtype=dtype, direction=direction)
    space = space_for(
        judge.reference,
        judge.description,
        dtype=dtype,
        direction=direction,
        transforms=transforms,
        profile=PROFILES[profile],
        execution=Execution(threads=threads),
    )
    return search(
        judge,
        space,
        device=device,
        lane=lane_of(judge.description),
        profile=PROFILES[profile],
        max_examples=max_examples,
        seed=seed,
    )


def kernel_of(function: Callable[..., object], spec: OperatorSpec) -> Kernel:
    """Return the kernel that a callable is, as its author or its caller describes it."""
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', 'function')}"
    return Kernel(
        operator=name,
        target=name,
        signature=spec.signature,
        function=function,
        backward_signature=spec.backward_signature,
        backward=spec.backward,
        restrictions=spec.restrictions,
        align=spec.align,
        call=spec.call,
    )


def _spec(
    function: Callable[..., object],
    signature: str | None,
    *,
    dims: str,
    call: Mapping[str, CallValue] | None,
    align: int,
) -> OperatorSpec:
    if not callable(function):
        raise TargetError(f"function is a {type(function).__name__}: give a callable.")
    name = getattr(function, "__qualname__", type(function).__name__)
    if signature is not None:
        spec = operator_spec(signature, dims=dims, align=align, call=call)
        check_call(function, spec, name=name)
        return spec
    if dims or call or align != 1:
        raise UsageError(
            "dims, call and align belong to a signature: give one, or leave them to the decorator."
        )
    found = getattr(function, SPEC_ATTRIBUTE, None)
    if not isinstance(found, OperatorSpec):
        raise UsageError(f"Function {name!r} has no signature: give one, or use @biprop.operator.")
    return found

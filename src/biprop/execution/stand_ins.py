"""Stand-ins: does a Triton backend compute in its kernels, or does torch compute in their place?

A backend that falls back to another one without a word would be judged, and trusted, under a name
that it does not deserve. So every call of a registered Triton backend is watched: around its
launches it may allocate and view, and nothing else; it launches kernels that it declares
(`biprop.operators.Implementation.kernels`), at least one where there is work, and no others. What
it calls is seen by the mode of `biprop.execution.poison`, what it launches is told by
`biprop.launch_log`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from biprop.errors import BackendError
from biprop.execution.poison import Observer
from biprop.launch_log import listening
from biprop.operators import Kernel

__all__ = ["ALLOCATIONS", "VIEWS", "no_stand_ins"]

# Operators of aten that hand out memory, and compute nothing of an argument's values. The last one
# makes a tensor of Python's numbers: modules that are imported with the first call have constants.
ALLOCATIONS = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "lift_fresh",
    }
)
# Operators that give memory another shape, and copy nothing. Those that copy where they must, such
# as `reshape` and `contiguous`, call others for it, and are seen by these.
VIEWS = frozenset(
    {
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "narrow",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
    }
)
# By packet: the overloads of an operator differ in how they are called.
_ALLOWED = frozenset(getattr(torch.ops.aten, name) for name in ALLOCATIONS | VIEWS)
_NAMES_SHOWN = 4


@contextmanager
def no_stand_ins(
    kernel: Kernel, arguments: Sequence[object], *, role: Literal["forward", "backward"]
) -> Iterator[Observer | None]:
    """Watch one call of a kernel; yields what must be told of each operator that it calls.

    Args:
        kernel: The kernel. Only a registered Triton backend names a way to compute; for others None
            is yielded, and nothing is watched.
        arguments: Of the call.
        role: Which of its functions is called.

    Raises:
        BackendError: When the block ends: something else than its kernels computed. A call that
            raises is left to its own error.
    """
    if not kernel.is_registered or kernel.backend != "triton":
        yield None
        return
    operators: dict[str, None] = {}
    with listening() as log:

        def see(operator: Any) -> None:  # noqa: ANN401  # torch has no class for all of them
            is_allowed = getattr(operator, "overloadpacket", None) in _ALLOWED
            if not is_allowed and not log.is_interpreting:
                # As torch's own texts name it: aten.mul.Tensor.
                operators[str(operator)] = None

        yield see
    has_work = all(value.numel() for value in arguments if isinstance(value, Tensor))
    fault = _fault(kernel, tuple(operators), tuple(log.names), has_work=has_work)
    if fault:
        raise BackendError(
            f"The {role} of {kernel.name} with backend={kernel.backend!r} {fault.what}, called "
            f"with {_shapes(arguments)}: {fault.remedy}."
        )


@attrs.frozen(kw_only=True)
class _Fault:
    """What stood in for the kernels, and what to do about it, as two parts of a sentence."""

    what: str
    remedy: str


def _fault(
    kernel: Kernel, operators: Sequence[str], launched: Sequence[str], *, has_work: bool
) -> _Fault | None:
    declared = kernel.device_kernels
    others = [name for name in launched if name not in declared]
    if operators:
        return _Fault(
            what=f"lets torch compute: {_listed(operators)}",
            remedy="a Triton backend allocates, views and launches, so compute that in a kernel",
        )
    if others:
        return _Fault(
            what=f"launches {_listed(others)}, which it does not declare",
            remedy="launch what it declares, or list that in its Implementation.kernels",
        )
    if has_work and not launched:
        names = f" ({_listed(declared)})" if declared else ""
        return _Fault(
            what=f"launches none of its kernels{names}",
            remedy="launch one, by biprop.kernels.interpreting.launch where it may be interpreted",
        )
    return None


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shapes(arguments: Sequence[object]) -> str:
    found = [str(list(value.shape)) for value in arguments if isinstance(value, Tensor)]
    return f"tensors of {', '.join(found)}" if found else "no tensor"

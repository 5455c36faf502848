"""Which backend really ran: seen from the function's own module, not from what was asked for."""

import functools
import sys
from collections.abc import Callable

from biprop.operators import Kernel

__all__ = ["actual_backend", "qualified_name"]


def actual_backend(kernel: Kernel) -> str:
    """Return `torch`, `triton` or `triton-interpreter`; ask after a launch.

    A Triton kernel is what its decorator made of it when its module was imported, so the kernels
    that the function's module holds tell whether they are interpreted. Modules may be imported by
    their first launch.
    """
    if kernel.backend == "torch" or "triton" not in sys.modules:
        return "torch"
    from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415  # imported already
    from triton.runtime.jit import JITFunction  # noqa: PLC0415  # likewise

    found = [
        _unwrapped(value)
        for value in _names_beside(kernel.function)
        if type(value).__module__.startswith("triton.")
    ]
    if any(isinstance(value, InterpretedFunction) for value in found):
        return "triton-interpreter"
    if any(isinstance(value, JITFunction) for value in found):
        return "triton"
    if kernel.backend != "triton":
        return "torch"
    # Its kernels are defined elsewhere, as all that are defined by now.
    from triton import knobs  # noqa: PLC0415  # imported already

    return "triton-interpreter" if knobs.runtime.interpret else "triton"


def qualified_name(function: Callable[..., object]) -> str:
    """Return module and name of a callable, as far as it has them."""
    plain = _plain(function)
    name = getattr(plain, "__qualname__", type(plain).__qualname__)
    module = getattr(plain, "__module__", "") or ""
    return f"{module}.{name}" if module else str(name)


def _plain(function: object) -> object:
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = (
            function.func if isinstance(function, functools.partial) else function.__wrapped__
        )
    return function


def _names_beside(function: object) -> list[object]:
    """Return what the module of a callable holds."""
    plain = _plain(function)
    name = getattr(plain, "__module__", None) or type(plain).__module__
    # torch launches Triton kernels only for what torch.compile made, and its modules are large.
    if name.split(".")[0] == "torch" or name not in sys.modules:
        return []
    return list(vars(sys.modules[name]).values())


def _unwrapped(value: object) -> object:
    """Return the kernel under an autotuner or a heuristic."""
    depth = 0
    while type(value).__module__.startswith("triton.") and depth < 4:
        inner = getattr(value, "fn", None)
        if inner is None or not type(inner).__module__.startswith("triton."):
            break
        value, depth = inner, depth + 1
    return value

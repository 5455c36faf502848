"""Functions that import their module when they are first called.

Triton reads TRITON_INTERPRET when a kernel is defined, and takes a second to import: so no Triton
module is imported before its first launch. Nothing is launched here
(`biprop.kernels.interpreting`).
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from biprop.errors import UnsupportedError
from biprop.operators import Implementation

__all__ = ["deferred", "triton_backend"]


def deferred(module: str, name: str) -> Callable[..., object]:
    """Return a function that stands for `module.name`, where `module` needs Triton.

    Its `__module__` and `__name__` are those of what it stands for, so that whoever records or
    reads a kernel's source finds the real one.

    Raises:
        UnsupportedError: When it is called, and triton is not installed.
    """

    def stand_in(*arguments: object, **call: object) -> object:
        if find_spec("triton") is None:
            raise UnsupportedError(
                f"The triton backend of {module} cannot run because triton is not installed: "
                "install triton, or choose the torch backend."
            )
        function: Callable[..., object] = getattr(import_module(module), name)
        return function(*arguments, **call)

    stand_in.__module__ = module
    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in


def triton_backend(
    module: str, *, kernels: tuple[str, ...], forward: str = "forward", backward: str = "backward"
) -> Implementation:
    """Return the Triton backend that a module holds.

    Args:
        module: Imported when one of its functions is first called.
        kernels: Names of the device kernels that they launch.
        forward: Name of the forward.
        backward: Name of the backward.
    """
    return Implementation(
        backend="triton",
        forward=deferred(module, forward),
        backward=deferred(module, backward),
        kernels=kernels,
    )

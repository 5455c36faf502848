"""Launch Triton kernels, compiled on a GPU or interpreted on a CPU.

Imported by the Triton modules only, since it imports Triton. It decides nothing about the numbers:
grids and block sizes are the kernels' own. An interpreted launch is told to `biprop.launch_log`,
since nobody else can: who judges a kernel must know that it ran.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from biprop.errors import UnsupportedError
from biprop.launch_log import interpreted_launch

__all__ = ["block_width", "interpreted", "launch"]

# Of Triton's interpreter, private.
_Function = Callable[[Any], object]


def interpreted(kernel: object) -> bool:
    """Return whether a `@triton.jit` function runs in Triton's interpreter.

    Triton decides when the function is defined, so the function is asked and not the environment.
    """
    return not isinstance(kernel, JITFunction)


def block_width(size: int, *, least: int = 1, most: int) -> int:
    """Return the power of two that covers a free dimension, from `least` to `most`.

    Only for free dimensions: a block that followed the number of tokens would change their bits.
    """
    return max(least, min(most, 1 << (size - 1).bit_length()))


def launch(
    kernel: object,
    grid: tuple[int, ...],
    arguments: tuple[Tensor | int | float, ...],
    *,
    constants: Mapping[str, int | bool],
    options: Mapping[str, int | bool],
) -> None:
    """Launch a kernel once, or not at all where its grid is empty.

    Args:
        kernel: A `@triton.jit` function, whose first argument is a tensor.
        grid: Programs in each dimension. CUDA refuses an empty one, which is no error here.
        arguments: In the order of the kernel.
        constants: Its `tl.constexpr` arguments.
        options: Of the compiler; the interpreter ignores them.

    Raises:
        UnsupportedError: The tensors lie on the CPU, and the kernel was compiled for a GPU; or it
            is interpreted, and Triton's interpreter does not work with this numpy.
    """
    lead = arguments[0]
    assert isinstance(lead, Tensor), "the first argument says where the kernel runs"
    if 0 in grid:
        return
    if interpreted(kernel):
        _check_interpreter()
        # The interpreter computes with numpy, which warns of the NaN and Inf of dead rows.
        name = str(getattr(kernel, "__name__", kernel))
        with (
            interpreted_launch(name),
            np.errstate(all="ignore"),
            _language_prepared_once(),
            _dtypes_known(),
        ):
            kernel[grid](*arguments, **constants)  # type: ignore[index]
        return
    if lead.device.type == "cpu":
        raise UnsupportedError(
            "A compiled Triton kernel cannot run on device=cpu: set TRITON_INTERPRET=1 before the "
            "first launch to use Triton's interpreter, use a GPU, or choose the torch backend."
        )
    kernel[grid](*arguments, **constants, **options)  # type: ignore[index]


@contextmanager
def _exchanged(name: str, instead_of: Callable[[_Function], _Function]) -> Iterator[None]:
    """Exchange a function of Triton's interpreter; a version that has none is left alone."""
    original: _Function | None = getattr(interpreter, name, None)
    if original is None:
        yield
        return
    setattr(interpreter, name, instead_of(original))
    try:
        yield
    finally:
        setattr(interpreter, name, original)


def _language_prepared_once() -> AbstractContextManager[None]:
    """Have Triton exchange what a kernel sees of its language once a launch.

    It does so anew for each function that a kernel calls, in each program of the grid: an
    eighth of the time of an interpreted kernel, for what is exchanged already until the launch
    ends.
    """
    done: set[int] = set()

    def instead_of(exchange: _Function) -> _Function:
        def once(function: object) -> object:
            visible = getattr(function, "__globals__", {}).values()
            wanted = {id(value) for value in visible if value is tl or value is tl.core}
            if wanted and wanted <= done:
                return None
            done.update(wanted)
            return exchange(function)

        return once

    return _exchanged("_patch_lang", instead_of)


# By name of what a block has: Triton makes the objects of pointers and blocks anew.
_KNOWN: dict[str, object] = {}


def _dtypes_known() -> AbstractContextManager[None]:
    """Have Triton look up once what numpy calls a dtype.

    It fills a table of all dtypes whenever it makes or converts a block: a twelfth of the time of
    an interpreted kernel.
    """

    def instead_of(look_up: _Function) -> _Function:
        def known(dtype: tl.dtype) -> object:
            name = (dtype.element_ty if isinstance(dtype, tl.block_type) else dtype).name
            if name not in _KNOWN:
                _KNOWN[name] = look_up(dtype)
            return _KNOWN[name]

        return known

    return _exchanged("_get_np_dtype", instead_of)


@cache
def _check_interpreter() -> None:
    """Refuse versions that raise in every loop whose end is no constant.

    Raises:
        UnsupportedError: The interpreter of Triton 3.6 takes the number out of an array in a way
            that numpy gave up.
    """
    if _release(triton.__version__) < (3, 7) and _release(np.__version__) >= (2, 4):
        raise UnsupportedError(
            f"The interpreter of Triton {triton.__version__} does not work with numpy "
            f"{np.__version__}: install numpy below 2.4, or Triton 3.7 or later."
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))

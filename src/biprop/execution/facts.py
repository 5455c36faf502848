"""Launch facts: which kernels really ran, on what grid, compiled with what.

Triton tells by two of its own hooks (`triton.knobs`): when a kernel is compiled it is given a
function for its launch metadata, and before each launch that metadata is read. Nothing is wrapped,
so the interpreter, which has no hooks, tells no more than `biprop.execution.backend` sees. Nor does
a kernel that was compiled in this process before anybody listened: its name alone is known.
Each launch is told to `biprop.launch_log` as well, for whoever looks at a single call.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import attrs

from biprop.launch_log import tell_launch

__all__ = ["Launched", "launches_seen"]

# A run of many launches names each kind once; further ones say no more.
_KINDS_MAX = 32
_CONFIGURATION_MAX = 400
# Options of the compiler that are shown, where they are not what Triton does by itself.
_OPTIONS: Mapping[str, object] = {"num_warps": None, "num_stages": None, "num_ctas": 1}
_KEY_GRID = "biprop_grid"
_KEY_CONFIGURATION = "biprop_configuration"

# What Triton calls with the grid, the compiled kernel's metadata, and its arguments by name.
_Describe = Callable[[Any, Any, dict[str, Any]], dict[str, Any]]


@attrs.frozen(kw_only=True)
class Launched:
    """One kind of launch.

    Attributes:
        kernel: Name of the compiled kernel.
        grid: Programs in each dimension; empty where unknown.
        configuration: Compile-time values and options of the compiler, as text.
    """

    kernel: str
    grid: tuple[int, ...] = ()
    configuration: str = ""


@contextmanager
def launches_seen(*, is_compiled: bool) -> Iterator[dict[Launched, None]]:
    """Yield what fills with the Triton launches made until the block ends, each kind once.

    Args:
        is_compiled: Whether Triton kernels are compiled where the launches go. Without, and without
            Triton, nothing is seen and nothing imported.
    """
    seen: dict[Launched, None] = {}
    if not is_compiled or not _has_triton():
        yield seen
        return
    from triton import knobs  # noqa: PLC0415  # takes a second, and only here is it needed

    def enter(metadata: Any) -> None:  # noqa: ANN401  # Triton's own lazy record
        launched = _launched(metadata.get())
        tell_launch(launched.kernel)
        if len(seen) < _KINDS_MAX:
            seen[launched] = None

    others = knobs.compilation.listener
    knobs.compilation.listener = _listener(others)
    knobs.runtime.launch_enter_hook.add(enter)
    try:
        yield seen
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.compilation.listener = others


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _launched(metadata: Mapping[str, Any]) -> Launched:
    return Launched(
        kernel=str(metadata.get("name", "")),
        grid=metadata.get(_KEY_GRID, ()),
        configuration=metadata.get(_KEY_CONFIGURATION, ""),
    )


def _listener(others: Callable[..., None] | None) -> Callable[..., None]:
    def listen(*, src: Any, **details: Any) -> None:  # noqa: ANN401  # as Triton calls it
        if others is not None:
            others(src=src, **details)
        function = getattr(src, "fn", None)
        # Kernels that come as intermediate code have no function, and keep their names.
        if function is not None and hasattr(function, "launch_metadata"):
            own = function.launch_metadata
            if not isinstance(own, _Described):
                function.launch_metadata = _Described(own=own, constants=_constants(function))

    return listen


def _constants(function: Any) -> tuple[str, ...]:  # noqa: ANN401  # a JITFunction
    return tuple(parameter.name for parameter in function.params if parameter.is_constexpr)


@attrs.frozen(kw_only=True, eq=False)
class _Described:
    """Describes a launch for Triton, after what the kernel's author gave it for that.

    Attributes:
        own: The author's function.
        constants: Names of the kernel's compile-time arguments.
    """

    own: _Describe | None
    constants: tuple[str, ...]

    def __call__(self, grid: Any, metadata: Any, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        """Return the author's own words, with ours beside them."""
        told: dict[str, Any] = {}
        # What an author computes for a profiler must not end a launch that nobody profiles.
        with suppress(Exception):
            told.update({} if self.own is None else self.own(grid, metadata, arguments))
        words = [f"{name}={arguments.get(name)}" for name in self.constants]
        for name, usual in _OPTIONS.items():
            value = getattr(metadata, name, usual)
            if value != usual:
                words.append(f"{name}={value}")
        told[_KEY_GRID] = tuple(int(size) for size in grid)
        told[_KEY_CONFIGURATION] = " ".join(words)[:_CONFIGURATION_MAX]
        return told

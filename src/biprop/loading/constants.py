"""Read from a function's own module the sizes at which it may change its mind.

Those that the function itself asks about are told apart by `biprop.loading.thresholds`. The numbers
only steer which sizes `biprop.generation` draws; nothing is decided by them.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from biprop.loading.targets import Function, is_triton

__all__ = [
    "CONSTANT_MAX",
    "CONSTANT_MIN",
    "computed",
    "integers_of",
    "source_constants",
    "unwrapped",
]

# A longer source is generated, and its numbers say nothing of tiles.
SOURCE_BYTES_MAX = 2**21
CONSTANT_MIN = 2
CONSTANT_MAX = 2**16


def source_constants(function: Function) -> tuple[int, ...]:
    """Return the integers from 2 to 65,536 that the function's own module mentions, ascending.

    They are where a kernel may change its mind: tiles, thresholds, buckets. Taken are the integer
    literals of the module's source, folded where they are computed from literals, the module's own
    integers, and the values of its Triton configurations and constants. Empty where there is no
    source, as for built-in functions.
    """
    owner = unwrapped(function)
    found: set[int] = set()
    source = _source_of(owner)
    if source is None:
        return ()
    try:
        _fold(ast.parse(source), found)
    except (SyntaxError, ValueError, RecursionError):
        found.clear()
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    if module is not None:
        for value in tuple(vars(module).values()):
            found.update(integers_of(value))
    return tuple(sorted(number for number in found if CONSTANT_MIN <= number <= CONSTANT_MAX))


def unwrapped(function: Function) -> object:
    """Return the function or class behind wrappers and partial applications."""
    found: object = function
    while isinstance(found, partial):
        found = found.func
    # Wrappers that form a ring are no reason to fail: the outermost one has a source as well.
    if callable(found):
        with suppress(ValueError):
            found = inspect.unwrap(found)
    if inspect.isroutine(found) or inspect.isclass(found):
        return found
    return type(found)


def _source_of(function: object) -> str | None:
    try:
        file = inspect.getsourcefile(function)  # type: ignore[arg-type]  # it asks by itself
        if file is None or Path(file).stat().st_size > SOURCE_BYTES_MAX:
            return None
        return Path(file).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError):
        return None


def _fold(node: ast.AST, found: set[int]) -> int | None:
    """Collect the integers below a node, and return the one that the node itself is."""
    parts = [(child, _fold(child, found)) for child in ast.iter_child_nodes(node)]
    value: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.BinOp):
        numbers = dict(parts)
        value = computed(node.op, numbers.get(node.left), numbers.get(node.right))
    if value is not None:
        found.add(value)
    return value


def computed(operation: ast.operator, left: int | None, right: int | None) -> int | None:
    """Return what an operation on two integers gives; None where it is none of tiles."""
    # Only what tiles are written with; the bounds keep a power from filling the memory.
    if left is None or right is None or not (0 <= left <= 2**32 and 0 <= right <= 2**32):
        return None
    if isinstance(operation, ast.Mult):
        return left * right
    if isinstance(operation, ast.Add):
        return left + right
    if isinstance(operation, ast.Sub):
        return left - right
    if isinstance(operation, ast.FloorDiv) and right:
        return left // right
    if isinstance(operation, ast.Pow) and right <= 32:
        return int(left**right)
    if isinstance(operation, ast.LShift) and right <= 32:
        return left << right
    return None


def integers_of(value: object) -> Iterator[int]:
    """Yield the integers of a module's own value: its numbers, Triton constants, configurations."""
    if type(value) is int:
        yield value
    if not is_triton(value):
        return
    constant = getattr(value, "value", None)
    if type(constant) is int:
        yield constant
    configurations = getattr(value, "configs", None)
    for configuration in configurations if isinstance(configurations, list | tuple) else (value,):
        settings = getattr(configuration, "kwargs", None)
        if isinstance(settings, dict):
            yield from (number for number in settings.values() if type(number) is int)
            for name in ("num_warps", "num_stages"):
                number = getattr(configuration, name, None)
                if type(number) is int:
                    yield number

"""Read from a function itself, and from those that it calls, the sizes that it asks about.

What else its module mentions is the part of `biprop.loading.constants`. The numbers only steer
which sizes `biprop.generation` sweeps; nothing is decided by them.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType

from biprop.loading.constants import CONSTANT_MAX, CONSTANT_MIN, computed, integers_of, unwrapped
from biprop.loading.targets import Function, is_triton

__all__ = ["source_thresholds"]

# Functions that are read: those of a target's own package, nearest first.
_FUNCTION_COUNT_MAX = 64
# Of the sizes that leave a remainder, the least few: a boundary shows at any of them.
_MULTIPLE_COUNT = 4
# A longer table is data, and its numbers are no sizes.
_TABLE_COUNT_MAX = 64


def source_thresholds(function: Function) -> tuple[int, ...]:
    """Return the sizes from 2 to 65,536 that a function asks about, ascending.

    They are the integers of its own body and of the functions of the same package that it reaches,
    folded as in `source_constants`; those of names that are integers or small tables of them; and
    for a remainder, `n % 64 == 5`, the first sizes that leave it: 5, 69, 133 and so on. Empty where
    there is no source, as for built-in functions.
    """
    owner = unwrapped(function)
    if not isinstance(owner, FunctionType):
        return ()
    package = _package_of(owner)
    found: set[int] = set()
    queue, seen = [owner], {owner}
    for one in queue:
        names = one.__globals__
        tree = _tree_of(one)
        if tree is None:
            continue
        _Reader(names, found).visit(tree)
        for callee in _callees(tree, names):
            is_near = _package_of(callee) == package
            if is_near and callee not in seen and len(queue) < _FUNCTION_COUNT_MAX:
                seen.add(callee)
                queue.append(callee)
    return tuple(sorted(number for number in found if CONSTANT_MIN <= number <= CONSTANT_MAX))


def _package_of(function: FunctionType) -> str:
    """Return the package of a function; empty where it was made from a text."""
    module: str | None = function.__module__
    return (module or "").partition(".")[0]


@lru_cache(maxsize=1024)
def _tree_of(function: FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None


def _callees(tree: ast.AST, names: Mapping[str, object]) -> Iterator[FunctionType]:
    """Yield the functions that a function names, those behind Triton's own objects too."""
    for node in ast.walk(tree):
        value = names.get(node.id) if isinstance(node, ast.Name) else None
        if is_triton(value):
            value = getattr(value, "fn", value)
            value = getattr(value, "fn", value)
        if isinstance(value, FunctionType):
            yield value


class _Reader(ast.NodeVisitor):
    """Collects the integers of a function, and what its comparisons of remainders mean."""

    def __init__(self, names: Mapping[str, object], found: set[int]) -> None:
        self._names = names
        self._found = found

    def visit_Compare(self, node: ast.Compare) -> None:
        """Add the first sizes that leave the remainder that is asked for."""
        sides = [node.left, *node.comparators]
        for side in sides:
            divisor = self._divisor(side)
            rests = [self._number(other) for other in sides if other is not side]
            if divisor:
                self._add_multiples(divisor, next((rest for rest in rests if rest is not None), 0))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Add what is computed from literals and names."""
        self._add(self._number(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add a literal."""
        self._add(self._number(node))

    def visit_Name(self, node: ast.Name) -> None:
        """Add the integer, the table or the configurations that a name stands for."""
        value = self._names.get(node.id)
        self._found.update(integers_of(value))
        if isinstance(value, dict | frozenset | set | tuple | list):
            items = tuple(value)[:_TABLE_COUNT_MAX] if len(value) <= _TABLE_COUNT_MAX else ()
            self._found.update(item for item in items if type(item) is int)

    def _add(self, number: int | None) -> None:
        if number is not None:
            self._found.add(number)

    def _add_multiples(self, divisor: int, rest: int) -> None:
        if divisor >= CONSTANT_MIN and 0 <= rest < divisor:
            self._found.update(rest + divisor * count for count in range(_MULTIPLE_COUNT + 1))

    def _divisor(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._number(node.right)
        return None

    def _number(self, node: ast.expr) -> int | None:
        """Return the integer that a node is, whatever it is computed from."""
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.Name):
            value = self._names.get(node.id)
            value = getattr(value, "value", value) if is_triton(value) else value
            return value if type(value) is int else None
        if isinstance(node, ast.BinOp):
            return computed(node.op, self._number(node.left), self._number(node.right))
        return None

"""Builds the registry: the operators of biprop, and those of installed packages.

A package offers its own by an entry point of the group `biprop.operators` that names an `Operator`
or a sequence of them. Called by whoever starts a run (command line, worker, pytest plugin) and
passed down; importing this module registers nothing.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from biprop.errors import TargetError
from biprop.kernels import CACHES, OPERATORS
from biprop.kvcache.protocol import CacheOperator
from biprop.operators import Operator, Registry

__all__ = ["ENTRY_POINT_GROUP", "build_registry", "find_cache"]

ENTRY_POINT_GROUP = "biprop.operators"


def build_registry() -> Registry:
    """Return the registry of this installation.

    Raises:
        TargetError: An entry point cannot be loaded or names no operators, or two operators share a
            name.
    """
    operators = list(OPERATORS)
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        operators.extend(_load(point))
    return Registry(operators=tuple(operators))


def find_cache(name: str) -> CacheOperator:
    """Return the registered cache of a name.

    Raises:
        TargetError: There is none; the sentence lists what there is.
    """
    for cache in CACHES:
        if cache.name == name:
            return cache
    known = ", ".join(cache.name for cache in CACHES)
    raise TargetError(f"No cache {name!r} is registered: there are {known or 'none'}.")


def _load(point: EntryPoint) -> tuple[Operator, ...]:
    what = f"Entry point {point.name} = {point.value} of group {ENTRY_POINT_GROUP}"
    try:
        found = point.load()
    # Importing runs code that may raise anything.
    except Exception as error:
        raise TargetError(
            f"{what} cannot be loaded, it raises {type(error).__name__}: {error}; "
            "repair or uninstall the package that brings it."
        ) from error
    operators = (found,) if isinstance(found, Operator) else found
    if isinstance(operators, Iterable):
        listed = tuple(operators)
        if all(isinstance(operator, Operator) for operator in listed):
            return listed
    raise TargetError(
        f"{what} names a {type(found).__name__}: let it name an Operator or a tuple of them."
    )

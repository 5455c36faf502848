"""The items of a run: committed fixtures first, then operator x backend x dtype x direction.

Ids depend on the registry and on file names alone, so that every worker collects the same. Exempt
operators, and fixtures of targets that nobody declared, are listed and not run.
"""

from pathlib import Path

import attrs
import pytest

from biprop.case import Dtype
from biprop.errors import BipropError, FixtureError
from biprop.fixtures.load import read_fixture
from biprop.fixtures.records import Fixture
from biprop.fixtures.store import FIXTURES, Store
from biprop.generation.space import Direction
from biprop.operators import Kernel, KernelReference, Registry
from biprop.pytest_plugin.known import KNOWN_FILE, Known, read_known
from biprop.registry import build_registry
from biprop.supervision.resolve import reference_of

__all__ = [
    "Cell",
    "FixtureItem",
    "Item",
    "Notes",
    "cells_of",
    "check_operators",
    "items_of",
    "notes_of",
]

DTYPES_OF_CELLS: tuple[Dtype, ...] = ("float32", "bfloat16")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@attrs.frozen(kw_only=True)
class Cell:
    """A kernel, a dtype and a direction.

    Attributes:
        id: `rms_norm-triton-bfloat16-backward`; forms other than packed are named.
        reference: The kernel.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
    """

    id: str
    reference: KernelReference
    dtype: Dtype
    direction: Direction


@attrs.frozen(kw_only=True)
class FixtureItem:
    """A committed fixture of a declared operator, or a file that is none.

    Attributes:
        id: `fixture-` and the name of the file.
        fixture: None where the file cannot be read.
        fault: Why it cannot be read.
        known: Its entry in the ledger of known failures.
    """

    id: str
    fixture: Fixture | None = None
    fault: str = ""
    known: Known | None = None


Item = Cell | FixtureItem


@attrs.frozen(kw_only=True)
class Notes:
    """What is listed and not run.

    Attributes:
        exempt: Name and reason of every exempt operator.
        unlaunched: File names of fixtures whose target nobody declared.
    """

    exempt: dict[str, str] = attrs.field(factory=dict)
    unlaunched: tuple[str, ...] = ()


def items_of(config: pytest.Config) -> tuple[Item, ...]:
    """Return the items of a run.

    Raises:
        pytest.UsageError: An operator that was asked for is not registered, or the ledger of known
            failures cannot be read.
    """
    try:
        registry = build_registry()
        wanted = _wanted(config, registry)
        return (*_fixture_items(config, registry, wanted), *cells_of(registry, wanted))
    except BipropError as error:
        raise pytest.UsageError(str(error)) from error


def check_operators(config: pytest.Config) -> None:
    """Refuse `--biprop-operators` where one of them has no cells.

    Raises:
        pytest.UsageError: The sentence names the first of them.
    """
    try:
        _wanted(config, build_registry())
    except BipropError as error:
        raise pytest.UsageError(str(error)) from error


def notes_of(config: pytest.Config) -> Notes:
    """Return what is listed and not run."""
    registry = build_registry()
    declared = _declared(registry)
    exempt = {
        operator.name: operator.exempt_reason
        for operator in registry.operators
        if operator.exempt_reason is not None
    }
    unlaunched: list[str] = []
    for path in _paths(config):
        try:
            operator = read_fixture(path).operator
        except FixtureError:
            continue
        if operator not in declared:
            unlaunched.append(path.name)
    return Notes(exempt=exempt, unlaunched=tuple(unlaunched))


def _wanted(config: pytest.Config, registry: Registry) -> frozenset[str]:
    """Return the names of the declared operators that were asked for."""
    declared = _declared(registry)
    words = [word.strip() for word in str(config.getoption("--biprop-operators")).split(",")]
    names = frozenset(filter(None, words))
    unknown = sorted(names - {operator.name for operator in registry.operators})
    if unknown:
        raise pytest.UsageError(
            f"--biprop-operators names {unknown[0]!r}, which is not registered: "
            f"use {', '.join(sorted(declared))}."
        )
    exempt = sorted(names - declared)
    if exempt:
        raise pytest.UsageError(
            f"--biprop-operators names {exempt[0]!r}, which is exempt and has no cells: "
            f"use {', '.join(sorted(declared))}."
        )
    return names or declared


def _declared(registry: Registry) -> frozenset[str]:
    return frozenset(item.name for item in registry.operators if item.declaration is not None)


def cells_of(registry: Registry, wanted: frozenset[str] | None = None) -> tuple[Cell, ...]:
    """Return the cells of the declared operators of a registry, or of those that are `wanted`."""
    return tuple(
        Cell(
            id=_id(kernel, dtype, direction),
            reference=reference_of(kernel),
            dtype=dtype,
            direction=direction,
        )
        for kernel in registry.kernels()
        if kernel.declaration is not None and (wanted is None or kernel.operator in wanted)
        for dtype in DTYPES_OF_CELLS
        for direction in DIRECTIONS
        if direction == "forward" or kernel.declaration.backward
    )


def _id(kernel: Kernel, dtype: Dtype, direction: Direction) -> str:
    form = () if kernel.form == "packed" else (kernel.form,)
    return "-".join((kernel.operator, *form, kernel.backend, dtype, direction))


def _fixture_items(
    config: pytest.Config, registry: Registry, wanted: frozenset[str]
) -> tuple[FixtureItem, ...]:
    declared = _declared(registry)
    known = read_known(config.rootpath / FIXTURES / KNOWN_FILE)
    items: list[FixtureItem] = []
    for path in _paths(config):
        name = f"fixture-{path.stem}"
        try:
            fixture = read_fixture(path)
        except FixtureError as error:
            items.append(FixtureItem(id=name, fault=f"{path.name}: {error}"))
            continue
        if fixture.operator in declared & wanted:
            items.append(FixtureItem(id=name, fixture=fixture, known=known.get(fixture.id)))
    return tuple(items)


def _paths(config: pytest.Config) -> tuple[Path, ...]:
    paths = Store(config.rootpath / FIXTURES).paths()
    return tuple(path for path in paths if path.name != KNOWN_FILE)

"""The items of a run: committed fixtures first, then the cells of `biprop.strategies.cells`.

Ids depend on the registry and on file names alone, so that every worker collects the same. Exempt
operators, and fixtures of targets that nobody declared, are listed and not run.
"""

from pathlib import Path

import attrs
import pytest

from biprop.errors import BipropError, FixtureError
from biprop.fixtures.programs import ProgramFixture, read_any
from biprop.fixtures.records import Fixture
from biprop.fixtures.store import FIXTURES, Store
from biprop.kernels import CACHES
from biprop.operators import Registry
from biprop.pytest_plugin.known import KNOWN_FILE, Known, read_known
from biprop.registry import build_registry
from biprop.strategies.cells import Cell, cells_of, declared_in, rank_of_cost

__all__ = [
    "FixtureItem",
    "Item",
    "Notes",
    "check_operators",
    "fixture_paths",
    "items_of",
    "notes_of",
    "wanted_names",
]


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
        cells = sorted(
            cells_of(registry, wanted), key=lambda cell: rank_of_cost(cell.op_class, cell.direction)
        )
        return (*_fixture_items(config, registry, wanted), *cells)
    except BipropError as error:
        raise pytest.UsageError(str(error)) from error


def check_operators(config: pytest.Config) -> None:
    """Refuse `--biprop-operators` where one of them has no items.

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
    declared = declared_in(registry)
    exempt = {
        operator.name: operator.exempt_reason
        for operator in registry.operators
        if operator.exempt_reason is not None
    }
    unlaunched: list[str] = []
    caches = {cache.name for cache in CACHES}
    for path in fixture_paths(config):
        try:
            fixture = read_any(path)
        except FixtureError:
            continue
        known = caches if isinstance(fixture, ProgramFixture) else declared
        if fixture.operator not in known:
            unlaunched.append(path.name)
    return Notes(exempt=exempt, unlaunched=tuple(unlaunched))


def wanted_names(config: pytest.Config) -> frozenset[str] | None:
    """Return the names of operators and caches that were asked for; None: all.

    Raises:
        pytest.UsageError: One of them is not registered, or has no items.
    """
    return _asked_for(config, build_registry())


def _asked_for(config: pytest.Config, registry: Registry) -> frozenset[str] | None:
    declared, caches = declared_in(registry), {cache.name for cache in CACHES}
    words = [word.strip() for word in str(config.getoption("--biprop-operators")).split(",")]
    names = frozenset(filter(None, words))
    unknown = sorted(names - {operator.name for operator in registry.operators} - caches)
    known = ", ".join(sorted(declared | caches))
    if unknown:
        raise pytest.UsageError(
            f"--biprop-operators names {unknown[0]!r}, which is not registered: use {known}."
        )
    exempt = sorted(names - declared - caches)
    if exempt:
        raise pytest.UsageError(
            f"--biprop-operators names {exempt[0]!r}, which is exempt and has no cells: "
            f"use {known}."
        )
    return names or None


def _wanted(config: pytest.Config, registry: Registry) -> frozenset[str]:
    """Return the names of the declared operators that were asked for."""
    declared, names = declared_in(registry), _asked_for(config, registry)
    return declared if names is None else names & declared


def _fixture_items(
    config: pytest.Config, registry: Registry, wanted: frozenset[str]
) -> tuple[FixtureItem, ...]:
    declared = declared_in(registry)
    known = read_known(config.rootpath / FIXTURES / KNOWN_FILE)
    items: list[FixtureItem] = []
    for path in fixture_paths(config):
        name = f"fixture-{path.stem}"
        try:
            fixture = read_any(path)
        except FixtureError as error:
            items.append(FixtureItem(id=name, fault=f"{path.name}: {error}"))
            continue
        if isinstance(fixture, ProgramFixture):
            # Among the items of caches.
            continue
        if fixture.operator in declared & wanted:
            items.append(FixtureItem(id=name, fixture=fixture, known=known.get(fixture.id)))
    return tuple(items)


def fixture_paths(config: pytest.Config) -> tuple[Path, ...]:
    """Return the files of committed fixtures, of either format."""
    paths = Store(config.rootpath / FIXTURES).paths()
    return tuple(path for path in paths if path.name != KNOWN_FILE)

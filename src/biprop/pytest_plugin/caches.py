"""The items of caches: committed fixtures of programs first, then cache x layout x backend x dtype.

Ids depend on the registered caches and on file names alone, so that every worker collects the same.
What runs them is `biprop.pytest_plugin.caches_running`.
"""

import attrs
import pytest

from biprop.case import Dtype
from biprop.errors import BipropError, FixtureError
from biprop.fixtures.programs import ProgramFixture, read_any
from biprop.fixtures.store import FIXTURES
from biprop.kernels import CACHES
from biprop.kvcache.records import CacheReference
from biprop.kvcache.shape import CacheLayout
from biprop.pytest_plugin.cells import fixture_paths, wanted_names
from biprop.pytest_plugin.known import KNOWN_FILE, Known, read_known

__all__ = ["CacheCell", "CacheItem", "ProgramItem", "cache_cells", "cache_items_of"]

_LAYOUTS: tuple[CacheLayout, ...] = ("NHD", "HND")
_DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


@attrs.frozen(kw_only=True)
class CacheCell:
    """A cache in a layout, a backend and a dtype.

    Attributes:
        id: `cache-paged-NHD-torch-float32`.
        reference: The cache.
        layout: Of its pages.
        dtype: Of queries, keys and values; what is stored is drawn.
    """

    id: str
    reference: CacheReference
    layout: CacheLayout
    dtype: Dtype


@attrs.frozen(kw_only=True)
class ProgramItem:
    """A committed fixture of a registered cache.

    Attributes:
        id: `fixture-` and the name of the file.
        fixture: It.
        known: Its entry in the ledger of known failures.
    """

    id: str
    fixture: ProgramFixture
    known: Known | None = None


CacheItem = CacheCell | ProgramItem


def cache_items_of(config: pytest.Config) -> tuple[CacheItem, ...]:
    """Return the items of a run.

    Raises:
        pytest.UsageError: A name that was asked for is neither an operator nor a cache, or the
            ledger of known failures cannot be read.
    """
    try:
        wanted = wanted_names(config)
        items: tuple[CacheItem, ...] = (*_fixture_items(config), *cache_cells())
        return tuple(item for item in items if wanted is None or _cache_of(item) in wanted)
    except BipropError as error:
        raise pytest.UsageError(str(error)) from error


def cache_cells() -> tuple[CacheCell, ...]:
    """Return every registered cache in every layout, backend and dtype."""
    return tuple(
        CacheCell(
            id=f"cache-{cache.name}-{layout}-{implementation.backend}-{dtype}",
            reference=CacheReference(
                cache=cache.name, target=cache.name, backend=implementation.backend
            ),
            layout=layout,
            dtype=dtype,
        )
        for cache in CACHES
        for implementation in cache.implementations
        for layout in _LAYOUTS
        for dtype in _DTYPES
    )


def _cache_of(item: CacheItem) -> str:
    return item.fixture.cache if isinstance(item, ProgramItem) else item.reference.cache


def _fixture_items(config: pytest.Config) -> tuple[ProgramItem, ...]:
    known = read_known(config.rootpath / FIXTURES / KNOWN_FILE)
    registered = {cache.name for cache in CACHES}
    items: list[ProgramItem] = []
    for path in fixture_paths(config):
        try:
            fixture = read_any(path)
        except FixtureError:
            # Listed, and failed, among the items of operators.
            continue
        if isinstance(fixture, ProgramFixture) and fixture.cache in registered:
            items.append(
                ProgramItem(id=f"fixture-{path.stem}", fixture=fixture, known=known.get(fixture.id))
            )
    return tuple(items)

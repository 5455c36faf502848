"""Which planted kernels a run tries: all of them at profile nightly, else a sixth.

Which sixth follows from the digest of biprop's own sources, so that each run of a commit tries the
same, and commits take turns. What is marked `nightly` is tried at that profile alone.
"""

import zlib

import pytest

from biprop.provenance import source_digest

PARTS = 6


def part_of(name: str) -> int:
    """Return the sixth that a planted kernel belongs to."""
    return zlib.crc32(name.encode()) % PARTS


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark."""
    config.addinivalue_line("markers", "nightly: tried at profile nightly alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the planted kernels of the other sixths, and say how many items that are."""
    if config.getoption("--biprop-profile") == "nightly":
        return
    turn = int(source_digest(), 16) % PARTS
    others = [
        item
        for item in items
        if item.get_closest_marker("nightly") is not None
        or any(part_of(name) != turn for name in _planted(item))
    ]
    if others:
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=others)


def _planted(item: pytest.Item) -> list[str]:
    """Return the names of the planted kernels that an item is for."""
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else callspec.params.values()
    return [value.name for value in values if type(value).__module__.startswith("biprop.kernels")]

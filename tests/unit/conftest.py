"""Have workers of the tests forked from a process that has torch already, and share one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from biprop.supervision import Child

if TYPE_CHECKING:
    from tests.forked import Forks


@pytest.fixture(scope="session", autouse=True)
def _forked(forks: "Forks") -> "Forks":
    """Fork them in all tests of this folder, but where a module asks for `started_anew`."""
    return forks


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """Return a worker that the judges of a module share."""
    child = Child(device="cpu")
    yield child
    child.close()

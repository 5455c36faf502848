"""Have workers of the tests forked from a process that has torch already."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.forked import Forks


@pytest.fixture(scope="session", autouse=True)
def _forked(forks: "Forks") -> "Forks":
    """Fork them in all tests of this folder, but where a module asks for `started_anew`."""
    return forks

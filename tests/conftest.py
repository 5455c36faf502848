"""Make biprop and its plugin available to tests that run from a tree where biprop is not installed.

No settings live here: `biprop.pytest_plugin` brings them, so that an installed biprop and a tree
behave alike.
"""

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.forked import Forks
    from tests.preloaded import Preloaded

# Threads that wait give their core away; as torch has them they spin, while workers want all cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if importlib.util.find_spec("biprop") is None:
    source = str(Path(__file__).resolve().parent.parent / "src")
    sys.path.insert(0, source)
    # Workers, and commands that a test starts, find it too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))

# An installed biprop has loaded its plugin by entry point, and pytest refuses the same one twice.
if "biprop.pytest_plugin" not in sys.modules:
    pytest_plugins = ("biprop.pytest_plugin",)


def pytest_collection_finish() -> None:
    """Keep what was collected: no collection of garbage need look at it again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let them go: libraries complain of what outlives the interpreter."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def preloaded() -> Iterator["Preloaded"]:
    """Yield what runs commands in processes that have torch already."""
    # Not at the top: this file is loaded before the folder of tests is on the path.
    from tests.preloaded import Preloaded  # noqa: PLC0415

    made = Preloaded()
    yield made
    made.close()


@pytest.fixture(scope="session")
def forks() -> Iterator["Forks"]:
    """Have workers of this process forked from one that has torch already; yield what does so."""
    from tests.forked import Forks  # noqa: PLC0415  # as above

    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="module")
def started_anew(forks: "Forks") -> Iterator[None]:
    """Have workers started as users have them, in a module whose subject that is."""
    forks.restore()
    yield
    forks.change()

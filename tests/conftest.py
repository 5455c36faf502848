"""Make biprop and its plugin available to tests that run from a tree where biprop is not installed.

No settings live here: `biprop.pytest_plugin` brings them, so that an installed biprop and a tree
behave alike.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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


@pytest.fixture(scope="session")
def preloaded() -> Iterator["Preloaded"]:
    """Yield what runs commands in processes that have torch already."""
    # Not at the top: this file is loaded before the folder of tests is on the path.
    from tests.preloaded import Preloaded  # noqa: PLC0415

    made = Preloaded()
    yield made
    made.close()

"""Make biprop and its plugin available to tests that run from a tree where biprop is not installed.

No fixtures and no settings live here: `biprop.pytest_plugin` brings them, so that an installed
biprop and a tree behave alike.
"""

import importlib.util
import os
import sys
from pathlib import Path

if importlib.util.find_spec("biprop") is None:
    source = str(Path(__file__).resolve().parent.parent / "src")
    sys.path.insert(0, source)
    # Workers, and commands that a test starts, find it too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))

# An installed biprop has loaded its plugin by entry point, and pytest refuses the same one twice.
if "biprop.pytest_plugin" not in sys.modules:
    pytest_plugins = ("biprop.pytest_plugin",)

"""Every cell holds what its operator declares; no committed fixture of a declared operator fails.

One item a committed fixture, then one a cell: operator x backend x dtype x direction. The plugin
(`biprop.pytest_plugin`) lists and runs them; nothing is decided here.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Not imported at run time: kernels must not be imported before the plugin sets the environment.
    from biprop.pytest_plugin.cells import Item
    from biprop.pytest_plugin.running import PropsRun


def test_holds(biprop_item: "Item", biprop_run: "PropsRun", request: pytest.FixtureRequest) -> None:
    """An active token keeps its bits whatever else is in the batch."""

    biprop_run.check(biprop_item, request.node.user_properties)

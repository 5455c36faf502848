"""Every cache gives the bits of a full prefill, whatever happened to its pages before.

One item a committed fixture, then one a cache, layout, backend and dtype: its state machine
(`biprop.strategies.cache_machine`) writes programs, after the fixed ones. The plugin
(`biprop.pytest_plugin`) lists and runs them; nothing is decided here.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Not imported at run time: kernels must not be imported before the plugin sets the environment.
    from biprop.pytest_plugin.caches import CacheItem
    from biprop.pytest_plugin.running import PropsRun


def test_holds(
    biprop_cache: "CacheItem", biprop_run: "PropsRun", request: pytest.FixtureRequest
) -> None:
    """A decode step, a chunk and a shared prefix have the bits of one full prefill."""

    biprop_run.check_cache(biprop_cache, request.node.user_properties)

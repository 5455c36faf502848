"""The pytest plugin: one item a cell and a committed fixture, and a drift summary at the end.

Loaded wherever biprop is installed, so it imports nothing slow and does nothing before a test asks
for `biprop_item` (tests/props). Cells are listed by `cells`, run by `running`, told by `summary`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from biprop.pytest_plugin.running import PropsRun

__all__ = [
    "biprop_run",
    "pytest_addoption",
    "pytest_configure",
    "pytest_generate_tests",
]

_ITEM = "biprop_item"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the group biprop."""
    group = parser.getgroup("biprop", "batch invariance of kernels")
    group.addoption(
        "--biprop-device",
        metavar="DEVICE",
        default="cpu",
        help="where kernels run: cpu (default), cuda or cuda:N",
    )
    group.addoption(
        "--biprop-profile",
        choices=("dev", "pr", "nightly"),
        # One default everywhere: `dev` is short, and leaves some classes without enough evidence.
        default="pr",
        help="how thorough the search is (default: pr)",
    )
    group.addoption(
        "--biprop-operators",
        metavar="NAME,NAME",
        default="",
        help="only cells and fixtures of these operators",
    )
    group.addoption(
        "--biprop-report",
        metavar="FILE",
        default=None,
        help="write one JSON object a cell to FILE, drift records inside",
    )
    group.addoption(
        "--biprop-max-examples",
        metavar="N",
        type=int,
        default=None,
        help="examples of each cell, instead of what the profile says",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect what items report; nothing is printed where there are none."""
    # A small module of the standard library and pytest; what it tells with is imported at the end.
    from biprop.pytest_plugin.summary import Summary

    config.pluginmanager.register(Summary(config), "biprop-summary")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes `biprop_item` one item a committed fixture, then one a cell."""
    if _ITEM not in metafunc.fixturenames:
        return
    # From here on it is a run of biprop: the environment comes first, since kernels read it when
    # they are imported.
    from biprop.pytest_plugin.environment import prepare_environment

    prepare_environment(metafunc.config)
    from biprop.pytest_plugin.cells import items_of

    items = items_of(metafunc.config)
    metafunc.parametrize(_ITEM, items, ids=[item.id for item in items])


@pytest.fixture(scope="session")
def biprop_run(request: pytest.FixtureRequest) -> "Iterator[PropsRun]":
    """Yield what runs items, with one worker process that all of them share."""
    from biprop.pytest_plugin.running import PropsRun

    run = PropsRun.of(request.config)
    yield run
    run.close()

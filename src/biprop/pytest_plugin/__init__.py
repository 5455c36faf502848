"""The pytest plugin: one item a cell and a committed fixture, and a drift summary at the end.

Loaded wherever biprop is installed, so it imports nothing slow and does nothing before a test asks
for `biprop_item` or `biprop_cache` (tests/props). Cells are listed by `cells`, caches by `caches`;
both are run by `running` and told by `summary`.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from biprop.pytest_plugin.running import PropsRun

__all__ = [
    "biprop_run",
    "pytest_addoption",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_generate_tests",
    "pytest_pycollect_makeitem",
    "pytest_xdist_auto_num_workers",
]

_ITEM = "biprop_item"
_CACHE = "biprop_cache"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the group biprop."""
    group = parser.getgroup("biprop", "batch invariance of kernels")
    group.addoption(
        "--biprop-device",
        metavar="DEVICE",
        default="cpu",
        help="where kernels run: cpu (default), cuda (workers are spread over all) or cuda:N",
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
        help="only items of these operators and caches",
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
        help="examples of each cell, or programs, instead of what the profile says",
    )
    group.addoption(
        "--biprop-max-seconds",
        metavar="SECONDS",
        type=float,
        default=None,
        help="after which a cell draws no further example, or after ten times as long where it "
        "lacks evidence",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect what items report, and refuse options that cannot be used before any collection.

    Nothing is printed where there are no items.

    Raises:
        pytest.UsageError: The device or an operator cannot be used.
    """
    # A small module of the standard library and pytest; what it tells with is imported at the end.
    from biprop.pytest_plugin.summary import Summary

    config.pluginmanager.register(Summary(config), "biprop-summary")
    if hasattr(config, "workerinput"):
        # Whoever started this worker has looked at them.
        return
    if config.getoption("--biprop-device") != "cpu":
        from biprop.pytest_plugin.devices import check_device

        check_device(config)
    if config.getoption("--biprop-operators"):
        # Only the operators themselves tell their names, so here they are imported early.
        from biprop.pytest_plugin.environment import prepare_environment

        prepare_environment(config)
        from biprop.pytest_plugin.cells import check_operators

        check_operators(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return how many workers share the devices that there are; None on a CPU."""
    if config.getoption("--biprop-device") == "cpu":
        return None
    from biprop.pytest_plugin.devices import worker_count

    return worker_count(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401  # of pytest-xdist, which has no types
    """Tell a worker of a parallel run how many devices it is spread over."""
    if node.config.getoption("--biprop-device") == "cuda":
        from biprop.pytest_plugin.devices import DEVICES_KEY, device_count

        node.workerinput[DEVICES_KEY] = device_count(node.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test of `biprop_item` or `biprop_cache` its items, committed fixtures first."""
    names = [name for name in (_ITEM, _CACHE) if name in metafunc.fixturenames]
    if not names:
        return
    # From here on it is a run of biprop: the environment comes first, since kernels read it when
    # they are imported.
    from biprop.pytest_plugin.environment import prepare_environment

    prepare_environment(metafunc.config)
    from biprop.pytest_plugin.caches import cache_items_of
    from biprop.pytest_plugin.cells import items_of

    for name in names:
        listed = items_of(metafunc.config) if name == _ITEM else cache_items_of(metafunc.config)
        ids = [item.id for item in listed]
        # Where others were asked for, pytest would list one skipped item; it is left out below.
        metafunc.parametrize(name, listed or (None,), ids=ids or ("none",))


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Leave out a test of which there is no item."""
    made = yield
    if not isinstance(made, list):
        return made
    return [item for item in made if not _is_empty(item)]


def _is_empty(item: object) -> bool:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return any(name in params and params[name] is None for name in (_ITEM, _CACHE))


@pytest.fixture(scope="session")
def biprop_run(request: pytest.FixtureRequest) -> "Iterator[PropsRun]":
    """Yield what runs items, with one worker process that all of them share."""
    from biprop.pytest_plugin.running import PropsRun

    run = PropsRun.of(request.config)
    yield run
    run.close()

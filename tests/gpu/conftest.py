"""Tests that need a CUDA device: no part of any run that names none.

A run over all of tests/ leaves them out; a run that names this folder must name a device too, so
that nothing is skipped in silence.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from biprop.execution.device import on_device
from biprop.pytest_plugin.devices import device_of

_FOLDER = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run what the run names and no device could run.

    Raises:
        pytest.UsageError: This folder is named, and no CUDA device.
    """
    if not _has_device(config) and any(_is_here(word, config) for word in config.args):
        raise pytest.UsageError("tests/gpu needs a device: add --biprop-device cuda.")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the folder out where no device is named."""
    return None if _has_device(config) else True


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Yield the device of this process, which is the current one meanwhile."""
    name = device_of(request.config)
    with on_device(name):
        yield torch.device(name)


def _has_device(config: pytest.Config) -> bool:
    return str(config.getoption("--biprop-device")).startswith("cuda")


def _is_here(word: str, config: pytest.Config) -> bool:
    # An argument may name a test in a file.
    path = Path(os.path.normpath(config.invocation_params.dir / word.partition("::")[0]))
    return path.is_relative_to(_FOLDER)

"""The environment of a run of tests/props: set before Triton and Hypothesis read it.

The only place of the plugin that writes environment variables.
"""

import os

import pytest

from biprop.pytest_plugin.devices import device_of

__all__ = ["prepare_environment", "profile_name"]


def prepare_environment(config: pytest.Config) -> None:
    """Set what kernels, torch and Hypothesis read at import; what is set already stays.

    Raises:
        pytest.UsageError: The device has no such form.
    """
    # Run from another folder, Hypothesis would make a second `.hypothesis` there.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(config.rootpath / ".hypothesis"))
    # One worker a core: threads of their own would only compete.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if device_of(config) == "cpu":
        # Triton compiles for no CPU. The processes that run kernels inherit it.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from biprop.strategies.profiles import register_profiles

    register_profiles(storage=str(config.rootpath / ".hypothesis" / "examples"))


def profile_name(config: pytest.Config) -> str:
    """Return the profile asked for."""
    return str(config.getoption("--biprop-profile"))

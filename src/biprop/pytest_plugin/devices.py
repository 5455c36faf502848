"""Devices of a run: how many there are, how many workers share them, and which worker has which.

Devices and cores are counted by `biprop.machine`.
"""

import os
import re

import pytest

from biprop.machine import WORKERS_PER_DEVICE, core_count, count_devices, is_device

__all__ = ["DEVICES_KEY", "check_device", "device_count", "device_of", "worker_count"]

# How a worker of a parallel run is told the number of devices.
DEVICES_KEY = "biprop_devices"
_stashed = pytest.StashKey[int]()


def device_of(config: pytest.Config) -> str:
    """Return where this process runs kernels: `cpu`, `cuda` or `cuda:N`.

    Workers of a parallel run are spread over the devices that there are.

    Raises:
        pytest.UsageError: What was asked for has no such form.
    """
    device = _asked_for(config)
    told: dict[str, object] = getattr(config, "workerinput", {})
    count = int(str(told.get(DEVICES_KEY, 1)))
    if device != "cuda" or count <= 1:
        return device
    number = re.sub(r"\D", "", str(told["workerid"]))
    return f"cuda:{int(number or 0) % count}"


def check_device(config: pytest.Config) -> None:
    """Refuse a device that is none, or that this machine has not.

    Raises:
        pytest.UsageError: The sentence names the device.
    """
    device = _asked_for(config)
    if device == "cpu":
        return
    count = device_count(config)
    if not count:
        raise pytest.UsageError(
            f"--biprop-device {device} cannot be used: torch sees no CUDA device here; use cpu."
        )
    number = int(device.partition(":")[2] or 0)
    if number >= count:
        raise pytest.UsageError(
            f"--biprop-device {device} cannot be used: the last of the {count} CUDA devices here "
            f"is cuda:{count - 1}."
        )


def device_count(config: pytest.Config) -> int:
    """Return how many CUDA devices torch sees, `CUDA_VISIBLE_DEVICES` respected; asked once."""
    if _stashed not in config.stash:
        config.stash[_stashed] = count_devices()
    return config.stash[_stashed]


def worker_count(config: pytest.Config) -> int | None:
    """Return how many workers `-n auto` means; None where that is for pytest-xdist to say.

    Raises:
        pytest.UsageError: The device cannot be used.
    """
    check_device(config)
    device = _asked_for(config)
    if device == "cpu" or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    devices = device_count(config) if device == "cuda" else 1
    return min(devices * WORKERS_PER_DEVICE, core_count())


def _asked_for(config: pytest.Config) -> str:
    device = str(config.getoption("--biprop-device"))
    if not is_device(device):
        raise pytest.UsageError(f"--biprop-device {device!r} is unknown: use cpu, cuda or cuda:N.")
    return device

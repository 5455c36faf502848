"""Devices of a run: how many there are, how many workers share them, and which worker has which.

The process that controls a parallel run needs no torch, so a short child counts for it.
"""

import os
import re
import subprocess
import sys

import pytest

__all__ = ["DEVICES_KEY", "check_device", "device_count", "device_of", "worker_count"]

# How a worker of a parallel run is told the number of devices.
DEVICES_KEY = "biprop_devices"
# Between two launches a worker draws and checks its cases in Python, so one keeps no device busy.
WORKERS_PER_DEVICE = 8
_COUNT = "import torch; print(torch.cuda.device_count())"
_SECONDS_TO_COUNT = 120.0
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
        config.stash[_stashed] = _counted()
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
    return min(devices * WORKERS_PER_DEVICE, _core_count())


def _asked_for(config: pytest.Config) -> str:
    device = str(config.getoption("--biprop-device"))
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise pytest.UsageError(f"--biprop-device {device!r} is unknown: use cpu, cuda or cuda:N.")
    return device


def _counted() -> int:
    # S603: the command is fixed.
    done = subprocess.run(  # noqa: S603
        (sys.executable, "-c", _COUNT),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_TO_COUNT,
    )
    # Without torch there is no device either, and what is wrong is said by whoever needs it.
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0


def _core_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Which devices a run is spread over, and how many cells are searched on them at a time."""

import os
import re

import torch

from biprop.errors import DeviceError

__all__ = ["devices_of", "worker_count"]

# Between two launches a search draws and checks its cases in Python, so one keeps no device busy.
_WORKERS_PER_DEVICE = 8


def devices_of(device: str) -> tuple[str, ...]:
    """Return the devices of `cpu`, `cuda` (all that there are) or `cuda:N`.

    Raises:
        DeviceError: It has another form, or is absent.
    """
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise DeviceError(f"Device {device!r} is unknown: use cpu, cuda or cuda:N.")
    if device == "cpu":
        return ("cpu",)
    # Counting starts no context, so that this process stays free of the device.
    count = torch.cuda.device_count()
    if not count:
        raise DeviceError(f"Device {device!r} is absent: torch sees no CUDA device; use cpu.")
    if device == "cuda":
        return tuple(f"cuda:{number}" for number in range(count))
    if int(device.partition(":")[2]) >= count:
        raise DeviceError(
            f"Device {device!r} is absent: the last of {count} CUDA devices is cuda:{count - 1}."
        )
    return (device,)


def worker_count(devices: tuple[str, ...]) -> int:
    """Return how many cells to search at a time: one a core, and no more than eight a GPU."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return cores if devices == ("cpu",) else min(cores, len(devices) * _WORKERS_PER_DEVICE)

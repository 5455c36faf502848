"""Which devices a run is spread over, and how many cells are searched on them at a time."""

from biprop.errors import DeviceError
from biprop.machine import WORKERS_PER_DEVICE, core_count, count_devices
from biprop.suite.arguments import check_device_name

__all__ = ["devices_of", "worker_count"]


def devices_of(device: str) -> tuple[str, ...]:
    """Return the devices of `cpu`, `cuda` (all that there are) or `cuda:N`.

    Raises:
        DeviceError: It has another form, or is absent.
    """
    check_device_name(device)
    if device == "cpu":
        return ("cpu",)
    count = count_devices()
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
    cores = core_count()
    return cores if devices == ("cpu",) else min(cores, len(devices) * WORKERS_PER_DEVICE)

"""Devices that compute beside this process: waited for, and asked whether they still do.

An illegal address, a misaligned one or an assertion of a kernel ends the use of a CUDA device by
the whole process: whatever is asked of it afterwards fails with the same error. What becomes of
such a process is decided by `biprop.supervision`.
"""

from contextlib import AbstractContextManager, nullcontext

import attrs
import torch

__all__ = ["Mark", "is_lost", "on_device", "wait_for"]


@attrs.frozen(kw_only=True, eq=False)
class Mark:
    """A point in the work given to a device; None where the process computes by itself."""

    event: torch.cuda.Event | None = None

    @classmethod
    def now(cls, device: torch.device) -> "Mark":
        """Return the point after all work given so far."""
        if device.type != "cuda":
            return cls()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(torch.cuda.current_stream(device))
        return cls(event=event)

    def wait(self) -> None:
        """Wait until the device has come here; raises what went wrong on it."""
        if self.event is not None:
            self.event.synchronize()


def on_device(name: str) -> AbstractContextManager[object]:
    """Make a device the current one until the block ends, as kernels launched by Triton need it."""
    device = torch.device(name)
    is_numbered = device.type == "cuda" and ":" in name
    return torch.cuda.device(device) if is_numbered else nullcontext()


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all work given so far; raises what went wrong on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_lost(device: torch.device) -> bool:
    """Return whether a device no longer computes for this process."""
    if device.type == "cpu":
        return False
    try:
        return int(torch.ones(1, device=device).sum().item()) != 1
    except torch.OutOfMemoryError:
        # Other processes may have filled it.
        return False
    except Exception:  # noqa: BLE001  # any error here has the same meaning
        return True

"""How many cores and devices there are, and how many processes share them.

Asked by whoever spreads a run over them: the commands, the suite and the plugin. None of them needs
torch for that, so a short child counts the devices. What a device is called in records says
`biprop.provenance`.
"""

import os
import re
import subprocess
import sys

__all__ = ["WORKERS_PER_DEVICE", "core_count", "count_devices", "is_device"]

# Between two launches a search draws and checks its cases in Python, so one keeps no device busy.
WORKERS_PER_DEVICE = 8
_COUNT = "import torch; print(torch.cuda.device_count())"
_SECONDS_TO_COUNT = 120.0


def is_device(text: str) -> bool:
    """Say whether a text has the form of a device: `cpu`, `cuda` or `cuda:N`."""
    return re.fullmatch(r"cpu|cuda(:\d{1,3})?", text) is not None


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_devices() -> int:
    """Return how many CUDA devices torch sees, `CUDA_VISIBLE_DEVICES` respected; 0 without torch.

    What is wrong with torch is said by whoever needs it.
    """
    # S603: the command is fixed.
    done = subprocess.run(  # noqa: S603
        (sys.executable, "-c", _COUNT),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_TO_COUNT,
    )
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0

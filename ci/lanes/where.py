"""Where a lane runs: the device, the versions, and the digest of the sources.

Names of machines and of people are never asked for: a file of evidence goes into the repository.
"""

import datetime as dt
import platform
import re
import subprocess
from pathlib import Path

from ci.lanes.runs import Device, EvidenceError, Run, Versions

from biprop.provenance import device_name, source_sha256, version_of

__all__ = ["ROOT", "check_device", "this_run", "without_folders"]

ROOT = Path(__file__).resolve().parents[2]

_FOLDERS = re.compile(r"(?<![\w.~])/(?:[\w.+@-]+/)+")
_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def check_device(device: str) -> None:
    """Refuse a device that is not here.

    Raises:
        EvidenceError: One sentence that says so.
    """
    if not device.startswith("cuda"):
        return
    from torch import cuda  # noqa: PLC0415  # takes seconds, and a wrong option should not

    if not cuda.is_available():
        raise EvidenceError(
            "CUDA is not available here: run it on a machine with a GPU, or try the plumbing, "
            "which certifies nothing, with --device cpu."
        )


def this_run(device: str) -> Run:
    """Return what there is to say of this place before anything has run."""
    import torch  # noqa: PLC0415  # as in check_device

    on_gpu = device.startswith("cuda")
    capability = ".".join(map(str, torch.cuda.get_device_capability(device))) if on_gpu else ""
    return Run(
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        certifies=on_gpu,
        source_sha256=source_sha256(),
        device=Device(
            kind="cuda" if on_gpu else "cpu",
            name=device_name(device),
            capability=capability,
            driver=_driver() if on_gpu else "",
            count=torch.cuda.device_count() if on_gpu else 1,
        ),
        versions=Versions(
            biprop=version_of("biprop"),
            python=platform.python_version(),
            torch=torch.__version__,
            cuda=torch.version.cuda or "",
            triton=version_of("triton"),
            hypothesis=version_of("hypothesis"),
            numpy=version_of("numpy"),
        ),
        commands=(),
        seconds=0.0,
        is_complete=False,
        is_met=False,
    )


def without_folders(text: str) -> str:
    """Return a text without the folders of its absolute paths."""
    return _FOLDERS.sub("", text)


def _driver() -> str:
    """Return the version of the driver, which torch does not tell; empty where nothing does."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else ""

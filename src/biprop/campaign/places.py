"""Processes of a campaign: who this one is, and whether another one still runs.

A number alone does not tell: numbers are used again, and containers of one machine count apart.
What runs on another machine is known by its heartbeat alone (`biprop.campaign.store`).
"""

import os
import platform
from functools import cache
from pathlib import Path

from biprop.campaign.records import Place

__all__ = ["is_here", "is_running", "this_process"]

_PROC = Path("/proc")
# Place of the start time in /proc/<pid>/stat, counted from behind the name, which may hold spaces.
_START_FIELD = 19


def this_process() -> Place:
    """Return the place of this process."""
    pid = os.getpid()
    return Place(host=platform.node(), namespace=_namespace(), pid=pid, started=_start_of(pid) or 0)


def is_here(place: Place) -> bool:
    """Say whether a process is of this machine, so that it can be looked at."""
    return (place.host, place.namespace) == (platform.node(), _namespace())


def is_running(place: Place) -> bool:
    """Say whether a process of this machine still runs."""
    try:
        os.kill(place.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    started = _start_of(place.pid)
    return started is None or not place.started or started == place.started


@cache
def _namespace() -> str:
    try:
        return str((_PROC / "self" / "ns" / "pid").readlink())
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when a process began, in ticks; None where that cannot be told, 0 for a dead one."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return 0 if _PROC.joinpath("self").exists() else None
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    # A zombie has ended; whoever started it has not looked yet.
    return 0 if fields[0] in {"Z", "X"} else int(fields[_START_FIELD])

"""Whether the memory of a campaign's processes grows with time.

    PYTHONPATH=src python3 ci/benchmarks/campaign_memory.py 10m --target planted.json --workers 2

Runs `biprop fuzz` with the options that are given, and looks at the resident memory of its
processes twice a second: of the parent, of each process that draws cases, and of the children that
run kernels. Printed are the median and the largest in each tenth of the time, and how many
processes there were: those that are replaced begin anew. The exit status is that of the campaign.
"""

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from biprop.cli.fuzz import parse_budget

__all__ = ["main", "resident"]

_SECONDS_A_LOOK = 0.5
_PARTS = 10
_ROLES = ("parent", "drawing", "kernels")
_MIB = 1024


def main(budget: str, *options: str) -> int:
    """Run a campaign, print a table, and return its exit status."""
    seconds = parse_budget(budget)
    command = [sys.executable, "-m", "biprop", "fuzz", "--budget", budget, *options]
    campaign = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    begun = time.monotonic()
    # By part of the time and role.
    seen: dict[tuple[int, str], list[int]] = defaultdict(list)
    processes: dict[tuple[int, str], set[int]] = defaultdict(set)
    while campaign.poll() is None:
        part = min(_PARTS - 1, int(_PARTS * (time.monotonic() - begun) / seconds))
        for process, role, kibibytes in resident(campaign.pid):
            seen[part, role].append(kibibytes)
            processes[part, role].add(process)
        time.sleep(_SECONDS_A_LOOK)
    print("MiB, median and largest, and processes, in each tenth of the time")  # noqa: T201
    for role in _ROLES:
        cells = [
            f"{statistics.median(found) / _MIB:.0f}/{max(found) / _MIB:.0f} "
            f"({len(processes[part, role])})"
            for part in range(_PARTS)
            if (found := seen[part, role])
        ]
        print(f"{role:8s}", "  ".join(cells))  # noqa: T201  # this is its output
    return campaign.returncode


def resident(parent: int) -> Iterator[tuple[int, str, int]]:
    """Yield number, role and resident KiB of the processes of a campaign."""
    yield parent, "parent", _kibibytes(parent)
    for drawing in _children(parent):
        yield drawing, "drawing", _kibibytes(drawing)
        for child in _children(drawing):
            yield child, "kernels", _kibibytes(child)


def _children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text(encoding="ascii").split()]
        except OSError:
            # It has ended.
            continue
    return found


def _kibibytes(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("VmRSS:")), "VmRSS: 0 kB")
    return int(line.split()[1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

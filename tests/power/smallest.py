"""The command behind `ci/smallest`: search planted kernels for their smallest failing structures.

Writes or checks `kernels/planted/smallest.json`; the search is `biprop.power.smallest`.
"""

import json
import os
import sys
import time
from collections.abc import Sequence

import torch

# Triton compiles for no CPU, and kernels read it when they are imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

from biprop.kernels.planted import PLANTED
from biprop.power.smallest import FILE, Entry, cost_to_data, entries, find_smallest

__all__ = ["Entry", "cost_to_data", "entries", "main", "with_devices"]


def main(words: Sequence[str]) -> int:
    """Search the planted kernels that are named, or all.

    Args:
        words: Names, and `--check` to compare with the file instead of writing it.

    Returns:
        The exit status: 1 where the file says something else, 2 for an unknown name.
    """
    names = [word for word in words if word != "--check"]
    known = {planted.name: planted for planted in PLANTED}
    for name in names:
        if name not in known:
            sys.stderr.write(f"smallest: {name!r} is no planted kernel.\n")
            return 2
    torch.set_num_threads(1)
    committed = entries()
    found = dict(committed)
    for planted in PLANTED:
        if "cpu" not in planted.devices or (names and planted.name not in names):
            continue
        for dtype in planted.dtypes:
            start = time.monotonic()
            entry = find_smallest(planted, dtype)
            found[planted.name, dtype] = with_devices(entry, committed.get((planted.name, dtype)))
            said = entry.get("structure", "nothing fails within the bounds")
            seconds = time.monotonic() - start
            sys.stdout.write(f"{seconds:6.1f} s  {planted.name} {dtype}: {said}\n")
            sys.stdout.flush()
    if "--check" in words:
        return int(found != committed)
    order = [(planted.name, dtype) for planted in PLANTED for dtype in planted.dtypes]
    lines = ",\n".join(f"  {json.dumps(found[key])}" for key in order if key in found)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


def with_devices(entry: Entry, committed: Entry | None) -> Entry:
    """Return an entry with the devices of the committed one, if both are of one structure.

    That a structure is the smallest on a GPU too is reasoned, not searched: of another structure it
    would have to be reasoned anew.
    """
    if committed is None or "devices" not in committed or committed["cost"] != entry.get("cost"):
        return entry
    return {**entry, "devices": committed["devices"]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

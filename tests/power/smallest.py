"""The smallest failing structure of every planted kernel: the command behind `ci/smallest`.

Says how far each search goes (`Planted.extent`), and writes or checks
`kernels/planted/smallest.json`. The search itself is `biprop.minimize.exhaustive`.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from tests.power.trials import judge_quickly, space_of

from biprop.case import Case, Dtype
from biprop.generation import judged_kinds, legal_for, simplest_case
from biprop.judgment import Outcome
from biprop.kernels.planted import PLANTED, Planted
from biprop.minimize import Cost
from biprop.minimize.exhaustive import Bounds, in_words, search_smallest

__all__ = ["RATE", "Entry", "cost_to_data", "entries", "main"]

FILE = Path(__file__).resolve().parents[2] / "kernels" / "planted" / "smallest.json"
# A target that differs from run to run is repeated as one that does so every other time.
RATE = 0.5

Entry = dict[str, object]


def entries() -> dict[tuple[str, str], Entry]:
    """Return what the file holds, by name and dtype."""
    listed: list[Entry] = json.loads(FILE.read_text()) if FILE.exists() else []
    return {(str(entry["name"]), str(entry["dtype"])): entry for entry in listed}


def cost_to_data(cost: Cost) -> list[object]:
    """Return the cost of a structure as JSON holds it."""
    return [list(part) if isinstance(part, tuple) else part for part in cost.structure]


def find_smallest(planted: Planted, dtype: Dtype) -> Entry:
    """Search one planted kernel, and return its entry."""
    kernel = planted.kernel()
    rate = None if planted.deterministic else RATE

    def judge(case: Case) -> Outcome:
        return judge_quickly(kernel, case, rate=rate)

    found = search_smallest(
        kernel.signature,
        simplest_case(space_of(planted, dtype)),
        Bounds(**attrs.asdict(planted.extent)),
        judged=judged_kinds(kernel.signature, planted.direction),
        judge=judge,
        legal=legal_for(kernel),
    )
    entry: Entry = {"name": planted.name, "dtype": dtype, "tried": found.structures}
    if found.case is None or found.cost is None:
        return {**entry, "bound": True}
    return {**entry, "cost": cost_to_data(found.cost), "structure": in_words(found.case)}


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
    committed = entries()
    found = dict(committed)
    for planted in PLANTED:
        for dtype in planted.dtypes if not names or planted.name in names else ():
            start = time.monotonic()
            entry = find_smallest(planted, dtype)
            found[planted.name, dtype] = entry
            said = entry.get("structure", "nothing fails within the bounds")
            seconds = time.monotonic() - start
            sys.stdout.write(f"{seconds:6.1f} s  {planted.name} {dtype}: {said}\n")
            sys.stdout.flush()
    if "--check" in words:
        return int(found != committed)
    order = [(planted.name, dtype) for planted in PLANTED for dtype in planted.dtypes]
    lines = ",\n".join(f"  {json.dumps(found[key])}" for key in order if key in found)
    FILE.write_text(f"[\n{lines}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

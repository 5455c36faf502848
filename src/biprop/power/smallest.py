"""The smallest failing structure of every planted kernel: how it is found, and where it is kept.

The search itself is `biprop.minimize.exhaustive`, as far as `Planted.extent` says; what it found is
committed (`kernels/planted/smallest.json`, written by `ci/smallest`). It runs on a CPU, where
Triton kernels are interpreted: in small tiles, and with sums in another order than compiled ones.
An entry lists the `devices` on which its structure is the smallest where they are more than a CPU
(`ci/decisions/0034-the-smallest-on-a-device.md` says why each is).
"""

import json
from collections.abc import Mapping
from pathlib import Path

import attrs

from biprop.case import Case, Dtype
from biprop.generation import judged_kinds, simplest_case
from biprop.judgment import Outcome
from biprop.kernels import planted as planted_kernels
from biprop.kernels.planted import Planted
from biprop.minimize import Cost
from biprop.minimize.exhaustive import Bounds, in_words, search_smallest
from biprop.power.benches import planted_bench
from biprop.power.subjects import Subject

__all__ = [
    "FILE",
    "Entry",
    "cost_by_component",
    "cost_to_data",
    "entries",
    "find_smallest",
    "held_on",
    "known_smallest",
]

FILE = Path(planted_kernels.__file__).resolve().parent / "smallest.json"

Entry = dict[str, object]

# Where the search runs.
_SEARCHED = ("cpu",)


def entries() -> dict[tuple[str, str], Entry]:
    """Return what the file holds, by name and dtype."""
    listed: list[Entry] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    return {(str(entry["name"]), str(entry["dtype"])): entry for entry in listed}


def held_on(entry: Mapping[str, object]) -> tuple[str, ...]:
    """Return the kinds of devices on which the structure of an entry is the smallest."""
    listed = entry.get("devices", _SEARCHED)
    assert isinstance(listed, (list, tuple)), "the file lists them"
    return tuple(map(str, listed))


def known_smallest(subject: Subject, dtype: Dtype, *, device: str) -> Entry | None:
    """Return what the file holds of a subject; None where it holds nothing that is so on a device.

    Args:
        subject: A target of a manifest has no entry, whatever its name.
        dtype: Of the cases.
        device: `cpu`, `cuda` or `cuda:N`.
    """
    entry = entries().get((subject.name, dtype)) if subject.source == "planted" else None
    kind = device.split(":", maxsplit=1)[0]
    return entry if entry is not None and kind in held_on(entry) else None


def cost_to_data(cost: Cost) -> list[object]:
    """Return the cost of a structure as JSON holds it."""
    return [list(part) if isinstance(part, tuple) else part for part in cost.structure]


def cost_by_component(entry: Mapping[str, object] | Cost | None) -> dict[str, tuple[int, ...]]:
    """Return the cost of a structure by component; nothing for an entry without one.

    Args:
        entry: An entry of the file, or a cost.
    """
    if isinstance(entry, Cost):
        parts: list[object] = list(entry.structure)
    else:
        found = None if entry is None else entry.get("cost")
        parts = found if isinstance(found, list) else []
    return {
        name: tuple(part) if isinstance(part, (list, tuple)) else (int(str(part)),)
        for name, part in zip(Cost._fields, parts, strict=False)
    }


def find_smallest(planted: Planted, dtype: Dtype) -> Entry:
    """Search one planted kernel, and return its entry."""
    bench = planted_bench(planted, dtype)

    def judge(case: Case) -> Outcome:
        return bench.judge(case, rate=planted.rate_seen)

    found = search_smallest(
        bench.signature,
        simplest_case(bench.space),
        Bounds(**attrs.asdict(planted.extent)),
        judged=judged_kinds(bench.signature, planted.direction),
        judge=judge,
        legal=bench.legal,
    )
    entry: Entry = {"name": planted.name, "dtype": dtype, "tried": found.structures}
    if found.case is None or found.cost is None:
        return {**entry, "bound": True}
    return {**entry, "cost": cost_to_data(found.cost), "structure": in_words(found.case)}

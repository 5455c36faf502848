"""Which kinds of planted defects a campaign finds in ten minutes, and when.

    PYTHONPATH=src python3 ci/benchmarks/zoo_campaign.py --budget 10m --workers 2 --store FOLDER

Writes what `biprop.power.zoo` lists as a manifest and as a package that names operators by an entry
point, then runs `biprop fuzz` on both, as anybody would, and reads the store. The command is
printed. A kind is found when a cell of one of its kernels has a finding; of each kernel it is told
when its first cause was seen, and whether the smallest case of one is known. The exit status is 0
only if every kind was found. Where the store is of an earlier run, the campaign goes on with it.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

# Triton compiles for no CPU, and kernels read it when they are imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

from biprop.campaign.snapshot import CauseState, Snapshot
from biprop.campaign.store import Store
from biprop.kernels.planted import CHAIN
from biprop.power.zoo import manifest_text, zoo_entries, zoo_operators

__all__ = ["Found", "Sought", "found_in", "main", "sought", "write_zoo"]

FORMAT = "biprop-zoo-campaign-1"
_FUZZ = (sys.executable, "-m", "biprop", "fuzz")
_MANIFEST = "zoo.json"
# Of `biprop fuzz`: it ended by itself, with or without findings.
_ENDED = {0, 1}


@attrs.frozen(kw_only=True)
class Sought:
    """One planted kernel.

    Attributes:
        name: Of an entry of the manifest, or of an operator.
        kind: Of its defect.
        cells: Words that the ids of its cells begin with.
    """

    name: str
    kind: str
    cells: str


@attrs.frozen(kw_only=True)
class Found:
    """What a store holds of one planted kernel.

    Attributes:
        name: Of the kernel.
        kind: Of its defect.
        seconds: From the start of the first campaign to its first cause; None where there is none.
        causes: How many are findings.
        minimal: Of these, those whose smallest case is known.
        examples: Judged in all its cells.
    """

    name: str
    kind: str
    seconds: float | None
    causes: int
    minimal: int
    examples: int


def sought(device: str) -> tuple[Sought, ...]:
    """Return everything that is planted for a device."""
    targets = (
        Sought(name=entry.name, kind=entry.kind, cells=f"{entry.name}-{dtype}-{entry.direction}")
        for entry in zoo_entries(device)
        for dtype in entry.dtypes
    )
    operators = (
        Sought(name=defect.name, kind=defect.mechanism, cells=f"{defect.name}-torch-")
        for defect in (CHAIN if device == "cpu" else ())
    )
    return (*targets, *operators)


def write_zoo(folder: Path, device: str) -> tuple[str, ...]:
    """Write manifest and package into a folder; return the options of `biprop fuzz` for them."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / _MANIFEST
    manifest.write_text(manifest_text(zoo_entries(device)), encoding="utf-8")
    if device != "cpu":
        return ("--target", str(manifest))
    package = folder / "biprop_zoo-1.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: biprop-zoo\nVersion: 1\n", encoding="utf-8"
    )
    (package / "entry_points.txt").write_text(
        "[biprop.operators]\nzoo = biprop.power.zoo:OPERATORS\n", encoding="utf-8"
    )
    names = ",".join(operator.name for operator in zoo_operators())
    return ("--target", str(manifest), "--operators", names)


def found_in(snapshot: Snapshot, wanted: Sequence[Sought]) -> tuple[Found, ...]:
    """Return what a store holds of each planted kernel, dtypes and directions together."""
    began = min((state.record.began for state in snapshot.campaigns), default=snapshot.at)
    causes: dict[str, list[CauseState]] = {}
    examples: dict[str, int] = {}
    names = {item.name: item.kind for item in wanted}
    for cell in snapshot.cells:
        name = next((item.name for item in wanted if cell.info.id.startswith(item.cells)), None)
        if name is not None:
            examples[name] = examples.get(name, 0) + cell.sum.examples
            own = (cause for cause in snapshot.findings if cause.record.cell == cell.info.id)
            causes.setdefault(name, []).extend(own)
    return tuple(
        Found(
            name=name,
            kind=kind,
            seconds=min((cause.first_seen - began for cause in causes.get(name, ())), default=None),
            causes=len(causes.get(name, ())),
            minimal=sum(cause.record.status == "minimal" for cause in causes.get(name, ())),
            examples=examples.get(name, 0),
        )
        for name, kind in names.items()
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run a campaign over the zoo, and say what it found."""
    options = _options(words)
    device = options.device.partition(":")[0]
    folder = options.store.absolute()
    given = write_zoo(folder, device)
    store = folder / "store"
    command = (
        *_FUZZ,
        *given,
        *("--budget", options.budget, "--device", options.device, "--store", str(store)),
        *("--workers", str(options.workers), "--seed", str(options.seed)),
    )
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    sys.stdout.write(f"PYTHONPATH={variables['PYTHONPATH']} {shlex.join(command)}\n")
    sys.stdout.flush()
    status = subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=False)
    if status.returncode not in _ENDED:
        return status.returncode
    found = found_in(Store.open(store).snapshot(), sought(device))
    sys.stdout.write("\n".join([*_lines(found), ""]))
    if options.out is not None:
        data = {
            "format": FORMAT,
            "command": shlex.join(["biprop", *command[3:]]),
            "found": [attrs.asdict(item) for item in found],
        }
        options.out.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return int(any(not _first(found, kind) for kind in _kinds(found)))


def _lines(found: Sequence[Found]) -> list[str]:
    """Return a table of kinds, then the names of what was missed."""
    lines = ["kind   found     first  causes  minimal"]
    for kind in _kinds(found):
        own = [item for item in found if item.kind == kind]
        hit = sum(item.seconds is not None for item in own)
        first = _first(found, kind)
        lines.append(
            f"{kind:<6} {f'{hit} of {len(own)}':<9} {f'{first[0]:.0f} s' if first else '-':>5} "
            f"{sum(item.causes for item in own):>7} {sum(item.minimal for item in own):>8}"
        )
    lines += [
        f"missed {item.name} ({item.kind}): {item.examples} examples"
        for item in found
        if item.seconds is None
    ]
    return lines


def _kinds(found: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(item.kind for item in found))


def _first(found: Sequence[Found], kind: str) -> list[float]:
    """Return the time of the first cause of a kind, alone; nothing where there is none."""
    times = (item.seconds for item in found if item.kind == kind and item.seconds is not None)
    return sorted(times)[:1]


def _options(words: Sequence[str] | None) -> Any:  # noqa: ANN401  # argparse's own namespace
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="folder, made if need be")
    parser.add_argument("--budget", default="10m", help="as biprop fuzz takes it")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--seed", type=int, default=1, help="of all searches")
    parser.add_argument("--out", type=Path, help="file for what was found, as JSON")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())

"""Figures in texts: the marked sections of README files, made from committed evidence.

A section stands between `<!-- figures:NAME -->` and `<!-- /figures -->`. Nobody writes in it by
hand: `ci/figures` does, and a test compares. Nothing is measured here.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click
from ci.lanes.campaigns import campaigns_table
from ci.lanes.known import KNOWN
from ci.lanes.records import (
    PARTS,
    CampaignsEvidence,
    CellResult,
    CellsEvidence,
    Evidence,
    FindingResult,
    FindingsEvidence,
    Part,
    SpeedsEvidence,
    TimesEvidence,
    read_evidence,
)
from ci.lanes.runs import DIGITS_SHOWN, EvidenceError
from ci.lanes.timing import speeds_table, times_table
from ci.lanes.where import ROOT

from biprop.errors import BipropError
from biprop.fixtures.load import fixture_from_data
from biprop.power.methods import DESCRIPTIONS
from biprop.provenance import Provenance, source_sha256
from biprop.reports.power import PowerReport, report_from_text
from biprop.reports.power_text import (
    conclusion,
    kinds_table,
    left_out,
    methods_table,
    uncompared,
)
from biprop.reports.words import case_in_words, transforms_in_words

__all__ = [
    "EVIDENCE",
    "MATRIX",
    "POWER",
    "TEXTS",
    "Collected",
    "collected",
    "differing",
    "main",
    "notes",
    "with_figures",
]

EVIDENCE = Path("ci") / "evidence"
# Written by `biprop matrix`, and by `biprop power`: no parts of a lane on a GPU.
MATRIX = "matrix.json"
POWER = ("power.json", "power-interpreted.json", "power-h200.json")
TEXTS = (Path("README.md"), Path("kernels") / "README.md")
_SECTION = re.compile(
    r"(?P<begin><!-- figures:(?P<name>[a-z]+) -->\n)(?P<body>.*?)(?P<end><!-- /figures -->)",
    re.DOTALL,
)
_MARK = re.compile(r"<!-- /?figures\b")
_CELLS_HEAD = ("part", "cells that held", "examples", "launches", "time", "largest", "sources")
_CACHES_HEAD = (
    *("part", "cache", "dtype", "verdict", "programs", "operations", "tensors compared"),
    "fixed programs that hold",
)
_FINDINGS_HEAD = ("PyTorch on this device", "verdict", "smallest case", "replayed", "fixture")
_COLUMNS = tuple(
    (dtype, direction) for dtype in ("float32", "bfloat16") for direction in ("forward", "backward")
)


@attrs.frozen(kw_only=True)
class Collected:
    """The committed evidence; None where a part has not been run.

    Attributes:
        pr: Of the part pr.
        nightly: Of the part nightly.
        findings: Of the part findings.
        times: Of the part times.
        speeds: Of the part speeds.
        campaigns: Of the part campaigns.
        power: What `biprop power` wrote, by the names of its files.
        matrix: What `biprop matrix` wrote.
    """

    pr: CellsEvidence | None = None
    nightly: CellsEvidence | None = None
    findings: FindingsEvidence | None = None
    times: TimesEvidence | None = None
    speeds: SpeedsEvidence | None = None
    campaigns: CampaignsEvidence | None = None
    power: Mapping[str, PowerReport] = attrs.field(factory=dict)
    matrix: Mapping[str, Any] | None = None

    @property
    def parts(self) -> dict[Part, Evidence]:
        """What there is, by part."""
        found: dict[Part, Evidence | None] = {
            "pr": self.pr,
            "nightly": self.nightly,
            "findings": self.findings,
            "times": self.times,
            "speeds": self.speeds,
            "campaigns": self.campaigns,
        }
        return {part: evidence for part, evidence in found.items() if evidence is not None}


def collected(root: Path) -> Collected:
    """Return the evidence committed below `root`.

    Raises:
        EvidenceError: A file is no evidence, or lies under another part's name.
    """
    found: dict[str, Evidence] = {}
    for part in PARTS:
        path = root / EVIDENCE / f"{part}.json"
        if path.is_file():
            evidence = read_evidence(path)
            if evidence.part != part:
                raise EvidenceError(f"{path.name} holds part={evidence.part!r}: rename it.")
            found[part] = evidence
    power = [root / EVIDENCE / name for name in POWER]
    matrix = root / EVIDENCE / MATRIX
    # Their types follow from their parts, which were just compared.
    return Collected(
        **found,  # type: ignore[arg-type]
        power={
            path.name: report_from_text(path.read_text(encoding="utf-8"))
            for path in power
            if path.is_file()
        },
        matrix=json.loads(matrix.read_text(encoding="utf-8")) if matrix.is_file() else None,
    )


def with_figures(text: str, evidence: Collected) -> str:
    """Return a text with its sections made anew.

    Raises:
        EvidenceError: A section is unknown, or is not closed.
    """

    def section(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in _SECTIONS:
            raise EvidenceError(
                f"figures:{name} is unknown: the sections are {', '.join(sorted(_SECTIONS))}."
            )
        return f"{match['begin']}\n{_SECTIONS[name](evidence).strip()}\n\n{match['end']}"

    made, count = _SECTION.subn(section, text)
    if len(_MARK.findall(text)) != 2 * count:
        raise EvidenceError("A section of figures is not closed: end each with <!-- /figures -->.")
    return made


def differing(root: Path) -> tuple[str, ...]:
    """Return the texts below `root` whose sections are not what the evidence says."""
    evidence = collected(root)
    texts = {path: (root / path).read_text(encoding="utf-8") for path in TEXTS}
    return tuple(
        path.as_posix() for path, text in texts.items() if with_figures(text, evidence) != text
    )


def notes(root: Path) -> tuple[str, ...]:
    """Return a sentence for each part that was measured from other sources than today's."""
    evidence = collected(root)
    found: dict[str, str] = {
        part: item.run.source_sha256[:DIGITS_SHOWN] for part, item in evidence.parts.items()
    }
    for name, report in evidence.power.items():
        if report.provenance is not None:
            found[Path(name).stem] = report.provenance.source_digest[:DIGITS_SHOWN]
    if evidence.matrix is not None:
        found["matrix"] = evidence.matrix["source_digest"][:DIGITS_SHOWN]
    now = source_sha256()[:DIGITS_SHOWN]
    return tuple(
        f"{name} was measured from sources {digest}, and these are {now}."
        for name, digest in found.items()
        if digest != now
    )


@click.command(add_help_option=False)
@click.option("--check", "only_check", is_flag=True)
def figures(*, only_check: bool) -> int:
    """Write the sections, or compare them; `ci/figures --help` describes it."""
    stale = differing(ROOT)
    for sentence in notes(ROOT):
        sys.stdout.write(f"figures: {sentence}\n")
    if only_check:
        for name in stale:
            sys.stdout.write(f"figures: {name} is not what ci/evidence says: run ci/figures.\n")
        return 1 if stale else 0
    evidence = collected(ROOT)
    for name in stale:
        path = ROOT / name
        path.write_text(with_figures(path.read_text(encoding="utf-8"), evidence), encoding="utf-8")
        sys.stdout.write(f"figures: {name} is written.\n")
    return 0


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        code = figures.main(prog_name="figures", standalone_mode=False)
    except (click.ClickException, BipropError) as error:
        sentence = error.format_message() if isinstance(error, click.ClickException) else str(error)
        sys.stderr.write(f"figures: {sentence}\n")
        code = 2
    sys.exit(code)


def _gpu(evidence: Collected) -> str:
    """Return what ran where, and what came of it."""
    parts = evidence.parts
    if not parts:
        return "No run on a GPU is recorded yet."
    lines = [f"{_places(parts)}.", ""]
    rows = [_cells_row(found) for found in (evidence.pr, evidence.nightly) if found is not None]
    if rows:
        lines += [*_table(_CELLS_HEAD, rows), ""]
    if evidence.matrix is not None:
        lines += [_matrix(evidence.matrix), ""]
    if evidence.findings is not None:
        sources = evidence.findings.run.source_sha256[:DIGITS_SHOWN]
        lines += [f"Known findings, searched again from sources `{sources}`:", ""]
        lines += _table(_FINDINGS_HEAD, list(_findings_rows(evidence.findings)))
    return "\n".join(lines)


def _matrix(report: Mapping[str, Any]) -> str:
    """Return what `biprop matrix` said of all cells, and how long it took."""
    totals, place = report["totals"], report["provenance"]
    command = (
        f"biprop matrix --slice {report['slice']} --device {report['device']} "
        f"--workers {report['workers']}"
    )
    return (
        f"`{command}`: {totals['green']} of {totals['mandatory']} mandatory cells green, "
        f"{totals['examples']:,} examples, {report['seconds']:.0f} s on {place['device_name']}, "
        f"torch {place['torch']}, Triton {place['triton']}, sources "
        f"`{report['source_digest'][:DIGITS_SHOWN]}`."
    )


def _cells(evidence: Collected) -> str:
    """Return each operator and backend, with its examples by dtype and direction."""
    lines: list[str] = []
    for found in (evidence.pr, evidence.nightly):
        if found is None:
            continue
        lines += [*([""] if lines else []), f"Part {found.part}, {_place(found)}:", ""]
        head = ("operator", "backend", *(f"{dtype} {way}" for dtype, way in _COLUMNS), "largest")
        by_kernel: dict[tuple[str, str], list[CellResult]] = {}
        for cell in found.cells:
            by_kernel.setdefault((cell.target, cell.backend), []).append(cell)
        rows = [
            _kernel_row(target, backend, cells) for (target, backend), cells in by_kernel.items()
        ]
        lines += [*_table(head, rows), *_about_vacuous(found)]
    return "\n".join(lines) or "No run on a GPU is recorded yet."


def _about_vacuous(evidence: CellsEvidence) -> list[str]:
    """Return what VACUOUS means in a table that has it."""
    if not any(cell.verdict == "VACUOUS" for cell in evidence.cells):
        return []
    time = (
        "" if evidence.seconds_max is None else f" in {evidence.seconds_max:g} s and its overtime"
    )
    asked = f"{evidence.powered_min} of each class are asked for"
    return ["", f"VACUOUS: a cell had too few examples with power{time}; {asked}."]


def _times(evidence: Collected) -> str:
    """Return where the time of an example goes."""
    if evidence.times is None:
        return "No run on a GPU is recorded yet."
    head, rows = times_table(evidence.times)
    intro = f"Medians in milliseconds, on {_place(evidence.times)}; the whole waits for no stage:"
    return "\n".join([intro, "", *_table(head, rows), *_about_rest(evidence.times)])


def _speeds(evidence: Collected) -> str:
    """Return how fast the Triton kernels are beside torch's own."""
    if evidence.speeds is None:
        return "No run on a GPU is recorded yet."
    head, rows = speeds_table(evidence.speeds)
    intro = f"Medians in milliseconds, on {_place(evidence.speeds)}:"
    return "\n".join([intro, "", *_table(head, rows), *_about_rest(evidence.speeds)])


def _about_rest(evidence: TimesEvidence | SpeedsEvidence) -> list[str]:
    """Return that a part was cut off, where it was."""
    return [] if evidence.run.is_complete else ["", "The part was cut off: not all of it ran."]


def _campaigns(evidence: Collected) -> str:
    """Return what campaigns over all cells took and showed."""
    found = evidence.campaigns
    if found is None:
        return "No campaign on a GPU is recorded yet."
    head, rows = campaigns_table(found)
    return "\n".join([f"Measured on {_place(found)}:", "", *_table(head, rows)])


def _caches(evidence: Collected) -> str:
    """Return each KV cache of either part: what was judged, and at which sizes of pages."""
    rows: list[tuple[str, ...]] = [
        (
            found.part,
            f"{cache.cache} {cache.layout} {cache.backend}",
            cache.dtype,
            cache.verdict or "did not end",
            f"{cache.programs:,}",
            f"{cache.ops:,}",
            f"{cache.comparisons:,}",
            ", ".join(name for name, verdict in cache.fixed.items() if verdict == "HOLDS"),
        )
        for found in (evidence.pr, evidence.nightly)
        if found is not None
        for cache in found.caches
    ]
    parts = [found for found in (evidence.pr, evidence.nightly) if found and found.caches]
    if not rows:
        return "No cache was run on a GPU yet."
    places = "; and on ".join(dict.fromkeys(_place(found) for found in parts))
    return "\n".join([f"Measured on {places}.", "", *_table(_CACHES_HEAD, rows)])


def _power(evidence: Collected) -> str:
    """Return what each method found of what is planted, and by kind of defect."""
    parts = [_power_of(report) for report in evidence.power.values()]
    return "\n\n".join(parts) or "No run of `biprop power` is recorded yet."


def _power_of(report: PowerReport) -> str:
    where = "" if report.provenance is None else _power_place(report.provenance)
    methods = methods_table(report, DESCRIPTIONS)
    kinds = kinds_table(report)
    return "\n".join(
        [
            f"`{report.command}`: {_planted(report)}{where}",
            "",
            *_table(methods.head, list(methods.rows)),
            "",
            *_table(kinds.head, list(kinds.rows)),
            "",
            *(
                line
                for reason, names in left_out(report).items()
                for line in (f"Left out, {reason}: {', '.join(names)}.", "")
            ),
            *(line for sentence in uncompared(report) for line in (sentence, "")),
            conclusion(report) + ".",
        ]
    )


def _planted(report: PowerReport) -> str:
    cells = {trial.cell for trial in report.trials}
    names = {cell.name for cell in cells}
    return (
        f"{len(names)} planted kernels, in float32 and bfloat16 {len(cells)}, each with "
        f"{len(report.seeds)} seeds and up to {report.examples} examples"
    )


def _power_place(provenance: Provenance) -> str:
    digest = provenance.source_digest[:DIGITS_SHOWN]
    place = " ".join(filter(None, (provenance.device_name, f"({provenance.arch_key})")))
    return f"; {place}, torch {provenance.torch}, sources `{digest}`:"


_SECTIONS: Mapping[str, Callable[[Collected], str]] = {
    "gpu": _gpu,
    "cells": _cells,
    "caches": _caches,
    "times": _times,
    "speeds": _speeds,
    "power": _power,
    "campaigns": _campaigns,
}


def _places(parts: Mapping[Part, Evidence]) -> str:
    """Return the places of all parts, each once."""
    words = dict.fromkeys(_where(evidence) for evidence in parts.values())
    return f"Measured on {'; and on '.join(words)}"


def _place(evidence: Evidence) -> str:
    return f"{_where(evidence)}, sources `{evidence.run.source_sha256[:DIGITS_SHOWN]}`"


def _where(evidence: Evidence) -> str:
    run = evidence.run
    device, versions = run.device, run.versions
    name = f"{device.count} x {device.name}" if device.count > 1 else device.name
    words = [name]
    if device.capability:
        words.append(f"compute capability {device.capability}")
    if device.driver:
        words.append(f"driver {device.driver}")
    words += [f"torch {versions.torch}", f"Triton {versions.triton}", run.date]
    return ", ".join(words) + ("" if run.certifies else " (a CPU, which certifies no GPU)")


def _cells_row(evidence: CellsEvidence) -> tuple[str, ...]:
    totals, run = evidence.totals, evidence.run
    largest: dict[str, int] = {}
    for cell in evidence.cells:
        for name, size in cell.largest.items():
            largest[name] = max(size, largest.get(name, 0))
    return (
        evidence.part,
        f"{totals.holds} of {totals.cells_registered}",
        f"{totals.examples:,}",
        f"{totals.launches:,}",
        f"{run.seconds:.0f} s" if run.is_complete else "not all of it ran",
        _sizes(largest),
        f"`{run.source_sha256[:DIGITS_SHOWN]}`",
    )


def _kernel_row(target: str, backend: str, cells: list[CellResult]) -> tuple[str, ...]:
    by_column = {(cell.dtype, cell.direction): cell for cell in cells}
    largest: dict[str, int] = {}
    for cell in cells:
        for name, size in cell.largest.items():
            largest[name] = max(size, largest.get(name, 0))
    columns = [_cell(by_column.get(column)) for column in _COLUMNS]
    return (target, backend, *columns, _sizes(largest))


def _cell(cell: CellResult | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.verdict or 'did not end'}, {cell.examples:,}"


def _sizes(largest: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size:,}" for name, size in sorted(largest.items()))


def _findings_rows(evidence: FindingsEvidence) -> Iterator[tuple[str, ...]]:
    found = {result.name: result for result in evidence.findings}
    known = [item.name for item in KNOWN]
    for name in (*known, *sorted(found.keys() - set(known))):
        if name in found:
            yield from _finding_rows(found[name])


def _finding_rows(result: FindingResult) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cause, or one for a check without."""
    claim = result.claim
    if not result.causes:
        yield claim, f"{result.verdict or 'did not end'}, {result.examples} examples", "-", "-", "-"
    for cause in result.causes:
        case = fixture_from_data(cause.fixture).case
        classes = f" ({', '.join(cause.transforms)})" if cause.transforms else ""
        words = f"{case_in_words(case)}; {transforms_in_words(case)}"
        name = str(cause.fixture["id"])[:8]
        yield claim, f"{cause.verdict}{classes}", words, cause.replay.status, f"`{name}`"
        claim = ""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines]


if __name__ == "__main__":
    main()

"""Figures of power: the section of README.md, made from what `biprop power` wrote."""

from pathlib import Path

import attrs
import pytest
from ci.lanes.figures import EVIDENCE, POWER, Collected, collected, notes, with_figures
from ci.lanes.where import ROOT
from tests.unit.test_power_report import MISSED

from biprop.provenance import source_digest
from biprop.reports.power import PowerReport, report_from_text, report_text

SECTION = "<!-- figures:power -->\n<!-- /figures -->\n"


def stored(report: PowerReport, root: Path) -> Path:
    """Write a report where the figures are made from."""
    path = root / EVIDENCE / POWER[0]
    path.parent.mkdir(parents=True)
    path.write_text(report_text(report))
    return path


@pytest.mark.parametrize("name", POWER)
def test_committed_report_is_whole(name: str) -> None:
    """It reads back to the same text, was not stopped, and names no folder."""
    path = ROOT / EVIDENCE / name
    report = report_from_text(path.read_text())

    assert report_text(report) == path.read_text()
    assert not report.is_interrupted
    assert not report.errors
    assert report.provenance is not None


def test_section_has_the_command_and_both_tables() -> None:
    """What was run, each method, each kind, and what it amounts to."""
    text = with_figures(SECTION, Collected(power={POWER[0]: MISSED}))

    assert "`biprop power`: 2 planted kernels" in text
    assert "| biprop | generated layouts" in text
    assert "| SHAPE | 1 | 100 % | - | 1 of 2 |" in text
    assert "NOT ALL  biprop found 3 of 4" in text


def test_section_names_what_was_left_out() -> None:
    """A table of a part of the zoo must not look like one of the whole."""

    assert "Left out, no GPU: third." in with_figures(SECTION, Collected(power={POWER[0]: MISSED}))


def test_section_has_each_report_with_its_place() -> None:
    """One after the other; what was shrunk and compared with none is counted."""
    assert MISSED.provenance is not None
    place = attrs.evolve(MISSED.provenance, device_name="NVIDIA H200", arch_key="cuda-sm90")
    shrunk = MISSED.trials[1].shrunk
    assert shrunk is not None
    alone = attrs.evolve(MISSED.trials[1], shrunk=attrs.evolve(shrunk, least={}))
    on_gpu = attrs.evolve(MISSED, trials=(alone,), device="cuda", provenance=place)
    text = with_figures(SECTION, Collected(power={POWER[0]: MISSED, POWER[1]: on_gpu}))

    assert text.count("| kind | kernels | biprop | needle | shrunk to the smallest |") == 2
    assert "NVIDIA H200 (cuda-sm90), torch" in text
    assert text.count("since no smallest one is known on cuda.") == 1


def test_section_without_a_run_says_so() -> None:
    """Nothing is claimed that was not run."""
    assert "No run of `biprop power` is recorded yet." in with_figures(SECTION, Collected())


def test_report_of_other_sources_is_told(tmp_path: Path) -> None:
    """It is no failure; the sentence names both digests."""
    stored(MISSED, tmp_path)

    assert collected(tmp_path).power == {POWER[0]: MISSED}
    assert notes(tmp_path)[0].startswith("power was measured from sources 0123, and these are ")


def test_report_of_these_sources_is_not_told(tmp_path: Path) -> None:
    """A digest of 16 digits and one of 64 are compared by what both show."""
    assert MISSED.provenance is not None
    provenance = attrs.evolve(MISSED.provenance, source_digest=source_digest())
    stored(attrs.evolve(MISSED, provenance=provenance), tmp_path)

    assert notes(tmp_path) == ()

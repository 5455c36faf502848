"""Ids that a campaign tells, given to other commands with its store."""

import json
import shlex
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.cli.commands import Run
from tests.unit.campaign_fakes import campaign, epoch, finding, with_cause
from tests.unit.test_campaign_fixed import replay

from biprop.campaign.records import FORMAT, CauseRecord, EpochFinding
from biprop.campaign.store import FOLDER, Store
from biprop.campaign.text import render_summary
from biprop.cli.report import page_of
from biprop.reports.html.render import render_page


@pytest.fixture
def store(folder: Path) -> Store:
    """Return a store in a folder whose name must be quoted."""
    return filled(Store.open(folder / "my store", create=True))


def filled(store: Store) -> Store:
    """Store a finding that was not shrunk, and one that was."""
    store.write_campaign(campaign())
    with_cause(store, "cell0")
    first = with_cause(store, "cell1")
    small = attrs.evolve(first.told_by(finding("cell2").id), status="minimal", settled=2.0)
    store.update_cause(small, finding("cell2"))
    store.write_epoch(epoch(findings=(EpochFinding(cause=first.digest),)))
    return store


def causes(store: Store) -> dict[str, CauseRecord]:
    """Return the causes by cell."""
    return {record.cell: record for record in store.causes().values()}


def test_what_the_summary_prints_works_for_each_finding(alone: Run, store: Store) -> None:
    """Whether it was shrunk or not, and so does what `show` prints then."""

    text = render_summary(store.snapshot(), campaign())
    command = next(line for line in text.splitlines() if "biprop show" in line)
    words = shlex.split(command.partition(": biprop ")[2])
    for line in text.splitlines():
        if line.startswith("  "):
            shown = alone(words[0], line.split()[0], *words[2:])
            assert shown.code == 0, shown
            replayed = alone(*shlex.split(shown.out.splitlines()[-1])[1:])
            assert "No fixture" not in replayed.err
            assert replayed.code in {0, 1}, replayed


def test_an_id_that_was_told_is_found_after_shrinking(alone: Run, store: Store) -> None:
    """And what it became is said."""

    record = causes(store)["cell1"]
    (old,) = record.formerly
    shown = alone("show", old[:8], "--store", str(store.path))
    assert shown.code == 0
    assert f"told as {record.fixture[:8]} now: " in shown.out
    # That may be another case, which has shown it again after it was fixed.
    assert "shrunk" not in shown.out
    replayed = alone(
        "replay", old[:8], "--store", str(store.path), "--allow-target", finding("cell1").target
    )
    assert f"It is told as {record.fixture[:8]} now: " in replayed.err
    assert replayed.code in {0, 1}
    small = alone("show", record.fixture[:8], "--store", str(store.path))
    assert "told as" not in small.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "not shrunk yet"),
        ({"is_lost": True}, "to be judged again: it was lost with its process"),
        ({"status": "minimal", "settled": 2.0}, ""),
        (
            {"status": "unreproduced", "settled": 2.0, "is_lost": True},
            "not reproduced: it was lost with its process, and held when it was judged again",
        ),
        (
            {"status": "unreproduced", "settled": 2.0},
            "not reproduced: it crashed once, and held when it was judged again",
        ),
    ],
)
def test_what_is_known_of_a_case_besides_is_shown(
    alone: Run, store: Store, change: dict[str, Any], words: str
) -> None:
    """A fixture alone would look like a finding; one that is fixed too."""

    record = attrs.evolve(causes(store)["cell0"], **change)
    store.update_cause(record)
    shown = alone("show", record.fixture[:8], "--store", str(store.path))
    assert shown.code == 0
    told = [line.split(maxsplit=1)[1] for line in shown.out.splitlines() if "  note " in line]
    assert told == ([words] if words else [])
    store.write_replay(replay(causes(store)["cell1"]))
    shown = alone("show", causes(store)["cell1"].fixture[:8], "--store", str(store.path))
    assert "fixed: it held when it was run again" in shown.out


def test_the_store_of_the_project_needs_no_option(alone: Run, folder: Path) -> None:
    """A command that is printed has none either."""

    store = filled(Store.open(folder / FOLDER, create=True))
    record = causes(store)["cell1"]
    shown = alone("show", record.fixture[:8])
    assert shown.code == 0
    assert "--store" not in shown.out
    assert alone("keep", record.fixture[:8]).code == 0


def test_a_page_names_the_file_of_each_case(alone: Run, store: Store) -> None:
    """One that shrinking was stopped at lies with the small ones."""

    record = causes(store)["cell1"]
    store.update_cause(attrs.evolve(record, status="raw", settled=None))
    alone("report", "--store", str(store.path), "-o", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert f"findings/{record.fixture}.json" in page
    assert f"raw/{causes(store)['cell0'].fixture}.json" in page


def test_a_page_and_its_command_count_the_same(alone: Run, store: Store) -> None:
    """What is fixed is neither new nor violated, and a lost case that holds is not known either."""

    store.write_replay(replay(causes(store)["cell1"], at=1e12))
    held = attrs.evolve(with_cause(store, "cell2"), status="unreproduced", settled=2.0)
    store.update_cause(held)
    entry = {"cause": held.name, "link": "https://example.org/1", "reason": "It is known."}
    ledger = {"format": FORMAT, "known": [entry]}
    (store.path / "ledger.json").write_text(json.dumps(ledger), encoding="utf-8")
    done = alone("report", "--store", str(store.path), "-o", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert done.out == ("Wrote page.html: 3 cells, 1 finding, 1 fixed, 1 not reproduced.\n")
    assert "1 new, 0 known, 1 fixed, 1 not reproduced" in page
    assert "1 distinct cause that nobody knew of, and 1 cell of 3 violated." in page
    assert "fixed: run again since, and it fails no more" in page


def test_a_cell_that_could_not_be_searched_is_not_violated(store: Store) -> None:
    """An error says nothing of the kernel."""

    snapshot = store.snapshot()
    cells = tuple(
        attrs.evolve(cell, verdict="ERROR", causes=()) if cell.info.id == "cell2" else cell
        for cell in snapshot.cells
    )
    text = render_page(page_of(attrs.evolve(snapshot, cells=cells)))
    assert "2 cells of 3 violated" in text
    assert "Cells with an error" in text

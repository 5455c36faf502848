"""What a campaign says when it ends, of a ledger that fits its store badly too."""

import json
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, epoch, finding, with_cause

from biprop.campaign.records import ATTEMPTS_MAX, FORMAT, EpochFinding
from biprop.campaign.store import Store
from biprop.campaign.text import render_summary
from biprop.cli.report import page_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with one campaign."""
    store = Store.open(tmp_path / "store", create=True)
    store.write_campaign(campaign())
    return store


def summary(path: Path, *known: str) -> str:
    """Return the summary of a store with one cause, whose ledger names some."""
    store = Store.open(path, create=True)
    store.write_campaign(campaign())
    cause = with_cause(store)
    store.write_epoch(epoch(findings=(EpochFinding(cause=cause.digest),)))
    entries = [{"cause": name, "link": "https://example.org/1", "reason": "Old."} for name in known]
    ledger = {"format": FORMAT, "known": entries}
    (path / "ledger.json").write_text(json.dumps(ledger), encoding="utf-8")
    return render_summary(store.snapshot(), campaign())


def test_an_entry_that_names_nothing_is_told(tmp_path: Path) -> None:
    """A mistyped id would hide nothing, and nobody would know why."""

    text = summary(tmp_path / "store", "deadbeef")
    assert "1 finding in the store:" in text
    assert "Unknown: the ledger names 'deadbeef', which no cause of the store is" in text


def test_an_entry_that_names_a_cause_is_none_of_these(tmp_path: Path) -> None:
    """It is known, and no finding."""

    text = summary(tmp_path / "store", finding("cell0").id)
    assert "No findings." in text
    assert "1 cause is known (ledger.json)." in text
    assert "Unknown" not in text


def test_findings_of_one_name_are_told_apart(store: Store) -> None:
    """By what is judged, and what was done to the batch."""

    record = with_cause(store)
    fixture = finding("cell1")
    other = attrs.evolve(record, digest="other", fixture=fixture.id, judged="token_gradients")
    assert other.name == record.name
    store.update_cause(other, fixture)
    lines = render_summary(store.snapshot(), campaign()).splitlines()
    told = [line.partition("(")[2] for line in lines if record.name in line]
    assert len(told) == 2
    assert told[0] != told[1]
    assert any("token gradients, AddNeighbours(count=1)" in text for text in told)


def test_only_what_can_be_read_is_pointed_at(store: Store) -> None:
    """A finding whose fixture is torn is told to be so."""

    torn, whole = with_cause(store), with_cause(store, "cell1")
    assert torn.fixture != whole.fixture
    store.update_cause(attrs.evolve(torn, status="minimal", settled=1.0), finding("cell0"))
    (store.path / "findings" / f"{torn.fixture}.json").write_text("{")
    text = render_summary(store.snapshot(), campaign())
    assert "(0 cases, its fixture cannot be read)" in text
    assert f"biprop show {whole.fixture[:8]} --store {store.path}\n" in text
    (store.path / "raw" / f"{whole.fixture}.json").write_text("{")
    assert "biprop show" not in render_summary(store.snapshot(), campaign())


def test_what_cannot_be_read_may_be_a_finding(store: Store) -> None:
    """The summary does not say that there is none."""

    (store.path / "causes" / f"{with_cause(store).digest}.json").write_text("{")
    text = render_summary(store.snapshot(), campaign())
    assert "No findings in what can be read." in text
    assert "Not read: causes/" in text


def test_what_was_not_reproduced_is_named(store: Store) -> None:
    """With its id, and why it was looked at."""

    for cell, is_lost in (("cell0", False), ("cell1", True)):
        record = with_cause(store, cell)
        held = attrs.evolve(record, status="unreproduced", settled=1.0, is_lost=is_lost)
        store.update_cause(held)
    crashed, lost = unreproduced(store)
    assert crashed.endswith("which crashed once.")
    assert lost == f"1 case that was lost with its process, and holds: {record.fixture[:8]}."
    # A node that is lost takes a dozen with it, which are one line.
    for number in range(9):
        other = attrs.evolve(held, digest=f"{number:016}", fixture=f"{number + 1:08}{number:08}")
        store.update_cause(other)
    _, lost = unreproduced(store)
    assert lost.startswith("10 cases that were lost with their processes, and hold: ")
    assert lost.endswith(", and 2 more.")


def unreproduced(store: Store) -> list[str]:
    """Return what a summary says was not reproduced."""
    lines = render_summary(store.snapshot(), campaign()).splitlines()
    start = "Not reproduced: "
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def test_lost_processes_are_counted(store: Store) -> None:
    """Those of this campaign and of all, and none where there were none."""

    store.write_epoch(epoch(number=1))
    assert "lost" not in render_summary(store.snapshot(), campaign())
    store.write_epoch(attrs.evolve(epoch(number=2), is_lost=True))
    store.write_campaign(campaign("other"))
    store.write_epoch(attrs.evolve(epoch(number=3, campaign="other"), is_lost=True))
    text = render_summary(store.snapshot(), campaign())
    assert "examples in 2 epochs, 1 of them lost with their processes, searched for" in text
    assert "examples in 3 epochs, 2 of them lost with their processes, searched for" in text


def test_a_lost_case_is_told_by_what_it_shows_now(store: Store) -> None:
    """Until it is judged again nobody knows; one that drifts has nothing to do with the loss."""

    lost = attrs.evolve(with_cause(store), is_lost=True)
    for verdict, words in (
        ("CRASHES", "its process was lost, to be judged again"),
        ("DRIFTS", "to be shrunk"),
    ):
        store.update_cause(attrs.evolve(lost, verdict=verdict))
        assert f"(0 cases, {words})" in render_summary(store.snapshot(), campaign())


def test_an_error_is_told_though_its_cell_went_on(store: Store) -> None:
    """It is a mistake of biprop most of the time, which nobody else would report."""

    wrong = attrs.evolve(epoch(number=1, verdict="ERROR"), message="It failed: report it.")
    store.write_epoch(wrong)
    text = render_summary(store.snapshot(), campaign())
    assert "Not searched: cell0: It failed: report it." in text
    assert "Broken off" not in text
    store.write_epoch(epoch(number=2))
    # These broke off by something else.
    store.write_epoch(attrs.evolve(epoch(number=3, verdict="ERROR"), is_lost=True))
    store.write_epoch(attrs.evolve(epoch(number=4, verdict="ERROR"), is_stopped=True))
    told = "cell0: an error broke off 1 of 4 epochs: It failed: report it."
    snapshot = store.snapshot()
    assert f"Broken off: {told}" in render_summary(snapshot, campaign())
    assert page_of(snapshot).warnings == (told,)


@pytest.mark.parametrize(
    ("attempts", "words"), [(0, "did not fail again"), (ATTEMPTS_MAX, "cannot be shrunk")]
)
def test_what_stays_as_it_was_found_is_told(store: Store, attempts: int, words: str) -> None:
    """What drifts stays a finding, though nobody works on it any more."""

    record = with_cause(store)
    assert "(0 cases, to be shrunk)" in render_summary(store.snapshot(), campaign())
    store.update_cause(attrs.evolve(record, settled=1.0, attempts=attempts))
    assert f"(0 cases, {words})" in render_summary(store.snapshot(), campaign())
    # The page says the same.
    (cause,) = page_of(store.snapshot()).causes
    assert cause.status == words


def test_cells_without_evidence_are_told_what_to_do(store: Store) -> None:
    """Else a short campaign would look green."""

    assert "Too little evidence so far for 3 cells" in render_summary(store.snapshot(), campaign())

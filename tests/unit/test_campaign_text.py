"""What a ledger that fits its store badly is told by, when a campaign ends."""

import json
from pathlib import Path

from tests.unit.campaign_fakes import campaign, epoch, finding, with_cause

from biprop.campaign.records import FORMAT, EpochFinding
from biprop.campaign.store import Store
from biprop.campaign.text import render_summary


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
    assert "1 finding:" in text
    assert "Unknown: the ledger names 'deadbeef', which no cause of the store is" in text


def test_an_entry_that_names_a_cause_is_none_of_these(tmp_path: Path) -> None:
    """It is known, and no finding."""

    text = summary(tmp_path / "store", finding("cell0").id)
    assert "No findings." in text
    assert "1 cause is known (ledger.json)." in text
    assert "Unknown" not in text

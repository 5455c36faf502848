"""The ledger of a store as people write it: what it may hold, and what is told where it may not."""

import json
import re
from pathlib import Path

import attrs
import pytest
from tests.unit.campaign_fakes import campaign, finding, plan, with_cause

from biprop.campaign.ledger import check_beginnings, entries_of, entry_of, read_ledger
from biprop.campaign.records import FORMAT, CauseRecord, Known, LedgerFile, owners_of
from biprop.campaign.run import run_campaign
from biprop.campaign.store import Store
from biprop.cli.fuzz import fuzz
from biprop.errors import FixtureError

README = Path(__file__).resolve().parents[2] / "README.md"
RECORD = CauseRecord(
    format=FORMAT,
    digest="c0ffee0000000000",
    cell="cell0",
    verdict="DRIFTS",
    key="I-DRIFTS",
    transforms=("T1",),
    fixture="a1cf2e0600000000",
    formerly=("555b843100000000",),
    found=1.0,
    found_by="one",
)
ENTRY = {"cause": "a1cf2e06", "link": "https://example.org/1", "reason": "It is known."}


def known(cause: str) -> tuple[Known, ...]:
    """Return a ledger of one entry."""
    return (Known(**{**ENTRY, "cause": cause}),)


@pytest.mark.parametrize(
    "cause",
    [
        "a1cf2e06",
        "A1CF2E06",
        "a1cf",
        "a1cf2e0600000000",
        "555b8431",
        "c0ffee00",
        "cell0 I-DRIFTS T1",
    ],
)
def test_a_cause_is_named_as_it_was_told(cause: str) -> None:
    """By the beginning of an id, the one before shrinking too, or by its name."""

    assert entry_of(RECORD, known(cause)) is not None


@pytest.mark.parametrize("cause", ["a1c", "", "cell0", "b1cf2e06", "a1cf2e06000000000"])
def test_what_is_no_beginning_names_nothing(cause: str) -> None:
    """An entry that is nearly empty would hide whatever comes."""

    assert entry_of(RECORD, known(cause)) is None


def test_an_id_of_what_turned_out_to_be_another_cause_names_that_one() -> None:
    """It was told when it was found."""

    same = attrs.evolve(
        RECORD, digest="ab" * 8, fixture="cd" * 8, formerly=(), same_as="c0ffee0000000000"
    )
    records = {record.digest: record for record in (RECORD, same)}
    assert list(entries_of(records, known("cdcd"), owners_of(records))) == [RECORD.digest]
    check_beginnings(records, known("cdcd"))


def test_a_beginning_of_several_ids_is_refused() -> None:
    """As commands refuse it; ids of one cause are no two."""

    other = attrs.evolve(RECORD, digest="ab" * 8, fixture="a1cf2e07" + 8 * "0", formerly=())
    records = {record.digest: record for record in (RECORD, other)}
    check_beginnings(records, known("a1cf2e06"))
    with pytest.raises(FixtureError, match=r"'a1cf2e0' is the beginning .*: give more digits\.$"):
        check_beginnings(records, known("a1cf2e0"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "it is no record of format"),
        ("[]", "it is no record of format"),
        ('{"format": "biprop-campaign-9"}', "it is no record of format"),
        ("nonsense", "it is no JSON"),
        (
            json.dumps({"format": FORMAT, "known": [{**ENTRY, "reason": 1}]}),
            r"ledger\.json cannot be used: it cannot be read: .* at known\[0\]\.reason; write",
        ),
    ],
)
def test_another_file_is_told_what_is_expected(tmp_path: Path, text: str, words: str) -> None:
    """With an example that can be copied: it is a ledger itself."""

    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(FixtureError, match=words) as caught:
        read_ledger(path)
    example = str(caught.value).partition("; write ")[2].removesuffix(".")
    path.write_text(example)
    assert [entry.cause for entry in read_ledger(path).known] == ["a1cf2e06"]


def test_the_ledgers_that_people_are_shown_can_be_read(tmp_path: Path) -> None:
    """By the help of the command, and by README.md."""

    for text in (str(fuzz.epilog), README.read_text(encoding="utf-8")):
        shown = re.search(r'\{"format": "biprop-campaign.*?\]\}', text, re.DOTALL)
        assert shown is not None
        path = tmp_path / "ledger.json"
        path.write_text(shown.group())
        assert [entry.cause for entry in read_ledger(path).known] == ["a1cf2e06"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"link": "javascript:alert(1)"}, "has the link 'javascript:alert.*begins with https://"),
        ({"link": ""}, "has the link ''"),
        ({"link": "https://"}, "has the link 'https://'"),
        ({"reason": " "}, "needs a reason"),
        ({"cause": "a1c"}, "the entry of 'a1c' names no cause: give at least 4 digits of an id"),
        ({"cause": ""}, "names no cause"),
    ],
)
def test_an_entry_says_where_and_why(tmp_path: Path, change: dict[str, str], words: str) -> None:
    """What is wrong is said of what is wrong."""

    path = tmp_path / "ledger.json"
    path.write_text(json.dumps({"format": FORMAT, "known": [{**ENTRY, **change}]}))
    with pytest.raises(FixtureError, match=words):
        read_ledger(path)


def test_there_need_be_no_ledger(tmp_path: Path) -> None:
    """And one that is no text is told so."""

    path = tmp_path / "ledger.json"
    assert read_ledger(path) == LedgerFile(format=FORMAT)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FixtureError, match="is no UTF-8"):
        read_ledger(path)


def test_a_campaign_does_not_start_on_an_entry_that_means_two(tmp_path: Path) -> None:
    """It would hide one of them for hours; what the other entries name stays known."""

    store = Store.open(tmp_path / "store", create=True)
    store.write_campaign(campaign())
    record = with_cause(store)
    other = attrs.evolve(record, digest="ab" * 8, fixture=finding("cell0").id[:6] + 10 * "0")
    store.update_cause(other)
    clear = with_cause(store, "cell1")
    entries = [{**ENTRY, "cause": name} for name in (record.fixture[:6], clear.name)]
    text = json.dumps({"format": FORMAT, "known": entries})
    (store.path / "ledger.json").write_text(text)
    snapshot = store.snapshot()
    assert [problem for problem in snapshot.problems if "give more digits" in problem]
    kinds = {cause.record.digest: cause.kind for cause in snapshot.causes}
    assert kinds == {record.digest: "finding", other.digest: "finding", clear.digest: "known"}
    assert [state.known.cause for state in snapshot.ledger] == [clear.name]
    with pytest.raises(FixtureError, match="give more digits"):
        run_campaign(plan(store.path), tell=lambda _: None)

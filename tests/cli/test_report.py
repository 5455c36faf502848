"""`biprop report`: from a store of campaigns to one page."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from tests.cli.commands import Run, one_sentence
from tests.unit.cache_samples import sample_program
from tests.unit.sample_fixtures import PROVENANCE, sample

from biprop.campaign.records import (
    FORMAT,
    CampaignRecord,
    CauseRecord,
    CellInfo,
    EpochFinding,
    EpochRecord,
    Place,
    ReplayRecord,
    cause_digest,
)
from biprop.campaign.store import FOLDER, Store
from biprop.fixtures.programs import AnyFixture, any_fixtures_in
from biprop.reports.records import ClassCount

CELLS = (
    CellInfo(
        id="linear-target-float32-forward", operator="linear", backend="target", dtype="float32"
    ),
    CellInfo(
        id="paged-NHD-torch-float32",
        kind="cache",
        operator="paged",
        form="NHD",
        backend="torch",
        dtype="float32",
    ),
    CellInfo(id="late-torch-float32-forward", operator="late", backend="torch", dtype="float32"),
)
FIXTURES: dict[str, AnyFixture] = {CELLS[0].id: sample(), CELLS[1].id: sample_program()}


def filled(path: Path) -> Store:
    """Return a store with one campaign, two causes, one of them known, and five epochs."""
    store = Store.open(path, create=True)
    store.write_campaign(
        CampaignRecord(
            format=FORMAT,
            id="20260101-1",
            place=Place(host="node-a", pid=1),
            began=1000.0,
            ended=1100.0,
            reason="budget",
            options={"--budget": "8h"},
            cells=CELLS,
            provenance=PROVENANCE,
        )
    )
    digests = {}
    for cell, fixture in FIXTURES.items():
        cause = fixture.expect.cause
        digests[cell] = cause_digest(cell, cause.key)
        record = CauseRecord(
            format=FORMAT,
            digest=digests[cell],
            cell=cell,
            verdict=cause.verdict.value,
            key=cause.key,
            fixture=fixture.id,
            status="minimal",
            found=1010.0,
            found_by="20260101-1",
        )
        store.add_cause(record, fixture)
        store.update_cause(record, fixture)
    write_epochs(store, digests)
    known = {"cause": FIXTURES[CELLS[1].id].id, "link": "https://example.org/7", "reason": "Old."}
    ledger = {"format": FORMAT, "known": [known]}
    (path / "ledger.json").write_text(json.dumps(ledger), encoding="utf-8")
    store.write_replay(
        ReplayRecord(
            format=FORMAT, fixture=known["cause"], status="FIXED", at=2e9, campaign="20260101-1"
        )
    )
    return store


def write_epochs(store: Store, causes: dict[str, str]) -> None:
    """Write five epochs of two cells, each of which shows its cause."""
    for number in range(5):
        cell = CELLS[number % 2].id
        store.write_epoch(
            EpochRecord(
                format=FORMAT,
                campaign="20260101-1",
                worker=0,
                number=number,
                cell=cell,
                began=1000.0 + 10 * number,
                seconds=10.0,
                seconds_in_kernels=7.0,
                examples=1000 + number,
                launches=5000,
                compared=2000,
                verdict="DRIFTS",
                classes={"T1": ClassCount(examples=1000, powered=600)},
                findings=(EpochFinding(cause=causes[cell], count=3),),
                power_kind="order",
                power_share=0.5,
            )
        )


def test_page_tells_the_store(alone: Run, folder: Path) -> None:
    """Verdicts, sums over the epochs, findings, the stale entry and the environment are there."""
    filled(folder / "store")
    done = alone("report", "--store", "store", "-o", "page.html")
    page = (folder / "page.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))

    assert (done.code, done.out) == (0, "Wrote page.html: 3 cells, 1 finding, 1 fixed.\n")
    assert "5,010" in text
    assert "25,000 launches" in text
    assert "70% in kernels and comparison" in text
    assert re.search(r"DRIFTS\s+3,006 ex., power 0.50", text)
    assert "NOT RUN" in text
    assert re.search(r"STALE\s+no longer fails", text)
    # What is mended makes no cell red, whether people knew of it or not.
    assert len(re.findall(r"DRIFTS\s+3,006 ex\.", text)) == 1
    assert not re.search(r"DRIFTS\s+2,004 ex\.", text)
    assert "Known: Old." in text
    assert "1 distinct cause that nobody knew of" in text
    assert "cpu-x86_64-avx512" in text
    assert page.count('class="marked"') >= 3
    assert not list(folder.glob(".report-*"))


def test_blocks_and_commands_replay(alone: Run, folder: Path) -> None:
    """Issue blocks of the page read back as the fixtures, and its commands name their files."""
    filled(folder / "store")
    alone("report", "--store", "store")
    page = (folder / "report.html").read_text(encoding="utf-8")
    blocks = html.unescape("\n".join(re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)))
    found = {item.id for item in any_fixtures_in(blocks)}
    named = re.findall(r"biprop replay (store\S+)", blocks)

    assert found == {fixture.id for fixture in FIXTURES.values()}
    assert len(named) == 2
    assert all((folder / name).is_file() for name in named)


def test_project_has_a_store(alone: Run, folder: Path) -> None:
    """Without options the store of the project is read, and `-` prints the page."""
    Store.open(folder / FOLDER, create=True)
    done = alone("report", "-o", "-")

    assert done.code == 0
    assert done.out.lstrip().startswith("<!doctype html>")
    assert "The store holds no cell yet" in done.out


def test_what_cannot_be_read_is_told(alone: Run, folder: Path) -> None:
    """A broken file costs itself alone, and the page says so."""
    store = filled(folder / "store")
    (store.path / "epochs" / "broken<b>.json").write_text("{", encoding="utf-8")
    (store.path / "findings" / f"{FIXTURES[CELLS[0].id].id}.json").write_text("{}", "utf-8")
    done = alone("report", "--store", "store")
    page = (folder / "report.html").read_text(encoding="utf-8")

    assert done.code == 0
    assert "broken&lt;b&gt;.json" in page
    assert "cannot be read" in page
    assert "25,000 launches" in page
    # One epoch, and one fixture.
    assert "Not read: 2 files of the store; the page says which, and why.\n" in done.out
    assert "No entry of the ledger can be used" not in page

    (store.path / "ledger.json").write_text("[", encoding="utf-8")
    assert alone("report", "--store", "store").code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "No entry of the ledger can be used: the top of this page says why." in page
    assert "No finding is written down as known." not in page


def test_entries_that_share_a_target_have_rows_of_their_own(alone: Run, folder: Path) -> None:
    """A manifest may name one function twice, with other sizes; both are in the table."""
    store = Store.open(folder / "store", create=True)
    small, large = (
        CellInfo(
            id=f"{name}-float32-forward",
            operator="mine.py:f",
            form="given",
            backend="target",
            dtype="float32",
        )
        for name in ("small", "large")
    )
    cells = (small, large, attrs.evolve(large, id="large-float32-backward", direction="backward"))
    place = Place(host="node-a", pid=1)
    record = CampaignRecord(format=FORMAT, id="one", place=place, began=1.0, cells=cells)
    store.write_campaign(record)
    alone("report", "--store", "store")
    page = (folder / "report.html").read_text(encoding="utf-8")
    table = page[page.index("<caption") : page.index("</table>", page.index("<caption"))]

    assert table.count("NOT RUN") == len(cells)
    assert len(re.findall(r'<th scope="row"[^>]*>(?:small|large)<', table)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--store", "nowhere"), "is no store of campaigns"),
        (("--store", "store", "-o", "no/such/page.html"), "--output 'no/such/page.html' cannot be"),
    ],
)
def test_refusals_are_one_sentence(
    alone: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    """What cannot be read or written is refused in one sentence."""
    Store.open(folder / "store", create=True)

    assert words in one_sentence(alone("report", *arguments))


def test_report_needs_no_torch(folder: Path) -> None:
    """A page with pictures is written without importing torch or Hypothesis."""
    filled(folder / "store")
    code = (
        "import sys\nfrom biprop.cli import main\n"
        "try:\n    main(['report', '--store', 'store'])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({'hypothesis', 'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["Wrote report.html: 3 cells, 1 finding, 1 fixed.", ""]

"""`biprop fuzz` on targets that cannot be searched: refused at once, or told in the end."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from tests.cli.commands import Run, one_sentence
from tests.cli.targets import MINE
from tests.unit.campaign_fakes import campaign, epoch

from biprop.campaign.records import CampaignRecord
from biprop.campaign.run import Plan
from biprop.campaign.store import Store
from biprop.cli.fuzzing import _told
from biprop.supervision import Child

NORM = "x[T,H], weight[H] -> y[T,H]"
HEALTHY = {"name": "healthy", "target": "mine.py:centre", "signature": NORM, "dtype": "float32"}
ABSENT = {**HEALTHY, "name": "absent", "target": "mine.py:absent"}


@pytest.fixture
def ran(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Plan]]:
    """Return what has campaigns pretend: each cell gets an epoch that says what is asked for."""
    (folder / "mine.py").write_text(MINE)

    def pretended(verdict: str) -> list[Plan]:
        plans: list[Plan] = []

        def run(plan: Plan, **_: object) -> CampaignRecord:
            plans.append(plan)
            infos = tuple(cell.info for cell in plan.cells)
            record = attrs.evolve(campaign(), cells=infos, ended=time.time())
            store = Store.open(plan.store, create=True)
            store.write_campaign(record)
            for number, info in enumerate(infos):
                store.write_epoch(
                    attrs.evolve(
                        epoch(info.id, number=number, verdict=verdict), message="It cannot be run."
                    )
                )
            return record

        monkeypatch.setattr("biprop.cli.fuzzing.run_campaign", run)
        return plans

    return pretended


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine.py:absent", "--signature", NORM), "has no name 'absent'"),
        (("mine.py:centre",), "has no signature: give --signature"),
        (("all.json",), "has no name 'absent'"),
    ],
)
def test_a_typo_in_a_target_is_refused_before_the_campaign_begins(
    alone: Run,
    folder: Path,
    ran: Callable[[str], list[Plan]],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    """Whatever the budget, and nothing is stored."""

    plans = ran("HOLDS")
    (folder / "all.json").write_text(json.dumps([ABSENT]))
    assert words in one_sentence(alone("fuzz", "--target", *arguments, "--budget", "5s"))
    assert not plans
    assert not (folder / ".hypothesis" / "campaign").exists()


def test_the_other_entries_of_a_manifest_are_searched(
    alone: Run, folder: Path, ran: Callable[[str], list[Plan]]
) -> None:
    """The one that cannot be is told at once."""

    plans = ran("HOLDS")
    (folder / "all.json").write_text(json.dumps([HEALTHY, ABSENT]))
    done = alone("fuzz", "--target", "all.json")
    assert len(plans) == 1
    assert "Entry 'absent' cannot be searched: " in done.err
    assert "has no name 'absent'" in done.err
    assert "healthy" not in done.err
    assert done.code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_off_the_opening_of_targets(
    alone: Run,
    folder: Path,
    ran: Callable[[str], list[Plan]],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    """The first one, as one may hang for minutes; nothing is stored yet."""

    plans = ran("HOLDS")
    ask = Child.ask

    def asked(*words: object, **others: object) -> object:
        signal.raise_signal(number)
        return ask(*words, **others)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(Child, "ask", asked)
    (folder / "all.json").write_text(json.dumps([HEALTHY]))
    done = alone("fuzz", "--target", "all.json")
    assert (done.code, done.out) == (130, "")
    # Below the ^C of a terminal.
    assert done.err == "\nbiprop: Stopped by Ctrl-C or SIGTERM.\n"
    assert not plans


@pytest.mark.parametrize(("verdict", "code"), [("ERROR", 2), ("HOLDS", 0)])
def test_where_no_cell_can_be_searched_the_exit_code_says_so(
    alone: Run, folder: Path, ran: Callable[[str], list[Plan]], verdict: str, code: int
) -> None:
    """And the summary names each of them, and why."""

    ran(verdict)
    (folder / "all.json").write_text(json.dumps([HEALTHY]))
    done = alone("fuzz", "--target", "all.json")
    assert done.code == code, done
    told = "Not searched: healthy-float32-forward: It cannot be run." in done.out
    assert told == (code == 2)


def test_the_exit_code_is_green_only_where_something_was_judged_and_can_be_read(
    tmp_path: Path,
) -> None:
    """A file that is torn may be a finding."""

    store = Store.open(tmp_path / "store", create=True)
    store.write_campaign(campaign())
    own = {"cell0", "cell1"}
    assert _told(campaign(), store, own=own) == 3
    store.write_epoch(epoch())
    assert _told(campaign(), store, own=own) == 0
    (store.path / "causes" / "c0ffee0000000000.json").write_text("{")
    assert _told(campaign(), store, own=own) == 1

"""`biprop fuzz` from the outside: what it refuses, one campaign over real kernels, and the next."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
from tests.cli.commands import Run, one_sentence
from tests.cli.targets import BAD, MINE

from biprop.campaign.events import Event, Status, Working
from biprop.campaign.snapshot import Snapshot
from biprop.campaign.store import Store
from biprop.cli.fuzz import parse_budget, parse_shard
from biprop.cli.fuzz_view import shown, status_line, status_table

# Of its two faults, the one of strided rows is mended.
ONE_FAULT = MINE.replace("    mean = x.float()", "    x = x.contiguous()\n    mean = x.float()")
NORM = "x[T,H], weight[H] -> y[T,H]"
MANIFEST = [
    {"name": "healthy", "target": "mine.py:centre", "signature": NORM, "dtype": "float32"},
    {"name": "wrong", "target": "mine.py:centre_wrongly", "signature": NORM, "dtype": "float32"},
    {
        "name": "deadly",
        "target": "bad.py:segfault",
        "signature": "x[T,H] -> y[T,H]",
        "dtype": "float32",
        "classes": "T1",
        "dims": "H=1..16",
    },
]


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28_800), ("90m", 5400), ("30s", 30), ("1h30m", 5400)]
)
def test_a_budget_is_a_time(text: str, seconds: int) -> None:
    """Hours, minutes and seconds, alone or together."""

    assert parse_budget(text) == seconds


def test_a_shard_is_a_part_of_a_number() -> None:
    """Parts are counted from 1."""

    assert parse_shard("2/4") == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "soon"), "--budget 'soon' is no time"),
        (("--budget", "0s"), "--budget '0s' is no time"),
        (("--budget", ""), "--budget '' is no time"),
        (("--budget", "1000h"), "--budget '1000h' is longer than 30 days"),
        (("--shard", "5/4"), "--shard '5/4' is no part"),
        (("--shard", "0/4"), "--shard '0/4' is no part"),
        (("--shard", "1"), "--shard '1' is no part"),
        (("--workers", "2", "--workers-per-gpu", "1"), "exclude each other"),
        (("--workers-per-gpu", "1"), "needs --device cuda"),
        (("--device", "tpu"), "--device 'tpu' is unknown"),
        (("--ray", "ray://head:10001"), "--ray 'ray://head:10001' is no address"),
        (("--ray", ""), "--ray '' is no address"),
        (("--ray", "auto", "--device", "cuda:1"), "write --device cuda, not cuda:1"),
        (("--dtype", "int4"), "--dtype 'int4' is unknown"),
        (("--operators", "silu,,logp"), "names nothing between two commas"),
        (("--target", "rms_norm"), "--target 'rms_norm' is no target"),
        (("--signature", "x[T] -> y[T]"), "describe one --target"),
        (("--target", "absent.json"), "cannot be read"),
        (("--target", "absent.py:f", "--signature", "x[T] -> y[T]"), "absent.py"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(
    alone: Run, arguments: tuple[str, ...], words: str
) -> None:
    """Nothing is started, and the sentence names the option."""

    assert words in one_sentence(alone("fuzz", *arguments))


def test_what_ray_needs_is_said_where_it_is_absent(
    alone: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is started."""

    monkeypatch.setattr("biprop.cli.fuzz.find_spec", lambda _: None)
    words = one_sentence(alone("fuzz", "--ray", "auto"))
    assert words.rstrip().endswith("pip install 'biprop[ray]'.")


def test_help_needs_neither_torch_nor_hypothesis() -> None:
    """Both come at once."""

    code = (
        "import sys\n"
        "from biprop.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'hypothesis', 'triton'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "fuzz", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--workers-per-gpu" in done.stdout
    assert "ledger.json of the store" in done.stdout
    assert '{"format": "biprop-campaign-1", "known": [' in done.stdout


STATUS = Status(
    seconds=3700.0,
    seconds_left=61.0,
    cells=12,
    cells_seen=9,
    cells_over=1,
    epochs=40,
    examples=1234,
    examples_a_second=0.33,
    compared_a_second=1.5,
    share_in_kernels=0.42,
    findings=3,
    to_shrink=2,
    known=1,
    lost=1,
    workers=(
        Working(worker=0, doing="searches", cell="rms_norm", seconds=4.0, examples=7),
        Working(worker=1, doing="idle"),
    ),
)


def test_how_it_stands_fits_a_line() -> None:
    """Time left, cells, rates, the share in kernels and what was found."""

    assert status_line(STATUS) == (
        "1 h 01 min, 1 min 01 s left; 9/12 cells; 40 epochs; 1234 examples (0.3/s, 1.5 "
        "sequences/s); 42% in kernels; 3 findings in the store, 2 to be shrunk, 1 known; "
        "1 process lost"
    )
    full = attrs.evolve(STATUS, waiting="No space left on device")
    assert status_line(full).endswith("WAITING: No space left on device")
    one = attrs.evolve(STATUS, epochs=1, examples=1, findings=1, fixed=2)
    assert "; 1 epoch; 1 example (" in status_line(one)
    assert "; 1 finding in the store, 2 to be shrunk, 1 known, 2 fixed;" in status_line(one)


def test_a_table_names_what_each_process_does() -> None:
    """No more of them than fit a screen."""

    assert status_table(STATUS).row_count == 7
    one = attrs.evolve(STATUS, epochs=1)
    assert "1234 in 1 epoch, 0.3/s, 1.5 sequences/s" in list(status_table(one).columns[1].cells)
    many = attrs.evolve(
        STATUS, workers=tuple(Working(worker=number, doing="idle") for number in range(40))
    )
    assert status_table(many).row_count == 5 + 16 + 1


def test_events_that_cannot_be_written_end_no_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once; what is still to be written when the campaign ends raises nothing."""

    with shown(is_live=False, events=Path("/dev/full"), budget=1.0) as tell:
        for _ in range(3):
            tell(Event(kind="note", at=1.0, text="It goes on.", status=STATUS))
    told = capsys.readouterr().err
    assert told.count("--events cannot be written: No space left on device.") == 1
    assert told.count("It goes on.") == 3


class Campaign:
    """One start of `biprop fuzz`, and what it writes."""

    def __init__(self, folder: Path, *, budget: str, events: str) -> None:
        """Start it."""
        self._events = folder / events
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "biprop", "fuzz", "--budget", budget),
                *("--target", "all.json", "--workers", "1", "--seed", "1", "--events", events),
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def events(self) -> list[dict[str, object]]:
        """Return its events so far."""
        if not self._events.exists():
            return []
        lines = self._events.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def wait_for(self, *wanted: tuple[str, str]) -> None:
        """Wait for events of a kind and a cell, where one is named."""
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and self._process.poll() is None:
            events = self.events()
            seen = {(str(event["event"]), str(event.get("cell", ""))) for event in events}
            seen |= {(str(event["event"]), "") for event in events}
            if seen >= set(wanted):
                return
            time.sleep(0.1)
        self._process.kill()
        raise AssertionError(self.end()[2])

    def stop(self) -> tuple[int, str, str]:
        """Send SIGTERM, and return what `end` does."""
        self._process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out, err


def findings_by_cell(snapshot: Snapshot) -> dict[str, set[str]]:
    """Return the verdicts of findings by cell."""
    found: dict[str, set[str]] = {}
    for cause in snapshot.findings:
        found.setdefault(cause.record.cell, set()).add(cause.record.verdict)
    return found


def test_a_campaign_over_real_kernels_and_the_next_one(folder: Path) -> None:
    """It finds, shrinks, survives a kernel that kills, stops in time, and goes on from there."""

    (folder / "mine.py").write_text(ONE_FAULT)
    (folder / "bad.py").write_text(BAD)
    (folder / "all.json").write_text(json.dumps(MANIFEST))
    cells = ("healthy-float32-forward", "wrong-float32-forward", "deadly-float32-forward")
    first = Campaign(folder, budget="60s", events="first.jsonl")
    first.wait_for(*(("epoch", cell) for cell in cells), ("small", cells[1]), ("found", cells[2]))
    asked = time.monotonic()
    code, out, err = first.stop()
    assert time.monotonic() - asked < 10
    assert code == 130, err
    assert "stopped by Ctrl-C or SIGTERM" in out
    store = Store.open(folder / ".hypothesis" / "campaign")
    before = store.snapshot()
    assert not before.problems
    assert not list((store.path / "begun").iterdir())
    assert findings_by_cell(before) == {cells[1]: {"DRIFTS"}, cells[2]: {"CRASHES"}}
    small = next(
        cause
        for cause in before.causes
        if cause.record.status == "minimal" and cause.record.cell == cells[1]
    )
    assert small.fixture is not None
    assert small.fixture.proof.complete

    # All of it is known from now on, and the drift is mended.
    known = [
        {"cause": cause.record.fixture, "link": "https://example.org/1", "reason": "It is known."}
        for cause in before.causes
    ]
    ledger = {"format": "biprop-campaign-1", "known": known}
    (store.path / "ledger.json").write_text(json.dumps(ledger))
    (folder / "mine.py").write_text(ONE_FAULT.replace("mean.mean(0, keepdim=True)", "mean"))
    second = Campaign(folder, budget="60s", events="second.jsonl")
    second.wait_for(("stale", ""), ("epoch", ""))
    code, out, err = second.stop()
    after = store.snapshot()
    assert sum(cell.sum.examples for cell in after.cells) > sum(
        cell.sum.examples for cell in before.cells
    )
    replays = {state.replay.status for state in after.ledger if state.replay is not None}
    assert replays == {"FIXED", "FAILED"}
    assert [state.record.reason for state in after.campaigns] == ["interrupted", "interrupted"]
    assert not after.findings
    assert f"Stale: the ledger names '{small.record.fixture}', which fails no more" in out
    assert code == 130, err

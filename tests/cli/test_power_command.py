"""`biprop power`: what it runs, prints and writes, how it is resumed, and its exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import attrs
import pytest
from tests.cli.commands import Result, Run, one_sentence

from biprop.cli import main
from biprop.power import run as power_run
from biprop.power.pool import Ended
from biprop.power.working import Task, make
from biprop.provenance import collect
from biprop.reports.power import PowerReport, Trial, report_from_text, report_to_data
from biprop.supervision import Child

# What people plant themselves: one defect that shows, one that kills its process, one that is none.
KERNELS = """
import os


def broken(x):
    return x * 2 if x.shape[0] == 1 else x * 2 + 1


def aborts(x):
    if x.shape[0] > 1:
        os.abort()
    return x * 2


def healthy(x):
    return x * 2
"""
ROWS = "x[T,H] -> y[T,H]"
WORDS = (
    *("power", "--names", "linear_gemv,scale_by_row", "--dtype", "fp32", "--seeds", "2"),
    *("--examples", "40", "--workers", "1", "--report-json", "r.json"),
)


def manifest(**changes: object) -> str:
    """Return a manifest of the three kernels, and of one that is not there."""
    entries = [
        {
            "name": name,
            "target": f"kernels.py:{name}",
            "signature": ROWS,
            "dtype": "float32",
            "classes": ["T1"],
            "dims": "H=1..4",
            "healthy": "kernels.py:healthy",
            **changes,
        }
        for name in ("broken", "aborts", "healthy", "gone")
    ]
    # Its twin has the defect too.
    entries.append({**entries[0], "name": "twins", "healthy": "kernels.py:broken"})
    return json.dumps(entries)


def run_here(*words: str) -> Result:
    """Run a command in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return Result(code=ended.value.code, out=out.getvalue(), err=err.getvalue())


def without_times(report: PowerReport) -> tuple[Trial, ...]:
    """Return the trials of a report without what the clock said."""
    return tuple(
        attrs.evolve(
            trial,
            seconds=0.0,
            shrunk=None if trial.shrunk is None else attrs.evolve(trial.shrunk, seconds=0.0),
        )
        for trial in report.trials
    )


@pytest.fixture
def here(worker: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make trials in this process: another one costs the seconds in which it imports torch."""

    def made(tasks: Sequence[Task], *, devices: Sequence[str], workers: int) -> Iterator[Ended]:
        assert workers == 1
        for task in tasks:
            yield Ended(trial=make(task, devices[0], worker), provenance=collect(devices[0]))

    monkeypatch.setattr(power_run, "made", made)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Result]]:
    """Run two planted kernels; the folder with the report, and what the command answered."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder, run_here(*WORDS)


def test_what_is_planted_is_found_and_told(ran: tuple[Path, Result]) -> None:
    """Every kernel has its row, shrunk to the known smallest structure; the exit code is 0."""
    _, result = ran
    rows = [line.split() for line in result.out.splitlines()[2:4]]

    assert result.code == 0, result
    assert [row[:6] for row in rows] == [
        ["linear_gemv", "SHAPE", "fp32", "2", "of", "2"],
        ["scale_by_row", "INDEX", "fp32", "2", "of", "2"],
    ]
    assert [row[-3:] for row in rows] == [["2", "of", "2"]] * 2
    assert result.out.splitlines()[-1].startswith("FOUND  biprop found 4 of 4 within 40 examples")


def test_the_report_holds_every_trial(ran: tuple[Path, Result]) -> None:
    """Versioned JSON that reads back, with costs by component and the sources that ran."""
    folder, _ = ran
    text = (folder / "r.json").read_text()
    report = report_from_text(text)

    assert json.loads(text) == report_to_data(report)
    assert [(trial.cell.name, trial.seed, trial.found) for trial in report.trials] == [
        ("linear_gemv", 1, True),
        ("scale_by_row", 1, True),
        ("linear_gemv", 2, True),
        ("scale_by_row", 2, True),
    ]
    assert {trial.shrunk.reach for trial in report.trials if trial.shrunk} == {"reached"}
    assert sum(twin.examples for twin in report.twins) == 4 * 20
    assert report.provenance is not None
    assert report.provenance.source_digest


@pytest.mark.usefixtures("here")
def test_a_run_is_resumed_and_repeats_itself(
    ran: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a report holds is not made again; what it lacks comes out as it was."""
    folder, _ = ran
    monkeypatch.chdir(folder)
    whole = report_from_text((folder / "r.json").read_text())
    here = collect("cpu")
    half = attrs.evolve(whole, trials=whole.trials[:3], is_interrupted=True, provenance=here)
    (folder / "half.json").write_text(json.dumps(report_to_data(half)))
    result = run_here(*WORDS[:-1], "half.json", "--resume")
    again = report_from_text((folder / "half.json").read_text())

    assert result.code == 0, result
    assert again.trials[:3] == whole.trials[:3]
    assert without_times(again) == without_times(whole)
    assert not again.is_interrupted
    refusal = one_sentence(run_here(*WORDS[:-1], "half.json", "--resume", "--examples", "50"))
    assert "it has examples=40, and this run examples=50" in refusal
    refusal = one_sentence(run_here(*WORDS[:-1], "half.json", "--resume", "--methods", "needle"))
    assert "it has first method=biprop, and this run first method=needle" in refusal


@pytest.mark.usefixtures("here")
def test_own_kernels_are_judged_in_a_worker(folder: Path) -> None:
    """One that drifts and one that kills its process are found; one without defect is missed.

    One that is not there did not run, and the report says why.
    """
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "m.json").write_text(manifest())
    result = run_here(
        *("power", "--targets", "m.json", "--examples", "8", "--seeds", "1", "--workers", "1"),
        *("--report-json", "r.json"),
    )
    report = report_from_text((folder / "r.json").read_text())

    assert result.code == 1, result
    assert {trial.cell.name: trial.verdict for trial in report.trials} == {
        "broken": "DRIFTS",
        "aborts": "CRASHES",
        "healthy": "",
        "gone": "",
        "twins": "DRIFTS",
    }
    assert "Missed by biprop, and by how many seeds: healthy fp32 (1), gone fp32 (1)." in result.out
    assert [twin.examples for twin in report.twins] == [4] * 5
    assert [bool(twin.false_alarms) for twin in report.twins] == [False] * 4 + [True]
    assert "FALSE ALARM of biprop on the healthy twin of twins fp32" in result.out
    assert "NOT RUN: biprop on gone fp32: Target 'kernels.py:gone' has no name 'gone'" in result.out
    assert "sequence of 1; AddNeighbours(count=1); H=1" in result.out


def test_ctrl_c_keeps_what_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130; the report says that it was stopped, and holds what ended before."""

    def made(tasks: list[Task], **_: object) -> Iterator[Ended]:
        task = tasks[0]
        trial = Trial(method=task.method, cell=task.subject.cell(task.dtype), seed=1, found=True)
        yield Ended(trial=trial, provenance=None)
        raise KeyboardInterrupt

    monkeypatch.setattr(power_run, "made", made)
    result = run_here("power", "--names", "linear_gemv", "--report-json", "r.json")
    report = report_from_text((folder / "r.json").read_text())

    assert result.code == 130
    assert result.out.splitlines()[-1] == "STOPPED after 1 trials: what ended is told above."
    assert report.is_interrupted
    assert len(report.trials) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--methods", "best"), "--methods has 'best': use biprop, plain-data,"),
        (("--methods", " "), "--methods ' ' names nothing"),
        (("--methods", "needle", "--without-revealing"), "--without-revealing changes biprop's"),
        (("--names", "linear_gemw"), "names has 'linear_gemw', which nothing planted has: write"),
        (("--kinds", "NONE"), "kinds has 'NONE', which nothing planted has"),
        (("--names", "a,,b"), "--names 'a,,b' names nothing between two commas"),
        (("--dtype", "float8"), "--dtype 'float8' is unknown"),
        (("--device", "tpu"), "--device 'tpu' is unknown"),
        (("--resume",), "--resume needs --report-json FILE"),
        (
            ("--backends", "tritn"),
            "backends has 'tritn', which nothing planted has: write 'triton'",
        ),
        (
            ("--backends", "torch", "--targets", "bad.json"),
            "--backends is for biprop's own planted kernels",
        ),
        (
            ("--resume", "--report-json", "r.json", "--targets", "bad.json"),
            "--resume is for biprop's own planted kernels",
        ),
        (("--report-json", "no/where/r.json"), "cannot be written"),
        (("--targets", "gone.json"), "The manifest 'gone.json' cannot be read"),
        (("--targets", "bad.json"), "entry 1 ('broken'): dtype has 'half': use float32"),
        (("--report-json", "bad.json", "--resume"), "The report is no JSON object"),
    ],
)
def test_bad_input_is_one_sentence(
    biprop: Run, folder: Path, words: tuple[str, ...], part: str
) -> None:
    """Nothing runs, and the sentence says what to write instead."""
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "bad.json").write_text(manifest(dtype="half"))

    assert part in one_sentence(biprop("power", *words))


def test_help_imports_no_torch() -> None:
    """Help comes at once."""
    code = "import sys; import biprop.cli.main; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ.copy(),
    )

    assert done.stdout == "False\n"

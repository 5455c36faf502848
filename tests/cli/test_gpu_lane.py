"""The lanes for a GPU, tried on a CPU: parts run, evidence is kept, and what is missed is said.

Such a run certifies nothing, and says so; the sizes are tiny.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from ci.benchmarks.kernel_speed import COMPARED
from ci.lanes.__main__ import main
from ci.lanes.cells import CellOptions, run_cells
from ci.lanes.finding import run_findings
from ci.lanes.known import Expected, Known
from ci.lanes.records import CellsEvidence, read_evidence
from ci.lanes.timing import run_speeds, run_times
from ci.lanes.where import ROOT, this_run
from tests.unit.evidence_samples import SPEEDS, TIMES

# PyTorch's own product on a CPU: a token alone goes another way than the same token in a batch.
LINEAR = Known(
    name="linear",
    claim="linear drifts with the number of rows on a CPU",
    words=(
        *("torch.nn.functional:linear", "--signature", "input[T,K], weight[N,K] -> out[T,N]"),
        *("--transforms", "T1", "--max-examples", "10"),
    ),
    causes=(Expected(verdict="DRIFTS", transforms=("T1",)), Expected(verdict="CRASHES")),
)


def lane(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `ci/gpu` with the interpreter of this test, from another folder."""
    variables = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [str(ROOT / "ci" / "gpu"), *words],
        cwd=folder,
        env=variables | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_cells_leave_evidence(tmp_path: Path) -> None:
    """Each cell is in the file with what it showed, and a run on a CPU certifies nothing."""
    done = lane(
        *("nightly", "--device", "cpu", "--out", "kept", "--workers", "0"),
        *("--max-seconds", "0.5", "--cells", "rms_norm-torch-float32-forward"),
        folder=tmp_path,
    )

    evidence = read_evidence(tmp_path / "kept" / "nightly.json")
    assert isinstance(evidence, CellsEvidence)
    (cell,) = evidence.cells
    # Its time is too short for fifty examples of any class, so this cell is not as it should be.
    assert done.returncode == 1, done.stdout + done.stderr
    assert "certifies no GPU" in done.stdout
    assert (cell.id, cell.verdict, cell.is_met) == (
        "rms_norm-torch-float32-forward",
        "VACUOUS",
        False,
    )
    assert cell.message.startswith("Too few powered examples")
    assert 0 < cell.examples < 5000
    assert cell.largest["H"] > 1
    assert cell.actual_backend == "torch"
    assert not any((evidence.run.is_met, evidence.run.is_complete, evidence.run.certifies))
    assert evidence.totals.cells_registered > evidence.totals.cells == 1


def test_cells_are_added_to_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part run piece by piece keeps its commands; evidence of other sources is not added to."""
    path = tmp_path / "pr.json"
    monkeypatch.setattr(
        "ci.lanes.cells.subprocess.run", lambda words, **_: subprocess.CompletedProcess(words, 0)
    )

    def commands(run_id: str, cells: str) -> list[str]:
        monkeypatch.setattr("ci.lanes.where.source_sha256", lambda: run_id * 64)
        options = CellOptions(device="cpu", workers="2", cells=cells, max_seconds=1.5)
        return [
            command.partition(" -k ")[2]
            for command in run_cells("pr", this_run("cpu"), path, options).run.commands
        ]

    assert commands("a", "logp") == ["logp --biprop-max-seconds 1.5"]
    assert len(commands("a", "rms_norm")) == 2
    assert len(commands("b", "rms_norm")) == 1


def test_tests_of_the_device_run_beside_all_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the tests that need one run too, unless single cells are asked for."""
    monkeypatch.setattr(
        "ci.lanes.cells.subprocess.run", lambda words, **_: subprocess.CompletedProcess(words, 0)
    )
    run = this_run("cpu")

    def command(device: str, cells: str = "") -> str:
        options = CellOptions(device=device, workers="auto", cells=cells)
        path = tmp_path / f"{device}{cells}.json"
        return run_cells("pr", run, path, options).run.commands[0]

    assert "tests/props tests/gpu --biprop-device cuda" in command("cuda")
    assert "tests/gpu" not in command("cuda", "logp")
    assert "tests/gpu" not in command("cpu")


def test_findings_are_searched_and_replayed(tmp_path: Path) -> None:
    """A finding is kept with its fixture and its replay; what was missed is said."""
    path = tmp_path / "findings.json"
    evidence = run_findings([LINEAR], this_run("cpu"), path, device="cpu", workers=1)

    assert read_evidence(path) == evidence
    (found,) = evidence.findings
    assert (found.name, found.verdict, found.exit_code) == ("linear", "DRIFTS", 1)
    assert found.command == (
        "biprop check torch.nn.functional:linear --signature "
        "'input[T,K], weight[N,K] -> out[T,N]' --transforms T1 --max-examples 10 --device cpu"
    )
    (cause,) = found.causes
    assert (cause.replay.status, cause.replay.exit_code) == ("FAILED", 1)
    assert cause.fixture["format"] == "biprop-fixture-1"
    assert found.missed == ("No cause CRASHES was found.",)
    assert not evidence.run.is_met


def test_times_are_kept_target_by_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark runs once a target; one that fails is missed, and the others are kept."""

    def measure(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        target, out = words[words.index("--targets") + 1], Path(words[-1])
        cell = attrs.asdict(attrs.evolve(TIMES.times[0], target=target))
        work = {
            stage: {"kernels": 1, "copies": 0, "microseconds": count}
            for stage, count in cell.pop("device_microseconds").items()
        }
        if not target.startswith("det_gemm"):
            written = {**cell, "device_work": {**work, "power": work["values"]}, "kinds": ["pairs"]}
            out.write_text(json.dumps({"cells": [written]}))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("ci.lanes.timing.subprocess.run", measure)
    path = tmp_path / "times.json"
    evidence = run_times(this_run("cpu"), path, device="cpu")

    assert read_evidence(path) == evidence
    targets = [cell.target for cell in evidence.times]
    assert "logp/packed" in targets
    assert "det_gemm/packed" not in targets
    assert len(evidence.run.commands) == len(targets) + 1
    assert not evidence.run.is_met


def test_speeds_are_kept_target_by_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each target of the benchmark has its rows, and a run of all of them is whole."""

    def measure(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        cell = attrs.evolve(SPEEDS.speeds[0], target=words[words.index("--targets") + 1])
        Path(words[-1]).write_text(json.dumps({"cells": [attrs.asdict(cell)]}))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("ci.lanes.timing.subprocess.run", measure)
    path = tmp_path / "speeds.json"
    evidence = run_speeds(this_run("cpu"), path, device="cpu")

    assert read_evidence(path) == evidence
    assert [cell.target for cell in evidence.speeds] == list(COMPARED)
    assert evidence.run.is_met


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pr", "often"), "unknown part often"),
        (("pr", "--device", "tpu"), "--device 'tpu' is unknown"),
        (("findings", "--device", "cpu", "--findings", "moon"), "names 'moon'"),
        (("pr", "--device", "cpu", "-n", "many"), "'many' is no number"),
        (("pr", "--moon"), "No such option"),
    ],
)
def test_wrong_use_is_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be run is refused before anything runs, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["gpu", *words])

    with pytest.raises(SystemExit) as ended:
        main()

    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert not out
    assert sentence in err
    assert err.startswith("gpu: ")
    assert err.count("\n") == 1


def test_cells_that_match_nothing_are_refused(tmp_path: Path) -> None:
    """One sentence, exit code 2, and no evidence of a run that ran nothing."""
    words = ("pr", "--device", "cpu", "--out", "kept", "--workers", "0", "--cells", "nosuch")
    done = lane(*words, folder=tmp_path)

    assert done.returncode == 2, done.stdout + done.stderr
    assert "gpu: --cells 'nosuch' matches nothing" in done.stderr
    assert not list((tmp_path / "kept").iterdir())


def test_cuda_is_asked_for_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is no GPU, one sentence says so."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "pr"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("gpu: CUDA is not available here")


def test_help_names_every_part() -> None:
    """`ci/gpu --help` says what each part is, and without a part it says where to look."""
    done = lane("--help", folder=ROOT)

    assert done.returncode == 0
    for part in ("pr", "nightly", "findings", "times"):
        assert f"\n  {part} " in done.stdout
    assert "ci/gpu --help" in lane(folder=ROOT).stderr

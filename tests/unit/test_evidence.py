"""Evidence of the GPU lanes: files are strict, and the figures in texts come from them."""

import json
import re
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from ci.lanes.campaigns import PLANS, parse_plans, result_of, run_campaigns
from ci.lanes.figures import (
    EVIDENCE,
    MATRIX,
    POWER,
    TEXTS,
    collected,
    differing,
    notes,
    with_figures,
)
from ci.lanes.known import KNOWN, Known
from ci.lanes.recording import Recorder
from ci.lanes.records import (
    PARTS,
    CampaignResult,
    CellsEvidence,
    Evidence,
    evidence_text,
    read_evidence,
    totals_of,
    write_evidence,
)
from ci.lanes.runs import EvidenceError, same_run
from ci.lanes.where import ROOT, this_run, without_folders
from tests.unit.cache_samples import sample_program, violated
from tests.unit.campaign_fakes import campaign, epoch, with_cause
from tests.unit.evidence_samples import CAMPAIGNS, CELLS, FINDINGS, RUN, SPEEDS, TIMES

from biprop.campaign.store import Store
from biprop.cli.check import check
from biprop.judgment import Verdict
from biprop.kvcache.converting import CONVERTER
from biprop.loading import check_file
from biprop.provenance import source_digest, source_sha256
from biprop.pytest_plugin.summary import PROPERTY
from biprop.registry import build_registry
from biprop.reports.program_records import CacheReport, ProgramFinding
from biprop.signature import parse_target
from biprop.strategies.cells import cells_of

# What `biprop power` wrote is no part of a lane on a GPU.
COMMITTED = sorted(
    path for path in (ROOT / EVIDENCE).glob("*.json") if path.name not in {*POWER, MATRIX}
)


def stored(evidence: Evidence, folder: Path) -> Path:
    """Write evidence under the name of its part, and return the file."""
    path = folder / f"{evidence.part}.json"
    write_evidence(path, evidence)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a repository of the texts, with evidence, and write its figures."""
    for evidence in (CELLS, FINDINGS, TIMES, SPEEDS, CAMPAIGNS):
        stored(evidence, tmp_path / EVIDENCE)
    for path in TEXTS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        text = with_figures((ROOT / path).read_text(), collected(tmp_path))
        (tmp_path / path).write_text(text)
    return tmp_path


NEWER = attrs.evolve(RUN.versions, torch="99.0")


def made(words: list[str], sample: CampaignResult) -> CampaignResult:
    """Return what a campaign of some words would leave."""
    return attrs.evolve(sample, command=" ".join(["biprop", *words]))


class TestCommitted:
    """What lies in ci/evidence."""

    def test_texts_say_what_the_evidence_says(self) -> None:
        """Nobody edited a figure, and no evidence changed without its texts: run ci/figures."""

        assert differing(ROOT) == ()

    def test_files_are_strict_evidence_of_a_gpu(self) -> None:
        """Each file is whole, of the part that names it, made on a GPU, and names no folder."""

        for path in COMMITTED:
            evidence = read_evidence(path)
            assert path.stem == evidence.part
            assert path.read_text() == evidence_text(evidence)
            assert evidence.run.certifies
            assert re.fullmatch("[0-9a-f]{64}", evidence.run.source_sha256)
            assert without_folders(path.read_text()) == path.read_text()

    def test_totals_are_those_of_the_cells(self) -> None:
        """What a file says in sum is the sum of what it says."""
        found = [read_evidence(path) for path in COMMITTED]

        for evidence in (CELLS, *found):
            if isinstance(evidence, CellsEvidence):
                registered, seconds = evidence.totals.cells_registered, evidence.run.seconds
                again = totals_of(evidence.cells, registered=registered, seconds=seconds)
                assert again == evidence.totals

    def test_the_matrix_is_green_and_whole(self) -> None:
        """It is of a GPU, its sums are those of its cells, and it names no folder."""
        text = (ROOT / EVIDENCE / MATRIX).read_text()
        report = json.loads(text)

        assert report["is_green"]
        assert not report["is_interrupted"]
        assert report["provenance"]["arch_key"].startswith("cuda-")
        assert report["totals"]["cells"] == len(report["cells"])
        assert report["totals"]["green"] == sum(cell["is_green"] for cell in report["cells"])
        assert report["totals"]["examples"] == sum(
            cell["report"]["examples"] for cell in report["cells"]
        )
        assert without_folders(text) == text

    def test_nothing_else_is_there(self) -> None:
        """Every file is the evidence of a part."""

        assert {path.stem for path in COMMITTED} <= set(PARTS)


class TestRecords:
    """Writing and reading."""

    @pytest.mark.parametrize("evidence", [CELLS, FINDINGS, TIMES, SPEEDS, CAMPAIGNS])
    def test_evidence_survives_its_file(self, evidence: Evidence, tmp_path: Path) -> None:
        """What is read is what was written, with the format first."""
        path = stored(evidence, tmp_path)

        assert read_evidence(path) == evidence
        assert next(iter(json.loads(path.read_text()))) == "format"

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ("biprop-evidence-1", "biprop-evidence-9", "unknown"),
            ("ab" * 32, "ab" * 31, "no SHA-256"),
            ('"examples": 1200', '"exambles": 1200', "examples"),
            ('"launches": 9000', '"launches": "9000"', "launches"),
            ('"part": "nightly"', '"part": "daily"', "daily"),
            ("{", "[", "evidence"),
        ],
    )
    def test_what_is_wrong_is_refused(
        self, old: str, new: str, sentence: str, tmp_path: Path
    ) -> None:
        """An unknown key, a wrong type, another format or digest: one sentence names it."""
        path = stored(CELLS, tmp_path)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

        with pytest.raises(EvidenceError, match=sentence):
            read_evidence(path)

    def test_cell_is_met_at_the_sizes_that_are_wanted(self) -> None:
        """A cell that held on small cases alone is not as it should be."""
        cell = CELLS.cells[0]

        assert cell.is_met
        assert not attrs.evolve(cell, largest={"V": 151_935}).is_met
        assert not attrs.evolve(cell, verdict="VACUOUS").is_met

    def test_runs_of_other_sources_do_not_mix(self) -> None:
        """Evidence is added to only where sources, device and versions are the same."""
        later = attrs.evolve(RUN, date="2026-12-01", commands=("other",), seconds=3.0)

        assert same_run(RUN, later)
        assert not same_run(RUN, attrs.evolve(RUN, source_sha256="cd" * 32))
        assert not same_run(
            RUN, attrs.evolve(RUN, versions=attrs.evolve(RUN.versions, torch="2.12.0"))
        )


class TestPlace:
    """What a run says of where it was."""

    def test_digest_begins_as_the_digest_of_fixtures(self) -> None:
        """Evidence names the sources whole, fixtures by their beginning."""
        run = this_run("cpu")

        assert run.source_sha256 == source_sha256()
        assert source_sha256().startswith(source_digest())
        assert not run.certifies
        assert run.versions.torch

    def test_folders_are_left_out(self) -> None:
        """Absolute paths lose their folders; targets, forms and addresses stay as they are."""
        shown = without_folders("at /usr/lib/a.so and ci/lanes/x.py:f of rms_norm/padded")

        assert shown == "at a.so and ci/lanes/x.py:f of rms_norm/padded"


class TestFigures:
    """Sections of texts."""

    def test_figures_are_as_the_evidence_says(self, root: Path) -> None:
        """Sizes, counts and the fixture's case stand in the text."""
        text = (root / "README.md").read_text()

        assert differing(root) == ()
        assert "A GPU, compute capability 9.0" in text
        assert "2 of 2" in text
        assert "V=151,936" in text
        assert "1 sequence of 1 token, K=3, N=2, float32; AddNeighbours(count=1)" in text
        assert (
            "| nightly | paged HND triton | bfloat16 | HOLDS | 1,000 | 35,123 | 80,456 | "
            "short, real-256 |" in text
        )
        assert (
            "| `biprop fuzz --budget 120s --workers 2 --device cuda` | 2 | 1 | 122 s | "
            "168 of 168 | 9,000 | 74.1 | 512 | 0.41 | 0 | 0 |" in text
        )
        times = (root / "kernels" / "README.md").read_text()
        assert (
            "| logp/packed triton | bfloat16 | V=151,936 | 256 | 0.50 | 1.00 | 4.20 | 0.50 | 0.50 |"
            in times
        )
        assert (
            "| rms_norm/packed | bfloat16 | forward | H=8,192 | 4,096 | 0.30 | 0.20 | 1.50 | "
            "functional.rms_norm |" in times
        )

    def test_edited_figure_is_seen(self, root: Path) -> None:
        """A figure that somebody changed by hand makes the text differ, and is mended."""
        path = root / "README.md"
        right = path.read_text()
        path.write_text(right.replace("| 2 of 2 |", "| 3 of 3 |"))

        assert path.read_text() != right
        assert differing(root) == ("README.md",)
        assert with_figures(path.read_text(), collected(root)) == right

    def test_changed_evidence_is_seen(self, root: Path) -> None:
        """Evidence that changed without its texts makes both of them differ."""
        cells = (attrs.evolve(CELLS.cells[0], examples=1201), *CELLS.cells[1:])
        totals = attrs.evolve(CELLS.totals, examples=2401)
        stored(attrs.evolve(CELLS, cells=cells, totals=totals), root / EVIDENCE)

        assert differing(root) == tuple(path.as_posix() for path in TEXTS)

    def test_text_around_the_sections_stays(self, root: Path) -> None:
        """Making figures touches nothing else, and making them twice changes nothing."""
        for path in TEXTS:
            text = (root / path).read_text()
            again = with_figures(f"before\n{text}after\n", collected(root))
            assert again == f"before\n{text}after\n"

    def test_other_sources_are_told(self, root: Path) -> None:
        """Evidence of other sources than today's is said, and is no failure."""
        both = notes(root)
        stored(
            attrs.evolve(FINDINGS, run=attrs.evolve(RUN, source_sha256=source_sha256())),
            root / EVIDENCE,
        )

        assert [sentence.split()[0] for sentence in both] == [
            "nightly",
            "findings",
            "times",
            "speeds",
            "campaigns",
        ]
        assert [sentence.split()[0] for sentence in notes(root)] == [
            "nightly",
            "times",
            "speeds",
            "campaigns",
        ]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("<!-- figures:moon -->\n<!-- /figures -->\n", "figures:moon is unknown"),
            ("<!-- figures:gpu -->\nnever closed\n", "not closed"),
        ],
    )
    def test_wrong_marks_are_refused(self, text: str, sentence: str, root: Path) -> None:
        """An unknown section and one that is not closed are errors, not passed over."""
        with pytest.raises(EvidenceError, match=sentence):
            with_figures(text, collected(root))

    def test_evidence_under_another_name_is_refused(self, root: Path) -> None:
        """A file lies under the name of its part."""
        shutil.copy(root / EVIDENCE / "nightly.json", root / EVIDENCE / "pr.json")

        with pytest.raises(EvidenceError, match=r"pr\.json holds part='nightly'"):
            collected(root)


class TestRecorder:
    """The plugin that keeps cells as they end."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Write evidence without cells."""
        return stored(attrs.evolve(CELLS, cells=(), caches=()), tmp_path)

    @staticmethod
    def report(item: str, outcome: str, **values: object) -> pytest.TestReport:
        """Return a report of an item of tests/props."""
        return pytest.TestReport(
            nodeid=f"tests/props/test_cells.py::test_holds[{item}]",
            location=("", 0, ""),
            keywords={},
            outcome=outcome,  # type: ignore[arg-type]  # one of three words
            longrepr=values.get("longrepr"),  # type: ignore[arg-type]  # a text
            when="call",
            user_properties=[(PROPERTY, json.dumps(values["entry"]))] if "entry" in values else [],
        )

    def test_cell_that_did_not_end_is_kept(self, path: Path) -> None:
        """A cell without a report is no cell that held, and says how it failed."""
        cell = cells_of(build_registry())[0]
        text = "Failed: the worker of /usr/lib/python ended"
        Recorder(path).pytest_runtest_logreport(self.report(cell.id, "failed", longrepr=text))

        (kept,) = read(path).cells
        assert (kept.id, kept.verdict, kept.is_met) == (cell.id, "", False)
        assert kept.message == "Failed: the worker of python ended"

    def test_time_is_kept_with_each_cell(self, path: Path) -> None:
        """A lane that is killed says how long it ran, and one that goes on adds to it."""
        cell = cells_of(build_registry())[0]
        before = read(path).run.seconds
        recorder = Recorder(path)
        time.sleep(0.2)
        recorder.pytest_runtest_logreport(self.report(cell.id, "failed", longrepr="x"))

        assert read(path).run.seconds >= before + 0.2

    def test_caches_are_kept(self, path: Path) -> None:
        """A cache that drifted is kept with its cause, and one judged again takes its place."""
        finding = ProgramFinding(fixture=sample_program(), outcome=violated(), path="found/a.json")
        drifted = CacheReport(
            reference=finding.fixture.reference,
            layout="HND",
            dtype="float32",
            device="cuda",
            verdict=Verdict.DRIFTS,
            findings=(finding,),
            programs=9,
            coverage={"dirty reuse": 3},
            smoke={"real-16": Verdict.HOLDS},
        )
        recorder = Recorder(path)
        for report in (attrs.evolve(drifted, verdict=Verdict.HOLDS, findings=()), drifted):
            entry = {"kind": "cache", "id": "a", "report": CONVERTER.unstructure(report)}
            recorder.pytest_runtest_logreport(self.report("a", "passed", entry=entry))

        (kept,) = read(path).caches
        assert (kept.verdict, kept.is_met, kept.programs) == ("DRIFTS", False, 9)
        assert kept.causes == (finding.fixture.expect.cause.key,)
        assert kept.fixed == {"real-16": "HOLDS"}
        assert kept.coverage["dirty reuse"] == 0.333

    def test_tests_beside_the_cells_are_counted(self, path: Path) -> None:
        """What is no cell is counted, and named where it failed."""
        recorder = Recorder(path)
        recorder.pytest_runtest_logreport(self.report("fixture-a", "passed"))
        recorder.pytest_runtest_logreport(self.report("fixture-b", "failed", longrepr="x"))

        assert read(path).tests.passed == 1
        assert [name.partition("[")[2] for name in read(path).tests.failed] == ["fixture-b]"]


def read(path: Path) -> CellsEvidence:
    """Return the evidence of cells of a file."""
    evidence = read_evidence(path)
    assert isinstance(evidence, CellsEvidence)
    return evidence


class TestCampaigns:
    """The part campaigns."""

    def test_plans_are_read(self) -> None:
        """Processes and seconds of each; what is no plan is named."""
        few, all_of_them = parse_plans("4:120, all:9")

        assert few.words == ["fuzz", "--budget", "120s", "--workers", "4"]
        assert all_of_them.words == ["fuzz", "--budget", "9s"]
        assert parse_plans("") == PLANS
        with pytest.raises(EvidenceError, match="'0:9'"):
            parse_plans("1:9,0:9")

    def test_what_is_kept_is_what_the_last_event_says(self) -> None:
        """One that did not end gives nothing, one that lost a process is not as it should be."""
        sample = CAMPAIGNS.campaigns[0]
        names = ("seconds", "cells", "cells_seen", "cells_over", "epochs", "examples", "findings")
        status = {
            **{name: getattr(sample, name) for name in (*names, "examples_a_second", "lost")},
            "compared_a_second": 512.34,
            "share_in_kernels": 0.41219,
            "workers": [{"worker": 0}, {"worker": 1}],
        }
        words = sample.command.split()[1:]
        events: list[dict[str, Any]] = [{"event": "begun"}, {"event": "ended", "status": status}]

        assert result_of(words, events, devices=1, exit_code=0) == sample
        assert result_of(words, events[:1], devices=1, exit_code=0) is None
        assert sample.is_met
        assert not attrs.evolve(sample, lost=1).is_met
        assert not attrs.evolve(sample, errors=("cell0: an error",)).is_met

    @pytest.mark.parametrize("is_found", [True, False])
    def test_the_store_of_what_was_found_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_found: bool
    ) -> None:
        """Under a name of its own each time, and its causes are named."""
        sample = attrs.evolve(CAMPAIGNS.campaigns[0], findings=int(is_found))
        status = {**attrs.asdict(sample), "workers": [{"worker": 0}] * sample.workers}
        names: list[str] = []

        def ran(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            words = dict(pairwise(command))
            store = Store.open(Path(words["--store"]), create=True)
            store.write_campaign(campaign())
            if is_found:
                names[:] = [with_cause(store).name]
                wrong = attrs.evolve(epoch("cell1", verdict="ERROR"), message="It cannot run.")
                store.write_epoch(wrong)
            events = {"event": "ended", "status": status}
            Path(words["--events"]).write_text(json.dumps(events), encoding="utf-8")
            return subprocess.CompletedProcess(command, returncode=int(is_found))

        monkeypatch.setattr("ci.lanes.campaigns.subprocess.run", ran)
        path = tmp_path / "campaigns.json"
        for _ in range(2):
            (result,) = run_campaigns(
                parse_plans("2:120"), CAMPAIGNS.run, path, device="cuda"
            ).campaigns
            assert result.causes == tuple(names)
            assert result.errors == (("cell1: It cannot run.",) if is_found else ())
            assert result.is_met != is_found
        kept = sorted(item.name for item in tmp_path.iterdir() if item.is_dir())
        assert kept == (["campaign-2-120s", "campaign-2-120s-2"] if is_found else [])
        for name in kept:
            (cause,) = Store.open(tmp_path / name / "store").causes().values()
            assert [cause.name] == names
            assert (tmp_path / name / "events.jsonl").is_file()

    def test_campaigns_of_other_sources_say_so_until_they_are_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On another device, and with other versions, they are none of this file."""
        path, old = tmp_path / "campaigns.json", CAMPAIGNS.campaigns[0]
        run = attrs.evolve(CAMPAIGNS.run, source_sha256="0" * 64)
        more = attrs.evolve(run, device=attrs.evolve(run.device, count=run.device.count + 1))
        monkeypatch.setattr("ci.lanes.campaigns._campaign", lambda words, **_: made(words, old))

        for other, kept in ((run, 2), (more, 2), (attrs.evolve(run, versions=NEWER), 1)):
            path.write_text(evidence_text(CAMPAIGNS))
            found = run_campaigns(parse_plans("1:9"), other, path, device="cuda").campaigns
            assert found == read_evidence(path).campaigns  # type: ignore[union-attr]  # of campaigns
            assert len(found) == kept
            assert found[-1].source_sha256 is None
            assert kept == 1 or found[0].source_sha256 == CAMPAIGNS.run.source_sha256
        path.write_text(evidence_text(CAMPAIGNS))
        monkeypatch.setattr("ci.lanes.campaigns._campaign", lambda *_, **__: old)
        again = run_campaigns(parse_plans("2:120"), run, path, device="cuda").campaigns
        assert again == (old,)


class TestKnown:
    """The table of known findings."""

    def test_names_are_unique(self) -> None:
        """A finding is chosen by its name."""

        assert len({item.name for item in KNOWN}) == len(KNOWN) >= 9

    @pytest.mark.parametrize("known", KNOWN, ids=[item.name for item in KNOWN])
    def test_command_can_be_typed(self, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each command is one that `biprop check` takes, on a target that is there."""
        monkeypatch.chdir(ROOT)
        context = check.make_context("check", [*known.words, "--device", "cuda"])

        check_file(parse_target(known.words[0]))
        assert context.params["device"] == "cuda"
        assert context.params["signature"]

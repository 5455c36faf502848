"""The pytest plugin: items and their ids, what a failure prints, the summary, and the ledger.

Every run is a process of its own, over operators that a package of the test brings by entry point;
but for the first one they find torch imported (`tests/preloaded.py`).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import attrs
import pytest
from tests.preloaded import Preloaded

from biprop.errors import FixtureError
from biprop.pytest_plugin.cells import check_operators, items_of
from biprop.pytest_plugin.known import read_known

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = '''
"""An operator whose launches of five rows and more scale otherwise, and its healthy twin."""

import os

from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator
from biprop.signature import parse_signature


def planted(x, weight):
    scaled = x * weight
    return scaled * 1.25 if len(x) >= 5 and "PLANTED_MENDED" not in os.environ else scaled


def healthy(x, weight):
    return x * weight


def operator(name, function, **fields):
    form = Form(
        name="packed",
        signature=parse_signature("x[T,H], weight[H] -> y[T,H]"),
        implementations=(Implementation(backend="torch", forward=function),),
        reference=lambda x, weight, *, reduce: (x.float() * weight.float()).to(x.dtype),
    )
    return Operator(name=name, op_class="elementwise", forms=(form,), **fields)


DECLARED = InvarianceDeclaration(transforms=("T1", "T2", "T8"), backward=False, chain_index=5)
OPERATORS = (
    operator("planted_scale", planted, declaration=DECLARED),
    operator("healthy_scale", healthy, declaration=DECLARED),
    operator("exempt_scale", healthy, exempt_reason="It is here to be listed."),
)
'''
METADATA = "Metadata-Version: 2.1\nName: scales\nVersion: 1.0\n"
ENTRY_POINTS = "[biprop.operators]\nscales = scales:OPERATORS\n"


@attrs.frozen(kw_only=True)
class Run:
    """What a run of pytest left.

    Attributes:
        status: Exit status.
        output: All that it printed.
    """

    status: int
    output: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with a package of three operators and an empty store."""
    root = tmp_path_factory.mktemp("project")
    package = root / "package"
    information = package / "scales-1.0.dist-info"
    information.mkdir(parents=True)
    (package / "scales.py").write_text(OPERATORS)
    (information / "METADATA").write_text(METADATA)
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (root / ".hypothesis" / "fixtures").mkdir(parents=True)
    (root / "elsewhere").mkdir()
    return root


def run(
    project: Path, *arguments: str, preloaded: Preloaded | None = None, **environment: str
) -> Run:
    """Run tests/props over the project, from a folder that is not its root.

    Args:
        project: Its root.
        arguments: Of pytest.
        preloaded: Where torch is imported already; None for a process that starts from nothing.
        environment: Variables beside those of this process.
    """
    paths = (str(project / "package"), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    variables = {key: value for key, value in os.environ.items() if key != "CI"}
    # What the outer run has set must not decide what the inner one sets.
    for name in ("HYPOTHESIS_STORAGE_DIRECTORY", "TRITON_INTERPRET", "PYTEST_XDIST_WORKER"):
        variables.pop(name, None)
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment
    words = (
        *("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(project)),
        *(str(ROOT / "tests" / "props"), "-p", "no:cacheprovider"),
        *("--biprop-max-examples", "16", *arguments),
    )
    if preloaded is not None:
        done = preloaded.run(*words, cwd=project / "elsewhere", env=variables)
    else:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=project / "elsewhere",
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
    return Run(status=done.returncode, output=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def searched(project: Path) -> Run:
    """Search the cells of the planted operator and of its twin, in two parallel processes."""
    names = "planted_scale,healthy_scale"
    return run(project, "-n", "2", "--biprop-operators", names, "--biprop-report", "report.jsonl")


def test_failing_cell_prints_its_report(searched: Run) -> None:
    """A failure prints what failed, on what, how, and the command, and no traceback."""
    output = searched.output

    assert searched.status == 1
    assert "test_holds[planted_scale-torch-float32-forward]" in output
    for part in ("DRIFTS planted_scale y float32", "transform", "case", "first", "biprop replay "):
        assert part in output
    assert "Traceback" not in output
    assert "Falsifying" not in output
    assert "pytest_plugin/running.py" not in output


def test_summary_names_every_cell(searched: Run) -> None:
    """The section at the end has a line a cell, in a parallel run too, and lists what is exempt."""
    section = searched.output.split("biprop drift summary")[1]

    assert section.count("HOLDS    healthy_scale/packed") == 2
    assert section.count("DRIFTS   planted_scale/packed") == 2
    assert "exempt  exempt_scale: It is here to be listed." in section
    assert "exempt  native_linear" in section


def test_report_file_holds_every_cell(searched: Run, project: Path) -> None:
    """The report file, relative to where pytest was started, has one JSON object a cell."""
    lines = (project / "elsewhere" / "report.jsonl").read_text().splitlines()
    cells = [json.loads(line) for line in lines]

    assert "4 cells written" in searched.output
    assert {(cell["operator"], cell["verdict"]) for cell in cells} == {
        ("planted_scale", "DRIFTS"),
        ("healthy_scale", "HOLDS"),
    }
    assert all(cell["drift"] for cell in cells if cell["verdict"] == "DRIFTS")


def test_nothing_is_left_where_pytest_ran(searched: Run, project: Path) -> None:
    """Findings and what Hypothesis stores lie below the root, not in the folder pytest ran in."""

    assert searched.status == 1
    assert sorted(path.name for path in (project / "elsewhere").iterdir()) == ["report.jsonl"]
    assert list((project / ".hypothesis" / "found").glob("planted_scale-*.json"))


@pytest.fixture(scope="module")
def kept(searched: Run, project: Path) -> str:
    """Promote one finding, and return its id."""
    assert searched.status == 1
    found = min((project / ".hypothesis" / "found").glob("planted_scale-*.json"))
    shutil.copy(found, project / ".hypothesis" / "fixtures")
    identity: str = json.loads(found.read_text())["id"]
    return identity


def test_committed_fixture_must_not_fail(kept: str, project: Path, preloaded: Preloaded) -> None:
    """A committed fixture is an item that comes first, and fails while the finding is there."""
    words = ("-k", "fixture", "--biprop-operators", "planted_scale")
    done = run(project, *words, preloaded=preloaded)

    assert kept
    assert done.status == 1
    assert "A committed fixture of a declared operator fails." in done.output
    assert "1 failed, 2 deselected" in done.output


def test_known_failure_is_expected(kept: str, project: Path, preloaded: Preloaded) -> None:
    """A fixture of the ledger may fail, and an unexpected pass is reported."""
    ledger = project / ".hypothesis" / "fixtures" / "known.json"
    entry = {"id": kept, "link": "https://example.org/1", "reason": "Being mended."}
    ledger.write_text(json.dumps({"format": "biprop-known-1", "known": [entry]}))
    try:
        words = ("-k", "fixture", "--biprop-operators", "planted_scale")
        failing = run(project, *words, preloaded=preloaded)
        mended = run(project, *words, preloaded=preloaded, PLANTED_MENDED="1")
    finally:
        ledger.unlink()

    assert failing.status == mended.status == 0
    assert "1 xfailed" in failing.output
    assert "Being mended. (https://example.org/1)" in failing.output
    assert "UNEXPECTED PASS" in mended.output
    assert "UNEXPECTED PASS" not in failing.output


@attrs.frozen(kw_only=True)
class Options:
    """The part of a pytest configuration that lists items.

    Attributes:
        operators: As `--biprop-operators`.
        rootpath: Of the project.
    """

    operators: str
    rootpath: Path

    def getoption(self, name: str) -> str:
        """Return an option."""
        assert name == "--biprop-operators"
        return self.operators


def test_items_have_static_ids(project: Path) -> None:
    """Ids name operator, form, backend, dtype and direction, and cells cover all of them."""
    options = Options(operators="rms_norm,det_gemm,logp", rootpath=project / "elsewhere")
    ids = [item.id for item in items_of(cast("pytest.Config", options))]

    assert len(ids) == 32
    assert "rms_norm-triton-bfloat16-backward" in ids
    assert "rms_norm-padded-torch-float32-forward" in ids


def test_exempt_operator_has_no_cells(project: Path) -> None:
    """To ask for it is a mistake, and the sentence lists what has cells."""
    options = Options(operators="native_linear", rootpath=project)

    with pytest.raises(pytest.UsageError, match="which is exempt and has no cells: use attention"):
        check_operators(cast("pytest.Config", options))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--biprop-operators", "nothing"), "names 'nothing', which is not registered"),
        (("--biprop-device", "gpu"), "--biprop-device 'gpu' is unknown"),
    ],
)
def test_wrong_options_are_refused(
    project: Path, arguments: tuple[str, str], sentence: str, preloaded: Preloaded
) -> None:
    """A wrong option ends the run with one sentence."""
    done = run(project, "--collect-only", *arguments, preloaded=preloaded)

    assert sentence in done.output
    assert "Traceback" not in done.output
    assert done.status != 0


def test_other_projects_are_left_alone(tmp_path: Path) -> None:
    """Where no test asks for cells, the plugin imports neither torch nor Hypothesis."""
    (tmp_path / "test_other.py").write_text(
        "import os, sys\n\n"
        "def test_other():\n"
        "    heavy = {'torch', 'triton', 'hypothesis', 'biprop.kernels', 'biprop.strategies'}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert 'TRITON_INTERPRET' not in os.environ\n"
        "    assert 'biprop.pytest_plugin' in sys.modules\n"
    )
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    # Other plugins stay out: that of Hypothesis imports Hypothesis once it is asked to.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "biprop.pytest_plugin", str(tmp_path)],
        cwd=tmp_path,
        env=variables | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "biprop drift summary" not in done.stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "cannot be read"),
        ('{"format": "biprop-known-2"}', "another format"),
        ('{"format": "biprop-known-1", "known": [{"id": "a", "link": "x"}]}', "missing key"),
        (
            '{"format": "biprop-known-1", "known": [{"id": "a", "link": "x", "reason": "y"}]}',
            "needs a link and a reason",
        ),
        (
            '{"format": "biprop-known-1", "known": [{"id": "a", "link": "a://b", "reason": " "}]}',
            "needs a link and a reason",
        ),
    ],
)
def test_ledger_entries_must_be_complete(tmp_path: Path, text: str, sentence: str) -> None:
    """A ledger that cannot be read, or an entry without link or reason, is refused."""
    path = tmp_path / "known.json"
    path.write_text(text)

    with pytest.raises(FixtureError, match=sentence):
        read_known(path)


def test_no_ledger_means_nothing_is_known(tmp_path: Path) -> None:
    """Without a ledger no failure is known."""

    assert read_known(tmp_path / "known.json") == {}

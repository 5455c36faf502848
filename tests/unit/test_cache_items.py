"""The items of caches in tests/props: their ids, what a run prints, committed programs."""

import os
from pathlib import Path

import attrs
import pytest
from tests.preloaded import Preloaded
from tests.unit.cache_samples import PAGED, TARGET, sample_program

from biprop.fixtures.store import FIXTURES, Store
from biprop.pytest_plugin.caches import cache_cells

ROOT = Path(__file__).resolve().parents[2]


@attrs.frozen(kw_only=True)
class Run:
    """What a run of pytest left.

    Attributes:
        status: Exit status.
        output: All that it printed.
    """

    status: int
    output: str


def run(preloaded: Preloaded, project: Path, *arguments: str) -> Run:
    """Run tests/props over a project."""
    variables = {key: value for key, value in os.environ.items() if key != "CI"}
    # What the outer run has set must not decide what the inner one sets.
    for name in ("HYPOTHESIS_STORAGE_DIRECTORY", "TRITON_INTERPRET", "PYTEST_XDIST_WORKER"):
        variables.pop(name, None)
    paths = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    done = preloaded.run(
        *("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"),
        *("--rootdir", str(project), str(ROOT / "tests" / "props"), *arguments),
        cwd=project,
        env=variables | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    return Run(status=done.returncode, output=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with two committed programs: of a registered cache, and of a stranger's."""
    root = tmp_path_factory.mktemp("project")
    store = Store(root / FIXTURES)
    store.save(sample_program(reference=PAGED))
    store.save(sample_program(reference=TARGET))
    return root


def test_ids_name_cache_layout_backend_and_dtype() -> None:
    """Each of them once, so that every worker collects the same."""
    ids = [cell.id for cell in cache_cells() if cell.reference.cache == "paged"]

    assert ids == [
        f"cache-paged-{layout}-{backend}-{dtype}"
        for backend in ("torch", "triton")
        for layout in ("NHD", "HND")
        for dtype in ("float32", "bfloat16")
    ]


def test_run_tells_coverage(project: Path, preloaded: Preloaded) -> None:
    """The section at the end has the shares of a cache, and what became of committed programs."""
    names = ("--biprop-operators", "paged", "-k", "fixture or NHD-torch-float32")
    done = run(preloaded, project, "--biprop-max-examples", "12", *names)
    section = done.output.split("biprop drift summary")[1]
    (row,) = (line.split() for line in section.splitlines() if " paged " in line)

    assert done.status == 0, done.output
    assert "2 passed" in done.output
    assert "partial fork  shared evict  dirty reuse  moved decode" in section
    assert row[:6] == ["HOLDS", "paged", "NHD", "torch", "float32", "12"]
    assert all(float(share) >= 0.1 for share in row[7:11])
    assert "NOT REPRODUCED HERE  fixture-paged-decode-out-" in section
    assert "not launched  mine_py_made-decode-out-" in section


def test_other_operators_leave_caches_out(project: Path, preloaded: Preloaded) -> None:
    """Where operators are named, no cache is an item, nor an empty one in its place."""
    done = run(preloaded, project, "--collect-only", "-q", "--biprop-operators", "rms_norm")
    ids = [line for line in done.output.splitlines() if "[" in line]

    assert ids
    assert all("test_holds[rms_norm-" in line for line in ids)

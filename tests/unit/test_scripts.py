"""The scripts in ci/: what they say, what they refuse, and that no failing part is hidden."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    "ci/check", "ci/figures", "ci/gpu", "ci/props", "ci/smallest", "ci/test", ".ci/run",
]  # fmt: skip


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `PYTHON` naming this interpreter unless told otherwise."""
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run(
        [script, *arguments], env=variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Make a tree that has the scripts and the settings, and one module."""
    for name in ("ci", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "module.py").write_text('"""Say nothing."""\n')
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_can_be_run(name: str) -> None:
    """Every script is executable and explains itself without building anything."""
    done = run(ROOT / name, "--help")

    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ci/")


@pytest.mark.parametrize(
    ("name", "argument"),
    [("ci/check", "everything"), ("ci/check", "--fast"), ("ci/test", "unit")],
)
def test_wrong_argument_is_refused_in_one_sentence(name: str, argument: str) -> None:
    """An argument that a script does not know ends it with 2 before anything runs."""
    done = run(ROOT / name, argument)

    assert done.returncode == 2
    assert done.stdout == ""
    assert argument in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_part_is_hidden(copy: Path) -> None:
    """A failing part does not stop the next one, and the exit status tells of it."""
    (copy / "page.md").write_text("# One\n# Two\n")
    done = run(copy / "ci" / "check", "--here", "markdown", "lint")

    assert done.returncode == 1
    assert re.search(r"^markdown .* FAILED \(exit 1\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^lint .* passed$", done.stdout, re.MULTILINE)


def test_parts_beside_others_are_told(copy: Path) -> None:
    """What runs beside a part that takes all cores is printed whole, and none of it is hidden."""
    (copy / "page.md").write_text("# One\n# Two\n")
    # Without plugins pytest knows no `-n`, and fails at once.
    words = ("--here", "markdown", "power", "lint")
    done = run(copy / "ci" / "check", *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")

    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == [
        *("markdown", "power", "lint")
    ]
    assert re.search(r"^markdown .* FAILED \(exit 1\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^power .* FAILED \(exit \d\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^lint .* passed$", done.stdout, re.MULTILINE)
    told = done.stdout.index("page.md:2:1")
    assert done.stdout.index("\n== power") < told < done.stdout.index("\n== ci/check")


def test_versions_come_first(copy: Path) -> None:
    """The first lines name the interpreter and the packages that decide bits."""
    done = run(copy / "ci" / "check", "--here", "lint")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("== Python 3.")
    assert re.match(r"== .*\btorch \d.*\btriton \d", done.stdout.splitlines()[1])


def test_here_needs_a_python(copy: Path) -> None:
    """An interpreter that is none is refused in one sentence."""
    done = run(copy / "ci" / "props", "--here", PYTHON=str(copy / "module.py"))

    assert done.returncode == 2
    assert re.fullmatch(
        r"props: --here needs Python 3\.11 or later, and .* is none\.\n", done.stderr
    )


def test_no_python_is_said(copy: Path) -> None:
    """Where no usable Python is on PATH, the scripts say what to install, and build nothing."""
    tools = copy / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "flock"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    done = run(copy / "ci" / "props", PATH=str(tools), PYTHON="")

    assert done.returncode == 2
    assert done.stderr == (
        "props: no Python 3.11 or later is on PATH: install one, or name it in PYTHON.\n"
    )
    assert not (copy / ".venv").exists()


def test_every_requirement_is_pinned() -> None:
    """ci/constraints.txt pins each requirement of pyproject.toml exactly, within its range."""
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    wanted = [Requirement(text) for text in texts if not text.startswith("biprop[")]

    assert [str(need) for need in wanted if canonicalize_name(need.name) not in pins] == []
    assert [
        str(need)
        for need in wanted
        if not need.specifier.contains(pins[canonicalize_name(need.name)])
    ] == []

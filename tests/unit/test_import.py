"""What an import of biprop costs, and what the facade offers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import biprop

FACADE = Path(biprop.__file__)
# Modules that describe a case, and those that a parent process or a command line starts with.
MODULES_WITHOUT_TORCH = [
    "biprop",
    "biprop.case",
    "biprop.cli",
    "biprop.contract",
    "biprop.contract.probes",
    "biprop.data.recipe",
    "biprop.errors",
    "biprop.judgment",
    "biprop.operators",
    "biprop.sequence",
    "biprop.signature",
    "biprop.supervision",
    "biprop.transforms",
]


def heavy_modules_after(code: str) -> list[str]:
    """Run `code` in a new process and return which of the slow packages it imported."""
    probe = "import sys\nprint(*sorted({'hypothesis', 'torch', 'triton'} & set(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{probe}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("module", MODULES_WITHOUT_TORCH)
def test_import_brings_no_torch(module: str) -> None:
    """A module that only describes, or only starts others, imports neither torch nor Hypothesis."""

    assert heavy_modules_after(f"import {module}") == []


def test_help_brings_no_torch() -> None:
    """`python -m biprop --help` answers without importing torch."""
    code = """
import runpy, sys
sys.argv = ["biprop", "--help"]
try:
    runpy.run_module("biprop", run_name="__main__", alter_sys=True)
except SystemExit as exit:
    assert exit.code in (0, None), exit.code
"""

    assert heavy_modules_after(code) == []


@pytest.mark.parametrize("module", ["biprop.cli.searching", "biprop.cli.cache_searching"])
def test_searching_brings_no_torch(module: str) -> None:
    """The process that draws cases or programs leaves torch to its worker: it takes seconds."""
    assert heavy_modules_after(f"import {module}") == ["hypothesis"]


def test_probe_sees_torch() -> None:
    """The probe of this file does report an import of torch."""

    assert "torch" in heavy_modules_after("import torch")


@pytest.mark.parametrize("name", biprop.__all__)
def test_public_name_resolves(name: str) -> None:
    """Every public name is found in the module that the facade names."""

    assert getattr(biprop, name).__name__ == name


def test_facade_agrees_with_itself() -> None:
    """The names for type checkers, those for the run time and `__all__` are the same."""
    imported = {
        (alias.name, node.module)
        for node in ast.walk(ast.parse(FACADE.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("biprop.")
        for alias in node.names
    }

    assert imported == set(biprop._MODULE_BY_NAME.items())
    assert sorted(biprop.__all__) == sorted(biprop._MODULE_BY_NAME) == sorted(dir(biprop))


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that is not public is refused as Python does it."""

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = biprop.no_such_name

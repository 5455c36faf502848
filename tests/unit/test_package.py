"""The distributions: what is built from this tree holds all of it and can be imported."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("LICENSE", "README.md", "kernels", "pyproject.toml", "src", "strategies")


def run(*command: str, cwd: Path) -> str:
    """Run a command, fail with all that it printed, and return its standard output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution from a copy of the tree, and the wheel from that, offline."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    tree.mkdir()
    # A copy, since a build writes into its tree, and what an earlier one left would hide a gap.
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=leftovers)
        else:
            shutil.copy(source, tree / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    run(sys.executable, "-c", build, cwd=tree)
    (archive,) = folder.glob("biprop-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "..", ".", cwd=unpacked)
    (built,) = (folder / "sdist").glob("biprop-*.whl")
    return built


def test_wheel_holds_the_whole_package(wheel: Path) -> None:
    """Every file below src/biprop, those behind the two links too, is in the wheel."""
    package = ROOT / "src" / "biprop"
    folders = [package, package / "kernels", package / "strategies"]
    expected = {
        path.relative_to(package.parent).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }

    with zipfile.ZipFile(wheel) as packed:
        assert expected - set(packed.namelist()) == set()


def test_installed_wheel_imports(wheel: Path, tmp_path: Path) -> None:
    """Installed elsewhere, the kernels and strategies are imported from the wheel."""
    target = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--quiet", "--target", str(target)]
    run(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=tmp_path)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import biprop.kernels, biprop.strategies
print(biprop.kernels.__file__, biprop.strategies.__file__, len(biprop.kernels.OPERATORS))
"""
    kernels, strategies, count = run(sys.executable, "-c", code, str(target), cwd=tmp_path).split()

    assert Path(kernels) == target / "biprop" / "kernels" / "__init__.py"
    assert Path(strategies) == target / "biprop" / "strategies" / "__init__.py"
    assert int(count) > 0

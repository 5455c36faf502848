"""The benchmark of an example's stages runs, and its figures are those of every stage."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ci" / "benchmarks" / "example_time.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Import the script from its file."""
    spec = importlib.util.spec_from_file_location("example_time", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_of_every_stage_are_written(script: ModuleType, tmp_path: Path) -> None:
    """One operator at its small size: the seconds of each stage, and how often it was called."""
    out = tmp_path / "times.json"
    words = ["--targets", "rms_norm/packed", "--examples", "2", "--repeats", "1"]

    assert script.main([*words, "--out", str(out)]) == 0

    found = json.loads(out.read_text(encoding="utf-8"))
    (cell,) = found["cells"]
    assert found["format"] == script.FORMAT
    assert set(cell["seconds"]) == set(script.STAGES)
    assert all(cell["seconds"][stage] > 0 for stage in ("drawing", "values", "launching"))
    # Two watched sequences alone, and both in one launch with their neighbours.
    assert cell["kernel_calls"] == 3
    assert cell["tokens"] == 2 * cell["watched_tokens"]
    # Of one example in a set, which expands its values and its canonical side a quarter of a time.
    assert cell["set"]["layouts"] == 4
    assert set(cell["set"]["seconds"]) == set(script.STAGES)
    assert cell["set"]["judged_seconds"] > 0


def test_every_size_belongs_to_an_operator(script: ModuleType) -> None:
    """Large and small sizes name the same operators, and all of their free dimensions."""
    operators = {
        kernel.target: set(kernel.signature.free_dims)
        for kernel in script.build_registry().kernels()
    }

    for sizes in (script.LARGE, script.SMALL):
        assert {target: set(size.dims) for target, size in sizes.items()} == {
            target: operators[target] for target in script.LARGE
        }

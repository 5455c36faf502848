"""The batch variance of PyTorch's own product is found, shrunk, shown and replayed elsewhere."""

import json
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import torch
from tests.cli.commands import run_alone
from tests.preloaded import Preloaded

from biprop.bits import same_bits

TARGET = "torch.nn.functional:linear"
SIGNATURE = "input[T,K], weight[N,K] -> out[T,N]"
NONZERO_MAX = 3
# Run by `python -I -S`: neither the user's folders nor .pth files, by which a tree is installed,
# are on the path, and biprop itself is refused.
WITHOUT_BIPROP = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "biprop":
            raise ImportError("biprop is not installed here")
sys.meta_path.insert(0, Refuse())
sys.path += sys.argv[2:]
source = open(sys.argv[1]).read()
exec(compile(source, sys.argv[1], "exec"), {"__name__": "__main__"})
"""


def test_linear_is_found_shown_and_replayed(tmp_path: Path, preloaded: Preloaded) -> None:
    """One session: check, show --issue, replay from its text, show --script, run that alone.

    In bfloat16, where the product of this processor drifts in it at all; the same in float32 is the
    session of README.md, which is run too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dtype = "bfloat16" if _drifts(torch.bfloat16) else "float32"
    torch.set_num_threads(threads)
    run = partial(run_alone, preloaded=preloaded, folder=tmp_path)
    words = (
        *("--signature", SIGNATURE, "--dtype", dtype),
        *("--transforms", "T1", "--max-examples", "40", "--json"),
    )
    found = run("check", TARGET, *words, "--store", "found")

    assert (found.code, found.data["verdict"]) == (1, "DRIFTS"), found
    first = found.causes[0]
    path = tmp_path / str(first["path"])
    fixture = json.loads(path.read_text())
    assert _nonzero_count(fixture["case"]) <= NONZERO_MAX

    identity = str(first["fixture_id"])
    issue = run("show", identity, "--issue", "--store", "found")
    assert issue.code == 0
    # Another folder and process, with nothing but the text.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    allowed = ("--allow-target", TARGET)
    text = f"Hello,\n\n{issue.out}\nBye\n"
    replayed = run("replay", "-", *allowed, folder=elsewhere, text=text)
    assert replayed.code == 1
    assert replayed.out.startswith(f"FAILED  {identity[:8]}")

    script = run("show", identity, "--script", "--store", "found")
    assert script.code == 0
    difference = fixture["expect"]["mismatches"][0]["first"]
    (elsewhere / "finding.py").write_text(script.out)
    alone = _run_without_biprop(elsewhere / "finding.py")
    assert (alone.returncode, alone.stderr) == (1, "")
    assert f"canonical    {difference['canonical_bits']}" in alone.stdout
    assert f"transformed  {difference['transformed_bits']}" in alone.stdout


def test_interpreter_without_biprop_has_none(tmp_path: Path) -> None:
    """What the script above runs in really refuses to import biprop, and has torch."""
    (tmp_path / "probe.py").write_text(
        "import importlib.util, torch\n"
        "try:\n    import biprop\nexcept ImportError as error:\n    print(error)\n"
    )

    assert _run_without_biprop(tmp_path / "probe.py").stdout == "biprop is not installed here\n"


def _drifts(dtype: torch.dtype) -> bool:
    """Tell, as by hand, whether a row alone and the same row in a batch differ, on one thread.

    Some processors multiply bfloat16 in one way whatever the number of rows.
    """
    generator = torch.Generator().manual_seed(0)
    for width in (64, 2050, 4096, 8192):
        half, side = (torch.randn(count, width // 2, generator=generator) for count in (8, 5))
        # Exact results are zero, so that what is left is the rounding of the sums.
        rows = torch.cat([half, -half], 1).to(dtype)
        weight = torch.cat([side, side], 1).to(dtype)
        for count in (2, 3, 8):
            alone = torch.nn.functional.linear(rows[:1].clone(), weight)
            together = torch.nn.functional.linear(rows[:count].clone(), weight)
            if not bool(same_bits(alone, together[:1]).all()):
                return True
    return False


def _run_without_biprop(script: Path) -> "subprocess.CompletedProcess[str]":
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", WITHOUT_BIPROP, str(script), *paths],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _nonzero_count(case: dict[str, dict[str, dict[str, object]]]) -> int:
    """Count the values written out; tensors of one kind throughout count as none."""
    count = 0
    for recipe in (*case["data"].values(), *case.get("policy_state", {}).values()):
        assert recipe["kind"] in {"zeros", "ones", "explicit"}
        points = recipe.get("points", [])
        assert isinstance(points, list)
        count += len(points)
    return count

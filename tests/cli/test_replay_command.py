"""`biprop replay` and `biprop keep`: what becomes of a finding, and what is refused unread."""

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from tests.cli.commands import Run, one_sentence
from tests.cli.targets import MINE
from tests.unit.sample_fixtures import sample

from biprop.fixtures.load import fixture_from_data
from biprop.fixtures.parse import parse_json
from biprop.fixtures.records import FORMAT, fixture_text, make_fixture
from biprop.judgment import Outcome
from biprop.operators import KernelReference
from biprop.reports.issue import render_issue

TARGET = "mine.py:centre_wrongly"
ALLOWED = ("--allow-target", TARGET)
SIGNATURE = "x[T,H], weight[H] -> y[T,H]"
# The same name, mended, and broken otherwise.
MENDED = "def centre_wrongly(x, weight):\n    return x * weight\n"
WORSE = (
    "def centre_wrongly(x, weight):\n"
    "    if x.shape[0] > 1:\n"
    "        raise RuntimeError('\\x1b[31mtoo many rows')\n"
    "    return x * weight\n"
)
# Run by an interpreter of its own: a fixture is refused on standard input before anything is
# imported for it.
PROBE = """
import sys
from biprop.cli import main
try:
    main(["replay", "-"])
finally:
    assert "torch" not in sys.modules
"""


@pytest.fixture
def found(folder: Path, biprop: Run) -> Path:
    """Return the fixture of a broken kernel, in a folder where the kernel is not."""
    (folder / "mine.py").write_text(MINE)
    words = ("--transforms", "T1", "--max-examples", "1", "--json")
    result = biprop("check", TARGET, "--signature", SIGNATURE, *words)
    path = folder / str(result.causes[0]["path"])
    (folder / "mine.py").unlink()
    return path


@pytest.fixture
def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in another folder: the worker has not loaded a file of it."""
    there = folder / "elsewhere"
    there.mkdir()
    monkeypatch.chdir(there)
    return there


class TestStatus:
    """What became of a finding."""

    def test_same_cause_is_failed(self, found: Path, elsewhere: Path, biprop: Run) -> None:
        """FAILED, exit code 1, both bit patterns; as JSON too; each claim of the proof holds."""
        (elsewhere / "mine.py").write_text(MINE)

        result = biprop("replay", str(found), *ALLOWED)
        verified = biprop("replay", str(found), *ALLOWED, "--verify", "--json")

        first = json.loads(found.read_text())["expect"]["mismatches"][0]["first"]
        assert result.code == 1
        assert result.out.startswith("FAILED")
        assert first["canonical_bits"] in result.out
        assert first["transformed_bits"] in result.out
        assert (verified.code, verified.data["status"]) == (1, "FAILED")
        claims = verified.data["verified"]
        assert isinstance(claims, list)
        assert claims
        assert all(claim["confirmed"] for claim in claims)

    def test_mended_kernel_is_fixed(self, found: Path, elsewhere: Path, biprop: Run) -> None:
        """FIXED, exit code 0, on the machine of the record."""
        (elsewhere / "mine.py").write_text(MENDED)

        result = biprop("replay", str(found), *ALLOWED)

        assert (result.code, result.out.split("  ")[0]) == (0, "FIXED")

    def test_holding_on_another_machine_is_not_reproduced(
        self, found: Path, elsewhere: Path, biprop: Run
    ) -> None:
        """NOT REPRODUCED HERE, exit code 0, and what differs."""
        (elsewhere / "mine.py").write_text(MENDED)
        data = json.loads(found.read_text())
        data["provenance"]["arch_key"] = "cuda-sm90"
        (elsewhere / "other.json").write_text(json.dumps(data))

        result = biprop("replay", "other.json", *ALLOWED)

        assert (result.code, result.out.split("  ")[0]) == (0, "NOT REPRODUCED HERE")
        assert "arch key was cuda-sm90" in result.out

    def test_another_cause_is_different(self, found: Path, elsewhere: Path, biprop: Run) -> None:
        """DIFFERENT, exit code 1, without the control codes of what the target says."""
        (elsewhere / "mine.py").write_text(WORSE)

        result = biprop("replay", str(found), *ALLOWED)

        assert (result.code, result.out.split("  ")[0]) == (1, "DIFFERENT")
        assert "too many rows" in result.out
        assert "\x1b" not in result.out

    def test_bisection_skips_what_cannot_run(
        self, found: Path, elsewhere: Path, biprop: Run
    ) -> None:
        """125 where the target is missing, for `git bisect run`; 2 without --bisect."""
        assert not list(elsewhere.iterdir())

        assert biprop("replay", str(found), *ALLOWED, "--bisect").code == 125
        assert biprop("replay", "missing.json", "--bisect").code == 125
        assert "names no file" in one_sentence(biprop("replay", str(found), *ALLOWED))

    def test_issue_with_several_fixtures_replays_each(
        self, found: Path, elsewhere: Path, biprop: Run
    ) -> None:
        """The worst of them decides the exit code, and --json lists all."""
        (elsewhere / "mine.py").write_text(MENDED)
        (elsewhere / "twin.py").write_text(MINE)
        mended = fixture_from_data(parse_json(found.read_text()))
        twin = "twin.py:centre_wrongly"
        broken = make_fixture(
            reference=attrs.evolve(mended.reference, operator=twin, target=twin),
            case=mended.case,
            outcome=Outcome(
                verdict=mended.expect.verdict,
                cause=mended.expect.cause,
                mismatches=mended.expect.mismatches,
            ),
            proof=mended.proof,
            provenance=mended.provenance,
        )
        first = biprop("show", str(found), "--issue").out
        text = f"Two of them.\n\n{first}\nAnd:\n\n{render_issue(broken)}"
        allowed = (*ALLOWED, "--allow-target", twin)

        result = biprop("replay", "-", *allowed, text=text)
        as_json = biprop("replay", "-", *allowed, "--json", text=text)

        assert result.code == 1
        assert [line.split("  ")[0] for line in result.out.splitlines() if line[0] != " "] == [
            "FIXED",
            "FAILED",
        ]
        replays = as_json.data["replays"]
        assert isinstance(replays, list)
        assert [replayed["status"] for replayed in replays] == ["FIXED", "FAILED"]

    def test_kept_fixture_lies_with_the_committed_ones(
        self, found: Path, folder: Path, biprop: Run
    ) -> None:
        """`biprop keep ID` copies it, and its id is found there when the store is empty."""
        identity = json.loads(found.read_text())["id"]

        kept = biprop("keep", identity)
        found.unlink()

        assert kept.code == 0
        (path,) = (folder / ".hypothesis" / "fixtures").glob("*.json")
        assert str(path.relative_to(folder)) in kept.out
        assert identity[:8] in biprop("show", identity).out


def refused() -> dict[str, tuple[str, str]]:
    """Return texts that must not run, and what the refusal says."""
    text = fixture_text(sample())
    huge = sample(case=attrs.evolve(sample().case, dims={"K": 1 << 24, "N": 1 << 24}))
    stranger = text.replace("torch.nn.functional:linear", "this:s")
    return {
        "empty": ("", "is empty"),
        "blank": ("\n \n", "is empty"),
        "prose": ("Hello, it fails for me.", "holds no fixture"),
        "other-json": ('{"name": "biprop"}', "has the format none"),
        "list": ("[]", "object"),
        "truncated": (text[: len(text) // 2], "is no valid JSON"),
        "newer-format": (text.replace(FORMAT, "biprop-fixture-99"), "biprop-fixture-99"),
        "huge-size": (fixture_text(huge), "elements"),
        "huge-number": (text.replace('"K": 3', f'"K": {"9" * 50}', 1), "digits"),
        "deep": ("[" * 100_000, "deep"),
        "long": ("{" + " " * (1 << 20), "longer than"),
        "not-allowed": (text, "--allow-target"),
        "other-id": (stranger, "id does not belong"),
    }


class TestRefused:
    """Whatever a stranger sends: one sentence, exit code 2, and nothing imported."""

    @pytest.mark.parametrize("name", refused())
    def test_each_is_one_sentence(self, name: str, biprop: Run, folder: Path) -> None:
        """On standard input, and as a file alike."""
        text, fragment = refused()[name]
        (folder / "given.json").write_text(text)

        assert fragment in one_sentence(biprop("replay", "-", text=text))
        assert one_sentence(biprop("replay", "given.json"))

    def test_unknown_operator_is_one_sentence(self, biprop: Run) -> None:
        """A registered operator needs no leave, but must exist."""
        unknown = KernelReference(
            operator="no_such",
            target="no_such/packed",
            backend="torch",
            signature=sample().signature,
        )

        sentence = one_sentence(biprop("replay", "-", text=fixture_text(sample(reference=unknown))))

        assert "no_such" in sentence

    def test_target_that_is_not_allowed_is_not_imported(self, folder: Path) -> None:
        """Neither the target nor torch is imported for a fixture whose target is not chosen."""
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            input=fixture_text(sample()),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 2, done.stderr
        assert "--allow-target" in done.stderr
        assert done.stderr.count("\n") == 1

"""`biprop cache` as people use it, and `replay`, `show` and `keep` of what it found."""

from functools import partial
from pathlib import Path

import pytest
from tests.cli.commands import Result, Run, one_sentence
from tests.preloaded import Preloaded
from tests.unit.cache_samples import PAGED, PROVENANCE, sample_program

from biprop.data.recipe import Recipe
from biprop.fixtures.programs import ProgramProof, make_program_fixture
from biprop.fixtures.store import Store
from biprop.judgment import Verdict
from biprop.kvcache.records import (
    Allocate,
    Append,
    CacheReference,
    Evict,
    Fork,
    Part,
    Program,
    ProgramCause,
    ProgramDifference,
    ProgramOutcome,
)
from biprop.kvcache.shape import CacheShape
from biprop.supervision import Child
from biprop.supervision.programs import SupervisedPrograms

# Caches of a user, who needs torch and no biprop: a healthy one, and two that are not.
MINE = """
import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Cache:
    def __init__(self, shape, device):
        self.shape, self.storage, self.device = shape, DTYPES[shape.storage], device
        self.k, self.v = {}, {}

    def allocate(self, sequence):
        sizes = (0, self.shape.heads, self.shape.width)
        for side in (self.k, self.v):
            side[sequence] = torch.zeros(sizes, dtype=self.storage, device=self.device)

    def append(self, sequences, k, v, offsets):
        ends = offsets.tolist()
        for name, first, last in zip(sequences, ends, ends[1:]):
            self.k[name] = torch.cat([self.k[name], k[first:last].to(self.storage)])
            self.v[name] = torch.cat([self.v[name], v[first:last].to(self.storage)])

    def attend(self, sequences, q, offsets):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
        ends = offsets.tolist()
        for name, first, last in zip(sequences, ends, ends[1:]):
            for row in range(first, last):
                seen = len(self.k[name]) - (last - row) + 1
                out[row], lse[row] = self.one(q[row], self.k[name][:seen], self.v[name][:seen])
        return out, lse

    def one(self, q, k, v):
        group = self.shape.query_heads // self.shape.heads
        k, v = (side.float().repeat_interleave(group, 1) for side in (k, v))
        scores = (q.float() * k).sum(-1) * self.shape.width**-0.5
        lse = scores.logsumexp(0)
        return ((scores - lse).exp()[..., None] * v).sum(0).to(q.dtype), lse

    def decode(self, sequences, q, k, v):
        offsets = torch.arange(len(sequences) + 1, dtype=torch.int32)
        self.append(sequences, k, v, offsets)
        return self.attend(sequences, q, offsets)

    def fork(self, sequence, parent, at):
        self.k[sequence], self.v[sequence] = self.k[parent][:at], self.v[parent][:at]

    def read(self, sequence):
        return self.k[sequence], self.v[sequence]

    def length(self, sequence):
        return len(self.k[sequence])

    def evict(self, sequence, keep):
        self.k[sequence], self.v[sequence] = self.k[sequence][:keep], self.v[sequence][:keep]

    def free(self, sequence):
        del self.k[sequence], self.v[sequence]

    def defragment(self):
        pass

    def poison(self, fill):
        return False


class Leaky(Cache):
    def evict(self, sequence, keep):
        self.k[sequence][keep:] = 0  # A fork looks at the same memory.
        super().evict(sequence, keep)


class Tired(Cache):
    def defragment(self):
        raise RuntimeError("\\x1b[31mnot now")


def healthy(shape, device):
    return Cache(shape, device)


def leaky(shape, device):
    return Leaky(shape, device)


def tired(shape, device):
    return Tired(shape, device)


def none(shape, device):
    return None
"""
# Runs a script where biprop cannot be imported, and again after the cache was mended.
TWICE = """
import pathlib, runpy, sys

sys.modules["biprop"] = None


def shows():
    try:
        runpy.run_path("shows.py", run_name="__main__")
    except SystemExit as ended:
        print("exit", ended.code)


shows()
print("MENDED")
mine = pathlib.Path("mine.py")
mine.write_text(mine.read_text().replace("[keep:] = 0", "[keep:]"))
shows()
"""
LEAKY = "mine.py:leaky"
SHORT = ("--max-programs", "9", "--steps", "12")
# What the search shrinks the leaky cache's finding to.
PROGRAM = Program(
    shape=CacheShape(block_size=1, block_count=2),
    ops=(
        Allocate(sequence="s0"),
        Append(parts=(Part(sequence="s0", count=1),)),
        Fork(sequence="s1", parent="s0", at=1),
        Evict(sequence="s0", keep=0),
    ),
    data={"q": Recipe(kind="zeros"), "k": Recipe(kind="ones"), "v": Recipe(kind="zeros")},
)
CAUSE = ProgramCause(verdict=Verdict.DRIFTS, check="untouched", output="k")
DIFFERENCE = ProgramDifference(
    sequence="s1",
    token=0,
    coordinate=(0, 0),
    expected_bits="0x3f800000",
    got_bits="0x00000000",
    expected_value="1.0",
    got_value="0.0",
    elements=1,
    elements_compared=1,
    max_abs_error=1.0,
    dtype="float32",
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    """Write the caches of a user."""
    (folder / "mine.py").write_text(MINE)


@pytest.fixture
def stored(folder: Path) -> str:
    """Store the finding of the leaky cache, and return its id."""
    fixture = make_program_fixture(
        reference=CacheReference(cache=LEAKY, target=LEAKY),
        program=PROGRAM,
        outcome=ProgramOutcome(
            verdict=Verdict.DRIFTS, cause=CAUSE, step=3, difference=DIFFERENCE, repeats=5
        ),
        proof=ProgramProof(complete=True, runs=50),
        provenance=PROVENANCE,
    )
    Store(folder / ".hypothesis" / "found").save(fixture)
    return fixture.id[:8]


@pytest.fixture
def run(biprop: Run, worker: Child, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process, with the worker that all share."""
    monkeypatch.setattr("biprop.cli.cache_searching.Child", lambda **_: worker)

    def judge(*arguments: object, is_deterministic: bool, **words: object) -> SupervisedPrograms:
        assert not is_deterministic
        return SupervisedPrograms(*arguments, child=worker, **words)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr("biprop.cli.replay.SupervisedPrograms", partial(judge))
    return biprop


def found(result: Result) -> tuple[str, ...]:
    """Return the words of the command that replays the first finding."""
    line = next(line for line in result.out.splitlines() if line.startswith("biprop replay"))
    return tuple(line.split()[1:])


class TestSearch:
    """Searching a cache of one's own, and a registered one."""

    def test_healthy_cache_holds(self, run: Run) -> None:
        """Exit code 0, the verdict in the last line, shares of every situation above."""
        result = run("cache", "mine.py:healthy", *SHORT)

        assert result.code == 0, result.out
        assert result.verdict == "HOLDS"
        assert "decode after defragment" in result.out
        assert "Not claimed" in result.out
        assert not result.err

    def test_registered_cache_tells_what_ran(self, run: Run) -> None:
        """As JSON: requested and actual backend, layout, dtypes and shares."""
        result = run(
            *("cache", "--layout", "HND", "--dtype", "bf16", "--storage-dtype", "bf16", "--json"),
            *SHORT,
        )

        assert result.code == 0, result.out
        data = result.data
        assert (data["cache"], data["backend"], data["actual_backend"]) == (
            *("paged", "torch", "torch"),
        )
        assert (data["layout"], data["dtype"], data["storage"]) == ("HND", "bfloat16", "bfloat16")
        assert data["programs"] == 9
        coverage = data["coverage"]
        assert isinstance(coverage, dict)
        assert min(coverage.values()) >= 0.1

    def test_too_few_programs_are_vacuous(self, run: Run) -> None:
        """One short program reaches too little for a verdict: exit code 3."""
        result = run("cache", "mine.py:healthy", "--max-programs", "1", "--steps", "1")

        assert result.code == 3, result.out
        assert result.verdict == "VACUOUS"

    def test_cache_that_raises_crashes(self, run: Run) -> None:
        """What it says is told without its control codes, and the program is short."""
        result = run("cache", "mine.py:tired", *SHORT)

        assert result.code == 1, result.err
        assert result.verdict == "CRASHES"
        assert "not now" in result.out
        assert "\x1b" not in result.out
        assert "  program    defragment\n" in result.out


class TestFinding:
    """What becomes of a finding: stored, shown, replayed, kept."""

    def test_finding_replays_as_it_was_found(self, run: Run, folder: Path) -> None:
        """The command of the report fails while the defect is there, and not after."""
        result = run("cache", "mine.py:leaky", *SHORT)
        words = found(result)

        assert result.code == 1, result.out
        assert result.verdict == "DRIFTS"
        assert list((folder / ".hypothesis" / "found").glob("mine_py_leaky-untouched-*.json"))
        again = run(*words, "--verify")
        assert again.code == 1
        assert again.out.startswith("FAILED")
        assert "REFUTED" not in again.out
        refused = run(*words[:2])
        assert "--allow-target 'mine.py:leaky'" in one_sentence(refused)

    def test_finding_is_shown_and_read_back(self, run: Run, stored: str) -> None:
        """In words, as an issue that `replay -` takes, and as JSON; and it can be kept."""
        shown = run("show", stored)
        issue = run("show", stored, "--issue")
        again = run("replay", "-", "--allow-target", LEAKY, "--json", text=issue.out)
        kept = run("keep", stored)

        assert shown.code == issue.code == kept.code == 0
        assert "fork s1 = s0[:1]; evict s0[0:]" in shown.out
        assert "importance ratio" in issue.out
        assert again.code == 1
        assert again.data["status"] == "FAILED"
        assert ".hypothesis/fixtures/mine_py_leaky-untouched-" in kept.out

    def test_script_shows_it_without_biprop(
        self, run: Run, folder: Path, stored: str, preloaded: Preloaded
    ) -> None:
        """Both bit patterns and exit 1 while it fails, exit 0 once it is mended."""
        script = run("show", stored, "--script")
        (folder / "shows.py").write_text(script.out)
        (folder / "alone.py").write_text(TWICE)
        done = preloaded.run("alone.py", cwd=folder)
        failing, mended = done.stdout.split("MENDED")

        assert "expected     0x3f800000" in failing
        assert "got          0x00000000" in failing
        assert "exit 1" in failing
        assert "exit 0" in mended, done.stderr

    def test_registered_cache_has_no_script(self, run: Run, folder: Path) -> None:
        """Biprop's own caches cannot do without it, which one sentence says."""
        fixture = sample_program(reference=PAGED)
        Store(folder / ".hypothesis" / "found").save(fixture)

        assert "--issue" in one_sentence(run("show", fixture.id, "--script"))

    def test_registered_cache_replays_without_leave(self, run: Run, folder: Path) -> None:
        """What holds by now is fixed, or was not seen here at all: exit code 0."""
        fixture = sample_program(reference=PAGED)
        Store(folder / ".hypothesis" / "found").save(fixture)
        result = run("replay", fixture.id[:8])

        assert result.code == 0, result.err
        assert result.out.startswith("NOT REPRODUCED HERE")
        assert "HOLDS, 4 operations" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "No cache 'nothing' is registered"),
        (("paged", "--backend", "metal"), "has no backend 'metal'"),
        (("mine.py:healthy", "--backend", "torch"), "--backend chooses"),
        (("mine.py:absent",), "has no name 'absent'"),
        (("gone.py:healthy",), "names no file"),
        (("mine.py:none",), "returned NoneType, which has no allocate"),
        (("paged", "--dtype", "int8"), "--dtype 'int8' is unknown"),
        (("paged", "--storage-dtype", "int8"), "--storage-dtype 'int8' is unknown"),
        (("paged", "--dtype", "bf16", "--storage-dtype", "fp32"), "no narrower"),
        (("paged", "--device", "tpu"), "--device 'tpu' is unknown"),
    ],
)
def test_wrong_use_is_refused(run: Run, arguments: tuple[str, ...], words: str) -> None:
    """In one sentence, with exit code 2."""

    assert words in one_sentence(run("cache", *arguments))

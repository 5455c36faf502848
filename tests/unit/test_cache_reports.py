"""Reports about programs: what a finding, a search, a replay, an issue and a script say."""

import ast

import attrs
import pytest
from tests.unit.cache_samples import DRIFT, PAGED, PROGRAM, TARGET, held, sample_program, violated

from biprop.data.recipe import Recipe
from biprop.errors import UnsupportedError
from biprop.fixtures.program_replay import ProgramReplayed
from biprop.fixtures.programs import any_fixtures_in
from biprop.judgment import Verdict
from biprop.kvcache.records import (
    CHECKS,
    Allocate,
    Append,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Part,
    Poison,
    ProgramCause,
    Read,
    Rescore,
)
from biprop.reports.program_records import CacheReport, ProgramFinding
from biprop.reports.program_script import render_program_script
from biprop.reports.programs import (
    CHECKS_IN_WORDS,
    op_in_words,
    render_cache_check,
    render_cache_table,
    render_program_finding,
    render_program_fixture,
    render_program_issue,
    render_program_replay,
)

FINDING = ProgramFinding(
    fixture=sample_program(), outcome=violated(), count=3, found_after=2, path="a/b.json"
)


def report(verdict: Verdict = Verdict.HOLDS, *findings: ProgramFinding) -> CacheReport:
    """Return a report of ten programs."""
    return CacheReport(
        reference=PAGED,
        layout="NHD",
        dtype="bfloat16",
        device="cpu",
        verdict=verdict,
        findings=findings,
        programs=10,
        ops=240,
        comparisons=900,
        coverage={"partial-block fork": 5, "dirty reuse": 8},
        smoke={"short": Verdict.HOLDS},
        powered=9,
        power_share=0.25,
        actual_backend="triton-interpreter",
    )


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Allocate(sequence="s0"), "allocate s0"),
        (
            Append(parts=(Part(sequence="s0", count=5), Part(sequence="s1", count=0))),
            "append s0 +5, s1 +0",
        ),
        (Decode(sequences=("s1", "s0")), "decode s1, s0"),
        (Fork(sequence="s1", parent="s0", at=4), "fork s1 = s0[:4]"),
        (Read(sequence="s0"), "read s0"),
        (Evict(sequence="s0", keep=2), "evict s0[2:]"),
        (Free(sequence="s0"), "free s0"),
        (Defragment(), "defragment"),
        (Poison(fill="nan"), "poison nan"),
        (Rescore(sequence="s0"), "rescore s0"),
        (Generate(sequence="s0", count=3), "generate s0 +3"),
    ],
)
def test_operations_have_words(op: Op, words: str) -> None:
    """Short ones, as a program of them stands in a line."""

    assert op_in_words(op) == words


def test_every_check_has_words() -> None:
    """What was promised is said of each."""

    assert set(CHECKS_IN_WORDS) == set(CHECKS)


def test_finding_says_what_failed_and_how_to_replay_it() -> None:
    """In at most 25 lines, the command last."""
    lines = render_program_finding(FINDING).splitlines()
    text = "\n".join(lines)

    assert lines[0].startswith("DRIFTS mine.py:made decode out float32 NHD target, id ")
    assert "append s0 +5; fork s1 = s0[:4]; decode s1, s0" in text
    assert "operation 4 of 4, decode s1, s0" in text
    assert "out[1,0] of token 5 of s0, 1 ULP apart" in text
    assert "0x3f800000" in text
    assert "0x3f800001" in text
    assert "first seen in program 2, 3 programs" in text
    assert lines[-1] == f"biprop replay {FINDING.fixture.id[:8]} --allow-target mine.py:made"
    assert len(lines) <= 25


def test_program_with_a_vocabulary_says_what_makes_its_tokens() -> None:
    """Its weights are normal unless a recipe says otherwise."""
    program = attrs.evolve(PROGRAM, vocabulary=7, data={"embedding": Recipe(kind="wide")})
    text = render_program_fixture(sample_program(program=program))

    assert "vocabulary 7" in text
    assert "small model with normal weights; seed 7; embedding wide" in text


def test_long_program_is_cut() -> None:
    """A program that could not be made small does not fill the terminal."""
    ops = tuple(Allocate(sequence=f"s{number}") for number in range(400))
    fixture = sample_program(program=attrs.evolve(PROGRAM, ops=ops))

    assert len(render_program_fixture(fixture).splitlines()) <= 25


def test_strange_texts_are_printed_plainly() -> None:
    """Control codes of a message reach no terminal."""
    crash = ProgramCause(verdict=Verdict.CRASHES)
    text = render_program_fixture(sample_program(cause=crash, message="\x1b[31mred\x07"))

    assert "\x1b" not in text
    assert "red" in text


def test_check_ends_with_the_verdict() -> None:
    """Coverage shares, counts and power come before it."""
    text = render_cache_check(report())

    assert text.splitlines()[-1] == "HOLDS  paged NHD triton-interpreter bfloat16 on cpu"
    assert "partial-block fork" in text
    assert "share 0.50" in text
    assert "smoke" in text
    assert "10 programs, 240 operations, 900 comparisons" in text
    assert "Not claimed" in text


def test_table_has_a_row_a_cache_with_its_shares() -> None:
    """Violations come first."""
    text = render_cache_table([report(), report(Verdict.DRIFTS, FINDING)])
    rows = [line.split() for line in text.splitlines()]

    assert [row[0] for row in rows] == ["verdict", "DRIFTS", "HOLDS"]
    assert rows[2][5:11] == ["10", "240", "0.50", "0.00", "0.80", "0.00"]
    assert FINDING.fixture.id[:8] in rows[1]


def test_replay_begins_with_its_status() -> None:
    """And shows both bit patterns of what it saw."""
    failed = ProgramReplayed(
        fixture=sample_program(), status="FAILED", exit_code=1, outcome=violated()
    )
    fixed = attrs.evolve(failed, status="FIXED", exit_code=0, outcome=held(PROGRAM))

    assert render_program_replay(failed).startswith("FAILED  ")
    assert "0x3f800001" in render_program_replay(failed)
    assert render_program_replay(fixed).startswith("FIXED  ")
    assert "HOLDS, 4 operations" in render_program_replay(fixed)


def test_issue_reads_back_as_the_fixture() -> None:
    """Whoever has the text of the issue can replay it."""
    text = render_program_issue(sample_program())

    assert any_fixtures_in(text) == (sample_program(),)
    assert text.startswith("**DRIFTS**: `mine.py:made`, check `decode`, output `out`")
    assert "biprop replay - --allow-target mine.py:made < issue.md" in text
    assert "importance ratio" in text


class TestScript:
    """The stand-alone script; `tests/cli/test_cache.py` runs one."""

    def test_script_is_python_that_imports_no_biprop(self) -> None:
        """Of imports there are torch, the standard library, and the target."""
        text = render_program_script(sample_program())
        names = {
            alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import)
            for alias in node.names
        }

        assert names == {"importlib.util", "sys", "torch", "types"}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"reference": PAGED}, "part of biprop"),
            ({"reference": attrs.evolve(TARGET, attention="attention")}, "operator attention"),
            ({"program": attrs.evolve(PROGRAM, vocabulary=7, data={})}, "small model"),
            (
                {"cause": attrs.evolve(DRIFT, verdict=Verdict.INACCURATE, check="accuracy")},
                "tolerance",
            ),
            ({"cause": attrs.evolve(DRIFT, check="input", output="")}, "without it does not show"),
            (
                {
                    "cause": ProgramCause(verdict=Verdict.CRASHES),
                    "message": "OutputError: The cache returned int for out of attend.",
                },
                "The cache returned int",
            ),
            (
                {
                    "cause": ProgramCause(verdict=Verdict.CRASHES),
                    "message": "The cache ended the process with exit status 0 in stage 'program'.",
                },
                "exit status 0",
            ),
            (
                {
                    "program": attrs.evolve(
                        PROGRAM,
                        shape=attrs.evolve(PROGRAM.shape, width=256, block_count=64),
                        ops=(
                            Allocate(sequence="s0"),
                            Append(parts=(Part(sequence="s0", count=200),)),
                        ),
                        data={"q": Recipe(kind="normal")},
                    )
                },
                "more than 20000 values",
            ),
        ],
    )
    def test_what_no_script_can_show_is_refused(
        self, changes: dict[str, object], words: str
    ) -> None:
        """With the advice to use the issue."""
        fixture = sample_program(**changes)  # type: ignore[arg-type]  # as each case says

        with pytest.raises(UnsupportedError, match=words) as raised:
            render_program_script(fixture)
        assert "--issue" in str(raised.value)

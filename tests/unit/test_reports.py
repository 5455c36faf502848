"""Reports: text, Markdown for issues, scripts that need no biprop, records for machines."""

import json
import re
from pathlib import Path

import attrs
import jsonschema
import pytest
from tests.preloaded import Preloaded
from tests.unit.sample_fixtures import DRIFT, outcome, sample

from biprop.case import Case, Dtype, TransformData
from biprop.data.recipe import Point, Recipe
from biprop.errors import UnsupportedError
from biprop.fixtures.programs import any_fixtures_in
from biprop.fixtures.records import Fixture, make_fixture
from biprop.fixtures.replay import replay
from biprop.judgment import Cause, Proof, Verdict
from biprop.operators import Kernel, KernelReference
from biprop.reports.drift import checked_object, drift_lines, drift_records, drift_schema
from biprop.reports.issue import render_issue
from biprop.reports.records import CellReport, ClassCount, Finding
from biprop.reports.script import render_script
from biprop.reports.text import (
    first_difference_lines,
    render_cells,
    render_check,
    render_finding,
    render_fixture,
    render_replay,
)
from biprop.reports.words import case_in_words, place_in_words, ulps_between, value_in_words
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature
from biprop.supervision.in_process import InProcessJudge


def cell(*, verdict: Verdict = Verdict.DRIFTS, examples: int = 20, rejected: int = 0) -> CellReport:
    """Return the report of a cell, with one finding where it is violated."""
    found = (Finding(fixture=sample(), outcome=outcome(), count=3, path="found/x.json"),)
    return CellReport(
        reference=sample().reference,
        dtype="float32",
        direction="forward",
        device="cpu",
        verdict=verdict,
        findings=found if verdict.is_violation else (),
        examples=examples,
        rejected=rejected,
        launches=100,
        classes={
            "T1": ClassCount(examples=10, powered=9, vacuous=1),
            "T7": ClassCount(reason="there is no cache"),
        },
        power_kind="order",
        power_share=0.5,
        seconds=1.25,
        seed=7,
    )


class TestText:
    """Plain text."""

    def test_finding_ends_with_one_command_and_fits_a_screen(self) -> None:
        """At most 25 lines: verdict, transform, case, first difference, and so on, command."""
        lines = render_finding(cell().findings[0], chain_index=2).splitlines()

        assert len(lines) <= 25
        assert lines[0].startswith("DRIFTS")
        order = ["transform", "case", "data", "first", "differ", "needed", "chain", "where"]
        starts = [
            next(i for i, line in enumerate(lines) if line.split()[0] == word) for word in order
        ]
        assert starts == sorted(starts)
        assert lines[-1].startswith("biprop replay ")
        assert "--allow-target torch.nn.functional:linear" in lines[-1]

    def test_finding_shows_both_patterns_values_and_the_distance(self) -> None:
        """Bits, values and ULP stand in it."""
        text = render_fixture(sample())

        assert "0x39800000" in text
        assert "0x00000000" in text
        assert f"{0x39800000} ULP apart" in text
        assert "[K=0]=4096, [K=1]=-4096, [K=2]=2^-12" in text

    def test_finding_says_what_is_needed(self) -> None:
        """The proof is told in words."""
        text = render_fixture(sample())

        assert "K=3 (1 and 2 pass)" in text
        assert "without each of AddNeighbours, input[K=2] it passes" in text
        assert "free" in text

    def test_text_holds_no_control_codes(self) -> None:
        """A stranger's words cannot drive the reader's terminal."""
        text = render_fixture(sample(message="\x1b]0;owned\x07 \u202e\r\nx"))

        assert all(letter == "\n" or (letter.isascii() and letter.isprintable()) for letter in text)

    def test_check_ends_with_its_verdict(self) -> None:
        """Counts by class and what was not applicable stand before it."""
        text = render_check(cell())

        assert text.splitlines()[-1].startswith("DRIFTS")
        assert "9 of 10 examples with power, 1 vacuous" in text
        assert "not applicable: there is no cache" in text

    def test_green_report_says_what_is_not_claimed(self) -> None:
        """HOLDS is about one device and one operator."""
        assert "Not claimed" in render_check(cell(verdict=Verdict.HOLDS))
        assert "Not claimed" not in render_check(cell())

    def test_table_of_cells_shows_violations_first(self) -> None:
        """One row a cell."""
        lines = render_cells([cell(verdict=Verdict.HOLDS), cell()]).splitlines()

        assert len(lines) == 3
        assert lines[1].startswith("DRIFTS")
        assert lines[2].startswith("HOLDS")

    def test_replay_that_may_not_run_tells_the_option_in_full(self) -> None:
        """The first word is the status, and the sentence is not cut."""
        done = replay(sample(), lambda _: pytest.fail("opened"))
        text = render_replay(done)

        assert text.startswith("ERROR")
        assert "--allow-target" in text
        assert "trust it." in text

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (4096.0, "4096"),
            (-(2.0**-12), "-2^-12"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (2.0**40, "2^40"),
        ],
    )
    def test_values_read_as_people_write_them(self, value: float, words: str) -> None:
        """Powers of two are powers of two."""
        assert value_in_words(value) == words

    @pytest.mark.parametrize(
        ("canonical", "transformed", "dtype", "ulps"),
        [
            ("0x3f80", "0x3f81", "bfloat16", 1),
            ("0x0000", "0x8000", "bfloat16", 0),
            ("0x8001", "0x0001", "float16", 2),
            ("0x7fc0", "0x3f80", "bfloat16", None),
            ("0x7f800000", "0x7f7fffff", "float32", 1),
            ("0x01", "0x02", "int8", None),
        ],
    )
    def test_ulps_are_counted_over_zero(
        self, canonical: str, transformed: str, dtype: str, ulps: int | None
    ) -> None:
        """Both zeros lie at one place; NaN lies nowhere."""
        first = attrs.evolve(
            outcome().mismatches[0].first, canonical_bits=canonical, transformed_bits=transformed
        )

        assert ulps_between(first, dtype) == ulps


@pytest.mark.parametrize(
    ("verdict", "examples", "rejected", "code"),
    [
        (Verdict.HOLDS, 20, 0, 0),
        (Verdict.DRIFTS, 20, 20, 1),
        (Verdict.CRASHES, 20, 0, 1),
        (Verdict.NONDETERMINISTIC, 20, 0, 1),
        (Verdict.VACUOUS, 20, 0, 3),
        (Verdict.VACUOUS, 20, 11, 2),
        (Verdict.UNSUPPORTED, 0, 0, 2),
    ],
)
def test_exit_codes_are_those_of_check(
    verdict: Verdict, examples: int, rejected: int, code: int
) -> None:
    """0 held, 1 violated, 2 unsupported or mostly rejected, 3 vacuous."""
    assert cell(verdict=verdict, examples=examples, rejected=rejected).exit_code == code


class TestIssue:
    """Markdown."""

    @pytest.mark.parametrize(
        "message", ["", "`````", "```\n```json\n{}", "</details><script>", "\x1b[31mred"]
    )
    def test_issue_text_reads_back_as_its_fixture(self, message: str) -> None:
        """Whatever the fixture's words hold, also with other line ends and inside a list."""
        fixture = sample(message=message)
        text = render_issue(fixture)
        in_list = "- finding:\n" + "".join(f"    {line}\n" for line in text.splitlines())

        assert any_fixtures_in(text) == (fixture,)
        assert any_fixtures_in(text.replace("\n", "\r\n")) == (fixture,)
        assert any_fixtures_in(in_list) == (fixture,)

    def test_issue_tells_what_a_reader_needs(self) -> None:
        """Verdict, both patterns, launch facts, environment, RL figures and one command."""
        text = render_issue(sample())

        for words in (
            "**DRIFTS**",
            "0x39800000",
            "canonical: linear grid (1, 2)",
            "torch 2.13.0",
            "d != 0 on 1 of 1 tokens (100.0%)",
            "importance ratio",
            "biprop replay - --allow-target torch.nn.functional:linear < issue.md",
        ):
            assert words in text
        assert text.count("biprop replay") == 1

    def test_html_of_a_stranger_stays_text(self) -> None:
        """Outside of fenced blocks nothing of the fixture is markup."""
        text = render_issue(sample(message="</details><script>alert(1)</script>"))
        outside = "".join(text.split("```")[::2])

        assert "<script>" not in outside


class TestDrift:
    """Drift records."""

    @pytest.mark.parametrize(
        "cause",
        [
            DRIFT,
            Cause(verdict=Verdict.CRASHES, direction="forward"),
            Cause(verdict=Verdict.NONDETERMINISTIC, direction="forward", output="out"),
        ],
    )
    def test_records_meet_their_schema(self, cause: Cause) -> None:
        """Each line is a JSON object that the schema accepts."""
        records = drift_records(
            sample(cause=cause), op_class="reduction", chain_index=2, owner="https://example.org/x"
        )
        lines = drift_lines(records).splitlines()

        assert len(lines) == len(records) == 1
        jsonschema.validate(json.loads(lines[0]), drift_schema())

    def test_schema_is_one_and_refuses_what_is_missing(self) -> None:
        """The schema itself is valid, and a record without a field is not."""
        jsonschema.Draft202012Validator.check_schema(drift_schema())
        record = json.loads(drift_lines(drift_records(sample())))
        del record["threshold"]

        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(record, drift_schema())

    def test_transform_shows_both_values(self) -> None:
        """What the canonical configuration holds stands beside what the transformed one does."""
        (change,) = drift_records(sample())[0].transforms

        assert change.source_class == "batch_population"
        assert change.canonical == {"neighbours.together": False, "neighbours.count": 0}
        assert change.transformed == {"neighbours.together": True, "neighbours.count": 1}

    def test_check_is_one_object(self) -> None:
        """Verdict, causes with the id and the path of each, counts, power, classes and drift."""
        data = json.loads(json.dumps(checked_object(cell())))

        assert data["verdict"] == "DRIFTS"
        assert data["causes"][0]["fixture_id"] == sample().id
        assert data["causes"][0]["path"] == "found/x.json"
        assert data["classes"]["T1"]["powered"] == 9
        assert data["power"] == {"kind": "order", "share": 0.5}
        jsonschema.validate(data["drift"][0], drift_schema())


KERNEL = '''
"""A kernel that sums differently where it sees another number of rows, or of moved memory."""
import torch


def summed(x, weight, *, scale=1.0):
    """Sum over H, in another order from two rows on, and where the base pointer is odd."""
    wide = x.float() * weight.float() * scale
    total = torch.zeros(x.shape[0])
    moved = x.data_ptr() % 256 != 0
    order = range(x.shape[1]) if x.shape[0] == 1 and not moved else reversed(range(x.shape[1]))
    for index in order:
        total = total + wide[:, index]
    return total.to(x.dtype)


def scaled(x, weight):
    """Round another way from two rows on."""
    return (x * weight * (1 + (x.shape[0] > 1) * 2**-20)).sum(1)


def crashed(x, weight):
    """Raise from two rows on."""
    if x.shape[0] > 1:
        raise RuntimeError("two rows are too many")
    return x.sum(1)
'''


@attrs.frozen(kw_only=True)
class Script:
    """A fixture whose script is run.

    Attributes:
        fixture: The fixture.
        text: Of the file that the target lies in.
    """

    fixture: Fixture
    text: str = KERNEL


def found(tmp_path: Path, name: str, case: Case, *, text: str = KERNEL) -> Fixture:
    """Judge a case of the file's kernel here, and return its fixture."""
    path = tmp_path / "kernels_here.py"
    path.write_text(text, encoding="utf-8")
    space: dict[str, object] = {}
    exec(compile(text, str(path), "exec"), space)  # noqa: S102  # the text above
    kernel = Kernel(
        operator="kernels_here.py:" + name,
        target="kernels_here.py:" + name,
        signature=parse_signature("x[T,H], weight[H] -> y[T]"),
        function=space[name],  # type: ignore[arg-type]
    )
    judge = InProcessJudge(kernel, dtype=case.dtype, direction=case.direction)
    result = judge.judge(case)
    assert result.cause is not None
    return make_fixture(
        reference=judge.reference,
        case=case,
        outcome=result,
        proof=Proof(),
        provenance=judge.description.provenance,
    )


ALONE = """
import os, runpy, sys
sys.modules["biprop"] = None
for script in sys.argv[1:]:
    sys.modules.pop("kernels_here", None)
    os.chdir(os.path.dirname(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        print("exit", end.code)
    except Exception as error:
        print("raised", type(error).__name__)
"""


def run_alone(preloaded: Preloaded, tmp_path: Path, *scripts: Script) -> list[str]:
    """Run scripts of fixtures where biprop cannot be imported; return what each printed."""
    paths = []
    for number, script in enumerate(scripts):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "kernels_here.py").write_text(script.text, encoding="utf-8")
        paths.append(folder / "show.py")
        paths[-1].write_text(render_script(script.fixture), encoding="utf-8")
    done = preloaded.run("-c", ALONE, *map(str, paths), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.split(r"(?<=^)(?=exit|raised)(.*)\n", done.stdout, flags=re.MULTILINE)
    return ["".join(pair) for pair in zip(found[::2], found[1::2], strict=False)]


WITNESS = Recipe(
    kind="explicit",
    points=(
        Point(at={"H": 0}, value=(2.0**-12).hex()),
        Point(at={"H": 1}, value=(4096.0).hex()),
        Point(at={"H": 2}, value=(-4096.0).hex()),
    ),
)


TRANSFORMS = (
    TransformData(name="AddNeighbours", values={"count": 2}),
    TransformData(name="PadSlots", values={"amount": 2, "side": "left", "fill": "nan"}),
    TransformData(name="MoveStorage", values={"offset": 1, "gap": 3}),
)


# Drawn values, and gradients.
DRAWN = Case(
    dtype="float32",
    dims={"H": 64},
    judged="token_gradients",
    sequences=(LogicalSequence(id=3, length=1),),
    data={"x": Recipe(kind="normal"), "dy": Recipe(kind="normal")},
    policy_state={"weight": Recipe(kind="normal")},
    transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
)


def test_script_shows_both_patterns_without_biprop(tmp_path: Path, preloaded: Preloaded) -> None:
    """It exits 1 and prints the bits that biprop saw, for three kinds of transforms.

    Values that a recipe draws are written out; gradients are taken as biprop takes them.
    """
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    fixtures = [
        found(
            tmp_path,
            "summed",
            Case(
                dtype=dtype,
                dims={"H": 3},
                sequences=(LogicalSequence(id=0, length=1),),
                data={"x": WITNESS},
                policy_state={"weight": Recipe(kind="ones")},
                transforms=(transform,),
            ),
        )
        for dtype in dtypes
        for transform in TRANSFORMS
    ]

    drawn = found(tmp_path, "scaled", DRAWN)
    scripts = [Script(fixture=fixture) for fixture in (*fixtures, drawn)]

    for script, printed in zip(scripts, run_alone(preloaded, tmp_path, *scripts), strict=True):
        assert_shows(script.fixture, printed)


def assert_shows(fixture: Fixture, printed: str) -> None:
    """Fail unless a script printed what the fixture recorded, and exited 1."""
    first = fixture.expect.mismatches[0].first
    assert f"canonical    {first.canonical_bits}" in printed
    assert f"transformed  {first.transformed_bits}" in printed
    assert printed.endswith("exit 1")


def ones(**changes: object) -> Case:
    """Return a case of ones, with a neighbour."""
    case = Case(
        dtype="float32",
        dims={"H": 3},
        sequences=(LogicalSequence(id=0, length=1),),
        data={"x": Recipe(kind="ones")},
        policy_state={"weight": Recipe(kind="ones")},
        transforms=(TransformData(name="AddNeighbours", values={"count": 1}),),
    )
    return attrs.evolve(case, **changes)  # type: ignore[arg-type]  # names of its fields


RAISING = 'raise RuntimeError("two rows are too many")'
# What is wrong with two rows, how it is mended, and what a script says of it.
CRASHES = (
    (RAISING, 'print("two rows are too many")', "two rows are too many"),
    ("return x.sum(1, keepdim=True)", "pass", "has ((2, 1), 'float32', 'cpu') instead of ((2,), "),
    (
        "return x.sum(1).double()",
        "pass",
        "has ((2,), 'float64', 'cpu') instead of ((2,), 'float32'",
    ),
    ("return (x.sum(1), x)", "pass", "2 values returned instead of 1"),
    ("return None", "pass", "output y is no dense tensor"),
)


def test_script_of_a_crash_shows_it_until_it_is_mended(
    tmp_path: Path, preloaded: Preloaded
) -> None:
    """It exits 1 with what was wrong, and 0 once the target is mended; gradients likewise.

    A launch that returns something else than its signature says raises nothing by itself.
    """
    gradients = ones(
        judged="token_gradients", data={"x": Recipe(kind="ones"), "dy": Recipe(kind="ones")}
    )
    scripts, said = [], []
    for case, (wrong, mended, words) in [*((ones(), c) for c in CRASHES), (gradients, CRASHES[0])]:
        text = KERNEL.replace(RAISING, wrong)
        fixture = found(tmp_path, "crashed", case, text=text)
        assert fixture.expect.verdict is Verdict.CRASHES
        scripts += [
            Script(fixture=fixture, text=text),
            Script(fixture=fixture, text=KERNEL.replace(RAISING, mended)),
        ]
        said += [words]
    printed = run_alone(preloaded, tmp_path, *scripts)

    for words, crashes, mended in zip(said, printed[::2], printed[1::2], strict=True):
        assert words in crashes
        assert crashes.endswith("exit 1"), words
        assert mended.endswith("exit 0"), words


def test_script_of_a_write_into_an_argument_is_refused(tmp_path: Path) -> None:
    """Only biprop watches arguments: a script that says that all is well would be wrong."""
    text = KERNEL.replace(RAISING, "x.zero_()")
    fixture = found(tmp_path, "crashed", ones(), text=text)

    with pytest.raises(UnsupportedError, match="writes into an argument"):
        render_script(fixture)


@pytest.mark.parametrize(
    ("canonical", "transformed", "errors", "shown"),
    [
        ("0x00000000", "0x3f800000", (1.0, 1.0, None), "max abs 1, mean abs 1, max rel inf"),
        ("0x7fc00000", "0x3f800000", (None,) * 3, "max abs nan, mean abs nan, max rel nan"),
        ("0x3f800000", "0xff800000", (None,) * 3, "max abs inf, mean abs inf, max rel inf"),
        ("0x00000000", "0x80000000", (0.0, 0.0, 0.0), "max abs 0, mean abs 0, max rel 0"),
        ("0x3f800000", "0x3f800001", (None,) * 3, "float32 elements, 1 of 1 tokens\n"),
    ],
)
def test_errors_that_no_number_holds_are_named(
    canonical: str, transformed: str, errors: tuple[float | None, ...], shown: str
) -> None:
    """A record leaves out what JSON has not, and the words say it."""
    (mismatch,) = outcome().mismatches
    first = attrs.evolve(mismatch.first, canonical_bits=canonical, transformed_bits=transformed)
    changed = attrs.evolve(
        mismatch,
        first=first,
        max_abs_error=errors[0],
        mean_abs_error=errors[1],
        max_rel_error=errors[2],
    )

    assert shown in "\n".join([*first_difference_lines(sample(), changed), ""])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((0,), "1 sequence of 2 tokens, "),
        ((2,), "1 sequence (id 2) of 2 tokens, "),
        ((0, 1), "2 sequences of 2, 2 tokens, "),
        ((1, 0), "2 sequences (ids 1, 0) of 2, 2 tokens, "),
    ],
)
def test_sequences_are_named_as_differences_name_them(ids: tuple[int, ...], words: str) -> None:
    """Ids other than 0, 1, ... are told, and claims name sequences by them too."""
    case = ones(sequences=tuple(LogicalSequence(id=number, length=2) for number in ids))

    assert case_in_words(case).startswith(words)
    assert place_in_words(case, ("sequences", 0, "length")) == f"length of sequence {ids[0]}"
    assert place_in_words(case, ("sequences", 0)) == f"sequence {ids[0]}"


def test_script_holds_no_words_of_a_stranger_outside_comments(
    tmp_path: Path, preloaded: Preloaded
) -> None:
    """A file name full of quotes neither ends a string nor starts a statement."""
    target = 'a"""; print(1); """\'\\.py:f'
    reference = KernelReference(
        operator=target, target=target, signature="input[T,K], weight[N,K] -> out[T,N]"
    )
    script = render_script(sample(reference=reference))
    (printed,) = run_alone(preloaded, tmp_path, Script(fixture=sample(reference=reference)))

    compile(script, "script", "exec")
    assert printed.startswith("raised")


def test_script_of_an_operator_of_biprop_is_refused() -> None:
    """One sentence says what to use instead."""
    reference = attrs.evolve(
        sample().reference, operator="rms_norm", target="rms_norm/packed", backend="torch"
    )

    with pytest.raises(UnsupportedError, match="--issue"):
        render_script(sample(reference=reference))


def test_script_of_too_many_values_is_refused() -> None:
    """A script of megabytes helps nobody."""
    case = attrs.evolve(
        sample().case, dims={"K": 200, "N": 200}, data={"input": Recipe(kind="ones")}
    )
    case = attrs.evolve(case, policy_state={"weight": Recipe(kind="normal")})

    with pytest.raises(UnsupportedError, match="--issue"):
        render_script(sample(case=case))

"""Searches over fake judges: several causes, nondeterminism, crashes, minima and rejections."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import attrs
import pytest
from torch import Tensor

from biprop.case import Case
from biprop.data.recipe import Point
from biprop.errors import OutputError, UsageError
from biprop.fixtures.records import Fixture
from biprop.generation import CLASSES, Space, wanted_classes
from biprop.judgment import BitDifference, Cause, ClassEvidence, Mismatch, Outcome, Power, Verdict
from biprop.minimize import minimise
from biprop.operators import InvarianceDeclaration, KernelReference
from biprop.provenance import Provenance
from biprop.relations import JudgeOptions
from biprop.reports.records import CellReport
from biprop.signature import parse_signature
from biprop.strategies.api import check_invariance
from biprop.strategies.profiles import PROFILES
from biprop.strategies.search import Event, search
from biprop.strategies.tally import classes_in
from biprop.supervision import Description

SIGNATURE = "x[T,H], weight[H] -> y[T,H]"
REFERENCE = KernelReference(operator="fake:norm", target="fake:norm", signature=SIGNATURE)
SPACE = Space(signature=parse_signature(SIGNATURE))
Rule = Callable[[Case, frozenset[str]], Outcome | None]


def drift(output: str = "y", *, finite: bool = True) -> Outcome:
    """Return a drift of one output."""
    first = BitDifference(
        sequence_id=0,
        token=0,
        coordinate=(0,),
        canonical_row=0,
        transformed_row=0,
        transformed_launch=0,
        canonical_bits="0x00000000",
        transformed_bits="0x80000000",
        canonical_value="0.0",
        transformed_value="-0.0",
    )
    mismatch = Mismatch(
        output=output,
        dtype="float32",
        elements=1,
        elements_compared=1,
        tokens=1,
        tokens_compared=1,
        first=first,
    )
    cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output=output, finite=finite)
    return Outcome(verdict=Verdict.DRIFTS, cause=cause, mismatches=(mismatch,))


@attrs.define(eq=False)
class FakeJudge:
    """Judges by a pure function of the case; what it is asked is kept.

    Attributes:
        rule: Takes a case and its classes; None: the case holds, with power.
        asked: Cases and options, in order.
        other: Rule of every other backend; None: the same.
    """

    rule: Rule
    asked: list[tuple[Case, JudgeOptions]] = attrs.field(factory=list)
    other: Rule | None = None
    reference: KernelReference = REFERENCE
    description: Description = attrs.field(
        factory=lambda: Description(provenance=Provenance(device="cpu"))
    )

    def judge(self, case: Case, options: JudgeOptions = JudgeOptions()) -> Outcome:  # noqa: B008
        """Return what the rule says."""
        self.asked.append((case, options))
        names = frozenset(classes_in(case))
        outcome = self.rule(case, names)
        if outcome is not None:
            return outcome
        return Outcome(
            verdict=Verdict.HOLDS,
            power=Power(kind="order", share=0.5),
            classes=dict.fromkeys(names, "powered"),
            launches=2,
        )

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Judge one by one."""
        return tuple(self.judge(*one) for one in zip(cases, options, strict=True))

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List no value of any tensor."""
        del case, name, limit
        return ()

    def relative(self, backend: str) -> "FakeJudge":
        """Judge another backend."""
        reference = attrs.evolve(self.reference, backend=backend)
        return attrs.evolve(self, rule=self.other or self.rule, reference=reference)

    def close(self) -> None:
        """Nothing to let go of."""


def searched(rule: Rule, **arguments: object) -> tuple[CellReport, FakeJudge]:
    """Search with a rule; the report, and the judge with all that it was asked."""
    values: dict[str, object] = {"max_examples": 120, **arguments}
    judge = FakeJudge(rule, other=values.pop("other", None))  # type: ignore[arg-type]  # a rule
    space = values.pop("space", SPACE)
    report = search(judge, space, **values)  # type: ignore[arg-type]
    return report, judge


def causes(report: CellReport) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return verdict, output and classes of every finding."""
    found = (finding.fixture.expect.cause for finding in report.findings)
    return {(cause.verdict.value, cause.output, cause.transforms) for cause in found}


def test_healthy_kernel_holds() -> None:
    """A kernel without a failing case holds, and every class that applies has its examples."""
    report, judge = searched(lambda *_: None)

    assert (report.verdict, report.exit_code) == (Verdict.HOLDS, 0)
    assert report.examples == len(judge.asked) == 120
    assert all(count.reason or count.powered >= 5 for count in report.classes.values())
    assert report.classes["T7"].reason
    assert tuple(report.classes) == CLASSES
    assert report.launches == 240
    assert report.power_share == pytest.approx(0.5)


def test_same_seed_draws_the_same_cases() -> None:
    """A search is a function of its seed."""
    first, second, other = (
        [case.digest for case, _ in searched(lambda *_: None, seed=seed, max_examples=20)[1].asked]
        for seed in (3, 3, 4)
    )

    assert first == second
    assert not set(first) & set(other)


def test_canonical_side_is_repeated_now_and_then() -> None:
    """The first case of every class, and every eighth after it, repeats the canonical side."""
    _, judge = searched(lambda *_: None)
    seen: dict[str, int] = {}
    for case, options in judge.asked:
        expected = any(seen.get(name, 0) % 8 == 0 for name in classes_in(case))
        assert options.repeat_canonical == expected
        for name in classes_in(case):
            seen[name] = seen.get(name, 0) + 1


def test_cause_is_found_and_minimised() -> None:
    """A failing case becomes one finding, with the smallest case and its classes."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if "T8" in names else None

    report, _ = searched(rule)

    assert (report.verdict, report.exit_code) == (Verdict.DRIFTS, 1)
    assert causes(report) == {("DRIFTS", "y", ("T8",))}
    assert report.findings[0].fixture.case.dims == {"H": 1}
    assert report.findings[0].fixture.reference == REFERENCE
    assert report.findings[0].count > 1


def test_all_causes_are_found() -> None:
    """The search goes on after a cause, and lists all: by output, by class and by fill."""

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        if "T8" in names:
            return drift()
        if "T4.nonfinite" in names:
            return drift(finite=False)
        if "T5" in names and case.dims["H"] > 2:
            return drift("rstd")
        return None

    report, _ = searched(rule, max_examples=200)

    assert causes(report) == {
        ("DRIFTS", "y", ("T8",)),
        ("DRIFTS", "y", ("T4.nonfinite",)),
        ("DRIFTS", "rstd", ("T5",)),
    }
    assert report.examples == 200


def test_second_set_of_classes_is_a_second_cause() -> None:
    """A failure that stays without the classes already found is another cause."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if names & {"T4.nonfinite", "T8"} else None

    report, _ = searched(rule)

    assert causes(report) == {("DRIFTS", "y", ("T8",)), ("DRIFTS", "y", ("T4.nonfinite",))}


def test_causes_that_need_several_classes_are_told_apart() -> None:
    """Classes that fail only together are one cause, and each alone is none."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if {"T5", "T8"} <= names else None

    report, judge = searched(rule)
    later = [frozenset(classes_in(case)) for case, options in judge.asked[-60:] if options.measure]

    assert causes(report) == {("DRIFTS", "y", ("T5", "T8"))}
    # Three of four cases leave what was found alone, so that something else can be seen.
    assert sum({"T5", "T8"} <= names for names in later) < len(later) / 3


def test_nondeterminism_ends_the_search() -> None:
    """A kernel that differs from run to run without any transform is one finding, and no Flaky."""

    def rule(_: Case, __: frozenset[str]) -> Outcome | None:
        cause = Cause(verdict=Verdict.NONDETERMINISTIC, direction="forward", output="y")
        return attrs.evolve(
            drift(), verdict=Verdict.NONDETERMINISTIC, cause=cause, rate=0.5, repeats=7
        )

    report, judge = searched(rule)

    assert report.verdict is Verdict.NONDETERMINISTIC
    assert causes(report) == {("NONDETERMINISTIC", "y", ())}
    assert report.findings[0].fixture.expect.rate == 0.5
    assert report.examples < 120
    assert any(options.rate == 0.5 for _, options in judge.asked)


def test_fickle_judge_gives_no_flaky() -> None:
    """A judge that answers a case differently when asked again still ends in a finding."""
    asked: set[str] = set()

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        fresh = case.digest not in asked
        asked.add(case.digest)
        return drift() if fresh and "T8" in names else None

    report, _ = searched(rule)

    assert report.verdict is Verdict.DRIFTS


def test_crashes_are_findings_and_not_drawn_again() -> None:
    """A crash is a finding with its message, and later cases keep away from its classes."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        if "T4.nonfinite" not in names:
            return None
        cause = Cause(verdict=Verdict.CRASHES, direction="forward")
        return Outcome(verdict=Verdict.CRASHES, cause=cause, message="killed by SIGSEGV")

    report, judge = searched(rule)
    last = [classes_in(case) for case, options in judge.asked[-60:] if options.measure]

    assert report.verdict is Verdict.CRASHES
    assert causes(report) == {("CRASHES", "", ("T4.nonfinite",))}
    assert report.findings[0].fixture.expect.message == "killed by SIGSEGV"
    assert all("T4.nonfinite" not in names for names in last)


def test_lacking_class_is_vacuous() -> None:
    """A class without enough powered examples makes the cell VACUOUS, and is named."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        evidence = {name: "vacuous" if name == "T5" else "powered" for name in names}
        return Outcome(verdict=Verdict.HOLDS, classes=evidence)  # type: ignore[arg-type]

    report, _ = searched(rule)

    assert (report.verdict, report.exit_code) == (Verdict.VACUOUS, 3)
    assert report.message.startswith("Too few powered examples: T5 has 0 of 5;")
    assert report.classes["T5"].vacuous > 10
    # Some more examples than asked for were spent on it.
    assert 120 < report.examples <= 188


def test_profile_goes_on_where_evidence_lacks() -> None:
    """What a profile says is exceeded by as many again and 24; what somebody asks for is not."""

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        evidence = {name: "vacuous" if name == "T5" else "powered" for name in names}
        return Outcome(verdict=Verdict.HOLDS, classes=evidence)  # type: ignore[arg-type]

    profile = PROFILES["pr"]
    count = profile.examples_of("interpreter")
    told: dict[str, object] = {"lane": "interpreter", "profile": profile}

    assert searched(rule, max_examples=None, **told)[0].examples == 2 * count + 24
    assert searched(rule, max_examples=count, **told)[0].examples == count + count // 2 + 8


def test_lanes_need_different_minima() -> None:
    """The interpreter needs one powered example of a class, nightly fifty."""
    few = {"max_examples": 14, "space": attrs.evolve(SPACE, classes=wanted_classes(["T8"]))}
    interpreted, _ = searched(lambda *_: None, lane="interpreter", **few)
    nightly, _ = searched(lambda *_: None, profile=PROFILES["nightly"], **few)

    assert interpreted.verdict is Verdict.HOLDS
    assert nightly.verdict is Verdict.VACUOUS


def test_time_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its time is over a search draws nothing more where it has all evidence."""
    seconds = count()
    monkeypatch.setattr("biprop.strategies.search.time.monotonic", lambda: next(seconds))
    space = attrs.evolve(SPACE, classes=wanted_classes(["T8"]))

    report, judge = searched(lambda *_: None, space=space, seconds_max=30.0)

    assert 4 < len(judge.asked) < 30
    assert report.verdict is Verdict.HOLDS


def test_lacking_evidence_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a class lacks evidence, a search takes up to ten times its time, and ends then."""
    seconds = count()
    monkeypatch.setattr("biprop.strategies.search.time.monotonic", lambda: next(seconds))

    def holds_without_power(_: Case, names: frozenset[str]) -> Outcome | None:
        classes: dict[str, ClassEvidence] = dict.fromkeys(names, "unpowered")
        return Outcome(verdict=Verdict.HOLDS, classes=classes, launches=2)

    report, judge = searched(holds_without_power, seconds_max=30.0, max_examples=10_000)

    assert 120 < len(judge.asked) < 300
    assert report.verdict is Verdict.VACUOUS
    assert "Too few powered examples" in report.message


def test_what_lacks_evidence_takes_turns() -> None:
    """Late in a search every class that lacks evidence gets its share, the rarest one too."""

    def holds_without_power(_: Case, names: frozenset[str]) -> Outcome | None:
        classes: dict[str, ClassEvidence] = dict.fromkeys(names, "unpowered")
        return Outcome(verdict=Verdict.HOLDS, classes=classes, launches=2)

    _, judge = searched(holds_without_power, max_examples=240)
    drawn = [classes_in(case) for case, _ in judge.asked[:240]]
    early, late = (Counter(name for names in half for name in names)
                   for half in (drawn[:120], drawn[120:]))  # fmt: skip
    rarest = min(early, key=lambda name: early[name])

    assert late[rarest] > 1.3 * early[rarest]


def test_time_that_is_over_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause found in time is minimised and reported, however late that is."""
    seconds = count()
    monkeypatch.setattr("biprop.strategies.search.time.monotonic", lambda: next(seconds))

    report, judge = searched(
        lambda _, names: drift() if "T1" in names else None, seconds_max=30.0, max_examples=10_000
    )

    assert causes(report) == {("DRIFTS", "y", ("T1",))}
    assert len(judge.asked) < 10_000


def test_real_sizes_take_turns() -> None:
    """Where a lane asks for them, one case in so many has a size of a real model, each in turn."""
    limits = attrs.evolve(SPACE.limits, real_every=4, elements_max=1 << 20, work_max=1 << 20)
    report, judge = searched(
        lambda *_: None, space=attrs.evolve(SPACE, limits=limits), max_examples=32
    )

    assert [case.dims["H"] for case, _ in judge.asked[::4]] == [8192, 4096] * 4
    assert all(case.dims["H"] <= 640 for case, _ in judge.asked[1::4])
    assert report.largest["H"] == 8192
    assert {"length", "sequences", "tokens"} < set(report.largest)


def test_mostly_rejected_search_suggests_dims() -> None:
    """Where most canonical runs raise, the message suggests --dims and the exit code is 2."""

    def rule(case: Case, _: frozenset[str]) -> Outcome | None:
        if case.dims["H"] % 8 == 0:
            return None
        return Outcome(verdict=Verdict.VACUOUS, rejected="ValueError: H must be a multiple of 8")

    report, _ = searched(rule)

    assert (report.verdict, report.exit_code) == (Verdict.VACUOUS, 2)
    assert "--dims" in report.message
    assert "multiple of 8" in report.message


def test_errors_of_the_judge_come_through() -> None:
    """A wrong output ends the search with the judge's own sentence, not with one of Hypothesis."""

    def rule(_: Case, __: frozenset[str]) -> Outcome | None:
        raise OutputError("Output 'y' has shape [1].")

    with pytest.raises(OutputError, match=r"Output 'y' has shape \[1\]"):
        searched(rule)


def test_nothing_to_draw_is_vacuous() -> None:
    """Where no class applies, nothing is judged and the report says so."""
    space = attrs.evolve(
        SPACE, registered=True, declaration=InvarianceDeclaration(transforms=("T7",))
    )
    report, judge = searched(lambda *_: None, space=space)

    assert report.verdict is Verdict.VACUOUS
    assert "No transform class applies" in report.message
    assert judge.asked == []


def test_findings_are_stored_and_told() -> None:
    """Each finding is handed to the store once, and events follow the search."""
    stored: list[Fixture] = []
    events: list[Event] = []

    def keep(fixture: Fixture) -> str:
        stored.append(fixture)
        return f"found/{fixture.id}.json"

    def rule(_: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if "T8" in names else None

    report, _ = searched(rule, keep=keep, on_event=events.append)

    assert [finding.path for finding in report.findings] == [f"found/{stored[0].id}.json"]
    assert len(stored) == 1
    assert [event.kind for event in events if event.kind != "example"] == ["failure", "finding"]
    assert sum(event.kind == "example" for event in events) == report.examples


def test_search_minimises_as_minimise_does() -> None:
    """What a search reports cannot be minimised further."""

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if "T1" in names and case.dims["H"] >= 5 else None

    report, judge = searched(rule)
    fixture = report.findings[0].fixture
    again = minimise(
        fixture.case,
        drift(),
        judge=judge.judge,
        signature=SPACE.signature,
        legal=lambda _: "",
        nonzeros=judge.nonzeros,
    )

    assert fixture.case.dims == {"H": 5}
    assert again.case == fixture.case


def rows_of_five(values: Tensor) -> Tensor:
    """Scale as launches of five rows and more do."""
    return values * (1.25 if len(values) >= 5 else 1.0)


def test_check_invariance_finds_and_shrinks() -> None:
    """`check_invariance` runs a callable here and returns the smallest case that fails."""
    report = check_invariance(rows_of_five, "x[T,H] -> y[T,H]", max_examples=40)
    broken = {finding.fixture.expect.cause.transforms for finding in report.findings}

    assert report.verdict is Verdict.DRIFTS
    assert ("T1",) in broken
    assert report.findings[0].fixture.case.dims == {"H": 1}


def test_check_invariance_holds_for_a_healthy_callable() -> None:
    """A callable whose tokens are independent holds, in both directions."""

    def double(values: Tensor) -> Tensor:
        return values * 2

    forward = check_invariance(double, "x[T,H] -> y[T,H]", max_examples=40)
    backward = check_invariance(
        double, "x[T,H] -> y[T,H]", direction="backward", max_examples=40, seed=1
    )

    assert (forward.verdict, forward.message) == (Verdict.HOLDS, "")
    assert (backward.verdict, backward.message) == (Verdict.HOLDS, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_examples": 0}, "max_examples=0"),
        ({"signature": None}, "has no signature"),
        ({"signature": None, "dims": "H=1..4"}, "belong to a signature"),
        ({"transforms": ["T9"]}, "'T9' is unknown"),
    ],
)
def test_check_invariance_refuses_wrong_arguments(arguments: dict[str, Any], sentence: str) -> None:
    """Arguments that cannot be used are refused in one sentence."""

    with pytest.raises(UsageError, match=sentence):
        check_invariance(rows_of_five, **{"signature": "x[T,H] -> y[T,H]", **arguments})


@pytest.mark.parametrize(
    ("words", "expected"), [(("T1",), ("T1",)), (("T4", "T1"), ("T4.finite",))]
)
def test_shrinking_stays_inside_the_classes_asked_for(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Dead rows stand for neighbours, being cheaper, only where they were asked for."""
    signature = "x[T,H], cu: offsets[B+1] -> y[T,H]"
    space = Space(
        signature=parse_signature(signature), declaration=None, classes=wanted_classes(words)
    )

    def rule(case: Case, _: frozenset[str]) -> Outcome | None:
        kinds = {"AddNeighbours", "AddDeadRows"}
        added = [data.values["count"] for data in case.transforms if data.name in kinds]
        return drift() if 3 in added else None

    report, _ = searched(rule, space=space, max_examples=60)

    assert {names for _, _, names in causes(report)} == {expected}

"""What a search does with relations A and P, with a judge that is a function."""

from itertools import count, groupby

import attrs
import pytest
from tests.unit.test_search import SPACE, causes, drift, searched

from biprop.campaign.hands import CAMPAIGN
from biprop.case import Against, Case
from biprop.data.recipe import KINDS_CONDITIONED
from biprop.judgment import Cause, ClassEvidence, Outcome, Power, Verdict
from biprop.operators import InvarianceDeclaration
from biprop.strategies.profiles import PROFILES
from biprop.strategies.verdicts import violation_class
from biprop.strategies.yardsticks import fault_of_yardstick

ACCURACY = Against(relation="A", atol=1e-4, rtol=1e-4)
PARITY = Against(relation="P", backend="other", atol=1e-4, rtol=1e-4)
HELD = attrs.evolve(
    SPACE,
    registered=True,
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2"), parameter_gradients=("T2",), chain_index=1
    ),
    op_class="elementwise",
    against=(ACCURACY, PARITY),
)


def agrees(case: Case, _: frozenset[str]) -> Outcome | None:
    """Let every relation hold, with power."""
    if case.against is None:
        return None
    return Outcome(
        verdict=Verdict.HOLDS,
        power=Power(kind="magnitude", share=1.0),
        classes={case.against.name: "powered"},
        tolerance_share=case.dims["H"] / 1000,
        launches=1,
    )


def apart(case: Case) -> Outcome:
    """Return that a case of relation A or P leaves its tolerance."""
    cause = Cause(
        verdict=Verdict.INACCURATE,
        direction=case.direction,
        output="y",
        relation=case.relation,
        backend=case.against.backend if case.against else "",
    )
    name = case.against.name if case.against else ""
    return attrs.evolve(drift(), verdict=Verdict.INACCURATE, cause=cause, classes={name: "powered"})


def test_relations_are_judged_in_order() -> None:
    """Invariance comes first, then accuracy, then parity, each with as many cases as asked for."""
    report, judge = searched(agrees, space=HELD, max_examples=60)
    names = (case.against.name if case.against else "I" for case, _ in judge.asked)
    order = [(name, len(list(cases))) for name, cases in groupby(names)]

    assert [name for name, _ in order] == ["I", "A", "P other"]
    assert order[1:] == [("A", 20), ("P other", 20)]
    assert (report.verdict, report.examples) == (Verdict.HOLDS, 100)
    assert list(report.classes)[-3:] == ["A", "P other", "probes"]
    assert report.classes["A"].powered == report.classes["P other"].powered == 20
    assert report.classes["probes"].reason == "nothing is known to be added"
    # Power of relation I alone.
    assert report.power_kind == "order"


def test_cases_are_conditioned_and_differ() -> None:
    """Each relation draws conditioned cases of its own."""
    _, judge = searched(agrees, space=HELD, max_examples=10)
    cases = [case for case, _ in judge.asked if case.against]

    assert len({case.digest for case in cases}) == len(cases) == 20
    assert {case.data["x"].kind for case in cases} <= set(KINDS_CONDITIONED)
    assert not any(case.transforms for case in cases)


def test_largest_error_is_told() -> None:
    """A row says how much of the tolerance was needed."""
    report, judge = searched(agrees, space=HELD, max_examples=20)
    widths = [case.dims["H"] for case, _ in judge.asked if case.against == ACCURACY]

    assert report.classes["A"].tolerance_share == max(widths) / 1000
    assert report.classes["T1"].tolerance_share is None


def test_relation_without_power_is_vacuous() -> None:
    """A cell holds only if accuracy was seen too, and some more cases are spent on that."""

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        outcome = agrees(case, names)
        unpowered: dict[str, ClassEvidence] = {"A": "unpowered"}
        if outcome is None or case.against != ACCURACY:
            return outcome
        return attrs.evolve(outcome, classes=unpowered)

    report, _ = searched(rule, space=HELD)

    assert (report.verdict, report.exit_code) == (Verdict.VACUOUS, 3)
    assert "A has 0 of 5" in report.message
    assert report.classes["A"].examples == 34


def test_what_drifts_is_held_against_nothing() -> None:
    """Where invariance fails, accuracy and parity are not judged, and the rows say so."""

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        return drift() if "T2" in names else agrees(case, names)

    report, judge = searched(rule, space=HELD)

    assert report.verdict is Verdict.DRIFTS
    assert not any(case.against for case, _ in judge.asked)
    assert {report.classes[name].reason for name in ("A", "P other", "probes")} == {
        "relation I fails, which is judged before it"
    }


def test_inaccuracy_is_a_finding_and_ends_with_its_relation() -> None:
    """It is shrunk, later cases of the cause are counted, and parity is not judged."""

    def rule(case: Case, names: frozenset[str]) -> Outcome | None:
        return apart(case) if case.against and case.dims["H"] > 2 else agrees(case, names)

    report, _ = searched(rule, space=HELD, max_examples=40)
    (finding,) = report.findings

    assert (report.verdict, report.exit_code) == (Verdict.INACCURATE, 1)
    assert causes(report) == {("INACCURATE", "y", ())}
    assert finding.fixture.case.dims == {"H": 3}
    assert finding.fixture.case.against == ACCURACY
    assert finding.count > 5
    assert report.classes["A"].examples == 20
    assert report.classes["P other"].reason == "relation A fails, which is judged before it"


def parity_fails(case: Case, names: frozenset[str]) -> Outcome | None:
    """Let parity alone fail."""
    return apart(case) if case.against == PARITY else agrees(case, names)


def test_parity_fails_beside_a_backend_that_holds() -> None:
    """Both backends hold relation I, so that the finding is one of both."""
    report, _ = searched(parity_fails, space=HELD, other=agrees, max_examples=30)

    assert report.verdict is Verdict.INACCURATE
    assert report.findings[0].fixture.expect.cause.key == "P-other-INACCURATE-forward-y-finite"


def test_parity_with_a_backend_that_drifts_is_not_judged() -> None:
    """A backend that drifts is no yardstick: the row says so, and nothing is found."""
    report, _ = searched(parity_fails, space=HELD, other=lambda *_: drift(), max_examples=30)

    assert (report.verdict, report.findings) == (Verdict.HOLDS, ())
    assert report.classes["P other"].reason == (
        "backend other is no yardstick, since relation I fails for it"
    )


@pytest.mark.parametrize(("seen", "found"), [(drift(), 0), (None, 1)])
def test_a_hang_in_parity_may_be_that_of_the_other_backend(
    seen: Outcome | None, found: int
) -> None:
    """A campaign too stores it only where the other one is a yardstick."""
    cause = Cause(verdict=Verdict.CRASHES, direction="forward", relation="P", backend="other")
    hang = Outcome(verdict=Verdict.CRASHES, cause=cause, message="Hung.", is_hung=True)

    def hangs(case: Case, names: frozenset[str]) -> Outcome | None:
        return hang if case.against == PARITY else agrees(case, names)

    def other(case: Case, names: frozenset[str]) -> Outcome | None:
        return seen or agrees(case, names)

    report, _ = searched(hangs, space=HELD, other=other, profile=CAMPAIGN, max_examples=30)

    assert len(report.findings) == found
    assert ("no yardstick" in report.classes["P other"].reason) == (not found)


def test_yardstick_is_asked_for_enough_cases_of_its_own() -> None:
    """At least twenty cases of relation I are judged before a backend counts as a yardstick."""
    _, judge = searched(agrees, space=HELD, max_examples=1)
    judge.asked.clear()

    assert fault_of_yardstick(judge, HELD, "other", seed=1) == ""
    assert len(judge.asked) >= 20
    assert all(case.against is None and case.transforms for case, _ in judge.asked)


def test_both_kinds_of_gradients_are_judged() -> None:
    """In the interpreter too, which judges two cases of a relation, each kind has its turn."""
    space = attrs.evolve(HELD, direction="backward", against=(ACCURACY,))
    report, judge = searched(agrees, space=space, lane="interpreter", max_examples=20)
    judged = [case.judged for case, _ in judge.asked if case.against]

    assert sorted(judged) == ["parameter_gradients", "token_gradients"]
    assert report.verdict is Verdict.HOLDS
    assert report.classes["probes"].reason == "gradients are not probed"


def test_time_is_left_for_every_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that runs out of time judges invariance first, and still some of the others."""
    seconds = count()
    monkeypatch.setattr("biprop.strategies.search.time.monotonic", lambda: next(seconds))
    report, judge = searched(agrees, space=HELD, seconds_max=300.0, max_examples=10_000)
    names = [case.against.name if case.against else "I" for case, _ in judge.asked]

    assert report.verdict is Verdict.HOLDS
    assert names.count("I") > names.count("A") >= 5
    assert names.count("P other") >= 5


def test_profiles_say_how_many() -> None:
    """The interpreter gets few cases of each relation, and each lane enough for its minimum."""

    for profile in PROFILES.values():
        assert profile.examples_against_of("interpreter") < profile.examples_against_of("cpu")
        for lane in ("cpu", "gpu", "interpreter"):
            least = 2 * profile.powered_min_of(lane)
            assert profile.examples_against_of(lane) >= least


def test_names_of_errors_tell_the_relation() -> None:
    """Causes that differ in their relation alone have classes of their own."""
    cause = Cause(verdict=Verdict.INACCURATE, direction="forward", output="y", relation="A")
    other = attrs.evolve(cause, relation="P", backend="triton")

    assert violation_class(cause).__name__ == "InaccurateForwardYAgainstReferenceError"
    assert violation_class(other).__name__ == "InaccurateForwardYAgainstBackendTritonError"

"""Replay: statuses, exit codes, what is compared, and claims judged again."""

from collections.abc import Callable, Sequence

import attrs
import pytest
from tests.unit.sample_fixtures import DRIFT, LINEAR, PROVENANCE, outcome, sample

from biprop.case import Case
from biprop.data.recipe import Point
from biprop.errors import TargetError
from biprop.fixtures.records import Fixture
from biprop.fixtures.replay import Replayed, replay
from biprop.judgment import Cause, Outcome, Power, Verdict
from biprop.operators import KernelReference
from biprop.provenance import Provenance
from biprop.relations import JudgeOptions
from biprop.reports.text import render_replay
from biprop.supervision import Description

HOLDS = Outcome(verdict=Verdict.HOLDS, repeats=5, actual_backend="torch")
ALLOWED = ("torch.nn.functional:linear",)


@attrs.define(kw_only=True, eq=False)
class FakeJudge:
    """A judge without a kernel."""

    judged: Callable[[Case], Outcome]
    provenance: Provenance = PROVENANCE
    options: list[JudgeOptions] = attrs.field(factory=list)
    is_closed: bool = False

    @property
    def reference(self) -> KernelReference:
        """Return the kernel of the sample."""
        return LINEAR

    @property
    def description(self) -> Description:
        """Return where it runs."""
        return Description(provenance=self.provenance)

    def judge(self, case: Case, options: JudgeOptions = JudgeOptions()) -> Outcome:  # noqa: B008  # frozen
        """Return what was asked for."""
        self.options.append(options)
        return self.judged(case)

    def judge_set(
        self, cases: Sequence[Case], options: Sequence[JudgeOptions]
    ) -> tuple[Outcome, ...]:
        """Judge one by one."""
        return tuple(self.judge(*one) for one in zip(cases, options, strict=True))

    def nonzeros(self, case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        """List nothing."""
        return () if limit < len(name) < len(case.sequences) else None

    def relative(self, backend: str) -> "FakeJudge":
        """Judge another backend likewise."""
        del backend
        return self

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


def replayed(result: Outcome, *, bisect: bool = False, here: Provenance = PROVENANCE) -> Replayed:
    """Replay the sample, whose case gives `result`."""
    judge = FakeJudge(judged=lambda _: result, provenance=here)
    done = replay(sample(), lambda _: judge, allow_targets=ALLOWED, bisect=bisect)
    assert judge.is_closed
    return done


def with_value(provenance: Provenance, name: str, value: str) -> Provenance:
    """Return `provenance` with another value in one field."""
    return Provenance(**{**attrs.asdict(provenance), name: value})


def test_same_cause_is_failed() -> None:
    """The finding is still there: exit 1."""
    done = replayed(outcome())

    assert (done.status, done.exit_code) == ("FAILED", 1)


def test_transforms_of_the_cause_are_no_part_of_the_comparison() -> None:
    """A judge does not know which classes were left after minimising."""
    assert replayed(outcome(attrs.evolve(DRIFT, transforms=()))).status == "FAILED"


@pytest.mark.parametrize(
    "cause",
    [
        attrs.evolve(DRIFT, output="other"),
        attrs.evolve(DRIFT, finite=False),
        Cause(verdict=Verdict.CRASHES, direction="forward"),
    ],
)
def test_another_cause_is_different(cause: Cause) -> None:
    """It fails, but not as recorded: exit 1."""
    done = replayed(outcome(cause))

    assert (done.status, done.exit_code) == ("DIFFERENT", 1)


def test_holding_on_the_same_machine_is_fixed() -> None:
    """Exit 0; an upgrade of torch is told, and is what may have fixed it."""
    done = replayed(HOLDS, here=attrs.evolve(PROVENANCE, torch="2.14.0"))

    assert (done.status, done.exit_code) == ("FIXED", 0)
    assert done.differences == ()
    assert done.changes == ("torch was 2.13.0, is 2.14.0",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "cuda:0"),
        ("device_name", "Another processor"),
        ("arch_key", "cpu-aarch64-neon"),
    ],
)
def test_holding_elsewhere_is_not_reproduced(name: str, value: str) -> None:
    """Exit 0, and each difference that may be the reason is listed."""
    done = replayed(HOLDS, here=with_value(PROVENANCE, name, value))

    assert (done.status, done.exit_code) == ("NOT REPRODUCED HERE", 0)
    assert len(done.differences) == 1
    assert name.replace("_", " ") in done.differences[0]


def test_other_backend_is_not_reproduced() -> None:
    """What the interpreter gives says nothing of a GPU."""
    done = replayed(attrs.evolve(HOLDS, actual_backend="triton-interpreter"))

    assert done.status == "NOT REPRODUCED HERE"


@pytest.mark.parametrize(
    "result",
    [
        Outcome(verdict=Verdict.VACUOUS, rejected="RuntimeError: no such shape"),
        Outcome(verdict=Verdict.UNSUPPORTED, message="no float16 here"),
    ],
)
def test_case_that_cannot_run_is_an_error(result: Outcome) -> None:
    """Exit 2, and 125 in a bisection, which skips the commit then."""
    assert (replayed(result).status, replayed(result).exit_code) == ("ERROR", 2)
    assert replayed(result, bisect=True).exit_code == 125
    assert replayed(result).message


VACUOUS = Outcome(
    verdict=Verdict.VACUOUS,
    message="The transforms left the physical call unchanged.",
    power=Power(kind="order", share=0.5),
    classes={"T1": "vacuous"},
)
POWERLESS = attrs.evolve(
    VACUOUS,
    message="The data has no order power: no defect could have shown.",
    power=Power(kind="order", share=0.0),
    classes={"T1": "unpowered", "T5": "vacuous"},
)


@pytest.mark.parametrize(
    "result",
    [
        VACUOUS,
        Outcome(verdict=Verdict.VACUOUS, message="Nothing was compared."),
        attrs.evolve(POWERLESS, classes={"T1": "vacuous"}),
    ],
)
def test_case_that_shows_nothing_is_an_error(result: Outcome) -> None:
    """Equal bits of a call that the transforms left alone mend nothing; the sentence says why."""
    done = replayed(result)

    assert (done.status, done.exit_code) == ("ERROR", 2)
    assert done.message.startswith("The case no longer shows anything, since the") or (
        "since nothing was compared." in done.message
    )
    assert done.message[-20:] == result.message[-20:]
    assert replayed(result, bisect=True).exit_code == 125


def with_point_at(token: int) -> Fixture:
    """Return the sample with one more value, at a token of its one sequence or past its end."""
    case = sample().case
    recipe = case.data["input"]
    points = (*recipe.points, Point(at={"@": token}, value=(1.0).hex()))
    fixture = sample(case=attrs.evolve(case, data={"input": attrs.evolve(recipe, points=points)}))
    return attrs.evolve(fixture, proof=attrs.evolve(fixture.proof, complete=False))


@pytest.mark.parametrize(("token", "status"), [(0, "FIXED"), (1, "ERROR")])
def test_power_of_a_mended_target_decides_only_where_values_lie_nowhere(
    token: int, status: str
) -> None:
    """What its data were seen to show needs no estimate, if they are still what was seen."""
    judge = FakeJudge(judged=lambda _: HOLDS if not judge.options[-1].measure else POWERLESS)
    done = replay(with_point_at(token), lambda _: judge, allow_targets=ALLOWED)

    assert done.status == status
    assert done.outcome is not None
    assert (done.outcome.verdict is Verdict.VACUOUS) == (status == "ERROR")


def test_bisection_tells_good_from_bad() -> None:
    """Exit 0 and 1 stay what they are."""
    assert replayed(outcome(), bisect=True).exit_code == 1
    assert replayed(HOLDS, bisect=True).exit_code == 0


def test_target_that_is_not_allowed_is_never_opened() -> None:
    """Exit 2 before anything is imported."""

    def open_judge(_: Fixture) -> FakeJudge:
        raise AssertionError("opened")

    done = replay(sample(), open_judge)

    assert (done.status, done.exit_code) == ("ERROR", 2)
    assert "--allow-target" in done.message


def test_target_that_is_not_found_is_an_error() -> None:
    """The sentence of whoever opened it is the message."""

    def open_judge(_: Fixture) -> FakeJudge:
        raise TargetError("There is no such module.")

    done = replay(sample(), open_judge, allow_targets=ALLOWED)

    assert (done.status, done.exit_code) == ("ERROR", 2)
    assert done.message == "There is no such module."


def test_recorded_rate_decides_the_repeats() -> None:
    """A difference in 1 of 100 runs needs hundreds of runs to be seen again."""
    cause = Cause(verdict=Verdict.NONDETERMINISTIC, direction="forward", output="out")
    judge = FakeJudge(judged=lambda _: outcome(cause))
    replay(sample(cause=cause, rate=0.05), lambda _: judge, allow_targets=ALLOWED)

    assert judge.options == [JudgeOptions(rate=0.05)]
    assert judge.options[0].repeats > 80


def test_every_claim_is_judged_again() -> None:
    """A claim that no longer holds is refuted, one that does is confirmed."""

    def judged(case: Case) -> Outcome:
        # K = 1 fails now, against the proof; everything else is as recorded.
        explicit = case.data["input"].points
        fails = case.transforms and case.dims["K"] in {1, 3} and len(explicit) == 3
        return outcome() if fails else HOLDS

    judge = FakeJudge(judged=judged)
    done = replay(sample(), lambda _: judge, allow_targets=ALLOWED, verify=True)

    assert (done.status, done.exit_code, done.refuted) == ("FAILED", 1, 1)
    assert "REFUTED    1 of 7 claims" in render_replay(done)
    found = {(claim.path, claim.value): claim.confirmed for claim in done.verified}
    assert found == {
        (("dims", "K"), 1): False,
        (("dims", "K"), 2): True,
        (("transforms", 0), None): True,
        (("data", "input", "points", 2), None): True,
        (("seed",), 1): True,
        (("seed",), 2): True,
        (("seed",), 3): True,
    }


def test_claim_about_an_illegal_case_is_never_judged() -> None:
    """A stranger's claim is bounded as the case is."""
    fixture = sample()
    wild = attrs.evolve(fixture.proof.needed[0], others=(1 << 60,))
    fixture = attrs.evolve(fixture, proof=attrs.evolve(fixture.proof, needed=(wild,), free=()))
    judge = FakeJudge(judged=lambda _: outcome())
    done = replay(fixture, lambda _: judge, allow_targets=ALLOWED, verify=True)

    assert len(judge.options) == 1
    assert not done.verified[0].confirmed
    assert done.verified[0].message

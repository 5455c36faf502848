"""Strategies: they shrink natively to the simplest, stay legal, and their settings ignore `CI`."""

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from biprop.case import Case
from biprop.errors import SignatureError, UsageError
from biprop.generation import RandomDraw, draw_case, illegal_in
from biprop.judgment import Cause, Verdict
from biprop.layout import CANONICAL, Layout
from biprop.sequence import LogicalSequence
from biprop.strategies.draws import HypothesisDraw
from biprop.strategies.profiles import PROFILES, search_settings
from biprop.strategies.seeded import case_of_seed, seeded_cases
from biprop.strategies.structured import cases, layouts, sequences, space_of, transforms
from biprop.strategies.verdicts import ViolationError, raise_violation, violation_class
from biprop.transforms import AddNeighbours, SplitBatch, Transform, transforms_of

SIGNATURES = {
    "packed": "x[T,H], weight[H] -> y[T,H]",
    "offsets": "x[T,H], cuts: offsets[B+1] -> y[T,H]",
    "padded": "x[B,S,H], live: mask[B,S] -> y[B,S,H]",
    "logp": "logits[T,V], target: token(V)[T] -> logp: float32[T]",
    "contexts": "q[B,Q,H,D], k[B,C,H,D], v[B,C,H,D], m: causal_mask[B,1,Q,C] -> o[B,Q,H,D]",
}
FEW = settings(
    max_examples=500, database=None, deadline=None, derandomize=False, report_multiple_bugs=False
)
QUICK = settings(max_examples=50, database=None, deadline=None, derandomize=True)


def minimal(strategy: "st.SearchStrategy[Case]", condition: object) -> Case:
    """Return what `strategy` shrinks to under a condition."""
    found = find(strategy, condition, settings=FEW, random=Random(0))  # type: ignore[arg-type]
    assert isinstance(found, Case)
    return found


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_cases_shrink_to_the_simplest(name: str, direction: str) -> None:
    """Cases shrink to one sequence of one token, sizes of one, zeros, seed 0 and no transform."""
    strategy = cases(SIGNATURES[name], direction=direction)  # type: ignore[arg-type]
    case = minimal(strategy, lambda _: True)

    assert case.sequences == (LogicalSequence(id=0, length=1),)
    assert set(case.dims.values()) == {1}
    assert {recipe.kind for recipe in (*case.data.values(), *case.policy_state.values())} == {
        "zeros"
    }
    assert case.seed == 0
    assert case.transforms == ()


def test_cases_shrink_to_a_threshold() -> None:
    """A size that must reach 65 shrinks to 65, and everything else to the simplest."""
    case = minimal(cases(SIGNATURES["packed"]), lambda found: found.dims["H"] >= 65)

    assert case.dims == {"H": 65}
    assert case.sequences == (LogicalSequence(id=0, length=1),)
    assert case.transforms == ()


def test_cases_shrink_to_one_transform() -> None:
    """A case that needs neighbours shrinks to the transform that adds them, with one neighbour."""
    case = minimal(
        cases(SIGNATURES["padded"]),
        lambda found: any(
            isinstance(item, AddNeighbours) and item.count for item in transforms_of(found)
        ),
    )

    assert transforms_of(case) == (AddNeighbours(count=1),)
    assert case.sequences == (LogicalSequence(id=0, length=1),)


def test_chunks_shrink_to_two_single_queries() -> None:
    """A cut of queries needs two tokens, and no other transform."""
    case = minimal(
        cases(SIGNATURES["contexts"]),
        lambda found: any(isinstance(item, SplitBatch) for item in transforms_of(found)),
    )

    assert transforms_of(case) == (SplitBatch(cuts=(1,)),)
    assert [sequence.length for sequence in case.sequences] == [2]


def test_lengths_shrink_part_by_part() -> None:
    """A prompt that must have 9 tokens shrinks to 9, before one active token."""
    strategy = sequences(max_count=3, max_length=40)
    found = find(
        strategy,
        lambda items: any(item.prompt_length >= 9 for item in items),
        settings=FEW,
    )

    assert found == (LogicalSequence(id=0, length=10, prompt_length=9),)


@given(sequences(min_count=2, max_count=4, min_length=3, max_length=9, max_position_start=5))
@QUICK
def test_sequences_keep_to_their_bounds(drawn: tuple[LogicalSequence, ...]) -> None:
    """Sequences keep to the bounds that they were given."""

    assert 2 <= len(drawn) <= 4
    assert all(item.active_count >= 3 and item.length <= 9 for item in drawn)
    assert all(item.position_start <= 5 for item in drawn)
    assert [item.id for item in drawn] == list(range(len(drawn)))


@given(data=st.data(), name=st.sampled_from(sorted(SIGNATURES)))
@settings(QUICK, max_examples=150)
def test_structured_cases_are_legal(data: st.DataObject, name: str) -> None:
    """Every case that is drawn choice by choice is legal."""
    space = space_of(SIGNATURES[name])

    assert illegal_in(space, data.draw(cases(SIGNATURES[name]))) == ""


@given(transforms(SIGNATURES["padded"], classes=["T4.finite", "T8"]))
@QUICK
def test_transforms_are_those_asked_for(drawn: tuple[Transform, ...]) -> None:
    """Only transforms of the classes asked for are drawn."""

    assert {transform.transform_class for transform in drawn} <= {"T4", "T8"}


def test_layouts_shrink_to_the_canonical_one() -> None:
    """A layout shrinks to the canonical one, and to the simplest that meets a condition."""
    anything = find(layouts(SIGNATURES["packed"]), lambda _: True, settings=FEW)
    together = find(
        layouts(SIGNATURES["packed"]), lambda item: item.neighbours.together, settings=FEW
    )

    assert anything == CANONICAL
    assert together.before == 0
    assert together.padding == Layout().padding


@pytest.mark.parametrize(
    "arguments",
    [{"min_count": 0}, {"min_count": 3, "max_count": 2}, {"min_length": 9, "max_length": 8}],
)
def test_wrong_bounds_are_refused(arguments: dict[str, int]) -> None:
    """Bounds that contradict each other are refused when the strategy is made."""

    with pytest.raises(UsageError):
        sequences(**arguments)  # type: ignore[arg-type]


def test_wrong_signature_is_refused_early() -> None:
    """A signature that cannot be read fails when the strategy is made, not when drawn from."""

    with pytest.raises(SignatureError):
        cases("x[T,H]")


def test_seeded_cases_are_the_generators_own() -> None:
    """A seed stands for the case that the generator makes of it, whoever drew the seed."""
    space = space_of(SIGNATURES["packed"])
    drawn = find(seeded_cases(space), lambda _: True, settings=FEW)

    assert drawn == case_of_seed(0, space) == draw_case(RandomDraw(0), space)


@given(st.data())
@QUICK
def test_choices_are_those_offered(data: st.DataObject) -> None:
    """The Hypothesis back end keeps to bounds and options, also where options cannot be hashed."""
    draw = HypothesisDraw(data.draw)

    assert 3 <= draw.integer(3, 9) <= 9
    assert draw.integer(4, 4) == 4
    assert draw.choice([[1], [2]]) in ([1], [2])


def test_equal_causes_have_one_class() -> None:
    """A cause has one exception class, made once; another cause has another."""
    cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output="y")
    same = Cause(verdict=Verdict.DRIFTS, direction="forward", output="y")
    other = Cause(verdict=Verdict.DRIFTS, direction="forward", output="rstd")

    assert violation_class(cause) is violation_class(same)
    assert violation_class(cause) is not violation_class(other)


def test_violations_are_raised_from_one_place() -> None:
    """Violations of all causes come from one line, so that Hypothesis tells them apart by class."""
    lines = set()
    for output in ("y", "rstd"):
        cause = Cause(verdict=Verdict.DRIFTS, direction="forward", output=output)
        with pytest.raises(ViolationError, match="here it is") as caught:
            raise_violation(cause, "here it is")
        assert caught.value.cause == cause
        lines.add((caught.traceback[-1].path, caught.traceback[-1].lineno))

    assert len(lines) == 1


CI_SCRIPT = """
from hypothesis import settings
from biprop.strategies.profiles import PROFILES, register_profiles, search_settings
register_profiles(storage="unused")
for name in ("biprop-dev", "biprop-pr", "biprop-nightly"):
    found = settings.get_profile(name)
    print(name, found.derandomize, found.database is None, found.deadline, found.print_blob)
found = search_settings(7)
print("search", found.max_examples, found.derandomize, found.database, found.deadline)
"""


@pytest.mark.parametrize("ci", [{}, {"CI": ""}, {"CI": "1"}])
def test_profiles_say_everything_themselves(ci: dict[str, str]) -> None:
    """What a profile says does not depend on whether `CI` is in the environment."""
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    run = subprocess.run(
        [sys.executable, "-c", CI_SCRIPT],
        env=environment | ci,
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.splitlines() == [
        "biprop-dev False False None False",
        "biprop-pr True True None False",
        "biprop-nightly False False None False",
        "search 7 False None None",
    ]


def test_lanes_differ_in_examples() -> None:
    """The interpreter gets fewer examples and needs fewer of each class; nightly asks for most."""
    pull_request, nightly = PROFILES["pr"], PROFILES["nightly"]

    assert pull_request.examples_of("interpreter") < pull_request.examples_of("cpu")
    assert pull_request.powered_min_of("interpreter") == 1
    assert pull_request.powered_min_of("cpu") == 5
    assert nightly.powered_min_of("cpu") == 50
    assert search_settings(3).max_examples == 3

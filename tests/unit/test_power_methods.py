"""Methods of power: what each draws, that a seed says it all, and what order-revealing data add."""

from itertools import count, islice

import attrs
import pytest

from biprop.case import Case, Dtype
from biprop.data.recipe import Pairing, Recipe
from biprop.generation import illegal_in
from biprop.kernels.planted import PLANTED, Planted
from biprop.power.benches import planted_bench, planted_space
from biprop.power.methods import DESCRIPTIONS, cases_of, draws_of, without_revealing
from biprop.power.trials import seek, shrink, trial_of
from biprop.reports.power import METHODS, Cell, MethodName
from biprop.transforms import apply_all, transforms_of

# Independent tokens, padded rows, gradients of parameters, and queries with contexts.
NAMES = ("linear_gemv", "sum_by_longest", "linear_dweight_by_rows", "decode_in_lanes")
PLAIN = {"zeros", "ones", "integers", "iota", "normal", "uniform", "wide"}


def planted_by(name: str) -> Planted:
    """Return a planted kernel."""
    return next(planted for planted in PLANTED if planted.name == name)


def drawn(name: str, method: MethodName, *, seed: int = 1, count: int = 8) -> list[Case]:
    """Return the first cases that a method draws for a planted kernel."""
    space = planted_space(planted_by(name), "float32")
    return list(islice(draws_of(method)(space, seed), count))


def kinds(case: Case) -> set[str]:
    """Return the kinds of a case's data."""
    return {recipe.kind for recipe in (*case.data.values(), *case.policy_state.values())}


def found(name: str, method: MethodName, *, dtype: Dtype = "bfloat16", seeds: int = 2) -> int:
    """Return how many seeds show a planted defect within 40 examples."""
    bench = planted_bench(planted_by(name), dtype)
    cell = Cell(name=name, kind="", dtype=dtype)
    trials = [trial_of(bench, cell, method, seed=seed, examples=40) for seed in range(1, seeds + 1)]
    return sum(trial.found for trial in trials)


def test_every_method_has_a_description() -> None:
    """Tables say of each what it is."""
    assert tuple(DESCRIPTIONS) == METHODS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_cases_are_legal_and_follow_from_the_seed(name: str, method: MethodName) -> None:
    """Two draws of one seed are the same, and the kernel can take every case."""
    space = planted_space(planted_by(name), "float32")
    cases = drawn(name, method)

    assert cases == drawn(name, method)
    assert [illegal_in(space, case) for case in cases] == [""] * len(cases)
    assert all(case.transforms for case in cases)


def test_another_seed_draws_other_cases() -> None:
    """But for the methods whose data are fixed."""
    differing = {
        method
        for method in METHODS
        if drawn("linear_gemv", method) != drawn("linear_gemv", method, seed=2)
    }

    assert differing == {"biprop", "plain-data", "fixed-normal", "needle"}


def test_cases_of_are_those_of_biprop() -> None:
    """What tests and reports call the own method is one thing."""
    space = planted_space(planted_by("linear_gemv"), "float32")

    assert list(cases_of(space, seed=1, count=8)) == drawn("linear_gemv", "biprop")


def test_each_method_draws_its_own_data() -> None:
    """One kind each, but for biprop's mixture, of which the switch leaves plain kinds."""
    found_kinds = {
        method: set().union(*(kinds(case) for case in drawn("linear_gemv", method, count=40)))
        for method in METHODS
    }

    assert not found_kinds["biprop"] <= PLAIN
    assert found_kinds["plain-data"] <= PLAIN
    assert found_kinds["fixed-sawtooth"] == {"iota"}
    assert found_kinds["fixed-normal"] == {"normal"}
    assert found_kinds["needle"] == {"uniform"}
    assert found_kinds["one-of-many"] == {"linspace"}


def test_one_row_stands_among_2048() -> None:
    """Of independent tokens one beside 2047 others; of sequences 16 tokens among 128 rows."""
    (rows,) = drawn("linear_gemv", "one-of-many")
    (sequences,) = drawn("sum_by_longest", "one-of-many")

    assert apply_all(transforms_of(rows)).neighbours.count == 2047
    assert [sequence.length for sequence in rows.sequences] == [1]
    assert apply_all(transforms_of(sequences)).neighbours.count == 127
    assert [sequence.length for sequence in sequences.sequences] == [16]


def test_a_needle_has_random_places_and_company() -> None:
    """One watched sequence; batches and places differ."""
    cases = drawn("sum_by_longest", "needle", count=50)
    layouts = [apply_all(transforms_of(case)) for case in cases]

    assert {len(case.sequences) for case in cases} == {1}
    assert len({layout.neighbours.count for layout in layouts}) > 10
    assert len({layout.permutation for layout in layouts}) > 40
    assert {case.judged for case in drawn("linear_dweight_by_rows", "needle")} == {
        "token_gradients"
    }


def test_the_interpreter_is_asked_for_less() -> None:
    """There a launch of many rows takes seconds: fewer rounds, batches and rows."""
    name = "sum_in_tiles_by_rows"
    (rows,) = drawn(name, "one-of-many")

    assert len(drawn(name, "fixed-normal", count=50)) == 4
    assert len(drawn(name, "needle", count=50)) == 5
    assert apply_all(transforms_of(rows)).neighbours.count == 255


def test_the_switch_changes_nothing_but_data() -> None:
    """Sizes, sequences, transforms and seeds stay; matched signs and mixtures become normal."""
    mixed = Recipe(kind="mix", rows=(Recipe(kind="ones"), Recipe(kind="pairs")))
    signed = Recipe(kind="normal", exponent=-2, pairing={"K": Pairing(role="own")}, holes=True)
    (case,) = drawn("linear_gemv", "biprop", count=1)
    case = attrs.evolve(case, data={"x": mixed}, policy_state={"weight": signed})
    plain = without_revealing(case)

    assert plain.data == {"x": Recipe(kind="normal")}
    assert plain.policy_state == {"weight": Recipe(kind="normal", exponent=-2)}
    assert attrs.evolve(plain, data=case.data, policy_state=case.policy_state) == case


def test_without_revealing_data_less_is_found() -> None:
    """In bfloat16, a split sum and a single row show with them, and hide nearly always without."""
    names = ("linear_split_k", "linear_gemv")

    assert sum(found(name, "biprop") for name in names) == 4
    assert sum(found(name, "plain-data") for name in names) <= 2


def test_a_trial_follows_from_its_seed() -> None:
    """The same seed finds the same case after the same examples, of a kernel of chance too."""
    bench = planted_bench(planted_by("sum_of_arrivals"), "float32")
    cell = Cell(name="sum_of_arrivals", kind="ATOM", dtype="float32")
    trials = [
        attrs.evolve(trial_of(bench, cell, "biprop", seed=3, examples=40), seconds=0.0)
        for _ in range(2)
    ]

    assert trials[0] == trials[1]
    assert trials[0].found


def test_interpreted_gradients_of_weights_have_as_many_tokens_as_sums_have_terms() -> None:
    """Tokens are what such a gradient is summed over; other interpreted kernels have few."""
    space = planted_space(planted_by("dweight_chunks_by_rows"), "bfloat16")
    others = planted_space(planted_by("product_split_by_rows"), "bfloat16")
    tokens = [
        sum(sequence.length for sequence in case.sequences)
        for case in cases_of(space, seed=1, count=60)
        if case.judged == "parameter_gradients"
    ]

    assert space.limits.tokens_max == space.limits.dim_max
    assert max(tokens) > others.limits.tokens_max


def test_shrinking_obeys_the_clock_of_the_bench() -> None:
    """Seconds are counted by it alone: where it runs ahead, shrinking ends at once."""
    bench = planted_bench(planted_by("quantise_by_batch"), "float32")
    sought = seek(bench, cases_of(bench.space, seed=1, count=40))
    assert sought.case is not None
    assert sought.outcome is not None
    seconds = count(step=100)
    hurried = attrs.evolve(bench, clock=lambda: float(next(seconds)))

    assert shrink(bench, sought.case, sought.outcome).proof.complete
    assert not shrink(hurried, sought.case, sought.outcome).proof.complete

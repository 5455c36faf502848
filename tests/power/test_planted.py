"""Power: every planted defect is found and shrinks to its smallest structure, every twin holds.

What is searched exhaustively stands in `kernels/planted/smallest.json` (`ci/smallest`).
"""

import pytest
import torch
from tests.power.smallest import RATE, cost_to_data, entries
from tests.power.trials import (
    cases_of,
    find_failure,
    judge_quickly,
    minimise_failure,
    space_of,
    without_class,
)

from biprop.case import Dtype
from biprop.generation import CLASSES
from biprop.generation.composition import applicable_classes
from biprop.generation.generator import judged_in
from biprop.judgment import Verdict
from biprop.kernels.planted import PLANTED, Planted
from biprop.minimize import classes_of, cost
from biprop.signature.roles import has_contexts

EXAMPLES = 200
HEALTHY_EXAMPLES = 60
EXPOSED_EXAMPLES = 400
UNEXPOSED_EXAMPLES = 25
# Of attention, whose examples are dear.
HEALTHY_ATTENTION_EXAMPLES = 20
UNEXPOSED_ATTENTION_EXAMPLES = 10
SEED = 1

CELLS = [(planted, dtype) for planted in PLANTED for dtype in planted.dtypes]


def is_attention(planted: Planted) -> bool:
    """Tell whether a planted kernel has queries and contexts."""
    return has_contexts(planted.kernel().signature)


def is_shrunk(planted: Planted, dtype: Dtype) -> bool:
    """Tell whether a finding is shrunk here: of attention in one dtype each, in turn."""
    turn = PLANTED.index(planted) % len(planted.dtypes)
    return not is_attention(planted) or dtype == planted.dtypes[turn]


def each(cells: list[tuple[Planted, Dtype]]) -> pytest.MarkDecorator:
    """Parametrise a test by planted kernels and dtypes."""
    return pytest.mark.parametrize(
        ("planted", "dtype"),
        [pytest.param(planted, dtype, id=f"{planted.name}-{dtype}") for planted, dtype in cells],
    )


each_planted = pytest.mark.parametrize(
    "planted", [pytest.param(planted, id=planted.name) for planted in PLANTED]
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start torch's generator anew: one planted kernel draws from it."""
    torch.manual_seed(SEED)


@each([cell for cell in CELLS if is_shrunk(*cell)])
def test_defect_is_found_and_shrinks_to_its_smallest_structure(
    planted: Planted, dtype: Dtype
) -> None:
    """200 examples show the defect, and minimising reaches what the exhaustive search found."""
    smallest = entries()[planted.name, dtype]
    found = find_failure(planted, space_of(planted, dtype), seed=SEED, count=EXAMPLES)

    assert found is not None
    minimised = minimise_failure(planted, *found)
    cause = minimised.outcome.cause
    assert cause is not None
    assert (cause.verdict is Verdict.NONDETERMINISTIC) == (not planted.deterministic)
    assert set(cause.transforms) <= set(planted.exposed_by) | {"T1"}
    if "cost" in smallest:
        assert cost_to_data(cost(planted.kernel().signature, minimised.case)) == smallest["cost"]
    else:
        assert smallest["bound"] is True


@each([cell for cell in CELLS if not is_shrunk(*cell)])
def test_defect_is_found(planted: Planted, dtype: Dtype) -> None:
    """200 examples show the defect in the other dtype too."""
    space = space_of(planted, dtype)

    assert find_failure(planted, space, seed=SEED, count=EXAMPLES) is not None


@each(CELLS)
def test_healthy_twin_holds(planted: Planted, dtype: Dtype) -> None:
    """The twin, one line apart, fails in no example."""
    twin = planted.kernel(healthy=True)
    space = space_of(planted, dtype, is_small=True)
    count = HEALTHY_ATTENTION_EXAMPLES if is_attention(planted) else HEALTHY_EXAMPLES
    failing = [
        case
        for case in cases_of(space, seed=SEED, count=count)
        if judge_quickly(twin, case).verdict is not Verdict.HOLDS
    ]

    assert failing == []


@each_planted
def test_listed_classes_expose_the_defect_and_no_others(planted: Planted) -> None:
    """Each class listed exposes the defect alone; the others, over some examples each, do not."""
    space = space_of(planted, planted.dtypes[0])
    classes = [
        name
        for name in CLASSES
        if any(name in applicable_classes(space, judged) for judged in judged_in(space))
    ]
    exposing = [name for name in classes if _exposes(planted, name)]

    assert exposing == [name for name in CLASSES if name in planted.exposed_by]


def _exposes(planted: Planted, name: str) -> bool:
    """Whether a case fails by one class, beside T1 where it needs that, and holds without it."""
    kernel = planted.kernel()
    space = space_of(planted, planted.dtypes[0], classes=[name], is_small=True)
    rest = UNEXPOSED_ATTENTION_EXAMPLES if is_attention(planted) else UNEXPOSED_EXAMPLES
    count = EXPOSED_EXAMPLES if name in planted.exposed_by else rest
    rate = None if planted.deterministic else RATE
    for case in cases_of(space, seed=SEED, count=count):
        if name not in classes_of(case):
            continue
        if judge_quickly(kernel, case, rate=rate).verdict.is_violation:
            left = judge_quickly(kernel, without_class(case, name), rate=rate)
            if not left.verdict.is_violation:
                return True
    return False

"""Power: every planted defect is found and shrinks to its smallest structure, every twin holds.

What is searched exhaustively stands in `kernels/planted/smallest.json` (`ci/smallest`). Of the
kernels that a change tries, each is shrunk in one dtype, in turn, and found in the other. What is
left to profile nightly is marked so: shrinking and the twin in the other dtype, and which classes
expose a defect where examples are dear.
"""

from collections.abc import Callable

import pytest
import torch
from tests.power.smallest import entries
from tests.power.trials import (
    FocusedDraw,
    cases_for,
    cases_of,
    device_of,
    find_failure,
    judge_quickly,
    minimise_failure,
    space_of,
    without_class,
)
from tests.power.unreached import BELOW, MISSED, UNREACHED

from biprop.case import Dtype
from biprop.generation import CLASSES
from biprop.generation.composition import applicable_classes
from biprop.generation.generator import judged_in
from biprop.generation.sizes import draw_size
from biprop.judgment import Verdict
from biprop.kernels.planted import PLANTED, Planted
from biprop.minimize import classes_of, cost
from biprop.power.smallest import cost_by_component
from biprop.signature.roles import has_contexts

EXAMPLES = 200
HEALTHY_EXAMPLES = 60
EXPOSED_EXAMPLES = 4000
UNEXPOSED_EXAMPLES = 25
# Of attention, whose examples are dear.
HEALTHY_ATTENTION_EXAMPLES = 20
UNEXPOSED_ATTENTION_EXAMPLES = 10
# Share of differing calls below which each case is repeated a hundred times and more.
SELDOM = 0.1
SEED = 1

CELLS = [(planted, dtype) for planted in PLANTED for dtype in planted.dtypes]


def is_attention(planted: Planted) -> bool:
    """Tell whether a planted kernel has queries and contexts."""
    return has_contexts(planted.kernel().signature)


def is_dear(planted: Planted) -> bool:
    """Tell whether examples of a planted kernel take long, or many of them are needed."""
    is_seldom = planted.rare is not None or planted.rate < SELDOM
    return is_attention(planted) or planted.interpreted or is_seldom


def is_first(planted: Planted, dtype: Dtype) -> bool:
    """Tell whether a dtype is the one in which all is tried in a change; kernels take turns."""
    return dtype == planted.dtypes[PLANTED.index(planted) % len(planted.dtypes)]


def marks_of(planted: Planted, *, is_nightly: bool) -> list[pytest.MarkDecorator]:
    """Return the marks of a test of a planted kernel."""
    marks = [pytest.mark.nightly] if is_nightly else []
    if device_of(planted) == "cuda":
        lacks = not torch.cuda.is_available()
        marks.append(pytest.mark.skipif(lacks, reason="shows where it is compiled, on a GPU alone"))
    return marks


def each(
    cells: list[tuple[Planted, Dtype]], *, is_nightly: Callable[[Planted, Dtype], bool]
) -> pytest.MarkDecorator:
    """Parametrise a test by planted kernels and dtypes, some of them for profile nightly alone."""
    return pytest.mark.parametrize(
        ("planted", "dtype"),
        [
            pytest.param(
                planted,
                dtype,
                id=f"{planted.name}-{dtype}",
                marks=marks_of(planted, is_nightly=is_nightly(planted, dtype)),
            )
            for planted, dtype in cells
        ],
    )


each_planted = pytest.mark.parametrize(
    "planted",
    [
        pytest.param(planted, id=planted.name, marks=marks_of(planted, is_nightly=is_dear(planted)))
        for planted in PLANTED
    ],
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start torch's generator anew: one planted kernel draws from it."""
    torch.manual_seed(SEED)


@each(
    [cell for cell in CELLS if is_first(*cell) or not is_attention(cell[0])],
    is_nightly=lambda *cell: not is_first(*cell),
)
def test_defect_is_found_and_shrinks_to_its_smallest_structure(
    planted: Planted, dtype: Dtype
) -> None:
    """200 examples show the defect, and minimising reaches what the exhaustive search found."""
    smallest = entries().get((planted.name, dtype), {"bound": True})
    found = find_failure(planted, dtype, seed=SEED, count=EXAMPLES)

    # An entry that is found after all has to go.
    assert (found is None) == ((planted.name, dtype) in MISSED)
    if found is None:
        return
    minimised = minimise_failure(planted, *found)
    cause = minimised.outcome.cause
    assert cause is not None
    assert (cause.verdict is Verdict.NONDETERMINISTIC) == (not planted.deterministic)
    assert set(cause.transforms) <= set(planted.exposed_by) | {"T1"}
    if "cost" not in smallest:
        assert smallest["bound"] is True
        return
    reached = cost_by_component(cost(planted.kernel().signature, minimised.case))
    least = cost_by_component(smallest)
    lacking = tuple(name for name in least if reached[name] > least[name])

    assert lacking == UNREACHED.get((planted.name, dtype), ())
    is_below = not lacking and reached != least
    assert is_below == ((planted.name, dtype) in BELOW)


@each([cell for cell in CELLS if not is_first(*cell)], is_nightly=lambda *_: False)
def test_defect_is_found(planted: Planted, dtype: Dtype) -> None:
    """200 examples show the defect in the other dtype too."""
    found = find_failure(planted, dtype, seed=SEED, count=EXAMPLES)

    assert (found is None) == ((planted.name, dtype) in MISSED)


@each(CELLS, is_nightly=lambda *cell: not is_first(*cell))
def test_healthy_twin_holds(planted: Planted, dtype: Dtype) -> None:
    """The twin, one line apart, fails in no example."""
    twin = planted.kernel(healthy=True)
    space = space_of(planted, dtype, is_small=True)
    count = HEALTHY_ATTENTION_EXAMPLES if is_attention(planted) else HEALTHY_EXAMPLES
    failing = [
        case
        for case in cases_of(space, seed=SEED, count=count)
        if judge_quickly(twin, case, device=device_of(planted)).verdict is not Verdict.HOLDS
    ]

    assert failing == []


@each_planted
def test_listed_classes_expose_the_defect_and_no_others(planted: Planted) -> None:
    """Each class listed exposes the defect alone; the others, over some examples each, do not.

    Of a rare kernel it is said of the listed classes only: too few examples of the others meet its
    sizes for their silence to mean anything.
    """
    space = space_of(planted, planted.dtypes[0], is_small=True)
    classes = [
        name
        for name in CLASSES
        if any(name in applicable_classes(space, judged) for judged in judged_in(space))
        if name in planted.exposed_by or planted.rare is None
    ]
    exposing = [name for name in classes if _exposes(planted, name)]

    assert exposing == [name for name in CLASSES if name in planted.exposed_by]


def test_focused_draw_prefers_constants() -> None:
    """Sizes that a rare kernel asks for are drawn more often than all others together."""
    sizes = [draw_size(FocusedDraw(seed), 64, constants=(37,)) for seed in range(200)]

    assert sum(36 <= size <= 38 for size in sizes) > 0.5 * len(sizes)


def _exposes(planted: Planted, name: str) -> bool:
    """Whether a case fails by one class, beside T1 where it needs that, and holds without it."""
    kernel = planted.kernel()
    rest = UNEXPOSED_ATTENTION_EXAMPLES if is_attention(planted) else UNEXPOSED_EXAMPLES
    count = EXPOSED_EXAMPLES if name in planted.exposed_by else rest
    rate = planted.rate_seen
    device = device_of(planted)
    for case in cases_for(planted, name, seed=SEED, count=count):
        if name not in classes_of(case):
            continue
        if judge_quickly(kernel, case, rate=rate, device=device).verdict.is_violation:
            left = judge_quickly(kernel, without_class(case, name), rate=rate, device=device)
            if not left.verdict.is_violation:
                return True
    return False

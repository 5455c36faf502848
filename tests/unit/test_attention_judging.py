"""Healthy attention holds in every layout of queries and contexts, and each planted defect shows.

The models and their defects stand in `tests/unit/attention_models.py`; arguments are looked at one
by one in `tests/unit/test_execution_contexts.py`.
"""

import random
from collections.abc import Iterator
from itertools import cycle

import attrs
import pytest
from tests.unit.attention_models import ARRANGEMENTS, DEFECTS, model

from biprop.case import Case, Dtype
from biprop.generation import (
    LIMITS,
    RandomDraw,
    Space,
    applicability,
    draw_case,
    wanted_classes,
)
from biprop.generation.space import Direction
from biprop.judgment import Outcome, Verdict
from biprop.operators import Kernel
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.signature import parse_signature
from biprop.transforms import class_of, transforms_of

# Enough for several blocks of keys and several rows, and no more.
LIMITS_SMALL = attrs.evolve(
    LIMITS["cpu"],
    sequences_max=4,
    watched_max=3,
    length_max=9,
    dim_sequence_max=3,
    padding_max=4,
)
HEALTHY_EXAMPLES = 3
DEFECT_EXAMPLES = 60
CLASSES = {"T1", "T2", "T3", "T4.finite", "T4.nonfinite", "T5", "T6", "T8"}
# Layouts for which a class has no meaning.
WITHOUT = {
    "masked": set(),
    "additive": set(),
    "masks": {"T6"},
    "lengths": {"T6"},
    "offsets": {"T6"},
    "packed_mask": {"T6"},
    "flag": {"T6"},
    "one_query": {"T5", "T6"},
}


def drawn(
    kernel: Kernel,
    *,
    count: int,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    classes: tuple[str, ...] = (),
) -> Iterator[Case]:
    """Draw cases of a kernel, the same each time."""
    space = Space(
        signature=kernel.signature,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        dtype=dtype,
        direction=direction,
        classes=wanted_classes(classes),
        limits=LIMITS_SMALL,
    )
    seeds = random.Random(7)
    for _ in range(count):
        yield draw_case(RandomDraw(seeds.getrandbits(64)), space)


def judged(kernel: Kernel, case: Case) -> Outcome:
    """Judge a case without measuring its evidence."""
    return judge_invariance(kernel, case, options=JudgeOptions(measure=False))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("direction", "is_registered"),
    [("forward", False), ("backward", False), ("backward", True)],
    ids=["forward", "autograd", "backward"],
)
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_healthy_attention_holds(
    name: str, direction: Direction, dtype: Dtype, *, is_registered: bool
) -> None:
    """Under every class that applies, whoever makes the gradients."""
    kernel = model(name, is_registered=is_registered)
    cases = drawn(kernel, count=HEALTHY_EXAMPLES, dtype=dtype, direction=direction)

    assert [judged(kernel, case).verdict for case in cases] == [Verdict.HOLDS] * HEALTHY_EXAMPLES


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_class_that_applies_is_drawn(name: str) -> None:
    """So that holding means something."""
    cases = drawn(model(name), count=60)
    found = {class_of(transform) for case in cases for transform in transforms_of(case)}

    assert found == CLASSES - WITHOUT[name]


@pytest.mark.parametrize(
    ("name", "dtype"), list(zip(DEFECTS, cycle(["float32", "bfloat16"]), strict=False))
)
def test_a_planted_defect_is_found(name: str, dtype: Dtype) -> None:
    """By the classes that it is listed with alone, while the kernel without it holds."""
    defect = DEFECTS[name]
    kernel = model(defect.arrangement, defect.habits)
    cases = drawn(
        kernel,
        count=DEFECT_EXAMPLES,
        dtype=dtype,
        direction=defect.direction,
        classes=defect.classes,
    )
    found = next((case for case in cases if judged(kernel, case).verdict is Verdict.DRIFTS), None)

    assert found is not None
    assert judged(model(defect.arrangement), found).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("name", "knows"),
    [
        ("masked", False),
        ("packed_mask", False),
        ("flag", False),
        ("masks", True),
        ("lengths", True),
        ("offsets", True),
    ],
)
def test_gradients_of_parameters_meet_no_nan_that_nothing_tells(name: str, *, knows: bool) -> None:
    """A dead query attends a key as a live one does, and zero times NaN is nobody's fault."""
    arrangement = ARRANGEMENTS[name]
    told = f", {arrangement.told}, gain[D] -> o{arrangement.query}"
    signature = parse_signature(
        f"q{arrangement.query}, k{arrangement.key}, v{arrangement.key}{told}"
    )
    reasons = applicability(signature, judged="parameter_gradients")

    assert (reasons["T4.nonfinite"] == "") is knows
    assert reasons["T4.finite"] == ""

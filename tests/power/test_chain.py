"""Power: a planted defect of one direction of an operator turns that cell red, and no other.

Each takes the place of the torch backend's forward or backward; the kernels themselves, and the
facts about each, are in `kernels/planted/`. Most of them drift. Those that are INACCURATE do not:
they are held against the float32 reference, as a search does once nothing drifts.
"""

from collections.abc import Iterator

import attrs
import pytest
from tests.power.trials import cases_of

from biprop.case import Against, Dtype
from biprop.contract import judgment_of, load_contract
from biprop.generation import LIMITS, Space
from biprop.generation.space import Direction
from biprop.judgment import Verdict
from biprop.kernels import OPERATORS
from biprop.kernels.planted import CHAIN, ChainDefect
from biprop.loading import source_constants
from biprop.operators import Form, Implementation, Kernel, Operator, Registry
from biprop.relations import JudgeOptions
from biprop.relations.judging import judge_case

EXAMPLES = 200
HEALTHY_EXAMPLES = 12
# Of defects that relation I must not find.
INVARIANT_EXAMPLES = 24
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
SEED = 1

DRIFTING = [defect for defect in CHAIN if defect.verdict == "DRIFTS"]
INACCURATE = [defect for defect in CHAIN if defect.verdict == "INACCURATE"]

# In one dtype each, in turn; the two directions of an operator stand beside each other.
CELLS = [
    pytest.param(defect, DTYPES[number // 2 % 2], id=f"{defect.name}-{DTYPES[number // 2 % 2]}")
    for number, defect in enumerate(DRIFTING)
]
# In float32: what a product in TF32 cuts off, bfloat16 has not.
each_inaccurate = pytest.mark.parametrize(
    "defect", [pytest.param(defect, id=defect.name) for defect in INACCURATE]
)


def broken(operator: Operator, defect: ChainDefect) -> Operator:
    """Return an operator with the defect in the place of its torch backend's own function."""

    def with_defect(form: Form) -> Form:
        if form.name != defect.form:
            return form
        implementations = tuple(
            attrs.evolve(item, **{defect.direction: defect.function})  # type: ignore[arg-type]  # one of two functions
            if item.backend == "torch"
            else item
            for item in form.implementations
        )
        return attrs.evolve(form, implementations=implementations)

    return attrs.evolve(operator, forms=tuple(map(with_defect, operator.forms)))


def kernel_of(defect: ChainDefect) -> Kernel:
    """Return the torch kernel of the operator, broken."""
    (operator,) = (item for item in OPERATORS if item.name == defect.operator)
    registry = Registry(operators=(broken(operator, defect),))
    return registry.find(target=f"{defect.operator}/{defect.form}", backend="torch")


def space_of(kernel: Kernel, dtype: Dtype, direction: Direction) -> Space:
    """Return what is drawn for one of its cells."""
    functions = [kernel.function, *([kernel.backward] if kernel.backward else [])]
    mined = {size for function in functions for size in source_constants(function)}
    return Space(
        signature=kernel.signature,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        dtype=dtype,
        direction=direction,
        registered=True,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        constants=tuple(sorted(mined)),
        limits=LIMITS["cpu"],
    )


def held_against_reference(space: Space) -> Space:
    """Return a space whose cases are of relation A alone, with the tolerance of the contract."""
    assert space.op_class is not None
    tolerance = load_contract().tolerance(
        judgment=judgment_of("A", space.direction), op_class=space.op_class, dtype=space.dtype
    )
    assert tolerance is not None
    accuracy = Against(relation="A", atol=tolerance.atol, rtol=tolerance.rtol)
    return attrs.evolve(space, against=(accuracy,), only=accuracy)


def verdicts_of(kernel: Kernel, space: Space, *, count: int) -> Iterator[Verdict]:
    """Judge so many cases of a space one after the other."""
    for case in cases_of(space, seed=SEED, count=count):
        yield judge_case(kernel, case, options=JudgeOptions(measure=False)).verdict


@pytest.mark.parametrize(("defect", "dtype"), CELLS)
def test_defect_turns_its_own_direction_red(defect: ChainDefect, dtype: Dtype) -> None:
    """200 examples of its direction show it, and those of the other direction hold."""
    kernel = kernel_of(defect)
    (other,) = (direction for direction in DIRECTIONS if direction != defect.direction)
    space = space_of(kernel, dtype, defect.direction)

    assert any(verdict.is_violation for verdict in verdicts_of(kernel, space, count=EXAMPLES))
    healthy = space_of(kernel, dtype, other)
    assert not any(
        verdict.is_violation for verdict in verdicts_of(kernel, healthy, count=HEALTHY_EXAMPLES)
    )


@each_inaccurate
def test_inaccurate_defect_leaves_its_tolerance(defect: ChainDefect) -> None:
    """200 examples of its direction, on conditioned data, show it as INACCURATE."""
    kernel = kernel_of(defect)
    space = held_against_reference(space_of(kernel, "float32", defect.direction))
    verdicts = verdicts_of(kernel, space, count=EXAMPLES)
    found = next((verdict for verdict in verdicts if verdict.is_violation), None)

    assert found is Verdict.INACCURATE


@each_inaccurate
@pytest.mark.parametrize("dtype", DTYPES)
def test_inaccurate_defect_is_batch_invariant(defect: ChainDefect, dtype: Dtype) -> None:
    """Relation I holds in both directions: no bit of what is wrong depends on the batch."""
    kernel = kernel_of(defect)
    failing = [
        (direction, verdict)
        for direction in DIRECTIONS
        for verdict in verdicts_of(
            kernel, space_of(kernel, dtype, direction), count=INVARIANT_EXAMPLES
        )
        if verdict is not Verdict.HOLDS
    ]

    assert failing == []


@each_inaccurate
def test_inaccurate_defect_leaves_the_other_direction_accurate(defect: ChainDefect) -> None:
    """Relation A holds for the direction that is not broken."""
    kernel = kernel_of(defect)
    (other,) = (direction for direction in DIRECTIONS if direction != defect.direction)
    space = held_against_reference(space_of(kernel, "float32", other))

    assert not any(
        verdict.is_violation for verdict in verdicts_of(kernel, space, count=INVARIANT_EXAMPLES)
    )


def test_every_declared_operator_has_one_of_each_direction() -> None:
    """Forward and backward, for every operator that promises both."""
    found = sorted((defect.operator, defect.direction) for defect in DRIFTING)
    declared = [item for item in OPERATORS if item.declaration is not None]

    assert found == sorted((item.name, direction) for item in declared for direction in DIRECTIONS)


def test_defect_is_where_it_is_said_to_be() -> None:
    """Only the torch backend of the form that is named is another one."""
    for defect in CHAIN:
        (operator,) = (item for item in OPERATORS if item.name == defect.operator)
        changed = [
            (form.name, implementation.backend)
            for form, old in zip(broken(operator, defect).forms, operator.forms, strict=True)
            for implementation, before in zip(
                form.implementations, old.implementations, strict=True
            )
            if _functions(implementation) != _functions(before)
        ]
        assert changed == [(defect.form, "torch")]


def _functions(implementation: Implementation) -> tuple[object, object]:
    return implementation.forward, implementation.backward

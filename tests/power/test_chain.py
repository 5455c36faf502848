"""Power: a planted defect of one direction of an operator turns that cell red, and no other.

Each takes the place of the torch backend's forward or backward; the kernels themselves, and the
facts about each, are in `kernels/planted/`.
"""

import attrs
import pytest
from tests.power.trials import cases_of, judge_quickly

from biprop.case import Dtype
from biprop.generation import LIMITS, Space
from biprop.generation.space import Direction
from biprop.kernels import OPERATORS
from biprop.kernels.planted import CHAIN, ChainDefect
from biprop.loading import source_constants
from biprop.operators import Form, Implementation, Kernel, Operator, Registry

EXAMPLES = 200
HEALTHY_EXAMPLES = 12
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
SEED = 1

# In one dtype each, in turn; the two directions of an operator stand beside each other.
CELLS = [
    pytest.param(defect, DTYPES[number // 2 % 2], id=f"{defect.name}-{DTYPES[number // 2 % 2]}")
    for number, defect in enumerate(CHAIN)
]


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


@pytest.mark.parametrize(("defect", "dtype"), CELLS)
def test_defect_turns_its_own_direction_red(defect: ChainDefect, dtype: Dtype) -> None:
    """200 examples of its direction show it, and those of the other direction hold."""
    kernel = kernel_of(defect)
    (other,) = (direction for direction in DIRECTIONS if direction != defect.direction)
    space = space_of(kernel, dtype, defect.direction)

    assert any(
        judge_quickly(kernel, case).verdict.is_violation
        for case in cases_of(space, seed=SEED, count=EXAMPLES)
    )
    for case in cases_of(space_of(kernel, dtype, other), seed=SEED, count=HEALTHY_EXAMPLES):
        assert not judge_quickly(kernel, case).verdict.is_violation


def test_every_declared_operator_has_one_of_each_direction() -> None:
    """Forward and backward, for every operator that promises both."""
    found = sorted((defect.operator, defect.direction) for defect in CHAIN)
    declared = [item for item in OPERATORS if item.declaration is not None]

    assert found == sorted((item.name, direction) for item in declared for direction in DIRECTIONS)
    assert len({defect.name for defect in CHAIN}) == len(CHAIN)


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

"""The cells of a registry: form x backend x dtype x direction of every declared operator.

Listing only, shared by whoever runs cells (`biprop.suite`, `biprop.pytest_plugin`, ci/lanes). Ids
depend on the registry alone, so that every process lists the same. Exempt operators have none.
"""

from collections.abc import Collection, Sequence

import attrs

from biprop.case import Dtype
from biprop.generation.space import Direction
from biprop.operators import Kernel, KernelReference, OpClass, Registry
from biprop.supervision.resolve import reference_of

__all__ = [
    "DIRECTIONS",
    "DTYPES_OF_CELLS",
    "Cell",
    "cells_of",
    "declared_in",
    "id_of",
    "rank_of_cost",
]

DTYPES_OF_CELLS: tuple[Dtype, ...] = ("float32", "bfloat16")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
# Classes of operators by what an example costs.
_DEAREST_FIRST: tuple[OpClass, ...] = ("attention", "logprob", "reduction", "elementwise")


@attrs.frozen(kw_only=True)
class Cell:
    """A kernel, a dtype and a direction.

    Attributes:
        id: `rms_norm-triton-bfloat16-backward`; forms other than packed are named.
        reference: The kernel.
        op_class: Of the operator.
        dtype: Of the cases.
        direction: Whether outputs or gradients are judged.
    """

    id: str
    reference: KernelReference
    op_class: OpClass
    dtype: Dtype
    direction: Direction


def cells_of(
    registry: Registry,
    wanted: Collection[str] | None = None,
    *,
    dtypes: Sequence[Dtype] = DTYPES_OF_CELLS,
    directions: Sequence[Direction] = DIRECTIONS,
) -> tuple[Cell, ...]:
    """Return the cells of the declared operators of a registry.

    Args:
        registry: The operators.
        wanted: Names of those that are wanted; None: all.
        dtypes: Of the cells.
        directions: Of the cells; an operator that promises no gradients has none backward.
    """
    return tuple(
        Cell(
            id=id_of(kernel, dtype=dtype, direction=direction),
            reference=reference_of(kernel),
            op_class=kernel.op_class,
            dtype=dtype,
            direction=direction,
        )
        for kernel in registry.kernels()
        # A declared operator always has a class.
        if kernel.declaration is not None and kernel.op_class is not None
        if wanted is None or kernel.operator in wanted
        for dtype in dtypes
        for direction in directions
        if direction == "forward" or kernel.declaration.backward
    )


def rank_of_cost(op_class: OpClass, direction: Direction) -> int:
    """Return how early to begin a cell: attention and its gradients are the dearest, by far.

    Who runs cells side by side begins with them, so that none is begun when the others end.
    """
    return 2 * _DEAREST_FIRST.index(op_class) + (direction == "forward")


def declared_in(registry: Registry) -> frozenset[str]:
    """Return the names of the declared operators, which have cells."""
    return frozenset(item.name for item in registry.operators if item.declaration is not None)


def id_of(kernel: Kernel, *, dtype: Dtype, direction: Direction) -> str:
    """Return the id of a kernel's cell."""
    form = () if kernel.form == "packed" else (kernel.form,)
    return "-".join((kernel.operator, *form, kernel.backend, dtype, direction))

"""Poison that is not finite, and what stands in for it, without torch.

NaN in unused memory condemns masking by multiplication, which finite values leave unseen; the two
are separate causes, so a violation is judged again without what is not finite.
"""

import attrs

from biprop.kvcache.records import Op, Poison, Program
from biprop.kvcache.shape import Fill

__all__ = ["FILLS_FINITE", "has_nonfinite_poison", "with_finite_poison"]

# What is tried in the place of what is not finite: what shows most comes first.
FILLS_FINITE: tuple[Fill, ...] = ("garbage", "zero")


def has_nonfinite_poison(program: Program) -> bool:
    """Return whether an operation of a program writes NaN or infinities where no token lives."""
    return any(_is_nonfinite(op) for op in program.ops)


def with_finite_poison(program: Program, fill: Fill) -> Program:
    """Return a program with `fill` in the place of what is not finite."""
    ops = tuple(Poison(fill=fill) if _is_nonfinite(op) else op for op in program.ops)
    return attrs.evolve(program, ops=ops)


def _is_nonfinite(op: Op) -> bool:
    return isinstance(op, Poison) and op.fill not in FILLS_FINITE

"""Sharpening: does a case fail only with a non-finite fill?

NaN in padding condemns masking by multiplication, which finite padding leaves unseen; the two are
separate causes. Here are the cases to judge instead, without torch; who judges them are
`biprop.relations.invariance`, and `biprop.supervision.supervised` where a case kills its worker.
"""

import attrs

from biprop.case import Case, TransformData
from biprop.layout.records import FILLS_FINITE, Fill

__all__ = ["FILLS_TRIED", "has_nonfinite_fill", "with_finite_fill"]

# Large values show most; where they are illegal, one; zero last, as it is the mildest.
FILLS_TRIED: tuple[Fill, ...] = ("large", "one", "zero")


def has_nonfinite_fill(case: Case) -> bool:
    """Return whether any dead slot of the case may hold NaN or an infinity."""
    return any(_is_nonfinite(data) for data in case.transforms)


def with_finite_fill(case: Case, fill: Fill) -> Case:
    """Return `case` with `fill` where its fills are not finite."""
    transforms = tuple(
        attrs.evolve(data, values={**data.values, "fill": fill}) if _is_nonfinite(data) else data
        for data in case.transforms
    )
    return attrs.evolve(case, transforms=transforms)


def _is_nonfinite(data: TransformData) -> bool:
    return data.values.get("fill", FILLS_FINITE[0]) not in FILLS_FINITE

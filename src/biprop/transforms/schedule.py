"""T5, execution schedule: where the work is cut into launches."""

from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

import attrs

from biprop.errors import CaseError
from biprop.layout import Layout

__all__ = ["SplitBatch"]


def _tuple(cuts: Iterable[int]) -> tuple[int, ...]:
    return tuple(cuts)


def _increasing(_: object, __: object, cuts: tuple[int, ...]) -> None:
    if not cuts or cuts[0] < 1 or any(low >= high for low, high in pairwise(cuts)):
        raise CaseError(f"SplitBatch cuts={cuts}: give increasing cuts from 1.")


@attrs.frozen(kw_only=True)
class SplitBatch:
    """Cut the work into several launches.

    Attributes:
        cuts: Increasing, from 1; units are slots of a token-wise launch (dead ones included),
            tokens of each sequence where there are queries and contexts, sequences otherwise. A cut
            past the end is without effect.
    """

    cuts: tuple[int, ...] = attrs.field(default=(1,), converter=_tuple, validator=_increasing)

    transform_class: ClassVar[str] = "T5"
    source_class: ClassVar[str] = "execution_schedule"
    fields: ClassVar[tuple[str, ...]] = ("cuts",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the cuts set."""
        return attrs.evolve(layout, cuts=self.cuts)

"""T1, batch population: how many sequences share the launch."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout

__all__ = ["AddNeighbours"]


@attrs.frozen(kw_only=True)
class AddNeighbours:
    """Run all watched sequences in shared launches, with `count` neighbours beside them.

    Attributes:
        count: Neighbours; 0 only puts the watched sequences together.
    """

    count: int = attrs.field(default=0, validator=[ge(0), le(65536)])

    transform_class: ClassVar[str] = "T1"
    source_class: ClassVar[str] = "batch_population"
    fields: ClassVar[tuple[str, ...]] = ("neighbours.together", "neighbours.count")

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the population set."""
        neighbours = attrs.evolve(layout.neighbours, together=True, count=self.count)
        return attrs.evolve(layout, neighbours=neighbours)

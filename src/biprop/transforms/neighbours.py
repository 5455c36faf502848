"""T3, neighbour content: lengths and values of the other sequences."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout

__all__ = ["ReplaceNeighbours"]


@attrs.frozen(kw_only=True)
class ReplaceNeighbours:
    """Give the neighbours lengths and values of their own.

    Attributes:
        length: Tokens of each; 0: the lengths of the watched sequences in turn.
        spread: Largest number of tokens added, by a hash.
        loudness: Their floats are multiplied by 2**loudness.
    """

    length: int = attrs.field(default=0, validator=[ge(0), le(1 << 20)])
    spread: int = attrs.field(default=0, validator=[ge(0), le(1 << 20)])
    loudness: int = attrs.field(default=0, validator=[ge(0), le(16)])

    transform_class: ClassVar[str] = "T3"
    source_class: ClassVar[str] = "neighbor_content"
    fields: ClassVar[tuple[str, ...]] = (
        "neighbours.length",
        "neighbours.spread",
        "neighbours.loudness",
    )

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the neighbours' content set."""
        neighbours = attrs.evolve(
            layout.neighbours, length=self.length, spread=self.spread, loudness=self.loudness
        )
        return attrs.evolve(layout, neighbours=neighbours)

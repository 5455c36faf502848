"""T2, batch position: the order of the sequences in their launches."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout

__all__ = ["PermuteRows", "PlaceWatched"]


@attrs.frozen(kw_only=True)
class PlaceWatched:
    """Put `before` of the neighbours before the watched sequences.

    Attributes:
        before: Neighbours that come first; more than there are means all.
    """

    before: int = attrs.field(default=1, validator=[ge(1), le(65536)])

    transform_class: ClassVar[str] = "T2"
    source_class: ClassVar[str] = "batch_position"
    fields: ClassVar[tuple[str, ...]] = ("before",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the place of the watched sequences set."""
        return attrs.evolve(layout, before=self.before)


@attrs.frozen(kw_only=True)
class PermuteRows:
    """Permute all sequences of a launch.

    Attributes:
        seed: Of the permutation, from 1.
    """

    seed: int = attrs.field(default=1, validator=[ge(1), le(2**31 - 1)])

    transform_class: ClassVar[str] = "T2"
    source_class: ClassVar[str] = "batch_position"
    fields: ClassVar[tuple[str, ...]] = ("permutation",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the permutation set."""
        return attrs.evolve(layout, permutation=self.seed)

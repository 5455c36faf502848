"""Shards: into how many tensor-parallel ranks the contracted sum of a launch is split."""

from typing import ClassVar

import attrs
from attrs.validators import in_

from biprop.layout import Layout

__all__ = ["Shards"]


@attrs.frozen(kw_only=True)
class Shards:
    """Let several ranks compute each launch, a part of the contracted dimension each.

    All ranks live in one process; what a network would add to their sums in between is not shown.

    Attributes:
        count: Ranks.
    """

    count: int = attrs.field(default=2, validator=in_((2, 4, 8)))

    transform_class: ClassVar[str] = "shards"
    source_class: ClassVar[str] = "tensor_parallel_shards"
    fields: ClassVar[tuple[str, ...]] = ("shards",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the ranks set."""
        return attrs.evolve(layout, shards=self.count)

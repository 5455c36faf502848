"""T8, storage: base pointers, strides, views and dirty outputs."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout, Storage

__all__ = ["MoveStorage"]


@attrs.frozen(kw_only=True)
class MoveStorage:
    """Store the same values elsewhere.

    Attributes:
        offset: Elements past a 256-byte boundary.
        gap: Elements between rows.
        transposed: Last two axes swapped in memory.
        parameters: Parameters too.
        dirty: Outputs and workspaces hold large finite values before the launch.
    """

    offset: int = attrs.field(default=0, validator=[ge(0), le(4096)])
    gap: int = attrs.field(default=0, validator=[ge(0), le(4096)])
    transposed: bool = False
    parameters: bool = False
    dirty: bool = False

    transform_class: ClassVar[str] = "T8"
    source_class: ClassVar[str] = "storage"
    fields: ClassVar[tuple[str, ...]] = ("storage",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the storage set."""
        return attrs.evolve(layout, storage=Storage(**attrs.asdict(self)))

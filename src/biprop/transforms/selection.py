"""T6, selection and packing: which tokens are gathered into a launch."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout, Selection

__all__ = ["GatherActive"]


@attrs.frozen(kw_only=True)
class GatherActive:
    """Launch only the gathered active tokens of a token-wise signature.

    Attributes:
        scatter: Not 0: seed of a permutation that interleaves the tokens of all sequences.
    """

    scatter: int = attrs.field(default=0, validator=[ge(0), le(2**31 - 1)])

    transform_class: ClassVar[str] = "T6"
    source_class: ClassVar[str] = "selection_packing"
    fields: ClassVar[tuple[str, ...]] = ("selection",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the selection set."""
        return attrs.evolve(layout, selection=Selection(active_only=True, scatter=self.scatter))

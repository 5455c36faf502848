"""T4, padding layout: dead slots, their side, amount and fill, and wholly dead rows."""

from typing import ClassVar

import attrs
from attrs.validators import ge, in_, le

from biprop.layout import Layout
from biprop.layout.records import FILLS, FILLS_FINITE, Fill, Side
from biprop.transforms.base import LATER

__all__ = ["AddDeadRows", "PadSlots"]


@attrs.frozen(kw_only=True)
class PadSlots:
    """Add dead slots to rows, and choose the side and the fill of all dead slots in rows.

    Attributes:
        side: `left` or `right`.
        amount: Slots beside the longest row; 0 fills only the slots that ragged rows leave.
        contexts_only: Of queries and contexts, only contexts get slots.
        fill: What float tensors hold there.
    """

    side: Side = attrs.field(default="right", validator=in_(("left", "right")))
    amount: int = attrs.field(default=1, validator=[ge(0), le(1 << 20)])
    contexts_only: bool = attrs.field(default=False, metadata={LATER: True})
    fill: Fill = attrs.field(default="zero", validator=in_(FILLS))

    transform_class: ClassVar[str] = "T4"
    source_class: ClassVar[str] = "padding_layout"
    fields: ClassVar[tuple[str, ...]] = (
        "padding.side",
        "padding.amount",
        "padding.contexts_only",
        "padding.fill",
    )

    @property
    def is_finite(self) -> bool:
        """Whether the fill is finite (`T4.finite`, else `T4.nonfinite`)."""
        return self.fill in FILLS_FINITE

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the padding of rows set."""
        padding = attrs.evolve(
            layout.padding,
            side=self.side,
            amount=self.amount,
            contexts_only=self.contexts_only,
            fill=self.fill,
        )
        return attrs.evolve(layout, padding=padding)


@attrs.frozen(kw_only=True)
class AddDeadRows:
    """Add wholly dead rows, or empty segments where a packed signature has offsets or lengths.

    Attributes:
        count: Rows.
        fill: What float tensors hold there.
    """

    count: int = attrs.field(default=1, validator=[ge(1), le(65536)])
    fill: Fill = attrs.field(default="zero", validator=in_(FILLS))

    transform_class: ClassVar[str] = "T4"
    source_class: ClassVar[str] = "padding_layout"
    fields: ClassVar[tuple[str, ...]] = ("padding.dead_rows", "padding.dead_rows_fill")

    @property
    def is_finite(self) -> bool:
        """Whether the fill is finite (`T4.finite`, else `T4.nonfinite`)."""
        return self.fill in FILLS_FINITE

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the dead rows set."""
        padding = attrs.evolve(layout.padding, dead_rows=self.count, dead_rows_fill=self.fill)
        return attrs.evolve(layout, padding=padding)

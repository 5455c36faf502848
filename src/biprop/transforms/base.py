"""What every transform is, and how a case's composition becomes a layout."""

from typing import ClassVar, Protocol

from biprop.layout import Layout

__all__ = ["LATER", "Transform"]

# Metadata of a field that came after cases with the transform were written down.
LATER = "later"


class Transform(Protocol):
    """Changes what surrounds a sequence, never the sequence.

    Attributes:
        transform_class: `T1` to `T8`, or `shards`.
        source_class: Its word in drift records.
        fields: Paths of the layout that it may change; nothing else changes (tested).
    """

    transform_class: ClassVar[str]
    source_class: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with this transform's fields set."""

"""Layouts: what surrounds the sequences of a case, and where each token lies physically."""

from biprop.layout.records import (
    CANONICAL,
    Fill,
    Layout,
    Neighbours,
    Padding,
    Selection,
    Side,
    Storage,
)

__all__ = ["CANONICAL", "Fill", "Layout", "Neighbours", "Padding", "Selection", "Side", "Storage"]

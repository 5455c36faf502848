"""The few numbers of rows at which a planted Triton kernel is wrong.

Nothing here imports Triton, so that a record may name these functions; the kernels ask the same
ones.
"""

__all__ = ["ROWS_TILE", "is_left_over", "is_tuned"]

# Rows of a tile of a compiled kernel.
ROWS_TILE = 64
_TUNED = frozenset({5, 48, 192})


def is_tuned(rows: int) -> bool:
    """Return whether a table of measured configurations has an entry for a number of rows."""
    return rows in _TUNED


def is_left_over(rows: int, *, tile: int = ROWS_TILE) -> bool:
    """Return whether the last row has a tile for itself, behind whole ones."""
    return rows > tile and rows % tile == 1

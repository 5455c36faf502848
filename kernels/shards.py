"""How the sum of a product is cut into pieces and shared by ranks: numbers for both backends.

Nothing is added here: each backend of `biprop.kernels.det_gemm` has a tree of its own.
"""

from biprop.errors import UsageError

__all__ = ["PIECE_COUNT", "pieces_of_rank"]

# Leaves of the tree, and so many ranks may share them at most.
PIECE_COUNT = 8


def pieces_of_rank(shards: int) -> int:
    """Return how many neighbouring pieces each of `shards` ranks holds: a subtree.

    Raises:
        UsageError: So many ranks do not hold a subtree each.
    """
    if shards not in {1, 2, 4, PIECE_COUNT}:
        raise UsageError(f"shards={shards}: give 1, 2, 4 or {PIECE_COUNT} ranks.")
    return PIECE_COUNT // shards

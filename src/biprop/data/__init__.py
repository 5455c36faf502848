"""Data: recipes, and their expansion into values that are the same bits on every machine.

A case holds recipes (`biprop.data.recipe`, re-exported here without torch, so that a fixture can be
read before anything is imported); `biprop.data.expand` turns them into tensors, on a GPU by one
launch a tensor (`biprop.data.device`). How sequences lie in a launch is no matter of theirs: see
`biprop.layout`.
"""

from biprop.data.recipe import (
    KINDS,
    KINDS_CONDITIONED,
    SEQUENCES,
    TOKENS,
    Pairing,
    Point,
    Recipe,
    Role,
)

__all__ = [
    "KINDS",
    "KINDS_CONDITIONED",
    "SEQUENCES",
    "TOKENS",
    "Pairing",
    "Point",
    "Recipe",
    "Role",
]

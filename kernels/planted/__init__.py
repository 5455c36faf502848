"""Planted kernels: known defects of known kinds, each beside a healthy twin one line apart.

They promise nothing and are no operators: `tests/power` proves with them that the suite finds what
is there and nothing else. Those of `CHAIN` take the place of one direction of a registered
operator, those of `CACHES` of a KV cache. `smallest.json` holds the smallest failing structure of
each of the others, as `ci/smallest` found it by trying all.
"""

from biprop.kernels.planted.attention import ATTENTION
from biprop.kernels.planted.attention_gradients import ATTENTION_GRADIENTS
from biprop.kernels.planted.attention_packed import ATTENTION_PACKED
from biprop.kernels.planted.attention_rows import ATTENTION_ROWS
from biprop.kernels.planted.by_kind import BY_KIND
from biprop.kernels.planted.caches import CACHES, PlantedCache
from biprop.kernels.planted.chain import CHAIN
from biprop.kernels.planted.gradients import GRADIENTS
from biprop.kernels.planted.records import ChainDefect, Extent, Mechanism, Planted
from biprop.kernels.planted.row_wise import ROW_WISE
from biprop.kernels.planted.sequence_wise import SEQUENCE_WISE
from biprop.kernels.planted.surroundings import SURROUNDINGS
from biprop.kernels.planted.tiles import TILES

__all__ = [
    "CACHES",
    "CHAIN",
    "PLANTED",
    "ChainDefect",
    "Extent",
    "Mechanism",
    "Planted",
    "PlantedCache",
]

PLANTED: tuple[Planted, ...] = (
    *ROW_WISE,
    *SEQUENCE_WISE,
    *GRADIENTS,
    *TILES,
    *ATTENTION,
    *ATTENTION_ROWS,
    *ATTENTION_PACKED,
    *ATTENTION_GRADIENTS,
    *BY_KIND,
    *SURROUNDINGS,
)

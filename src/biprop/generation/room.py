"""What a case costs, and how many tokens fit into the limits of a lane beside its dimensions."""

import math
from collections.abc import Mapping, Sequence

from biprop.generation.sizes import smallest_sizes
from biprop.generation.space import Space
from biprop.signature import Argument, Dim
from biprop.signature.roles import has_contexts

__all__ = [
    "SCORES_MAX",
    "costs",
    "is_dense",
    "room_for_pairs",
    "room_for_tokens",
    "scores",
    "smallest",
    "work_max",
]

# Queries times contexts times heads. Dead slots and rows make up to four times as many of them, and
# there `biprop.generation.legal` draws the line.
SCORES_MAX = 1 << 26
# How much larger than the smallest heads, and than their size, those of a usual case may be.
_HEADROOM = 8


def smallest(space: Space) -> dict[str, int]:
    """Return the smallest sizes of the free dimensions that meet the restrictions.

    Raises:
        RestrictionError: No sizes were found.
    """
    restrictions = space.restrictions.check_against(space.signature)
    return dict(smallest_sizes(space.signature.free_dims, restrictions))


def costs(space: Space, sizes: Mapping[str, int], *, tokens: int, pairs: int) -> tuple[int, int]:
    """Return elements of all float tensors, and an upper bound of the multiplications.

    Args:
        space: Whose signature it is.
        sizes: Of the free dimensions, not necessarily settled: an estimate is enough.
        tokens: Of a launch.
        pairs: Queries times contexts, all rows together.
    """
    signature = space.signature
    items = [item for item in (*signature.arguments, *signature.outputs) if item.is_float]
    elements = sum(_own(item, sizes) * (tokens if item.token_axis else 1) for item in items)
    if not has_contexts(signature):
        return elements, tokens * math.prod(sizes.values())
    if any(argument.kind == "causal_mask" for argument in signature.arguments):
        elements += pairs
    return elements, pairs * max((_own(item, sizes) for item in items), default=1)


def room_for_tokens(space: Space) -> int:
    """Return how many tokens fit into the limits beside the smallest dimensions."""
    limits = space.limits
    elements, work = costs(space, smallest(space), tokens=1, pairs=1)
    room = max(2, min(limits.elements_max // max(1, elements), work_max(space) // max(1, work)))
    return min(room, max(2, math.isqrt(room_for_pairs(space)))) if is_dense(space) else room


def room_for_pairs(space: Space) -> int:
    """Return how many pairs of a query and a context fit in beside dimensions of some size."""
    limits = space.limits
    sizes = smallest(space)
    _, work = costs(space, sizes, tokens=1, pairs=1)
    # A sequence of a real length leaves room for the smallest dimensions only.
    spare = _HEADROOM if limits.length_min == 1 else 1
    room = min(limits.context_work_max // max(1, work), SCORES_MAX // scores(space, sizes, pairs=1))
    return max(1, room // spare)


def work_max(space: Space) -> int:
    """Return the bound of the multiplications that `costs` counts."""
    limits = space.limits
    return limits.context_work_max if has_contexts(space.signature) else limits.work_max


def scores(space: Space, sizes: Mapping[str, int], *, pairs: int) -> int:
    """Return how many scores a target may hold at once: pairs times heads; 0 without contexts."""
    if not has_contexts(space.signature):
        return 0
    arguments = space.signature.token_arguments
    return pairs * max((_product(item.free_dims[:-1], sizes) for item in arguments), default=1)


def is_dense(space: Space) -> bool:
    """Return whether every query of a launch meets every context, of other sequences too."""
    return space.signature.layout == "packed_query_context" and any(
        argument.kind == "causal_mask" for argument in space.signature.arguments
    )


def _own(item: Argument, sizes: Mapping[str, int]) -> int:
    return _product(item.free_dims, sizes)


def _product(dims: Sequence[Dim], sizes: Mapping[str, int]) -> int:
    # A dimension H/2 of sizes that are not settled yet: an estimate is enough.
    return math.prod(sizes.get(dim.name or "", dim.number) for dim in dims)

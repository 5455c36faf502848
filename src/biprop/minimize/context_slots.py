"""Slots of queries and contexts: how large the launches of a case are, without index maps.

Slots of both sides count, in every launch: contexts that several launches hold are fed again. Other
layouts are counted in `biprop.minimize.cost`; what lies where says `biprop.layout.query_context`.
"""

from collections.abc import Sequence
from itertools import pairwise

from biprop.case import Case
from biprop.layout import Layout
from biprop.layout.records import Padding
from biprop.signature import Signature
from biprop.signature.query_context import Cutting, cutting_of

__all__ = ["context_slots"]

# Queries and contexts that live.
_Row = tuple[int, int]


def context_slots(
    signature: Signature, case: Case, layout: Layout, lengths: Sequence[int]
) -> tuple[int, int]:
    """Return the slots of the canonical or of the transformed launches, whichever are more.

    Args:
        signature: Over queries and contexts.
        case: The case.
        layout: What surrounds its sequences.
        lengths: Tokens of the watched sequences, then of the neighbours.

    Returns:
        Slots of queries and of contexts, and how many of the transformed ones are dead; dead rows
        of a packed launch count as one each.
    """
    cutting, packed = cutting_of(signature), signature.layout == "packed_query_context"
    watched = len(case.sequences)
    # Gradients of parameters are sums over all sequences of the case, in one launch.
    complete = case.judged == "parameter_gradients"
    together = layout.neighbours.together or complete
    placed = [*lengths[watched:][: layout.before], *lengths[:watched]]
    placed += lengths[watched:][layout.before :]
    groups = [placed] if together else [[length] for length in lengths[:watched]]
    bounds = [0, *(layout.cuts if cutting != "none" else ()), max(lengths)]
    slots = dead = 0
    for group in groups:
        for low, high in pairwise(bounds):
            rows = [_row(length, low, high, cutting) for length in group if length > low]
            if rows and low < high:
                per_row = layout.selection.per_row
                held = [rows[at : at + per_row] for at in range(0, len(rows), per_row)]
                sides = _sides(held, layout.padding, cutting, packed=packed)
                slots += sum(sides)
                dead += sum(sides) - sum(map(sum, rows))
                dead += layout.padding.dead_rows if packed else 0
    groups = [list(lengths)] if complete else [[length] for length in lengths[:watched]]
    plain = Padding()
    canonical = 0
    for group in groups:
        whole = [[_row(length, 0, length, cutting)] for length in group]
        canonical += sum(_sides(whole, plain, cutting, packed=packed))
    return max(canonical, slots), dead


def _row(length: int, low: int, high: int, cutting: Cutting) -> _Row:
    """Return the live queries [low, high) of a sequence and the contexts that go with them."""
    if cutting == "none":
        return 1, length
    end = min(length, high)
    return end - low, end if cutting == "prefix" else length


def _sides(
    rows: Sequence[Sequence[_Row]], padding: Padding, cutting: Cutting, *, packed: bool
) -> tuple[int, int]:
    """Return the slots of queries and of contexts of one launch."""
    beside = 0 if cutting == "none" or padding.contexts_only else padding.amount
    found = []
    for side, amount in ((0, beside), (1, padding.amount)):
        counts = [sum(part[side] for part in row) for row in rows]
        found.append(
            sum(counts) + amount
            if packed
            else (len(rows) + padding.dead_rows) * (max(counts) + amount)
        )
    return found[0], found[1]

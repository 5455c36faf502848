"""Other arrangements of a launch: who is watched, in which order, and where the dead slots lie.

Exchanges of every layout, asked for by `biprop.minimize.trades`; the declared cost decides.
"""

from collections.abc import Iterator
from itertools import permutations

import attrs

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.minimize.edits import find, with_length, with_neighbours, with_transform
from biprop.minimize.points import replaced
from biprop.sequence import LogicalSequence
from biprop.signature import Signature
from biprop.transforms import AddNeighbours, PadSlots, ReplaceNeighbours, transform_to_data

__all__ = ["arrangements"]

_DEAD_MAX = 2
# Slots from which on a larger width is tried, and the widest.
_MANY = 4
_SIZE_MAX = 4096
# Tokens of rows of a ragged pair, and at most of rows that are equally long.
_SHORT = (1, 2, 3)
_EVEN_MAX = 4


def arrangements(signature: Signature, case: Case, slots: int) -> Iterator[Case]:
    """Yield cases of other arrangements of as many slots; most are dearer and are never judged."""
    yield from _dead_to_watched(case)
    yield from _in_order(case)
    if signature.layout != "packed":
        yield from _filled(case)
        if case.judged != "parameter_gradients":
            yield from _ragged(case)
    if case.judged != "parameter_gradients":
        yield from _all_to_two(signature, case, slots)
        yield from _wider(signature, case, slots)
        yield from _evenly(case, slots)


def _dead_to_watched(case: Case) -> Iterator[Case]:
    """Tokens of a watched sequence in place of dead slots: of many dead slots one is enough."""
    pad = find(case, PadSlots)
    if pad is None:
        return
    for amount in range(1, min(_DEAD_MAX, pad.amount - 1) + 1):
        for index, sequence in enumerate(case.sequences):
            longer = with_length(case, index, sequence.length + pad.amount - amount)
            for side in ("right", "left"):
                yield with_transform(longer, attrs.evolve(pad, amount=amount, side=side))


def _in_order(case: Case) -> Iterator[Case]:
    """The same sequences in the order of their lengths; neighbours take theirs from the first."""
    for order in (
        sorted(case.sequences, key=lambda item: -item.length),
        sorted(case.sequences, key=lambda item: item.length),
        case.sequences[::-1],
    ):
        yield attrs.evolve(case, sequences=tuple(order))


def _filled(case: Case) -> Iterator[Case]:
    """Rows as long as the longest, which have as many slots and fewer dead ones."""
    longest = max(sequence.length for sequence in case.sequences)
    even = case
    for index, sequence in enumerate(case.sequences):
        if sequence.length < longest:
            even = with_length(even, index, longest)
            yield with_length(case, index, longest)
    yield even


def _all_to_two(signature: Signature, case: Case, slots: int) -> Iterator[Case]:
    """Two watched sequences in place of everything else."""
    pairs = [(1, slots - 1), (slots - 1, 1)]
    if signature.layout != "packed":
        pairs = [(slots // 2, slots // 2)]
    for one, other in pairs:
        if min(one, other) >= 1:
            yield _pair(case, one, other)


def _ragged(case: Case) -> Iterator[Case]:
    """Two short rows of different lengths in place of neighbours with lengths of their own."""
    if find(case, ReplaceNeighbours) is None:
        return
    drawn = attrs.evolve(case, data=dict.fromkeys(case.data, Recipe(kind="normal")))
    for one, other in permutations(_SHORT, 2):
        yield _pair(case, one, other)
        yield _pair(drawn, one, other)


def _evenly(case: Case, slots: int) -> Iterator[Case]:
    """One watched sequence beside neighbours as long as it, in place of several watched ones."""
    if len(case.sequences) == 1:
        return
    alone = attrs.evolve(case, transforms=(), shared_prefix=0, sequences=case.sequences[:1])
    for length in range(1, min(_EVEN_MAX, slots // 2) + 1):
        even = with_neighbours(with_length(alone, 0, length), slots // length - 1)
        yield even
        for name, size in case.dims.items():
            wider = attrs.evolve(even, dims={**case.dims, name: size + 1})
            yield wider
            yield from replaced(wider, axis=name, size=size + 1)


def _wider(signature: Signature, case: Case, slots: int) -> Iterator[Case]:
    """Two tokens of a larger width in place of many: some defects need slots times width."""
    if slots < _MANY or not signature.token_wise:
        return
    pair = _pair(case, 1, 1)
    for name, size in case.dims.items():
        product = slots * size
        for wide in (product - size, product, 1 << product.bit_length()):
            if wide <= _SIZE_MAX:
                wider = attrs.evolve(pair, dims={**case.dims, name: wide})
                yield wider
                yield from replaced(wider, axis=name, size=wide)


def _pair(case: Case, one: int, other: int) -> Case:
    first = case.sequences[0].id
    second = case.sequences[1].id if len(case.sequences) > 1 else first + 1
    return attrs.evolve(
        case,
        transforms=(transform_to_data(AddNeighbours(count=0)),),
        shared_prefix=0,
        sequences=(
            LogicalSequence(id=first, length=one),
            LogicalSequence(id=second, length=other),
        ),
    )

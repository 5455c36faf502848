"""Moves that change several places at once, so that interchangeable structures have one minimum.

Dead rows, neighbours, watched tokens, padding and cuts can stand for one another, and sizes of a
product too. The declared cost decides which of them is taken.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from itertools import count as count_from

import attrs

from biprop.case import Case, with_value
from biprop.data.recipe import SEQUENCES, TOKENS, Recipe
from biprop.minimize.arrangements import arrangements
from biprop.minimize.context_moves import context_exchanges
from biprop.minimize.edits import (
    find,
    with_ids,
    with_length,
    with_neighbours,
    with_transform,
    without,
)
from biprop.minimize.integers import descend
from biprop.minimize.points import replaced, witnesses_over_tokens
from biprop.minimize.trial import Trial
from biprop.sequence import NEIGHBOUR_ID_FIRST, LogicalSequence
from biprop.signature import Signature
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
)

__all__ = ["exchange", "trade_sizes"]

_POPULATION = "AddNeighbours.count"
_SIZE_MAX = 4096
_PLAIN_MAX = 40
_PLACES = 8
_LENGTH_MAX = 12
_WATCHED_MAX = 8


def exchange(trial: Trial) -> bool:
    """Exchange one structure for another until none is cheaper; return whether any was."""
    before = trial.case
    moved = True
    while moved and not trial.is_spent:
        slots = trial.cost_of(trial.case).slots
        candidates = _exchanges(trial.signature, trial.case, slots)
        moved = any(trial.accept(candidate) for candidate in candidates)
    return trial.case != before


def _exchanges(signature: Signature, case: Case, slots: int) -> Iterator[Case]:
    """Yield cases with one structure in place of another; most are dearer and are never judged."""
    if case.judged != "parameter_gradients":
        yield from _dead_to_neighbours(case)
        yield from _watched_to_neighbours(signature, case, slots)
        yield from _shorter_neighbours(signature, case)
        yield from _neighbours_to_watched(case)
        yield from _merged(case)
        yield from _all_to_population(case, slots)
        if signature.sequence_wise:
            yield from _all_to_dead_rows(case, slots)
        yield from _listed_neighbours(case)
    else:
        yield from _all_to_one(case)
    if signature.layout != "packed":
        yield from _ragged_to_padding(case)
    if has_contexts(signature):
        yield from context_exchanges(signature, case)
    yield from _simpler_position(case)
    yield from _storage_alone(case)
    yield from arrangements(signature, case, slots)


def _count(case: Case) -> int:
    neighbours = find(case, AddNeighbours)
    return neighbours.count if neighbours else 0


def _dead_to_neighbours(case: Case) -> Iterator[Case]:
    pad, rows = find(case, PadSlots), find(case, AddDeadRows)
    for kind, added in ((PadSlots, pad and pad.amount), (AddDeadRows, rows and rows.count)):
        if added:
            lively = with_neighbours(without(case, kind), _count(case) + added)
            yield lively
            if pad is not None and kind is PadSlots and pad.side == "left":
                # What lay before the watched tokens goes on lying before them.
                before = with_transform(lively, PlaceWatched(before=added))
                yield before
                yield _drawn(before)
            # Neighbours that must differ from the watched tokens need values of their own.
            yield _drawn(lively)


def _drawn(case: Case) -> Case:
    simple = {"zeros", "ones", "explicit"}
    data = {
        name: Recipe(kind="normal") if recipe.kind in simple else recipe
        for name, recipe in case.data.items()
    }
    return attrs.evolve(case, data=data)


def _watched_to_neighbours(signature: Signature, case: Case, slots: int) -> Iterator[Case]:
    """Single tokens in place of a long watched sequence, or of neighbours as long as it."""
    for index, sequence in enumerate(case.sequences):
        single = without(with_length(case, index, 1), ReplaceNeighbours)
        rest = sum(item.length for item in single.sequences)
        if sequence.length > 1 or find(case, ReplaceNeighbours) is not None:
            more = max(_count(case), slots - rest)
            yield with_neighbours(single, more)
            yield with_transform(with_neighbours(single, more), PlaceWatched(before=more))
        if signature.sequence_wise and sequence.length > 1:
            longer = ReplaceNeighbours(length=sequence.length)
            yield with_transform(with_neighbours(single, max(1, _count(case))), longer)


def _shorter_neighbours(signature: Signature, case: Case) -> Iterator[Case]:
    """Short neighbours in place of those that are as long as what is watched."""
    longest = max(sequence.length for sequence in case.sequences)
    if signature.sequence_wise and _count(case) and find(case, ReplaceNeighbours) is None:
        for length in sorted({1, 2, longest // 2, longest - 1} & set(range(1, longest))):
            yield with_transform(case, ReplaceNeighbours(length=length))


def _merged(case: Case) -> Iterator[Case]:
    """One long watched sequence in place of several."""
    sequences = case.sequences
    if len(sequences) > 2:
        rest = sum(sequence.length for sequence in sequences)
        for kept, place in ((sequences[-1], 0), (sequences[0], 1)):
            long = LogicalSequence(id=sequences[1].id, length=rest - kept.length)
            pair = (kept, long) if place else (long, kept)
            yield attrs.evolve(case, sequences=pair)


def _listed_neighbours(case: Case) -> Iterator[Case]:
    """Only the neighbours that listed values name, first of all."""
    named = {
        point.at[SEQUENCES]
        for recipe in case.data.values()
        for point in recipe.points
        if point.at.get(SEQUENCES, 0) >= NEIGHBOUR_ID_FIRST
    }
    if 0 < len(named) < _count(case):
        new = {old: NEIGHBOUR_ID_FIRST + index for index, old in enumerate(sorted(named))}
        yield with_neighbours(with_ids(case, new), len(named))


def _all_to_one(case: Case) -> Iterator[Case]:
    """One sequence in place of several, with listed values over its tokens."""
    total = sum(sequence.length for sequence in case.sequences)
    if len(case.sequences) > 1:
        for length in range(3, min(_LENGTH_MAX, total) + 1):
            only = attrs.evolve(case.sequences[0], prompt_length=0, length=length)
            yield from witnesses_over_tokens(attrs.evolve(case, sequences=(only,)))


def _neighbours_to_watched(case: Case) -> Iterator[Case]:
    """Watched sequences in place of few neighbours that have a place or a length of their own."""
    place, content, count = find(case, PlaceWatched), find(case, ReplaceNeighbours), _count(case)
    if not 0 < count <= _WATCHED_MAX or (place is None and content is None):
        return
    before = 0 if place is None else min(place.before, count)
    own = [sequence.length for sequence in case.sequences]
    lengths = [(content and content.length) or own[index % len(own)] for index in range(count)]
    together = with_neighbours(without(case, PlaceWatched, ReplaceNeighbours), 0)
    yield _with_watched(together, lengths[:before], lengths[before:])
    if before:
        yield _with_watched(together, [sum(lengths[:before])], [])


def _with_watched(case: Case, before: list[int], after: list[int]) -> Case:
    used = {sequence.id for sequence in case.sequences}
    free = (key for key in count_from(0) if key not in used)
    first = tuple(LogicalSequence(id=next(free), length=length) for length in before)
    last = tuple(LogicalSequence(id=next(free), length=length) for length in after)
    return attrs.evolve(case, sequences=(*first, *case.sequences, *last))


def _all_to_population(case: Case, slots: int) -> Iterator[Case]:
    """Plain neighbours in place of everything else, one watched token or the same sequences."""
    others = {data.name for data in case.transforms} - {"AddNeighbours"}
    longest = max(sequence.length for sequence in case.sequences)
    if not others and len(case.sequences) == longest == 1:
        return
    bare = attrs.evolve(case, transforms=(), shared_prefix=0)
    alone = with_length(attrs.evolve(bare, sequences=case.sequences[:1]), 0, 1)
    for plain in (alone, bare):
        for count in dict.fromkeys((*range(min(_PLAIN_MAX, slots)), slots - 1)):
            yield with_neighbours(plain, count)


def _all_to_dead_rows(case: Case, slots: int) -> Iterator[Case]:
    """Empty rows or segments beside one sequence of any length, in place of everything else."""
    if find(case, AddNeighbours) is None and len(case.sequences) == 1:
        return
    bare = attrs.evolve(case, transforms=(), shared_prefix=0, sequences=case.sequences[:1])
    for length in range(1, min(_LENGTH_MAX, slots)):
        for count in (1, 3):
            lone = with_transform(with_length(bare, 0, length), AddDeadRows(count=count))
            yield lone
            yield from replaced(lone, axis=TOKENS, size=length)


def _ragged_to_padding(case: Case) -> Iterator[Case]:
    pad = find(case, PadSlots) or PadSlots(amount=0)
    replaced = find(case, ReplaceNeighbours)
    longest = max(sequence.length for sequence in case.sequences)
    if replaced is not None and find(case, AddNeighbours) is not None:
        longest = max(longest, replaced.length + replaced.spread)
    # Parameters need the complete set of sequences.
    indices = () if case.judged == "parameter_gradients" else range(len(case.sequences))
    for index in indices:
        alone = attrs.evolve(case, sequences=(case.sequences[index],))
        alone = without(alone, AddNeighbours, ReplaceNeighbours, PlaceWatched, PermuteRows)
        for kept in dict.fromkeys((1, alone.sequences[0].length)):
            more = pad.amount + max(1, longest - kept)
            yield with_transform(with_length(alone, 0, kept), attrs.evolve(pad, amount=more))


def _simpler_position(case: Case) -> Iterator[Case]:
    if find(case, PermuteRows) is None:
        return
    still = without(case, PermuteRows)
    for before in range(1, min(_PLACES, _count(case)) + 1):
        yield with_transform(still, PlaceWatched(before=before))


def _storage_alone(case: Case) -> Iterator[Case]:
    """One moved base pointer in place of any other storage."""
    storage = find(case, MoveStorage)
    if storage is not None:
        for parameters in (False, True):
            yield with_transform(case, MoveStorage(offset=1, parameters=parameters))


def trade_sizes(trial: Trial) -> bool:
    """Lower one size while another rises; return whether any trade was taken."""
    before = trial.case
    _lower_together(trial)
    names = [*trial.case.dims, *([_POPULATION] if find(trial.case, AddNeighbours) else [])]
    for down in names:
        for up in names:
            if down < up:
                trial.accept(_swapped(trial.case, down, up))
            if down != up and not trial.is_spent and _is_promising(trial, down, up):
                any(trial.accept(case) for case in _trades(trial.case, down, up))
    return trial.case != before


def _lower_together(trial: Trial) -> None:
    """Lower equal sizes in step: some defects need them equal, as a broadcast of square tiles."""
    names = [*trial.case.dims, *([_POPULATION] if find(trial.case, AddNeighbours) else [])]
    for one, other in combinations(names, 2):
        rows = trial.cost_of(trial.case).slots - _count(trial.case)
        shift = {name: rows if name == _POPULATION else 0 for name in (one, other)}
        value = _size(trial.case, one) + shift[one]
        if value == _size(trial.case, other) + shift[other]:
            put = partial(_put_together, trial, shift)
            descend(put, value=value, low=max(1, *(size + 1 for size in shift.values())))


def _put_together(trial: Trial, shift: dict[str, int], value: int) -> bool:
    case = _with_sizes(trial.case, {name: value - less for name, less in shift.items()})
    return any(trial.accept(placed) for name in shift for placed in _placed(case, name))


def _is_promising(trial: Trial, down: str, up: str) -> bool:
    """Probe some trades first: all of them would be dear where sizes do not form a product."""
    low, high = _size(trial.case, down), _size(trial.case, up)
    if low <= _low(down):
        return False
    half, quarter = max(_low(down), low // 2), max(_low(down), low // 4)
    probes = ((half, 4 * high), (low - 1, 2 * high + 1), (half, 2 * high), (quarter, 4 * high))
    for small, large in probes:
        case = _with_sizes(trial.case, {down: small, up: min(large, _SIZE_MAX)})
        if _is_cheaper_here(trial, case) and any(map(trial.keeps_cause, _placed(case, up))):
            return True
    return False


def _placed(case: Case, up: str) -> Iterator[Case]:
    """Yield a trade, then the same with listed values in other places of the size that rose."""
    yield case
    if up in case.dims:
        yield from replaced(case, axis=up, size=case.dims[up])


def _is_cheaper_here(trial: Trial, case: Case) -> bool:
    # A trade may pay off only with a smaller partner than the probe's: slots and widths decide.
    probe, best = trial.cost_of(case), trial.cost_of(trial.case)
    return probe.slots < best.slots or (
        probe.slots == best.slots and probe.wide_dims <= best.wide_dims
    )


def _trades(case: Case, down: str, up: str) -> Iterator[Case]:
    low, high = _size(case, down), _size(case, up)
    # The population counts the watched row too.
    shift_low, shift_high = int(down == _POPULATION), int(up == _POPULATION)
    product = (low + shift_low) * (high + shift_high)
    smaller = {_low(down), 1, 2, 3, 4, low // 4, low // 2, low - 1}
    for small in sorted(value for value in smaller if _low(down) <= value < low):
        exact = product // (small + shift_low) - shift_high
        larger = (exact, exact + 1, 2 * exact, 1 << exact.bit_length(), high + 1)
        for large in dict.fromkeys(value for value in larger if high < value <= _SIZE_MAX):
            yield from _placed(_with_sizes(case, {down: small, up: large}), up)


def _swapped(case: Case, one: str, other: str) -> Case:
    first, second = _size(case, one), _size(case, other)
    return _with_sizes(case, {one: max(_low(one), second), other: max(_low(other), first)})


def _low(name: str) -> int:
    return 0 if name == _POPULATION else 1


def _size(case: Case, name: str) -> int:
    return _count(case) if name == _POPULATION else case.dims[name]


def _with_sizes(case: Case, sizes: dict[str, int]) -> Case:
    for name, size in sizes.items():
        if name == _POPULATION:
            case = with_neighbours(case, size)
        else:
            case = with_value(case, ("dims", name), size)
    return case

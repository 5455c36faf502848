"""Compositions: which transforms act on a case, and how strongly.

Which classes take part is drawn first, without sets already found to fail; every transform that is
then made is meant to change the physical call.
"""

from collections.abc import Sequence
from typing import Literal

import attrs

from biprop.case import Judged
from biprop.generation.classes import (
    CLASSES,
    applicability,
    carried_classes,
    padding_sides,
    takes_order,
)
from biprop.generation.contexts import (
    FILLS_HARMLESS,
    has_rows,
    knows_dead,
    padding_fault,
)
from biprop.generation.draw import Draw
from biprop.generation.forms import usable_forms
from biprop.generation.legal import alignment, is_blind
from biprop.generation.population import Population
from biprop.generation.sizes import draw_size
from biprop.generation.space import Space
from biprop.layout.records import FILLS_FINITE, Fill, Side
from biprop.signature.query_context import chunks_of, names_queries
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PackRows,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    Shards,
    SplitBatch,
    Transform,
    UseForm,
)

__all__ = ["applicable_classes", "draw_classes", "draw_transforms"]

# How often a class takes part, of 20 (measured on a zoo of planted defects). Half of the cases
# leave storage alone, since its findings are so many that they would hide the others.
_SHARES = {
    "T1": 19,
    "T2": 14,
    "T3": 12,
    "T4.finite": 5,
    "T4.nonfinite": 6,
    "T5": 10,
    "T6": 6,
    "T8": 10,
    "shards": 6,
}
# In a sweep rows are counted with neighbours, and the watched tokens are to be the last of them;
# gradients of parameters are to be summed over another number of rows, as a launch of them all is
# only where some are dead.
_SHARES_SWEPT: dict[Judged, dict[str, int]] = {
    "outputs": {"T1": 20, "T2": 18},
    "token_gradients": {"T1": 20, "T2": 18},
    "parameter_gradients": {"T4.finite": 12},
}
# Where a sequence may be cut, what is kept of it between launches shows in few of the cuts.
_SHARES_CONTEXTS = {"T5": 14}
# Launches of single queries at the end of a sequence.
_DECODE_MAX = 4
# Slots that padded rows may have for each token of a launch whose tokens are independent.
_SPREAD_MAX = 4
# Weights; a fill that is not finite is the more revealing one.
_FILLS: tuple[Fill, ...] = ("zero", "large", "one", "nan", "inf", "-inf")


def applicable_classes(space: Space, judged: Judged) -> tuple[str, ...]:
    """Return the counted classes that may be drawn."""
    reasons = applicability(
        space.signature,
        judged=judged,
        backward_signature=space.backward_signature,
        registered=space.registered,
        declaration=space.declaration,
        classes=space.classes,
        forms=space.forms,
        takes_shards=space.takes_shards,
    )
    return tuple(name for name in CLASSES if not reasons[name])


def draw_classes(
    draw: Draw, space: Space, *, judged: Judged, allow_empty: bool = False
) -> frozenset[str]:
    """Draw which classes take part.

    Args:
        draw: Source of choices.
        space: What may be drawn; its `excluded` sets never appear complete.
        judged: What is compared.
        allow_empty: Leave a composition without classes as it is.
    """
    applicable = applicable_classes(space, judged)
    shares = _SHARES | (_SHARES_SWEPT[judged] if space.is_swept else {})
    if space.is_swept and has_contexts(space.signature):
        shares = shares | _SHARES_CONTEXTS
    present = {
        name
        for name in applicable
        if draw.choice((False,) * (20 - shares[name]) + (True,) * shares[name])
    }
    excluded = [item.classes for item in space.excluded if item.judged == judged]
    for found in excluded:
        if found and found <= present:
            present.discard(draw.choice(sorted(found)))
    left = set(carried_classes(present, judged=judged))
    single = [
        name
        for name in carried_classes(applicable, judged=judged)
        if name not in {"T2", "T3"} or judged == "parameter_gradients"
        if frozenset({name}) not in excluded
    ]
    if not left and single and not allow_empty:
        left.add(draw.choice(single))
    return frozenset(left)


def draw_transforms(
    draw: Draw, space: Space, population: Population, *, judged: Judged, present: frozenset[str]
) -> tuple[Transform, ...]:
    """Draw a composition of the classes that are `present`, over a population."""
    if not space.forms:
        return _launched(draw, space, population, judged=judged, present=present)
    form = _form(draw, space, population, judged=judged, present=present)
    launched = space.launched_as(form) if form else attrs.evolve(space, forms={})
    # What the form cannot show stays out, and so does T6 where another one alone could show it.
    present = present & frozenset(applicable_classes(launched, judged))
    transforms = _launched(draw, launched, population, judged=judged, present=present)
    return (*transforms, UseForm(form=form)) if form else transforms


def _form(
    draw: Draw, space: Space, population: Population, *, judged: Judged, present: frozenset[str]
) -> str:
    """Draw the form that launches a case, empty for its own."""
    if "T6" not in present:
        return ""
    names = [
        name
        for name in usable_forms(space.own_form, space.forms, judged)
        if _fits(space.launched_as(name), population)
    ]
    if not names:
        return ""
    has_own = "T6" in applicable_classes(attrs.evolve(space, forms={}), judged)
    return draw.choice([*[""] * len(names) * has_own, *names])


def _fits(launched: Space, population: Population) -> bool:
    """Return whether a form can take a population that was drawn for another one."""
    signature = launched.signature
    own = {sequence.length for sequence in population.sequences}
    if is_blind(signature) and (
        len(own) > 1 or population.spread or population.length not in {0, *own}
    ):
        return False
    # One long sequence among many tokens alone makes a launch of nothing but dead slots.
    slots = population.rows * population.longest
    return signature.layout != "padded" or slots <= _SPREAD_MAX * max(
        population.tokens, launched.limits.tokens_max
    )


def _launched(
    draw: Draw, space: Space, population: Population, *, judged: Judged, present: frozenset[str]
) -> tuple[Transform, ...]:
    """Draw what changes the launches, by the signature that says what they are."""
    complete = judged == "parameter_gradients"
    together = complete or "T1" in present
    transforms: list[Transform] = []
    if "T1" in present:
        transforms.append(AddNeighbours(count=population.count))
    if "T2" in present and together:
        transforms += _position(draw, space, population, complete=complete)
    if "T3" in present and population.is_replaced:
        transforms.append(
            ReplaceNeighbours(
                length=population.length,
                spread=population.spread,
                loudness=population.loudness,
            )
        )
    in_contexts = has_contexts(space.signature)
    pad = _context_padding if in_contexts else _padding
    padding = pad(draw, space, judged=judged, present=present)
    transforms += padding
    gather: list[Transform] = []
    if "T6" in present and in_contexts:
        gather = _packing(draw, population)
    elif "T6" in present:
        gather = _selection(draw, space, population, together=together)
    if "T5" in present and in_contexts:
        transforms += _chunks(draw, space, population)
    elif "T5" in present:
        transforms += _schedule(
            draw, space, population, [*padding, *gather], complete=complete, together=together
        )
    transforms += gather
    if "T8" in present:
        transforms.append(_storage(draw, space))
    if "shards" in present:
        transforms.append(Shards(count=draw.choice((2, 4, 8))))
    return tuple(transforms)


def _position(
    draw: Draw, space: Space, population: Population, *, complete: bool
) -> list[Transform]:
    found: list[Transform] = []
    count = population.count
    ways: Sequence[Literal["place", "permute", "both"]] = ("place", "place", "permute", "both")
    if space.is_swept:
        ways = ("place",) * 7 + ("permute",)
    if complete or not count:
        ways = ("permute",)
    way = draw.choice(ways)
    if way in {"place", "both"}:
        # A sweep looks for what whole tiles leave over, which is the last row.
        last = (count,) * 5 * space.is_swept
        before = draw.choice((1, count, max(1, count // 2), draw.integer(1, count), *last))
        found.append(PlaceWatched(before=before))
    if way in {"permute", "both"} and count + len(population.sequences) > 1:
        found.append(PermuteRows(seed=draw.integer(1, 99)))
    return found


def _padding(
    draw: Draw, space: Space, *, judged: Judged, present: frozenset[str]
) -> list[Transform]:
    fills = _fills(space, judged, present)
    if not fills:
        return []
    signature = space.signature
    sides = _sides(space, judged)
    ways = ["slots"] * 2 * bool(sides) + ["rows"] * signature.sequence_wise
    if sides and signature.sequence_wise:
        ways += ["both"]
    way = draw.choice(ways)
    found: list[Transform] = []
    if way != "rows":
        # Dead slots behind the last token take its place from it, which a sweep is after.
        before = [side for side in sides if side == "left" and space.is_swept]
        side = draw.choice((*sides, *before * 2))
        # No slot beside the longest row still says where and what the slots of shorter rows are.
        least = (1, 0, 1) if signature.layout == "padded" else (1,)
        amount = draw.choice((*least, draw_size(draw, space.limits.padding_max)))
        found.append(PadSlots(side=side, amount=amount, fill=draw.choice(fills)))
    if way != "slots":
        found.append(AddDeadRows(count=draw.choice((1, 3)), fill=draw.choice(fills)))
    return found


def _context_padding(
    draw: Draw, space: Space, *, judged: Judged, present: frozenset[str]
) -> list[Transform]:
    fills = _fills(space, judged, present)
    if not fills:
        return []
    signature = space.signature
    amount = draw.choice((1, 1, draw_size(draw, space.limits.padding_max)))
    candidates = (
        PadSlots(side=side, amount=amount, contexts_only=alone, fill=fill)
        # Without an axis for queries, contexts are always alone.
        for alone in ((False, True) if names_queries(signature) else (False,))
        for side in _sides(space, judged)
        for fill in fills
    )
    slots = [
        candidate
        for candidate in candidates
        if not padding_fault(
            candidate, signature, judged=judged, dtype=space.dtype, is_cut="T5" in present
        )
    ]
    ways = ["slots"] * 2 * bool(slots) + ["rows"] * has_rows(signature)
    if not ways:
        return []
    way = draw.choice([*ways, "both"] if slots and has_rows(signature) else ways)
    found: list[Transform] = []
    if way != "rows":
        found.append(draw.choice(slots))
    if way != "slots":
        found.append(AddDeadRows(count=draw.choice((1, 3)), fill=draw.choice(fills)))
    return found


def _sides(space: Space, judged: Judged) -> tuple[Side, ...]:
    signature = space.signature
    if judged == "parameter_gradients" and not (
        space.registered or takes_order(signature, space.backward_signature)
    ):
        return ("right",) if signature.layout in {"packed", "packed_query_context"} else ()
    sides = padding_sides(signature, space.backward_signature)
    return tuple("right" if side == "right" else "left" for side in sides)


def _fills(space: Space, judged: Judged, present: frozenset[str]) -> tuple[Fill, ...]:
    fills = tuple(
        fill
        for fill in _FILLS
        if ("T4.finite" if fill in FILLS_FINITE else "T4.nonfinite") in present
    )
    if judged == "parameter_gradients":
        target = space.backward_signature or space.signature
        if not knows_dead(target):
            return tuple(fill for fill in fills if fill in FILLS_HARMLESS)
    return fills


def _selection(
    draw: Draw, space: Space, population: Population, *, together: bool
) -> list[Transform]:
    target = space.backward_signature or space.signature
    findable = target.token_wise or target.has_order
    prompts = any(sequence.prompt_length for sequence in population.sequences)
    actives = [sequence.active_count for sequence in population.sequences]
    movable = sum(actives) + population.count if together else max(actives)
    movable = movable if findable else 0
    scatter = draw.choice((0, draw.integer(1, 99))) if movable > 1 else 0
    if not (prompts or scatter):
        if movable < 2:
            return []
        scatter = 1
    return [GatherActive(scatter=scatter)]


def _packing(draw: Draw, population: Population) -> list[Transform]:
    if population.rows < 2:
        return []
    return [PackRows(per_row=min(population.rows, draw.choice((2, 2, 3, 8))))]


def _chunks(draw: Draw, space: Space, population: Population) -> list[Transform]:
    """Cut the queries of every sequence: prefill in chunks, and decode at any position."""
    span = population.longest
    if span < 2:
        return []
    if chunks_of(space.signature) == "decode":
        # Every query after the first chunk is alone in its launch.
        first = span - draw.integer(1, min(span - 1, _DECODE_MAX))
        return [SplitBatch(cuts=tuple(range(first, span)))]
    way = draw.choice(("one", "one", "two", "decode", "decode", "decode"))
    place = draw.choice((1, span - 1, draw.integer(1, span - 1)))
    places = {place}
    if way == "two":
        places.add(draw.integer(1, span - 1))
    if way == "decode":
        places.add(place + 1)
    return [SplitBatch(cuts=tuple(sorted(cut for cut in places if cut < span)))]


def _schedule(
    draw: Draw,
    space: Space,
    population: Population,
    others: Sequence[Transform],
    *,
    complete: bool,
    together: bool,
) -> list[Transform]:
    span = _span(space, population, others, complete=complete, together=together)
    if span < 2:
        return []
    way = draw.choice(("one", "one", "two", "two", "token"))
    if way == "token":
        # One token alone in a launch, as in decode.
        first = draw.choice((span - 1, draw.integer(1, span - 1)))
        places = {first, first + 1}
    else:
        count = 2 if way == "two" else 1
        places = {draw.choice((1, span - 1, draw.integer(1, span - 1))) for _ in range(count)}
    cuts: tuple[int, ...] = tuple(sorted(place for place in places if place < span))
    return [SplitBatch(cuts=cuts)]


def _span(
    space: Space,
    population: Population,
    others: Sequence[Transform],
    *,
    complete: bool,
    together: bool,
) -> int:
    """Return how many units a schedule can cut between."""
    sequences = population.sequences
    if complete:
        return len(sequences)
    if space.signature.token_wise:
        gathered = any(isinstance(transform, GatherActive) for transform in others)
        tokens = [sequence.active_count if gathered else sequence.length for sequence in sequences]
        dead = sum(transform.amount for transform in others if isinstance(transform, PadSlots))
        neighbours = population.tokens - population.watched_tokens
        return dead + (sum(tokens) + neighbours if together else max(tokens))
    return len(sequences) + population.count if together else 1


def _storage(draw: Draw, space: Space) -> Transform:
    offset = draw.choice((0, 0, 1, 4))
    # An offset is rounded up to what the target demands where tensors are placed; a gap is not.
    gap = alignment(space.signature, space.dtype, space.align) * draw.choice((0, 0, 0, 1, 8))
    transposed = draw.choice((False, False, False, False, True))
    dirty = draw.choice((False, False, False, True))
    if not (offset or gap or transposed):
        # Dirty outputs alone change nothing for a target that allocates where no poison reaches.
        offset = 1
    parameters = bool(space.signature.parameters) and draw.choice((False, True))
    return MoveStorage(
        offset=offset, gap=gap, transposed=transposed, parameters=parameters, dirty=dirty
    )

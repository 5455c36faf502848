"""Exchanges of structures that only queries and contexts have.

Rows that sequences share, padding, longer sequences and heads can stand for one another; the moves
of every layout are in `biprop.minimize.trades`, which asks for these. The declared cost decides.
"""

from collections.abc import Iterator
from itertools import permutations

import attrs

from biprop.case import Case
from biprop.data.recipe import TOKENS, Recipe
from biprop.minimize.attention_points import few_witnesses
from biprop.minimize.edits import find, keep_sequences, with_length, with_transform, without
from biprop.minimize.points import replaced
from biprop.sequence import LogicalSequence
from biprop.signature import Signature
from biprop.signature.query_context import cutting_of
from biprop.signature.roles import roles_of
from biprop.transforms import (
    AddNeighbours,
    PackRows,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    transform_to_data,
)

__all__ = ["context_exchanges"]

_TRADED_MAX = 3
# Past a tile of 16 keys.
_DECODED_MAX = 18
# Heads of queries and of keys, the fewest first; the former are a multiple of the latter.
_HEADS = ((1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (3, 3), (4, 4), (6, 2), (6, 3))


def context_exchanges(signature: Signature, case: Case) -> Iterator[Case]:
    """Yield cases of another structure; most are dearer and are never judged."""
    if case.judged != "parameter_gradients":
        yield from _packed_to_padding(case)
        yield from _ragged_pairs(case)
    if cutting_of(signature) == "prefix":
        yield from _cuts_to_decoding(signature, case)
    yield from _tokens_against_padding(case)
    yield from _fewer_heads(signature, case)


def _packed_to_padding(case: Case) -> Iterator[Case]:
    """Dead slots where other sequences of a row lie."""
    packed = find(case, PackRows)
    if packed is None:
        return
    apart = without(case, PackRows, AddNeighbours, PlaceWatched, PermuteRows, ReplaceNeighbours)
    for index, sequence in enumerate(case.sequences):
        before = sum(item.length for item in case.sequences[:index]) or sequence.length
        alone = keep_sequences(apart, {sequence.id})
        for amount in dict.fromkeys((1, before)):
            for pad in (
                PadSlots(side="left", amount=amount, contexts_only=True),
                PadSlots(side="right", amount=amount, contexts_only=True),
                PadSlots(side="left", amount=amount),
                PadSlots(side="right", amount=amount),
            ):
                yield with_transform(alone, pad)


def _ragged_pairs(case: Case) -> Iterator[Case]:
    """Two short sequences of different lengths in place of everything else."""
    if find(case, AddNeighbours) is None:
        return
    first = case.sequences[0]
    bare = attrs.evolve(
        case, transforms=(transform_to_data(AddNeighbours(count=0)),), shared_prefix=0
    )
    drawn = attrs.evolve(bare, data=dict.fromkeys(case.data, Recipe(kind="normal")))
    for one, other in permutations((1, 2, 3), 2):
        pair = (
            LogicalSequence(id=first.id, length=one),
            LogicalSequence(id=first.id + 1, length=other),
        )
        for plain in (bare, drawn):
            yield attrs.evolve(plain, sequences=pair)


def _cuts_to_decoding(signature: Signature, case: Case) -> Iterator[Case]:
    """The last token alone in a launch, in place of any other cut."""
    split = find(case, SplitBatch)
    if split is None or len(case.sequences) > 1:
        return
    for length in range(2, min(_DECODED_MAX, case.sequences[0].length) + 1):
        decoded = with_transform(with_length(case, 0, length), SplitBatch(cuts=(length - 1,)))
        yield decoded
        yield from few_witnesses(signature, decoded)


def _tokens_against_padding(case: Case) -> Iterator[Case]:
    """Fewer tokens beside more dead slots, or more tokens beside fewer."""
    pad = find(case, PadSlots)
    if pad is None:
        return
    steps = [step for step in range(-_TRADED_MAX, _TRADED_MAX + 1) if step]
    for index, sequence in enumerate(case.sequences):
        for step in steps:
            length = sequence.length + step
            # Queries and contexts both get shorter, so that twice as many dead slots fit in.
            for amount in dict.fromkeys((pad.amount - step, pad.amount - 2 * step)):
                if length < 1 or amount < 0:
                    continue
                padded = with_transform(case, attrs.evolve(pad, amount=amount))
                traded = with_length(padded, index, length)
                yield traded
                yield from replaced(traded, axis=TOKENS, size=length)


def _fewer_heads(signature: Signature, case: Case) -> Iterator[Case]:
    """Heads of queries and of keys lowered together, where one must be a multiple of the other."""
    roles = roles_of(signature)
    features = {roles.score_dim, roles.value_dim}
    of_queries, of_keys = (
        [dim.text for item in items for dim in item.free_dims if dim.text not in features]
        for items in (roles.queries, roles.keys)
    )
    for query in of_queries:
        for key in of_keys:
            if query == key or not {query, key} <= set(case.dims):
                continue
            for many, few in _HEADS:
                if many < case.dims[query] or few < case.dims[key]:
                    yield attrs.evolve(case, dims={**case.dims, query: many, key: few})

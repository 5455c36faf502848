"""Which tokens lie in which slots of a launch, as runs: what pictures are drawn of.

Tells what `biprop.layout.launches` lays out, without a tensor: a report is written where torch is
slow to import or not at hand, and a run of a million tokens is as cheap as one of three. A test
compares the two, launch by launch.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import attrs

from biprop.case import Case
from biprop.data.words import SALT_SEQUENCE, SALT_TOKEN, hash_words, mix_word, signed
from biprop.errors import CaseError
from biprop.layout import Layout, Padding
from biprop.layout.neighbours import neighbours_of
from biprop.sequence import LogicalSequence
from biprop.signature import Signature
from biprop.signature.query_context import Cutting, cutting_of
from biprop.signature.roles import has_contexts

__all__ = [
    "DEAD",
    "DEAD_ROW",
    "LaunchRows",
    "Run",
    "Strip",
    "canonical_rows",
    "sequences_of",
    "transformed_rows",
]

# As `biprop.layout.launch` has them.
DEAD = -1
DEAD_ROW = -2
# A case of more sequences, or of more interleaved tokens, is told in words alone.
_SEQUENCES_MAX = 20_000
_SCATTERED_MAX = 4_096


@attrs.frozen
class Run:
    """Slots beside each other that hold tokens of one sequence, one after the other, or nothing.

    Attributes:
        sequence: Index among the sequences of the case and its neighbours; `DEAD` or `DEAD_ROW`.
        first: Token in the first slot.
        count: Slots.
    """

    sequence: int
    first: int
    count: int


Row = tuple[Run, ...]


@attrs.frozen(kw_only=True)
class Strip:
    """The slots of one axis.

    Attributes:
        axis: `T`, `S`, `Q`, `C`, `TQ` or `TC`.
        rows: One for a packed axis.
    """

    axis: str
    rows: tuple[Row, ...]


@attrs.frozen(kw_only=True)
class LaunchRows:
    """One call of the kernel.

    Attributes:
        strips: One an axis.
        empty_segments: Of a packed launch with offsets or lengths.
    """

    strips: tuple[Strip, ...]
    empty_segments: int = 0


@attrs.frozen(kw_only=True)
class _Group:
    """Sequences that share their launches, and how they are laid out.

    Attributes:
        signature: Of the kernel.
        sequences: Of the case, and its neighbours.
        layout: What surrounds them.
    """

    signature: Signature
    sequences: tuple[LogicalSequence, ...]
    layout: Layout

    def whole(self, index: int) -> Run:
        """Return all tokens of a sequence."""
        return Run(index, 0, self.sequences[index].length)


def sequences_of(case: Case, layout: Layout) -> tuple[LogicalSequence, ...]:
    """Return the watched sequences of a case, then its neighbours under a layout.

    Raises:
        CaseError: There are too many to be drawn.
    """
    count = len(case.sequences) + layout.neighbours.count + layout.padding.dead_rows
    if count > _SEQUENCES_MAX:
        raise CaseError(f"{count} rows are too many to be drawn.")
    return (*case.sequences, *neighbours_of(case, layout.neighbours))


def canonical_rows(signature: Signature, case: Case) -> Iterator[LaunchRows]:
    """Make the launches of the canonical configuration, one after the other."""
    group = _Group(signature=signature, sequences=case.sequences, layout=Layout())
    watched = range(len(case.sequences))
    if case.judged == "parameter_gradients":
        build = _contexts if has_contexts(signature) else _whole
        yield from build(group, list(watched))
        return
    for index in watched:
        yield from _contexts(group, [index]) if has_contexts(signature) else _whole(group, [index])


def transformed_rows(
    signature: Signature,
    case: Case,
    layout: Layout,
    *,
    backward_signature: Signature | None = None,
) -> Iterator[LaunchRows]:
    """Make the launches of a transformed configuration, one after the other.

    Args:
        signature: Forward signature.
        case: The case.
        layout: What surrounds its sequences.
        backward_signature: Of a registered backward.

    Raises:
        CaseError: There is too much to be drawn.
    """
    group = _Group(signature=signature, sequences=sequences_of(case, layout), layout=layout)
    parameters = case.judged == "parameter_gradients"
    groups = [[index] for index in range(len(case.sequences))]
    if layout.neighbours.together or parameters or layout.selection.per_row > 1:
        groups = [_order(group, len(case.sequences))]
    if has_contexts(signature):
        for members in groups:
            yield from _contexts(group, members)
        return
    sequences_whole = parameters and (backward_signature or signature).sequence_wise
    for members in groups:
        if signature.token_wise and not sequences_whole:
            yield from _cut_slots(_token_wise(group, members), layout.cuts)
            continue
        for chunk in _cut_sequences(members, layout.cuts, logical=parameters):
            if signature.token_wise:
                yield _packed_launch(_token_wise(group, chunk))
            else:
                yield from _whole(group, chunk)


def _order(group: _Group, watched_count: int) -> list[int]:
    """Return the sequences of a shared launch as T2 places them."""
    layout, total = group.layout, len(group.sequences)
    first_after = min(watched_count + layout.before, total)
    order = [*range(watched_count, first_after), *range(watched_count), *range(first_after, total)]
    if layout.permutation:
        order.sort(
            key=lambda i: hash_words("permutation", layout.permutation, group.sequences[i].id)
        )
    return order


def _cut_sequences(order: list[int], cuts: Sequence[int], *, logical: bool) -> list[list[int]]:
    """Cut sequences into launches; `logical`: in logical order but for the order inside of each."""
    items = sorted(order) if logical else order
    bounds = [0, *(cut for cut in cuts if cut < len(items)), len(items)]
    chunks = [items[low:high] for low, high in pairwise(bounds)]
    if not logical:
        return chunks
    place = {index: at for at, index in enumerate(order)}
    return [sorted(chunk, key=place.__getitem__) for chunk in chunks]


def _token_wise(group: _Group, members: Sequence[int]) -> Row:
    """Return the slots of a token-wise launch before it is cut."""
    selection, padding = group.layout.selection, group.layout.padding
    row = tuple(group.whole(index) for index in members)
    if selection.active_only:
        prompts = [group.sequences[index].prompt_length for index in members]
        row = tuple(
            Run(run.sequence, prompt, run.count - prompt)
            for run, prompt in zip(row, prompts, strict=True)
        )
    if selection.scatter:
        row = _scattered(group, row, selection.scatter)
    return _padded(row, padding, padding.amount)


def _scattered(group: _Group, row: Row, seed: int) -> Row:
    if sum(run.count for run in row) > _SCATTERED_MAX:
        raise CaseError("The tokens are interleaved, and too many to be drawn one by one.")

    def key(place: tuple[int, int]) -> int:
        index, token = place
        word = group.sequences[index].id * SALT_SEQUENCE + token * SALT_TOKEN
        return signed(mix_word(word + hash_words("scatter", seed)))

    places = [(run.sequence, run.first + at) for run in row for at in range(run.count)]
    return tuple(Run(index, token, 1) for index, token in sorted(places, key=key))


def _padded(row: Row, padding: Padding, amount: int) -> Row:
    """Return a row with dead slots on the side of the padding."""
    if not amount:
        return row
    dead = Run(DEAD, 0, amount)
    return (dead, *row) if padding.side == "left" else (*row, dead)


def _cut_slots(row: Row, cuts: Sequence[int]) -> Iterator[LaunchRows]:
    total = sum(run.count for run in row)
    bounds = [0, *(cut for cut in cuts if cut < total), total]
    for low, high in pairwise(bounds):
        part = _between(row, low, high)
        if len(bounds) == 2 or any(run.sequence >= 0 for run in part):
            yield _packed_launch(part)


def _between(row: Row, low: int, high: int) -> Row:
    """Return the slots from `low` to before `high`."""
    found, at = [], 0
    for run in row:
        start, stop = max(low, at), min(high, at + run.count)
        if start < stop:
            first = run.first + start - at if run.sequence >= 0 else 0
            found.append(Run(run.sequence, first, stop - start))
        at += run.count
    return tuple(found)


def _packed_launch(row: Row, *, empty_segments: int = 0) -> LaunchRows:
    return LaunchRows(
        strips=(Strip(axis="T", rows=(_joined(row),)),), empty_segments=empty_segments
    )


def _whole(group: _Group, members: Sequence[int]) -> Iterator[LaunchRows]:
    """Make the one launch of whole sequences: packed segments, or rows."""
    padding = group.layout.padding
    row = tuple(group.whole(index) for index in members)
    if group.signature.layout == "packed":
        padded = _padded(row, padding, padding.amount)
        yield _packed_launch(padded, empty_segments=padding.dead_rows)
        return
    rows = _rows([(run,) for run in row], padding, padding.amount)
    yield LaunchRows(strips=(Strip(axis="S", rows=rows),))


def _rows(rows: Sequence[Row], padding: Padding, amount: int) -> tuple[Row, ...]:
    """Return rows as wide as the longest and the padding, then dead ones."""
    lengths = [sum(run.count for run in row) for row in rows]
    width = max(lengths, default=0) + amount
    live = (
        _joined(_padded(row, padding, width - length))
        for row, length in zip(rows, lengths, strict=True)
    )
    return (*live, *((Run(DEAD_ROW, 0, width),) for _ in range(padding.dead_rows)))


def _contexts(group: _Group, members: Sequence[int]) -> Iterator[LaunchRows]:
    """Make the launches of queries and contexts, cut before some tokens of each sequence."""
    cutting = cutting_of(group.signature)
    lengths = {index: group.sequences[index].length for index in members}
    cuts = group.layout.cuts if cutting != "none" else ()
    for low, high in pairwise([0, *cuts, max(lengths.values(), default=0)]):
        left = [index for index in members if lengths[index] > low]
        if not left:
            return
        queries = [_queries(index, lengths[index], low, high, cutting) for index in left]
        contexts = [
            Run(index, 0, min(lengths[index], high) if cutting == "prefix" else lengths[index])
            for index in left
        ]
        yield _context_launch(group, queries, contexts, is_single=cutting == "none")


def _queries(index: int, length: int, low: int, high: int, cutting: Cutting) -> Run:
    if cutting == "none":
        return Run(index, length - 1, 1)
    return Run(index, low, min(length, high) - low)


def _context_launch(
    group: _Group, queries: list[Run], contexts: list[Run], *, is_single: bool
) -> LaunchRows:
    padding, per_row = group.layout.padding, group.layout.selection.per_row
    # The one query of a sequence has no slots beside it.
    beside = 0 if is_single or padding.contexts_only else padding.amount
    if group.signature.layout == "packed_query_context":
        strips = (
            Strip(axis="TQ", rows=(_joined(_padded(tuple(queries), padding, beside)),)),
            Strip(axis="TC", rows=(_joined(_padded(tuple(contexts), padding, padding.amount)),)),
        )
        return LaunchRows(strips=strips, empty_segments=padding.dead_rows)
    rows = [list(_batched(runs, per_row)) for runs in (queries, contexts)]
    return LaunchRows(
        strips=(
            Strip(axis="Q", rows=_rows(rows[0], padding, beside)),
            Strip(axis="C", rows=_rows(rows[1], padding, padding.amount)),
        )
    )


def _batched(runs: Sequence[Run], per_row: int) -> Iterator[Row]:
    """Make rows of so many runs; the last may have fewer."""
    left = iter(runs)
    while row := tuple(islice(left, per_row)):
        yield row


def _joined(row: Row) -> Row:
    """Return the fewest runs of the same slots."""
    found: list[Run] = []
    for run in row:
        last = found[-1] if found else None
        if not run.count:
            continue
        follows = last is not None and last.sequence == run.sequence
        if (
            last is not None
            and follows
            and (run.sequence < 0 or last.first + last.count == run.first)
        ):
            found[-1] = Run(last.sequence, last.first, last.count + run.count)
        else:
            found.append(run)
    return tuple(found)

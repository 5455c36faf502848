"""Launches: which tokens of a pool lie in which slots under a layout.

Outputs are read back through the same maps that arguments are gathered by (`biprop.layout.launch`),
so no transform needs code of its own on either side. What is legal is decided by
`biprop.generation.legal`; a layout that cannot even be laid out is refused here.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.counter import mix_
from biprop.data.words import SALT_SEQUENCE, SALT_TOKEN, hash_words, signed
from biprop.errors import CaseError
from biprop.layout.launch import DEAD, DEAD_ROW, Launch, end_to_end, padded_out
from biprop.layout.pool import TokenPool
from biprop.layout.query_context import query_context_launches, whole_launch
from biprop.layout.records import Layout, Padding
from biprop.signature import Signature, TokenAxis
from biprop.signature.query_context import is_even, sides_of, takes_packed_rows
from biprop.signature.roles import has_contexts

__all__ = ["Launch", "canonical_launches", "each_launch", "joint_launch", "launches"]


def canonical_launches(signature: Signature, pool: TokenPool, case: Case) -> tuple[Launch, ...]:
    """Return the launches of the canonical configuration.

    Each watched sequence alone; for gradients of parameters all of them, in logical order, in one.

    Args:
        signature: Forward signature.
        pool: Of the case, with or without neighbours.
        case: The case.
    """
    watched = range(pool.watched_count)
    if has_contexts(signature):
        if case.judged == "parameter_gradients":
            return tuple(query_context_launches(signature, pool, watched))
        return tuple(whole_launch(signature, pool, index) for index in watched)
    build = _packed if signature.layout == "packed" else _padded
    if case.judged == "parameter_gradients":
        return (build(pool, watched, Padding()),)
    return tuple(_alone(signature, pool, index) for index in watched)


def joint_launch(signature: Signature, pool: TokenPool) -> Launch | None:
    """Return the watched sequences in one launch; None where they would have to be equally long."""
    watched = range(pool.watched_count)
    ragged = len({pool.sequences[index].length for index in watched}) > 1
    if has_contexts(signature):
        if ragged and is_even(signature):
            return None
        return next(query_context_launches(signature, pool, watched))
    if signature.layout == "packed":
        return _packed(pool, watched, Padding())
    told = (
        signature.has_mask
        or signature.has_lengths
        or signature.has_offsets
        or signature.token_local
    )
    return None if ragged and not told else _padded(pool, watched, Padding())


def launches(
    signature: Signature,
    pool: TokenPool,
    case: Case,
    layout: Layout,
    *,
    backward_signature: Signature | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a transformed configuration.

    Args:
        signature: Forward signature.
        pool: `token_pool(case, layout)`.
        case: The case.
        layout: What surrounds its sequences.
        backward_signature: Of a registered backward. Gradients of parameters whose backward is told
            where sequences end are cut between sequences only.

    Raises:
        CaseError: The layout cannot be laid out for the signature.
    """
    return tuple(each_launch(signature, pool, case, layout, backward_signature=backward_signature))


def each_launch(
    signature: Signature,
    pool: TokenPool,
    case: Case,
    layout: Layout,
    *,
    backward_signature: Signature | None = None,
) -> Iterator[Launch]:
    """Make the launches of `launches` one after the other, as they are asked for."""
    _check(signature, layout, backward_signature or signature)
    parameters = case.judged == "parameter_gradients"
    groups = [[index] for index in range(pool.watched_count)]
    if layout.neighbours.together or parameters or layout.selection.per_row > 1:
        groups = [_order(pool, layout)]
    if has_contexts(signature):
        for group in groups:
            yield from query_context_launches(
                signature,
                pool,
                group,
                padding=layout.padding,
                cuts=layout.cuts,
                per_row=layout.selection.per_row,
            )
        return
    sequences_whole = parameters and (backward_signature or signature).sequence_wise
    if signature.token_wise and not sequences_whole:
        for group in groups:
            yield from _cut_slots(pool, group, layout)
        return
    build = _packed if signature.layout == "packed" else _padded
    for group in groups:
        for chunk in _cut_sequences(group, layout.cuts, logical=parameters):
            if signature.token_wise:
                yield _uncut(pool, chunk, layout)
            else:
                yield build(pool, chunk, layout.padding)


def _check(signature: Signature, layout: Layout, target: Signature) -> None:
    """Refuse what has no physical meaning; the rest of what is legal is decided elsewhere."""
    padding = layout.padding
    if layout.selection.per_row > 1 and not takes_packed_rows(signature):
        raise CaseError(
            "PackRows needs a signature over B,Q,C that a causal mask alone tells who attends whom."
        )
    if layout.selection.active_only and signature.sequence_wise:
        raise CaseError(
            "GatherActive needs a signature whose tokens are independent, over T alone."
        )
    if layout.selection.scatter and target.sequence_wise and not target.has_order:
        raise CaseError(
            "GatherActive cannot scatter tokens for a target without an argument of kind order."
        )
    if padding.dead_rows and signature.token_wise:
        raise CaseError(
            "AddDeadRows needs rows or segments: use PadSlots for a signature over T alone."
        )
    ends = signature.layout == "packed" and target.sequence_wise and not target.has_order
    if signature.layout == "packed_query_context":
        ends = "left" not in sides_of(signature)
        if padding.dead_rows and not (signature.has_offsets or signature.has_lengths):
            raise CaseError(
                "AddDeadRows needs rows or segments: use PadSlots for tokens under one mask."
            )
    if padding.side == "left" and padding.amount and ends:
        raise CaseError(
            "PadSlots side=left moves the first segment: use side=right with offsets or lengths."
        )


def _order(pool: TokenPool, layout: Layout) -> list[int]:
    """Return the sequences of a shared launch as T2 places them, indices into the pool."""
    total = len(pool.sequences)
    watched = list(range(pool.watched_count))
    first_after = min(pool.watched_count + layout.before, total)
    before = list(range(pool.watched_count, first_after))
    order = before + watched + list(range(first_after, total))
    if layout.permutation:
        # By hashed id, so that a neighbour less leaves the others in their order.
        order.sort(
            key=lambda i: hash_words("permutation", layout.permutation, pool.sequences[i].id)
        )
    return order


def _cut_sequences(order: list[int], cuts: Sequence[int], *, logical: bool) -> list[list[int]]:
    """Cut sequences into launches; `logical`: in logical order but for the order inside of each.

    Accumulators are carried from launch to launch, in logical order.
    """
    chunks = _chunks(sorted(order) if logical else order, cuts)
    if not logical:
        return chunks
    place = {index: at for at, index in enumerate(order)}
    return [sorted(chunk, key=place.__getitem__) for chunk in chunks]


def _chunks(items: list[int], cuts: Sequence[int]) -> list[list[int]]:
    bounds = [0, *(cut for cut in cuts if cut < len(items)), len(items)]
    return [items[low:high] for low, high in pairwise(bounds)]


def _alone(signature: Signature, pool: TokenPool, index: int) -> Launch:
    """Return the canonical launch of one sequence, without a detour over general maps."""
    start, stop = pool.start[index], pool.start[index + 1]
    tokens = torch.arange(start, stop)
    last = tokens[-1:]
    maps: dict[TokenAxis, Tensor] = (
        {"T": tokens, "B": last} if signature.layout == "packed" else {"S": tokens[None], "B": last}
    )
    return Launch(
        maps=maps,
        lengths=(stop - start,),
        sequences=(index,),
        span=(start, stop),
        runs=((start, stop - start),) if "T" in maps else None,
    )


def _token_wise(pool: TokenPool, group: Sequence[int], layout: Layout) -> Tensor:
    """Return the map of all slots of a token-wise launch before it is cut."""
    slots = _concatenated(pool, group)
    if layout.selection.active_only:
        slots = slots[pool.active[slots]]
    if layout.selection.scatter:
        slots = slots[_scatter_keys(pool, slots, layout.selection.scatter).argsort(stable=True)]
    return padded_out(slots, layout.padding.side, layout.padding.amount)


def _scatter_keys(pool: TokenPool, slots: Tensor, seed: int) -> Tensor:
    # By hashed token, so that a token less leaves the others in their order.
    words = pool.sequence_id[slots] * signed(SALT_SEQUENCE) + pool.token[slots] * signed(SALT_TOKEN)
    return mix_(words + signed(hash_words("scatter", seed)))


def _cut_slots(pool: TokenPool, group: Sequence[int], layout: Layout) -> Iterator[Launch]:
    if not layout.cuts:
        yield _uncut(pool, group, layout)
        return
    slots = _token_wise(pool, group, layout)
    bounds = [0, *(cut for cut in layout.cuts if cut < len(slots)), len(slots)]
    for low, high in pairwise(bounds):
        part = slots[low:high]
        # The only launch may have nothing but dead slots.
        if len(bounds) == 2 or bool((part >= 0).any()):
            yield _of_map(pool, group, part)


def _uncut(pool: TokenPool, group: Sequence[int], layout: Layout) -> Launch:
    """Return a token-wise launch of all slots of a group."""
    if layout.selection.active_only or layout.selection.scatter:
        return _of_map(pool, group, _token_wise(pool, group, layout))
    return _packed(pool, group, layout.padding)


def _of_map(pool: TokenPool, group: Sequence[int], slots: Tensor) -> Launch:
    """Return the launch of a token-wise map; its segments are what lies in it of each sequence."""
    flat = slots.numpy()
    live = flat[flat >= 0]
    if len(group) == 1:
        return Launch(
            maps={"T": slots, "B": pool.last[group[0], None]},
            lengths=(len(live),),
            sequences=(group[0],),
        )
    owners = pool.sequence_of.numpy()[live]
    bounds = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
    found = owners[bounds[:-1]] if len(owners) else owners
    lengths = [high - low for low, high in pairwise(bounds)] if len(owners) else []
    if len(found) > len(group) or len(set(found.tolist())) < len(found):
        # Scattered: segments have no place, and are counted in logical order.
        found, counts = np.unique(owners, return_counts=True)
        lengths = counts.tolist()
    return Launch(
        maps={"T": slots, "B": torch.from_numpy(pool.last.numpy()[found])},
        lengths=tuple(lengths),
        sequences=tuple(found.tolist()),
    )


def _packed(pool: TokenPool, group: Sequence[int], padding: Padding) -> Launch:
    """Return the packed launch of whole sequences: segments, empty segments, then dead slots."""
    lengths = [pool.start[index + 1] - pool.start[index] for index in group]
    runs: list[tuple[int, int]] = []
    for index, length in zip(group, lengths, strict=True):
        first, count = runs[-1] if runs else (0, -1)
        if first + count == pool.start[index]:
            # They follow each other in the pool too.
            runs[-1] = (first, count + length)
        else:
            runs.append((pool.start[index], length))
    if padding.amount:
        runs.insert(0 if padding.side == "left" else len(runs), (DEAD, padding.amount))
    slots = padded_out(_concatenated(pool, group), padding.side, padding.amount)
    return Launch(
        maps={"T": slots, "B": _last_tokens(pool, group, padding.dead_rows)},
        lengths=(*lengths, *(0,) * padding.dead_rows),
        sequences=(*group, *(-1,) * padding.dead_rows),
        runs=tuple(runs),
    )


def _padded(pool: TokenPool, group: Sequence[int], padding: Padding) -> Launch:
    """Return the launch of whole rows, as wide as the longest and the padding, then dead rows."""
    starts, lengths = _bounds(pool, group)
    width = int(lengths.max()) + padding.amount
    token = np.arange(width)
    first = (width - lengths if padding.side == "left" else np.zeros_like(lengths))[:, None]
    live = (token >= first) & (token < first + lengths[:, None])
    slots = np.where(live, starts[:, None] - first + token, DEAD)
    if padding.dead_rows:
        slots = np.concatenate([slots, np.full((padding.dead_rows, width), DEAD_ROW)])
    return Launch(
        maps={"S": torch.from_numpy(slots), "B": _last_tokens(pool, group, padding.dead_rows)},
        lengths=(*lengths.tolist(), *(0,) * padding.dead_rows),
        sequences=(*group, *(-1,) * padding.dead_rows),
    )


def _last_tokens(pool: TokenPool, group: Sequence[int], dead_rows: int) -> Tensor:
    return torch.tensor([pool.start[index + 1] - 1 for index in group] + [DEAD_ROW] * dead_rows)


def _bounds(
    pool: TokenPool, group: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first token of each of several sequences, and their lengths."""
    # numpy takes a fraction of the time that torch takes for a few thousand tokens.
    index, starts = np.asarray(group), pool.starts.numpy()
    return starts[index], starts[index + 1] - starts[index]


def _concatenated(pool: TokenPool, group: Sequence[int]) -> Tensor:
    """Return the tokens of several sequences one after the other."""
    if len(group) == 1:
        return torch.arange(pool.start[group[0]], pool.start[group[0] + 1])
    return end_to_end(*_bounds(pool, group))

"""Launches of queries and contexts: who lies where, who attends whom, and who is fed how often.

A sequence's tokens are its queries and its contexts. `biprop.signature.query_context` says what a
launch of some of the queries holds; `biprop.layout.launches` asks for the launches.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from biprop.data.transfer import moved
from biprop.layout.launch import DEAD, DEAD_ROW, Launch, end_to_end, padded_out
from biprop.layout.pool import TokenPool
from biprop.layout.records import Padding
from biprop.signature import Signature, TokenAxis
from biprop.signature.query_context import Cutting, cutting_of

__all__ = ["attends", "attends_keys", "fed_once", "query_context_launches", "whole_launch"]


def query_context_launches(
    signature: Signature,
    pool: TokenPool,
    group: Sequence[int],
    *,
    padding: Padding | None = None,
    cuts: Sequence[int] = (),
    per_row: int = 1,
) -> Iterator[Launch]:
    """Make the launches of some sequences one after the other.

    Args:
        signature: Over queries and contexts.
        pool: Of the case.
        group: Indices in the pool of the sequences that share the launches, in their order.
        padding: Dead slots, dead rows or empty segments.
        cuts: Tokens of each sequence before which its queries are cut; a shorter one ends earlier.
        per_row: Sequences that share a row; 1 for a packed signature.
    """
    cutting, around = cutting_of(signature), padding or Padding()
    packed = signature.layout == "packed_query_context"
    lengths = [pool.start[index + 1] - pool.start[index] for index in group]
    bounds = [0, *(cuts if cutting != "none" else ()), max(lengths, default=0)]
    for low, high in pairwise(bounds):
        members = [
            (index, pool.start[index], length)
            for index, length in zip(group, lengths, strict=True)
            if length > low
        ]
        if not members:
            return
        yield _launch(
            [index for index, _, _ in members],
            _queries(members, low, high, cutting),
            _contexts(members, high, cutting),
            around,
            packed=packed,
            single=cutting == "none",
            per_row=per_row,
        )


def whole_launch(signature: Signature, pool: TokenPool, index: int) -> Launch:
    """Return the canonical launch of one sequence, without a detour over general maps."""
    start, stop = pool.start[index], pool.start[index + 1]
    tokens = torch.arange(start, stop)
    last = tokens[-1:]
    queries = last if cutting_of(signature) == "none" else tokens
    maps: dict[TokenAxis, Tensor] = (
        {"TQ": queries, "TC": tokens, "B": last}
        if signature.layout == "packed_query_context"
        else {"Q": queries[None], "C": tokens[None], "B": last}
    )
    return Launch(
        maps=maps,
        lengths=(len(queries),),
        context_lengths=(stop - start,),
        sequences=(index,),
        span=(start, stop),
    )


def attends(launch: Launch, pool: TokenPool, device: torch.device | None = None) -> Tensor:
    """Say which query attends which context under causality, bool `[B, Q, C]` or `[TQ, TC]`.

    A live query attends the live contexts of its own sequence up to its own token; a dead one the
    first live context of its row, and the first slot in a dead row.

    Args:
        launch: The launch.
        pool: What its maps point into.
        device: Where the pairs are compared, and the result lies; None: the CPU.
    """
    packed = "TQ" in launch.maps
    queries, contexts = (
        (launch.maps["TQ"][None], launch.maps["TC"][None])
        if packed
        else (launch.maps["Q"], launch.maps["C"])
    )
    # The first of the largest: slot 0 where no slot is live.
    first = contexts.gather(1, (contexts >= 0).int().argmax(1, keepdim=True))
    # Tokens of a sequence follow one another in the pool, so what is attended is a range of it.
    start = pool.starts[pool.sequence_of[queries.clamp(min=0)]]
    low, high = (torch.where(queries >= 0, bound, first) for bound in (start, queries))
    low, high, other = (
        moved(bound.to(torch.int32), device or bound.device)
        for bound in (low[:, :, None], high[:, :, None], contexts[:, None, :])
    )
    found = (other >= low) & (other <= high)
    dead = (first[:, 0] < 0).nonzero()[:, 0]
    if len(dead):
        found[moved(dead, found.device), :, 1:] = False
    return found[0] if packed else found


def attends_keys(launch: Launch) -> Tensor:
    """Say which contexts of its row a query may attend, bool `[B, C]`; in a dead row the first.

    For a mask over contexts alone, which hides padding and no future. Lies on the CPU.
    """
    contexts = launch.maps["C"]
    found = contexts >= 0
    found[:, 0] |= ~found.any(dim=1)
    return found


def fed_once(signature: Signature, pool: TokenPool, cuts: Sequence[int]) -> Tensor:
    """Say which tokens are contexts of exactly one launch, bool `[n]`, on the CPU.

    The gradient of another one comes in parts, which only the harness could add.

    Args:
        signature: Over queries and contexts.
        pool: Of the configuration.
        cuts: Of its layout.
    """
    cutting = cutting_of(signature)
    if cutting == "none" or not cuts:
        return torch.ones_like(pool.active)
    lengths = pool.starts[1:] - pool.starts[:-1]
    edges = torch.tensor([0, *cuts])
    # The last cut inside of each sequence: from there on its tokens lie in its last launch only.
    last = edges[torch.searchsorted(edges, lengths) - 1][pool.sequence_of]
    return (last == 0) if cutting == "queries" else (pool.token >= last)


class _Runs(NamedTuple):
    """One run of tokens of each sequence of a launch, as first pool index and count."""

    firsts: list[int]
    counts: list[int]


# Index in the pool, first token and length of each sequence of a launch.
_Members = Sequence[tuple[int, int, int]]


def _queries(members: _Members, low: int, high: int, cutting: Cutting) -> _Runs:
    if cutting == "none":
        return _Runs([start + length - 1 for _, start, length in members], [1] * len(members))
    return _Runs(
        [start + low for _, start, _ in members],
        [min(length, high) - low for _, _, length in members],
    )


def _contexts(members: _Members, high: int, cutting: Cutting) -> _Runs:
    return _Runs(
        [start for _, start, _ in members],
        [min(length, high) if cutting == "prefix" else length for _, _, length in members],
    )


def _launch(
    members: list[int],
    queries: _Runs,
    contexts: _Runs,
    padding: Padding,
    *,
    packed: bool,
    single: bool,
    per_row: int,
) -> Launch:
    lay = _end_to_end if packed else _rows
    # The one query of a sequence has no slots beside it.
    beside = 0 if single or padding.contexts_only else padding.amount
    counts = _by_row(queries.counts, per_row), _by_row(contexts.counts, per_row)
    last = [first + count - 1 for first, count in zip(*queries, strict=True)]
    ends = [last[min(at + per_row, len(last)) - 1] for at in range(0, len(last), per_row)]
    context_map = lay(contexts, counts[1], padding, padding.amount)
    alike = queries == contexts and beside == padding.amount
    query_map = context_map if alike else lay(queries, counts[0], padding, beside)
    maps: dict[TokenAxis, Tensor] = {
        "TQ" if packed else "Q": query_map,
        "TC" if packed else "C": context_map,
        "B": torch.tensor(ends + [DEAD_ROW] * padding.dead_rows),
    }
    nothing = (0,) * padding.dead_rows
    return Launch(
        maps=maps,
        lengths=(*counts[0], *nothing),
        context_lengths=(*counts[1], *nothing),
        sequences=(*members[::per_row], *(-1,) * padding.dead_rows),
    )


def _by_row(counts: list[int], per_row: int) -> list[int]:
    if per_row == 1:
        return counts
    return [sum(counts[at : at + per_row]) for at in range(0, len(counts), per_row)]


def _end_to_end(runs: _Runs, _: list[int], padding: Padding, amount: int) -> Tensor:
    """Return `[slots]`: all runs one after the other, and dead slots at one end."""
    return padded_out(_tokens(runs), padding.side, amount)


def _rows(runs: _Runs, counts: list[int], padding: Padding, amount: int) -> Tensor:
    """Return `[B, slots]`: as wide as the longest row and the padding, then dead rows."""
    width = max(counts) + amount
    slots = np.full((len(counts) + padding.dead_rows, width), DEAD)
    slots[len(counts) :] = DEAD_ROW
    ends = np.array(counts)
    # From the slot of a row's first token to its place among all tokens.
    shift = np.arange(len(counts)) * width - (ends.cumsum() - ends)
    if padding.side == "left":
        shift += width - ends
    tokens = _tokens(runs).numpy()
    slots.reshape(-1)[np.arange(len(tokens)) + shift.repeat(ends)] = tokens
    return torch.from_numpy(slots)


def _tokens(runs: _Runs) -> Tensor:
    """Return the tokens of all runs, one after the other."""
    return end_to_end(np.array(runs.firsts), np.array(runs.counts))

"""The neighbours of a case: sequences of the transformed launch that nobody compares."""

from biprop.case import Case
from biprop.data.words import hash_words
from biprop.layout.records import Neighbours
from biprop.sequence import NEIGHBOUR_ID_FIRST, LogicalSequence

__all__ = ["neighbour_lengths", "neighbours_of"]


def neighbours_of(case: Case, neighbours: Neighbours) -> tuple[LogicalSequence, ...]:
    """Return the neighbours of a case; gradients of parameters have none: their set is complete."""
    return tuple(
        LogicalSequence(id=NEIGHBOUR_ID_FIRST + index, length=length)
        for index, length in enumerate(neighbour_lengths(case, neighbours))
    )


def neighbour_lengths(case: Case, neighbours: Neighbours) -> tuple[int, ...]:
    """Return the tokens of each neighbour of a case."""
    if not neighbours.together or case.judged == "parameter_gradients":
        return ()
    return tuple(
        (neighbours.length or case.sequences[index % len(case.sequences)].length)
        + _extra(case.seed, index, neighbours.spread)
        for index in range(neighbours.count)
    )


def _extra(seed: int, index: int, spread: int) -> int:
    return hash_words("neighbour length", seed, index) % (spread + 1) if spread else 0

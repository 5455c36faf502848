"""Watched sequences, and the neighbours beside them.

A few watched sequences carry the comparison; the population is carried by neighbours, which are not
compared. For gradients of parameters there are no neighbours: the set of sequences is complete.
"""

import math

import attrs

from biprop.case import Judged
from biprop.generation.draw import Draw
from biprop.generation.legal import is_blind
from biprop.generation.sizes import draw_size
from biprop.generation.space import Space
from biprop.sequence import LogicalSequence

__all__ = ["Population", "draw_population", "draw_sequences"]


@attrs.frozen(kw_only=True)
class Population:
    """Who shares the launches of a case.

    Attributes:
        sequences: Watched, in logical order.
        count: Neighbours.
        length: Of each, as T3 sets it; 0: the lengths of the watched sequences in turn.
        spread: Largest number of tokens added to a neighbour.
        loudness: Their values are multiplied by 2**loudness.
        shared_prefix: Tokens that all sequences have in common.
    """

    sequences: tuple[LogicalSequence, ...]
    count: int = 0
    length: int = 0
    spread: int = 0
    loudness: int = 0
    shared_prefix: int = 0

    @property
    def is_replaced(self) -> bool:
        """Whether T3 has anything to say about the neighbours."""
        return bool(self.count and (self.length or self.spread or self.loudness))

    @property
    def watched_tokens(self) -> int:
        """Tokens of the watched sequences."""
        return sum(sequence.length for sequence in self.sequences)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, at most."""
        own = self.length or max(sequence.length for sequence in self.sequences)
        return self.watched_tokens + self.count * (own + self.spread)


def draw_sequences(
    draw: Draw, space: Space, *, tokens_max: int, count: int, single: bool = False
) -> tuple[LogicalSequence, ...]:
    """Draw `count` watched sequences, each with a length, a prompt and perhaps a first position.

    Args:
        draw: Source of choices.
        space: Says how long a sequence may be, and whether all must be equally long.
        tokens_max: Tokens of all together.
        count: Sequences, 1 or more.
        single: Every sequence is one token.
    """
    signature = space.signature
    longest = max(1, min(space.limits.length_max, tokens_max // count))
    if signature.token_wise and count > 1:
        # Long sequences in a token-wise launch only make it large: their tokens are independent.
        longest = min(longest, max(5, tokens_max // (2 * count)))
    common = draw_size(draw, longest) if is_blind(signature) else 0
    sequences: list[LogicalSequence] = []
    for index in range(count):
        active = 1 if single else common or draw_size(draw, longest, constants=space.constants)
        # A prompt is computed and not compared; half of the sequences have none. Lengths are sums,
        # so that either part shrinks alone.
        room = 0 if single else active - 1 if common else longest - active
        prompt = draw.integer(0, room) if room and draw.choice((False, True)) else 0
        length = active if common else active + prompt
        start = 0
        if signature.has_position and draw.choice((False, False, False, True)):
            start = draw.integer(0, space.limits.length_max)
        sequences.append(
            LogicalSequence(id=index, length=length, prompt_length=prompt, position_start=start)
        )
    return tuple(sequences)


def draw_population(
    draw: Draw, space: Space, *, judged: Judged, present: frozenset[str], tokens_max: int
) -> Population:
    """Draw sequences and, where T1 is `present`, neighbours; where T3 is, what they are.

    Args:
        draw: Source of choices.
        space: What may be drawn.
        judged: Gradients of parameters take every sequence into the set.
        present: Classes of the composition.
        tokens_max: Tokens that the dimensions leave room for.
    """
    if judged == "parameter_gradients":
        return _complete_set(draw, space, tokens_max)
    if space.signature.token_wise:
        return _token_wise(draw, space, present, tokens_max)
    return _sequence_wise(draw, space, present, tokens_max)


def _watched_count(draw: Draw, space: Space, rows: int) -> int:
    counts = (1, 2, 3, 8, 16, 32) if space.signature.token_wise else (1, 1, 2, 2, 3, 3, 8)
    return min(rows, space.limits.watched_max, draw.choice(counts))


def _complete_set(draw: Draw, space: Space, tokens_max: int) -> Population:
    limits = space.limits
    if space.signature.token_wise:
        rows = draw_size(draw, min(limits.tokens_max, tokens_max), constants=space.constants)
        count = min(rows, draw.choice((1, 2, 3, 8, 16, 32, 64)))
        if draw.choice((False, True)):
            # Equal shares reach row counts that random lengths hardly do.
            lengths = [rows // count + (index < rows % count) for index in range(count)]
            sequences = tuple(
                LogicalSequence(id=index, length=length) for index, length in enumerate(lengths)
            )
            return Population(sequences=sequences)
        return Population(sequences=draw_sequences(draw, space, tokens_max=rows, count=count))
    rows = draw_size(draw, min(limits.sequences_max, tokens_max), constants=space.constants)
    # Many rows of many tokens would only make a long sum longer, and its kernels are the slowest.
    room = min(tokens_max, 2 * limits.tokens_max)
    return Population(sequences=draw_sequences(draw, space, tokens_max=room, count=rows))


def _token_wise(draw: Draw, space: Space, present: frozenset[str], tokens_max: int) -> Population:
    limits = space.limits
    rows = draw_size(draw, min(limits.tokens_max, tokens_max), constants=space.constants)
    watched = _watched_count(draw, space, rows)
    # Asked whether or not it decides: a question less would look simpler to a shrinker.
    single = draw.choice((True, True, False)) or watched > 3
    sequences = draw_sequences(draw, space, tokens_max=rows, count=watched, single=single)
    population = Population(sequences=sequences)
    if "T1" not in present:
        return population
    length, spread, loudness = 0, 0, 0
    if "T3" in present:
        loudness = draw.choice((0, 4, 10))
        length = draw.choice((0, 0, 0, draw_size(draw, 8)))
        if not (loudness or _changes(population, length)):
            loudness = 4
    mean = length or math.ceil(population.watched_tokens / watched)
    count = max(0, rows - population.watched_tokens) // mean
    return attrs.evolve(
        population,
        count=_at_least_one(count, population, present),
        length=length,
        spread=spread,
        loudness=loudness,
    )


def _sequence_wise(
    draw: Draw, space: Space, present: frozenset[str], tokens_max: int
) -> Population:
    limits, blind = space.limits, is_blind(space.signature)
    rows = draw_size(draw, min(limits.sequences_max, tokens_max), constants=space.constants)
    watched = _watched_count(draw, space, rows)
    sequences = draw_sequences(draw, space, tokens_max=tokens_max, count=watched)
    population = Population(sequences=sequences)
    if "T1" not in present:
        return population
    count = _at_least_one(rows - watched, population, present)
    left = max(1, (tokens_max - population.watched_tokens) // max(1, count))
    length, spread, loudness = 0, 0, 0
    if "T3" in present:
        if not blind:
            length = draw_size(draw, min(left, limits.length_max if count < 8 else 12))
            spread = draw.choice((0, 1, 5, 17)) if left > length + 17 else draw.choice((0, 1))
        loudness = draw.choice((0, 0, 4, 10))
        if not (loudness or spread or _changes(population, length)):
            loudness = 4
    population = attrs.evolve(
        population, count=count, length=length, spread=spread, loudness=loudness
    )
    return attrs.evolve(population, shared_prefix=_shared_prefix(draw, population))


def _changes(population: Population, length: int) -> bool:
    return bool(length) and {sequence.length for sequence in population.sequences} != {length}


def _at_least_one(count: int, population: Population, present: frozenset[str]) -> int:
    # Without a neighbour T1 only puts the watched sequences together, and T3 has nothing to change.
    needed = len(population.sequences) == 1 or "T3" in present
    return max(count, 1) if needed else count


def _shared_prefix(draw: Draw, population: Population) -> int:
    if len(population.sequences) + population.count < 2 or draw.choice((True, True, True, False)):
        return 0
    return draw_size(draw, 16)

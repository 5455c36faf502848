"""Watched sequences, and the neighbours beside them.

A few watched sequences carry the comparison; the population is carried by neighbours, which are not
compared. For gradients of parameters there are no neighbours: the set of sequences is complete.
"""

import math

import attrs

from biprop.case import Judged
from biprop.generation.draw import Draw
from biprop.generation.legal import is_blind
from biprop.generation.room import is_dense, room_for_pairs
from biprop.generation.sizes import draw_size
from biprop.generation.space import Space
from biprop.sequence import LogicalSequence
from biprop.signature.roles import has_contexts

__all__ = [
    "Population",
    "draw_alone",
    "draw_neighbours",
    "draw_population",
    "draw_sequences",
    "pairs_of",
]

# Sequences that are run one by one, where nothing is to be told of their company.
_ALONE_COUNTS = (1, 1, 2, 3)
# Tokens from which on a sum over them shows changed orders well.
_SUMMED_MIN = 16


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
    def rows(self) -> int:
        """Sequences, neighbours included."""
        return len(self.sequences) + self.count

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, at most."""
        own = max(sequence.length for sequence in self.sequences)
        return max(own, (self.length or own) + self.spread) if self.count else own

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
    draw: Draw, space: Space, *, tokens_max: int, count: int, single: bool = False, least: int = 1
) -> tuple[LogicalSequence, ...]:
    """Draw `count` watched sequences, each with a length, a prompt and perhaps a first position.

    Args:
        draw: Source of choices.
        space: Says how long a sequence may be, and whether all must be equally long.
        tokens_max: Tokens of all together.
        count: Sequences, 1 or more.
        single: Every sequence is one token.
        least: Tokens of the first sequence, at least.
    """
    signature = space.signature
    longest = max(1, min(_length_max(space, count), tokens_max // count))
    least = min(max(space.limits.length_min, least), longest)
    if signature.token_wise and count > 1:
        # Long sequences in a token-wise launch only make it large: their tokens are independent.
        longest = min(longest, max(5, tokens_max // (2 * count)))
    common = _common_length(draw, space, low=least, high=longest) if is_blind(signature) else 0
    sequences: list[LogicalSequence] = []
    for index in range(count):
        active = 1
        low = least if index == 0 else 1
        swept = space.swept("length", low=low, high=longest) if index == 0 else None
        if not single:
            active = common or swept or draw_size(draw, longest, low=low, constants=space.constants)
        # A prompt is computed and not compared; half of the sequences have none. Lengths are sums,
        # so that either part shrinks alone.
        is_whole = bool(common or swept)
        room = 0 if single else active - 1 if is_whole else longest - active
        prompt = draw.integer(0, room) if room and draw.choice((False, True)) else 0
        length = active if is_whole else active + prompt
        start = 0
        if signature.has_position and draw.choice((False, False, False, True)):
            start = draw.integer(0, space.limits.length_max)
        sequences.append(
            LogicalSequence(id=index, length=length, prompt_length=prompt, position_start=start)
        )
    return tuple(sequences)


def _common_length(draw: Draw, space: Space, *, low: int, high: int) -> int:
    """Draw one length for all sequences; where it is summed over, few tokens show little."""
    longer = has_contexts(space.signature) and draw.choice((False, True))
    swept = space.swept("length", low=low, high=high)
    if swept is not None:
        return swept
    length = draw_size(draw, high, low=low)
    if length < _SUMMED_MIN and longer:
        length = max(length, draw_size(draw, high, low=low), draw_size(draw, high, low=low))
    return length


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


def draw_neighbours(
    draw: Draw,
    space: Space,
    sequences: tuple[LogicalSequence, ...],
    *,
    judged: Judged,
    present: frozenset[str],
    tokens_max: int,
) -> Population:
    """Draw other company for sequences that are there already, as `draw_population` does.

    Args:
        draw: Source of choices.
        space: What may be drawn.
        sequences: Watched, in logical order.
        judged: Gradients of parameters have no neighbours.
        present: Classes of the composition.
        tokens_max: Tokens that the dimensions leave room for.
    """
    population = Population(sequences=sequences)
    if judged == "parameter_gradients" or "T1" not in present:
        return population
    if space.signature.token_wise:
        rows = _rows(draw, space, min(space.limits.tokens_max, tokens_max))
        return _beside_tokens(draw, population, present, rows)
    rows = _rows(draw, space, min(space.limits.sequences_max, tokens_max))
    return _beside_sequences(draw, space, population, present, tokens_max=tokens_max, rows=rows)


def draw_alone(draw: Draw, space: Space, *, judged: Judged, tokens_max: int) -> Population:
    """Draw few watched sequences, without neighbours: each of them is run alone, and only so.

    Args:
        draw: Source of choices.
        space: What may be drawn.
        judged: Gradients of parameters take many sequences into one launch.
        tokens_max: Tokens that the dimensions leave room for.
    """
    if judged == "parameter_gradients":
        return _complete_set(draw, space, tokens_max)
    count = draw.choice(_ALONE_COUNTS)
    room = min(tokens_max, space.limits.tokens_max)
    tokens = max(count, draw_size(draw, room, constants=space.constants))
    return Population(sequences=draw_sequences(draw, space, tokens_max=tokens, count=count))


def _watched_count(draw: Draw, space: Space, rows: int) -> int:
    counts = (1, 2, 3, 8, 16, 32) if space.signature.token_wise else (1, 1, 2, 2, 3, 3, 8)
    if space.is_swept and space.signature.token_wise:
        # Rows have designs of their own, and each that is watched is another chance.
        counts = (1, 3, 8, 16, 32, 32)
    return min(rows, space.limits.watched_max, draw.choice(counts))


def _rows(draw: Draw, space: Space, high: int) -> int:
    """Draw how many tokens or sequences share a launch: those whose turn it is, or any."""
    return space.swept_rows(high=high) or draw_size(draw, high, constants=space.constants)


def _complete_set(draw: Draw, space: Space, tokens_max: int) -> Population:
    limits = space.limits
    if space.signature.token_wise:
        rows = _rows(draw, space, min(limits.tokens_max, tokens_max))
        # Terms of sequences cancel in pairs, and only of equal lengths: a sweep has many of them.
        counts = (2, 8, 16, 32, 64, 64) if space.is_swept else (1, 2, 3, 8, 16, 32, 64)
        count = min(rows, draw.choice(counts))
        if draw.choice((False, True)) or space.is_swept:
            # Equal shares reach row counts that random lengths hardly do.
            return Population(sequences=_equal_shares(rows, count))
        return Population(sequences=draw_sequences(draw, space, tokens_max=rows, count=count))
    rows = _rows(draw, space, min(limits.sequences_max, tokens_max))
    # Many rows of many tokens would only make a long sum longer, and its kernels are the slowest.
    room = min(tokens_max, 2 * limits.tokens_max)
    return Population(sequences=draw_sequences(draw, space, tokens_max=room, count=rows))


def _equal_shares(rows: int, count: int) -> tuple[LogicalSequence, ...]:
    """Return `count` sequences that have `rows` tokens together, and differ by one at most."""
    lengths = [rows // count + (index < rows % count) for index in range(count)]
    return tuple(LogicalSequence(id=index, length=length) for index, length in enumerate(lengths))


def _token_wise(draw: Draw, space: Space, present: frozenset[str], tokens_max: int) -> Population:
    limits = space.limits
    if space.sweep is not None and not space.is_swept and draw.choice((False, False, True)):
        # What differs from launch to launch shows sooner in many launches of several tokens each.
        rows = min(limits.tokens_max, tokens_max)
        rows = draw.integer(max(1, rows // 2), rows)
        count = min(rows, limits.watched_max)
        shares = _equal_shares(rows, count)
        return Population(sequences=shares, count=int("T1" in present))
    rows = _rows(draw, space, min(limits.tokens_max, tokens_max))
    watched = _watched_count(draw, space, rows)
    # Asked whether or not it decides: a question less would look simpler to a shrinker. Rows are
    # counted one by one in a sweep, so that there are exactly as many as it asks for.
    single = draw.choice((True, True, False)) or watched > 3 or space.is_swept
    sequences = draw_sequences(draw, space, tokens_max=rows, count=watched, single=single)
    return _beside_tokens(draw, Population(sequences=sequences), present, rows)


def _beside_tokens(
    draw: Draw, population: Population, present: frozenset[str], rows: int
) -> Population:
    """Draw the neighbours of sequences whose tokens are independent, `rows` tokens in all."""
    if "T1" not in present:
        return population
    watched = len(population.sequences)
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
    rows = _rows(draw, space, min(space.limits.sequences_max, tokens_max))
    watched = _watched_count(draw, space, rows)
    least = 1
    if has_contexts(space.signature):
        # One sequence has nothing to share a row with, and one token nothing to be cut.
        watched = max(watched, 2 if "T6" in present else 1)
        least = 2 if "T5" in present else 1
    sequences = draw_sequences(draw, space, tokens_max=tokens_max, count=watched, least=least)
    return _beside_sequences(
        draw, space, Population(sequences=sequences), present, tokens_max=tokens_max, rows=rows
    )


def _beside_sequences(
    draw: Draw,
    space: Space,
    population: Population,
    present: frozenset[str],
    *,
    tokens_max: int,
    rows: int,
) -> Population:
    """Draw the neighbours of sequences that stay whole, `rows` of them in all."""
    if "T1" not in present:
        return population
    blind, watched = is_blind(space.signature), len(population.sequences)
    if has_contexts(space.signature):
        rows = min(rows, _rows_max(space, population, tokens_max))
    count = _at_least_one(max(0, rows - watched), population, present)
    left = max(1, (tokens_max - population.watched_tokens) // max(1, count))
    longest = _length_max(space, watched + count)
    if has_contexts(space.signature):
        left = min(left, longest)
    length, spread, loudness = 0, 0, 0
    if "T3" in present:
        if not blind:
            length = draw_size(draw, min(left, longest if count < 8 else 12))
            spread = draw.choice((0, 1, 5, 17)) if left > length + 17 else draw.choice((0, 1))
        loudness = draw.choice((0, 0, 4, 10))
        if not (loudness or spread or _changes(population, length)):
            loudness = 4
    population = attrs.evolve(
        population, count=count, length=length, spread=spread, loudness=loudness
    )
    return attrs.evolve(population, shared_prefix=_shared_prefix(draw, population))


def pairs_of(space: Space, population: Population) -> int:
    """Return queries times contexts of the launch of a population, all rows together."""
    if is_dense(space):
        return population.tokens**2
    return population.rows * population.longest**2


def _length_max(space: Space, rows: int) -> int:
    """Return how long one of `rows` sequences may be."""
    if not has_contexts(space.signature):
        return space.limits.length_max
    return max(1, min(space.limits.context_max, math.isqrt(room_for_pairs(space) // rows)))


def _rows_max(space: Space, population: Population, tokens_max: int) -> int:
    """Return how many sequences as long as the watched ones fit in."""
    if is_dense(space):
        return tokens_max // population.longest
    return room_for_pairs(space) // population.longest**2


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

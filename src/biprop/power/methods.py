"""Methods: how the cases of a trial are drawn, here and in the tests that others use today.

Each is a configuration of one generator: the same cases, launched and judged by the same code, with
layouts, sizes, kinds of data or repeats restricted to what public practice tries. None of them is
another project's code, and none is slower or stricter for not being ours: bits are compared of
every watched row, in every method.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from types import MappingProxyType

import attrs

from biprop.case import Case
from biprop.data.recipe import Recipe
from biprop.generation import RandomDraw, Space, Sweep, draw_case, illegal_in, recipes_needed
from biprop.generation.fixed import fixed_cases, is_composed
from biprop.generation.generator import judged_in, simplest_case
from biprop.generation.legal import is_blind
from biprop.generation.room import is_dense, room_for_pairs
from biprop.reports.power import MethodName
from biprop.sequence import LogicalSequence
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddNeighbours,
    PermuteRows,
    ReplaceNeighbours,
    Transform,
    transform_to_data,
)

__all__ = ["DESCRIPTIONS", "Draws", "cases_of", "draws_of", "without_revealing"]

# From what is drawn and a seed to cases, without end or until a method has no more.
Draws = Callable[[Space, int], Iterator[Case]]

# Kinds that are made for a sum to show the order of its terms.
_REVEALING = {
    "pairs",
    "swamp",
    "peak_squares",
    "ties_squares",
    "peak_exponentials",
    "ties_exponentials",
    "peak_keys",
    "mix",
}
_NORMAL = Recipe(kind="normal")
# Of a launch in which one row is compared with the same row alone.
_ROWS = 2048
# Where tokens belong to sequences, tokens of each.
_LENGTH = 16
# Rounds of the fixed layouts on normal data, and batches around a needle.
_ROUNDS = 16
_BATCHES = 50
# In Triton's interpreter, where such a launch takes seconds.
_ROUNDS_INTERPRETED = 2
_BATCHES_INTERPRETED = 5
_ROWS_INTERPRETED = 256
# Sequences beside a needle, as far as a lane has room for them.
_NEIGHBOURS = 127

# One line each, for tables.
DESCRIPTIONS: Mapping[MethodName, str] = MappingProxyType(
    {
        "biprop": "generated layouts, sizes and order-revealing data",
        "plain-data": "the same cases without order-revealing data",
        "fixed-sawtooth": "13 fixed layouts, a sawtooth",
        "fixed-normal": "13 fixed layouts, normal data",
        "needle": "one needle among random batches, uniform data",
        "one-of-many": "one row alone and among 2048, linspace data",
    }
)


def draws_of(method: MethodName) -> Draws:
    """Return what draws the cases of a method."""
    return _DRAWS[method]


def cases_of(space: Space, *, seed: int, count: int) -> Iterator[Case]:
    """Draw `count` cases as biprop does; another seed draws others."""
    return islice(_biprop(space, seed), count)


def without_revealing(case: Case) -> Case:
    """Return a case whose data do not reveal the order of a sum: normal data take their place.

    Sizes, layouts, transforms and seeds are those of the case, and so are plain data.
    """
    return attrs.evolve(
        case,
        data={name: _plain(recipe) for name, recipe in case.data.items()},
        policy_state={name: _plain(recipe) for name, recipe in case.policy_state.items()},
    )


def _plain(recipe: Recipe) -> Recipe:
    # Matched signs make a sum cancel, whatever the kind is that they are given to.
    plain = attrs.evolve(recipe, pairing={}, at_target=False, holes=False)
    return _NORMAL if recipe.kind in _REVEALING else plain


def _biprop(space: Space, seed: int) -> Iterator[Case]:
    """Draw what a search draws: sizes at boundaries, compositions of all classes, revealing data.

    The fixed configurations that a search of a declared operator begins with are left out.
    """
    seeds = random.Random(seed)
    for index in count():
        swept = attrs.evolve(space, sweep=Sweep(seed=seed, index=index))
        yield draw_case(RandomDraw(seeds.getrandbits(64)), swept)


def _plain_data(space: Space, seed: int) -> Iterator[Case]:
    """Draw the cases of `biprop`, and leave order-revealing data out: what the data are worth."""
    return map(without_revealing, _biprop(space, seed))


def _fixed_sawtooth(space: Space, seed: int) -> Iterator[Case]:
    """Try thirteen fixed layouts once, on a sawtooth.

    Stands for harnesses with a pinned workload and a pinned input, such as RL-Kernel's forward
    invariance: a batch of four samples, in chunks, alone, permuted and padded, on values that are
    counted up and begin anew. Here they count to 251 in sixty-fourths (`iota`). The data are the
    same for every seed, so nothing would be gained by a second round.
    """
    del seed
    for case in fixed_cases(space):
        yield _with_data(space, case, Recipe(kind="iota"))


def _fixed_normal(space: Space, seed: int) -> Iterator[Case]:
    """Try the thirteen fixed layouts on normal data, 16 times with other numbers.

    Stands for tests that fix the shapes and draw `torch.randn` under some seeds, the most usual
    form of a test of batch invariance; of those that we know, vLLM's of its norms has most: 16. In
    Triton's interpreter it is twice.
    """
    seeds = random.Random(seed)
    cases = fixed_cases(space)
    for _ in range(_ROUNDS_INTERPRETED if is_composed(space) else _ROUNDS):
        for case in cases:
            drawn = attrs.evolve(case, seed=seeds.getrandbits(32))
            yield _with_data(space, drawn, _NORMAL)


def _needle(space: Space, seed: int) -> Iterator[Case]:
    """Hide one needle at a random place of random batches, on uniform data.

    Stands for vLLM's needle test: a prompt is run alone, then among up to 127 others of random
    lengths, at a random place, and must answer the same. That test has five batches, as there are
    in Triton's interpreter; elsewhere there are 50.
    Dimensions are those of the fixed layouts, the needle's own length is drawn anew for each batch,
    and there are as many others as the lane has room for. Gradients of parameters, which are sums
    over the whole batch, have no needle.
    """
    draw = random.Random(seed)
    bases = _bases(space)
    count = _BATCHES_INTERPRETED if is_composed(space) else _BATCHES
    for _ in range(count if bases else 0):
        base = draw.choice(bases)
        longest = 1 if space.signature.token_wise else _longest(space)
        case = attrs.evolve(
            base,
            sequences=(LogicalSequence(id=0, length=draw.randint(1, longest)),),
            seed=draw.getrandbits(32),
        )
        count = draw.randint(1, _room(space, longest))
        lengths = ReplaceNeighbours(length=1, spread=longest - 1) if longest > 1 else None
        place = PermuteRows(seed=draw.randint(1, 2**31 - 1))
        composed = (AddNeighbours(count=count), lengths, place)
        yield _legal(space, _with_data(space, case, Recipe(kind="uniform")), composed)


def _one_of_many(space: Space, seed: int) -> Iterator[Case]:
    """Compare one row alone with the same row as the first of 2048, on a ramp from -100 to 100.

    Stands for the check that made batch invariance known, thinking-machines' and SGLang's
    `mm(a[:1], b)` against `mm(a, b)[:1]` with `torch.linspace(-100, 100)`. Where tokens belong to
    sequences, 2048 tokens are 128 sequences of 16, and fewer where every query meets every key of
    the launch; in Triton's interpreter it is 256. There is one case for outputs and one for the
    gradients of tokens; `seed` changes nothing.
    """
    del seed
    for base in _bases(space):
        length = 1 if space.signature.token_wise else _longest(space)
        rows = (_ROWS_INTERPRETED if is_composed(space) else _ROWS) // length
        if has_contexts(space.signature):
            room = room_for_pairs(space)
            pairs = room // length**2 if not is_dense(space) else int(room**0.5) // length
            rows = max(2, min(rows, pairs))
        case = attrs.evolve(base, sequences=(LogicalSequence(id=0, length=length),))
        composed = (AddNeighbours(count=rows - 1),)
        yield _legal(space, _with_data(space, case, Recipe(kind="linspace")), composed)


def _bases(space: Space) -> tuple[Case, ...]:
    """Return a case of the dimensions of the fixed layouts for all that one sequence shows.

    Gradients of parameters are sums over the batch, of which no one sequence has a part of its own.
    """
    simplest = simplest_case(space)
    dims = {case.judged: case.dims for case in fixed_cases(space)}
    return tuple(
        attrs.evolve(simplest, judged=judged, dims=dims.get(judged, simplest.dims))
        for judged in judged_in(space)
        if judged != "parameter_gradients"
    )


def _longest(space: Space) -> int:
    limits = space.limits
    return min(_LENGTH, limits.context_max if has_contexts(space.signature) else limits.length_max)


def _room(space: Space, longest: int) -> int:
    """Return how many neighbours the lane has room for, of sequences of some length."""
    limits = space.limits
    if space.signature.token_wise:
        return max(1, min(_NEIGHBOURS, limits.tokens_max - 1))
    room = min(_NEIGHBOURS, limits.sequences_max - 1)
    if is_dense(space):
        room = min(room, int(room_for_pairs(space) ** 0.5) // longest - 1)
    return max(1, room)


def _legal(space: Space, case: Case, composed: tuple[Transform | None, ...]) -> Case:
    """Return the case under as many of the transforms as are legal, one after the other."""
    found = case
    for transform in composed:
        if transform is None or (
            isinstance(transform, ReplaceNeighbours) and is_blind(space.signature)
        ):
            continue
        data = (*found.transforms, transform_to_data(transform))
        trial = attrs.evolve(found, transforms=data)
        if not illegal_in(space, trial):
            found = trial
    return found


def _with_data(space: Space, case: Case, recipe: Recipe) -> Case:
    """Return the case with one recipe for every float tensor."""
    data, parameters = recipes_needed(space.signature, case.judged, space.backward_signature)
    return attrs.evolve(
        case, data=dict.fromkeys(data, recipe), policy_state=dict.fromkeys(parameters, recipe)
    )


_DRAWS: Mapping[MethodName, Draws] = MappingProxyType(
    {
        "biprop": _biprop,
        "plain-data": _plain_data,
        "fixed-sawtooth": _fixed_sawtooth,
        "fixed-normal": _fixed_normal,
        "needle": _needle,
        "one-of-many": _one_of_many,
    }
)

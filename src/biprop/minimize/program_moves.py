"""Smaller programs than a given one: what shrinking tries, without judging anything.

A move gives a whole program; what it makes illegal is cut to what is legal
(`biprop.minimize.program_edits.tidied`).
"""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import attrs

from biprop.case import Execution
from biprop.data.recipe import KINDS, TOKENS, Pairing, Recipe
from biprop.kvcache.model import names_of, source_of
from biprop.kvcache.records import (
    Allocate,
    Append,
    Decode,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Part,
    Poison,
    Program,
    Read,
    Rescore,
)
from biprop.kvcache.shape import FILLS
from biprop.minimize.program_edits import (
    append_one,
    joined_op,
    numbers,
    pages_needed,
    relabelled,
    renamed,
    replaced,
    rescaled,
    reshaped,
    unnamed,
    with_number,
    with_ops,
    without,
)

__all__ = [
    "cost_of",
    "data_moves",
    "earlier",
    "fresh_names",
    "merges",
    "number_moves",
    "other_data",
    "renumbered",
    "sequence_moves",
    "shape_moves",
    "simpler_ops",
    "unforked",
]

# Kinds of operations, simplest first: of two programs of one length the one of simpler kinds wins.
_RANK: Mapping[type[Op], int] = {
    kind: rank
    for rank, kind in enumerate((Allocate, Append, Decode, Read, Free, Fork, Evict, Poison))
}
_RANK_LAST = len(_RANK)
# What may come first: it neither needs tokens nor stores any.
_EARLY = (Allocate, Poison)
_TENSORS = ("q", "k", "v")
_SEEDS = (0, 1, 2, 3)
_SIGNED = Recipe(kind="pairs", pairing={TOKENS: Pairing(role="antisymmetric", mask=2)})
_OWN = Recipe(kind="swamp", pairing={TOKENS: Pairing(role="own")})
_TWIN = Recipe(kind="normal", pairing={TOKENS: Pairing(role="symmetric", mask=2)})
_ADJACENT = Recipe(kind="swamp", pairing={TOKENS: Pairing(role="antisymmetric", mask=1)})
_NORMAL = Recipe(kind="normal")
# What a recipe may be without rows or points.
_PLAIN_KINDS = KINDS[: KINDS.index("mix")]
# Data that show a changed order, or another token, in few tokens.
_REVEALING: tuple[Mapping[str, Recipe], ...] = (
    {"q": _NORMAL, "k": _NORMAL, "v": _NORMAL},
    {"q": Recipe(kind="zeros"), "k": _NORMAL, "v": _OWN},
    {"q": Recipe(kind="zeros"), "k": _NORMAL, "v": _ADJACENT},
    {"q": _NORMAL, "k": _TWIN, "v": _SIGNED},
    {"q": Recipe(kind="ones"), "k": Recipe(kind="peak_keys"), "v": _NORMAL},
)


def cost_of(program: Program) -> tuple[int, ...]:
    """Return what shrinking lowers, the most important number first."""
    shape = program.shape
    tokens = [
        count
        for op in program.ops
        for count in (numbers(op) or ((len(op.sequences),) if isinstance(op, Decode) else ()))
    ]
    names = {name for op in program.ops for name in names_of(op)}
    sizes = (
        shape.block_size,
        shape.block_count,
        shape.query_heads,
        shape.heads,
        shape.width,
    )
    late = sum(place for place, op in enumerate(program.ops) if isinstance(op, _EARLY))
    plain = (shape.layout != "NHD", shape.storage != shape.dtype)
    kinds = [_recipe_rank(recipe) for recipe in program.data.values()]
    return (
        len(program.ops),
        sum(len(names_of(op)) for op in program.ops),
        program.vocabulary or 0,
        sum(tokens),
        sum(_RANK.get(type(op), _RANK_LAST) for op in program.ops),
        late,
        sum(sizes),
        sum(map(int, plain)) + (program.execution != Execution()),
        sum(FILLS.index(op.fill) for op in program.ops if isinstance(op, Poison)),
        sum(kinds),
        sum(source_of(name) or 0 for name in names),
        program.seed,
    )


def earlier(program: Program) -> Iterator[Program]:
    """Begin sequences, and poison, before anything else is done: all of them, or one."""
    named = fresh_names(program)
    first = [op for op in named.ops if isinstance(op, _EARLY)]
    rest = [op for op in named.ops if not isinstance(op, _EARLY)]
    yield attrs.evolve(program, ops=(*first, *rest))
    for place, op in enumerate(program.ops):
        if isinstance(op, _EARLY):
            yield attrs.evolve(program, ops=(op, *without(program, (place,)).ops))


def fresh_names(program: Program) -> Program:
    """Give a name that begins again to no other sequence: the later ones get names of their own."""
    used = {name for op in program.ops for name in names_of(op)}
    unused = (f"s{number}" for number in itertools.count() if f"s{number}" not in used)
    begun: set[str] = set()
    for place in range(len(program.ops)):
        op = program.ops[place]
        if not isinstance(op, (Allocate, Fork)):
            continue
        name = op.sequence
        if name in begun:
            later = relabelled(without(program, range(place)), name, name := next(unused))
            program = attrs.evolve(program, ops=(*program.ops[:place], *later.ops))
        begun.add(name)
    return program


def sequence_moves(program: Program) -> Iterator[Program]:
    """Drop a sequence; give its operations to another; take it out of single operations."""
    names = list(dict.fromkeys(name for op in program.ops for name in names_of(op)))
    for name in reversed(names):
        yield with_ops(program, partial(unnamed, name=name))
    for name in reversed(names):
        for other in names:
            if other != name:
                yield renamed(program, name, other)
    for place, op in enumerate(program.ops):
        if isinstance(op, Free):
            # Evicted and used again, a sequence gives up its pages as one that ends.
            evicted = replaced(program, place, Evict(sequence=op.sequence, keep=0))
            for name in names:
                if name != op.sequence:
                    yield renamed(evicted, name, op.sequence)
        if isinstance(op, (Append, Decode)) and len(names_of(op)) > 1:
            for name in names_of(op):
                yield replaced(program, place, unnamed(op, name))


def merges(program: Program) -> Iterator[Program]:
    """Make one operation of two that give tokens to a sequence, at the place of either."""
    for first, one in enumerate(program.ops):
        for second in range(first + 1, len(program.ops)):
            joined = joined_op(one, program.ops[second])
            if joined is None:
                continue
            for kept, gone in ((second, first), (first, second)):
                merged = replaced(program, kept, joined)
                yield without(merged, (gone,))


def simpler_ops(program: Program) -> Iterator[Program]:
    """Put an operation of a simpler kind, or a milder poison, in the place of one."""
    for place, op in enumerate(program.ops):
        match op:
            case Generate():
                yield _decoded(program, place, op)
                yield replaced(program, place, Decode(sequences=(op.sequence,)))
            case Decode():
                parts = tuple(Part(sequence=name, count=1) for name in op.sequences)
                yield replaced(program, place, Append(parts=parts))
            case Rescore():
                yield replaced(program, place, Read(sequence=op.sequence))
            case Evict():
                yield replaced(program, place, Free(sequence=op.sequence))
            case Poison():
                for fill in FILLS[: FILLS.index(op.fill)]:
                    yield replaced(program, place, Poison(fill=fill))
            case _:
                pass
    yield from unforked(program)
    if program.ops and isinstance(program.ops[-1], Fork):
        # It shows what is wrong with others, and these show it as well when they go on.
        live = dict.fromkeys(name for op in program.ops[:-1] for name in names_of(op))
        for name in live:
            yield replaced(program, len(program.ops) - 1, append_one(name))


def unforked(program: Program) -> Iterator[Program]:
    """Begin a fork without tokens."""
    for place, op in enumerate(program.ops):
        if isinstance(op, Fork):
            yield replaced(program, place, Allocate(sequence=op.sequence))


def renumbered(program: Program) -> Iterator[Program]:
    """Give sequences the first numbers, in the order in which they appear."""
    names = dict.fromkeys(name for op in program.ops for name in names_of(op))
    # By names that nobody has, so that no two sequences are one on the way.
    for stem in ("x", "s"):
        for number, name in enumerate(list(names)):
            program = relabelled(program, name, f"{stem}{number}")
        names = dict.fromkeys(name for op in program.ops for name in names_of(op))
    yield program


def number_moves(program: Program, *, place: int, which: int) -> Iterator[Program]:
    """Lower one number of an operation: to the least, to blocks, by half, by one."""
    value = numbers(program.ops[place])[which]
    size = program.shape.block_size
    tried = (0, 1, 2, 3, size - 1, size, size + 1, value // 2, value - size, value - 1)
    for number in sorted({number for number in tried if 0 <= number < value}):
        yield replaced(program, place, with_number(program.ops[place], which, number))


def shape_moves(program: Program) -> Iterator[Program]:
    """Make the cache smaller and plainer, one size at a time."""
    shape = program.shape
    for size in _lower(shape.block_size):
        smaller = attrs.evolve(program, shape=attrs.evolve(shape, block_size=size))
        # Places relative to the ends of blocks are kept, or else the numbers themselves.
        yield rescaled(smaller, old=shape.block_size, rest_max=size - 1)
        yield rescaled(smaller, old=shape.block_size, rest_max=shape.block_size)
        yield smaller
    needed = pages_needed(program)
    for count in sorted({needed, needed + 1, *_lower(shape.block_count)}):
        if needed <= count < shape.block_count:
            yield attrs.evolve(program, shape=attrs.evolve(shape, block_count=count))
    group = shape.query_heads // shape.heads
    for heads, per_head in itertools.product(
        (*_lower(shape.heads), shape.heads), (*_lower(group), group)
    ):
        yield reshaped(program, heads=heads, query_heads=heads * per_head)
    for width in _lower(shape.width):
        yield reshaped(program, width=width)
    yield reshaped(program, layout="NHD")
    yield reshaped(program, storage=shape.dtype)
    yield attrs.evolve(program, execution=Execution())


def data_moves(program: Program) -> Iterator[Program]:
    """Make the data simpler: no vocabulary, plainer kinds, no designs, small seeds."""
    if program.vocabulary is not None:
        yield from (attrs.evolve(plain, data=data) for plain, data in _without_ids(program))
        for size in _lower(program.vocabulary):
            if size > 1:
                yield attrs.evolve(program, vocabulary=size)
    names = _TENSORS if program.vocabulary is None else tuple(program.data)
    current = {name: program.data.get(name, _NORMAL) for name in names}
    for kind in _PLAIN_KINDS:
        same = {name: Recipe(kind=kind) for name in names}
        yield attrs.evolve(program, data=same)
    for name, recipe in current.items():
        for simpler in _simpler(recipe):
            yield attrs.evolve(program, data={**current, name: simpler})
    for seed in _SEEDS:
        if seed < program.seed:
            yield attrs.evolve(program, seed=seed)


def other_data(program: Program) -> Iterator[Program]:
    """Give a program other data that show much, whatever they cost."""
    plain = program
    if program.vocabulary is not None:
        plain = next(_without_ids(program))[0]
    for data in _REVEALING:
        yield attrs.evolve(plain, data=dict(data))


def _without_ids(program: Program) -> Iterator[tuple[Program, dict[str, Recipe]]]:
    ops = tuple(
        Append(parts=(Part(sequence=op.sequence, count=op.count),))
        if isinstance(op, Generate)
        else op
        for op in program.ops
    )
    plain = attrs.evolve(program, vocabulary=None, ops=ops, data={})
    for data in _REVEALING:
        yield plain, dict(data)


def _decoded(program: Program, place: int, op: Generate) -> Program:
    """Return a program whose sequence is as long before it decodes as it was before the last id."""
    for before in reversed(range(place)):
        earlier = program.ops[before]
        if isinstance(earlier, Append) and op.sequence in names_of(earlier):
            which = names_of(earlier).index(op.sequence)
            count = earlier.parts[which].count + op.count - 1
            program = replaced(program, before, with_number(earlier, which, count))
            break
    return replaced(program, place, Decode(sequences=(op.sequence,)))


def _lower(size: int) -> list[int]:
    return sorted({1, 2, 3, 4, 8, 16, 32, size // 2, size - 1} & set(range(1, size)))


def _simpler(recipe: Recipe) -> Iterator[Recipe]:
    rank = _recipe_rank(recipe)
    made = [
        *(Recipe(kind=kind) for kind in _PLAIN_KINDS),
        *(Recipe(kind=kind, pairing=recipe.pairing) for kind in _PLAIN_KINDS if recipe.pairing),
        *recipe.rows,
        attrs.evolve(recipe, exponent=0),
        attrs.evolve(recipe, holes=False),
    ]
    for axis in recipe.pairing:
        others = {name: how for name, how in recipe.pairing.items() if name != axis}
        made.append(attrs.evolve(recipe, pairing=others))
    for simpler in made:
        if _recipe_rank(simpler) < rank:
            yield simpler


def _recipe_rank(recipe: Recipe) -> int:
    inner = sum(_recipe_rank(row) for row in recipe.rows)
    designs = 2 * len(recipe.pairing) + (recipe.exponent != 0) + recipe.holes
    return 4 * KINDS.index(recipe.kind) + designs + inner

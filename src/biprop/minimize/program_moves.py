"""Smaller programs than a given one: what shrinking tries, without judging anything.

A move gives a whole program. What it makes illegal is cut to what is legal (`tidied`): sequences
that are gone are taken out of what names several, a fork or an eviction takes what there is, and
operations that have nothing left to name go.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from biprop.case import Execution
from biprop.data.recipe import KINDS, TOKENS, Pairing, Recipe
from biprop.kvcache.model import Model, names_of, source_of
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
from biprop.kvcache.shape import FILLS, CacheShape

__all__ = [
    "cost_of",
    "data_moves",
    "exchanges",
    "merges",
    "number_moves",
    "other_data",
    "renumbered",
    "sequence_moves",
    "shape_moves",
    "simpler_ops",
    "tidied",
    "without",
]

# Kinds of operations, simplest first: of two programs of one length the one of simpler kinds wins.
_RANK: Mapping[type[Op], int] = {
    kind: rank
    for rank, kind in enumerate((Allocate, Append, Decode, Read, Free, Fork, Evict, Poison))
}
_RANK_LAST = len(_RANK)
_TENSORS = ("q", "k", "v")
_SEEDS = (0, 1, 2, 3)
# Longer programs have too many exchanges.
_EXCHANGED_MAX = 6
_SIGNED = Recipe(kind="pairs", pairing={TOKENS: Pairing(role="antisymmetric", mask=2)})
_OWN = Recipe(kind="swamp", pairing={TOKENS: Pairing(role="own")})
_TWIN = Recipe(kind="normal", pairing={TOKENS: Pairing(role="symmetric", mask=2)})
_ADJACENT = Recipe(kind="swamp", pairing={TOKENS: Pairing(role="antisymmetric", mask=1)})
_NORMAL = Recipe(kind="normal")
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
        for count in (_numbers(op) or ((len(op.sequences),) if isinstance(op, Decode) else ()))
    ]
    names = {name for op in program.ops for name in names_of(op)}
    sizes = (
        shape.block_size,
        shape.block_count,
        shape.query_heads,
        shape.heads,
        shape.width,
    )
    plain = (shape.layout != "NHD", shape.storage != shape.dtype)
    kinds = [_recipe_rank(recipe) for recipe in program.data.values()]
    return (
        len(program.ops),
        sum(len(names_of(op)) for op in program.ops),
        program.vocabulary or 0,
        sum(tokens),
        sum(_RANK.get(type(op), _RANK_LAST) for op in program.ops),
        sum(sizes),
        sum(map(int, plain)) + (program.execution != Execution()),
        sum(FILLS.index(op.fill) for op in program.ops if isinstance(op, Poison)),
        sum(kinds),
        sum(source_of(name) or 0 for name in names),
        program.seed,
    )


def tidied(program: Program) -> Program:
    """Return a program of legal operations alone, numbers beyond the sequences cut to these."""
    model = Model(program.shape, vocabulary=program.vocabulary)
    kept = []
    for op in program.ops:
        fitting = _cut(op, model)
        if model.apply(fitting):
            kept.append(fitting)
    return attrs.evolve(program, ops=tuple(kept))


def without(program: Program, places: Sequence[int]) -> Program:
    """Return a program without the operations at some places."""
    gone = set(places)
    kept = tuple(op for place, op in enumerate(program.ops) if place not in gone)
    return attrs.evolve(program, ops=kept)


def sequence_moves(program: Program) -> Iterator[Program]:
    """Drop a sequence; give its operations to another; take it out of single operations."""
    names = list(dict.fromkeys(name for op in program.ops for name in names_of(op)))
    for name in reversed(names):
        yield _with_ops(program, partial(_unnamed, name=name))
    for name in reversed(names):
        for other in names:
            if other != name:
                yield _renamed(program, name, other)
    for place, op in enumerate(program.ops):
        if isinstance(op, Free):
            # Evicted and used again, a sequence gives up its pages as one that ends.
            evicted = _replaced(program, place, Evict(sequence=op.sequence, keep=0))
            for name in names:
                if name != op.sequence:
                    yield _renamed(evicted, name, op.sequence)
        if isinstance(op, (Append, Decode)) and len(names_of(op)) > 1:
            for name in names_of(op):
                yield _replaced(program, place, _unnamed(op, name))


def merges(program: Program) -> Iterator[Program]:
    """Make one operation of two that give tokens to a sequence, at the place of either."""
    for first, one in enumerate(program.ops):
        for second in range(first + 1, len(program.ops)):
            joined = _joined(one, program.ops[second])
            if joined is None:
                continue
            for kept, gone in ((second, first), (first, second)):
                merged = _replaced(program, kept, joined)
                yield without(merged, (gone,))


def simpler_ops(program: Program) -> Iterator[Program]:
    """Put an operation of a simpler kind, or a milder poison, in the place of one."""
    for place, op in enumerate(program.ops):
        match op:
            case Generate():
                yield _decoded(program, place, op)
                yield _replaced(program, place, Decode(sequences=(op.sequence,)))
            case Decode():
                parts = tuple(Part(sequence=name, count=1) for name in op.sequences)
                yield _replaced(program, place, Append(parts=parts))
            case Rescore():
                yield _replaced(program, place, Read(sequence=op.sequence))
            case Poison():
                for fill in FILLS[: FILLS.index(op.fill)]:
                    yield _replaced(program, place, Poison(fill=fill))
            case _:
                pass
    yield from _unforked(program)


def exchanges(program: Program) -> Iterator[Program]:
    """Leave out an operation, and let another one do more, or in another order.

    The pool is roomy then, and blocks have two slots if they had one: what is left out may have
    made up for that.
    """
    if len(program.ops) > _EXCHANGED_MAX:
        return
    sizes = dict.fromkeys((program.shape.block_size, max(2, program.shape.block_size)))
    for size in sizes:
        roomy = _reshaped(program, block_size=size, block_count=max(16, program.shape.block_count))
        for start in (roomy, *_unforked(roomy)):
            yield from _exchanged(start)


def _exchanged(program: Program) -> Iterator[Program]:
    for gone in reversed(range(len(program.ops))):
        fewer = without(program, (gone,))
        model = Model(fewer.shape, vocabulary=fewer.vocabulary)
        yield fewer
        for place, op in enumerate(fewer.ops):
            live = [name for name in model.sequences if name not in names_of(op)]
            for grown in _grown(op, live, size=fewer.shape.block_size):
                yield _replaced(fewer, place, grown)
            if place == len(fewer.ops) - 1:
                # What others see by the way, a sequence itself sees when it is read.
                for name in model.sequences:
                    yield _replaced(fewer, place, Read(sequence=name))
            model.apply(op)


def _unforked(program: Program) -> Iterator[Program]:
    """Begin a fork without tokens."""
    for place, op in enumerate(program.ops):
        if isinstance(op, Fork):
            yield _replaced(program, place, Allocate(sequence=op.sequence))


def renumbered(program: Program) -> Iterator[Program]:
    """Give sequences the first numbers, in the order in which they appear."""
    names = dict.fromkeys(name for op in program.ops for name in names_of(op))
    # By names that nobody has, so that no two sequences are one on the way.
    for stem in ("x", "s"):
        for number, name in enumerate(list(names)):
            program = _relabelled(program, name, f"{stem}{number}")
        names = dict.fromkeys(name for op in program.ops for name in names_of(op))
    yield program


def number_moves(program: Program, *, place: int, which: int) -> Iterator[Program]:
    """Lower one number of an operation: to the least, to blocks, by half, by one."""
    value = _numbers(program.ops[place])[which]
    size = program.shape.block_size
    tried = (0, 1, 2, 3, size - 1, size, size + 1, value // 2, value - size, value - 1)
    for number in sorted({number for number in tried if 0 <= number < value}):
        yield _replaced(program, place, _with_number(program.ops[place], which, number))


def shape_moves(program: Program) -> Iterator[Program]:
    """Make the cache smaller and plainer, one size at a time."""
    shape = program.shape
    for size in _lower(shape.block_size):
        smaller = attrs.evolve(program, shape=attrs.evolve(shape, block_size=size))
        # Places relative to the ends of blocks are kept, or else the numbers themselves.
        yield _rescaled(smaller, old=shape.block_size, rest_max=size - 1)
        yield _rescaled(smaller, old=shape.block_size, rest_max=shape.block_size)
        yield smaller
    needed = _pages_needed(program)
    for count in sorted({needed, needed + 1, *_lower(shape.block_count)}):
        if needed <= count < shape.block_count:
            yield attrs.evolve(program, shape=attrs.evolve(shape, block_count=count))
    group = shape.query_heads // shape.heads
    for heads, per_head in itertools.product(
        (*_lower(shape.heads), shape.heads), (*_lower(group), group)
    ):
        yield _reshaped(program, heads=heads, query_heads=heads * per_head)
    for width in _lower(shape.width):
        yield _reshaped(program, width=width)
    yield _reshaped(program, layout="NHD")
    yield _reshaped(program, storage=shape.dtype)
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
    for kind in KINDS[:-2]:
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
        for seed in (plain.seed, 1):
            yield attrs.evolve(plain, data=dict(data), seed=seed)


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


def _cut(op: Op, model: Model) -> Op:
    live = model.sequences
    match op:
        case Append() if any(part.sequence not in live for part in op.parts):
            return Append(parts=tuple(part for part in op.parts if part.sequence in live))
        case Decode() if any(name not in live for name in op.sequences):
            return Decode(sequences=tuple(name for name in op.sequences if name in live))
        case Fork() if op.parent in live:
            return attrs.evolve(op, at=min(op.at, live[op.parent].length))
        case Evict() if op.sequence in live:
            return attrs.evolve(op, keep=min(op.keep, live[op.sequence].stored))
        case _:
            return op


def _with_ops(program: Program, change: Callable[[Op], Op | None]) -> Program:
    changed = (change(op) for op in program.ops)
    return attrs.evolve(program, ops=tuple(op for op in changed if op is not None))


def _replaced(program: Program, place: int, op: Op | None) -> Program:
    middle = () if op is None else (op,)
    return attrs.evolve(program, ops=(*program.ops[:place], *middle, *program.ops[place + 1 :]))


def _decoded(program: Program, place: int, op: Generate) -> Program:
    """Return a program whose sequence is as long before it decodes as it was before the last id."""
    for before in reversed(range(place)):
        earlier = program.ops[before]
        if isinstance(earlier, Append) and op.sequence in names_of(earlier):
            which = names_of(earlier).index(op.sequence)
            count = earlier.parts[which].count + op.count - 1
            program = _replaced(program, before, _with_number(earlier, which, count))
            break
    return _replaced(program, place, Decode(sequences=(op.sequence,)))


def _grown(op: Op, live: Sequence[str], *, size: int) -> Iterator[Op]:
    """Give an operation some tokens more, a sequence more, or its sequences in another order."""
    more = sorted({1, 2, size})
    match op:
        case Append():
            for which, part in enumerate(op.parts):
                for count in more:
                    yield _with_number(op, which, part.count + count)
            for name, count in itertools.product(live, sorted({1, size + 1})):
                part = Part(sequence=name, count=count)
                yield Append(parts=(*op.parts, part))
                yield Append(parts=(part, *op.parts))
            if len(op.parts) > 1:
                yield Append(parts=op.parts[::-1])
        case Decode():
            for name in live:
                yield Decode(sequences=(*op.sequences, name))
                yield Decode(sequences=(name, *op.sequences))
            if len(op.sequences) > 1:
                yield Decode(sequences=op.sequences[::-1])
            for name, count in itertools.product(live, sorted({2, size + 1})):
                parts = [Part(sequence=other, count=1) for other in op.sequences]
                yield Append(parts=(*parts, Part(sequence=name, count=count)))
        case Fork():
            for count in more:
                yield attrs.evolve(op, at=op.at + count)
        case _:
            pass


def _relabelled(program: Program, name: str, other: str) -> Program:
    def change(op: Op) -> Op:
        match op:
            case Append():
                return Append(
                    parts=tuple(
                        attrs.evolve(part, sequence=other) if part.sequence == name else part
                        for part in op.parts
                    )
                )
            case Decode():
                return Decode(sequences=tuple(other if to == name else to for to in op.sequences))
            case Fork():
                return attrs.evolve(
                    op,
                    sequence=other if op.sequence == name else op.sequence,
                    parent=other if op.parent == name else op.parent,
                )
            case Allocate() | Read() | Evict() | Free() | Rescore() | Generate():
                return attrs.evolve(op, sequence=other) if op.sequence == name else op
            case _:
                return op

    return _with_ops(program, change)


def _unnamed(op: Op, name: str) -> Op | None:
    """Return an operation without a sequence; None where nothing is left."""
    if name not in names_of(op):
        return op
    match op:
        case Append():
            parts = tuple(part for part in op.parts if part.sequence != name)
            return Append(parts=parts) if parts else None
        case Decode():
            names = tuple(other for other in op.sequences if other != name)
            return Decode(sequences=names) if names else None
        case _:
            return None


def _renamed(program: Program, name: str, other: str) -> Program:
    """Give what is done with `name` to `other`, which begins where it does now."""

    def change(op: Op) -> Op | None:
        if name not in names_of(op):
            return op
        match op:
            case Append():
                return _appended(
                    other if part.sequence == name else part.sequence
                    for part in op.parts
                    for _ in range(part.count)
                )
            case Decode():
                names = [other if to == name else to for to in op.sequences]
                if len(set(names)) == len(names):
                    return Decode(sequences=tuple(names))
                return _appended(names)
            case Allocate():
                return None
            case Fork():
                if op.sequence == name:
                    return None
                return attrs.evolve(op, parent=other)
            case Read() | Evict() | Free() | Rescore() | Generate():
                return attrs.evolve(op, sequence=other)
            case _:
                raise AssertionError(op)

    return _with_ops(program, change)


def _joined(one: Op, two: Op) -> Op | None:
    """Return one append that gives what two operations give; None where they give nothing."""
    names: list[str] = []
    for op in (one, two):
        match op:
            case Append():
                names += [part.sequence for part in op.parts for _ in range(part.count)]
            case Decode():
                names += op.sequences
            case _:
                return None
    return _appended(names)


def _appended(names: Iterable[str]) -> Op | None:
    """Return what appends a token for each name; None without any."""
    counts = Counter(names)
    parts = tuple(Part(sequence=name, count=count) for name, count in counts.items())
    return Append(parts=parts) if parts else None


def _numbers(op: Op) -> tuple[int, ...]:
    match op:
        case Append():
            return tuple(part.count for part in op.parts)
        case Fork():
            return (op.at,)
        case Evict():
            return (op.keep,)
        case Generate():
            return (op.count,)
        case _:
            return ()


def _with_number(op: Op, which: int, number: int) -> Op:
    match op:
        case Append():
            part = attrs.evolve(op.parts[which], count=number)
            return Append(parts=(*op.parts[:which], part, *op.parts[which + 1 :]))
        case Fork():
            return attrs.evolve(op, at=number)
        case Evict():
            return attrs.evolve(op, keep=number)
        case Generate():
            return attrs.evolve(op, count=number)
        case _:
            raise AssertionError(op)


def _rescaled(program: Program, *, old: int, rest_max: int) -> Program:
    """Return a program for blocks of another size, its numbers at the same places in blocks."""
    size = program.shape.block_size

    def scaled(number: int) -> int:
        blocks, rest = divmod(number, old)
        return blocks * size + min(rest, rest_max)

    ops = []
    for op in program.ops:
        changed = op
        for which, number in enumerate(_numbers(op)):
            changed = _with_number(changed, which, scaled(number))
        ops.append(changed)
    return attrs.evolve(program, ops=tuple(ops))


def _reshaped(program: Program, **sizes: object) -> Program:
    shape: CacheShape = attrs.evolve(program.shape, **sizes)  # type: ignore[arg-type]  # fields of the record
    return attrs.evolve(program, shape=shape)


def _lower(size: int) -> list[int]:
    return sorted({1, 2, 3, 4, 8, 16, 32, size // 2, size - 1} & set(range(1, size)))


def _pages_needed(program: Program) -> int:
    """Return how many pages a pool must have for every operation to stay legal."""
    model = Model(program.shape, vocabulary=program.vocabulary)
    least = model.pages_left
    for op in program.ops:
        model.apply(op)
        least = min(least, model.pages_left)
    return max(1, program.shape.block_count - least)


def _simpler(recipe: Recipe) -> Iterator[Recipe]:
    rank = _recipe_rank(recipe)
    made = [
        *(Recipe(kind=kind) for kind in KINDS[:-2]),
        *(Recipe(kind=kind, pairing=recipe.pairing) for kind in KINDS[:-2] if recipe.pairing),
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

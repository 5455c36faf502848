"""Programs for tests of the KV cache: short ones by hand, and long ones at random."""

import random

from biprop.kvcache.model import Model
from biprop.kvcache.records import (
    Allocate,
    Append,
    Decode,
    Defragment,
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

__all__ = ["append", "program_of", "random_program"]


def append(*counts: tuple[str, int]) -> Append:
    """Return an append of so many tokens to each sequence."""
    return Append(parts=tuple(Part(sequence=name, count=count) for name, count in counts))


def program_of(*ops: Op, vocabulary: int | None = None, **sizes: object) -> Program:
    """Return a program of normal data with blocks of two slots, unless `sizes` say otherwise."""
    shape = CacheShape(**{"block_size": 2, "block_count": 16, "width": 4, **sizes})  # type: ignore[arg-type]
    return Program(shape=shape, seed=3, ops=ops, vocabulary=vocabulary)


def random_program(seed: int, *, steps: int = 14, **sizes: object) -> Program:
    """Return a program of operations that are legal, each kind now and then."""
    draw = random.Random(seed)
    vocabulary = 5 if seed % 4 == 3 else None
    program = program_of(vocabulary=vocabulary, **{"block_size": 1 << seed % 3, **sizes})
    model = Model(program.shape, vocabulary=vocabulary)
    ops: list[Op] = []
    while len(ops) < steps:
        op = _drawn(draw, model)
        if model.apply(op):
            ops.append(op)
    return Program(shape=program.shape, seed=seed, ops=tuple(ops), vocabulary=vocabulary)


def _drawn(draw: random.Random, model: Model) -> Op:
    live = list(model.sequences)
    if not live:
        return Allocate(sequence=model.new_name())
    name, some = draw.choice(live), draw.sample(live, draw.randint(1, len(live)))
    length = model.sequences[name].length
    ops: tuple[Op, ...] = (
        append(*((other, draw.randint(0, 5)) for other in some)),
        append((name, draw.randint(1, 9))),
        Decode(sequences=tuple(some)),
        Fork(sequence=model.new_name(), parent=name, at=draw.randint(0, length)),
        Read(sequence=name),
        Rescore(sequence=name),
        Evict(sequence=name, keep=draw.randint(0, length)),
        Free(sequence=name),
        Defragment(),
        Poison(fill=draw.choice(FILLS)),
        Generate(sequence=name, count=draw.randint(1, 3)),
        Allocate(sequence=model.new_name()),
    )
    return draw.choice(ops)

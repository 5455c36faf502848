"""Exchanges: what leaves out an operation of a program, and lets another one make up for it.

Dear, as there are many: tried where no other move leaves out an operation.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs

from biprop.kvcache.model import Model, names_of
from biprop.kvcache.records import Append, Decode, Fork, Op, Part, Program, Read
from biprop.minimize.program_edits import append_one, replaced, reshaped, with_number, without
from biprop.minimize.program_moves import earlier, unforked

__all__ = ["exchanges"]

# Longer programs have too many exchanges.
_EXCHANGED_MAX = 12


def exchanges(program: Program) -> Iterator[Program]:
    """Leave out an operation, and let another one do more, or in another order.

    The pool is roomy then, and blocks have two slots if they had one: what is left out may have
    made up for that. For the same reason forks begin without tokens, and sequences before all else.
    """
    if len(program.ops) > _EXCHANGED_MAX:
        return
    sizes = dict.fromkeys((program.shape.block_size, max(2, program.shape.block_size)))
    for size in sizes:
        roomy = reshaped(program, block_size=size, block_count=max(16, program.shape.block_count))
        for start in (roomy, *unforked(roomy)):
            yield from _exchanged(start)
            begun = next(earlier(start))
            if begun != start:
                yield from _exchanged(begun)


def _exchanged(program: Program) -> Iterator[Program]:
    for gone in reversed(range(len(program.ops))):
        fewer = without(program, (gone,))
        model = Model(fewer.shape, vocabulary=fewer.vocabulary)
        yield fewer
        for place, op in enumerate(fewer.ops):
            live = [name for name in model.sequences if name not in names_of(op)]
            for grown in _grown(op, live, size=fewer.shape.block_size):
                yield replaced(fewer, place, grown)
            if place == len(fewer.ops) - 1:
                # What others see by the way, a sequence itself sees when it is read, or goes on.
                for name in model.sequences:
                    yield replaced(fewer, place, Read(sequence=name))
                    yield replaced(fewer, place, append_one(name))
            model.apply(op)


def _grown(op: Op, live: Sequence[str], *, size: int) -> Iterator[Op]:
    """Give an operation some tokens more, a sequence more, or its sequences in another order."""
    more = sorted({1, 2, size})
    match op:
        case Append():
            for which, part in enumerate(op.parts):
                for count in more:
                    yield with_number(op, which, part.count + count)
            for name, count in itertools.product(live, sorted({0, 1, size + 1})):
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

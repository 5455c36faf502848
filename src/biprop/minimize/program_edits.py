"""Edits of programs, of which the moves of shrinking are made; nothing is judged here.

What an edit makes illegal is cut to what is legal (`tidied`): sequences that are gone are taken out
of what names several, a fork or an eviction takes what there is, and operations that have nothing
left to name go.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from biprop.kvcache.model import Model, names_of
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
    Program,
    Read,
    Rescore,
)
from biprop.kvcache.shape import CacheShape

__all__ = [
    "append_one",
    "appended",
    "joined_op",
    "numbers",
    "pages_needed",
    "relabelled",
    "renamed",
    "replaced",
    "rescaled",
    "reshaped",
    "tidied",
    "tightened",
    "unnamed",
    "with_number",
    "with_ops",
    "without",
]

# Pages that suffice for any program.
_ROOM = 1 << 20


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


def with_ops(program: Program, change: Callable[[Op], Op | None]) -> Program:
    """Return a program whose operations are changed each; None leaves one out."""
    changed = (change(op) for op in program.ops)
    return attrs.evolve(program, ops=tuple(op for op in changed if op is not None))


def replaced(program: Program, place: int, op: Op | None) -> Program:
    """Return a program with another operation at a place, or without one."""
    middle = () if op is None else (op,)
    return attrs.evolve(program, ops=(*program.ops[:place], *middle, *program.ops[place + 1 :]))


def relabelled(program: Program, name: str, other: str) -> Program:
    """Give a sequence another name, throughout."""

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

    return with_ops(program, change)


def unnamed(op: Op, name: str) -> Op | None:
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


def renamed(program: Program, name: str, other: str) -> Program:
    """Give what is done with `name` to `other`, which begins where it does now."""

    def change(op: Op) -> Op | None:
        if name not in names_of(op):
            return op
        match op:
            case Append():
                return appended(
                    other if part.sequence == name else part.sequence
                    for part in op.parts
                    for _ in range(part.count)
                )
            case Decode():
                names = [other if to == name else to for to in op.sequences]
                if len(set(names)) == len(names):
                    return Decode(sequences=tuple(names))
                return appended(names)
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

    return with_ops(program, change)


def append_one(name: str) -> Append:
    """Return what gives a sequence a token."""
    return Append(parts=(Part(sequence=name, count=1),))


def joined_op(one: Op, two: Op) -> Op | None:
    """Return one append that gives what two operations give; None where one gives no tokens."""
    counts: Counter[str] = Counter()
    for op in (one, two):
        match op:
            case Append():
                # A sequence that gets none is in the call all the same.
                counts.update({part.sequence: part.count for part in op.parts})
            case Decode():
                counts.update(op.sequences)
            case _:
                return None
    return _append_of(counts)


def appended(names: Iterable[str]) -> Op | None:
    """Return what appends a token for each name; None without any."""
    return _append_of(Counter(names))


def _append_of(counts: Mapping[str, int]) -> Op | None:
    parts = tuple(Part(sequence=name, count=count) for name, count in counts.items())
    return Append(parts=parts) if parts else None


def numbers(op: Op) -> tuple[int, ...]:
    """Return the counts and positions of an operation."""
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


def with_number(op: Op, which: int, number: int) -> Op:
    """Return an operation with another value in the place of one of its `numbers`."""
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


def rescaled(program: Program, *, old: int, rest_max: int) -> Program:
    """Return a program for blocks of another size, its numbers at the same places in blocks."""
    size = program.shape.block_size

    def scaled(number: int) -> int:
        blocks, rest = divmod(number, old)
        return blocks * size + min(rest, rest_max)

    ops = []
    for op in program.ops:
        changed = op
        for which, number in enumerate(numbers(op)):
            changed = with_number(changed, which, scaled(number))
        ops.append(changed)
    return attrs.evolve(program, ops=tuple(ops))


def reshaped(program: Program, **sizes: object) -> Program:
    """Return a program for a cache of other sizes, fields of `CacheShape`."""
    shape: CacheShape = attrs.evolve(program.shape, **sizes)  # type: ignore[arg-type]  # fields of the record
    return attrs.evolve(program, shape=shape)


def pages_needed(program: Program) -> int:
    """Return how many pages a pool must have for every operation to stay legal."""
    model = Model(program.shape, vocabulary=program.vocabulary)
    least = model.pages_left
    for op in program.ops:
        model.apply(op)
        least = min(least, model.pages_left)
    return max(1, program.shape.block_count - least)


def tightened(program: Program) -> Program:
    """Return a program, its pool no larger than its operations need."""
    roomy = reshaped(program, block_count=_ROOM)
    return reshaped(program, block_count=pages_needed(roomy))

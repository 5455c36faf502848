"""Draw operations of a program from the model of what the cache holds.

Every operation is legal where it is drawn, and none looks at what a cache made of the others. A
kind that cannot be had, as a fork of nothing, gives one that can. Places where caches break are
drawn more often than they would come up by themselves: ends of blocks, exactly one block, shared
pages, pages that held something before.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeVar

from biprop.generation import Draw
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
    Read,
    Rescore,
)
from biprop.kvcache.shape import FILLS
from biprop.strategies.program_heads import ProgramLimits

__all__ = ["KINDS_OF_OPS", "SEEKING", "OpKind", "draw_ops"]

OpKind = Literal[
    "allocate",
    "append",
    "decode",
    "fork",
    "read",
    "evict",
    "free",
    "defragment",
    "poison",
    "rescore",
    "generate",
    "seek_partial_fork",
    "seek_shared_eviction",
    "seek_dirty_reuse",
    "seek_moved_decode",
]

_PARTS_MAX = 3
_GENERATED_MAX = 6
# One in so many sequences takes the name, and with it the data, of one that ended.
_NAMESAKE_EVERY = 6

Option = TypeVar("Option")


def draw_ops(kind: OpKind, draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Return one operation that is legal now, or several where a situation is sought.

    Those after the first may turn out illegal where they stand, and are then passed over.

    Args:
        kind: What is wanted; another kind is drawn where there is none of it.
        draw: Source of choices.
        model: What the cache holds.
        limits: How long and how many sequences may be.
    """
    if kind in _SOUGHT:
        ops = _SOUGHT[kind](draw, model, limits)
    else:
        op = _DRAWN[kind](draw, model, limits)
        ops = () if op is None else (op,)
    return ops if ops and model.is_legal(ops[0]) else (_other(draw, model, limits),)


def _other(draw: Draw, model: Model, limits: ProgramLimits) -> Op:
    """Return what can be had nearly always: a token for some sequences, or a new one."""
    return _decode(draw, model, limits) or _allocate(draw, model, limits) or Defragment()


def _allocate(draw: Draw, model: Model, limits: ProgramLimits) -> Op | None:
    if len(model.sequences) >= limits.sequences_max:
        return None
    return Allocate(sequence=_name(draw, model))


def _append(draw: Draw, model: Model, limits: ProgramLimits) -> Op | None:
    names = _some(draw, [*model.sequences], count_max=_PARTS_MAX)
    parts: tuple[Part, ...] = ()
    for name in names:
        drawn = Part(sequence=name, count=_count(draw, model, limits, name))
        # What is left of the last block costs no page.
        spare = -model.sequences[name].length % model.shape.block_size
        less = Part(sequence=name, count=min(drawn.count, spare))
        fits = model.is_legal(Append(parts=(*parts, drawn)))
        parts = (*parts, drawn if fits else less)
    return Append(parts=parts) if parts else None


def _count(draw: Draw, model: Model, limits: ProgramLimits, name: str) -> int:
    """Draw how many tokens a sequence is given."""
    length, size = model.sequences[name].length, model.shape.block_size
    to_boundary = size - length % size
    most = max(0, limits.tokens_max - length)
    count = draw.choice(
        (
            0,
            1,
            1,
            to_boundary,
            to_boundary,
            to_boundary + 1,
            size,
            draw.integer(1, limits.chunk_max),
            draw.integer(1, limits.chunk_max),
            # Now and then at once what takes several tiles of keys.
            draw.integer(1, limits.tokens_max),
        )
    )
    return min(count, most, model.room(name))


def _decode(draw: Draw, model: Model, limits: ProgramLimits) -> Op | None:
    names = [
        name for name, state in model.sequences.items() if state.length < 2 * limits.tokens_max
    ]
    # One, several, or all of them, each of these as often.
    count_max = draw.choice((1, 2, len(names)))
    chosen: tuple[str, ...] = ()
    for name in _some(draw, names, count_max=count_max):
        if model.is_legal(Decode(sequences=(*chosen, name))):
            chosen = (*chosen, name)
    return Decode(sequences=chosen) if chosen else None


def _fork(draw: Draw, model: Model, limits: ProgramLimits) -> Op | None:
    begun = [name for name, state in model.sequences.items() if state.length]
    if not begun or len(model.sequences) >= limits.sequences_max:
        return None
    parent = draw.choice(begun)
    length, size = model.sequences[parent].length, model.shape.block_size
    whole = size * draw.integer(0, length // size)
    at = draw.choice(
        (
            length,
            length - 1,
            whole,
            min(size, length),
            draw.integer(0, length),
            draw.integer(0, length),
        )
    )
    fork = Fork(sequence=_name(draw, model), parent=parent, at=at)
    # In a pool that is nearly full, as much as there is room for.
    room = model.pages_left * size
    return fork if at <= room else Fork(sequence=fork.sequence, parent=parent, at=room)


def _evict(draw: Draw, model: Model, _: ProgramLimits) -> Op | None:
    stored = [name for name, state in model.sequences.items() if state.stored]
    if not stored:
        return None
    sharing = [name for name in stored if model.sharing((name,))]
    is_shared = draw.choice((False, True))
    name = draw.choice(sharing if sharing and is_shared else stored)
    kept, size = model.sequences[name].stored, model.shape.block_size
    keep = draw.choice((0, size * draw.integer(0, (kept - 1) // size), draw.integer(0, kept - 1)))
    return Evict(sequence=name, keep=keep)


def _generate(draw: Draw, model: Model, limits: ProgramLimits) -> Op | None:
    begun = [
        name
        for name, state in model.sequences.items()
        if 0 < state.length < 2 * limits.tokens_max and model.room(name)
    ]
    if not begun or model.vocabulary is None:
        return None
    name = draw.choice(begun)
    count = min(draw.integer(1, _GENERATED_MAX), model.room(name))
    return Generate(sequence=name, count=count)


def _seek_partial_fork(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Fork within a block."""
    size = model.shape.block_size
    parents = [name for name, state in model.sequences.items() if state.length]
    if size == 1 or not parents:
        return _grow(draw, model, limits)
    parent = draw.choice(parents)
    length = model.sequences[parent].length
    start = size * draw.integer(0, (length - 1) // size)
    at = min(length, start + draw.integer(1, size - 1))
    return (Fork(sequence=_name(draw, model), parent=parent, at=at),)


def _seek_shared_eviction(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Evict what another sequence holds too, or let one share."""
    sharing = [name for name in model.sequences if model.sharing((name,))]
    if sharing:
        name = draw.choice(sharing)
        keep = draw.choice((0, 0, draw.integer(0, model.sequences[name].stored)))
        return (Evict(sequence=name, keep=keep),)
    parents = [name for name, state in model.sequences.items() if state.length]
    if not parents or len(model.sequences) >= limits.sequences_max:
        return _grow(draw, model, limits)
    parent, child = draw.choice(parents), _name(draw, model)
    length = model.sequences[parent].length
    at = draw.choice((length, draw.integer(1, length)))
    evicted = draw.choice(((), (Evict(sequence=draw.choice((parent, child)), keep=0),)))
    return (Fork(sequence=child, parent=parent, at=at), *evicted)


def _seek_dirty_reuse(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Give up pages that hold something, or take some."""
    stored = [name for name, state in model.sequences.items() if state.stored]
    is_given_up = draw.choice((False, True))
    if stored and is_given_up:
        return (_gap(draw, draw.choice(stored)),)
    return _grow(draw, model, limits)


def _defragment(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Defragment; where nothing would move, mostly make a gap first."""
    is_plain = draw.choice((False, False, True))
    return (Defragment(),) if is_plain else _seek_moved_decode(draw, model, limits)


def _seek_moved_decode(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Defragment where there is a gap, or make one first; then decode what was moved."""
    pages = sorted({page for state in model.sequences.values() for page in state.pages})
    stored = [name for name, state in model.sequences.items() if state.stored]
    if pages and pages[-1] >= len(pages):
        # Sometimes something else comes between.
        decode = Decode(sequences=tuple(stored))
        return (Defragment(), *draw.choice(((decode,), (decode,), ())))
    if len(stored) < 2:
        return _grow(draw, model, limits)
    # The first to begin holds the first pages, so that a gap is left.
    return (_gap(draw, stored[0]), Defragment(), Decode(sequences=tuple(stored[1:])))


def _gap(draw: Draw, name: str) -> Op:
    is_freed = draw.choice((False, True))
    return Free(sequence=name) if is_freed else Evict(sequence=name, keep=0)


def _grow(draw: Draw, model: Model, limits: ProgramLimits) -> tuple[Op, ...]:
    """Append some blocks to a sequence, mostly to one that begins."""
    begun: tuple[Op, ...] = ()
    empty = [name for name, state in model.sequences.items() if not state.length]
    if not empty and len(model.sequences) < limits.sequences_max:
        empty = [_name(draw, model)]
        begun = (Allocate(sequence=empty[0]),)
    name = draw.choice(empty or [*model.sequences])
    count = draw.integer(1, max(1, min(2 * model.shape.block_size, limits.chunk_max)))
    return (*begun, Append(parts=(Part(sequence=name, count=count),)))


def _name(draw: Draw, model: Model) -> str:
    ended = sorted(model.names - model.sequences.keys())
    if ended and draw.integer(1, _NAMESAKE_EVERY) == _NAMESAKE_EVERY:
        return draw.choice(ended)
    return model.new_name()


def _one(draw: Draw, model: Model) -> str | None:
    """Draw a live sequence."""
    return draw.choice([*model.sequences]) if model.sequences else None


def _some(draw: Draw, options: Sequence[Option], *, count_max: int) -> list[Option]:
    """Draw some of `options`, one at least, in any order."""
    left = [*options]
    count = draw.integer(1, max(1, min(count_max, len(left))))
    return [left.pop(draw.integer(0, len(left) - 1)) for _ in range(count) if left]


def _of_one(make: Callable[[str], Op]) -> Callable[[Draw, Model, ProgramLimits], Op | None]:
    """Return what draws an operation that only names a sequence."""

    def drawn(draw: Draw, model: Model, _: ProgramLimits) -> Op | None:
        name = _one(draw, model)
        return None if name is None else make(name)

    return drawn


_DRAWN: Mapping[OpKind, Callable[[Draw, Model, ProgramLimits], Op | None]] = MappingProxyType(
    {
        "allocate": _allocate,
        "append": _append,
        "decode": _decode,
        "fork": _fork,
        "read": _of_one(lambda name: Read(sequence=name)),
        "evict": _evict,
        "free": _of_one(lambda name: Free(sequence=name)),
        "poison": lambda draw, *_: Poison(fill=draw.choice(FILLS)),
        "rescore": _of_one(lambda name: Rescore(sequence=name)),
        "generate": _generate,
    }
)
_SOUGHT: Mapping[OpKind, Callable[[Draw, Model, ProgramLimits], tuple[Op, ...]]] = MappingProxyType(
    {
        "defragment": _defragment,
        "seek_partial_fork": _seek_partial_fork,
        "seek_shared_eviction": _seek_shared_eviction,
        "seek_dirty_reuse": _seek_dirty_reuse,
        "seek_moved_decode": _seek_moved_decode,
    }
)
# What takes a step to each situation of `COVERAGE`.
SEEKING: Mapping[str, OpKind] = MappingProxyType(
    {
        "partial-block fork": "seek_partial_fork",
        "evicted shared page": "seek_shared_eviction",
        "dirty reuse": "seek_dirty_reuse",
        "decode after defragment": "seek_moved_decode",
    }
)
KINDS_OF_OPS: tuple[OpKind, ...] = (*_DRAWN, *_SOUGHT)

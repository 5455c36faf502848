"""Fixed programs that every search of a cache begins with: short, long, ragged and padded ones.

They hold what rollouts do day by day, with data whose rounding shows the order of keys; on a GPU
also in the sizes of a model in use. What is drawn beyond them says
`biprop.strategies.cache_machine`.
"""

import attrs

from biprop.case import Dtype
from biprop.data.recipe import TOKENS, Pairing, Recipe
from biprop.generation import Lane
from biprop.kvcache.records import (
    Allocate,
    Append,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Op,
    Part,
    Poison,
    Program,
    Read,
    Rescore,
)
from biprop.kvcache.shape import CacheLayout, CacheShape

__all__ = ["smoke_programs"]

_BLOCK_SIZE = 4
# Past two tiles of keys of either backend on its lane.
_LONG = {"interpreter": 70, "cpu": 70, "nightly": 70}
_LONG_GPU = 300
# On a GPU also the sizes of a model in use, by tokens of a page.
_REAL_BLOCK_SIZES = (16, 64, 256)
_REAL_LENGTH = 8192


def smoke_programs(
    *, layout: CacheLayout, dtype: Dtype, storage: Dtype | None = None, lane: Lane = "cpu"
) -> dict[str, Program]:
    """Return the fixed programs of a layout and dtype, by name.

    Args:
        layout: Of the pages.
        dtype: Of queries, keys and values.
        storage: Of what is stored; None: the same.
        lane: How long the long one is.
    """
    long = _LONG.get(lane, _LONG_GPU)
    shape = CacheShape(
        layout=layout,
        dtype=dtype,
        storage=storage or dtype,
        block_size=_BLOCK_SIZE,
        block_count=max(24, 2 * -(-long // _BLOCK_SIZE)),
        query_heads=2,
        heads=1,
        width=2,
    )
    programs = {"short": _short(), "long": _long(long), "ragged": _ragged(), "padded": _padded()}
    twins = Recipe(kind="normal", pairing={TOKENS: Pairing(role="symmetric", mask=2)})
    signed = Recipe(kind="pairs", pairing={TOKENS: Pairing(role="antisymmetric", mask=2)})
    data = {"q": Recipe(kind="normal"), "k": twins, "v": signed}
    found = {
        name: Program(shape=shape, seed=number, ops=ops, data=data)
        for number, (name, ops) in enumerate(programs.items(), 1)
    }
    if lane not in _LONG:
        for size in _REAL_BLOCK_SIZES:
            real = attrs.evolve(
                shape,
                block_size=size,
                block_count=5 * _REAL_LENGTH // (2 * size),
                query_heads=32,
                heads=8,
                width=128,
            )
            found[f"real-{size}"] = Program(shape=real, seed=size, ops=_real(size), data=data)
    return found


def _short() -> tuple[Op, ...]:
    """A prompt of one token, and three more."""
    return (
        Allocate(sequence="s0"),
        Append(parts=(Part(sequence="s0", count=1),)),
        *(Decode(sequences=("s0",)) for _ in range(3)),
        Read(sequence="s0"),
        Rescore(sequence="s0"),
    )


def _long(length: int) -> tuple[Op, ...]:
    """A prompt in chunks that end within blocks, decoded past a boundary."""
    first = length // 2 + 1
    return (
        Allocate(sequence="s0"),
        Append(parts=(Part(sequence="s0", count=first),)),
        Append(parts=(Part(sequence="s0", count=length - first),)),
        *(Decode(sequences=("s0",)) for _ in range(_BLOCK_SIZE)),
        Rescore(sequence="s0"),
    )


def _ragged() -> tuple[Op, ...]:
    """Sequences of other lengths in one launch, one without a token; one ends, one goes on."""
    names = ("s0", "s1", "s2", "s3")
    counts = (5, 0, 1, 9)
    return (
        *(Allocate(sequence=name) for name in names),
        Append(parts=tuple(map(_part, names, counts))),
        Decode(sequences=("s3", "s1", "s0")),
        Free(sequence="s0"),
        Append(parts=tuple(map(_part, ("s2", "s1"), (4, 8)))),
        Decode(sequences=("s1", "s2", "s3")),
        *(Rescore(sequence=name) for name in names[1:]),
    )


def _padded() -> tuple[Op, ...]:
    """Blocks that are not full, with poison in what is left of them, shared and taken again."""
    return (
        Allocate(sequence="s0"),
        Append(parts=(_part("s0", 6),)),
        Poison(fill="nan"),
        Decode(sequences=("s0",)),
        Fork(sequence="s1", parent="s0", at=_BLOCK_SIZE),
        Fork(sequence="s2", parent="s0", at=6),
        Decode(sequences=("s2", "s1")),
        Evict(sequence="s0", keep=2),
        Poison(fill="garbage"),
        Decode(sequences=("s0", "s1", "s2")),
        *(Rescore(sequence=name) for name in ("s0", "s1", "s2")),
    )


def _real(size: int) -> tuple[Op, ...]:
    """A context of 8192 tokens in chunks, shared, evicted, moved and decoded beside a short one."""
    chunk = _REAL_LENGTH // 2 + size // 2
    return (
        Allocate(sequence="s0"),
        Append(parts=(_part("s0", chunk),)),
        Allocate(sequence="s1"),
        Append(parts=(_part("s1", size + 1), _part("s0", _REAL_LENGTH - 4 - chunk))),
        Fork(sequence="s2", parent="s0", at=chunk),
        Decode(sequences=("s2", "s0", "s1")),
        Evict(sequence="s1", keep=1),
        Free(sequence="s2"),
        Poison(fill="nan"),
        Defragment(),
        Decode(sequences=("s0", "s1")),
        Rescore(sequence="s0"),
        Rescore(sequence="s1"),
    )


def _part(sequence: str, count: int) -> Part:
    return Part(sequence=sequence, count=count)

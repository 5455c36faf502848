"""The shortest program that shows each planted defect of a cache, by the name of the defect.

Shapes and values are as simple as they may be: a block holds two slots, and all data are normal,
unless the defect needs others.
"""

from collections.abc import Mapping

import attrs

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
)
from biprop.kvcache.shape import CacheShape

__all__ = ["WITNESSES"]


def _program(*ops: Op, shape: CacheShape | None = None) -> Program:
    return Program(shape=shape or _SHAPE, ops=ops)


def _append(*parts: tuple[str, int]) -> Append:
    return Append(parts=tuple(Part(sequence=name, count=count) for name, count in parts))


def _both(first: int = 1, second: int = 1) -> Append:
    return _append(("s0", first), ("s1", second))


_SHAPE = CacheShape(block_size=2, block_count=8)
_A, _B, _C = (Allocate(sequence=name) for name in ("s0", "s1", "s2"))
_DECODE_BOTH = Decode(sequences=("s0", "s1"))
_DECODE = Decode(sequences=("s0",))
_FREE = Free(sequence="s0")
_EVICT = Evict(sequence="s0", keep=0)


def _fork(at: int) -> Fork:
    return Fork(sequence="s1", parent="s0", at=at)


_LONG = attrs.evolve(_SHAPE, width=4)

WITNESSES: Mapping[str, Program] = {
    "stale_page": _program(_A, _B, _append(("s0", 2)), _EVICT, _append(("s1", 1))),
    "fork_holds_no_whole_block": _program(
        _A, _append(("s0", 2)), _fork(2), _FREE, _append(("s1", 1))
    ),
    "fork_shares_partial_block": _program(_A, _append(("s0", 1)), _fork(1), _DECODE_BOTH),
    "copy_one_slot_short": _program(_A, _append(("s0", 1)), _fork(1), _DECODE),
    "copy_after_write": _program(
        _A, _append(("s0", 2)), _fork(1), _DECODE_BOTH, shape=attrs.evolve(_SHAPE, block_size=4)
    ),
    "evicts_shared_page": _program(_A, _append(("s0", 2)), _fork(2), _EVICT, _append(("s1", 1))),
    "table_longer_than_used": _program(_A, _append(("s0", 2)), _EVICT, _append(("s0", 1))),
    "cancelled_page_twice": _program(_A, _B, _append(("s0", 1)), _EVICT, _FREE, _append(("s1", 3))),
    "free_keeps_last_page": _program(
        _A,
        _append(("s0", 1)),
        _FREE,
        _B,
        _append(("s1", 1)),
        shape=attrs.evolve(_SHAPE, block_count=1),
    ),
    "defragment_forgets_table": _program(_A, _B, _append(("s1", 1), ("s0", 1)), Defragment()),
    "defragment_leaves_partial_page": _program(_A, _B, _append(("s1", 1), ("s0", 1)), Defragment()),
    "boundary_off_by_one": _program(_A, _append(("s0", 3))),
    "rounds_twice": _program(
        _A,
        _append(("s0", 1)),
        shape=attrs.evolve(_SHAPE, storage="bfloat16", width=64),
    ),
    "pad_token_stored": _program(_A, _B, _both(1, 0)),
    "positions_from_slot": _program(_A, _B, _both(), _FREE, _append(("s1", 2))),
    "length_before_append": _program(_A, _DECODE),
    "rows_sorted": _program(_A, _B, Decode(sequences=("s1", "s0"))),
    "decode_split_by_rows": _program(_A, _B, _append(("s0", 7)), _DECODE_BOTH, shape=_LONG),
    "decode_unordered": _program(_A, _append(("s0", 7)), _DECODE, shape=_LONG),
    "keys_from_page_start": _program(_A, _append(("s0", 6)), _append(("s0", 4)), shape=_LONG),
    "cascade_by_neighbours": _program(_A, _append(("s0", 7)), _fork(7), _DECODE_BOTH, shape=_LONG),
    "free_slots_times_zero": _program(Poison(fill="nan"), _A, _DECODE),
    "heads_in_turn": _program(_A, _DECODE, shape=attrs.evolve(_SHAPE, query_heads=4, heads=2)),
    "decode_before_rounding": _program(_A, _DECODE, shape=attrs.evolve(_SHAPE, storage="bfloat16")),
    "table_of_first_row": _program(_A, _B, _both(2, 2), _DECODE_BOTH),
    "queries_scaled_in_place": _program(_A, _append(("s0", 1))),
    "workspace_kept": _program(_A, _B, _append(("s0", 1)), _EVICT, _append(("s1", 1))),
}

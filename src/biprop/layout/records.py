"""The layout record: all that transforms may change, each its own fields.

No tensors: `biprop.layout.launches` turns a layout into index maps.
"""

from typing import Literal

import attrs

__all__ = [
    "CANONICAL",
    "FILLS",
    "FILLS_FINITE",
    "Fill",
    "Layout",
    "Neighbours",
    "Padding",
    "Selection",
    "Side",
    "Storage",
]

Side = Literal["left", "right"]
Fill = Literal["zero", "one", "large", "nan", "inf", "-inf"]
FILLS_FINITE: tuple[Fill, ...] = ("zero", "one", "large")
FILLS: tuple[Fill, ...] = (*FILLS_FINITE, "nan", "inf", "-inf")


@attrs.frozen(kw_only=True, cache_hash=True)
class Neighbours:
    """The other sequences of a launch (T1, T3). Sequence j of them has id `NEIGHBOUR_ID_FIRST + j`.

    Attributes:
        together: Whether the watched sequences share their launches; else each runs alone.
        count: Neighbours beside the watched sequences.
        length: Tokens of each; 0: they repeat the lengths of the watched sequences in turn.
        spread: Largest number of tokens added to a neighbour's length by a hash of its id and the
            seed.
        loudness: Their float values are multiplied by 2**loudness.
    """

    together: bool = False
    count: int = 0
    length: int = 0
    spread: int = 0
    loudness: int = 0


@attrs.frozen(kw_only=True)
class Padding:
    """Dead slots (T4).

    Attributes:
        side: Where dead slots of a row lie; the same side for rows that are merely shorter than
            others.
        amount: Dead slots beside the longest row, or at that end of a packed launch; queries and
            contexts both have so many.
        contexts_only: Only contexts have them.
        fill: What float tensors hold in the dead slots of rows (ids: 0 for `zero`, else the largest
            legal).
        dead_rows: Wholly dead rows after the others; empty segments of a packed launch with
            offsets.
        dead_rows_fill: What they hold.
    """

    side: Side = "right"
    amount: int = 0
    contexts_only: bool = False
    fill: Fill = "zero"
    dead_rows: int = 0
    dead_rows_fill: Fill = "zero"


@attrs.frozen(kw_only=True)
class Selection:
    """Which tokens are launched (T6), for token-wise signatures, and how rows are packed.

    Attributes:
        active_only: Only active tokens are gathered into the launch.
        scatter: Not 0: tokens of all sequences are interleaved by a permutation of this seed.
        per_row: Sequences that share a row, where a mask says who attends whom; from 2 on the
            watched ones share their launches.
        form: Name of another form of the operator, whose signature says what the launches are;
            empty: the form of the case.
    """

    active_only: bool = False
    scatter: int = 0
    per_row: int = 1
    form: str = ""


@attrs.frozen(kw_only=True)
class Storage:
    """Where tensors lie in memory (T8); values and shapes stay.

    Attributes:
        offset: Elements that base pointers lie past a 256-byte boundary.
        gap: Elements between rows of the last axis (NaN inside), so the row stride grows.
        transposed: The last two axes are swapped in memory.
        parameters: Whether parameters are stored so too.
        dirty: Outputs and workspaces hold a large finite value instead of NaN before the launch.
    """

    offset: int = 0
    gap: int = 0
    transposed: bool = False
    parameters: bool = False
    dirty: bool = False


# Pools and launches are looked up by layout, several times an example.
@attrs.frozen(kw_only=True, cache_hash=True)
class Layout:
    """Everything around the sequences.

    Attributes:
        neighbours: T1 and T3.
        before: Neighbours that lie before the watched sequences (T2).
        permutation: Not 0: seed of a permutation of the sequences (T2).
        padding: T4.
        cuts: Where the work is split into launches (T5): slots of a token-wise launch, tokens of
            each sequence where there are queries and contexts, else sequences.
        selection: T6.
        storage: T8.
        shards: Tensor-parallel ranks that share the contracted sum of each launch.
    """

    neighbours: Neighbours = attrs.field(factory=Neighbours)
    before: int = 0
    permutation: int = 0
    padding: Padding = attrs.field(factory=Padding)
    cuts: tuple[int, ...] = ()
    selection: Selection = attrs.field(factory=Selection)
    storage: Storage = attrs.field(factory=Storage)
    shards: int = 1


CANONICAL = Layout()

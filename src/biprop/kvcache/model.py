"""What a KV cache must hold after some operations, told without a cache.

The account is pure: no tensor, no kernel's result. Whoever writes programs draws from it what is
legal, the interpreter passes over what is not, and what a program reached is told from it alone.
Pages are those of a cache that shares all it can, takes the page that was given up last, and when
it defragments lays those of each sequence together; the room that is left counts every sequence as
whole and unshared, so a legal program never exhausts a pool, whatever a cache shares.
"""

import re
from collections.abc import Iterable, Sequence

import attrs

from biprop.kvcache.records import (
    COVERAGE,
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
from biprop.kvcache.shape import CacheShape

__all__ = ["Model", "Piece", "SequenceState", "legal_ops", "names_of", "source_of"]

_NAME = re.compile(r"[a-z]{1,16}([0-9]{1,6})")


@attrs.frozen(kw_only=True)
class Piece:
    """Tokens of a sequence that have one source: their keys are (`source`, position).

    Attributes:
        source: Number that their data are drawn by.
        start: Position of the first.
        stop: Position after the last.
    """

    source: int
    start: int
    stop: int


@attrs.frozen(kw_only=True)
class SequenceState:
    """What a live sequence is.

    Attributes:
        name: Its name.
        source: Number by which its own tokens are drawn, those from `fork_point` on.
        pieces: Its tokens, in order; a fork has the keys of its parent first.
        stored: Tokens that are stored; the rest was evicted, and is stored again before use.
        pages: Numbers of its pages in the account, one a block of stored tokens.
        fork_point: Tokens that it has of its parent; None where it was allocated.
    """

    name: str
    source: int
    pieces: tuple[Piece, ...] = ()
    stored: int = 0
    pages: tuple[int, ...] = ()
    fork_point: int | None = None

    @property
    def length(self) -> int:
        """Tokens, stored or evicted."""
        return self.pieces[-1].stop if self.pieces else 0

    @property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """Keys of the tokens: source and position."""
        return tuple(
            (piece.source, position)
            for piece in self.pieces
            for position in range(piece.start, piece.stop)
        )


class Model:
    """The account of one cache.

    Attributes:
        shape: Of the cache.
        vocabulary: Of the program.
        sequences: Live sequences by name, in the order in which they began.
        names: Every name that was ever live.
        coverage: What of `COVERAGE` was reached, in that order.
        fills: Fills of the poisonings so far.
    """

    def __init__(self, shape: CacheShape, *, vocabulary: int | None = None) -> None:
        """Begin with an empty cache."""
        self.shape = shape
        self.vocabulary = vocabulary
        self.sequences: dict[str, SequenceState] = {}
        self.names: set[str] = set()
        self.fills: list[str] = []
        self._reached: set[str] = set()
        # Pages that held tokens and were given up, the last one on top; then those never used.
        self._given_up: list[int] = []
        self._fresh = 0
        self._reused: set[int] = set()
        self._moved: set[str] = set()

    @property
    def coverage(self) -> tuple[str, ...]:
        """What of `COVERAGE` was reached, in that order."""
        return tuple(word for word in COVERAGE if word in self._reached)

    @property
    def pages_left(self) -> int:
        """Pages that no live sequence could need, were each stored whole and nothing shared."""
        taken = sum(self._blocks(state.length) for state in self.sequences.values())
        return self.shape.block_count - taken

    def room(self, name: str) -> int:
        """Tokens that may still be appended to a live sequence."""
        length = self.sequences[name].length
        return self.pages_left * self.shape.block_size + -length % self.shape.block_size

    def new_name(self) -> str:
        """Return a name that no sequence had: `s0`, `s1`, ..."""
        number = 0
        while f"s{number}" in self.names:
            number += 1
        return f"s{number}"

    def is_legal(self, op: Op) -> bool:
        """Whether `op` may be applied now."""
        match op:
            case Allocate():
                return source_of(op.sequence) is not None and op.sequence not in self.sequences
            case Append():
                counts = {part.sequence: part.count for part in op.parts}
                has_counts = bool(op.parts) and all(part.count >= 0 for part in op.parts)
                return has_counts and len(counts) == len(op.parts) and self._fits(counts)
            case Decode():
                counts = dict.fromkeys(op.sequences, 1)
                return bool(counts) and len(counts) == len(op.sequences) and self._fits(counts)
            case Fork():
                parent = self.sequences.get(op.parent)
                if parent is None or op.sequence in self.sequences or not op.at >= 0:
                    return False
                is_named = source_of(op.sequence) is not None
                fits = self._blocks(op.at) <= self.pages_left
                return is_named and op.at <= parent.length and fits
            case Evict():
                state = self.sequences.get(op.sequence)
                return state is not None and 0 <= op.keep <= state.stored
            case Read() | Rescore() | Free():
                return op.sequence in self.sequences
            case Generate():
                state = self.sequences.get(op.sequence)
                # The first id that is generated follows from a token.
                is_begun = state is not None and state.length > 0
                return (
                    self.vocabulary is not None
                    and op.count >= 1
                    and is_begun
                    and self._fits({op.sequence: op.count})
                )
            case Defragment() | Poison():
                return True

    def apply(self, op: Op) -> bool:
        """Take `op` into the account; say whether it was legal, and leave all as it is if not."""
        if not self.is_legal(op):
            return False
        for part in self.missing(op):
            self._store(part.sequence, part.count)
        match op:
            case Allocate():
                self._begin(SequenceState(name=op.sequence, source=_source(op.sequence)))
            case Append():
                for part in op.parts:
                    self._extend(part.sequence, part.count)
            case Decode():
                for name in op.sequences:
                    self._extend(name, 1)
                    if name in self._moved:
                        self._reached.add("decode after defragment")
            case Fork():
                self._fork(op)
            case Evict():
                self._evict(op)
            case Free():
                self._give_up(self.sequences.pop(op.sequence).pages)
                self._moved.discard(op.sequence)
            case Generate():
                self._extend(op.sequence, op.count)
            case Defragment():
                self._defragment()
            case Poison():
                self.fills.append(op.fill)
            case Read() | Rescore():
                pass
        return True

    def missing(self, op: Op) -> tuple[Part, ...]:
        """Return what must be stored again before `op`: evicted tokens of what it uses."""
        states = (self.sequences[name] for name in users_of(op) if name in self.sequences)
        return tuple(
            Part(sequence=state.name, count=state.length - state.stored)
            for state in states
            if state.stored < state.length
        )

    def has_reused_pages(self, name: str) -> bool:
        """Whether a page of a live sequence held other tokens, or was poisoned, before."""
        return any(page in self._reused for page in self.sequences[name].pages)

    def sharing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the other live sequences that share a page with one of `names`."""
        own = set(names)
        pages = {
            page for name in own if name in self.sequences for page in self.sequences[name].pages
        }
        return tuple(
            name
            for name, state in self.sequences.items()
            if name not in own and not pages.isdisjoint(state.pages)
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_size)

    def _fits(self, counts: dict[str, int]) -> bool:
        if any(name not in self.sequences for name in counts):
            return False
        lengths = {name: self.sequences[name].length for name in counts}
        more = sum(
            self._blocks(lengths[name] + count) - self._blocks(lengths[name])
            for name, count in counts.items()
        )
        return more <= self.pages_left

    def _begin(self, state: SequenceState) -> None:
        self.sequences[state.name] = state
        self.names.add(state.name)

    def _extend(self, name: str, count: int) -> None:
        state = self.sequences[name]
        if count:
            start, own = state.length, state.source
            pieces = state.pieces
            if pieces and pieces[-1].source == own:
                pieces, start = pieces[:-1], pieces[-1].start
            piece = Piece(source=own, start=start, stop=state.length + count)
            self.sequences[name] = attrs.evolve(state, pieces=(*pieces, piece))
        self._store(name, count)

    def _store(self, name: str, count: int) -> None:
        state = self.sequences[name]
        if not count:
            return
        pages = list(state.pages)
        if state.stored % self.shape.block_size and self._owners(pages[-1]) > 1:
            # Written to while it is shared: the writer gets a copy.
            pages[-1] = self._taken()
        stored = state.stored + count
        while len(pages) < self._blocks(stored):
            pages.append(self._taken())
        self.sequences[name] = attrs.evolve(state, stored=stored, pages=tuple(pages))

    def _fork(self, op: Fork) -> None:
        parent = self.sequences[op.parent]
        pieces = tuple(
            attrs.evolve(piece, stop=min(piece.stop, op.at))
            for piece in parent.pieces
            if piece.start < op.at
        )
        self._begin(
            SequenceState(
                name=op.sequence,
                source=_source(op.sequence),
                pieces=pieces,
                stored=op.at,
                pages=parent.pages[: self._blocks(op.at)],
                fork_point=op.at,
            )
        )
        if op.at % self.shape.block_size:
            self._reached.add("partial-block fork")

    def _evict(self, op: Evict) -> None:
        state = self.sequences[op.sequence]
        kept = self._blocks(op.keep)
        if any(self._owners(page) > 1 for page in state.pages[kept:]):
            self._reached.add("evicted shared page")
        self.sequences[op.sequence] = attrs.evolve(state, stored=op.keep, pages=state.pages[:kept])
        self._give_up(state.pages[kept:])

    def _defragment(self) -> None:
        """Lay the pages of each sequence together, from page 0 on."""
        held = dict.fromkeys(page for state in self.sequences.values() for page in state.pages)
        place = {page: number for number, page in enumerate(held)}
        for name, state in self.sequences.items():
            pages = tuple(place[page] for page in state.pages)
            # What stays where it is shows nothing.
            if pages != state.pages:
                self._moved.add(name)
            self.sequences[name] = attrs.evolve(state, pages=pages)
        self._reused = {place[page] for page in self._reused if page in place}
        self._given_up = list(range(self._fresh - 1, len(held) - 1, -1))

    def _owners(self, page: int) -> int:
        return sum(page in state.pages for state in self.sequences.values())

    def _taken(self) -> int:
        if self._given_up:
            page = self._given_up.pop()
            self._reused.add(page)
            self._reached.add("dirty reuse")
            return page
        page = self._fresh
        self._fresh += 1
        if self.fills:
            self._reused.add(page)
        return page

    def _give_up(self, pages: Sequence[int]) -> None:
        """Take back pages that have no owner any more; the first of them is taken again first."""
        for page in reversed(pages):
            if not self._owners(page):
                self._given_up.append(page)
                self._reused.discard(page)


def source_of(name: str) -> int | None:
    """Return the number that a sequence's name ends in; None where the name is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def names_of(op: Op) -> tuple[str, ...]:
    """Return the sequences that an operation names."""
    match op:
        case Append():
            return tuple(part.sequence for part in op.parts)
        case Decode():
            return op.sequences
        case Fork():
            return op.sequence, op.parent
        case Defragment() | Poison():
            return ()
        case _:
            return (op.sequence,)


def users_of(op: Op) -> tuple[str, ...]:
    """Return the sequences of which an operation needs every token."""
    match op:
        case Fork():
            return (op.parent,)
        case Append() | Decode() | Read() | Rescore() | Generate():
            return names_of(op)
        case _:
            return ()


def legal_ops(program: Program) -> tuple[Op, ...]:
    """Return the operations of a program that are legal where they stand."""
    model = Model(program.shape, vocabulary=program.vocabulary)
    return tuple(op for op in program.ops if model.apply(op))


def _source(name: str) -> int:
    found = source_of(name)
    assert found is not None, "legal names have a number"
    return found

"""The account of what a cache must hold."""

import pytest
import torch
from tests.unit.program_samples import append, program_of, random_program

from biprop.kernels.paged import OPERATOR as PAGED
from biprop.kvcache.model import Model, Piece, legal_ops, source_of
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
    Read,
    Rescore,
)
from biprop.kvcache.shape import CacheShape

A, B = Allocate(sequence="s0"), Allocate(sequence="s1")


def applied(*ops: Op, block_size: int = 2, block_count: int = 16, **others: int) -> Model:
    """Return the account after operations, all of them legal."""
    model = Model(CacheShape(block_size=block_size, block_count=block_count), **others)
    for op in ops:
        assert model.apply(op), op
    return model


class TestTokens:
    """What sequences hold."""

    def test_keys_are_source_and_position(self) -> None:
        """A token is known by the number in its sequence's name and its position."""

        model = applied(Allocate(sequence="s7"), append(("s7", 2)), Decode(sequences=("s7",)))

        assert model.sequences["s7"].tokens == ((7, 0), (7, 1), (7, 2))

    def test_fork_has_the_keys_of_its_parent_first(self) -> None:
        """A fork's own tokens follow from the fork point, at the positions that come then."""

        fork = Fork(sequence="s1", parent="s0", at=3)
        model = applied(A, append(("s0", 5)), fork, append(("s1", 2)))

        assert model.sequences["s1"].pieces == (
            Piece(source=0, start=0, stop=3),
            Piece(source=1, start=3, stop=5),
        )
        assert model.sequences["s1"].tokens[-1] == (1, 4)

    def test_fork_of_a_fork_keeps_both_sources(self) -> None:
        """A prefix that was forked twice has the keys of all who wrote it."""

        model = applied(
            A,
            append(("s0", 2)),
            Fork(sequence="s1", parent="s0", at=2),
            append(("s1", 2)),
            Fork(sequence="s2", parent="s1", at=3),
            append(("s2", 1)),
        )

        assert model.sequences["s2"].tokens == ((0, 0), (0, 1), (1, 2), (2, 3))

    def test_evicted_tokens_are_stored_again_before_use(self) -> None:
        """The account names what is missing, and takes it back with the next use."""

        model = applied(A, append(("s0", 5)), Evict(sequence="s0", keep=1))
        assert model.sequences["s0"].stored == 1
        assert model.missing(Read(sequence="s0")) == (Part(sequence="s0", count=4),)

        model.apply(Read(sequence="s0"))

        assert model.sequences["s0"].stored == 5
        assert model.missing(Read(sequence="s0")) == ()

    def test_name_may_be_used_again(self) -> None:
        """A sequence that ended leaves its name, and its keys, to another one."""

        model = applied(A, append(("s0", 3)), Free(sequence="s0"), A)

        assert model.sequences["s0"].length == 0
        assert model.names == {"s0"}
        assert model.new_name() == "s1"


class TestLegal:
    """What may be applied."""

    @pytest.mark.parametrize(
        "op",
        [
            A,
            Allocate(sequence="s"),
            Allocate(sequence="S1"),
            Allocate(sequence="s 1"),
            append(),
            append(("s1", 1)),
            append(("s0", -1)),
            append(("s0", 1), ("s0", 1)),
            append(("s0", 30)),
            Decode(sequences=()),
            Decode(sequences=("s0", "s0")),
            Decode(sequences=("s0", "s1")),
            Fork(sequence="s0", parent="s0", at=0),
            Fork(sequence="s1", parent="s1", at=0),
            Fork(sequence="s1", parent="s0", at=4),
            Fork(sequence="s1", parent="s0", at=-1),
            Evict(sequence="s0", keep=4),
            Evict(sequence="s0", keep=-1),
            Evict(sequence="s1", keep=0),
            Read(sequence="s1"),
            Rescore(sequence="s1"),
            Free(sequence="s1"),
            Generate(sequence="s0", count=1),
        ],
        ids=str,
    )
    def test_illegal_operation_changes_nothing(self, op: Op) -> None:
        """What is not legal where it stands is passed over."""

        model = applied(A, append(("s0", 3)))
        before = dict(model.sequences)

        assert not model.is_legal(op)
        assert not model.apply(op)
        assert model.sequences == before

    @pytest.mark.parametrize(
        "op",
        [
            append(("s0", 0)),
            append(("s0", 29)),
            Decode(sequences=("s0",)),
            Fork(sequence="s1", parent="s0", at=0),
            Fork(sequence="s1", parent="s0", at=3),
            Evict(sequence="s0", keep=3),
            Defragment(),
            Poison(fill="nan"),
        ],
        ids=str,
    )
    def test_boundary_is_legal(self, op: Op) -> None:
        """No token, the last token that fits, and both ends of a sequence are legal."""

        assert applied(A, append(("s0", 3))).is_legal(op)

    def test_generating_needs_a_vocabulary_and_a_token(self) -> None:
        """The first id that is generated follows from a token."""

        generate = Generate(sequence="s0", count=1)

        assert not applied(A, vocabulary=5).is_legal(generate)
        assert applied(A, append(("s0", 1)), vocabulary=5).is_legal(generate)

    def test_room_counts_sequences_as_unshared(self) -> None:
        """A fork takes as much of the room as a copy would, and eviction gives nothing back."""

        model = applied(A, append(("s0", 5)), block_count=6)
        assert model.pages_left == 3
        model.apply(Fork(sequence="s1", parent="s0", at=3))
        assert (model.pages_left, model.room("s0"), model.room("s1")) == (1, 3, 3)

        model.apply(Evict(sequence="s0", keep=0))

        assert model.pages_left == 1
        assert not model.is_legal(append(("s0", 2), ("s1", 2)))

    def test_any_subset_of_operations_is_a_program(self) -> None:
        """Leaving out operations leaves operations that are legal, or passed over."""

        program = random_program(5, steps=20)
        for keep in range(2, 6):
            ops = tuple(op for place, op in enumerate(program.ops) if place % keep)
            fewer = program_of(*ops, block_size=program.shape.block_size)

            assert set(legal_ops(fewer)) <= set(ops)

    @pytest.mark.parametrize("seed", range(12))
    def test_legal_program_never_exhausts_the_pool(self, seed: int) -> None:
        """A cache with as many pages as the account counts never runs out of them."""

        program = random_program(seed, steps=40, block_count=7, width=1)
        cache = PAGED.implementations[0].make(program.shape, torch.device("cpu"))
        model = Model(program.shape, vocabulary=program.vocabulary)
        for op in program.ops:
            for part in model.missing(op):
                _store(cache, part.sequence, part.count)
            before = {name: state.length for name, state in model.sequences.items()}
            assert model.apply(op)
            match op:
                case Allocate():
                    cache.allocate(op.sequence)
                case Fork():
                    cache.fork(op.sequence, op.parent, op.at)
                case Evict():
                    cache.evict(op.sequence, op.keep)
                case Free():
                    cache.free(op.sequence)
                case Append() | Decode() | Generate():
                    for name, state in model.sequences.items():
                        _store(cache, name, state.length - before[name])
                case _:
                    pass

        assert all(cache.length(name) == s.stored for name, s in model.sequences.items())


def _store(cache: object, name: str, count: int) -> None:
    rows = torch.zeros(count, 1, 1)
    offsets = torch.tensor([0, count], dtype=torch.int32)
    cache.append((name,), rows, rows, offsets)  # type: ignore[attr-defined]  # a KVCache


class TestPages:
    """Which pages are shared, and which are used again."""

    def test_fork_shares_and_a_write_copies(self) -> None:
        """A partial block is shared until one of the two writes to it."""

        model = applied(A, append(("s0", 3)), Fork(sequence="s1", parent="s0", at=3))
        assert model.sequences["s1"].pages == model.sequences["s0"].pages
        assert model.sharing(("s0",)) == ("s1",)

        model.apply(append(("s1", 1)))

        assert model.sequences["s1"].pages[0] == model.sequences["s0"].pages[0]
        assert model.sequences["s1"].pages[1] != model.sequences["s0"].pages[1]

    def test_page_that_was_given_up_is_taken_first(self) -> None:
        """Reuse is told of the sequence that takes a page, and not of one that has a fresh one."""

        model = applied(A, append(("s0", 2)), B, append(("s1", 2)), Free(sequence="s0"), A)
        assert not model.has_reused_pages("s1")

        model.apply(append(("s0", 1)))

        assert model.has_reused_pages("s0")

    def test_poisoned_page_counts_as_used(self) -> None:
        """After a poisoning no page is fresh."""

        model = applied(A, Poison(fill="nan"), append(("s0", 1)))

        assert model.has_reused_pages("s0")
        assert model.fills == ["nan"]


class TestCoverage:
    """Situations that a program reached."""

    REACHING = (
        ("partial-block fork", (A, append(("s0", 3)), Fork(sequence="s1", parent="s0", at=3))),
        (
            "evicted shared page",
            (
                A,
                append(("s0", 2)),
                Fork(sequence="s1", parent="s0", at=2),
                Evict(sequence="s0", keep=0),
            ),
        ),
        ("dirty reuse", (A, append(("s0", 2)), Free(sequence="s0"), B, append(("s1", 1)))),
        (
            "decode after defragment",
            (A, B, append(("s1", 2), ("s0", 2)), Defragment(), Decode(sequences=("s0",))),
        ),
    )

    @pytest.mark.parametrize(("word", "ops"), REACHING, ids=[word for word, _ in REACHING])
    def test_situation_is_told_and_needs_each_operation(
        self, word: str, ops: tuple[Op, ...]
    ) -> None:
        """Each situation is reached by a program, and by none without one of its operations."""

        assert applied(*ops).coverage == (word,)
        for place in range(len(ops)):
            fewer = legal_ops(program_of(*ops[:place], *ops[place + 1 :]))
            assert word not in applied(*fewer).coverage, place

    @pytest.mark.parametrize(
        ("word", "ops"),
        [
            ("partial-block fork", (A, append(("s0", 4)), Fork(sequence="s1", parent="s0", at=2))),
            (
                "evicted shared page",
                (
                    A,
                    append(("s0", 4)),
                    Fork(sequence="s1", parent="s0", at=2),
                    Evict(sequence="s0", keep=2),
                ),
            ),
            ("dirty reuse", (A, append(("s0", 2)), Free(sequence="s0"), B, append(("s1", 0)))),
            (
                "decode after defragment",
                (A, append(("s0", 2)), Defragment(), Decode(sequences=("s0",))),
            ),
        ],
    )
    def test_near_miss_is_not_told(self, word: str, ops: tuple[Op, ...]) -> None:
        """A whole block, a page of its own, no token and pages in place are other situations."""

        assert word in COVERAGE
        assert word not in applied(*ops).coverage


class TestNames:
    """Names of sequences."""

    def test_number_is_read_from_the_end(self) -> None:
        """Letters and a number are a name; anything else is none."""

        assert [source_of(name) for name in ("s0", "ab12", "7", "s", "s-1", "s1x", "é1")] == [
            0,
            12,
            *[None] * 5,
        ]

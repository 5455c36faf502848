"""Shrinking of programs, on caches whose shortest failing programs are known."""

from collections.abc import Callable

import attrs
import pytest
from tests.unit.program_samples import append, program_of, random_program

from biprop.data.recipe import KINDS, Recipe
from biprop.judgment import Verdict
from biprop.kvcache.model import Model, legal_ops
from biprop.kvcache.records import (
    Allocate,
    Append,
    Check,
    Decode,
    Defragment,
    Evict,
    Fork,
    Free,
    Generate,
    Op,
    Poison,
    Program,
    ProgramCause,
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.minimize.program_edits import tidied
from biprop.minimize.program_moves import cost_of, fresh_names
from biprop.minimize.programs import MinimisedProgram, minimise_program

A, B = Allocate(sequence="s0"), Allocate(sequence="s1")
Judge = Callable[[Program], ProgramOutcome]


def judge_of(
    fails: Callable[[Program, Model, Op], bool],
    *,
    check: Check = "chunk",
    output: str = "out",
    verdict: Verdict = Verdict.DRIFTS,
    message: str = "",
) -> Judge:
    """Return a judge without a cache: programs fail where an operation meets a condition."""

    def judge(program: Program) -> ProgramOutcome:
        model = Model(program.shape, vocabulary=program.vocabulary)
        for step, op in enumerate(program.ops):
            if model.apply(op) and fails(program, model, op):
                cause = ProgramCause(verdict=verdict, check=check, output=output)
                return ProgramOutcome(verdict=verdict, cause=cause, step=step, message=message)
        return ProgramOutcome(verdict=Verdict.HOLDS)

    return judge


def found(judge: Judge, **sizes: object) -> tuple[Program, ProgramOutcome]:
    """Return the first random program that fails."""
    for seed in range(400):
        program = random_program(seed, steps=24, **sizes)
        outcome = judge(program)
        if outcome.verdict.is_violation:
            return program, outcome
    raise AssertionError("no program fails")


def shrunk(judge: Judge, **sizes: object) -> MinimisedProgram:
    """Find a program that fails, and shrink it."""
    smallest = minimise_program(judge, *found(judge, **sizes))
    assert smallest.outcome.verdict.is_violation
    assert judge(smallest.program) == smallest.outcome
    assert smallest.complete
    return smallest


def _after_partial_fork(program: Program, model: Model, op: Op) -> bool:
    """A fork within a block, and then a token for the parent."""
    size = program.shape.block_size
    parents = {
        fork.parent for fork in program.ops if isinstance(fork, Fork) and fork.at % size != 0
    }
    return isinstance(op, (Append, Decode)) and any(
        name in parents and model.sequences[name].length > 1
        for name in (
            op.sequences if isinstance(op, Decode) else [part.sequence for part in op.parts]
        )
        if any(state.fork_point for state in model.sequences.values())
    )


class TestShortest:
    """The shortest programs of known faults."""

    def test_length_alone(self) -> None:
        """A sequence of five tokens is one append of five."""

        def fails(_: Program, model: Model, __: Op) -> bool:
            return any(state.length >= 5 for state in model.sequences.values())

        smallest = shrunk(judge_of(fails))

        assert smallest.program.ops == (A, append(("s0", 5)))

    def test_decode_of_two(self) -> None:
        """Two sequences that decode together are allocated, and nothing else is done."""

        def fails(_: Program, __: Model, op: Op) -> bool:
            return isinstance(op, Decode) and len(op.sequences) > 1

        smallest = shrunk(judge_of(fails, check="decode"))

        assert len(smallest.program.ops) == 3
        assert smallest.program.ops[2] in {
            Decode(sequences=("s0", "s1")),
            Decode(sequences=("s1", "s0")),
        }

    def test_block_boundary_moves_with_the_block(self) -> None:
        """What fails one past a block fails with blocks of one slot, at the second token."""

        def fails(program: Program, model: Model, _: Op) -> bool:
            size = program.shape.block_size
            return any(state.length == size + 1 for state in model.sequences.values())

        smallest = shrunk(judge_of(fails), block_size=8)

        assert smallest.program.ops == (A, append(("s0", 2)))
        assert smallest.program.shape.block_size == 1
        assert smallest.program.shape.block_count == 2

    def test_partial_fork_needs_four(self) -> None:
        """Allocate, append, fork within a block, and one token more for the parent."""

        smallest = shrunk(judge_of(_after_partial_fork))

        kinds = [type(op) for op in smallest.program.ops]
        assert kinds == [Allocate, Append, Fork, Append]
        assert smallest.program.shape.block_size == 2

    def test_defragment_after_reuse(self) -> None:
        """Operations in a row are found, whatever lies between them."""

        def fails(_: Program, model: Model, op: Op) -> bool:
            return isinstance(op, Defragment) and "dirty reuse" in model.coverage

        smallest = shrunk(judge_of(fails, check="untouched", output="k"))

        assert len(smallest.program.ops) <= 5
        assert smallest.program.ops[-1] == Defragment()

    def test_evicted_and_read(self) -> None:
        """An eviction keeps as few tokens as it can."""

        def fails(program: Program, model: Model, op: Op) -> bool:
            before = program.ops[: program.ops.index(op)]
            evicted = any(isinstance(other, Evict) and other.keep == 0 for other in before)
            return isinstance(op, Read) and evicted and model.sequences[op.sequence].length > 0

        smallest = shrunk(judge_of(fails, check="stored", output="v"))

        assert smallest.program.ops[-1] == Read(sequence="s0")
        appends = [op for op in smallest.program.ops if isinstance(op, Append)]
        assert sum(part.count for op in appends for part in op.parts) == 1


class TestMoves:
    """What single moves are for."""

    def test_sequences_begin_first(self) -> None:
        """Where it makes no difference, sequences begin before anything else is done."""

        def fails(_: Program, model: Model, op: Op) -> bool:
            lengths = [state.length for state in model.sequences.values()]
            return isinstance(op, Evict) and sorted(lengths) == [0, 1]

        judge = judge_of(fails)
        evict = Evict(sequence="s0", keep=0)
        program = program_of(A, append(("s0", 1)), B, evict)

        smallest = minimise_program(judge, program, judge(program)).program

        assert smallest.ops == (A, B, append(("s0", 1)), evict)

    def test_poison_comes_first(self) -> None:
        """So that what is appended shows what needed a further operation."""

        def fails(_: Program, model: Model, op: Op) -> bool:
            has_tokens = any(state.length for state in model.sequences.values())
            return isinstance(op, (Append, Rescore)) and has_tokens and bool(model.fills)

        judge = judge_of(fails)
        program = program_of(A, append(("s0", 1)), Poison(fill="inf"), Rescore(sequence="s0"))

        smallest = minimise_program(judge, program, judge(program)).program

        assert len(smallest.ops) == 3
        assert isinstance(smallest.ops[-1], Append)

    def test_second_life_gets_a_name_of_its_own(self) -> None:
        """A name that is used again gives way to two, which can begin together."""
        again = program_of(A, append(("s0", 1)), Free(sequence="s0"), A, append(("s0", 2)))
        third = program_of(A, Free(sequence="s0"), A, Free(sequence="s0"), A, append(("s0", 1)))

        assert fresh_names(again).ops[3:] == (B, append(("s1", 2)))
        assert fresh_names(third).ops[2:] == (
            B,
            Free(sequence="s1"),
            Allocate(sequence="s2"),
            append(("s2", 1)),
        )

    def test_pool_shrinks_with_the_program(self) -> None:
        """What fails in a pool without room to spare fails so with fewer operations too."""

        def fails(program: Program, model: Model, op: Op) -> bool:
            ended = sum(isinstance(other, Free) for other in program.ops)
            return isinstance(op, Append) and ended > 0 and model.pages_left == 0

        judge = judge_of(fails)
        free, begun = Free(sequence="s0"), Allocate(sequence="s2")
        ops = (A, B, append(("s0", 2), ("s1", 2)), free, begun, append(("s2", 2)))
        program = program_of(*ops, block_size=1, block_count=4)

        smallest = minimise_program(judge, program, judge(program)).program

        assert len(smallest.ops) == 4
        assert smallest.shape.block_count == 1

    def test_operation_makes_up_for_another(self) -> None:
        """A sequence without tokens in a call does what a call of its own did."""

        def fails(_: Program, __: Model, op: Op) -> bool:
            return isinstance(op, Append) and any(part.count == 0 for part in op.parts)

        def fails_when_looked_at(program: Program, model: Model, op: Op) -> bool:
            """Show it where another sequence takes part, or begins."""
            before = program.ops[: program.ops.index(op)]
            is_filled = any(state.length for state in model.sequences.values())
            has_failed = any(fails(program, model, other) for other in before)
            return is_filled and (
                (isinstance(op, Allocate) and has_failed)
                or (fails(program, model, op) and isinstance(op, Append) and len(op.parts) > 1)
            )

        judge = judge_of(fails_when_looked_at, check="untouched", output="v")
        program = program_of(A, append(("s0", 1)), append(("s0", 0)), B)

        smallest = minimise_program(judge, program, judge(program)).program

        assert [type(op) for op in smallest.ops] == [Allocate, Allocate, Append]

    def test_fork_that_shows_gives_way(self) -> None:
        """A last fork, which shows what is wrong with its parent, gives way to a token more."""

        def fails(program: Program, model: Model, op: Op) -> bool:
            place = next(place for place, other in enumerate(program.ops) if other is op)
            has_evicted = any(isinstance(other, Evict) for other in program.ops[:place])
            others = len(model.sequences) - isinstance(op, Fork)
            return isinstance(op, (Fork, Append)) and has_evicted and others > 1

        judge = judge_of(fails)
        ops = (A, B, append(("s0", 1)), Evict(sequence="s0", keep=0))
        program = program_of(*ops, Fork(sequence="s2", parent="s0", at=0))

        smallest = minimise_program(judge, program, judge(program)).program

        assert isinstance(smallest.ops[-1], Append)


class TestKept:
    """What stays while a program shrinks."""

    def test_name_of_the_check_may_change(self) -> None:
        """The same output seen by another check is the same defect."""

        def judge(program: Program) -> ProgramOutcome:
            names = {type(op) for op in program.ops}
            check: Check = "rescore" if Rescore in names else "chunk"
            model = Model(program.shape, vocabulary=program.vocabulary)
            for step, op in enumerate(program.ops):
                model.apply(op)
                if any(state.length >= 3 for state in model.sequences.values()):
                    cause = ProgramCause(verdict=Verdict.DRIFTS, check=check, output="out")
                    return ProgramOutcome(verdict=Verdict.DRIFTS, cause=cause, step=step)
            return ProgramOutcome(verdict=Verdict.HOLDS)

        program = program_of(A, Rescore(sequence="s0"), append(("s0", 2)), append(("s0", 4)))

        smallest = minimise_program(judge, program, judge(program))

        assert smallest.program.ops == (A, append(("s0", 3)))
        assert smallest.outcome.cause is not None
        assert smallest.outcome.cause.check == "chunk"

    @pytest.mark.parametrize(
        "other",
        [
            ProgramCause(verdict=Verdict.DRIFTS, check="chunk", output="out", finite=False),
            ProgramCause(verdict=Verdict.CRASHES),
            ProgramCause(verdict=Verdict.DRIFTS, check="length"),
        ],
        ids=lambda cause: cause.key,
    )
    def test_another_cause_is_not_taken(self, other: ProgramCause) -> None:
        """What smaller programs show besides does not lead the search away."""

        def judge(program: Program) -> ProgramOutcome:
            cause = ProgramCause(verdict=Verdict.DRIFTS, check="chunk", output="out")
            chosen = cause if len(program.ops) >= 3 else other
            step = len(program.ops) - 1
            return ProgramOutcome(verdict=chosen.verdict, cause=chosen, step=step)

        program = program_of(A, append(("s0", 2)), B, append(("s1", 2)), Read(sequence="s0"))

        smallest = minimise_program(judge, program, judge(program))

        assert len(smallest.program.ops) == 3

    @pytest.mark.parametrize(("seen", "shorter"), [("k", "out"), ("out", "k"), ("logp", "lse")])
    def test_outputs_may_stand_for_each_other(self, seen: str, shorter: str) -> None:
        """A shorter program that shows a defect in another output shows the defect."""

        def judge(program: Program) -> ProgramOutcome:
            if not program.ops:
                return ProgramOutcome(verdict=Verdict.HOLDS)
            output = seen if len(program.ops) >= 3 else shorter
            cause = ProgramCause(verdict=Verdict.DRIFTS, check="untouched", output=output)
            step = len(program.ops) - 1
            return ProgramOutcome(verdict=Verdict.DRIFTS, cause=cause, step=step)

        program = program_of(A, append(("s0", 2)), B, Defragment())

        smallest = minimise_program(judge, program, judge(program))

        assert len(smallest.program.ops) == 1
        assert smallest.outcome.cause is not None
        assert smallest.outcome.cause.output == shorter

    def test_what_differs_from_run_to_run_is_looked_at_twice(self) -> None:
        """A candidate that looks well in few runs is judged thoroughly before it is left."""

        def confirm(program: Program) -> ProgramOutcome:
            cause = ProgramCause(verdict=Verdict.NONDETERMINISTIC, check="repeat", output="out")
            if not any(isinstance(op, Append) for op in program.ops):
                return ProgramOutcome(verdict=Verdict.HOLDS)
            return ProgramOutcome(verdict=Verdict.NONDETERMINISTIC, cause=cause)

        def judge(_: Program) -> ProgramOutcome:
            return ProgramOutcome(verdict=Verdict.HOLDS)

        program = program_of(A, B, append(("s0", 1)), Defragment())

        smallest = minimise_program(judge, program, confirm(program), confirm=confirm)

        assert len(smallest.program.ops) == 2

    def test_crash_keeps_its_exception(self) -> None:
        """Another exception is another crash."""

        def judge(program: Program) -> ProgramOutcome:
            word = "ValueError: 17" if len(program.ops) >= 2 else "KeyError: 17"
            cause = ProgramCause(verdict=Verdict.CRASHES)
            return ProgramOutcome(verdict=Verdict.CRASHES, cause=cause, step=0, message=word)

        program = program_of(A, B, append(("s0", 1)))
        outcome = attrs.evolve(judge(program), step=2)

        assert len(minimise_program(judge, program, outcome).program.ops) == 2


class TestPlain:
    """Sizes and data."""

    def test_sizes_and_data_are_plain(self) -> None:
        """Where nothing matters, everything is as small as it can be."""

        def fails(_: Program, model: Model, __: Op) -> bool:
            return bool(model.sequences)

        judge = judge_of(fails)
        shape = attrs.evolve(
            program_of().shape, layout="HND", storage="bfloat16", heads=2, query_heads=6, width=16
        )
        data = {"q": Recipe(kind="normal"), "k": Recipe(kind="peak_keys", exponent=3)}
        program = attrs.evolve(program_of(A, Poison(fill="nan")), shape=shape, data=data, seed=99)

        smallest = minimise_program(judge, program, judge(program)).program

        assert smallest.ops == (A,)
        assert smallest.seed == 0
        assert all(recipe.kind == KINDS[0] for recipe in smallest.data.values())
        sizes = smallest.shape
        assert (sizes.block_size, sizes.block_count, sizes.width) == (1, 1, 1)
        assert (sizes.heads, sizes.query_heads) == (1, 1)
        assert (sizes.layout, sizes.storage) == ("NHD", "float32")

    def test_heads_keep_their_group(self) -> None:
        """What needs two queries a context head keeps them, over one head."""

        def fails(program: Program, model: Model, _: Op) -> bool:
            return program.shape.query_heads == 2 * program.shape.heads and bool(model.sequences)

        judge = judge_of(fails)
        program = program_of(A, heads=4, query_heads=8)

        shape = minimise_program(judge, program, judge(program)).program.shape

        assert (shape.heads, shape.query_heads) == (1, 2)

    def test_vocabulary_goes_with_generation(self) -> None:
        """What decoding shows needs no model."""

        def fails(_: Program, model: Model, op: Op) -> bool:
            return isinstance(op, (Decode, Generate)) and model.sequences["s0"].length >= 4

        judge = judge_of(fails, check="decode")
        generate = Generate(sequence="s0", count=3)
        program = program_of(A, append(("s0", 1)), generate, vocabulary=7)

        smallest = minimise_program(judge, program, judge(program)).program

        assert smallest.vocabulary is None
        assert smallest.ops == (A, append(("s0", 3)), Decode(sequences=("s0",)))

    def test_poison_is_as_mild_as_it_can_be(self) -> None:
        """A fill that is not needed gives way to a milder one."""

        def fails(program: Program, _: Model, op: Op) -> bool:
            return isinstance(op, Poison) and op.fill != "zero" and program.seed >= 0

        judge = judge_of(fails)
        program = program_of(Poison(fill="nan"))

        smallest = minimise_program(judge, program, judge(program)).program

        assert smallest.ops == (Poison(fill="garbage"),)

    def test_data_that_show_more_leave_out_operations(self) -> None:
        """Where other data fail in fewer operations, these are taken."""

        def fails(program: Program, model: Model, _: Op) -> bool:
            tokens = sum(state.length for state in model.sequences.values())
            is_zero = program.data.get("q", Recipe(kind="normal")).kind == "zeros"
            return tokens >= (2 if is_zero else 4) and len(model.sequences) > (not is_zero)

        judge = judge_of(fails)
        program = program_of(A, B, append(("s0", 2)), append(("s1", 2)))

        smallest = minimise_program(judge, program, judge(program)).program

        assert smallest.ops == (A, append(("s0", 2)))


class TestBudget:
    """What a search may cost."""

    def test_spent_budget_is_told(self) -> None:
        """The best program so far is returned, and not called complete."""

        def fails(_: Program, model: Model, __: Op) -> bool:
            return any(state.length >= 5 for state in model.sequences.values())

        judge = judge_of(fails)
        program, outcome = found(judge)

        smallest = minimise_program(judge, program, outcome, runs_max=3)

        assert smallest.runs == 3
        assert not smallest.complete
        assert judge(smallest.program).verdict is Verdict.DRIFTS

    def test_no_seconds_judge_nothing(self) -> None:
        """A deadline that has passed leaves the finding as it is."""

        judge = judge_of(lambda *_: True)
        program = program_of(A, B)

        smallest = minimise_program(judge, program, judge(program), seconds_max=-1.0)

        assert (smallest.runs, smallest.program, smallest.complete) == (0, program, False)

    def test_no_program_is_judged_twice(self) -> None:
        """Moves that lead to the same program cost one run."""

        seen: list[Program] = []

        def judge(program: Program) -> ProgramOutcome:
            assert program not in seen
            seen.append(program)
            return judge_of(lambda _, model, __: bool(model.names))(program)

        program = random_program(1)
        outcome = judge_of(lambda _, model, __: bool(model.names))(program)

        smallest = minimise_program(judge, program, outcome)

        assert smallest.runs == len(seen)

    def test_smallest_is_confirmed(self) -> None:
        """What was judged quickly on the way is judged thoroughly at the end."""

        judge = judge_of(lambda *_: True)
        program = program_of(A, B)

        def confirm(one: Program) -> ProgramOutcome:
            return attrs.evolve(judge(one), repeats=9)

        smallest = minimise_program(judge, program, judge(program), confirm=confirm)

        assert smallest.outcome.repeats == 9


class TestTidied:
    """What shrinking leaves of a program."""

    def test_numbers_are_cut_to_the_sequences(self) -> None:
        """A fork and an eviction beyond what there is take what there is."""

        program = program_of(
            A,
            append(("s0", 2)),
            Fork(sequence="s1", parent="s0", at=9),
            Evict(sequence="s1", keep=9),
            Free(sequence="s7"),
        )

        ops = tidied(program).ops

        assert ops[2:] == (
            Fork(sequence="s1", parent="s0", at=2),
            Evict(sequence="s1", keep=2),
        )
        assert legal_ops(tidied(program)) == ops

    def test_fewer_operations_cost_less(self) -> None:
        """One operation outweighs all sizes."""

        small = program_of(A, Defragment(), block_size=1, block_count=1, width=1)
        large = program_of(A, block_size=64, block_count=64, width=64)

        assert cost_of(large) < cost_of(small)


def test_a_hang_is_cut_where_it_hung_and_is_one_however_long_it_was_waited_for() -> None:
    """What comes after was never run; smaller programs hang for other times, and are the same."""
    seconds = iter(range(1000))

    def judge(program: Program) -> ProgramOutcome:
        model = Model(program.shape, vocabulary=program.vocabulary)
        for step, op in enumerate(program.ops):
            if model.apply(op) and isinstance(op, Fork):
                cause = ProgramCause(verdict=Verdict.CRASHES)
                told = f"The cache hung for {next(seconds)} s."
                return ProgramOutcome(
                    verdict=Verdict.CRASHES, cause=cause, step=step, message=told, is_hung=True
                )
        return ProgramOutcome(verdict=Verdict.HOLDS)

    program, outcome = found(judge)
    assert outcome.step is not None
    spent = minimise_program(judge, program, outcome, runs_max=0)
    whole = minimise_program(judge, program, outcome)

    assert spent.program.ops == program.ops[: outcome.step + 1]
    assert [type(op) for op in whole.program.ops] == [Allocate, Fork]

"""The machine that writes programs for caches: legal, repeatable, varied, one raise site."""

from collections import Counter

import attrs
import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.unit.cache_samples import DRIFT, violated

from biprop.case import Dtype
from biprop.data.recipe import KINDS_CONDITIONED
from biprop.generation import Lane, RandomDraw
from biprop.judgment import Verdict
from biprop.kernels import attention
from biprop.kvcache.converting import program_from_data, program_to_data
from biprop.kvcache.model import Model, legal_ops
from biprop.kvcache.records import COVERAGE, Append, Fork, Op, Program, ProgramCause, ProgramOutcome
from biprop.kvcache.session import Session
from biprop.registry import find_cache
from biprop.strategies.cache_machine import (
    ProgramViolationError,
    machine_class,
    program_violation_class,
)
from biprop.strategies.profiles import search_settings
from biprop.strategies.program_heads import PROGRAM_LIMITS, draw_head, storages_of
from biprop.strategies.program_ops import KINDS_OF_OPS, SEEKING, draw_ops
from biprop.strategies.smoke import smoke_programs

# Below the number of examples after which Hypothesis alters what it has.
ROUND = 9


@attrs.define(kw_only=True, eq=False)
class Kept:
    """A session that keeps the program, and fails after some operations."""

    program: Program
    programs: list[Program]
    fails_after: int | None = None
    ops: tuple[Op, ...] = ()

    def apply(self, op: Op) -> ProgramOutcome | None:
        """Take an operation."""
        self.ops = (*self.ops, op)
        return violated() if len(self.ops) == self.fails_after else None

    def finish(self) -> ProgramOutcome | None:
        """Keep the program."""
        self.programs.append(attrs.evolve(self.program, ops=self.ops))
        return None


def written(
    count: int, *, lane: Lane = "cpu", salt: int = 0, wanted: tuple[str, ...] = ()
) -> list[Program]:
    """Return the programs that the machine writes, in rounds as a search has them."""
    limits = PROGRAM_LIMITS[lane]
    programs: list[Program] = []
    for number in range(-(-count // ROUND)):
        machine = machine_class(
            layout="NHD",
            backend="torch",
            dtype="float32",
            open_session=lambda program: Kept(program=program, programs=programs),
            limits=limits,
            salt=salt + number,
            wanted=wanted,
        )
        chosen = settings(search_settings(ROUND), stateful_step_count=limits.steps + 1)
        run_state_machine_as_test(seed(salt + number)(machine), settings=chosen)
    return programs


def shares(programs: list[Program]) -> dict[str, float]:
    """Return which share of programs reached each situation."""
    reached: Counter[str] = Counter()
    for program in programs:
        model = Model(program.shape, vocabulary=program.vocabulary)
        for op in program.ops:
            model.apply(op)
        reached.update(model.coverage)
    return {word: reached[word] / len(programs) for word in COVERAGE}


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    """Return enough programs to count what is among them."""
    return written(63)


def test_programs_are_legal_and_can_be_read_back(programs: list[Program]) -> None:
    """Every operation is legal where it stands, and a fixture of the program is accepted."""

    for program in programs:
        assert legal_ops(program) == program.ops
        assert program_from_data(program_to_data(program)) == program


def test_programs_are_all_different(programs: list[Program]) -> None:
    """No example of Hypothesis is spent on a program that was written before."""

    assert len(programs) > 55
    assert len(set(map(repr, programs))) == len(programs)


def test_programs_are_as_long_as_the_lane_says(programs: list[Program]) -> None:
    """No program has more operations than that, and most have as many."""
    steps = PROGRAM_LIMITS["cpu"].steps
    lengths = Counter(len(program.ops) for program in programs)

    assert max(lengths) == steps
    assert lengths[steps] > len(programs) // 2


@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
def test_every_situation_is_reached(lane: Lane, programs: list[Program]) -> None:
    """Each situation in a tenth of the programs at least, without being steered to."""
    found = shares(programs if lane == "cpu" else written(63, lane="interpreter"))

    assert min(found.values()) >= 0.1, found


def test_steering_reaches_what_lacks() -> None:
    """Programs that are steered to a situation reach it more often than not."""
    word = "decode after defragment"
    steered = shares(written(27, lane="interpreter", wanted=(word,)))

    assert steered[word] > 0.5
    assert steered[word] > shares(written(27, lane="interpreter"))[word]


def test_every_kind_of_operation_is_among_them(programs: list[Program]) -> None:
    """All eleven, and of appends also none and one token, of forks also exactly one block."""
    ops = [(op, program.shape) for program in programs for op in program.ops]
    counts = {part.count for op, _ in ops if isinstance(op, Append) for part in op.parts}
    cuts = {op.at / shape.block_size for op, shape in ops if isinstance(op, Fork)}

    assert len({type(op) for op, _ in ops}) == 11
    assert {0, 1} < counts
    assert {0, 1} < cuts
    assert any(cut != int(cut) for cut in cuts)


def test_heads_vary(programs: list[Program]) -> None:
    """Sizes, storage, vocabularies and data on which accuracy is judged are all drawn."""
    kinds = [{recipe.kind for recipe in program.data.values()} for program in programs]

    assert {program.shape.storage for program in programs} == {"float32", "bfloat16", "float16"}
    assert len({program.shape.block_size for program in programs}) >= 4
    assert min(program.shape.block_count for program in programs) <= 4
    assert any(program.vocabulary for program in programs)
    assert any(kind <= set(KINDS_CONDITIONED) for kind in kinds)
    assert any(not kind <= set(KINDS_CONDITIONED) for kind in kinds)


def test_same_salt_writes_the_same_programs() -> None:
    """A search repeats itself, and another seed writes others."""

    assert written(ROUND, salt=3) == written(ROUND, salt=3)
    assert not set(map(repr, written(ROUND, salt=3))) & set(map(repr, written(ROUND, salt=4)))


@pytest.mark.parametrize("kind", KINDS_OF_OPS)
def test_first_operation_is_legal_whatever_is_held(kind: str) -> None:
    """In an empty cache and in a full one, every kind gives something that can be done."""
    limits = PROGRAM_LIMITS["cpu"]
    (wanted,) = (known for known in KINDS_OF_OPS if known == kind)
    for number in range(12):
        draw = RandomDraw(number)
        head = draw_head(draw, layout="HND", dtype="bfloat16", limits=limits)
        model = Model(head.shape, vocabulary=head.vocabulary)
        for _ in range(40):
            ops = draw_ops(wanted, draw, model, limits)
            assert ops
            assert model.is_legal(ops[0])
            for op in ops:
                model.apply(op)


def test_every_situation_is_sought() -> None:
    """There is a step to each situation that coverage counts."""

    assert set(SEEKING) == set(COVERAGE)


@pytest.mark.parametrize(
    ("dtype", "storages"),
    [
        ("float32", {"float32", "bfloat16", "float16"}),
        ("bfloat16", {"bfloat16"}),
        ("float16", {"float16"}),
    ],
)
def test_storage_is_no_wider(dtype: Dtype, storages: set[Dtype]) -> None:
    """What is stored is what comes, or narrower."""

    assert set(storages_of(dtype)) == storages


def test_violation_is_raised_by_its_class() -> None:
    """A violation ends the run with the class of its cause, and nothing looks flaky."""
    machine = machine_class(
        layout="NHD",
        backend="torch",
        dtype="float32",
        open_session=lambda program: Kept(program=program, programs=[], fails_after=4),
    )

    with pytest.raises(ProgramViolationError) as raised:
        run_state_machine_as_test(
            machine, settings=settings(search_settings(5), stateful_step_count=20)
        )

    assert type(raised.value) is program_violation_class(DRIFT)
    assert raised.value.cause == DRIFT


def test_machine_runs_a_cache_step_by_step() -> None:
    """A session that checks after each operation is driven as one that waits for the end is."""
    cache = find_cache("paged")
    finished: list[ProgramOutcome] = []

    class Live(Session):
        def finish(self) -> ProgramOutcome:
            finished.append(super().finish())
            return finished[-1]

    def opened(program: Program) -> Live:
        return Live(
            operator=cache,
            implementation=cache.implementations[0],
            attention=attention.OPERATOR,
            program=attrs.evolve(program, vocabulary=None, data={}),
        )

    limits = attrs.evolve(PROGRAM_LIMITS["interpreter"], steps=8)
    machine = machine_class(
        layout="HND", backend="torch", dtype="bfloat16", open_session=opened, limits=limits
    )
    chosen = settings(search_settings(4), stateful_step_count=limits.steps + 1)
    run_state_machine_as_test(seed(1)(machine), settings=chosen)

    assert len(finished) == 4
    assert {outcome.verdict for outcome in finished} == {Verdict.HOLDS}


def test_class_names_say_what_they_run() -> None:
    """Layout, backend and dtype are in the name of a machine."""
    machine = machine_class(
        layout="HND",
        backend="triton",
        dtype="bfloat16",
        open_session=lambda program: Kept(program=program, programs=[]),
        cache_name="paged",
    )

    assert machine.__name__ == "PagedHNDTritonBfloat16Machine"


def test_equal_causes_share_a_class() -> None:
    """One class a cause, so that Hypothesis tells causes apart and finds equal ones again."""
    crash = ProgramCause(verdict=Verdict.CRASHES)

    assert program_violation_class(attrs.evolve(DRIFT)) is program_violation_class(DRIFT)
    assert program_violation_class(crash) is not program_violation_class(DRIFT)
    assert program_violation_class(crash).__name__ == "CrashesLaunchError"


@pytest.mark.parametrize("lane", ["cpu", "interpreter", "gpu"])
def test_fixed_programs_are_legal(lane: Lane) -> None:
    """Every operation of the fixed programs runs, and the long one passes two tiles of keys."""
    fixed = smoke_programs(layout="NHD", dtype="bfloat16", lane=lane)

    real = ["real-16", "real-64", "real-256"] if lane == "gpu" else []
    assert list(fixed) == ["short", "long", "ragged", "padded", *real]
    for program in fixed.values():
        assert legal_ops(program) == program.ops
        assert program_from_data(program_to_data(program)) == program
    model = Model(fixed["long"].shape)
    for op in fixed["long"].ops:
        model.apply(op)
    assert model.sequences["s0"].length > 64

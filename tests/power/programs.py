"""Programs for the planted caches, shared by the tests of power: all short ones, and random ones.

No test stands here. What is drawn is drawn by seed (`RandomDraw`), so that it is the same each
time.
"""

import copy
import os
from collections.abc import Iterator
from itertools import permutations, product

import attrs
import torch
from tests.power.witnesses import WITNESSES

from biprop.judgment import Verdict
from biprop.kernels import OPERATORS, attention
from biprop.kernels.planted import PlantedCache
from biprop.kvcache.interpreter import judge_program
from biprop.kvcache.model import Model
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
    ProgramOutcome,
    Read,
    Rescore,
)
from biprop.kvcache.session import Session
from biprop.kvcache.shape import Fill
from biprop.operators import Registry
from biprop.reports.program_records import CacheReport
from biprop.strategies.programs import search_programs
from biprop.supervision.programs_in_process import InProcessPrograms

__all__ = ["Reach", "Recording", "judged", "searched", "shorter_failure"]

_REGISTRY = Registry(operators=OPERATORS)
_REPEATS = 5

os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)


@attrs.frozen(kw_only=True)
class Reach:
    """How far the exhaustive search goes.

    Attributes:
        length: Operations of the longest programs.
        block_sizes: Slots of a page; all else of a shape is that of the witness.
        counts: Tokens that an append gives a sequence, beside those of the witness.
        sequences: That live at a time.
        fill: Of poison.
    """

    length: int
    block_sizes: tuple[int, ...] = (1, 2, 4)
    counts: tuple[int, ...] = (0, 1, 2, 3)
    sequences: int = 3
    fill: Fill = "nan"


def opened(planted: PlantedCache, program: Program, *, healthy: bool = False) -> Session:
    """Begin a session of a planted cache, or of the healthy one in its place."""
    operator = planted.operator(healthy=healthy)
    return Session(
        operator=operator,
        implementation=operator.implementations[0],
        attention=attention.OPERATOR,
        program=program,
    )


def shorter_failure(planted: PlantedCache, reach: Reach) -> Program | None:
    """Try all programs up to a length; return one that fails, None where none does."""
    witness = WITNESSES[planted.name]
    appends = [op for op in witness.ops if isinstance(op, Append)]
    counts = {part.count for op in appends for part in op.parts}
    reach = attrs.evolve(reach, counts=tuple(sorted({*reach.counts, *counts})))
    for block_size in reach.block_sizes:
        shape = attrs.evolve(witness.shape, block_size=block_size)
        program = Program(shape=shape)
        for ops, outcome in failing_ops(planted, program, reach):
            if outcome.verdict.is_violation:
                return attrs.evolve(program, ops=ops)
    return None


def failing_ops(
    planted: PlantedCache, program: Program, reach: Reach
) -> Iterator[tuple[tuple[Op, ...], ProgramOutcome]]:
    """Yield all operations that fail, of those that reach a state not seen before.

    Two programs of one length that leave account and cache alike go on alike, so one of them does.
    """
    level: list[tuple[tuple[Op, ...], Session]] = [((), opened(planted, program))]
    for depth in range(reach.length):
        is_last = depth == reach.length - 1
        seen: set[object] = set()
        following = []
        for ops, session in level:
            for op in moves(session.model, reach, is_last=is_last):
                branch = _copied(session)
                outcome = branch.apply(op)
                if outcome is not None:
                    yield (*ops, op), outcome
                    continue
                key = None if is_last else _state(branch)
                if not is_last and key not in seen:
                    seen.add(key)
                    following.append(((*ops, op), branch))
        level = following


def moves(model: Model, reach: Reach, *, is_last: bool) -> Iterator[Op]:
    """Yield every operation that may come next, new names in their order."""
    names = [*model.sequences]
    if len(names) < reach.sequences:
        begun = sorted({*model.names, model.new_name()} - {*names})
        yield from (Allocate(sequence=name) for name in begun)
        for name, parent in product(begun, names):
            state = model.sequences[parent]
            yield from (Fork(sequence=name, parent=parent, at=at) for at in range(state.length + 1))
    for name in names:
        yield from (Append(parts=(Part(sequence=name, count=n),)) for n in reach.counts)
        stored = model.sequences[name].stored
        yield from (Evict(sequence=name, keep=keep) for keep in range(stored))
        yield Free(sequence=name)
        if is_last:
            # They change nothing, and only show what is wrong already.
            yield Read(sequence=name)
            yield Rescore(sequence=name)
    for size in range(1, len(names) + 1):
        yield from (Decode(sequences=order) for order in permutations(names, size))
    for first, second in permutations(names, 2):
        for count, other in product(reach.counts, reach.counts):
            parts = Part(sequence=first, count=count), Part(sequence=second, count=other)
            yield Append(parts=parts)
    yield Defragment()
    yield Poison(fill=reach.fill)


def _copied(session: Session) -> Session:
    """Copy a session; what never changes is shared."""
    kept = (
        session._program,
        session._implementation,
        session._kernel,
        session._prefill,
        session._values,
        session._watch,
        session._device,
    )
    return copy.deepcopy(session, {id(item): item for item in kept})


def _state(session: Session) -> object:
    """Return what decides how a session goes on."""
    cache = session._made
    if cache is None:
        return None
    own = {
        name: value
        for name, value in vars(cache).items()
        if name not in {"shape", "device", "functions", "dtype", "pages"}
    }
    pages = vars(cache)["pages"]
    memory = tuple(
        side.contiguous().view(torch.uint8).numpy().tobytes() for side in (pages.k, pages.v)
    )
    return repr(session.model.sequences), tuple(session.model.fills), repr(own), hash(memory)


class Recording(InProcessPrograms):
    """A judge of a planted cache that notes the programs of a search, up to the first that fails.

    Attributes:
        programs: What was judged, in order.
        failure: The outcome of the last of them, if it failed.
    """

    def __init__(self, planted: PlantedCache, *, healthy: bool, shrinks: bool) -> None:
        """Judge nothing yet.

        Args:
            planted: The cache.
            healthy: Judge the healthy one in its place.
            shrinks: Whether to go on after a failure; else what is asked then is not run, since a
                search minimises what it finds.
        """
        operator = planted.operator(healthy=healthy)
        super().__init__(
            operator,
            operator.implementations[0],
            attention.OPERATOR,
            # No more than are needed: what is the same in every run is so in two of them.
            repeats=_REPEATS if planted.verdict == Verdict.NONDETERMINISTIC else 2,
            registry=_REGISTRY,
        )
        self.programs: list[Program] = []
        self.failure: ProgramOutcome | None = None
        self._shrinks = shrinks

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return the outcome of one program."""
        if self.failure is not None and not self._shrinks:
            return ProgramOutcome(verdict=Verdict.HOLDS)
        outcome = super().judge(program, fresh=fresh, quick=quick)
        if self.failure is None:
            self.programs.append(program)
            self.failure = outcome if outcome.verdict.is_violation else None
        return outcome


def searched(
    planted: PlantedCache, *, seed: int, count: int, shrinks: bool, healthy: bool = False
) -> tuple[Recording, CacheReport]:
    """Search the programs of a planted cache, or of the healthy one, up to the first finding.

    Args:
        planted: The cache.
        seed: Another one writes other programs.
        count: Programs at most.
        shrinks: Whether the finding is minimised.
        healthy: Search the healthy cache.
    """
    judge = Recording(planted, healthy=healthy, shrinks=shrinks)
    report = search_programs(
        judge, profile="nightly", max_programs=count, findings_max=1, seed=seed, has_smoke=False
    )
    return judge, report


def judged(planted: PlantedCache, program: Program, *, healthy: bool = False) -> ProgramOutcome:
    """Judge one program."""
    operator = planted.operator(healthy=healthy)
    return judge_program(
        operator,
        operator.implementations[0],
        attention.OPERATOR,
        program,
        repeats=_REPEATS,
        registry=_REGISTRY,
    )

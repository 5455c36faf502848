"""Programs and fixtures of caches made by hand, and a judge without a cache."""

from collections.abc import Callable

import attrs

from biprop.data.recipe import Recipe
from biprop.fixtures.programs import ProgramFixture, ProgramProof, make_program_fixture
from biprop.judgment import LaunchFact, Verdict
from biprop.kvcache.model import Model
from biprop.kvcache.records import (
    Allocate,
    Append,
    CacheReference,
    Decode,
    Fork,
    Part,
    Program,
    ProgramCause,
    ProgramDifference,
    ProgramOutcome,
)
from biprop.kvcache.shape import CacheShape
from biprop.provenance import Provenance

__all__ = [
    "DRIFT",
    "PAGED",
    "PROGRAM",
    "PROVENANCE",
    "TARGET",
    "FakePrograms",
    "held",
    "sample_program",
    "violated",
]

PROVENANCE = Provenance(
    device="cpu",
    device_name="A processor",
    arch_key="cpu-x86_64-avx512",
    biprop="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    platform="Linux x86_64",
)
PAGED = CacheReference(cache="paged", target="paged", backend="torch")
TARGET = CacheReference(cache="mine.py:made", target="mine.py:made")
PROGRAM = Program(
    shape=CacheShape(block_count=6, query_heads=2, heads=1, width=2),
    seed=7,
    ops=(
        Allocate(sequence="s0"),
        Append(parts=(Part(sequence="s0", count=5),)),
        Fork(sequence="s1", parent="s0", at=4),
        Decode(sequences=("s1", "s0")),
    ),
    data={"q": Recipe(kind="ones"), "k": Recipe(kind="normal")},
)
DRIFT = ProgramCause(verdict=Verdict.DRIFTS, check="decode", output="out")


def held(program: Program, *, power: float | None = 0.5) -> ProgramOutcome:
    """Return the outcome of a program that holds; what it reached is told by the account."""
    model = Model(program.shape, vocabulary=program.vocabulary)
    count = sum(model.apply(op) for op in program.ops)
    return ProgramOutcome(
        verdict=Verdict.HOLDS,
        coverage=model.coverage,
        ops_run=count,
        comparisons=count,
        power=power,
        requested_backend="torch",
        actual_backend="torch",
    )


def violated(cause: ProgramCause = DRIFT, *, message: str = "") -> ProgramOutcome:
    """Return the outcome of a violation."""
    difference = ProgramDifference(
        sequence="s0",
        token=5,
        coordinate=(1, 0),
        expected_bits="0x3f800000",
        got_bits="0x3f800001",
        expected_value="1.0",
        got_value="1.0000001192092896",
        elements=1,
        elements_compared=4,
        max_abs_error=2.0**-23,
        dtype="float32",
    )
    crashes = cause.verdict is Verdict.CRASHES
    return ProgramOutcome(
        verdict=cause.verdict,
        cause=cause,
        step=3,
        difference=None if crashes else difference,
        message=message,
        coverage=(),
        ops_run=4,
        comparisons=9,
        repeats=5,
        requested_backend="torch",
        actual_backend="torch",
        facts=(LaunchFact(role="decode", kernel="paged_attention_tile", grid=(2, 1)),),
    )


def sample_program(
    *,
    reference: CacheReference = TARGET,
    program: Program = PROGRAM,
    cause: ProgramCause = DRIFT,
    message: str = "",
    rate: float | None = None,
) -> ProgramFixture:
    """Return a fixture, with changes."""
    return make_program_fixture(
        reference=reference,
        program=program,
        outcome=attrs.evolve(violated(cause, message=message), rate=rate),
        proof=ProgramProof(complete=True, runs=120),
        provenance=PROVENANCE,
    )


@attrs.define(kw_only=True, eq=False)
class FakePrograms:
    """A judge without a cache; see `biprop.supervision.programs.ProgramJudge`.

    Attributes:
        judged: What it says of a program.
        seen: Programs that it was given, in order.
    """

    judged: Callable[[Program], ProgramOutcome] = held
    reference: CacheReference = PAGED
    provenance: Provenance = PROVENANCE
    seen: list[Program] = attrs.field(factory=list)
    is_closed: bool = False

    def judge(
        self, program: Program, *, fresh: bool = False, quick: bool = False
    ) -> ProgramOutcome:
        """Return what was asked for."""
        del fresh, quick
        self.seen.append(program)
        return self.judged(program)

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True

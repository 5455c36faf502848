"""Judge programs: run them against a cache, and conclude what the runs amount to.

One run is a `Session` (`biprop.kvcache.session`), which checks every promise after each operation;
here a violation is run again, so that a cache that differs from run to run is called that, and
without what is not finite, so that the two causes are told apart.
"""

from collections import Counter
from collections.abc import Callable
from time import perf_counter

import attrs

from biprop.judgment import Verdict
from biprop.kvcache.poisons import FILLS_FINITE, has_nonfinite_poison, with_finite_poison
from biprop.kvcache.protocol import CacheImplementation, CacheOperator
from biprop.kvcache.records import Program, ProgramCause, ProgramOutcome
from biprop.kvcache.session import Session
from biprop.operators import Operator, Registry

__all__ = ["Session", "judge_program"]

# Told the number of each operation before it runs.
OnStep = Callable[[int], None]


def judge_program(
    operator: CacheOperator,
    implementation: CacheImplementation,
    attention: Operator | None,
    program: Program,
    *,
    device: str = "cpu",
    repeats: int = 5,
    registry: Registry | None = None,
    measure: bool = True,
    on_step: OnStep | None = None,
) -> ProgramOutcome:
    """Return what a program shows of a cache.

    Args:
        operator: The cache.
        implementation: The backend of it that is judged.
        attention: The operator whose packed form makes full prefills, in the same backend where it
            has that; None: a fresh cache of the same kind does, for all tokens at once.
        program: What is run; operations that are not legal are passed over.
        device: Where the cache lives.
        repeats: Runs in all that a violation rests on, at least 1.
        registry: Operators of the small model, for programs with a vocabulary.
        measure: Whether the power of what holds is measured.
        on_step: Told the number of each operation before it runs, in each run.

    Raises:
        CaseError: A recipe cannot be used.
        TargetError: The attention operator raised, or an operator is not registered.
        UsageError: The program has a vocabulary, and there is no registry.
    """
    started = perf_counter()

    def run(one: Program) -> ProgramOutcome:
        session = Session(
            operator=operator,
            implementation=implementation,
            attention=attention,
            program=one,
            device=device,
            registry=registry,
            measure=measure,
        )
        for number, op in enumerate(one.ops):
            if on_step is not None:
                on_step(number)
            found = session.apply(op)
            if found is not None:
                return found
        return session.finish()

    outcome = run(program)
    if outcome.verdict.is_violation and outcome.verdict is not Verdict.FALLBACK:
        outcome = _confirmed(outcome, lambda: run(program), repeats=repeats)
        if outcome.verdict is not Verdict.NONDETERMINISTIC and has_nonfinite_poison(program):
            outcome = _sharpened(outcome, program, run)
    return attrs.evolve(outcome, seconds=perf_counter() - started)


def _confirmed(
    first: ProgramOutcome, again: Callable[[], ProgramOutcome], *, repeats: int
) -> ProgramOutcome:
    """Run a violation again until `repeats` runs are made, and say whether all gave the same."""
    found = [first, *(again() for _ in range(repeats - 1))]
    counts = Counter(_result(outcome) for outcome in found)
    if len(counts) == 1:
        return attrs.evolve(first, repeats=repeats)
    most = max(counts.values())
    assert first.cause is not None, "a violation has a cause"
    return attrs.evolve(
        first,
        verdict=Verdict.NONDETERMINISTIC,
        cause=ProgramCause(
            verdict=Verdict.NONDETERMINISTIC, check="repeat", output=first.cause.output
        ),
        message="Runs of the same program differ.",
        rate=(repeats - most) / repeats,
        repeats=repeats,
    )


def _result(outcome: ProgramOutcome) -> tuple[object, ...]:
    """Return what must not differ between runs; addresses in messages may."""
    return outcome.verdict, outcome.cause, outcome.step, outcome.difference


def _sharpened(
    outcome: ProgramOutcome, program: Program, run: Callable[[Program], ProgramOutcome]
) -> ProgramOutcome:
    """Return the outcome, its cause non-finite if it holds with every finite poison."""
    for fill in FILLS_FINITE:
        if run(with_finite_poison(program, fill)).verdict is outcome.verdict:
            return outcome
    assert outcome.cause is not None, "a violation has a cause"
    return attrs.evolve(outcome, cause=attrs.evolve(outcome.cause, finite=False))

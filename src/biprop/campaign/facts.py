"""What counts as behaviour of a cell: cheap facts of a judged case, each a short text.

Kernels and configurations that were launched, on grids by powers of two; sizes by powers of two,
and whether they are multiples of 16; what became of each transform class; the verdict. One fact is
one text, never a combination: there are few enough of them for a cell to run out of new ones, which
is what `biprop.campaign.scheduler` needs. Sums of floats are not looked at here.
"""

from collections.abc import Iterator

from biprop.case import Case
from biprop.judgment import LaunchFact, Outcome
from biprop.kvcache.records import Program, ProgramOutcome
from biprop.strategies.tally import sizes_in

__all__ = ["behaviours_of", "program_behaviours_of"]

# Tiles of tensor cores and of most kernels are multiples of it.
_TILE = 16


def behaviours_of(case: Case, outcome: Outcome) -> Iterator[str]:
    """Yield the behaviours of a judged case."""
    yield f"verdict {outcome.verdict}"
    if outcome.cause is not None:
        yield f"cause {outcome.cause.key}"
    yield from _launches(outcome.facts)
    for name, size in sizes_in(case).items():
        yield f"size {name} {_bucket(size)} {'whole' if size % _TILE == 0 else 'ragged'}"
    for name, evidence in outcome.classes.items():
        yield f"{name} {evidence}"


def program_behaviours_of(program: Program, outcome: ProgramOutcome) -> Iterator[str]:
    """Yield the behaviours of a judged program."""
    yield f"verdict {outcome.verdict}"
    if outcome.cause is not None:
        yield f"cause {outcome.cause.key}"
    yield from _launches(outcome.facts)
    shape = program.shape
    for name in ("block_size", "block_count", "heads", "query_heads", "width"):
        yield f"size {name} {_bucket(int(getattr(shape, name)))}"
    yield f"stored {shape.storage}"
    yield f"size ops {_bucket(outcome.ops_run)}"
    yield from outcome.coverage
    for op in {type(op).__name__ for op in program.ops}:
        yield f"op {op}"


def _launches(facts: tuple[LaunchFact, ...]) -> Iterator[str]:
    for fact in facts:
        grid = "x".join(_bucket(size) for size in fact.grid)
        yield f"launch {fact.kernel} {fact.configuration} on {grid or 'an unknown grid'}"


def _bucket(size: int) -> str:
    """Return the power of two below a size, as `2^5`."""
    return f"2^{size.bit_length() - 1}" if size > 0 else "0"

"""What is asked of a run once, at its end: accuracy, and the power of its data."""

from functools import cache

from torch import Tensor

from biprop.case import Case
from biprop.contract import Tolerance, judgment_of, load_contract
from biprop.generation.conditioned import unconditioned
from biprop.kvcache.checks import Comparison, Difference, first_beyond
from biprop.kvcache.prefills import order_power, reference
from biprop.kvcache.records import Program
from biprop.kvcache.values import Rows, recipe_of
from biprop.operators import Kernel
from biprop.sequence import LogicalSequence

__all__ = ["first_inaccurate", "is_conditioned", "measured_power"]

# Queries of a sequence that are held against the reference, the last ones; and the contexts beside
# which the reference stays affordable.
_QUERIES_MAX = 64
_CONTEXTS_MAX = 1 << 12


def first_inaccurate(
    kernel: Kernel, rows: Rows, program: Program, *, sequence: str, out: Tensor, lse: Tensor
) -> Difference | None:
    """Return where results leave the contract's tolerance around the float32 reference.

    None too where the data are not such that a tolerance can be judged.

    Args:
        kernel: Of the attention operator.
        rows: All tokens of the sequence, at least one.
        program: Says what the data are.
        sequence: Name of the sequence.
        out: `[L, HQ, D]`, what the cache gave.
        lse: `[L, HQ]`, likewise.
    """
    tolerance = _tolerance(program.shape.dtype)
    if kernel.reference is None or tolerance is None or len(rows) > _CONTEXTS_MAX:
        return None
    if not is_conditioned(kernel, program):
        return None
    start = max(0, len(rows) - _QUERIES_MAX)
    sides = zip(
        ("out", "lse"), reference(kernel, rows, program, start=start), (out, lse), strict=True
    )
    comparisons = [
        Comparison(
            check="accuracy",
            output=output,
            sequence=sequence,
            start=start,
            expected=expected,
            got=got[start:],
        )
        for output, expected, got in sides
    ]
    return first_beyond(comparisons, atol=tolerance.atol, rtol=tolerance.rtol)


def is_conditioned(kernel: Kernel, program: Program) -> bool:
    """Whether the data of a program are such that a healthy cache meets a relative tolerance."""
    if program.vocabulary is not None:
        return False
    shape = program.shape
    case = Case(
        dtype=shape.dtype,
        dims={"HQ": shape.query_heads, "HK": shape.heads, "D": shape.width},
        sequences=(LogicalSequence(id=0, length=1),),
        data={name: recipe_of(program, name) for name in ("q", "k", "v")},
    )
    return not unconditioned(kernel.signature, case)


def measured_power(kernel: Kernel, rows: Rows, program: Program) -> float | None:
    """Return the order power of some tokens; None where it cannot be measured."""
    if kernel.reference is None or len(rows) > _CONTEXTS_MAX:
        return None
    return order_power(kernel, rows, program)


@cache
def _tolerance(dtype: str) -> Tolerance | None:
    return load_contract().tolerance(
        judgment=judgment_of("A", "forward"), op_class="attention", dtype=dtype
    )

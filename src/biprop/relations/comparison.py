"""Two runs of a case against each other: which outputs differ, and where first.

Bits are compared by `biprop.bits`; what a difference means is decided by
`biprop.relations.invariance`.
"""

from torch import Tensor

from biprop.bits import Comparison, compare, hex_of, same_bits
from biprop.execution import Run
from biprop.judgment import BitDifference, Mismatch

__all__ = ["differing_outputs", "element_count", "mismatches"]


def element_count(run: Run) -> int:
    """Return how many elements a comparison with `run` compares."""
    return sum(values.numel() for values in run.outputs.values())


def differing_outputs(first: Run, second: Run) -> tuple[str, ...]:
    """Return which outputs of two runs of the same configuration differ, in signature order."""
    return tuple(
        name
        for name, values in first.outputs.items()
        if not bool(same_bits(values, second.outputs[name]).all())
    )


def mismatches(first: Run, second: Run, *, repeated: bool = False) -> tuple[Mismatch, ...]:
    """Compare all outputs of two runs of one case.

    Args:
        first: The canonical run, or the run that was repeated.
        second: The transformed run, or the repeat.
        repeated: The two are of the same configuration.

    Returns:
        One for every output that differs, in signature order. Dead slots of a mutated argument are
        compared with what they held before the second run, unless that is a repeat.
    """
    found = []
    for name, transformed in second.outputs.items():
        expected = None if repeated else second.expected.get(name)
        canonical = first.outputs[name] if expected is None else expected
        comparison = compare(canonical, transformed)
        if not comparison.same:
            found.append(_mismatch(name, canonical, transformed, comparison, runs=(first, second)))
    return tuple(found)


def _mismatch(
    name: str,
    canonical: Tensor,
    transformed: Tensor,
    comparison: Comparison,
    *,
    runs: tuple[Run, Run],
) -> Mismatch:
    by_token = runs[1].index[name] is not None
    return Mismatch(
        output=name,
        dtype=str(canonical.dtype).removeprefix("torch."),
        elements=comparison.elements_differing,
        elements_compared=comparison.elements_compared,
        tokens=comparison.tokens_differing if by_token else 0,
        tokens_compared=comparison.tokens_compared if by_token else 0,
        first=_difference(name, canonical, transformed, comparison, runs=runs),
        max_abs_error=comparison.max_abs_error,
        mean_abs_error=comparison.mean_abs_error,
        max_rel_error=comparison.max_rel_error,
    )


def _difference(
    name: str,
    canonical: Tensor,
    transformed: Tensor,
    comparison: Comparison,
    *,
    runs: tuple[Run, Run],
) -> BitDifference:
    at = comparison.first
    assert at is not None
    index = runs[1].index[name]
    place = None if index is None else at[0]
    return BitDifference(
        sequence_id=-1 if index is None else int(index.sequence_id[at[0]]),
        token=-1 if index is None else int(index.token[at[0]]),
        coordinate=at if index is None else at[1:],
        canonical_row=_slot(runs[0], name, place)[0],
        transformed_row=_slot(runs[1], name, place)[0],
        transformed_launch=_slot(runs[1], name, place)[1],
        canonical_bits=hex_of(canonical[at]),
        transformed_bits=hex_of(transformed[at]),
        canonical_value=repr(canonical[at].item()),
        transformed_value=repr(transformed[at].item()),
    )


def _slot(run: Run, name: str, place: int | None) -> tuple[int, int]:
    """Return flat slot and launch of a row, -1 and 0 where there is none."""
    rows = run.rows.get(name)
    if place is None or rows is None or not len(rows):
        return -1, 0
    slot, launch = rows[place].tolist()
    return int(slot), int(launch)

"""Two runs of a case against each other: which outputs differ, and where first.

Bits are compared by `biprop.bits`, where they lie: a device is waited for once a comparison, and
details are asked for only where something differs. What a difference means is decided by
`biprop.relations.invariance`.
"""

import math

import attrs
from torch import Tensor

from biprop.bits import Comparison, any_differ, compare, hex_of
from biprop.execution import Run
from biprop.judgment import BitDifference, Mismatch

__all__ = [
    "RunDifference",
    "compare_runs",
    "difference_of",
    "differing_outputs",
    "element_count",
    "paired",
    "recorded",
]


@attrs.frozen(kw_only=True)
class RunDifference:
    """What two runs show against each other.

    Attributes:
        mismatches: One for every output that differs, in signature order.
        first_wrote: Why the first run is none, where its kernel wrote into an argument that carries
            no mark and the run left that to be seen here; else empty.
        second_wrote: Likewise of the second run.
    """

    mismatches: tuple[Mismatch, ...] = ()
    first_wrote: str = ""
    second_wrote: str = ""


def element_count(run: Run) -> int:
    """Return how many elements a comparison with `run` compares."""
    return sum(values.numel() for values in run.outputs.values())


def differing_outputs(first: Run, second: Run) -> tuple[str, ...]:
    """Return which outputs of two runs of the same configuration differ, in signature order."""
    pairs = [(values, second.outputs[name]) for name, values in first.outputs.items()]
    differ = any_differ(pairs)
    return tuple(name for name, is_other in zip(first.outputs, differ, strict=True) if is_other)


def compare_runs(first: Run, second: Run, *, repeated: bool = False) -> RunDifference:
    """Compare all outputs of two runs of one case.

    Dead slots of a mutated argument are compared with what they held before the second run, unless
    that is a repeat.

    Args:
        first: The canonical run, or the run that was repeated.
        second: The transformed run, or the repeat.
        repeated: The two are of the same configuration.
    """
    pairs = paired(first, second, repeated=repeated)
    unread = (*first.unread, *second.unread)
    read = any_differ(pairs, flags=[item.flag for item in unread])
    differ, written = read[: len(pairs)], read[len(pairs) :]
    sentences = [
        item.sentence if is_so else "" for item, is_so in zip(unread, written, strict=True)
    ]
    return RunDifference(
        mismatches=tuple(
            _mismatch(name, *pair, compare(*pair), runs=(first, second))
            for name, pair, is_other in zip(second.outputs, pairs, differ, strict=True)
            if is_other
        ),
        first_wrote=next(filter(None, sentences[: len(first.unread)]), ""),
        second_wrote=next(filter(None, sentences[len(first.unread) :]), ""),
    )


def paired(first: Run, second: Run, *, repeated: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Return of each output of the second run what it is compared with; as in `compare_runs`."""
    pairs = []
    for name, transformed in second.outputs.items():
        expected = None if repeated else second.expected.get(name)
        pairs.append((first.outputs[name] if expected is None else expected, transformed))
    return pairs


def _mismatch(
    name: str,
    canonical: Tensor,
    transformed: Tensor,
    comparison: Comparison,
    *,
    runs: tuple[Run, Run],
) -> Mismatch:
    by_token = runs[1].index[name] is not None
    assert comparison.first is not None, "the caller saw a difference"
    return Mismatch(
        output=name,
        dtype=str(canonical.dtype).removeprefix("torch."),
        elements=comparison.elements_differing,
        elements_compared=comparison.elements_compared,
        tokens=comparison.tokens_differing if by_token else 0,
        tokens_compared=comparison.tokens_compared if by_token else 0,
        first=difference_of(name, canonical, transformed, comparison.first, runs=runs),
        max_abs_error=recorded(comparison.max_abs_error),
        mean_abs_error=recorded(comparison.mean_abs_error),
        max_rel_error=recorded(comparison.max_rel_error),
    )


def recorded(error: float) -> float | None:
    """Return an error as a record holds it: JSON has neither NaN nor infinity."""
    return error if math.isfinite(error) else None


def difference_of(
    name: str,
    canonical: Tensor,
    transformed: Tensor,
    at: tuple[int, ...],
    *,
    runs: tuple[Run, Run],
) -> BitDifference:
    """Return the difference of one element.

    Args:
        name: Of the output.
        canonical: Its values in the first run.
        transformed: Its values in the second run.
        at: Index of the element.
        runs: Both of them.
    """
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

"""Comparisons of what a cache gave with what was to be: bit for bit, and within a tolerance.

What is compared with what is decided by `biprop.kvcache.session`; the bits are compared by
`biprop.bits`.
"""

import math
from collections.abc import Mapping, Sequence

import attrs
from torch import Tensor

from biprop.bits import any_differ, compare, compare_within, hex_of
from biprop.errors import OutputError
from biprop.kvcache.records import Check, ProgramDifference

__all__ = [
    "Comparison",
    "Difference",
    "checked",
    "first_beyond",
    "first_difference",
    "taken_back",
]


@attrs.frozen(kw_only=True, eq=False)
class Comparison:
    """Two tensors that must be the same.

    Attributes:
        check: The promise.
        output: `k`, `v`, `out`, `lse`, `logp` or `token`.
        sequence: Name of the sequence.
        start: Number of the token that the first row is.
        expected: `[L, ...]`.
        got: The same shape and dtype.
    """

    check: Check
    output: str
    sequence: str
    start: int
    expected: Tensor
    got: Tensor


@attrs.frozen(kw_only=True)
class Difference:
    """A promise that was broken, and where."""

    check: Check
    output: str
    difference: ProgramDifference


def checked(values: object, *, what: str, like: Tensor) -> Tensor:
    """Return what a cache gave, if it is a tensor of the shape, dtype and device of `like`.

    Raises:
        OutputError: It is not; the sentence says what it is.
    """
    asked = f"{list(like.shape)} of {like.dtype} on {like.device.type}"
    if not isinstance(values, Tensor):
        raise OutputError(
            f"The cache returned {type(values).__name__} for {what}: return a tensor of {asked}."
        )
    is_alike = values.shape == like.shape and values.dtype == like.dtype
    if not is_alike or values.device.type != like.device.type:
        raise OutputError(
            f"The cache returned {list(values.shape)} of {values.dtype} on {values.device.type} "
            f"for {what}: return {asked}."
        )
    return values


def first_difference(comparisons: Sequence[Comparison]) -> Difference | None:
    """Return the first pair whose bits differ; two NaNs are the same, whatever their payload."""
    differ = any_differ([(item.expected, item.got) for item in comparisons])
    for item, is_other in zip(comparisons, differ, strict=True):
        if is_other:
            found = compare(item.expected, item.got)
            assert found.first is not None, "bits differ"
            return _difference(
                item,
                found.first,
                elements=found.elements_differing,
                max_abs_error=found.max_abs_error,
            )
    return None


def first_beyond(
    comparisons: Sequence[Comparison], *, atol: float, rtol: float
) -> Difference | None:
    """Return the first pair of which an element leaves the tolerance around what is expected."""
    agreements, _ = compare_within(
        [(item.got, item.expected) for item in comparisons], atol=atol, rtol=rtol
    )
    for item, found in zip(comparisons, agreements, strict=True):
        if found.first is not None:
            return _difference(
                item,
                found.first,
                elements=found.elements_beyond,
                max_abs_error=found.max_abs_error,
            )
    return None


def _difference(
    item: Comparison, first: tuple[int, ...], *, elements: int, max_abs_error: float
) -> Difference:
    expected, got = item.expected[first], item.got[first]
    # Infinite or NaN where no pair of finite values differs: there is nothing to say.
    is_known = abs(max_abs_error) < float("inf")
    return Difference(
        check=item.check,
        output=item.output,
        difference=ProgramDifference(
            sequence=item.sequence,
            token=item.start + first[0],
            coordinate=first[1:],
            expected_bits=hex_of(expected),
            got_bits=hex_of(got),
            expected_value=repr(expected.item()),
            got_value=repr(got.item()),
            elements=elements,
            elements_compared=item.expected.numel(),
            max_abs_error=max_abs_error if is_known else None,
            dtype=str(item.got.dtype).removeprefix("torch."),
        ),
    )


def taken_back(lent: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Return the first argument that a call wrote to, and overwrite all, as callers reuse memory.

    Whoever kept one of them instead of a copy now holds something else.

    Args:
        lent: Copies that the call was given, by name.
        own: What they were.

    Returns:
        A name; empty where the call wrote to none.
    """
    differ = any_differ([(own[name], values) for name, values in lent.items()])
    for values in lent.values():
        values.fill_(math.nan)
    return next((name for name, is_other in zip(lent, differ, strict=True) if is_other), "")

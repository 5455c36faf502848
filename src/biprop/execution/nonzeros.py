"""List the values of a tensor that are not zero, as points that a recipe can hold.

For shrinking (`biprop.minimize`), which tries which of them matter. What a recipe's values are says
`biprop.data`; nothing is run here.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from biprop.case import Case
from biprop.data.recipe import SEQUENCES, TOKENS, Point
from biprop.execution.values import values_of
from biprop.layout.pool import token_pool
from biprop.layout.records import Neighbours
from biprop.operators import CallValue, Kernel
from biprop.signature import Signature
from biprop.transforms import apply_all, transforms_of

__all__ = ["nonzeros_of"]


def nonzeros_of(
    signature: Signature, backward_signature: Signature | None = None
) -> Callable[[Case, str, int], tuple[Point, ...] | None]:
    """Return a function that lists the values of a case's tensor.

    It takes a case, the name of a tensor and the largest number of points, and returns one point
    for every value that is not zero, of watched sequences and of neighbours; None where there are
    more, or where points could not name their places.

    Args:
        signature: Forward signature.
        backward_signature: Of the registered backward; None where autograd differentiates.
    """
    # Values need a kernel's signatures only.
    kernel = Kernel(
        operator="",
        target="",
        signature=signature,
        function=_never,
        backward_signature=backward_signature,
    )
    items = {item.name: item for item in signature.arguments}
    items |= {f"d{item.name}": item for item in signature.judged_outputs}

    def nonzeros(case: Case, name: str, limit: int) -> tuple[Point, ...] | None:
        dims = [dim.text for dim in items[name].free_dims]
        if len(set(dims)) < len(dims):
            return None
        pool = token_pool(case, apply_all(transforms_of(case)))
        # Loudness is applied to whatever a recipe says, so it is no part of the values listed.
        values = values_of(kernel, case, pool, Neighbours(), torch.device("cpu"))
        if name in values.parameters:
            return _points(values.parameters[name], dims, (), limit)
        rows, found = (
            torch.stack([pool.tokens.sequence_id, pool.tokens.token], 1),
            values.tokens[name],
        )
        if items[name].token_axis == "B":
            # One value a sequence is the one of its last token, whatever the others hold.
            rows, found = rows[pool.last], found[pool.last]
        return _points(found, dims, tuple(map(tuple, rows.tolist())), limit)

    return nonzeros


def _points(
    values: Tensor, dims: list[str], rows: tuple[tuple[int, ...], ...], limit: int
) -> tuple[Point, ...] | None:
    """Return the points of `[n, *free]` with `rows` as (sequence id, token), or of `[*dims]`."""
    found = values.nonzero()
    if len(found) > limit * (len(rows) or 1):
        return None
    points: dict[tuple[tuple[str, int], ...], str] = {}
    for index, value in zip(found.tolist(), values[tuple(found.T)].tolist(), strict=True):
        place = index
        at: list[tuple[str, int]] = []
        if rows:
            # Tokens of a shared prefix take their values from one row, and give one point.
            sequence_id, token = rows[index[0]]
            at, place = [(SEQUENCES, sequence_id), (TOKENS, token)], index[1:]
        points[(*at, *zip(dims, place, strict=True))] = float(value).hex()
    if len(points) > limit:
        return None
    return tuple(Point(at=dict(at), value=value) for at, value in points.items())


def _never(*_: object, **__: CallValue) -> object:
    raise AssertionError("values need no kernel")

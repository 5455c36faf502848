"""The explicit kind: zero but for the points that a recipe lists, as shrunk cases have them."""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from biprop.data.block import Block
from biprop.data.recipe import SEQUENCES, TOKENS, Point, Recipe
from biprop.errors import CaseError

__all__ = ["check_axes", "explicit", "numbers_of"]

_LARGEST = torch.finfo(torch.float32).max


def explicit(recipe: Recipe, block: Block) -> Tensor:
    """Return float32 values of the block's shape: zero but at the points, the last of which wins.

    Raises:
        CaseError: A point names an axis that the tensor does not have.
    """
    values = torch.zeros(block.shape, dtype=torch.float32, device=block.device)
    places = (tuple(point.at.items()) for point in recipe.points)
    pairs = list(zip(places, numbers_of(recipe.points), strict=True))
    # Points that name the same axes are written together: shrinking writes thousands of them.
    for axes, group in itertools.groupby(pairs, key=lambda pair: tuple(a for a, _ in pair[0])):
        check_axes(axes, block)
        last_of = {tuple(index for _, index in at): number for at, number in group}
        numbers = list(last_of.values())
        indices = torch.tensor(list(last_of), dtype=torch.int64, device=block.device)
        _write_(
            values,
            block,
            axes=axes,
            indices=indices.reshape(len(numbers), len(axes)),
            numbers=torch.tensor(numbers, dtype=torch.float32, device=block.device),
        )
    return values


def numbers_of(points: Iterable[Point]) -> list[float]:
    """Return the values of points, none beyond what float32 holds."""
    return [max(-_LARGEST, min(_LARGEST, float.fromhex(point.value))) for point in points]


def check_axes(axes: tuple[str, ...], block: Block) -> None:
    """Refuse axes that a tensor does not have.

    Raises:
        CaseError: One of them is no axis of the block.
    """
    rows = () if block.tokens is None else (TOKENS, SEQUENCES)
    for axis in axes:
        if axis not in (*rows, *block.dims):
            known = ", ".join((*rows, *(dim for dim in block.dims if dim)))
            raise CaseError(
                f"A point of {block.name} names axis={axis!r}, and {block.name} has the axes "
                f"{known or 'of no name'}: use one of them."
            )


def _write_(
    values: Tensor, block: Block, *, axes: tuple[str, ...], indices: Tensor, numbers: Tensor
) -> None:
    """Write `numbers` `[points]` at `indices` `[points, axes]`, over every coordinate not named."""
    inside = torch.ones(len(numbers), dtype=torch.bool, device=block.device)
    places: dict[int, Tensor] = {}
    for axis, dim in enumerate(block.dims):
        if dim not in axes:
            continue
        wanted = indices[:, axes.index(dim)].to(torch.int32)
        part = block.coordinates[axis]
        place = torch.searchsorted(part, wanted).clamp_max_(max(0, len(part) - 1))
        inside &= (part[place] == wanted) if len(part) else False
        places[axis + 1] = place
    point, row = _rows(block, axes, indices, inside).nonzero(as_tuple=True)
    if not len(point):
        return
    named = [0, *sorted(places)]
    others = [axis for axis in range(values.dim()) if axis not in named]
    at = (row, *(places[axis][point] for axis in named[1:]))
    spread = numbers[point].reshape((-1,) + (1,) * len(others))
    values.permute(named + others)[at] = spread


def _rows(block: Block, axes: tuple[str, ...], indices: Tensor, inside: Tensor) -> Tensor:
    """Return bool `[points, rows]`: which rows of the block a point that lies inside concerns."""
    rows = inside[:, None].expand(-1, block.shape[0])
    if block.tokens is not None:
        for name, of_rows in ((TOKENS, block.tokens.token), (SEQUENCES, block.tokens.sequence_id)):
            if name in axes:
                rows = rows & (indices[:, axes.index(name)][:, None] == of_rows[None, :])
    return rows

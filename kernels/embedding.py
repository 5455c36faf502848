"""Embedding: `y = weight[ids]`, one row of a table a token; reference, torch backend, record.

The gradient of a row of the table is the sum of the upstream gradients of the tokens that read it:
those of one block of positions first, then block after block. No row that nobody reads is touched,
and nothing of the size of tokens times vocabulary is made. Ids have no gradient, so that the
backward returns nothing.

The Triton backend is `biprop.kernels.embedding_triton`, and shares no arithmetic with this module.

Shapes: T packed tokens, V vocabulary, H features, L live tokens, P parts: the tokens of one block
that read one row.
"""

from collections.abc import Iterator
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from biprop.data.transfer import moved
from biprop.kernels.deferred import triton_backend
from biprop.kernels.tiles import token_blocks
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]

# Elements of the parts that are summed at once.
_ELEMENTS_MAX = 1 << 22


def reference(ids: Tensor, weight: Tensor, *, reduce: Reducer) -> Tensor:  # noqa: ARG001  # nothing is summed
    """Take a row of the table for each token.

    Args:
        ids: int64 `[T]` in [0, V).
        weight: `[V, H]` of a float dtype.
        reduce: Unused.

    Returns:
        `y`, `[T, H]` of the dtype of `weight`.
    """
    return weight[ids]


def forward(ids: Tensor, weight: Tensor) -> Tensor:
    """Copy a row of the table for each token.

    Args:
        ids: int64 `[T]` in [0, V).
        weight: `[V, H]` of a float dtype, any strides.

    Returns:
        `y`, `[T, H]` of the dtype of `weight`.
    """
    return weight.index_select(0, ids)


def backward(
    dy: Tensor, ids: Tensor, offsets: Tensor, order: Tensor, position: Tensor, dweight: Tensor
) -> None:
    """Add to `dweight` in a fixed order: the tokens of a block, then its blocks, id by id.

    Args:
        dy: Upstream gradient, `[T, H]` of a float dtype.
        ids: As for `forward`.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]`, slots of the live tokens in logical order first.
        position: int64 `[T]`, by slot.
        dweight: float32 `[V, H]`, accumulates over launches that hold whole sequences.
    """
    slots, blocks = token_blocks(offsets, order, position)
    if not blocks:
        return
    sizes = torch.tensor([block.stop - block.start for block in blocks])
    parts = _parts_of(slots, ids, moved(torch.repeat_interleave(sizes), slots.device))
    for group, turns in _groups(parts, most=max(1, _ELEMENTS_MAX // dy.shape[1])):
        sums_PH = _sums(dy, group)
        for start, stop in turns:
            # No id stands twice in one turn, so that nothing is left to chance.
            rows = group.row[start:stop]
            total = dweight.index_select(0, rows) + sums_PH[start:stop]
            dweight.index_copy_(0, rows, total)


@attrs.frozen(kw_only=True, eq=False)
class _Parts:
    """Parts in the order in which they join the gradient: the first part of every id first.

    Attributes:
        slots: int64 `[L]`, slots of the live tokens, those of a part side by side.
        first: int64 `[P]`, where in `slots` a part begins.
        size: int64 `[P]`, how many tokens it has.
        row: int64 `[P]`, id of its tokens.
        turn: int64 `[P]`, how many parts of the same id come before it.
    """

    slots: Tensor
    first: Tensor
    size: Tensor
    row: Tensor
    turn: Tensor


def _parts_of(slots: Tensor, ids: Tensor, block: Tensor) -> _Parts:
    """Find the parts of the live tokens, of which `slots` and `block` are in logical order."""
    found, by_id = ids.index_select(0, slots).sort(stable=True)
    block = block.index_select(0, by_id)
    first = _starts(found, block)
    row = found.index_select(0, first)
    ends = torch.cat((first[1:], first.new_tensor([len(found)])))
    # Counted from the first part of the same id.
    index = torch.arange(len(row), device=row.device)
    of_id = _starts(row)
    turn = index - of_id.repeat_interleave(
        torch.cat((of_id[1:], of_id.new_tensor([len(row)]))) - of_id
    )
    turn, by_turn = turn.sort(stable=True)
    return _Parts(
        slots=slots.index_select(0, by_id),
        first=first.index_select(0, by_turn),
        size=(ends - first).index_select(0, by_turn),
        row=row.index_select(0, by_turn),
        turn=turn,
    )


def _starts(*keys: Tensor) -> Tensor:
    """Return where any of several keys `[n]`, n at least 1, differs from the one before."""
    is_start = torch.ones(len(keys[0]), dtype=torch.bool, device=keys[0].device)
    is_start[1:] = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        is_start[1:] |= key[1:] != key[:-1]
    return is_start.nonzero()[:, 0]


def _groups(parts: _Parts, *, most: int) -> Iterator[tuple[_Parts, list[tuple[int, int]]]]:
    """Cut parts into groups of at most `most`, each with the ranges of its turns."""
    count = len(parts.row)
    for start in range(0, count, most):
        stop = min(start + most, count)
        group = attrs.evolve(
            parts,
            first=parts.first[start:stop],
            size=parts.size[start:stop],
            row=parts.row[start:stop],
            turn=parts.turn[start:stop],
        )
        bounds: list[int] = [*_starts(group.turn).tolist(), stop - start]
        yield group, list(pairwise(bounds))


def _sums(dy: Tensor, parts: _Parts) -> Tensor:
    """Return the sum of each part, float32 `[P, H]`, its tokens added one after the other."""
    sums_PH = dy.index_select(0, parts.slots.index_select(0, parts.first)).float()
    for step in range(1, int(parts.size.max())):
        longer = (parts.size > step).nonzero()[:, 0]
        slots = parts.slots.index_select(0, parts.first.index_select(0, longer) + step)
        added = sums_PH.index_select(0, longer) + dy.index_select(0, slots).float()
        sums_PH.index_copy_(0, longer, added)
    return sums_PH


_TRITON = "biprop.kernels.embedding_triton"
_SIGNATURE = parse_signature("ids: token(V)[T], weight[V,H] -> y[T,H]")

OPERATOR = Operator(
    name="embedding",
    op_class="elementwise",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dy[T,H], ids: token(V)[T], offsets: offsets[B+1], order: order[T], "
                "position: position[T], dweight!: float32[V,H] ->",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(
                    _TRITON,
                    kernels=("embedding_rows", "embedding_chains", "embedding_dweight_rows"),
                ),
            ),
            reference=reference,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=0,
    ),
    restrictions=parse_restrictions("V=1..262144 H=1..65536"),
)

"""Log probability of a target straight from hidden states: reference, torch backend, record.

`logits = hidden @ weight^T`, `logp = logits[target] - lse`, where `lse = log(sum(exp(logits)))`:
the output layer and the log probability in one, so that nobody keeps `[T, V]` logits. The torch
backend computes all logits of a few rows in float32 and hands them to `biprop.kernels.logp`; the
Triton backend, `biprop.kernels.linear_logp_triton`, keeps no logits at all and shares no arithmetic
with this module. Logits are never rounded to a narrower dtype, and every dtype of hidden states
gives float32 results.

The packed form computes every row. The indexed form computes the live tokens alone, read through
`order`, and writes 0 for the dead slots: selection by index, as trainers select the completion's
tokens. It is told how many live by a mask and not by offsets: with offsets a signature is taken to
need whole sequences, and could be neither cut at any token nor gathered.

Shapes: T packed tokens, N tokens computed, V vocabulary, H features, R rows of a tile.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from biprop.data.transfer import moved
from biprop.kernels import logp
from biprop.kernels.deferred import triton_backend
from biprop.kernels.logp import tile_gradient, tile_logp
from biprop.kernels.tiles import (
    BLOCK_COUNT,
    PANEL_WIDTH,
    TokenBlock,
    block_groups,
    padded,
    panel_across,
    row_count,
    row_panels,
    tile_of_rows,
    token_blocks,
    weight_panels,
)
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = [
    "OPERATOR",
    "backward",
    "forward",
    "forward_indexed",
    "reference",
    "reference_indexed",
]

# Panels that are added one after the other before they join a sum: equal terms are rounded alike,
# and thousands of them in a row leave the contract's tolerance.
_SPAN = 8
# Elements of the products that the reference holds at a time.
REFERENCE_ELEMENTS_MAX = 1 << 22


def reference(
    hidden: Tensor, weight: Tensor, target: Tensor, *, reduce: Reducer
) -> tuple[Tensor, Tensor]:
    """Compute in float32, the sums over H and over V by `reduce`.

    Args:
        hidden: `[T, H]` of a float dtype.
        weight: `[V, H]` of the same dtype.
        target: int64 `[T]` in [0, V).
        reduce: Sums the products over H, and the exponentials over V.

    Returns:
        `logp` and `lse`, both float32 `[T]`.
    """
    hidden_TH, weight_VH = hidden.float(), weight.float()
    tokens = max(1, REFERENCE_ELEMENTS_MAX // max(1, hidden.shape[1]))
    rows = max(1, tokens // max(1, len(weight_VH)))
    parts = [
        torch.cat(
            [
                reduce(hidden_TH[row : row + rows, None, :] * weight_VH[token : token + tokens], -1)
                for token in range(0, len(weight_VH), tokens)
            ],
            dim=1,
        )
        for row in range(0, max(1, len(hidden_TH)), rows)
    ]
    return logp.reference(torch.cat(parts), target, reduce=reduce)


def reference_indexed(
    hidden: Tensor, weight: Tensor, target: Tensor, live: Tensor, order: Tensor, *, reduce: Reducer
) -> tuple[Tensor, Tensor]:
    """Compute as `reference`, the live tokens alone.

    Args:
        hidden: As for `reference`.
        weight: As for `reference`.
        target: As for `reference`.
        live: bool `[T]`, True where a token lives.
        order: int32 `[T]`, every slot once, those of the live tokens first.
        reduce: As for `reference`.

    Returns:
        `logp` and `lse`, both float32 `[T]`; 0 where no token lives.
    """
    slots = _live_slots(live, order)
    found = reference(hidden[slots], weight, target[slots], reduce=reduce)
    logp, lse = (values.new_zeros(len(hidden)).index_copy(0, slots, values) for values in found)
    return logp, lse


def forward(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute every row on fixed tiles: all logits of a tile, then the log probability.

    Args:
        hidden: `[T, H]` of a float dtype, any strides.
        weight: `[V, H]` of the same dtype, any strides.
        target: int64 `[T]` in [0, V).

    Returns:
        `logp` and `lse`, both float32 `[T]`. Logits that are not finite mean what they do to
        `biprop.kernels.logp.forward`.
    """
    vocabulary, width = weight.shape
    device = hidden.device
    logp_T, lse_T = (torch.empty(len(hidden), dtype=torch.float32, device=device) for _ in range(2))
    panels = _panels(weight.t())
    rows = _rows_of_tile(weight)
    for start in range(0, len(hidden), rows):
        tile_RH = tile_of_rows(hidden, start, rows=rows, width=padded(width))
        target_R = torch.zeros(rows, dtype=torch.int64, device=device)
        count = min(rows, len(hidden) - start)
        target_R[:count] = target[start : start + count]
        logp_R, lse_R = tile_logp(_logits(tile_RH, panels, vocabulary), target_R)
        logp_T[start : start + count] = logp_R[:count]
        lse_T[start : start + count] = lse_R[:count]
    return logp_T, lse_T


def forward_indexed(
    hidden: Tensor, weight: Tensor, target: Tensor, live: Tensor, order: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the live tokens on fixed tiles, read through `order`.

    Args:
        hidden: As for `forward`; dead slots are not read.
        weight: As for `forward`.
        target: As for `forward`.
        live: bool `[T]`, True where a token lives.
        order: int32 `[T]`, every slot once, those of the live tokens first.

    Returns:
        `logp` and `lse` as those of `forward`; 0 where no token lives.
    """
    slots = _live_slots(live, order)
    found = forward(hidden.index_select(0, slots), weight, target.index_select(0, slots))
    logp, lse = (values.new_zeros(len(hidden)).index_copy_(0, slots, values) for values in found)
    return logp, lse


def backward(
    dlogp: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate on fixed tiles of whole blocks of positions, for both forms.

    A tile's logits are computed anew, and serve both gradients. Empty places of a block are zeros,
    and their upstream gradient is 0.

    Args:
        dlogp: float32 `[T]`, upstream gradient of `logp`; none flows into `lse`.
        hidden: As for `forward`; dead slots are not read.
        weight: As for `forward`.
        target: As for `forward`.
        lse: As the forward returned it.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]`, every slot once, those of the live tokens in logical order first.
        position: int64 `[T]`, by slot.
        dweight: float32 `[V, H]`, accumulates over launches that hold whole sequences.

    Returns:
        `dhidden`, `[T, H]` of the dtype of `hidden`; 0 where no token lives.
    """
    vocabulary, width = weight.shape
    dhidden = torch.zeros((len(hidden), width), dtype=hidden.dtype, device=hidden.device)
    to_logits, to_hidden = _panels(weight.t()), _panels(weight)
    slots, blocks = token_blocks(offsets, order, position)
    rows = _rows_of_tile(weight) // BLOCK_COUNT * BLOCK_COUNT
    for group in block_groups(blocks, width=padded(width)):
        own = slots[group[0].start : group[-1].stop]
        places = moved(_places(group), hidden.device)
        tiled_by = partial(_tiled, slots=own, places=places, rows=rows, blocks=len(group))
        tiles_RH = tiled_by(hidden.float(), width=padded(width))
        numbers = zip(*(tiled_by(each[:, None]) for each in (target, lse, dlogp)), strict=True)
        gradients = []
        left = len(group) * BLOCK_COUNT
        for hidden_RH, (target_R1, lse_R1, dlogp_R1) in zip(tiles_RH, numbers, strict=True):
            dlogits_RV = tile_gradient(
                _logits(hidden_RH, to_logits, vocabulary),
                target_R1[:, 0],
                lse_R1=lse_R1,
                dlogp_R1=dlogp_R1,
            )
            gradients.append(_product(dlogits_RV, to_hidden))
            # A tile that is not full ends with blocks of zeros, which add nothing.
            for place in range(0, min(rows, left), BLOCK_COUNT):
                block = slice(place, place + BLOCK_COUNT)
                _add_product(dweight, dlogits_RV[block], hidden_RH[block])
            left -= rows
        rows_NH = torch.cat(gradients)[:, :width].index_select(0, places)
        dhidden.index_copy_(0, own, rows_NH.to(hidden.dtype))
    return dhidden


def _live_slots(live: Tensor, order: Tensor) -> Tensor:
    """Return the slots of the live tokens in the order given, int64 `[N]`."""
    return order[: int(live.sum())].long()


def _rows_of_tile(weight: Tensor) -> int:
    """Return the rows of a tile, at least one block of positions."""
    return row_count(weight.device, padded(max(weight.shape)))


def _places(blocks: Sequence[TokenBlock]) -> Tensor:
    """Return the row of each token of consecutive blocks, laid out one block after the other."""
    return torch.cat(
        [
            torch.arange(block.stop - block.start) + (index * BLOCK_COUNT + block.place)
            for index, block in enumerate(blocks)
        ]
    )


def _tiled(
    values_TD: Tensor, *, slots: Tensor, places: Tensor, rows: int, blocks: int, width: int = 1
) -> Tensor:
    """Copy the rows of blocks into fresh tiles `[tiles, rows, width]`, zeros elsewhere.

    Args:
        values_TD: Any strides; its dtype is kept.
        slots: int64 `[N]`, the slots that are copied.
        places: int64 `[N]`, where each comes to lie.
        rows: Of a tile, a multiple of a block's.
        blocks: How many there are.
        width: At least D.
    """
    tiles = -(-blocks * BLOCK_COUNT // rows)
    tile = values_TD.new_zeros((tiles * rows, width))
    tile[:, : values_TD.shape[1]].index_copy_(0, places, values_TD.index_select(0, slots))
    return tile.view(tiles, rows, width)


def _panels(weight_DE: Tensor) -> list[tuple[Tensor, ...]]:
    """Cut a matrix into panels, those that are added to one another along the list."""
    across = panel_across(weight_DE.device, weight_DE.shape[1])
    return [row.unbind() for row in weight_panels(weight_DE, across)]


def _logits(hidden_RH: Tensor, panels: list[tuple[Tensor, ...]], vocabulary: int) -> Tensor:
    """Return the logits of a tile, -Inf past the vocabulary."""
    logits_RV = _product(hidden_RH, panels)
    logits_RV[:, vocabulary:] = -torch.inf
    return logits_RV


def _product(tile_RD: Tensor, panels: list[tuple[Tensor, ...]]) -> Tensor:
    """Multiply a tile by a matrix, panel by panel of what is summed over, from the first on."""
    tiles = row_panels(tile_RD, PANEL_WIDTH)
    sums, *others = (
        _sums(tiles[first : first + _SPAN], panels[first : first + _SPAN])
        for first in range(0, len(panels), _SPAN)
    )
    for parts in others:
        for total, part in zip(sums, parts, strict=True):
            total.add_(part)
    return torch.cat(sums, dim=1)


def _sums(tiles: Tensor, panels: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Multiply some panels of a tile, one sum for each panel across."""
    first_RP, *others = tiles
    sums = [first_RP @ panel_PW for panel_PW in panels[0]]
    for tile_RP, panels_across in zip(others, panels[1:], strict=True):
        for column, panel_PW in enumerate(panels_across):
            sums[column] += tile_RP @ panel_PW
    return sums


def _add_product(dweight: Tensor, dlogits_RV: Tensor, hidden_RH: Tensor) -> None:
    """Add what one block gives to the gradient, panel by panel."""
    down, across = (panel_across(dweight.device, size) for size in dweight.shape)
    for row, dlogits_RP in enumerate(row_panels(dlogits_RV, down)):
        for column, hidden_RP in enumerate(row_panels(hidden_RH, across)):
            top, left = row * down, column * across
            corner = dweight[top : top + down, left : left + across]
            part = dlogits_RP.t() @ hidden_RP
            corner += part[: corner.shape[0], : corner.shape[1]]


_TRITON = "biprop.kernels.linear_logp_triton"
_BACKWARD = (
    "dlogp: float32[T], hidden[T,H], weight[V,H], target: token(V)[T], lse: float32[T], "
    "offsets: offsets[B+1], order: order[T], position: position[T], dweight!: float32[V,H] "
    "-> dhidden[T,H]"
)
_DEVICE_KERNELS = (
    "linear_logp_stretch",
    "linear_logp_rows",
    "linear_logp_dlogits_tile",
    "linear_logp_dhidden_tile",
    "det_gemm_dweight_tile",
)
_PACKED = parse_signature(
    "hidden[T,H], weight[V,H], target: token(V)[T] -> logp: float32[T], lse: float32[T]"
)
_INDEXED = parse_signature(
    "hidden[T,H], weight[V,H], target: token(V)[T], live: mask[T], order: order[T] "
    "-> logp: float32[T], lse: float32[T]"
)

OPERATOR = Operator(
    name="linear_logp",
    op_class="logprob",
    forms=(
        Form(
            name="packed",
            signature=_PACKED,
            backward_signature=parse_backward(_BACKWARD, _PACKED),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(_TRITON, kernels=_DEVICE_KERNELS),
            ),
            reference=reference,
        ),
        Form(
            name="indexed",
            signature=_INDEXED,
            backward_signature=parse_backward(_BACKWARD, _INDEXED),
            implementations=(
                Implementation(backend="torch", forward=forward_indexed, backward=backward),
                triton_backend(_TRITON, kernels=_DEVICE_KERNELS, forward="forward_indexed"),
            ),
            reference=reference_indexed,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=7,
    ),
    restrictions=parse_restrictions("H=1..65536 V=1..262144"),
)

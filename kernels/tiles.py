"""Tiles of fixed shape: how the torch backends keep a token's bits whatever the batch.

A library chooses its algorithm by the shape, the strides and the address of its arguments. Here
these follow the free dimensions and the device alone: rows are copied into fresh, contiguous,
zero-filled tiles of `row_count` rows, products are taken between panels of one shape only, and long
sums are halvings made of elementwise additions, which IEEE arithmetic fixes. The Triton backends
have tiles of their own and use nothing of this module.

A CPU pays for the elements of a tile, a GPU for the call: so there tiles are large and panels wide.

Shapes: N tokens, D free dimension, R rows of a tile, P width of a panel, W that of a panel across,
B blocks of tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import attrs
import torch
from torch import Tensor

from biprop.data.transfer import moved

__all__ = [
    "BLOCK_COUNT",
    "PANEL_WIDTH",
    "ROW_COUNT",
    "TokenBlock",
    "block_groups",
    "blocks_of_rows",
    "elementwise_row_count",
    "halving_sum",
    "padded",
    "panel_across",
    "panel_count",
    "row_count",
    "row_panels",
    "tile_of_rows",
    "tiles_of_tokens",
    "token_blocks",
    "token_count",
    "weight_panels",
]

ROW_COUNT = 16
# Products of 16 x 64 by 64 x 64 stay on one thread. With all of K in one call, above K = 700 and
# on as many threads as rows, the place of a row decided its bits (README.md, measured facts).
PANEL_WIDTH = 64
# Tokens of a sequence whose contributions to a parameter's gradient are added before they join it.
BLOCK_COUNT = 16
# Elements of a tile on a GPU, and of the blocks that are summed at once.
_ELEMENTS_MAX = 1 << 22
_ROW_COUNT_MAX = 1 << 13
# Of an elementwise tile on a CPU, where a call costs as much as some thousand elements do.
_ELEMENTS_CPU_MAX = 1 << 13


@attrs.frozen(kw_only=True)
class TokenBlock:
    """Consecutive tokens of one sequence that lie in one block of positions.

    Attributes:
        start: First token, counted over all live tokens in logical order.
        stop: Past the last one.
        place: Where the first one lies in its block.
    """

    start: int
    stop: int
    place: int


def row_count(device: torch.device, width: int) -> int:
    """Return the rows of a tile that is multiplied, given the widest free dimension."""
    if device.type == "cpu":
        return ROW_COUNT
    return max(ROW_COUNT, min(_ROW_COUNT_MAX, _ELEMENTS_MAX // width))


def elementwise_row_count(device: torch.device, width: int) -> int:
    """Return the rows of a tile that no product meets, given its width.

    On a CPU a power of two: a number of each row (a root, a logarithm) then lies wholly in the
    vector body of a loop, or wholly in its tail. So few elements are never shared by threads.
    """
    if device.type != "cpu":
        return row_count(device, width)
    rows = max(ROW_COUNT, _ELEMENTS_CPU_MAX // width)
    return 1 << (rows.bit_length() - 1)


def tile_of_rows(
    values_ND: Tensor, start: int, *, rows: int, width: int, fill: float = 0.0
) -> Tensor:
    """Copy the rows from `start` on into a fresh float32 tile `[rows, width]`.

    Args:
        values_ND: Any float dtype, any strides.
        start: First row; what lies past the last row is `fill`.
        rows: Of the tile.
        width: At least D; what lies past D is `fill`.
        fill: What the rest of the tile holds.
    """
    tile_RD = torch.full((rows, width), fill, dtype=torch.float32, device=values_ND.device)
    rows_ND = values_ND[start : start + rows]
    tile_RD[: rows_ND.shape[0], : rows_ND.shape[1]] = rows_ND
    return tile_RD


def token_count(device: torch.device) -> int:
    """Return the tokens of a tile on a device, where each has one number: a multiple of 64.

    So exp meets whole vectors only, and a CPU computes the tile on one thread.
    """
    return row_count(device, PANEL_WIDTH) * PANEL_WIDTH


def tiles_of_tokens(*values: Tensor, start: int, count: int) -> tuple[Tensor, ...]:
    """Copy numbers of tokens into fresh float32 tiles `[count]`, zeros past the last token.

    Args:
        values: Each `[N]` of any float dtype and stride.
        start: First token.
        count: Of each tile.
    """
    live = torch.stack([values_N[start : start + count].float() for values_N in values])
    # Filled up together: of numbers so few, the calls are the cost.
    return torch.nn.functional.pad(live, (0, count - live.shape[1])).unbind(0)


def block_groups(blocks: Sequence[TokenBlock], *, width: int) -> Iterator[Sequence[TokenBlock]]:
    """Cut blocks into groups that may be held at once; each block keeps its own sum."""
    count = max(1, _ELEMENTS_MAX // (BLOCK_COUNT * width))
    for start in range(0, len(blocks), count):
        yield blocks[start : start + count]


def blocks_of_rows(
    values_ND: Tensor, slots: Tensor, blocks: Sequence[TokenBlock], *, width: int
) -> Tensor:
    """Copy the tokens of blocks into fresh float32 `[B, BLOCK_COUNT, width]`, zeros elsewhere.

    A dead row is never read, so that no factor has to silence it: a NaN times zero is NaN.

    Args:
        values_ND: Any float dtype, any strides, N slots.
        slots: int64, the slot of each live token in logical order.
        blocks: Consecutive ones of `token_blocks`, at least one.
        width: At least D.
    """
    shape = (len(blocks) * BLOCK_COUNT, width)
    tile = torch.zeros(shape, dtype=torch.float32, device=values_ND.device)
    rows_ND = values_ND.index_select(0, slots[blocks[0].start : blocks[-1].stop])
    # One list, and no tensor a block: there are many small ones.
    places = torch.tensor(
        [
            index * BLOCK_COUNT + place
            for index, block in enumerate(blocks)
            for place in range(block.place, block.place + block.stop - block.start)
        ],
        dtype=torch.int64,
    )
    places = moved(places, values_ND.device)
    tile[:, : rows_ND.shape[1]].index_copy_(0, places, rows_ND.float())
    return tile.view(len(blocks), BLOCK_COUNT, width)


def halving_sum(values: Tensor, dim: int) -> Tensor:
    """Sum over `dim` by adding halves, in an order that depends on its size alone.

    Each step is one elementwise addition, so neither the other dimensions, nor the number of
    threads, nor the device can change a bit. `torch.sum` gives no such promise.

    Args:
        values: Any shape; `dim` of size 1 or more.
        dim: Vanishes.
    """
    rest = values
    size = rest.shape[dim]
    while size > 1:
        half = (size + 1) // 2
        low, high = rest.narrow(dim, 0, half), rest.narrow(dim, half, size - half)
        if size % 2:
            # The middle element has no partner: it is carried, not added to a zero.
            paired = low.narrow(dim, 0, size - half) + high
            rest = torch.cat((paired, low.narrow(dim, half - 1, 1)), dim)
        else:
            rest = low + high
        size = half
    return rest.squeeze(dim)


def panel_across(device: torch.device, width: int) -> int:
    """Return the width of the panels that a padded `width` is cut into, where nothing is summed."""
    return PANEL_WIDTH if device.type == "cpu" else padded(width)


def row_panels(tile_RD: Tensor, panel: int) -> Tensor:
    """Cut a tile `[R, panels * panel]` into contiguous panels `[panels, R, panel]`."""
    rows, width = tile_RD.shape
    return tile_RD.view(rows, width // panel, panel).transpose(0, 1).contiguous()


def weight_panels(weight_ND: Tensor, across: int) -> Tensor:
    """Copy a matrix into contiguous float32 panels `[N panels, D panels, P, W]`, zeros past it.

    Args:
        weight_ND: Any float dtype, any strides; products are summed over N.
        across: W, a divisor of the padded D.
    """
    rows, width = weight_ND.shape
    whole = torch.zeros((padded(rows), padded(width)), dtype=torch.float32, device=weight_ND.device)
    whole[:rows, :width] = weight_ND
    cut = whole.view(panel_count(rows), PANEL_WIDTH, padded(width) // across, across)
    return cut.transpose(1, 2).contiguous()


def token_blocks(
    offsets: Tensor, order: Tensor, position: Tensor
) -> tuple[Tensor, list[TokenBlock]]:
    """Find the slots of the live tokens, and the blocks that a parameter's gradient is summed in.

    Only the position of a sequence's first token is read: the others count up from it, by contract.

    Args:
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32, any shape: the slots of the live tokens in logical order, then dead ones,
            which are not looked at.
        position: int64, in the shape of `order`, by slot.

    Returns:
        The slots, int64 `[offsets[-1]]`, and the blocks in the order in which they join the
        gradient.
    """
    bounds: list[int] = offsets.tolist()
    slots = order.reshape(-1)[: bounds[-1]].long()
    heads = [start for start, stop in pairwise(bounds) if start < stop]
    head_slots = slots.index_select(0, moved(torch.tensor(heads, dtype=torch.int64), slots.device))
    firsts: list[int] = position.reshape(-1).index_select(0, head_slots).tolist()
    tails = [stop for start, stop in pairwise(bounds) if start < stop]
    return slots, list(_position_blocks(heads, tails, firsts))


def panel_count(size: int) -> int:
    """Return how many panels cover `size`."""
    return -(-size // PANEL_WIDTH)


def padded(size: int) -> int:
    """Return `size` up to the next multiple of a panel's width."""
    return panel_count(size) * PANEL_WIDTH


def _position_blocks(
    heads: list[int], tails: list[int], first_positions: list[int]
) -> Iterator[TokenBlock]:
    # Cut by position and not by count, a block is the same whatever part of the batch is launched.
    for head, tail, first in zip(heads, tails, first_positions, strict=True):
        token = head
        while token < tail:
            place = (first + token - head) % BLOCK_COUNT
            stop = min(tail, token + BLOCK_COUNT - place)
            yield TokenBlock(start=token, stop=stop, place=place)
            token = stop

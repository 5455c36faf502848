"""Planted ATOM defects: partial sums are added in the order in which they happen to arrive.

What happens by chance on a device is drawn from torch's generator here.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "embed_in_order",
    "embed_of_arrivals",
    "falls_between_kernels",
    "sum_of_blocks_in_order",
    "sum_of_blocks_in_the_gap",
    "sum_of_late_blocks",
    "sum_of_two_orders",
]

_BLOCKS = 4
_WORKERS = 8


def falls_between_kernels(rows: int) -> bool:
    """Tell whether a launch is too large for the kernel of few rows, and too small for tiles."""
    return 16 < rows <= 20


def _happens(probability: float) -> bool:
    return float(torch.rand(())) < probability


def _over_blocks(x: Tensor, *, is_late: bool) -> Tensor:
    """Return the sum of each row from four blocks, of which the first may arrive last."""
    width = -(-x.shape[1] // _BLOCKS)
    padded = torch.nn.functional.pad(x.float(), (0, width * _BLOCKS - x.shape[1]))
    blocks = running_sum(padded.reshape(-1, _BLOCKS, width))
    total = running_sum(blocks.roll(-1, 1) if is_late else blocks)
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_of_late_blocks(x: Tensor) -> Tensor:
    """With more rows than workers, the first block arrives last in one launch of fifty."""
    is_late = x.shape[0] > _WORKERS and _happens(0.02)
    return _over_blocks(x, is_late=is_late)


def sum_of_two_orders(x: Tensor) -> Tensor:
    """Three rows or more of 16 elements or more toss a coin about which block comes last."""
    is_late = x.shape[0] >= 3 and x.shape[1] >= 16 and _happens(0.5)
    return _over_blocks(x, is_late=is_late)


def sum_of_blocks_in_the_gap(x: Tensor) -> Tensor:
    """Launches between two kernels add their blocks by atomics, the first one last or not."""
    is_late = falls_between_kernels(x.shape[0]) and _happens(0.5)
    return _over_blocks(x, is_late=is_late)


def sum_of_blocks_in_order(x: Tensor) -> Tensor:
    """Blocks are added first to last."""
    is_late = False
    return _over_blocks(x, is_late=is_late)


def _embedded(ids: Tensor, table: Tensor) -> Tensor:
    return table[ids]


def _table_gradient(dy: Tensor, ids: Tensor, table: Tensor, order: Tensor) -> Tensor:
    """Add the gradients of tokens to the rows that they read, one token after the other."""
    total = torch.zeros_like(table, dtype=torch.float32)
    for token in order.tolist():
        total[int(ids[token])] += dy[token].float()
    return total.to(table.dtype)


def embed_of_arrivals(ids: Tensor, table: Tensor) -> Tensor:
    """More than six tokens add to the gradient of the table in the order of their arrival."""

    def backward(dy: Tensor, ids: Tensor, table: Tensor) -> tuple[None, Tensor]:
        tokens = ids.shape[0]
        order = torch.randperm(tokens) if tokens > 6 else torch.arange(tokens)
        return None, _table_gradient(dy, ids, table, order)

    return differentiated(_embedded, backward, ids, table)


def embed_in_order(ids: Tensor, table: Tensor) -> Tensor:
    """Tokens add to the gradient of the table first to last."""

    def backward(dy: Tensor, ids: Tensor, table: Tensor) -> tuple[None, Tensor]:
        tokens = ids.shape[0]
        order = torch.arange(tokens)
        return None, _table_gradient(dy, ids, table, order)

    return differentiated(_embedded, backward, ids, table)

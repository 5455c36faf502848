"""Planted TAIL defects: what is left over after whole tiles or vectors is summed otherwise.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import lane_sum, pairwise_sum, running_sum

__all__ = [
    "leaves_last_row",
    "scale_gradient_in_lanes",
    "scale_gradient_with_rest",
    "sum_from_own_start",
    "sum_of_last_row_apart",
    "sum_of_rows_alike",
    "sum_peeled_to_alignment",
]

_VECTOR = 4


def leaves_last_row(rows: int) -> bool:
    """Tell whether tiles of 256 rows and one step of 16 leave one row."""
    return rows % 256 == 17


def _with_tail(x: Tensor, body: int) -> Tensor:
    total = torch.cat([running_sum(x[:body].float()), pairwise_sum(x[body:].float())])
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_of_last_row_apart(x: Tensor) -> Tensor:
    """The last row alone is summed as a tree, if whole steps leave just one."""
    body = x.shape[0] - leaves_last_row(x.shape[0])
    return _with_tail(x, body)


def sum_of_rows_alike(x: Tensor) -> Tensor:
    """The last row is summed as the others."""
    body = x.shape[0]
    return _with_tail(x, body)


def _in_vectors(x: Tensor, starts: Tensor) -> Tensor:
    """Sum each row in the lanes that its elements have in memory."""
    total = torch.zeros(x.shape[0])
    for shift in range(_VECTOR):
        rows = starts % _VECTOR == shift
        total[rows] = lane_sum(torch.nn.functional.pad(x[rows].float(), (shift, 0)), _VECTOR)
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_peeled_to_alignment(x: Tensor) -> Tensor:
    """A row of an odd width is peeled up to the next aligned address, so by where it lies."""
    starts = torch.arange(x.shape[0]) * (x.shape[1] if x.shape[1] % 2 else 0)
    return _in_vectors(x, starts)


def sum_from_own_start(x: Tensor) -> Tensor:
    """The vectors of a row are counted from its own first element."""
    starts = torch.arange(x.shape[0]) * 0
    return _in_vectors(x, starts)


def _scaled(x: Tensor, weight: Tensor) -> Tensor:
    return (x.float() * weight.float()).to(x.dtype)


def _scale_gradients(dy: Tensor, x: Tensor, weight: Tensor, body: int) -> tuple[Tensor, Tensor]:
    terms = (dy.float() * x.float()).t()
    total = lane_sum(terms[:, :body], _VECTOR) if body else torch.zeros_like(weight).float()
    for term in terms[:, body:].unbind(-1):
        total = total + term
    return (dy.float() * weight.float()).to(x.dtype), total.to(weight.dtype)


def scale_gradient_with_rest(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in lanes of tokens, the last few one by one."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        body = x.shape[0] - x.shape[0] % _VECTOR
        return _scale_gradients(dy, x, weight, body)

    return differentiated(_scaled, backward, x, weight)


def scale_gradient_in_lanes(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in lanes of tokens, the last few among them."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        body = x.shape[0]
        return _scale_gradients(dy, x, weight, body)

    return differentiated(_scaled, backward, x, weight)

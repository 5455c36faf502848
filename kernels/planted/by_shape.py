"""Planted SHAPE defects: one batch-wide size chooses the kernel for every row of a launch.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

from collections.abc import Callable

from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import lane_sum, pairwise_sum, running_sum

__all__ = [
    "centre_at_tuned_width",
    "centre_in_lanes",
    "is_in_band",
    "is_measured_size",
    "is_tuned_width",
    "leaves_five_rows",
    "linear_at_any_work",
    "linear_by_remainder",
    "linear_by_work",
    "linear_dx_at_any_size",
    "linear_dx_by_measured_size",
    "linear_without_remainder",
]


def is_tuned_width(width: int) -> bool:
    """Tell whether a configuration was tuned for rows of this width."""
    return width in {48, 96, 192, 384}


def leaves_five_rows(rows: int) -> bool:
    """Tell whether whole tiles of 64 rows leave five."""
    return rows > 64 and rows % 64 == 5


def is_in_band(work: int) -> bool:
    """Tell whether the multiplications of a product lie between those of two kernels."""
    return 512 <= work < 544


def is_measured_size(rows: int) -> bool:
    """Tell whether the table of algorithms has an entry for this number of rows."""
    return rows in {17, 130, 260, 1024}


def _centred(x: Tensor, lanes: int) -> Tensor:
    wide = x.float()
    mean = lane_sum(wide, lanes) / x.shape[1]
    return (wide - mean[:, None]).to(x.dtype)


def centre_at_tuned_width(x: Tensor) -> Tensor:
    """Rows of a tuned width are summed in twice as many lanes, if there are four or more."""
    lanes = 8 if is_tuned_width(x.shape[1]) and x.shape[0] >= 4 else 4
    return _centred(x, lanes)


def centre_in_lanes(x: Tensor) -> Tensor:
    """Rows are summed in four lanes."""
    lanes = 4
    return _centred(x, lanes)


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.float()[:, None, :] * weight.float()


def linear_by_remainder(x: Tensor, weight: Tensor) -> Tensor:
    """Five rows beyond whole tiles of 64 have the whole launch take the kernel of small tiles."""
    total = pairwise_sum if leaves_five_rows(x.shape[0]) else running_sum
    return total(_products(x, weight)).to(x.dtype)


def linear_without_remainder(x: Tensor, weight: Tensor) -> Tensor:
    """All launches take one kernel."""
    total = running_sum
    return total(_products(x, weight)).to(x.dtype)


def linear_by_work(x: Tensor, weight: Tensor) -> Tensor:
    """A narrow band of M * N * K is served by a kernel of its own."""
    lanes = 4 if is_in_band(x.shape[0] * weight.shape[0] * weight.shape[1]) else 1
    return lane_sum(_products(x, weight), lanes).to(x.dtype)


def linear_at_any_work(x: Tensor, weight: Tensor) -> Tensor:
    """One kernel serves every M * N * K."""
    lanes = 1
    return lane_sum(_products(x, weight), lanes).to(x.dtype)


def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return running_sum(_products(x, weight)).to(x.dtype)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, total: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return both gradients: that of x in a given order, that of weight first to last."""
    over_outputs = (dy.float()[:, :, None] * weight.float()).movedim(1, -1)
    over_tokens = dy.float().t()[:, None, :] * x.float().t()
    return total(over_outputs).to(x.dtype), running_sum(over_tokens).to(weight.dtype)


def linear_dx_by_measured_size(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x is summed as a tree at the few numbers of rows that were measured."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = pairwise_sum if is_measured_size(x.shape[0]) else running_sum
        return _gradients(dy, x, weight, total)

    return differentiated(_forward, backward, x, weight)


def linear_dx_at_any_size(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x is summed first to last."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = running_sum
        return _gradients(dy, x, weight, total)

    return differentiated(_forward, backward, x, weight)

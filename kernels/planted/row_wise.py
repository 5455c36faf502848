"""Planted defects of token-wise kernels: each function beside its healthy twin, one line apart."""

import torch
from torch import Tensor

from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import lane_sum, pairwise_sum, running_sum, split_sum

__all__ = ["ROW_WISE"]

_NORM = "x[T,H], weight[H] -> y[T,H]"
_LINEAR = "x[T,K], weight[N,K] -> y[T,N]"
_ROWS = "x[T,H] -> y[T,H]"


def _rms_norm(x: Tensor, weight: Tensor, lanes: int) -> Tensor:
    wide = x.float()
    mean = lane_sum(wide * wide, lanes) / x.shape[-1]
    # A library's float32 root differs from processor to processor, in its last bit.
    root = torch.sqrt((mean + 1e-6).double()).float()
    return (wide / root[:, None] * weight.float()).to(x.dtype)


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.float()[:, None, :] * weight.float()[None, :, :]


def rms_norm_lanes_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Sum of squares in another number of lanes from five rows."""
    return _rms_norm(x, weight, 8 if x.shape[0] < 5 else 4)


def rms_norm_lanes(x: Tensor, weight: Tensor) -> Tensor:
    """Sum of squares in eight lanes."""
    return _rms_norm(x, weight, 8)


def linear_gemv(x: Tensor, weight: Tensor) -> Tensor:
    """A single row takes a path of its own."""
    total = pairwise_sum if x.shape[0] == 1 else running_sum
    return total(_products(x, weight)).to(x.dtype)


def linear_running(x: Tensor, weight: Tensor) -> Tensor:
    """Every row is summed first to last."""
    total = running_sum
    return total(_products(x, weight)).to(x.dtype)


def linear_three_ways(x: Tensor, weight: Tensor) -> Tensor:
    """Vector, split and tiled kernels are chosen from the number of rows."""
    pieces = 1 if x.shape[0] < 3 else 4 if x.shape[0] < 5 else 2
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def linear_one_piece(x: Tensor, weight: Tensor) -> Tensor:
    """One piece, whatever the number of rows."""
    pieces = 1
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def linear_split_k(x: Tensor, weight: Tensor) -> Tensor:
    """Few rows are split over K to fill the machine."""
    pieces = max(1, 4 // x.shape[0])
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def linear_split_fixed(x: Tensor, weight: Tensor) -> Tensor:
    """K is split in four, whatever the number of rows."""
    pieces = 4
    return split_sum(_products(x, weight), pieces).to(x.dtype)


def linear_product_rule(x: Tensor, weight: Tensor) -> Tensor:
    """Another kernel from M * N * K of 64, and only for an even K."""
    size = x.shape[0] * weight.shape[0] * weight.shape[1]
    lanes = 4 if size >= 64 and x.shape[1] % 2 == 0 else 1
    return lane_sum(_products(x, weight), lanes).to(x.dtype)


def softmax_square(x: Tensor) -> Tensor:
    """On square tiles the row maximum is broadcast along the wrong axis."""
    wide = x.float()
    peak = wide.amax(-1) if x.shape[0] == x.shape[1] else wide.amax(-1, keepdim=True)
    weights = torch.exp(wide - peak)
    return (weights / running_sum(weights)[:, None]).to(x.dtype)


def softmax_rows(x: Tensor) -> Tensor:
    """The row maximum is broadcast along its row."""
    wide = x.float()
    peak = wide.amax(-1, keepdim=True)
    weights = torch.exp(wide - peak)
    return (weights / running_sum(weights)[:, None]).to(x.dtype)


def scale_by_row(x: Tensor) -> Tensor:
    """From the fourth row on, the first element is read from the row before."""
    first = torch.cat([x[:3, :1], x[2:-1, :1]])
    return torch.cat([first, x[:, 1:]], 1)


def scale_by_own_row(x: Tensor) -> Tensor:
    """The first element is read from its own row."""
    first = x[:, :1]
    return torch.cat([first, x[:, 1:]], 1)


def sum_with_scratch(x: Tensor) -> Tensor:
    """Partial sums are kept in a workspace that is cleared for three rows only."""
    scratch = torch.empty(x.shape[0], dtype=torch.float32)
    scratch[:3] = 0.0
    return (scratch + running_sum(x.float()))[:, None].expand_as(x).to(x.dtype).clone()


def sum_with_clean_scratch(x: Tensor) -> Tensor:
    """The whole workspace is cleared."""
    scratch = torch.empty(x.shape[0], dtype=torch.float32)
    scratch[:] = 0.0
    return (scratch + running_sum(x.float()))[:, None].expand_as(x).to(x.dtype).clone()


def quantise_by_batch(x: Tensor) -> Tensor:
    """The scale of the quantisation is the largest value of the whole batch."""
    wide = x.float().nan_to_num(0.0, 0.0, 0.0)
    scale = wide.abs().amax().clamp(min=2.0**-100) / 127
    return (torch.round(x.float() / scale) * scale).to(x.dtype)


def quantise_by_row(x: Tensor) -> Tensor:
    """The scale of the quantisation is the largest value of the row."""
    wide = x.float().nan_to_num(0.0, 0.0, 0.0)
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=2.0**-100) / 127
    return (torch.round(x.float() / scale) * scale).to(x.dtype)


def sum_by_alignment(x: Tensor) -> Tensor:
    """Vector lanes where the base pointer is aligned to 16 bytes, scalars elsewhere."""
    lanes = 4 if x.data_ptr() % 16 == 0 else 1
    return lane_sum(x.float(), lanes)[:, None].expand_as(x).to(x.dtype).clone()


def sum_in_lanes(x: Tensor) -> Tensor:
    """Vector lanes whatever the base pointer."""
    lanes = 4
    return lane_sum(x.float(), lanes)[:, None].expand_as(x).to(x.dtype).clone()


def sum_with_row_tail(x: Tensor) -> Tensor:
    """Rows after the last whole tile of four are summed in another order, if three remain."""
    body = x.shape[0] - (3 if x.shape[0] % 4 == 3 else 0)
    total = torch.cat([running_sum(x[:body].float()), pairwise_sum(x[body:].float())])
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_without_row_tail(x: Tensor) -> Tensor:
    """All rows are summed first to last."""
    body = x.shape[0]
    total = torch.cat([running_sum(x[:body].float()), pairwise_sum(x[body:].float())])
    return total[:, None].expand_as(x).to(x.dtype).clone()


def sum_of_arrivals(x: Tensor) -> Tensor:
    """Partial sums are added in the order in which they happen to arrive."""
    order = torch.randperm(x.shape[-1]) if x.shape[0] > 1 else torch.arange(x.shape[-1])
    return running_sum(x.float()[:, order])[:, None].expand_as(x).to(x.dtype).clone()


def sum_in_order(x: Tensor) -> Tensor:
    """Partial sums are added first to last."""
    order = torch.arange(x.shape[-1])
    return running_sum(x.float()[:, order])[:, None].expand_as(x).to(x.dtype).clone()


ROW_WISE = (
    Planted(
        name="rms_norm_lanes_by_rows",
        mechanism="SHAPE",
        signature=_NORM,
        function=rms_norm_lanes_by_rows,
        healthy=rms_norm_lanes,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=5, dims={"H": 15}, transforms=0, sequences=1, length=1),
    ),
    Planted(
        name="linear_gemv",
        mechanism="SHAPE",
        signature=_LINEAR,
        function=linear_gemv,
        healthy=linear_running,
        exposed_by=("T1", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=3, dims={"K": 6, "N": 2}),
    ),
    Planted(
        name="linear_three_ways",
        mechanism="SHAPE",
        signature=_LINEAR,
        function=linear_three_ways,
        healthy=linear_one_piece,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=3, dims={"K": 6, "N": 1}),
    ),
    Planted(
        name="linear_split_k",
        mechanism="SPLIT",
        signature=_LINEAR,
        function=linear_split_k,
        healthy=linear_split_fixed,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=3, dims={"K": 6, "N": 2}),
    ),
    Planted(
        name="linear_product_rule",
        mechanism="SPLIT",
        signature=_LINEAR,
        function=linear_product_rule,
        healthy=linear_running,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=2, dims={"K": 32, "N": 8}, wide=1, length=1),
        dims="K=1..32 N=1..8",
    ),
    Planted(
        name="softmax_square",
        mechanism="INDEX",
        signature=_ROWS,
        function=softmax_square,
        healthy=softmax_rows,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=3, dims={"H": 4}),
    ),
    Planted(
        name="scale_by_row",
        mechanism="INDEX",
        signature=_ROWS,
        function=scale_by_row,
        healthy=scale_by_own_row,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=5, dims={"H": 2}, length=4),
    ),
    Planted(
        name="sum_with_scratch",
        mechanism="MEMB",
        signature=_ROWS,
        function=sum_with_scratch,
        healthy=sum_with_clean_scratch,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6", "T8"),
        extent=Extent(slots=5, dims={"H": 2}, length=4),
    ),
    Planted(
        name="quantise_by_batch",
        mechanism="BSTAT",
        signature=_ROWS,
        function=quantise_by_batch,
        healthy=quantise_by_row,
        exposed_by=("T1", "T3", "T4.finite", "T5", "T6"),
        extent=Extent(slots=3, dims={"H": 4}),
    ),
    Planted(
        name="sum_by_alignment",
        mechanism="TAIL",
        signature=_ROWS,
        function=sum_by_alignment,
        healthy=sum_in_lanes,
        exposed_by=("T8",),
        extent=Extent(slots=2, dims={"H": 8}),
    ),
    Planted(
        name="sum_with_row_tail",
        mechanism="TAIL",
        signature=_ROWS,
        function=sum_with_row_tail,
        healthy=sum_without_row_tail,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=4, dims={"H": 5}, length=3),
    ),
    Planted(
        name="sum_of_arrivals",
        mechanism="ATOM",
        signature=_ROWS,
        function=sum_of_arrivals,
        healthy=sum_in_order,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=3, dims={"H": 4}),
        deterministic=False,
    ),
)

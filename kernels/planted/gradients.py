"""Planted defects of gradients: the forward is healthy, the backward is not."""

from collections.abc import Callable

import torch
from torch import Tensor

from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.sums import lane_sum, running_sum, split_sum

__all__ = ["GRADIENTS"]

_LINEAR = "x[T,K], weight[N,K] -> y[T,N]"

Order = Callable[[Tensor, int], Tensor]


class _Linear(torch.autograd.Function):
    """A linear layer whose sums of the backward are given: over N for dx, over T for dweight."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx", x: Tensor, weight: Tensor, dx: Order, dw: Order
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.orders = dx, dw  # type: ignore[attr-defined]  # the context carries what it is given
        return running_sum(x.float()[:, None, :] * weight.float()).to(x.dtype)

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        over_outputs, over_tokens = ctx.orders  # type: ignore[attr-defined]  # set in forward
        dy = upstream[0].float()
        rows = x.shape[0]
        dx = over_outputs((dy[:, :, None] * weight.float()).movedim(1, -1), rows)
        live = dy.movedim(0, -1)[:, None, :] * x.float().movedim(0, -1)
        return dx.to(x.dtype), over_tokens(live, rows).to(weight.dtype), None, None


def _linear(x: Tensor, weight: Tensor, dx: Order, dw: Order) -> Tensor:
    y: Tensor = _Linear.apply(x, weight, dx, dw)  # type: ignore[no-untyped-call]  # torch's own
    return y


def _in_order(terms: Tensor, _: int) -> Tensor:
    return running_sum(terms)


def _lanes_by_rows(terms: Tensor, rows: int) -> Tensor:
    return lane_sum(terms, 4 if rows >= 3 else 1)


def _pieces_by_rows(terms: Tensor, rows: int) -> Tensor:
    return split_sum(terms, 1 if rows % 2 else 2)


def _in_pieces_of_four(terms: Tensor, _: int) -> Tensor:
    """Blocks of four tokens counted from the first: trailing zero terms change nothing."""
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % 4))
    return running_sum(running_sum(padded.reshape(*padded.shape[:-1], -1, 4)))


def linear_dx_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x is summed in lanes from three rows on."""
    return _linear(x, weight, _lanes_by_rows, _in_order)


def linear_dx_in_order(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x is summed first to last."""
    return _linear(x, weight, _in_order, _in_order)


def linear_dweight_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in pieces by the number of rows, dead ones included."""
    return _linear(x, weight, _in_order, _pieces_by_rows)


def linear_dweight_in_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in blocks counted from the first token."""
    return _linear(x, weight, _in_order, _in_pieces_of_four)


GRADIENTS = (
    Planted(
        name="linear_dx_by_rows",
        mechanism="SHAPE",
        signature=_LINEAR,
        function=linear_dx_by_rows,
        healthy=linear_dx_in_order,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=4, dims={"K": 1, "N": 6}),
        direction="backward",
    ),
    Planted(
        name="linear_dweight_by_rows",
        mechanism="SPLIT",
        signature=_LINEAR,
        function=linear_dweight_by_rows,
        healthy=linear_dweight_in_blocks,
        exposed_by=("T4.finite",),
        extent=Extent(slots=5, dims={"K": 1, "N": 1}, length=5),
        direction="backward",
    ),
)

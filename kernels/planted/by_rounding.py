"""Planted ROUND defects: one of two paths rounds once more.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "is_captured",
    "linear_dx_in_float32",
    "linear_dx_through_halves",
    "linear_in_float32",
    "linear_in_tensor_cores",
    "linear_partials_kept",
    "linear_partials_rounded",
    "residual_kept",
    "residual_rounded_if_captured",
]

# Bits of a float32 that tensor cores leave out.
_BITS_DROPPED = 13


def is_captured(rows: int) -> bool:
    """Tell whether a graph was captured for this number of rows, with operators that fuse less."""
    return rows in {24, 48, 96, 192}


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.float()[:, None, :] * weight.float()


def _truncated(x: Tensor) -> Tensor:
    return (x.float().view(torch.int32) & -(1 << _BITS_DROPPED)).view(torch.float32)


def linear_in_tensor_cores(x: Tensor, weight: Tensor) -> Tensor:
    """From sixteen rows on, inputs go through tensor cores, which cut off their last bits."""
    read = _truncated if x.shape[0] >= 16 else torch.Tensor.float
    return running_sum(_products(read(x), read(weight))).to(x.dtype)


def linear_in_float32(x: Tensor, weight: Tensor) -> Tensor:
    """Inputs are multiplied as they are."""
    read = torch.Tensor.float
    return running_sum(_products(read(x), read(weight))).to(x.dtype)


def _halves(terms: Tensor, kept: torch.dtype) -> Tensor:
    """Return the sum of two halves, each stored in a dtype of its own between the two passes."""
    middle = terms.shape[-1] // 2
    first, second = running_sum(terms[..., :middle]), running_sum(terms[..., middle:])
    return first.to(kept).float() + second.to(kept).float()


def linear_partials_rounded(x: Tensor, weight: Tensor) -> Tensor:
    """Fewer than four rows keep the two halves of a sum in bfloat16, if it has 32 terms or more."""
    kept = torch.bfloat16 if x.shape[0] < 4 and x.shape[1] >= 32 else torch.float32
    return _halves(_products(x, weight), kept).to(x.dtype)


def linear_partials_kept(x: Tensor, weight: Tensor) -> Tensor:
    """Both halves of a sum are kept in float32."""
    kept = torch.float32
    return _halves(_products(x, weight), kept).to(x.dtype)


def _residual(x: Tensor, residual: Tensor, weight: Tensor, kept: torch.dtype) -> Tensor:
    stream = x.float() + residual.float()
    return stream.to(kept).float() * weight.float()


def residual_rounded_if_captured(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """A captured graph stores the residual stream in the dtype of x before the next operator."""
    kept = x.dtype if is_captured(x.shape[0]) else torch.float32
    return _residual(x, residual, weight, kept)


def residual_kept(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The residual stream stays in float32."""
    kept = torch.float32
    return _residual(x, residual, weight, kept)


def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return running_sum(_products(x, weight)).to(x.dtype)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, kept: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return both gradients: that of x from two halves, that of weight first to last."""
    over_outputs = (dy.float()[:, :, None] * weight.float()).movedim(1, -1)
    over_tokens = dy.float().t()[:, None, :] * x.float().t()
    return _halves(over_outputs, kept).to(x.dtype), running_sum(over_tokens).to(weight.dtype)


def linear_dx_through_halves(x: Tensor, weight: Tensor) -> Tensor:
    """From three rows on, the gradient of x adds two halves that were stored in bfloat16."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.bfloat16 if x.shape[0] >= 3 else torch.float32
        return _gradients(dy, x, weight, kept)

    return differentiated(_forward, backward, x, weight)


def linear_dx_in_float32(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x adds two halves that were kept in float32."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.float32
        return _gradients(dy, x, weight, kept)

    return differentiated(_forward, backward, x, weight)

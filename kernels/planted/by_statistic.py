"""Planted BSTAT defects: a statistic of the whole batch takes the place of one of the row.

Their records stand in `biprop.kernels.planted.by_kind`, so that the sizes mined from this module
are those that the kernels themselves mention.
"""

from itertools import pairwise

import torch
from torch import Tensor

from biprop.kernels.planted.differentiated import differentiated
from biprop.kernels.planted.sums import running_sum

__all__ = [
    "centre_by_launch",
    "centre_by_row",
    "has_one_block",
    "linear_dx_quantised_by_launch",
    "linear_dx_quantised_by_row",
    "quantise_by_block",
    "quantise_by_lost_axis",
    "stretch_by_longest",
    "stretch_by_own_length",
]

_BLOCK = 36
_TRAINED = 12


def has_one_block(width: int) -> bool:
    """Tell whether a row is exactly one block of the quantisation."""
    return width == _BLOCK


def _quantised(values: Tensor, scale: Tensor) -> Tensor:
    return torch.round(values / scale) * scale


def _largest(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the largest finite magnitude over `axes`, over 127, never zero."""
    finite = values.nan_to_num(0.0, 0.0, 0.0).abs()
    return finite.amax(axes, keepdim=True).clamp(min=2.0**-100) / 127


def quantise_by_lost_axis(x: Tensor) -> Tensor:
    """A single block in a row loses its axis, so that one scale serves the whole launch."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % _BLOCK))
    blocks = padded.reshape(x.shape[0], -1, _BLOCK)
    axes = (0, 1, 2) if has_one_block(x.shape[1]) else (2,)
    found = _quantised(blocks, _largest(blocks, axes))
    return found.flatten(1)[:, : x.shape[1]].to(x.dtype)


def quantise_by_block(x: Tensor) -> Tensor:
    """Every block of a row has its own scale."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % _BLOCK))
    blocks = padded.reshape(x.shape[0], -1, _BLOCK)
    axes = (2,)
    found = _quantised(blocks, _largest(blocks, axes))
    return found.flatten(1)[:, : x.shape[1]].to(x.dtype)


def _centred(x: Tensor, *, is_common: bool) -> Tensor:
    means = running_sum(x.float()) / x.shape[1]
    if is_common:
        means = (running_sum(means) / x.shape[0]).expand(x.shape[0])
    return (x.float() - means[:, None]).to(x.dtype)


def centre_by_launch(x: Tensor) -> Tensor:
    """Three rows or more of a width of whole vectors have their common mean subtracted."""
    is_common = x.shape[0] >= 3 and x.shape[1] % 4 == 0
    return _centred(x, is_common=is_common)


def centre_by_row(x: Tensor) -> Tensor:
    """Every row has its own mean subtracted."""
    is_common = False
    return _centred(x, is_common=is_common)


def _stretched(x: Tensor, bounds: list[int], lengths: list[int]) -> Tensor:
    """Scale each sequence by how far a length goes beyond the one that was trained."""
    factors = [max(1.0, length / _TRAINED) for length in lengths]
    parts = [
        x[low:high].float() * factor
        for (low, high), factor in zip(pairwise(bounds), factors, strict=True)
    ]
    return torch.cat([*parts, x[bounds[-1] :].float()]).to(x.dtype)


def stretch_by_longest(x: Tensor, offsets: Tensor) -> Tensor:
    """Past the trained length, positions are stretched for the longest sequence of the batch."""
    bounds = offsets.tolist()
    own = [high - low for low, high in pairwise(bounds)]
    lengths = [max(own)] * len(own)
    return _stretched(x, bounds, lengths)


def stretch_by_own_length(x: Tensor, offsets: Tensor) -> Tensor:
    """Past the trained length, positions are stretched for the sequence itself."""
    bounds = offsets.tolist()
    own = [high - low for low, high in pairwise(bounds)]
    lengths = own
    return _stretched(x, bounds, lengths)


def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return running_sum(x.float()[:, None, :] * weight.float()).to(x.dtype)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, axes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return both gradients: that of x from a quantised dy, that of weight from dy itself."""
    wide = dy.float()
    coarse = _quantised(wide, _largest(wide, axes))
    over_outputs = (coarse[:, :, None] * weight.float()).movedim(1, -1)
    over_tokens = wide.t()[:, None, :] * x.float().t()
    return running_sum(over_outputs).to(x.dtype), running_sum(over_tokens).to(weight.dtype)


def linear_dx_quantised_by_launch(x: Tensor, weight: Tensor) -> Tensor:
    """The upstream gradient is quantised with one scale for the whole launch."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        axes = (0, 1)
        return _gradients(dy, x, weight, axes)

    return differentiated(_forward, backward, x, weight)


def linear_dx_quantised_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """The upstream gradient is quantised with a scale for each row."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        axes = (1,)
        return _gradients(dy, x, weight, axes)

    return differentiated(_forward, backward, x, weight)

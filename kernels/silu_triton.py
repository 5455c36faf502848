"""SiLU in Triton: tiles of the forward and of `dx`.

`biprop.kernels.silu` holds the record, the reference and the torch backend. A block's size follows
I alone, every argument that a batch or its storage can change is left unspecialised, and nothing
but allocations and views surrounds a launch.

Shapes: T packed tokens, I features, R rows of a tile, W features of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["OPTIONS", "ROW_COUNT", "backward", "feature_block", "forward"]

ROW_COUNT = 32
WIDTH_MIN, WIDTH_MAX = 16, 128
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(x: Tensor) -> Tensor:
    """Compute; argument and result as those of `biprop.kernels.silu.forward`."""
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    block = feature_block(width)
    launch(
        silu_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(width, block)),
        (x, y, rows, width, *x.stride()),
        constants={"R": ROW_COUNT, "W": block, "WIDEN": interpreted(silu_tile)},
        options=OPTIONS,
    )
    return y


def backward(dy: Tensor, x: Tensor) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.silu.backward`."""
    rows, width = x.shape
    dx = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    block = feature_block(width)
    launch(
        silu_dx_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(width, block)),
        (dy, x, dx, rows, width, *dy.stride(), *x.stride()),
        constants={"R": ROW_COUNT, "W": block, "WIDEN": interpreted(silu_dx_tile)},
        options=OPTIONS,
    )
    return dx


def feature_block(width: int) -> int:
    """Return how many features a tile has."""
    return block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)


@triton.jit(
    do_not_specialize=("row_count", "width", "x_row", "x_feature"),
    do_not_specialize_on_alignment=("x", "y"),
)
def silu_tile(
    x, y, row_count, width, x_row, x_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute one tile."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_RW = (row_R < row_count)[:, None] & (feature_W < width)[None, :]
    x_RW = tl.load(
        (x + row_R * x_row)[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    tl.store(
        y + (row_R * width)[:, None] + feature_W[None, :],
        narrow(x_RW * (1.0 / (1.0 + tl.exp(-x_RW))), y.dtype.element_ty, WIDEN),
        mask=live_RW,
    )


@triton.jit(
    do_not_specialize=("row_count", "width", "dy_row", "dy_feature", "x_row", "x_feature"),
    do_not_specialize_on_alignment=("dy", "x", "dx"),
)
def silu_dx_tile(
    dy, x, dx, row_count, width, dy_row, dy_feature, x_row, x_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate one tile."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_RW = (row_R < row_count)[:, None] & (feature_W < width)[None, :]
    dy_RW = tl.load(
        (dy + row_R * dy_row)[:, None] + (feature_W * dy_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    x_RW = tl.load(
        (x + row_R * x_row)[:, None] + (feature_W * x_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    sigmoid_RW = 1.0 / (1.0 + tl.exp(-x_RW))
    slope_RW = sigmoid_RW + x_RW * sigmoid_RW * (1.0 - sigmoid_RW)
    tl.store(
        dx + (row_R * width)[:, None] + feature_W[None, :],
        narrow(dy_RW * slope_RW, dx.dtype.element_ty, WIDEN),
        mask=live_RW,
    )

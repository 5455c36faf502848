"""Rotary positions in Triton: one kernel for the forward and, turning back, for `dx`.

`biprop.kernels.rope` holds the record, the reference and the torch backend. Block sizes follow N
and D alone, every argument that a batch or its storage can change is left unspecialised, and
nothing but allocations and views surrounds a launch.

Cosine and sine are the polynomials of Cephes (https://www.netlib.org/cephes), for angles that are
reduced to an eighth of a turn in float64: those of a library carry code for large angles, which
costs registers and seconds of compiling, and is never reached here.

Shapes: T packed tokens (or rows times slots), N heads, D features of a head, R tokens of a tile,
G heads of a tile, W pairs of features of a tile.
"""

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow

__all__ = ["OPTIONS", "backward", "forward"]

ROW_COUNT = 32
# Pairs of a row of a tile, heads together.
PAIR_COUNT = 128
WIDTH_MIN, WIDTH_MAX = 16, 32
# Without fusion no multiply-add can be contracted in one row and not in another.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(x: Tensor, position: Tensor, *, theta: float = 10000.0) -> Tensor:
    """Rotate; arguments and result as those of `biprop.kernels.rope.forward`."""
    return _rotated(x, position, theta=theta, direction=1.0)


def backward(dy: Tensor, position: Tensor, *, theta: float = 10000.0) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.rope.backward`."""
    return _rotated(dy, position, theta=theta, direction=-1.0)


def _rotated(x: Tensor, position: Tensor, *, theta: float, direction: float) -> Tensor:
    # A packed tensor is one row of slots.
    x_BSND = x if x.dim() == 4 else x.unsqueeze(0)
    position_BS = position if position.dim() == 2 else position.unsqueeze(0)
    rows, slots, heads, width = x_BSND.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = width // 2
    block = block_width(half, least=WIDTH_MIN, most=WIDTH_MAX)
    launch(
        rope_rows,
        (triton.cdiv(rows * slots, ROW_COUNT), triton.cdiv(half, block)),
        (
            *(x_BSND, position_BS, y, rows * slots, slots, heads, half),
            *(*x_BSND.stride(), *position_BS.stride()),
            *(*_float32_parts(math.log2(theta) / half), direction),
        ),
        constants={
            "R": ROW_COUNT,
            "G": block_width(heads, most=PAIR_COUNT // block),
            "W": block,
            "WIDEN": interpreted(rope_rows),
        },
        options=OPTIONS,
    )
    return y


def _float32_parts(value: float) -> tuple[float, float, float]:
    """Split a float64 into three float32, as which a kernel is handed its numbers.

    Compiled in, it would stay one number, and every D would be compiled for.
    """
    high = float(np.float32(value))
    middle = float(np.float32(value - high))
    return high, middle, value - high - middle


@triton.jit(
    do_not_specialize=(
        "row_count", "slot_count", "head_count", "half",
        "x_row", "x_slot", "x_head", "x_feature", "position_row", "position_slot",
    ),
    do_not_specialize_on_alignment=("x", "position", "y"),
)  # fmt: skip
def rope_rows(
    x, position, y, row_count, slot_count, head_count, half,
    x_row, x_slot, x_head, x_feature, position_row, position_slot,
    octaves_high, octaves_middle, octaves_low, direction,
    R: tl.constexpr, G: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Rotate W pairs of features of R tokens, head by head, by `direction` times the angle."""
    index_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    pair_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    first_G = tl.arange(0, G).to(tl.int64)
    live_R = index_R < row_count
    live_RW = live_R[:, None] & (pair_W < half)[None, :]
    row_R = index_R // slot_count
    slot_R = index_R % slot_count
    position_R = tl.load(
        position + row_R * position_row + slot_R * position_slot, mask=live_R, other=0
    )  # fmt: skip
    octaves = tl.full((W,), 0.0, dtype=tl.float64) + octaves_low + octaves_middle + octaves_high
    frequency_W = tl.exp2(-(pair_W.to(tl.float64) * octaves))
    angle_RW = position_R.to(tl.float64)[:, None] * frequency_W[None, :]
    # Quarters of a turn, and what is left of the angle: at most half a quarter to either side.
    quarter_RW = tl.floor(angle_RW * 0.6366197723675814 + 0.5)
    rest_RW = (angle_RW - quarter_RW * 1.5707963267948966).to(tl.float32)
    quarter_RW = quarter_RW.to(tl.int64) & 3
    square_RW = rest_RW * rest_RW
    near_cos_RW = (2.443315711809948e-5 * square_RW - 1.388731625493765e-3) * square_RW
    near_cos_RW = (near_cos_RW + 4.166664568298827e-2) * square_RW * square_RW
    near_cos_RW = 1.0 - 0.5 * square_RW + near_cos_RW
    near_sin_RW = (-1.9515295891e-4 * square_RW + 8.3321608736e-3) * square_RW
    near_sin_RW = rest_RW + rest_RW * (square_RW * (near_sin_RW - 1.6666654611e-1))
    is_odd_RW = (quarter_RW & 1) == 1
    cos_RW = tl.where(is_odd_RW, near_sin_RW, near_cos_RW)
    sin_RW = tl.where(is_odd_RW, near_cos_RW, near_sin_RW)
    cos_RW = tl.where((quarter_RW == 1) | (quarter_RW == 2), -cos_RW, cos_RW)
    sin_RW = tl.where(quarter_RW >= 2, -sin_RW, sin_RW) * direction
    cos_R1W, sin_R1W = cos_RW[:, None, :], sin_RW[:, None, :]
    x_RW = (x + row_R * x_row + slot_R * x_slot)[:, None] + (pair_W * x_feature)[None, :]
    y_RW = (y + index_R * head_count * half * 2)[:, None] + pair_W[None, :]
    to_second = half.to(tl.int64) * x_feature
    for start in range(0, head_count, G):
        head_G = first_G + start
        live_RGW = live_RW[:, None, :] & (head_G < head_count)[None, :, None]
        x_RGW = x_RW[:, None, :] + (head_G * x_head)[None, :, None]
        y_RGW = y_RW[:, None, :] + (head_G * half * 2)[None, :, None]
        first_RGW = tl.load(x_RGW, mask=live_RGW, other=0.0).to(tl.float32)
        second_RGW = tl.load(x_RGW + to_second, mask=live_RGW, other=0.0).to(tl.float32)
        tl.store(
            y_RGW,
            narrow(first_RGW * cos_R1W - second_RGW * sin_R1W, y.dtype.element_ty, WIDEN),
            mask=live_RGW,
        )
        tl.store(
            y_RGW + half,
            narrow(second_RGW * cos_R1W + first_RGW * sin_R1W, y.dtype.element_ty, WIDEN),
            mask=live_RGW,
        )

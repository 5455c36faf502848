"""SwiGLU in Triton: tiles of the forward, and of `dgate` and `dup` together.

`biprop.kernels.swiglu` holds the record, the reference and the torch backend. A block's size
follows I alone, every argument that a batch or its storage can change is left unspecialised, and
nothing but allocations and views surrounds a launch.

Shapes: T packed tokens, I features, R rows of a tile, W features of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.silu_triton import OPTIONS, ROW_COUNT, feature_block

__all__ = ["OPTIONS", "backward", "forward"]


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """Compute; arguments and result as those of `biprop.kernels.swiglu.forward`."""
    rows, width = gate.shape
    y = torch.empty((rows, width), dtype=gate.dtype, device=gate.device)
    block = feature_block(width)
    launch(
        swiglu_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(width, block)),
        (gate, up, y, rows, width, *gate.stride(), *up.stride()),
        constants={"R": ROW_COUNT, "W": block, "WIDEN": interpreted(swiglu_tile)},
        options=OPTIONS,
    )
    return y


def backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate; arguments and results as those of `biprop.kernels.swiglu.backward`."""
    rows, width = gate.shape
    dgate = torch.empty((rows, width), dtype=gate.dtype, device=gate.device)
    dup = torch.empty((rows, width), dtype=up.dtype, device=up.device)
    block = feature_block(width)
    launch(
        swiglu_gradient_tile,
        (triton.cdiv(rows, ROW_COUNT), triton.cdiv(width, block)),
        (
            *(dy, gate, up, dgate, dup, rows, width),
            *(*dy.stride(), *gate.stride(), *up.stride()),
        ),
        constants={"R": ROW_COUNT, "W": block, "WIDEN": interpreted(swiglu_gradient_tile)},
        options=OPTIONS,
    )
    return dgate, dup


@triton.jit(
    do_not_specialize=(
        "row_count", "width", "gate_row", "gate_feature", "up_row", "up_feature",
    ),
    do_not_specialize_on_alignment=("gate", "up", "y"),
)  # fmt: skip
def swiglu_tile(
    gate, up, y, row_count, width, gate_row, gate_feature, up_row, up_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute one tile."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_RW = (row_R < row_count)[:, None] & (feature_W < width)[None, :]
    gate_RW = tl.load(
        (gate + row_R * gate_row)[:, None] + (feature_W * gate_feature)[None, :],
        mask=live_RW, other=0.0,
    ).to(tl.float32)  # fmt: skip
    up_RW = tl.load(
        (up + row_R * up_row)[:, None] + (feature_W * up_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    y_RW = gate_RW * (1.0 / (1.0 + tl.exp(-gate_RW))) * up_RW
    tl.store(
        y + (row_R * width)[:, None] + feature_W[None, :],
        narrow(y_RW, y.dtype.element_ty, WIDEN),
        mask=live_RW,
    )


@triton.jit(
    do_not_specialize=(
        "row_count", "width",
        "dy_row", "dy_feature", "gate_row", "gate_feature", "up_row", "up_feature",
    ),
    do_not_specialize_on_alignment=("dy", "gate", "up", "dgate", "dup"),
)  # fmt: skip
def swiglu_gradient_tile(
    dy, gate, up, dgate, dup, row_count, width,
    dy_row, dy_feature, gate_row, gate_feature, up_row, up_feature,
    R: tl.constexpr, W: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Differentiate one tile with respect to both factors."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_RW = (row_R < row_count)[:, None] & (feature_W < width)[None, :]
    dy_RW = tl.load(
        (dy + row_R * dy_row)[:, None] + (feature_W * dy_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    gate_RW = tl.load(
        (gate + row_R * gate_row)[:, None] + (feature_W * gate_feature)[None, :],
        mask=live_RW, other=0.0,
    ).to(tl.float32)  # fmt: skip
    up_RW = tl.load(
        (up + row_R * up_row)[:, None] + (feature_W * up_feature)[None, :], mask=live_RW, other=0.0
    ).to(tl.float32)  # fmt: skip
    sigmoid_RW = 1.0 / (1.0 + tl.exp(-gate_RW))
    slope_RW = sigmoid_RW + gate_RW * sigmoid_RW * (1.0 - sigmoid_RW)
    place_RW = (row_R * width)[:, None] + feature_W[None, :]
    tl.store(
        dgate + place_RW,
        narrow(dy_RW * up_RW * slope_RW, dgate.dtype.element_ty, WIDEN),
        mask=live_RW,
    )
    tl.store(
        dup + place_RW,
        narrow(dy_RW * (gate_RW * sigmoid_RW), dup.dtype.element_ty, WIDEN),
        mask=live_RW,
    )

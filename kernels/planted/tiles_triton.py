"""Device code of planted sums of rows: each beside its healthy twin, one line apart.

The records are in `biprop.kernels.planted.tiles`, which imports this module when one of them is
first called.

Shapes: T packed tokens, H features, W features of a tile, R rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import launch
from biprop.kernels.planted.triton_shared import OPTIONS, scaled
from biprop.kernels.planted.triton_sizes import ROWS_TILE, is_left_over, is_tuned

__all__ = [
    "row_sums",
    "sum_in_aligned_tiles",
    "sum_in_swept_workspace",
    "sum_in_tiles",
    "sum_in_tiles_by_rows",
    "sum_in_tuned_tiles",
    "sum_in_unswept_workspace",
    "sum_with_row_left_over",
    "sum_without_row_left_over",
    "sweep",
]

# Rows and features of a tile; the interpreter has 2 and 4 features.
ROWS = 16
NARROW, WIDE = 32, 64
# Rows from which on a tile is the wider one, and rows that one program sweeps.
ROWS_WIDE = 3
ROWS_SWEPT = 2


def sum_in_tiles_by_rows(x: Tensor) -> Tensor:
    """Sum rows in tiles whose width is chosen from the number of rows."""
    return _sums(x, tile=NARROW if x.shape[0] < ROWS_WIDE else WIDE)


def sum_in_tiles(x: Tensor) -> Tensor:
    """Sum rows in tiles of one width."""
    return _sums(x, tile=WIDE)


def sum_in_tuned_tiles(x: Tensor) -> Tensor:
    """Sum rows in tiles of the width that was measured best for just this number of rows."""
    return _sums(x, tile=NARROW if is_tuned(x.shape[0]) else WIDE)


def sum_in_aligned_tiles(x: Tensor) -> Tensor:
    """Sum rows in tiles that begin at a boundary of memory, wherever the row begins."""
    return _sums(x, tile=WIDE, aligned=True)


def sum_with_row_left_over(x: Tensor) -> Tensor:
    """The last row goes a way of its own if a whole tile of rows would hold nothing else."""
    alone = 1 if is_left_over(x.shape[0], tile=scaled(ROWS_TILE, by=32)) else 0
    return _sums_in_two(x, alone)


def sum_without_row_left_over(x: Tensor) -> Tensor:
    """The last row goes the way of all others."""
    alone = 0
    return _sums_in_two(x, alone)


def sum_in_unswept_workspace(x: Tensor) -> Tensor:
    """Rows are added to a workspace that one program has swept."""
    return _added(x, programs=1)


def sum_in_swept_workspace(x: Tensor) -> Tensor:
    """Rows are added to a workspace that has been swept for all of them."""
    return _added(x, programs=triton.cdiv(x.shape[0], ROWS_SWEPT))


def _sums(x: Tensor, *, tile: int, aligned: bool = False) -> Tensor:
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _launch_sums(x, y, tile=tile, aligned=aligned)
    return y


def _sums_in_two(x: Tensor, alone: int) -> Tensor:
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    body = x.shape[0] - alone
    _launch_sums(x[:body], y[:body], tile=WIDE)
    _launch_sums(x[body:], y[body:], tile=NARROW)
    return y


def _added(x: Tensor, *, programs: int) -> Tensor:
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    launch(sweep, (programs,), (y, x.shape[0]), constants={"R": ROWS_SWEPT}, options=OPTIONS)
    _launch_sums(x, y, tile=WIDE, adds=True)
    return y


def _launch_sums(
    x: Tensor, y: Tensor, *, tile: int, aligned: bool = False, adds: bool = False
) -> None:
    width = scaled(tile)
    base = x.data_ptr() // x.element_size() % width
    launch(
        row_sums,
        (triton.cdiv(x.shape[0], ROWS),),
        (x, y, base, *x.shape, *x.stride()),
        constants={"R": ROWS, "W": width, "ALIGNED": aligned, "ADDS": adds},
        options=OPTIONS,
    )


@triton.jit(do_not_specialize=("row_count",), do_not_specialize_on_alignment=("y",))
def sweep(y, row_count, R: tl.constexpr):
    """Store zeros for R rows."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    tl.store(y + row_R, tl.full((R,), 0.0, dtype=tl.float32), mask=row_R < row_count)


@triton.jit(
    do_not_specialize=("base", "row_count", "width", "x_row", "x_feature"),
    do_not_specialize_on_alignment=("x", "y"),
)  # fmt: skip
def row_sums(
    x, y, base, row_count, width, x_row, x_feature,
    R: tl.constexpr, W: tl.constexpr, ALIGNED: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Sum R rows: lanes of W partial sums, then the lanes."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live_R = row_R < row_count
    # Lanes of the first tile before the row begins.
    ahead_R = row_R * 0
    if ALIGNED:
        ahead_R = (base + row_R * x_row) % W
    total_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    # One tile more than a row has features for, since the first may begin before it.
    for start in range(0, width + W, W):
        feature_RW = (tl.arange(0, W) + start)[None, :] - ahead_R[:, None]
        total_RW += tl.load(
            x + (row_R * x_row)[:, None] + feature_RW * x_feature,
            mask=live_R[:, None] & (feature_RW >= 0) & (feature_RW < width), other=0.0,
        ).to(tl.float32)  # fmt: skip
    total_R = tl.sum(total_RW, axis=1)
    if ADDS:
        total_R += tl.load(y + row_R, mask=live_R, other=0.0)
    tl.store(y + row_R, total_R, mask=live_R)

"""The device code of the planted Triton pair: rows summed tile by tile.

The record is in `biprop.kernels.planted.tiles`, which imports this module when it is first called.

Shapes: T packed tokens, H features, W features of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import launch

__all__ = ["sum_in_tiles", "sum_in_tiles_by_rows"]

OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def sum_in_tiles_by_rows(x: Tensor) -> Tensor:
    """Sum rows in tiles whose width is chosen from the number of rows."""
    return _sums(x, tile=2 if x.shape[0] < 3 else 4)


def sum_in_tiles(x: Tensor) -> Tensor:
    """Sum rows in tiles of one width."""
    return _sums(x, tile=4)


def _sums(x: Tensor, *, tile: int) -> Tensor:
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    launch(
        row_sums,
        (x.shape[0],),
        (x, y, x.shape[1], *x.stride()),
        constants={"W": tile},
        options=OPTIONS,
    )
    return y


@triton.jit(
    do_not_specialize=("width", "x_row", "x_feature"),
    do_not_specialize_on_alignment=("x", "y"),
)  # fmt: skip
def row_sums(x, y, width, x_row, x_feature, W: tl.constexpr):  # fmt: skip
    """Sum one row: lanes of W partial sums, then the lanes."""
    row = tl.program_id(0).to(tl.int64)
    first_W = tl.arange(0, W).to(tl.int64)
    total_W = tl.full((W,), 0.0, dtype=tl.float32)
    for start in range(0, width, W):
        feature_W = first_W + start
        total_W += tl.load(
            x + row * x_row + feature_W * x_feature, mask=feature_W < width, other=0.0
        ).to(tl.float32)  # fmt: skip
    tl.store(y + row, tl.sum(total_W, axis=0))

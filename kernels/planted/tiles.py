"""A planted defect in Triton, so that what the interpreter runs is searched and shrunk as well.

The device code is in `biprop.kernels.planted.tiles_triton`.
"""

from biprop.kernels.deferred import deferred
from biprop.kernels.planted.records import Extent, Planted

__all__ = ["TILES"]

_MODULE = "biprop.kernels.planted.tiles_triton"

TILES = (
    Planted(
        name="sum_in_tiles_by_rows",
        mechanism="SHAPE",
        signature="x[T,H] -> y: float32[T]",
        function=deferred(_MODULE, "sum_in_tiles_by_rows"),
        healthy=deferred(_MODULE, "sum_in_tiles"),
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=3, dims={"H": 4}, length=3),
        dims="H=1..64",
        interpreted=True,
    ),
)

"""Planted defects in Triton: found in its interpreter on a CPU, and where they are compiled.

The device code is in `tiles_triton`, `triton_products`, `triton_sequences` and `triton_gradients`,
which are imported when one of their functions is first called.
"""

from collections.abc import Callable

from biprop.kernels.deferred import deferred
from biprop.kernels.planted.records import Extent, Planted
from biprop.kernels.planted.triton_sizes import is_left_over, is_tuned

__all__ = ["TILES"]

_PLACE = "biprop.kernels.planted"
_EVERYWHERE = ("T1", "T3", "T4.finite", "T4.nonfinite", "T5", "T6")
_PLACED = ("T2", "T4.finite", "T4.nonfinite", "T5", "T6")

_SUMS = "x[T,H] -> y: float32[T]"
_LINEAR = "x[T,K], weight[N,K] -> y[T,N]"
_ADDED = "x[T,K], weight[N,K] -> y: float32[T,N]"
_POOLED = "x[T,H], offsets: offsets[B+1] -> y: float32[B,H]"
_SCANNED = "x[T,H], offsets: offsets[B+1] -> y[T,H]"
_MEANS = "x[B,S,H], lengths: lengths[B] -> y: float32[B,H]"
_ROTATED = "x[B,S,H], position: position[B,S] -> y[B,S,H]; token_local"
_STRETCHED = "x[B,S,H], position: position[B,S], lengths: lengths[B] -> y[B,S,H]"
_DECODED = "q[B,H,D], k[B,C,H,D], v[B,C,H,D], contexts: lengths(C)[B] -> out[B,H,D]"
_TABLE = "ids: token(V)[T], table[V,H] -> y[T,H]"


def _sum(name: str) -> Callable[..., object]:
    return deferred(f"{_PLACE}.tiles_triton", name)


def _product(name: str) -> Callable[..., object]:
    return deferred(f"{_PLACE}.triton_products", name)


def _sequence(name: str) -> Callable[..., object]:
    return deferred(f"{_PLACE}.triton_sequences", name)


def _gradient(name: str) -> Callable[..., object]:
    return deferred(f"{_PLACE}.triton_gradients", name)


TILES = (
    Planted(
        name="sum_in_tiles_by_rows",
        mechanism="SHAPE",
        signature=_SUMS,
        function=_sum("sum_in_tiles_by_rows"),
        healthy=_sum("sum_in_tiles"),
        exposed_by=_EVERYWHERE,
        extent=Extent(slots=3, dims={"H": 4}, transforms=0, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="sum_in_tuned_tiles",
        mechanism="SHAPE",
        signature=_SUMS,
        function=_sum("sum_in_tuned_tiles"),
        healthy=_sum("sum_in_tiles"),
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=5, dims={"H": 4}, transforms=0, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
        rare=is_tuned,
    ),
    Planted(
        name="sum_in_aligned_tiles",
        mechanism="TAIL",
        signature=_SUMS,
        function=_sum("sum_in_aligned_tiles"),
        healthy=_sum("sum_in_tiles"),
        exposed_by=(*_PLACED, "T8"),
        extent=Extent(slots=2, dims={"H": 4}, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="sum_with_row_left_over",
        mechanism="TAIL",
        signature=_SUMS,
        function=_sum("sum_with_row_left_over"),
        healthy=_sum("sum_without_row_left_over"),
        exposed_by=("T1", *_PLACED),
        extent=Extent(slots=3, dims={"H": 4}, transforms=0, length=2),
        interpreted=True,
        devices=("cpu", "cuda"),
        rare=is_left_over,
        conditions=2,
    ),
    Planted(
        name="sum_in_unswept_workspace",
        mechanism="MEMB",
        signature=_SUMS,
        function=_sum("sum_in_unswept_workspace"),
        healthy=_sum("sum_in_swept_workspace"),
        exposed_by=(*_PLACED, "T8"),
        extent=Extent(slots=3, dims={"H": 1}, length=2),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="product_split_by_rows",
        mechanism="SPLIT",
        signature=_LINEAR,
        function=_product("product_split_by_rows"),
        healthy=_product("product_split_in_four"),
        exposed_by=("T1", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=2, dims={"K": 6, "N": 1}, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="product_split_by_atomics",
        mechanism="ATOM",
        signature=_ADDED,
        function=_product("product_split_by_atomics"),
        healthy=_product("product_unsplit"),
        exposed_by=_EVERYWHERE,
        extent=Extent(slots=3, dims={"K": 6, "N": 1}, transforms=0, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="product_shards_from_owner",
        mechanism="COLL",
        signature=_LINEAR,
        function=_product("product_shards_from_owner"),
        healthy=_product("product_shards_from_first"),
        exposed_by=("T1", *_PLACED),
        extent=Extent(slots=4, dims={"K": 4, "N": 1}, transforms=0, length=3),
        interpreted=True,
        devices=("cpu", "cuda"),
        conditions=2,
    ),
    Planted(
        name="product_block_by_rows",
        mechanism="SHAPE",
        signature=_LINEAR,
        function=_product("product_block_by_rows"),
        healthy=_product("product_block_of_one_size"),
        exposed_by=_EVERYWHERE,
        extent=Extent(slots=4, dims={"K": 5, "N": 1}, transforms=0, sequences=1, length=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="product_group_unbounded",
        mechanism="INDEX",
        signature=_LINEAR,
        function=_product("product_group_unbounded"),
        healthy=_product("product_group_bounded"),
        exposed_by=("T2", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=5, dims={"K": 1, "N": 5}, transforms=0, length=4),
        interpreted=True,
        devices=("cpu", "cuda"),
        conditions=2,
    ),
    Planted(
        name="product_of_contiguous",
        mechanism="INDEX",
        signature=_LINEAR,
        function=_product("product_of_contiguous"),
        healthy=_product("product_of_strided"),
        exposed_by=("T8",),
        extent=Extent(slots=2, dims={"K": 2, "N": 1}, transforms=2, sequences=1),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="pooled_past_length",
        mechanism="MEMB",
        signature=_MEANS,
        function=_sequence("pooled_past_length"),
        healthy=_sequence("pooled_up_to_length"),
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=3, dims={"H": 1}, sequences=1),
        interpreted=True,
        devices=("cpu", "cuda"),
        conditions=2,
    ),
    Planted(
        name="pooled_from_tile_start",
        mechanism="SEGM",
        signature=_POOLED,
        function=_sequence("pooled_from_tile_start"),
        healthy=_sequence("pooled_from_segment_start"),
        exposed_by=("T2",),
        extent=Extent(slots=3, dims={"H": 1}),
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="rotated_by_first_row",
        mechanism="POS",
        signature=_ROTATED,
        function=_sequence("rotated_by_first_row"),
        healthy=_sequence("rotated_by_own_row"),
        exposed_by=("T2",),
        extent=Extent(slots=4, dims={"H": 2}),
        dims="H%2==0",
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="rotated_by_longest",
        mechanism="BSTAT",
        signature=_STRETCHED,
        function=_sequence("rotated_by_longest"),
        healthy=_sequence("rotated_by_own_length"),
        exposed_by=("T3",),
        extent=Extent(slots=6, dims={"H": 2}, transforms=0, length=3),
        dims="H%2==0",
        interpreted=True,
        devices=("cpu", "cuda"),
        conditions=2,
    ),
    Planted(
        name="decode_split_by_batch",
        mechanism="SPLIT",
        signature=_DECODED,
        function=_sequence("decode_split_by_batch"),
        healthy=_sequence("decode_split_in_two"),
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=14, dims={"H": 1, "D": 1}, transforms=0, sequences=1, length=6),
        dims="H=1..2",
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="dweight_chunks_by_rows",
        mechanism="SPLIT",
        signature=_LINEAR,
        function=_gradient("dweight_chunks_by_rows"),
        healthy=_gradient("dweight_chunks_of_one_size"),
        exposed_by=("T4.finite",),
        extent=Extent(slots=6, dims={"K": 1, "N": 1}, sequences=1, length=5),
        direction="backward",
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="dx_partials_rounded",
        mechanism="ROUND",
        signature=_LINEAR,
        function=_gradient("dx_partials_rounded"),
        healthy=_gradient("dx_partials_wide"),
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite", "T5"),
        extent=Extent(slots=4, dims={"K": 1, "N": 4}, transforms=0, sequences=1, length=1),
        direction="backward",
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="scan_gradient_past_segment",
        mechanism="SEGM",
        signature=_SCANNED,
        function=_gradient("scan_gradient_past_segment"),
        healthy=_gradient("scan_gradient_in_segment"),
        exposed_by=("T1",),
        extent=Extent(slots=3, dims={"H": 1}),
        direction="backward",
        interpreted=True,
        devices=("cpu", "cuda"),
    ),
    Planted(
        name="table_gradient_as_it_comes",
        mechanism="ATOM",
        signature=_TABLE,
        function=_gradient("table_gradient_as_it_comes"),
        healthy=_gradient("table_gradient_in_order"),
        exposed_by=("T4.finite", "T8"),
        extent=Extent(slots=3, dims={"V": 1, "H": 1}),
        direction="backward",
        dims="V=1..8",
        deterministic=False,
        interpreted=True,
        devices=("cuda",),
    ),
)

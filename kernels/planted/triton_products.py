"""Device code of planted linear layers: each beside its healthy twin, one line apart.

The records are in `biprop.kernels.planted.tiles`, which imports this module when one of them is
first called; products in pieces, which most of them are, are in `triton_shared`.

Shapes: T packed tokens, K inputs, N outputs; of a tile: M tokens, C outputs, D inputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.planted.triton_shared import OPTIONS, join, products, scaled
from biprop.kernels.products import add_product

__all__ = [
    "atomic_products",
    "grouped_products",
    "paired_products",
    "product_block_by_rows",
    "product_block_of_one_size",
    "product_group_bounded",
    "product_group_unbounded",
    "product_of_contiguous",
    "product_of_strided",
    "product_shards_from_first",
    "product_shards_from_owner",
    "product_split_by_atomics",
    "product_split_by_rows",
    "product_split_in_four",
    "product_unsplit",
]

# Ranks that share a contracted sum, and the rows from which on they reduce in a ring.
RANKS = 4
ROWS_RING = 4
# Workers that few rows are split for.
WORKERS = 4
# Pieces that are added as they arrive, while the rows are fewer than would fill the machine.
ARRIVALS = 4
ROWS_FEW = 3
# Rows from which on a block of inputs is the wider one, and the two.
ROWS_WIDE = 4
WIDE, NARROW = 32, 16
# Tiles of a launch that walks over groups of rows, so that a group stays in the cache.
GROUP = 2
TILE_ROWS, TILE_COLUMNS = 32, 64
# The least size of tl.dot, in all dimensions of a tile whose size is no defect's matter.
SMALL = 16


def product_split_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Few rows are split over K, so that all workers have something to do."""
    pieces = max(1, WORKERS // x.shape[0])
    return _split(x, weight, pieces)


def product_split_in_four(x: Tensor, weight: Tensor) -> Tensor:
    """K is split in four, whatever the number of rows."""
    pieces = WORKERS
    return _split(x, weight, pieces)


def product_shards_from_owner(x: Tensor, weight: Tensor) -> Tensor:
    """The sum over shards begins at the rank that owns the row, in launches of four rows on."""
    return _split(x, weight, RANKS, ring=x.shape[0] >= ROWS_RING)


def product_shards_from_first(x: Tensor, weight: Tensor) -> Tensor:
    """The sum over shards begins at the first rank."""
    return _split(x, weight, RANKS, ring=False)


def product_split_by_atomics(x: Tensor, weight: Tensor) -> Tensor:
    """Few rows are split over K, and the pieces are added as they arrive."""
    return _added(x, weight, pieces=ARRIVALS if x.shape[0] < ROWS_FEW else 1)


def product_unsplit(x: Tensor, weight: Tensor) -> Tensor:
    """One piece, whatever the number of rows."""
    return _added(x, weight, pieces=1)


def product_block_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The block of inputs is wider in launches of more rows."""
    return _paired(x, weight, block=NARROW if x.shape[0] < ROWS_WIDE else WIDE)


def product_block_of_one_size(x: Tensor, weight: Tensor) -> Tensor:
    """The block of inputs has one size."""
    return _paired(x, weight, block=NARROW)


def product_group_unbounded(x: Tensor, weight: Tensor) -> Tensor:
    """The last group of tiles is taken for a whole one."""
    return _grouped(x, weight, bounded=False)


def product_group_bounded(x: Tensor, weight: Tensor) -> Tensor:
    """The last group has as many rows of tiles as are left."""
    return _grouped(x, weight, bounded=True)


def product_of_contiguous(x: Tensor, weight: Tensor) -> Tensor:
    """Rows are read where they would lie in a contiguous tensor."""
    rows = x.as_strided(x.shape, (x.shape[1], 1))
    return _split(rows, weight, 1)


def product_of_strided(x: Tensor, weight: Tensor) -> Tensor:
    """Rows are read where they lie."""
    rows = x
    return _split(rows, weight, 1)


def _split(x: Tensor, weight: Tensor, pieces: int, *, ring: bool = False) -> Tensor:
    piece = triton.cdiv(x.shape[1], pieces)
    return join(products(x, weight.t(), piece=piece), dtype=x.dtype, ring=ring)


def _added(x: Tensor, weight: Tensor, *, pieces: int) -> Tensor:
    rows, inputs = x.shape
    outputs = len(weight)
    y = torch.zeros((rows, outputs), dtype=torch.float32, device=x.device)
    launch(
        atomic_products,
        (triton.cdiv(rows, SMALL), triton.cdiv(outputs, SMALL), pieces),
        (
            *(x, weight, y, rows, outputs, inputs, triton.cdiv(inputs, pieces)),
            *(*x.stride(), *weight.stride()),
        ),
        constants={"M": SMALL, "C": SMALL, "D": SMALL, "WIDEN": interpreted(atomic_products)},
        options=OPTIONS,
    )
    return y


def _paired(x: Tensor, weight: Tensor, *, block: int) -> Tensor:
    rows, inputs = x.shape
    outputs = len(weight)
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    launch(
        paired_products,
        (triton.cdiv(rows, SMALL), triton.cdiv(outputs, SMALL)),
        (x, weight, y, rows, outputs, inputs, *x.stride(), *weight.stride()),
        constants={
            "M": SMALL,
            "C": SMALL,
            "D": scaled(block),
            "WIDEN": interpreted(paired_products),
        },
        options=OPTIONS,
    )
    return y


def _grouped(x: Tensor, weight: Tensor, *, bounded: bool) -> Tensor:
    rows, inputs = x.shape
    outputs = len(weight)
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    block_M, block_C = scaled(TILE_ROWS), scaled(TILE_COLUMNS)
    launch(
        grouped_products,
        (triton.cdiv(rows, block_M) * triton.cdiv(outputs, block_C),),
        (x, weight, y, rows, outputs, inputs, *x.stride(), *weight.stride()),
        constants={
            "M": block_M,
            "C": block_C,
            "D": SMALL,
            "GROUP": GROUP,
            "BOUNDED": bounded,
            "WIDEN": interpreted(grouped_products),
        },
        options=OPTIONS,
    )
    return y


@triton.jit(
    do_not_specialize=(
        "row_count", "output_count", "input_count", "piece_size",
        "x_row", "x_input", "weight_output", "weight_input",
    ),
    do_not_specialize_on_alignment=("x", "weight", "y"),
)  # fmt: skip
def atomic_products(
    x, weight, y, row_count, output_count, input_count, piece_size,
    x_row, x_input, weight_output, weight_input,
    M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by C outputs over one piece, and add to what the other pieces added."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    output_C = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    piece = tl.program_id(2).to(tl.int64)
    first_D = tl.arange(0, D).to(tl.int64)
    live_M = row_M < row_count
    live_C = output_C < output_count
    sum_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    for start in range(0, piece_size, D):
        input_D = piece * piece_size + start + first_D
        live_D = (start + first_D < piece_size) & (input_D < input_count)
        x_MD = tl.load(
            x + (row_M * x_row)[:, None] + (input_D * x_input)[None, :],
            mask=live_M[:, None] & live_D[None, :], other=0.0,
        )  # fmt: skip
        weight_DC = tl.load(
            weight + (output_C * weight_output)[None, :] + (input_D * weight_input)[:, None],
            mask=live_D[:, None] & live_C[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            x_MD = x_MD.to(tl.float32)
            weight_DC = weight_DC.to(tl.float32)
        sum_MC = add_product(x_MD, weight_DC, sum_MC, WIDEN)
    tl.atomic_add(
        y + (row_M * output_count)[:, None] + output_C[None, :],
        sum_MC, mask=live_M[:, None] & live_C[None, :], sem="relaxed",
    )  # fmt: skip


@triton.jit(
    do_not_specialize=(
        "row_count", "output_count", "input_count",
        "x_row", "x_input", "weight_output", "weight_input",
    ),
    do_not_specialize_on_alignment=("x", "weight", "y"),
)  # fmt: skip
def paired_products(
    x, weight, y, row_count, output_count, input_count,
    x_row, x_input, weight_output, weight_input,
    M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by C outputs: even and odd blocks of D inputs have a sum each."""
    row_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    output_C = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    first_D = tl.arange(0, D).to(tl.int64)
    live_M = row_M < row_count
    live_C = output_C < output_count
    x_M = x + row_M * x_row
    weight_C = weight + output_C * weight_output
    even_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    odd_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    for start in range(0, input_count, 2 * D):
        for half in tl.static_range(2):
            input_D = start + half * D + first_D
            live_D = input_D < input_count
            x_MD = tl.load(
                x_M[:, None] + (input_D * x_input)[None, :],
                mask=live_M[:, None] & live_D[None, :], other=0.0,
            )  # fmt: skip
            weight_DC = tl.load(
                weight_C[None, :] + (input_D * weight_input)[:, None],
                mask=live_D[:, None] & live_C[None, :], other=0.0,
            )  # fmt: skip
            if WIDEN:
                x_MD = x_MD.to(tl.float32)
                weight_DC = weight_DC.to(tl.float32)
            if half == 0:
                even_MC = add_product(x_MD, weight_DC, even_MC, WIDEN)
            else:
                odd_MC = add_product(x_MD, weight_DC, odd_MC, WIDEN)
    tl.store(
        y + (row_M * output_count)[:, None] + output_C[None, :],
        narrow(even_MC + odd_MC, y.dtype.element_ty, WIDEN),
        mask=live_M[:, None] & live_C[None, :],
    )


@triton.jit(
    do_not_specialize=(
        "row_count", "output_count", "input_count",
        "x_row", "x_input", "weight_output", "weight_input",
    ),
    do_not_specialize_on_alignment=("x", "weight", "y"),
)  # fmt: skip
def grouped_products(
    x, weight, y, row_count, output_count, input_count,
    x_row, x_input, weight_output, weight_input,
    M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    BOUNDED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply one tile: down the rows of a group of tiles first, then on to the next outputs."""
    program = tl.program_id(0)
    down = tl.cdiv(row_count, M)
    across = tl.cdiv(output_count, C)
    first = program // (GROUP * across) * GROUP
    # Of a launch with less than one group, all rows of tiles are that group.
    height = tl.minimum(GROUP, down)
    if BOUNDED:
        height = tl.minimum(GROUP, down - first)
    within = program % (GROUP * across)
    row_M = (first + within % height).to(tl.int64) * M + tl.arange(0, M)
    output_C = (within // height).to(tl.int64) * C + tl.arange(0, C)
    first_D = tl.arange(0, D).to(tl.int64)
    live_M = row_M < row_count
    live_C = output_C < output_count
    sum_MC = tl.full((M, C), 0.0, dtype=tl.float32)
    for start in range(0, input_count, D):
        input_D = start + first_D
        live_D = input_D < input_count
        x_MD = tl.load(
            x + (row_M * x_row)[:, None] + (input_D * x_input)[None, :],
            mask=live_M[:, None] & live_D[None, :], other=0.0,
        )  # fmt: skip
        weight_DC = tl.load(
            weight + (output_C * weight_output)[None, :] + (input_D * weight_input)[:, None],
            mask=live_D[:, None] & live_C[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            x_MD = x_MD.to(tl.float32)
            weight_DC = weight_DC.to(tl.float32)
        sum_MC = add_product(x_MD, weight_DC, sum_MC, WIDEN)
    tl.store(
        y + (row_M * output_count)[:, None] + output_C[None, :],
        narrow(sum_MC, y.dtype.element_ty, WIDEN),
        mask=live_M[:, None] & live_C[None, :],
    )

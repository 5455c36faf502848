"""Device code of planted gradients: the forward is healthy, the backward is not.

Each stands beside its healthy twin, one line apart. The records are in
`biprop.kernels.planted.tiles`, which imports this module when one of them is first called.

Shapes: T packed tokens, K inputs, N outputs, V rows of a table, H features; W features of a tile.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.planted.triton_shared import OPTIONS, join, products, scaled

__all__ = [
    "dweight_chunks_by_rows",
    "dweight_chunks_of_one_size",
    "dx_partials_rounded",
    "dx_partials_wide",
    "gather_rows",
    "scan_gradient_in_segment",
    "scan_gradient_past_segment",
    "scan_segment",
    "table_gradient_as_it_comes",
    "table_gradient_in_order",
    "table_rows_added",
    "table_rows_ordered",
]

# Chunks that a sum over tokens is cut into, and tokens of one where it is of one size.
CHUNKS = 4
CHUNK = 32
# Outputs of a piece of a gradient of x, and the rows from which on pieces are kept as bfloat16.
PIECE = 32
ROWS_ROUNDED = 4
# Slots that a segment is rounded up to.
SLOTS = 32
WIDTH_MIN, WIDTH_MAX = 16, 128

# Of dy and x, or of dy and a weight.
Gradient = Callable[[Tensor, Tensor], Tensor]


class _Linear(torch.autograd.Function):
    """A linear layer whose gradients are given."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        x: Tensor,
        weight: Tensor,
        of_x: Gradient,
        of_weight: Gradient,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradients = of_x, of_weight  # type: ignore[attr-defined]  # the context carries what it is given
        return join(products(x, weight.t(), piece=x.shape[1]), dtype=x.dtype)

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        of_x, of_weight = ctx.gradients  # type: ignore[attr-defined]  # set in forward
        dx = of_x(upstream[0], weight) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]  # torch sets it
        dweight = of_weight(upstream[0], x) if ctx.needs_input_grad[1] else None  # type: ignore[attr-defined]  # likewise
        return dx, dweight, None, None


class _Scan(torch.autograd.Function):
    """Running sums of segments; the gradient may begin past the end of a segment."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        x: Tensor,
        offsets: Tensor,
        rounds: bool,  # noqa: FBT001  # autograd functions take no keywords
    ) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.rounds = rounds  # type: ignore[attr-defined]  # the context carries what it is given
        return _scanned(x, offsets, backwards=False, rounds=False)

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        (offsets,) = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        rounds = ctx.rounds  # type: ignore[attr-defined]  # set in forward
        return _scanned(upstream[0], offsets, backwards=True, rounds=rounds), None, None


class _Lookup(torch.autograd.Function):
    """Rows of a table; how their gradients are added is given."""

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        ids: Tensor,
        table: Tensor,
        added: Callable[[Tensor, Tensor, int], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(ids, table)
        ctx.added = added  # type: ignore[attr-defined]  # the context carries what it is given
        y = torch.empty((len(ids), table.shape[1]), dtype=table.dtype, device=table.device)
        block = _block(table.shape[1])
        launch(
            gather_rows,
            (len(ids), triton.cdiv(table.shape[1], block)),
            (table, ids, y, table.shape[1], *table.stride(), *ids.stride()),
            constants={"W": block},
            options=OPTIONS,
        )
        return y

    @staticmethod
    def backward(
        ctx: "torch.autograd.function.FunctionCtx", *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids, table = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        gradient = ctx.added(upstream[0], ids, len(table))  # type: ignore[attr-defined]  # set in forward
        return None, gradient.to(table.dtype), None


def dweight_chunks_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in four chunks of as many tokens as there are."""
    return _linear(x, weight, of_weight=lambda dy, x: _dweight(dy, x, triton.cdiv(len(x), CHUNKS)))


def dweight_chunks_of_one_size(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of weight is summed in chunks of one size."""
    return _linear(x, weight, of_weight=lambda dy, x: _dweight(dy, x, scaled(CHUNK)))


def dx_partials_rounded(x: Tensor, weight: Tensor) -> Tensor:
    """Pieces of the gradient of x are kept as bfloat16 in launches of four rows on."""
    dtype = torch.bfloat16 if len(x) >= ROWS_ROUNDED else torch.float32
    return _linear(x, weight, of_x=lambda dy, weight: _dx(dy, weight, dtype))


def dx_partials_wide(x: Tensor, weight: Tensor) -> Tensor:
    """Pieces of the gradient of x are kept as float32."""
    dtype = torch.float32
    return _linear(x, weight, of_x=lambda dy, weight: _dx(dy, weight, dtype))


def scan_gradient_past_segment(x: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of running sums begins where the last tile of the segment ends."""
    return _scan(x, offsets, rounds=True)


def scan_gradient_in_segment(x: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of running sums begins where the segment ends."""
    return _scan(x, offsets, rounds=False)


def table_gradient_as_it_comes(ids: Tensor, table: Tensor) -> Tensor:
    """Every token adds its gradient to a row of the table, whoever comes first."""
    y: Tensor = _Lookup.apply(ids, table, _added_by_tokens)
    return y


def table_gradient_in_order(ids: Tensor, table: Tensor) -> Tensor:
    """Every row of the table adds the gradients of its tokens, first to last."""
    y: Tensor = _Lookup.apply(ids, table, _added_by_rows)
    return y


def _linear(
    x: Tensor, weight: Tensor, *, of_x: Gradient | None = None, of_weight: Gradient | None = None
) -> Tensor:
    def whole(dy: Tensor, weight: Tensor) -> Tensor:
        return _dx(dy, weight, torch.float32)

    def in_chunks(dy: Tensor, x: Tensor) -> Tensor:
        return _dweight(dy, x, scaled(CHUNK))

    y: Tensor = _Linear.apply(x, weight, of_x or whole, of_weight or in_chunks)
    return y


def _scan(x: Tensor, offsets: Tensor, *, rounds: bool) -> Tensor:
    y: Tensor = _Scan.apply(x, offsets, rounds)
    return y


def _dx(dy: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return join(products(dy, weight, piece=scaled(PIECE), dtype=dtype), dtype=dy.dtype)


def _dweight(dy: Tensor, x: Tensor, chunk: int) -> Tensor:
    return join(products(dy.t(), x, piece=chunk), dtype=x.dtype)


def _scanned(values: Tensor, offsets: Tensor, *, backwards: bool, rounds: bool) -> Tensor:
    slots, width = values.shape
    # Slots of no segment have no gradient.
    out = torch.zeros((slots, width), dtype=values.dtype, device=values.device)
    block = _block(width)
    launch(
        scan_segment,
        (len(offsets) - 1, triton.cdiv(width, block)),
        (values, offsets, out, slots, width, *values.stride(), *offsets.stride()),
        constants={
            "N": scaled(SLOTS),
            "W": block,
            "BACKWARDS": backwards,
            "ROUNDS": rounds,
            "WIDEN": interpreted(scan_segment),
        },
        options=OPTIONS,
    )
    return out


def _added_by_tokens(dy: Tensor, ids: Tensor, rows: int) -> Tensor:
    return _added(table_rows_added, len(ids), dy, ids, rows)


def _added_by_rows(dy: Tensor, ids: Tensor, rows: int) -> Tensor:
    return _added(table_rows_ordered, rows, dy, ids, rows)


def _added(kernel: object, programs: int, dy: Tensor, ids: Tensor, rows: int) -> Tensor:
    width = dy.shape[1]
    dtable = torch.zeros((rows, width), dtype=torch.float32, device=dy.device)
    block = _block(width)
    launch(
        kernel,
        (programs, triton.cdiv(width, block)),
        (dy, ids, dtable, len(ids), width, *dy.stride(), *ids.stride()),
        constants={"W": block},
        options=OPTIONS,
    )
    return dtable


def _block(width: int) -> int:
    return block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)


@triton.jit(
    do_not_specialize=("slot_count", "width", "values_slot", "values_feature", "offsets_at"),
    do_not_specialize_on_alignment=("values", "offsets", "out"),
)
def scan_segment(
    values, offsets, out, slot_count, width, values_slot, values_feature, offsets_at,
    N: tl.constexpr, W: tl.constexpr, BACKWARDS: tl.constexpr, ROUNDS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Store the running sums of W features of one segment, from its first slot or its last."""
    segment = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    live_W = feature_W < width
    head = tl.load(offsets + segment * offsets_at).to(tl.int64)
    tail = tl.load(offsets + (segment + 1) * offsets_at).to(tl.int64)
    last = tail
    if ROUNDS:
        last = tl.minimum((tail + N - 1) // N * N, slot_count)
    sum_W = tl.full((W,), 0.0, dtype=tl.float32)
    for index in range(head, last):
        slot = index
        if BACKWARDS:
            slot = head + last - 1 - index
        sum_W += tl.load(
            values + slot * values_slot + feature_W * values_feature, mask=live_W, other=0.0
        ).to(tl.float32)  # fmt: skip
        tl.store(
            out + slot * width + feature_W,
            narrow(sum_W, out.dtype.element_ty, WIDEN),
            mask=live_W & (slot + feature_W * 0 < tail),
        )


@triton.jit(
    do_not_specialize=("width", "table_row", "table_feature", "ids_at"),
    do_not_specialize_on_alignment=("table", "ids", "y"),
)
def gather_rows(table, ids, y, width, table_row, table_feature, ids_at, W: tl.constexpr):
    """Copy W features of a token's row of the table."""
    token = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    row = tl.load(ids + token * ids_at)
    live_W = feature_W < width
    values_W = tl.load(table + row * table_row + feature_W * table_feature, mask=live_W, other=0.0)
    tl.store(y + token * width + feature_W, values_W, mask=live_W)


@triton.jit(
    do_not_specialize=("token_count", "width", "dy_token", "dy_feature", "ids_at"),
    do_not_specialize_on_alignment=("dy", "ids", "dtable"),
)
def table_rows_added(
    dy, ids, dtable, token_count, width, dy_token, dy_feature, ids_at, W: tl.constexpr
):
    """Add W features of a token's gradient to its row of the table."""
    token = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    row = tl.load(ids + token * ids_at)
    live_W = (feature_W < width) & (token < token_count)
    dy_W = tl.load(dy + token * dy_token + feature_W * dy_feature, mask=live_W, other=0.0)
    tl.atomic_add(dtable + row * width + feature_W, dy_W.to(tl.float32), mask=live_W, sem="relaxed")


@triton.jit(
    do_not_specialize=("token_count", "width", "dy_token", "dy_feature", "ids_at"),
    do_not_specialize_on_alignment=("dy", "ids", "dtable"),
)
def table_rows_ordered(
    dy, ids, dtable, token_count, width, dy_token, dy_feature, ids_at, W: tl.constexpr
):
    """Add W features of the gradients of all tokens of one row of the table, first to last."""
    row = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    sum_W = tl.full((W,), 0.0, dtype=tl.float32)
    for token in range(token_count):
        dy_W = tl.load(
            dy + token * dy_token + feature_W * dy_feature, mask=feature_W < width, other=0.0
        ).to(tl.float32)  # fmt: skip
        sum_W += tl.where(tl.load(ids + token * ids_at) == row, dy_W, 0.0)
    tl.store(dtable + row * width + feature_W, sum_W, mask=feature_W < width)

"""Matrix product in a fixed order, `y = x @ weight^T`: reference, torch backend, record.

The sum over K is a tree of eight leaves: K is cut into `PIECE_COUNT` pieces by its size alone, each
piece is summed in order, and sums of neighbours are added until one is left. So the order is the
same however many ranks share the work under tensor parallelism: of 2, 4 or 8 ranks (`shards`) each
holds whole pieces, which are a subtree, and the partial products of the ranks are added as the rest
of the tree. All ranks live in one process here, and nothing is sent anywhere. Source: Zhang et al.,
Deterministic Inference across Tensor Parallel Sizes That Eliminates Training-Inference Mismatch,
2025 (https://arxiv.org/abs/2511.17826).

The Triton backend is `biprop.kernels.det_gemm_triton`, and shares no arithmetic with this module.
PyTorch's own product, which promises nothing, is `biprop.kernels.native_linear`.

Shapes: T packed tokens, K inputs, N outputs, D contracted, E columns, R rows of a tile, P width of
a panel, W that of a panel across.
"""

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

from biprop.kernels.deferred import triton_backend
from biprop.kernels.shards import PIECE_COUNT, pieces_of_rank
from biprop.kernels.tiles import (
    PANEL_WIDTH,
    block_groups,
    blocks_of_rows,
    padded,
    panel_across,
    row_count,
    row_panels,
    tile_of_rows,
    token_blocks,
)
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator, Reducer
from biprop.signature import parse_backward, parse_restrictions, parse_signature

__all__ = ["OPERATOR", "backward", "forward", "reference"]

# Least terms of a product of two panels: fewer cost as much.
TERM_MIN = 8
# Elements of the products that the reference holds at a time.
REFERENCE_ELEMENTS_MAX = 1 << 22


def reference(x: Tensor, weight: Tensor, *, reduce: Reducer) -> Tensor:
    """Multiply in float32, every sum over K by `reduce`.

    Args:
        x: `[T, K]` of a float dtype.
        weight: `[N, K]` of the same dtype.
        reduce: Sums the products over K.

    Returns:
        `[T, N]` of the dtype of `x`.
    """
    x_TK, weight_NK = x.float(), weight.float()
    columns = max(1, REFERENCE_ELEMENTS_MAX // x.shape[1])
    rows = max(1, columns // len(weight_NK))
    parts = [
        torch.cat(
            [
                reduce(x_TK[row : row + rows, None, :] * weight_NK[column : column + columns], -1)
                for column in range(0, len(weight_NK), columns)
            ],
            dim=1,
        )
        for row in range(0, max(1, len(x_TK)), rows)
    ]
    return torch.cat(parts).to(x.dtype)


def forward(x: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Multiply on fixed tiles, the sum over K as a tree.

    Args:
        x: `[T, K]` of a float dtype, any strides.
        weight: `[N, K]` of the same dtype, any strides.
        shards: 1, 2, 4 or 8 ranks that hold a part of K each.

    Returns:
        `[T, N]` of the dtype of `x`, the same bits for any number of ranks.

    Raises:
        UsageError: So many ranks cannot hold a subtree each.
    """
    return _rows_times(x, weight.t(), shards=shards)


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate on fixed tiles; `dweight` is added to, in blocks cut by position.

    Args:
        dy: `[T, N]`, upstream gradient of the dtype of `x`.
        x: As for `forward`.
        weight: As for `forward`.
        offsets: int32 `[B+1]`, cumulative live lengths in logical order.
        order: int32 `[T]`, slots of the live tokens in logical order first.
        position: int64 `[T]`, by slot.
        dweight: float32 `[N, K]`, accumulates over launches that hold whole sequences.

    Returns:
        `dx`, `[T, K]` of the dtype of `x`.
    """
    dx = _rows_times(dy, weight)
    slots, blocks = token_blocks(offsets, order, position)
    for group in block_groups(blocks, width=max(padded(size) for size in weight.shape)):
        rows, columns = (
            blocks_of_rows(side, slots, group, width=padded(side.shape[1])) for side in (dy, x)
        )
        for dy_RN, x_RK in zip(rows, columns, strict=True):
            _add_product(dweight, dy_RN, x_RK)
    return dx


def _add_product(dweight: Tensor, dy_RN: Tensor, x_RK: Tensor) -> None:
    """Add what one block gives to the gradient, panel by panel."""
    down, across = (panel_across(side.device, side.shape[1]) for side in (dy_RN, x_RK))
    for row, dy_RP in enumerate(row_panels(dy_RN, down)):
        for column, x_RP in enumerate(row_panels(x_RK, across)):
            top, left = row * down, column * across
            corner = dweight[top : top + down, left : left + across]
            part = dy_RP.t() @ x_RP
            corner += part[: corner.shape[0], : corner.shape[1]]


@attrs.frozen(kw_only=True)
class _Cut:
    """How a product is cut: by its free dimensions and the device, and by the ranks that share it.

    Attributes:
        pieces: Of one rank, a power of two.
        piece: Contracted terms of a piece; the last pieces may have fewer, or none.
        terms: Of a panel.
        across: Columns of a panel.
        rows: Of a tile.
    """

    pieces: int
    piece: int
    terms: int
    across: int
    rows: int

    @classmethod
    def of(cls, device: torch.device, depth: int, width: int, *, shards: int) -> "_Cut":
        """Cut the product of `[T, depth]` and `[depth, width]`."""
        piece = -(-depth // PIECE_COUNT)
        return cls(
            pieces=pieces_of_rank(shards),
            piece=piece,
            terms=max(TERM_MIN, min(PANEL_WIDTH, 1 << (piece - 1).bit_length())),
            across=panel_across(device, width),
            rows=row_count(device, padded(max(depth, width))),
        )

    def tile_panels(self, tile_RD: Tensor) -> Tensor:
        """Cut a tile, as wide as all pieces, into contiguous `[pieces, panels, R, P]`."""
        panels, rows = -(-self.piece // self.terms), len(tile_RD)
        whole = tile_RD.view(rows, self.pieces, self.piece)
        if panels * self.terms > self.piece:
            whole = tile_RD.new_zeros((rows, self.pieces, panels * self.terms))
            whole[:, :, : self.piece] = tile_RD.view(rows, self.pieces, self.piece)
        cut = whole.view(rows, self.pieces, panels, self.terms)
        return cut.permute(1, 2, 0, 3).contiguous()

    def weight_panels(self, weight_DE: Tensor) -> Tensor:
        """Copy a matrix into float32 `[pieces, panels, columns, P, W]`, zeros past it."""
        panels, (depth, width) = -(-self.piece // self.terms), weight_DE.shape
        across = padded(width)
        whole = weight_DE.new_zeros((self.pieces * self.piece, across), dtype=torch.float32)
        whole[:depth, :width] = weight_DE
        whole = whole.view(self.pieces, self.piece, across)
        if panels * self.terms > self.piece:
            filled = whole.new_zeros((self.pieces, panels * self.terms, across))
            filled[:, : self.piece] = whole
            whole = filled
        cut = whole.view(self.pieces, panels, self.terms, across // self.across, self.across)
        return cut.transpose(2, 3).contiguous()


def _rows_times(rows_TD: Tensor, weight_DE: Tensor, *, shards: int = 1) -> Tensor:
    """Multiply rows by a matrix, every rank its part of D, and add the ranks as a tree."""
    cut = _Cut.of(rows_TD.device, *weight_DE.shape, shards=shards)
    if shards == 1:
        return _partial(rows_TD, weight_DE, cut, dtype=rows_TD.dtype)
    held = cut.pieces * cut.piece
    partials = (
        _partial(
            rows_TD[:, start : start + held],
            weight_DE[start : start + held],
            cut,
            dtype=torch.float32,
        )
        for start in range(0, shards * held, held)
    )
    return _tree_sum(partials).to(rows_TD.dtype)


def _partial(rows_TD: Tensor, weight_DE: Tensor, cut: _Cut, *, dtype: torch.dtype) -> Tensor:
    """Multiply what one rank holds, on tiles and panels of fixed shape."""
    width = weight_DE.shape[1]
    # Taken apart once: to look into a tensor costs as much as a product of two panels.
    weights = [
        [panels_across.unbind() for panels_across in panels.unbind()]
        for panels in cut.weight_panels(weight_DE).unbind()
    ]
    out = torch.empty((len(rows_TD), width), dtype=dtype, device=rows_TD.device)
    for start in range(0, len(rows_TD), cut.rows):
        tile_RD = tile_of_rows(rows_TD, start, rows=cut.rows, width=cut.pieces * cut.piece)
        pieces = zip(cut.tile_panels(tile_RD).unbind(), weights, strict=True)
        sum_RE = _tree_sum(_in_order(tiles.unbind(), panels) for tiles, panels in pieces)
        count = min(cut.rows, len(rows_TD) - start)
        out[start : start + count] = sum_RE.to(dtype)[:count, :width]
    return out


def _in_order(tiles: Sequence[Tensor], panels: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the sum of one piece, `[R, E]`: products of panels, added from the first on."""
    products = (
        [tile_RP @ panel_PW for panel_PW in panels_across]
        for tile_RP, panels_across in zip(tiles, panels, strict=True)
    )
    sums = next(products)
    for across in products:
        for sum_RW, product_RW in zip(sums, across, strict=True):
            sum_RW.add_(product_RW)
    return torch.cat(sums, dim=1) if len(sums) > 1 else sums[0]


def _tree_sum(terms: Iterable[Tensor]) -> Tensor:
    """Add neighbours, then neighbouring sums, until one is left; so many terms as a power of two.

    Terms are made when they are asked for, and few sums are held at a time.
    """
    pending: list[Tensor] = []
    for index, term in enumerate(terms):
        total, rest = term, index
        while rest % 2:
            total, rest = pending.pop() + total, rest // 2
        pending.append(total)
    (whole,) = pending
    return whole


_TRITON = "biprop.kernels.det_gemm_triton"
_SIGNATURE = parse_signature("x[T,K], weight[N,K] -> y[T,N]")

OPERATOR = Operator(
    name="det_gemm",
    op_class="reduction",
    forms=(
        Form(
            name="packed",
            signature=_SIGNATURE,
            backward_signature=parse_backward(
                "dy[T,N], x[T,K], weight[N,K], offsets: offsets[B+1], order: order[T], "
                "position: position[T], dweight!: float32[N,K] -> dx[T,K]",
                _SIGNATURE,
            ),
            implementations=(
                Implementation(backend="torch", forward=forward, backward=backward),
                triton_backend(
                    _TRITON, kernels=("det_gemm_tile", "det_gemm_join", "det_gemm_dweight_tile")
                ),
            ),
            reference=reference,
            takes_shards=True,
        ),
    ),
    declaration=InvarianceDeclaration(
        transforms=("T1", "T2", "T3", "T4", "T5", "T6", "T8", "shards"),
        parameter_gradients=("T1", "T2", "T4", "T5", "T6", "T8"),
        chain_index=2,
    ),
    restrictions=parse_restrictions("K=1..65536 N=1..65536"),
)

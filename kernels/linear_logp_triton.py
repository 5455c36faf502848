"""Log probability from hidden states in Triton: stretches of the vocabulary, and their gradients.

`biprop.kernels.linear_logp` holds the record, the reference and the torch backend. Logits live in
one tile of a program and nowhere else: the forward keeps three numbers a row and stretch of the
vocabulary, the backward gradients of one chunk of the vocabulary at a time, recomputed from `lse`.
A block's size follows H and V alone, every argument that a batch or its storage can change is left
unspecialised, and nothing but allocations and views surrounds the launches.

Shapes: T packed tokens, V vocabulary, H features; of a tile: R rows, W tokens of the vocabulary, D
contracted features, C features of a gradient.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.det_gemm_triton import det_gemm_dweight_tile
from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.products import add_product

__all__ = ["backward", "det_gemm_dweight_tile", "forward", "forward_indexed"]

ROW_COUNT = 32
# The least contracted size of tl.dot, so that one product adds one block of positions.
BLOCK_COUNT = 16
WIDTH_MIN, WIDTH_MAX = 16, 128
TERM_MIN, TERM_MAX = 16, 64
# Tokens of the vocabulary that one program reduces: so even few rows keep a GPU busy.
STRETCH = 2048
# Terms that are added one after the other before they join a sum: equal terms are rounded alike,
# and thousands of them in a row leave the contract's tolerance.
SPAN = 256
# Tokens of the vocabulary whose gradients are held at once, one row a token of the launch.
CHUNK = 8192
# Without fusion no multiply-add can be contracted in one row and not in another; tl.dot fuses its
# own all the same.
OPTIONS = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}


def forward(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute; arguments and results as those of `biprop.kernels.linear_logp.forward`."""
    # Neither is read where nothing is indexed; they have the dtypes that the other form's have, so
    # that both forms run the same compiled kernel.
    live = torch.empty(0, dtype=torch.uint8, device=hidden.device)
    order = torch.empty(0, dtype=torch.int32, device=hidden.device)
    return _forward(hidden, weight, target, live, order, indexed=False)


def forward_indexed(
    hidden: Tensor, weight: Tensor, target: Tensor, live: Tensor, order: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute; as `biprop.kernels.linear_logp.forward_indexed`."""
    return _forward(hidden, weight, target, live.view(torch.uint8), order, indexed=True)


def _forward(
    hidden: Tensor, weight: Tensor, target: Tensor, live: Tensor, order: Tensor, *, indexed: bool
) -> tuple[Tensor, Tensor]:
    rows, width = hidden.shape
    vocabulary = weight.shape[0]
    logp, lse = (torch.empty(rows, dtype=torch.float32, device=hidden.device) for _ in range(2))
    stretches = triton.cdiv(vocabulary, STRETCH)
    largest, total, chosen = (
        torch.empty((stretches, rows), dtype=torch.float32, device=hidden.device) for _ in range(3)
    )
    row_tiles = triton.cdiv(rows, ROW_COUNT)
    launch(
        linear_logp_stretch,
        (row_tiles, stretches),
        (
            *(hidden, weight, target, live, order, largest, total, chosen),
            *(int(indexed), rows, vocabulary, width, STRETCH, *hidden.stride(), *weight.stride()),
            *(*target.stride(), *live.stride(), *order.stride()),
        ),
        constants=_constants(vocabulary, width) | {"WIDEN": interpreted(linear_logp_stretch)},
        options=OPTIONS,
    )
    launch(
        linear_logp_rows,
        (row_tiles,),
        (
            *(largest, total, chosen, live, order, logp, lse, int(indexed), rows, stretches),
            *(*live.stride(), *order.stride()),
        ),
        constants={"R": ROW_COUNT},
        options=OPTIONS,
    )
    return logp, lse


def backward(
    dlogp: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    offsets: Tensor,
    order: Tensor,
    position: Tensor,
    dweight: Tensor,
) -> Tensor:
    """Differentiate; arguments and result as those of `biprop.kernels.linear_logp.backward`."""
    rows, width = hidden.shape
    vocabulary = weight.shape[0]
    dhidden = torch.empty((rows, width), dtype=hidden.dtype, device=hidden.device)
    if not rows:
        return dhidden
    sums = torch.empty((rows, width), dtype=torch.float32, device=hidden.device)
    chunk = min(CHUNK, vocabulary)
    dlogits = torch.empty((rows, chunk), dtype=hidden.dtype, device=hidden.device)
    tokens = (dlogp, hidden, target, lse, offsets, order, position)
    for start in range(0, vocabulary, chunk):
        count = min(chunk, vocabulary - start)
        part = slice(start, start + count)
        _chunk_gradients(
            tokens, weight[part], dlogits[:, :count], sums, dhidden, dweight[part],
            start=start, is_last=start + count == vocabulary, vocabulary=vocabulary,
        )  # fmt: skip
    return dhidden


def _chunk_gradients(
    tokens: tuple[Tensor, ...],
    weight: Tensor,
    dlogits: Tensor,
    sums: Tensor,
    dhidden: Tensor,
    dweight: Tensor,
    *,
    start: int,
    is_last: bool,
    vocabulary: int,
) -> None:
    """Add what a chunk of the vocabulary gives, from its token `start` on.

    Args:
        tokens: `dlogp`, `hidden`, `target`, `lse`, `offsets`, `order` and `position`.
        weight: `[count, H]`, its rows of the weight.
        dlogits: `[T, count]` of the dtype of `hidden`: workspace.
        sums: float32 `[T, H]`: what earlier chunks gave.
        dhidden: `[T, H]`, written with the last chunk.
        dweight: float32 `[count, H]`, its rows of the accumulator.
        start: Token of the vocabulary.
        is_last: Whether no chunk comes after it.
        vocabulary: Of all chunks together.
    """
    dlogp, hidden, target, lse, offsets, order, _ = tokens
    rows, width = hidden.shape
    count = weight.shape[0]
    # Blocks are those of the whole vocabulary, so that a last chunk is cut as the others are.
    constants = _constants(vocabulary, width)
    row_tiles = triton.cdiv(rows, ROW_COUNT)
    launch(
        linear_logp_dlogits_tile,
        (row_tiles, triton.cdiv(count, constants["W"])),
        (
            *(dlogp, hidden, weight, target, lse, offsets, order, dlogits),
            *(rows, count, width, start, offsets.shape[0] - 1),
            *(*dlogp.stride(), *hidden.stride(), *weight.stride(), *target.stride()),
            *(*lse.stride(), *offsets.stride(), *order.stride(), dlogits.stride(0)),
        ),
        constants=constants | {"WIDEN": interpreted(linear_logp_dlogits_tile)},
        options=OPTIONS,
    )
    columns = block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)
    launch(
        linear_logp_dhidden_tile,
        (row_tiles, triton.cdiv(width, columns)),
        (
            *(dlogits, weight, sums, dhidden, rows, count, width, int(start == 0), int(is_last)),
            *(dlogits.stride(0), *weight.stride()),
        ),
        constants=_sum_constants(vocabulary, columns)
        | {"WIDEN": interpreted(linear_logp_dhidden_tile)},
        options=OPTIONS,
    )
    _add_weight_gradient(tokens, dlogits, dweight, block_V=constants["W"], block_H=columns)


def _add_weight_gradient(
    tokens: tuple[Tensor, ...], dlogits: Tensor, dweight: Tensor, *, block_V: int, block_H: int
) -> None:
    """Add a chunk's part of the weight's gradient, in blocks of positions."""
    _, hidden, _, _, offsets, order, position = tokens
    count, width = dweight.shape
    launch(
        det_gemm_dweight_tile,
        (triton.cdiv(count, block_V), triton.cdiv(width, block_H)),
        (
            *(dlogits, hidden, offsets, order, position, dweight),
            *(offsets.shape[0] - 1, count, width, *dlogits.stride(), *hidden.stride()),
            *(*offsets.stride(), *order.stride(), *position.stride(), *dweight.stride()),
        ),
        constants={
            "BLOCK_N": block_V,
            "BLOCK_K": block_H,
            "R": BLOCK_COUNT,
            "WIDEN": interpreted(det_gemm_dweight_tile),
        },
        options=OPTIONS,
    )


def _sum_constants(vocabulary: int, columns: int) -> dict[str, int]:
    terms = block_width(vocabulary, least=TERM_MIN, most=TERM_MAX)
    return {"R": ROW_COUNT, "W": terms, "C": columns, "SPAN": SPAN}


def _constants(vocabulary: int, width: int) -> dict[str, int]:
    return {
        "R": ROW_COUNT,
        "W": block_width(vocabulary, least=WIDTH_MIN, most=WIDTH_MAX),
        "D": block_width(width, least=TERM_MIN, most=TERM_MAX),
        "SPAN": SPAN,
    }


@triton.jit(
    do_not_specialize=(
        "is_indexed", "row_count", "vocabulary", "width", "stretch", "hidden_row",
        "hidden_feature", "weight_token", "weight_feature", "target_at", "live_at", "order_at",
    ),
    do_not_specialize_on_alignment=(
        "hidden", "weight", "target", "live", "order", "largest", "total", "chosen",
    ),
)  # fmt: skip
def linear_logp_stretch(
    hidden, weight, target, live, order, largest, total, chosen,
    is_indexed, row_count, vocabulary, width, stretch, hidden_row, hidden_feature,
    weight_token, weight_feature, target_at, live_at, order_at,
    R: tl.constexpr, W: tl.constexpr, D: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Reduce R rows over one stretch of the vocabulary in one pass, W tokens at a time.

    Whether rows are read through `order` is no compile-time value: two kernels compiled from one
    source may lay a product out differently, and then differ in the last bit of a logit.
    """
    head = tl.program_id(0).to(tl.int64) * R
    row_R = head + tl.arange(0, R)
    first_W = tl.arange(0, W).to(tl.int64)
    first_D = tl.arange(0, D).to(tl.int64)
    start = tl.program_id(1).to(tl.int64) * stretch
    stop = tl.minimum(start + stretch, vocabulary)
    live_R = row_R < row_count
    slot_R = row_R
    if is_indexed != 0:
        slot_R = tl.load(order + row_R * order_at, mask=live_R, other=0).to(tl.int64)
        live_R = live_R & (tl.load(live + slot_R * live_at, mask=live_R, other=0) != 0)
        # Live slots come first: where the first row is dead, so are the others.
        head_slot = tl.load(order + head * order_at).to(tl.int64)
        stop = tl.where(tl.load(live + head_slot * live_at) != 0, stop, start)
    target_R = tl.load(target + slot_R * target_at, mask=live_R, other=0)
    hidden_R = hidden + slot_R * hidden_row
    largest_R = tl.full((R,), float("-inf"), dtype=tl.float32)
    total_R = tl.full((R,), 0.0, dtype=tl.float32)
    chosen_R = tl.full((R,), 0.0, dtype=tl.float32)
    for block in range(start, stop, W):
        token_W = first_W + block
        live_W = token_W < vocabulary
        logits_RW = tl.full((R, W), 0.0, dtype=tl.float32)
        for span in range(0, width, SPAN):
            part_RW = tl.full((R, W), 0.0, dtype=tl.float32)
            for term in range(span, tl.minimum(span + SPAN, width), D):
                feature_D = first_D + term
                live_D = feature_D < width
                hidden_RD = tl.load(
                    hidden_R[:, None] + (feature_D * hidden_feature)[None, :],
                    mask=live_R[:, None] & live_D[None, :], other=0.0,
                )  # fmt: skip
                weight_DW = tl.load(
                    (weight + token_W * weight_token)[None, :]
                    + (feature_D * weight_feature)[:, None],
                    mask=live_D[:, None] & live_W[None, :], other=0.0,
                )  # fmt: skip
                if WIDEN:
                    hidden_RD = hidden_RD.to(tl.float32)
                    weight_DW = weight_DW.to(tl.float32)
                part_RW = add_product(hidden_RD, weight_DW, part_RW, WIDEN)
            logits_RW += part_RW
        logits_RW = tl.where(live_W[None, :], logits_RW, float("-inf"))
        # A NaN is no maximum, it only has to reach the sum: devices and numpy differ in NaN maxima.
        numbers_RW = tl.where(logits_RW == logits_RW, logits_RW, float("-inf"))
        after_R = tl.maximum(largest_R, tl.max(numbers_RW, axis=1))
        is_finite_R = (after_R > float("-inf")) & (after_R < float("inf"))
        shift_R = tl.where(is_finite_R, after_R, 0.0)
        part_R = tl.sum(tl.exp(logits_RW - shift_R[:, None]), axis=1)
        total_R = total_R * tl.exp(largest_R - shift_R) + part_R
        is_target_RW = token_W[None, :] == target_R[:, None]
        chosen_R += tl.sum(tl.where(is_target_RW, logits_RW, 0.0), axis=1)
        largest_R = after_R
    here_R = tl.program_id(1).to(tl.int64) * row_count + row_R
    tl.store(largest + here_R, largest_R, mask=row_R < row_count)
    tl.store(total + here_R, total_R, mask=row_R < row_count)
    tl.store(chosen + here_R, chosen_R, mask=row_R < row_count)


@triton.jit(
    do_not_specialize=("is_indexed", "row_count", "stretch_count", "live_at", "order_at"),
    do_not_specialize_on_alignment=("largest", "total", "chosen", "live", "order", "logp", "lse"),
)
def linear_logp_rows(
    largest, total, chosen, live, order, logp, lse,
    is_indexed, row_count, stretch_count, live_at, order_at,
    R: tl.constexpr,
):  # fmt: skip
    """Join the stretches of R rows, from the first on."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    is_row_R = row_R < row_count
    largest_R = tl.full((R,), float("-inf"), dtype=tl.float32)
    total_R = tl.full((R,), 0.0, dtype=tl.float32)
    chosen_R = tl.full((R,), 0.0, dtype=tl.float32)
    here_R = row_R
    for _ in range(stretch_count):
        own_R = tl.load(largest + here_R, mask=is_row_R, other=0.0)
        part_R = tl.load(total + here_R, mask=is_row_R, other=0.0)
        after_R = tl.maximum(largest_R, own_R)
        is_finite_R = (after_R > float("-inf")) & (after_R < float("inf"))
        shift_R = tl.where(is_finite_R, after_R, 0.0)
        total_R = total_R * tl.exp(largest_R - shift_R) + part_R * tl.exp(own_R - shift_R)
        chosen_R += tl.load(chosen + here_R, mask=is_row_R, other=0.0)
        largest_R = after_R
        here_R += row_count
    is_finite_R = (largest_R > float("-inf")) & (largest_R < float("inf"))
    lse_R = tl.where(is_finite_R, largest_R, 0.0) + tl.log(total_R)
    logp_R = chosen_R - lse_R
    slot_R = row_R
    if is_indexed != 0:
        slot_R = tl.load(order + row_R * order_at, mask=is_row_R, other=0).to(tl.int64)
        is_live_R = tl.load(live + slot_R * live_at, mask=is_row_R, other=0) != 0
        logp_R = tl.where(is_live_R, logp_R, 0.0)
        lse_R = tl.where(is_live_R, lse_R, 0.0)
    tl.store(logp + slot_R, logp_R, mask=is_row_R)
    tl.store(lse + slot_R, lse_R, mask=is_row_R)


@triton.jit(
    do_not_specialize=(
        "row_count", "token_count", "width", "start", "sequence_count", "dlogp_at", "hidden_row",
        "hidden_feature", "weight_token", "weight_feature", "target_at", "lse_at", "offsets_at",
        "order_at", "dlogits_row",
    ),
    do_not_specialize_on_alignment=(
        "dlogp", "hidden", "weight", "target", "lse", "offsets", "order", "dlogits",
    ),
)  # fmt: skip
def linear_logp_dlogits_tile(
    dlogp, hidden, weight, target, lse, offsets, order, dlogits,
    row_count, token_count, width, start, sequence_count, dlogp_at, hidden_row, hidden_feature,
    weight_token, weight_feature, target_at, lse_at, offsets_at, order_at, dlogits_row,
    R: tl.constexpr, W: tl.constexpr, D: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute one tile of logits anew, and differentiate it; the slots of no token get 0."""
    head = tl.program_id(0).to(tl.int64) * R
    row_R = head + tl.arange(0, R)
    token_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    first_D = tl.arange(0, D).to(tl.int64)
    live_W = token_W < token_count
    is_row_R = row_R < row_count
    live_count = tl.load(offsets + sequence_count * offsets_at).to(tl.int64)
    live_R = row_R < live_count
    slot_R = tl.load(order + row_R * order_at, mask=is_row_R, other=0).to(tl.int64)
    hidden_R = hidden + slot_R * hidden_row
    weight_W = weight + token_W * weight_token
    # Added as the forward adds them: a logit that differs from its own `lse` gives another share.
    logits_RW = tl.full((R, W), 0.0, dtype=tl.float32)
    for span in range(0, tl.where(head < live_count, width, 0), SPAN):
        part_RW = tl.full((R, W), 0.0, dtype=tl.float32)
        for term in range(span, tl.minimum(span + SPAN, width), D):
            feature_D = first_D + term
            live_D = feature_D < width
            hidden_RD = tl.load(
                hidden_R[:, None] + (feature_D * hidden_feature)[None, :],
                mask=live_R[:, None] & live_D[None, :], other=0.0,
            )  # fmt: skip
            weight_DW = tl.load(
                weight_W[None, :] + (feature_D * weight_feature)[:, None],
                mask=live_D[:, None] & live_W[None, :], other=0.0,
            )  # fmt: skip
            if WIDEN:
                hidden_RD = hidden_RD.to(tl.float32)
                weight_DW = weight_DW.to(tl.float32)
            part_RW = add_product(hidden_RD, weight_DW, part_RW, WIDEN)
        logits_RW += part_RW
    target_R = tl.load(target + slot_R * target_at, mask=live_R, other=0)
    lse_R = tl.load(lse + slot_R * lse_at, mask=live_R, other=0.0)
    dlogp_R = tl.load(dlogp + slot_R * dlogp_at, mask=live_R, other=0.0)
    share_RW = tl.exp(logits_RW - lse_R[:, None])
    is_target_RW = (token_W + start)[None, :] == target_R[:, None]
    gradient_RW = tl.where(is_target_RW, 1.0 - share_RW, -share_RW) * dlogp_R[:, None]
    gradient_RW = tl.where(live_R[:, None], gradient_RW, 0.0)
    tl.store(
        dlogits + (slot_R * dlogits_row)[:, None] + token_W[None, :],
        narrow(gradient_RW, dlogits.dtype.element_ty, WIDEN),
        mask=is_row_R[:, None] & live_W[None, :],
    )


@triton.jit(
    do_not_specialize=(
        "row_count", "token_count", "width", "is_first", "is_last", "dlogits_row",
        "weight_token", "weight_feature",
    ),
    do_not_specialize_on_alignment=("dlogits", "weight", "sums", "dhidden"),
)  # fmt: skip
def linear_logp_dhidden_tile(
    dlogits, weight, sums, dhidden, row_count, token_count, width, is_first, is_last,
    dlogits_row, weight_token, weight_feature,
    R: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add a chunk of the vocabulary to one tile of dhidden, W tokens at a time."""
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    feature_C = tl.program_id(1).to(tl.int64) * C + tl.arange(0, C)
    first_W = tl.arange(0, W).to(tl.int64)
    live_R = row_R < row_count
    live_C = feature_C < width
    here_RC = (row_R * width)[:, None] + feature_C[None, :]
    # Both are 0 or 1; a mask of the interpreter must be compared element by element.
    is_added_R = row_R < row_count * (1 - is_first)
    is_whole_R = row_R < row_count * is_last
    sum_RC = tl.load(sums + here_RC, mask=is_added_R[:, None] & live_C[None, :], other=0.0)
    for span in range(0, token_count, SPAN):
        part_RC = tl.full((R, C), 0.0, dtype=tl.float32)
        for block in range(span, tl.minimum(span + SPAN, token_count), W):
            token_W = first_W + block
            live_W = token_W < token_count
            dlogits_RW = tl.load(
                (dlogits + row_R * dlogits_row)[:, None] + token_W[None, :],
                mask=live_R[:, None] & live_W[None, :], other=0.0,
            )  # fmt: skip
            weight_WC = tl.load(
                (weight + token_W * weight_token)[:, None] + (feature_C * weight_feature)[None, :],
                mask=live_W[:, None] & live_C[None, :], other=0.0,
            )  # fmt: skip
            if WIDEN:
                dlogits_RW = dlogits_RW.to(tl.float32)
                weight_WC = weight_WC.to(tl.float32)
            part_RC = add_product(dlogits_RW, weight_WC, part_RC, WIDEN)
        sum_RC += part_RC
    tl.store(sums + here_RC, sum_RC, mask=(live_R & ~is_whole_R)[:, None] & live_C[None, :])
    tl.store(
        dhidden + here_RC,
        narrow(sum_RC, dhidden.dtype.element_ty, WIDEN),
        mask=is_whole_R[:, None] & live_C[None, :],
    )

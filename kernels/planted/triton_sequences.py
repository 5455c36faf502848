"""Device code of planted kernels that see whole sequences: each beside its twin, one line apart.

The records are in `biprop.kernels.planted.tiles`, which imports this module when one of them is
first called.

Shapes: B rows, S slots, C context slots, T packed tokens, H features or heads, D features of a
head; of a tile: N slots, W features, P pieces.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from biprop.kernels.interpreting import block_width, interpreted, launch
from biprop.kernels.narrowing import narrow
from biprop.kernels.planted.triton_shared import OPTIONS, scaled

__all__ = [
    "decode_join",
    "decode_pieces",
    "decode_split_by_batch",
    "decode_split_in_two",
    "pooled_from_segment_start",
    "pooled_from_tile_start",
    "pooled_past_length",
    "pooled_up_to_length",
    "rotate",
    "rotated_by_first_row",
    "rotated_by_longest",
    "rotated_by_own_length",
    "rotated_by_own_row",
    "row_means",
    "segment_sums",
]

# Pieces that the keys of a single row are split into.
PIECES = 2
# Tokens that a model was trained on; longer sequences stretch its positions.
TRAINED = 32
# Slots of a tile, where their number is a defect's matter; the interpreter has 2.
SLOTS = 32
SLOTS_ROTATED = 16
# Lengths that are looked at at once.
LENGTHS = 64
WIDTH_MIN, WIDTH_MAX = 16, 128


def pooled_past_length(x: Tensor, lengths: Tensor) -> Tensor:
    """Slots of the last tile past the length get a weight of zero."""
    return _means(x, lengths, weighs=True)


def pooled_up_to_length(x: Tensor, lengths: Tensor) -> Tensor:
    """Slots of the last tile past the length are left out."""
    return _means(x, lengths, weighs=False)


def pooled_from_tile_start(x: Tensor, offsets: Tensor) -> Tensor:
    """A segment is read from the start of the tile of slots that its first token lies in."""
    return _segments(x, offsets, rounds=True)


def pooled_from_segment_start(x: Tensor, offsets: Tensor) -> Tensor:
    """A segment is read from its first token."""
    return _segments(x, offsets, rounds=False)


def rotated_by_first_row(x: Tensor, position: Tensor) -> Tensor:
    """All rows are rotated by the positions of the first."""
    return _rotated(x, position.as_strided(position.shape, (0, position.stride(1))), None)


def rotated_by_own_row(x: Tensor, position: Tensor) -> Tensor:
    """Every row is rotated by its own positions."""
    return _rotated(x, position, None)


def rotated_by_longest(x: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
    """Positions are stretched if a sequence of the batch is longer than a model was trained on."""
    return _rotated(x, position, lengths, rows=x.shape[0])


def rotated_by_own_length(x: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
    """Positions are stretched if the sequence itself is longer."""
    return _rotated(x, position, lengths, rows=1)


def decode_split_by_batch(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """The keys of a row are split where it is the only one, so that no worker is idle."""
    pieces = max(1, PIECES // q.shape[0])
    return _decoded(q, k, v, contexts, pieces)


def decode_split_in_two(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor) -> Tensor:
    """The keys of a row are split in two, however many rows there are."""
    pieces = PIECES
    return _decoded(q, k, v, contexts, pieces)


def _means(x: Tensor, lengths: Tensor, *, weighs: bool) -> Tensor:
    rows, slots, width = x.shape
    y = torch.empty((rows, width), dtype=torch.float32, device=x.device)
    block = block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)
    launch(
        row_means,
        (rows, triton.cdiv(width, block)),
        (x, lengths, y, slots, width, *x.stride(), *lengths.stride()),
        constants={"N": scaled(SLOTS), "W": block, "WEIGHS": weighs},
        options=OPTIONS,
    )
    return y


def _segments(x: Tensor, offsets: Tensor, *, rounds: bool) -> Tensor:
    segments, width = len(offsets) - 1, x.shape[1]
    y = torch.empty((segments, width), dtype=torch.float32, device=x.device)
    block = block_width(width, least=WIDTH_MIN, most=WIDTH_MAX)
    launch(
        segment_sums,
        (segments, triton.cdiv(width, block)),
        (x, offsets, y, width, *x.stride(), *offsets.stride()),
        constants={"N": scaled(SLOTS), "W": block, "ROUNDS": rounds},
        options=OPTIONS,
    )
    return y


def _rotated(x: Tensor, position: Tensor, lengths: Tensor | None, *, rows: int = 1) -> Tensor:
    """Rotate; where lengths are given, stretch by the longest of `rows` of them from the own on."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _, slots, width = x.shape
    block = block_width(width // 2, least=WIDTH_MIN, most=WIDTH_MAX)
    # Without lengths nothing is read through the pointer that stands for them.
    told = position if lengths is None else lengths
    launch(
        rotate,
        (x.shape[0], triton.cdiv(slots, SLOTS_ROTATED), triton.cdiv(width // 2, block)),
        (
            *(x, position, told, y, x.shape[0], rows, slots, width // 2),
            *(*x.stride(), *position.stride(), told.stride(0)),
        ),
        constants={
            "TRAINED": scaled(TRAINED),
            "TOLD": lengths is not None,
            "L": LENGTHS,
            "N": SLOTS_ROTATED,
            "W": block,
            "WIDEN": interpreted(rotate),
        },
        options=OPTIONS,
    )
    return y


def _decoded(q: Tensor, k: Tensor, v: Tensor, contexts: Tensor, pieces: int) -> Tensor:
    rows, heads, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block = block_width(width, least=WIDTH_MIN, most=256)
    # Of each piece the weighted values, and behind them the sum of the weights and their peak.
    partials = torch.empty((rows, heads, pieces, width + 2), dtype=torch.float32, device=q.device)
    launch(
        decode_pieces,
        (rows, heads, pieces),
        (
            *(q, k, v, contexts, partials, width**-0.5, heads, pieces, width),
            *(*q.stride(), *k.stride(), *v.stride(), *contexts.stride()),
        ),
        constants={"N": scaled(SLOTS), "W": block},
        options=OPTIONS,
    )
    launch(
        decode_join,
        (rows, heads),
        (partials, out, heads, pieces, width),
        constants={"W": block, "WIDEN": interpreted(decode_join)},
        options=OPTIONS,
    )
    return out


@triton.jit(
    do_not_specialize=(
        "slot_count", "width", "x_row", "x_slot", "x_feature", "lengths_row",
    ),
    do_not_specialize_on_alignment=("x", "lengths", "y"),
)  # fmt: skip
def row_means(
    x, lengths, y, slot_count, width, x_row, x_slot, x_feature, lengths_row,
    N: tl.constexpr, W: tl.constexpr, WEIGHS: tl.constexpr,
):  # fmt: skip
    """Average W features of one row over its live slots, N slots at a time."""
    row = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    first_N = tl.arange(0, N).to(tl.int64)
    length = tl.load(lengths + row * lengths_row)
    sum_W = tl.full((W,), 0.0, dtype=tl.float32)
    for start in range(0, length, N):
        slot_N = start + first_N
        read_N = slot_N < length
        if WEIGHS:
            read_N = slot_N < slot_count
        x_NW = tl.load(
            x + row * x_row + (slot_N * x_slot)[:, None] + (feature_W * x_feature)[None, :],
            mask=read_N[:, None] & (feature_W < width)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        weight_N = tl.where(slot_N < length, 1.0, 0.0)
        sum_W += tl.sum(x_NW * weight_N[:, None], axis=0)
    count = tl.maximum(length, 1).to(tl.float32)
    tl.store(y + row * width + feature_W, sum_W / count, mask=feature_W < width)


@triton.jit(
    do_not_specialize=("width", "x_slot", "x_feature", "offsets_at"),
    do_not_specialize_on_alignment=("x", "offsets", "y"),
)
def segment_sums(
    x, offsets, y, width, x_slot, x_feature, offsets_at,
    N: tl.constexpr, W: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Sum W features over one segment, N slots at a time."""
    segment = tl.program_id(0).to(tl.int64)
    feature_W = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    first_N = tl.arange(0, N).to(tl.int64)
    head = tl.load(offsets + segment * offsets_at).to(tl.int64)
    tail = tl.load(offsets + (segment + 1) * offsets_at).to(tl.int64)
    if ROUNDS:
        head = head // N * N
    sum_W = tl.full((W,), 0.0, dtype=tl.float32)
    for start in range(head, tail, N):
        slot_N = start + first_N
        x_NW = tl.load(
            x + (slot_N * x_slot)[:, None] + (feature_W * x_feature)[None, :],
            mask=(slot_N < tail)[:, None] & (feature_W < width)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        sum_W += tl.sum(x_NW, axis=0)
    tl.store(y + segment * width + feature_W, sum_W, mask=feature_W < width)


@triton.jit(
    do_not_specialize=(
        "row_count", "told_count", "slot_count", "half",
        "x_row", "x_slot", "x_feature", "position_row", "position_slot", "lengths_row",
    ),
    do_not_specialize_on_alignment=("x", "position", "lengths", "y"),
)  # fmt: skip
def rotate(
    x, position, lengths, y, row_count, told_count, slot_count, half,
    x_row, x_slot, x_feature, position_row, position_slot, lengths_row,
    TRAINED: tl.constexpr, TOLD: tl.constexpr, L: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Rotate W features of the lower half of N slots against those of the upper half.

    The angle of a position halves from feature to feature.

    Where lengths are told, the angle is divided by how often TRAINED tokens go into the longest.
    """
    row = tl.program_id(0).to(tl.int64)
    slot_N = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    feature_W = tl.program_id(2).to(tl.int64) * W + tl.arange(0, W)
    live_N = slot_N < slot_count
    live_NW = live_N[:, None] & (feature_W < half)[None, :]
    at_N = tl.load(
        position + row * position_row + slot_N * position_slot, mask=live_N, other=0
    ).to(tl.float32)  # fmt: skip
    if TOLD:
        longest_L = tl.full((L,), 0, dtype=tl.int64)
        for start in range(0, told_count, L):
            # Rows in turn, from this one on.
            other_L = start + tl.arange(0, L)
            length_L = tl.load(
                lengths + (row + other_L) % row_count * lengths_row,
                mask=other_L < told_count, other=0,
            )  # fmt: skip
            longest_L = tl.maximum(longest_L, length_L.to(tl.int64))
        longest = tl.max(longest_L, axis=0)
        at_N = at_N / tl.maximum(1, (longest + TRAINED - 1) // TRAINED).to(tl.float32)
    angle_NW = at_N[:, None] * tl.exp2(-feature_W.to(tl.float32))[None, :]
    x_NW = x + row * x_row + (slot_N * x_slot)[:, None] + (feature_W * x_feature)[None, :]
    low_NW = tl.load(x_NW, mask=live_NW, other=0.0).to(tl.float32)
    high_NW = tl.load(x_NW + half * x_feature, mask=live_NW, other=0.0).to(tl.float32)
    cos_NW = tl.cos(angle_NW)
    sin_NW = tl.sin(angle_NW)
    y_NW = y + ((row * slot_count + slot_N) * (2 * half))[:, None] + feature_W[None, :]
    dtype = y.dtype.element_ty
    tl.store(y_NW, narrow(low_NW * cos_NW - high_NW * sin_NW, dtype, WIDEN), mask=live_NW)
    tl.store(y_NW + half, narrow(low_NW * sin_NW + high_NW * cos_NW, dtype, WIDEN), mask=live_NW)


@triton.jit(
    do_not_specialize=(
        "scale", "head_count", "piece_count", "width", "q_row", "q_head", "q_feature",
        "k_row", "k_slot", "k_head", "k_feature", "v_row", "v_slot", "v_head", "v_feature",
        "contexts_row",
    ),
    do_not_specialize_on_alignment=("q", "k", "v", "contexts", "partials"),
)  # fmt: skip
def decode_pieces(
    q, k, v, contexts, partials, scale, head_count, piece_count, width, q_row, q_head, q_feature,
    k_row, k_slot, k_head, k_feature, v_row, v_slot, v_head, v_feature, contexts_row,
    N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Attend one piece of the keys of a row and head, N keys at a time, with a running peak."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(2).to(tl.int64)
    feature_W = tl.arange(0, W).to(tl.int64)
    first_N = tl.arange(0, N).to(tl.int64)
    live_W = feature_W < width
    length = tl.load(contexts + row * contexts_row)
    size = (length + piece_count - 1) // piece_count
    begin = piece * size
    end = tl.minimum(begin + size, length)
    q_W = tl.load(q + row * q_row + head * q_head + feature_W * q_feature, mask=live_W, other=0.0)
    q_W = q_W.to(tl.float32)
    sum_W = tl.full((W,), 0.0, dtype=tl.float32)
    weight_N = tl.full((N,), 0.0, dtype=tl.float32)
    # Finite, so that no difference of peaks is one of infinities.
    peak = tl.full((), -1e30, dtype=tl.float32)
    for start in range(begin, end, N):
        slot_N = start + first_N
        live_N = slot_N < end
        live_NW = live_N[:, None] & live_W[None, :]
        k_NW = tl.load(
            k + row * k_row + head * k_head + (slot_N * k_slot)[:, None]
            + (feature_W * k_feature)[None, :],
            mask=live_NW, other=0.0,
        ).to(tl.float32)  # fmt: skip
        v_NW = tl.load(
            v + row * v_row + head * v_head + (slot_N * v_slot)[:, None]
            + (feature_W * v_feature)[None, :],
            mask=live_NW, other=0.0,
        ).to(tl.float32)  # fmt: skip
        score_N = tl.where(live_N, tl.sum(q_W[None, :] * k_NW, axis=1) * scale, -1e30)
        higher = tl.maximum(peak, tl.max(score_N, axis=0))
        share_N = tl.where(live_N, tl.exp(score_N - higher), 0.0)
        shrink = tl.exp(peak - higher)
        sum_W = sum_W * shrink + tl.sum(share_N[:, None] * v_NW, axis=0)
        weight_N = weight_N * shrink + share_N
        peak = higher
    partial = partials + ((row * head_count + head) * piece_count + piece) * (width + 2)
    tl.store(partial + feature_W, sum_W, mask=live_W)
    tl.store(partial + width, tl.sum(weight_N, axis=0))
    tl.store(partial + width + 1, peak)


@triton.jit(
    do_not_specialize=("head_count", "piece_count", "width"),
    do_not_specialize_on_alignment=("partials", "out"),
)
def decode_join(
    partials, out, head_count, piece_count, width, W: tl.constexpr, WIDEN: tl.constexpr
):
    """Join the pieces of a row and head, one after the other."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    feature_W = tl.arange(0, W).to(tl.int64)
    live_W = feature_W < width
    partial = partials + (row * head_count + head) * piece_count * (width + 2)
    sum_W = tl.load(partial + feature_W, mask=live_W, other=0.0)
    weight = tl.load(partial + width)
    peak = tl.load(partial + width + 1)
    for piece in range(1, piece_count):
        other = partial + piece * (width + 2)
        other_peak = tl.load(other + width + 1)
        higher = tl.maximum(peak, other_peak)
        kept = tl.exp(peak - higher)
        added = tl.exp(other_peak - higher)
        sum_W = sum_W * kept + tl.load(other + feature_W, mask=live_W, other=0.0) * added
        weight = weight * kept + tl.load(other + width) * added
        peak = higher
    out_W = out + (row * head_count + head) * width + feature_W
    tl.store(out_W, narrow(sum_W / weight, out.dtype.element_ty, WIDEN), mask=live_W)

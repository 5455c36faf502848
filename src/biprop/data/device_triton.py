"""One Triton kernel that expands a whole tensor in one launch, bit for bit as torch does.

The torch operations of `biprop.data.block` and `biprop.data.kinds` are the definition; this is the
same arithmetic, element by element. Where a kind constrains a whole slice, one program passes over
the slice twice, and its sums are sums of integers, which no order changes. What the numbers of the
table are is said in `biprop.data.plan`, and when the kernel is used in `biprop.data.device`.

Shapes: R slices along the last axis, W elements of each.
"""

import triton
import triton.language as tl

from biprop.data.kinds.linspace import BITS, ROWS
from biprop.data.plan import PARAMETERS, Code, Field, Header, Matching
from biprop.data.words_triton import (
    added,
    drawn_of,
    draws,
    float_of,
    folded,
    masks_of,
    mixed,
    number_at,
    put,
    sides,
    times,
    words_in,
    words_of,
)

__all__ = ["OPTIONS", "expand_slices"]

# Without fusion no multiply-add is contracted: each value is rounded as often as in torch.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}

_CODE_COUNT = tl.constexpr(len(Code))
_CONSTANT, _INTEGERS, _NORMAL, _UNIFORM, _FALLING, _SWAMP, _IOTA = map(tl.constexpr, range(7))
_PEAK_SQUARES, _PEAK_EXPONENTIALS, _TIES_SQUARES = map(tl.constexpr, range(7, 10))
_TIES_SQUARES_SHORT, _TIES_EXPONENTIALS = map(tl.constexpr, range(10, 12))
_TIES_EXPONENTIALS_SHORT, _PEAK_KEYS = map(tl.constexpr, range(12, 14))
_EXPLICIT, _LINSPACE = map(tl.constexpr, range(14, len(Code)))

_DIMENSIONS = tl.constexpr(len(Header))
_CODE, _BASE, _MIXED_BASE, _HOLES, _AT_TARGET, _SCALE = map(tl.constexpr, range(len(Field)))
_OWN_NUMBERS = tl.constexpr(len(Field))
_MATCHINGS = tl.constexpr(len(Field) + PARAMETERS)
_MATCHING_SIZE = tl.constexpr(len(Matching))
_SIGNED = tl.constexpr(int(Matching.SIGNED))

_LINSPACE_ROWS = tl.constexpr(ROWS)
_LINSPACE_UNIT = tl.constexpr(2.0**-BITS)
# As in biprop.data.words and biprop.data.block.
_SALT_SEQUENCE = tl.constexpr(0x9E3779B1)
_UNPAIRED_FACTOR = tl.constexpr(2.0**-24)


# Nothing is specialised on a size, so that a few compiled kernels serve all tensors.
@triton.jit(
    do_not_specialize=(
        "slice_count", "inner_count", "outer_count", "width", "token_count",
        "first_record", "record_count", "record_size", "span", "part_count", "cost_count",
    ),
    do_not_specialize_on_alignment=(
        "out", "table", "sequence_id", "token", "length", "target", "allowed", "costs", "crowd",
    ),
)  # fmt: skip
def expand_slices(
    out, table, sequence_id, token, length, target, allowed, costs, crowd,
    slice_count, inner_count, outer_count, width, token_count,
    first_record, record_count, record_size, span, part_count, cost_count,
    CODES: tl.constexpr, MIXED: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand `span` elements of each of R slices."""
    program = tl.program_id(0)
    first = (program % part_count) * span
    last = tl.minimum(first + span, width)
    slice_R = (program // part_count) * R + tl.arange(0, R)
    live_R = slice_R < slice_count
    row_R = slice_R // inner_count
    inner_R = slice_R % inner_count
    # A parameter has no tokens, and hashes as token 0 of sequence 0.
    known_R = live_R & (row_R < token_count)
    sequence_R = tl.load(sequence_id + row_R, mask=known_R, other=0)
    token_R = tl.load(token + row_R, mask=known_R, other=0)
    length_R = tl.load(length + row_R, mask=known_R, other=1)
    drawn_R = tl.zeros((R,), dtype=tl.int32)
    if MIXED:
        drawn_R = draws(table, sequence_R, token_R, inner_R, outer_count) % record_count
    for number in range(record_count):
        member_R = live_R & (drawn_R == number)
        if tl.max(member_R.to(tl.int32), axis=0) > 0:
            record = table + first_record + number * record_size
            code = tl.load(record + _CODE)
            word_R, flip_R, far_R, sum_R = words_of(
                table, record, sequence_R, token_R, length_R, inner_R, outer_count
            )
            for CODE in tl.static_range(_CODE_COUNT):
                if (CODES >> CODE) & 1:
                    if code == CODE:
                        expand_record(
                            out, table, record, target, allowed, costs, crowd,
                            sequence_R, token_R, length_R, word_R, flip_R, far_R, sum_R,
                            row_R, inner_R, slice_R, member_R,
                            outer_count, width, first, last, cost_count, CODE, R, W,
                        )  # fmt: skip


@triton.jit
def expand_record(
    out, table, record, target, allowed, costs, crowd,
    sequence_R, token_R, length_R, word_R, flip_R, far_R, sum_R,
    row_R, inner_R, slice_R, member_R,
    outer_count, width, first, last, cost_count,
    CODE: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand the slices that hold one recipe."""
    own = record + _OWN_NUMBERS
    scale = number_at(record + _SCALE)
    salt = tl.load(table + _DIMENSIONS + 3 * outer_count + 2).to(tl.uint32)
    if CODE == _CONSTANT:
        for start in range(first, last, W):
            i_W = start + tl.arange(0, W)
            put(out, tl.full((R, W), 1.0, dtype=tl.float32), scale, slice_R, member_R, i_W, width)
    elif CODE == _IOTA:
        count_R = sum_R * 17 + token_R * 31 + sequence_R * 97 + 1
        for start in range(first, last, W):
            i_W = start + tl.arange(0, W)
            count_RW = (count_R[:, None] + i_W[None, :]) % 251
            # A wrapped count is negative, and torch's remainder is not.
            count_RW = tl.where(count_RW < 0, count_RW + 251, count_RW)
            put(out, count_RW.to(tl.float32) * 2.0**-6, scale, slice_R, member_R, i_W, width)
    elif CODE < _IOTA:
        expand_elements(
            out, record, word_R, flip_R, far_R, salt, scale,
            slice_R, member_R, outer_count, width, first, last, CODE, W,
        )  # fmt: skip
    elif CODE == _PEAK_SQUARES or CODE == _PEAK_EXPONENTIALS:  # noqa: PLR1714, SIM109  # the compiler knows no set
        peak_R = peaks_of(record, target, word_R, row_R, member_R, width)
        expand_peaks(out, own, word_R, salt, scale, peak_R, slice_R, member_R, width, CODE, W)
    elif CODE == _TIES_SQUARES:
        expand_squares(out, own, word_R, salt, scale, slice_R, member_R, width, R, W)
    elif CODE == _TIES_EXPONENTIALS:
        peak_R = peaks_of(record, target, word_R, row_R, member_R, width)
        expand_exponentials(
            out, own, allowed, costs, crowd, word_R, salt, scale,
            peak_R, slice_R, member_R, width, cost_count, R, W,
        )  # fmt: skip
    elif CODE == _PEAK_KEYS:
        key_R = keys_of(record, own, word_R, sequence_R, token_R, length_R)
        for start in range(first, last, W):
            i_W = start + tl.arange(0, W)
            key_RW = tl.where(i_W[None, :] == 0, key_R[:, None], 0.0)
            put(out, key_RW, scale, slice_R, member_R, i_W, width)
    elif CODE == _EXPLICIT:
        expand_points(
            out, table, own, sequence_R, token_R, inner_R, scale,
            slice_R, member_R, outer_count, width, first, last, R, W,
        )  # fmt: skip
    elif CODE == _LINSPACE:
        row_R = ((sequence_R + token_R) & (_LINSPACE_ROWS - 1)).to(tl.int64)
        row_R = row_R * tl.load(own + 2) + inner_R.to(tl.int64) * width
        for start in range(first, last, W):
            i_W = start + tl.arange(0, W)
            index_RW = row_R[:, None] + i_W[None, :].to(tl.int64)
            value_RW = (index_RW * tl.load(own + 1) + tl.load(own)).to(tl.float32)
            put(out, value_RW * _LINSPACE_UNIT, scale, slice_R, member_R, i_W, width)
    else:
        expand_short(out, own, word_R, salt, scale, slice_R, member_R, width, CODE, W)


@triton.jit
def expand_elements(
    out, record, word_R, flip_R, far_R, salt, scale,
    slice_R, member_R, outer_count, width, first, last, CODE: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand a kind in which each element stands for itself, under a pairing."""
    matching = record + _MATCHINGS + (2 + outer_count) * _MATCHING_SIZE
    mask_R, difference_R = masks_of(matching, word_R)
    signed = tl.load(matching + _SIGNED).to(tl.int32)
    holes = tl.load(record + _HOLES) > 0
    for start in range(first, last, W):
        i_W = start + tl.arange(0, W)
        side_W = sides(matching, i_W)
        mask_RW = mask_R[:, None] ^ (side_W[None, :] * difference_R[:, None])
        index_RW, turn_RW, other_RW = folded(matching, i_W[None, :], mask_RW)
        word_RW = mixed(added(word_R[:, None], times(index_RW.to(tl.uint32), salt)))
        value_RW = element(record + _OWN_NUMBERS, word_RW, CODE)
        bits_RW = value_RW.to(tl.uint32, bitcast=True)
        bits_RW ^= (flip_R[:, None] ^ turn_RW).to(tl.uint32) << 31
        value_RW = bits_RW.to(tl.float32, bitcast=True)
        far_RW = far_R[:, None] | ((other_RW >= width).to(tl.int32) * signed)
        value_RW = tl.where(far_RW > 0, value_RW * _UNPAIRED_FACTOR, value_RW)
        draw_RW = times(word_RW, _SALT_SEQUENCE) & 0x60000000
        value_RW = tl.where(holes & (draw_RW == 0), 0.0, value_RW)
        if CODE == _INTEGERS:
            # The sign of an integer zero is nobody's subject.
            bits_RW = value_RW.to(tl.uint32, bitcast=True)
            value_RW = tl.where((bits_RW << 1) == 0, 0, bits_RW).to(tl.float32, bitcast=True)
        put(out, value_RW, scale, slice_R, member_R, i_W, width)


@triton.jit
def element(own, word_RW, CODE: tl.constexpr):
    """Return the float32 values of words, before pairing."""
    if CODE == _INTEGERS:
        value_RW = ((((word_RW & 0xFFFF) * 9) >> 16).to(tl.int32) - 4).to(tl.float32)
    elif CODE == _NORMAL:
        total_RW = (word_RW & 0xFF) + ((word_RW >> 8) & 0xFF)
        total_RW += ((word_RW >> 16) & 0xFF) + (word_RW >> 24)
        finer_RW = (times(word_RW, _SALT_SEQUENCE) >> 19).to(tl.int32)
        fixed_RW = (((total_RW.to(tl.int32) - 510) << 13) + finer_RW) * 111
        value_RW = fixed_RW.to(tl.float32) * 2.0**-27
    elif CODE == _UNIFORM:
        # As in torch, the shift copies the sign down.
        odd_RW = (word_RW.to(tl.int32, bitcast=True) >> 7) | 1
        value_RW = odd_RW.to(tl.float32) * 2.0**-24
    else:
        draw_RW = ((word_RW >> 23) & 127).to(tl.int32)
        if CODE == _FALLING:
            place_RW = (draw_RW * tl.load(own).to(tl.int32)) >> 7
            exponent_RW = tl.load(own + 1).to(tl.int32) - place_RW
        else:
            crowd_RW = (((draw_RW - 40) * 58) >> 10) + 22
            place_RW = tl.where(draw_RW < 40, (draw_RW * 77) >> 10, crowd_RW)
            exponent_RW = tl.load(own).to(tl.int32) - place_RW
        value_RW = float_of(exponent_RW, word_RW)
    return value_RW


@triton.jit
def peaks_of(record, target, word_R, row_R, member_R, width):
    """Return int32: where the peak of each slice lies."""
    at_target = tl.load(record + _AT_TARGET) > 0
    # Without targets nothing but the first number is there to be read.
    target_R = tl.load(target + tl.where(at_target, row_R, 0), mask=member_R, other=0) % width
    return tl.where(at_target, target_R.to(tl.int32), drawn_of(word_R) % width)


@triton.jit
def expand_peaks(
    out, own, word_R, salt, scale, peak_R, slice_R, member_R, width,
    CODE: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand slices of one peak and a crowd."""
    for start in range(0, width, W):
        i_W = start + tl.arange(0, W)
        word_RW = words_in(word_R, i_W, salt)
        draw_RW = ((word_RW >> 23) & 127).to(tl.int32)
        is_peak_RW = i_W[None, :] == peak_R[:, None]
        if CODE == _PEAK_SQUARES:
            high_RW = is_peak_RW | (draw_RW < 4)
            exponent_RW = tl.where(high_RW, 0, (draw_RW & 1) - 13)
            word_RW = tl.where(high_RW, word_RW & 0xFF9FFFFF, word_RW)
            value_RW = float_of(exponent_RW, word_RW)
        else:
            kept_R = tl.where((word_R & 64) > 0, tl.load(own).to(tl.int32), 128)
            value_RW = ((word_RW & 0x7FFFFF) >> 3).to(tl.float32) * (-3.0 * 2.0**-20) - 14.5
            value_RW = tl.where(draw_RW >= kept_R[:, None], -40.0, value_RW)
            value_RW = tl.where(is_peak_RW, 0.0, value_RW)
        put(out, value_RW, scale, slice_R, member_R, i_W, width)


@triton.jit
def expand_squares(
    out, own, word_R, salt, scale, slice_R, member_R, width, R: tl.constexpr, W: tl.constexpr
):
    """Expand slices whose mean square lies at a tie, a twin beside each element."""
    pair_count = width // 2
    stride = tl.load(own + 8).to(tl.int32)
    draw_R = drawn_of(word_R)
    at_tie_R = (draw_R & 0xFFFF) >= 0x5556
    unit_R = tl.where(at_tie_R, tl.load(own + 3), tl.load(own + 2)).to(tl.int32)
    at_0_R = draw_R % pair_count
    at_1_R = (at_0_R + stride) % pair_count
    at_2_R = (at_0_R + 2 * stride) % pair_count
    at_3_R = (at_0_R + 3 * stride) % pair_count
    sum_RW = tl.zeros((R, W), dtype=tl.int64)
    for start in range(0, pair_count, W):
        pair_W = start + tl.arange(0, W)
        size_RW = magnitudes(own, words_in(word_R, pair_W, salt), unit_R)
        at_RW = pair_W[None, :]
        done_RW = (at_RW == at_0_R[:, None]) | (at_RW == at_1_R[:, None])
        done_RW |= (at_RW == at_2_R[:, None]) | (at_RW == at_3_R[:, None])
        size_RW = tl.where(done_RW | (at_RW >= pair_count), 0, size_RW).to(tl.int64)
        sum_RW += size_RW * size_RW
    rest_R = tl.where(at_tie_R, tl.load(own + 1), tl.load(own)) - tl.sum(sum_RW, axis=1)
    root_0_R, rest_R = root(own, rest_R)
    root_1_R, rest_R = root(own, rest_R)
    root_2_R, rest_R = root(own, rest_R)
    root_3_R, rest_R = root(own, rest_R)
    grid = number_at(own + 11)
    for start in range(0, width, W):
        i_W = start + tl.arange(0, W)
        pair_W = i_W >> 1
        word_RW = words_in(word_R, pair_W, salt)
        size_RW = magnitudes(own, word_RW, unit_R)
        at_RW = pair_W[None, :]
        size_RW = tl.where(at_RW == at_0_R[:, None], root_0_R[:, None], size_RW)
        size_RW = tl.where(at_RW == at_1_R[:, None], root_1_R[:, None], size_RW)
        size_RW = tl.where(at_RW == at_2_R[:, None], root_2_R[:, None], size_RW)
        size_RW = tl.where(at_RW == at_3_R[:, None], root_3_R[:, None], size_RW)
        bits_RW = (size_RW.to(tl.float32) * grid).to(tl.uint32, bitcast=True)
        bits_RW ^= (word_RW & 0x80000000) ^ (i_W.to(tl.uint32) << 31)[None, :]
        # A last element without twin is zero.
        bits_RW = tl.where(at_RW < pair_count, bits_RW, 0)
        value_RW = bits_RW.to(tl.float32, bitcast=True)
        put(out, value_RW, scale, slice_R, member_R, i_W, width)


@triton.jit
def magnitudes(own, word_RW, unit_R):
    """Return int32, in the grid: odd integers and a crowd."""
    draw_RW = (word_RW >> 23) & 127
    odd_RW = ((word_RW >> 15) & 0xFF).to(tl.int32) * tl.load(own + 4).to(tl.int32)
    odd_RW = (odd_RW >> 8) * 2 + tl.load(own + 5).to(tl.int32)
    odd_RW = odd_RW << tl.load(own + 6).to(tl.int32)
    larger_RW = tl.maximum(word_RW & 0x7F00, (word_RW << 7) & 0x7F00)
    crowd_RW = ((larger_RW >> 7).to(tl.int32) + 1) << unit_R[:, None]
    return tl.where(draw_RW < tl.load(own + 7).to(tl.uint32), odd_RW, crowd_RW)


@triton.jit
def root(own, rest_R):
    """Return the largest number of the precision whose square fits the rest, and the new rest."""
    near_R = tl.sqrt(tl.maximum(rest_R, 0).to(tl.float64))
    near_R = tl.minimum(near_R, tl.load(own + 9).to(tl.float64))
    bits_R = near_R.to(tl.int64, bitcast=True) & tl.load(own + 10)
    root_R = bits_R.to(tl.float64, bitcast=True).to(tl.int64)
    return root_R.to(tl.int32), rest_R - root_R * root_R


@triton.jit
def expand_exponentials(
    out, own, allowed, costs, crowd, word_R, salt, scale,
    peak_R, slice_R, member_R, width, cost_count,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand slices whose sum of exponentials lies at a tie."""
    stride = tl.load(own + 2).to(tl.int32)
    at_0_R = (peak_R + 1) % width
    at_1_R = (at_0_R + stride) % width
    at_2_R = (at_1_R + stride) % width
    at_3_R = (at_2_R + stride) % width
    at_4_R = (at_3_R + stride) % width
    at_5_R = (at_4_R + stride) % width
    kept = tl.load(own + 1).to(tl.uint32)
    sum_RW = tl.zeros((R, W), dtype=tl.int64)
    for start in range(0, width, W):
        i_W = start + tl.arange(0, W)
        word_RW = words_in(word_R, i_W, salt)
        at_RW = i_W[None, :]
        live_RW = (((word_RW >> 12) & 0xFFFF) < kept) & (at_RW < width)
        live_RW &= (at_RW != peak_R[:, None]) & (at_RW != at_0_R[:, None])
        live_RW &= (at_RW != at_1_R[:, None]) & (at_RW != at_2_R[:, None])
        live_RW &= (at_RW != at_3_R[:, None]) & (at_RW != at_4_R[:, None])
        live_RW &= at_RW != at_5_R[:, None]
        which_RW = ((word_RW >> 8) & 15).to(tl.int32)
        sum_RW += tl.load(crowd + which_RW, mask=live_RW, other=0).to(tl.int64)
    rest_R = tl.load(own) - tl.sum(sum_RW, axis=1)
    to_0_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    to_1_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    to_2_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    to_3_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    to_4_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    to_5_R, rest_R = fitting(allowed, costs, cost_count, rest_R)
    for start in range(0, width, W):
        i_W = start + tl.arange(0, W)
        word_RW = words_in(word_R, i_W, salt)
        at_RW = i_W[None, :]
        live_RW = ((word_RW >> 12) & 0xFFFF) < kept
        index_RW = tl.where(live_RW, ((word_RW >> 8) & 15).to(tl.int32) * 2 + 248, 640)
        index_RW = tl.where(at_RW == at_0_R[:, None], to_0_R[:, None], index_RW)
        index_RW = tl.where(at_RW == at_1_R[:, None], to_1_R[:, None], index_RW)
        index_RW = tl.where(at_RW == at_2_R[:, None], to_2_R[:, None], index_RW)
        index_RW = tl.where(at_RW == at_3_R[:, None], to_3_R[:, None], index_RW)
        index_RW = tl.where(at_RW == at_4_R[:, None], to_4_R[:, None], index_RW)
        index_RW = tl.where(at_RW == at_5_R[:, None], to_5_R[:, None], index_RW)
        index_RW = tl.where(at_RW == peak_R[:, None], 0, index_RW)
        value_RW = (0 - index_RW).to(tl.float32) * 2.0**-4
        put(out, value_RW, scale, slice_R, member_R, i_W, width)


@triton.jit
def fitting(allowed, costs, cost_count, rest_R):
    """Return the index of the largest exponential that still fits the rest, and the new rest."""
    # Ascending, since they are negative: those below the rest's negative are too large. Their
    # number is found bit by bit, for up to 511 of them.
    found_R = (rest_R * 0).to(tl.int32)
    step = cost_count * 0 + 256
    for _ in range(9):
        next_R = found_R + step
        cost_R = tl.load(costs + next_R - 1, mask=next_R <= cost_count, other=0)
        is_large_R = (next_R <= cost_count) & (cost_R < 0 - rest_R)
        found_R = tl.where(is_large_R, next_R, found_R)
        step = step // 2
    found_R = tl.minimum(found_R, cost_count - 1)
    return tl.load(allowed + found_R), rest_R + tl.load(costs + found_R)


@triton.jit
def keys_of(record, own, word_R, sequence_R, token_R, length_R):
    """Return float32: the first element of each key, whose score is a peak or one of a crowd."""
    base = tl.load(record + _BASE).to(tl.uint32)
    drawn_R = mixed(added(times(sequence_R.to(tl.uint32), _SALT_SEQUENCE), base))
    later_R = ((drawn_R >> 1) & 15).to(tl.int32) % length_R
    peak_R = tl.where((drawn_R & 1) == 0, 0, later_R)
    score_R = ((word_R & 0xFF).to(tl.int32) * 3 + 3712) * tl.load(own).to(tl.int32)
    score_R = tl.where(token_R == peak_R, 0, score_R)
    return (0 - score_R).to(tl.float32) * 2.0**-18


@triton.jit
def expand_points(
    out, table, own, sequence_R, token_R, inner_R, scale,
    slice_R, member_R, outer_count, width, first, last, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Expand zeros with points, the last of which wins."""
    largest = number_at(own)
    points = table + tl.load(own + 1)
    count = tl.load(own + 2).to(tl.int32)
    for start in range(first, last, W):
        i_W = start + tl.arange(0, W)
        value_RW = tl.zeros((R, W), dtype=tl.float32)
        for number in range(count):
            point = points + number * (4 + outer_count)
            sequence = tl.load(point + 1)
            token = tl.load(point + 2)
            here_R = ((sequence < 0) | (sequence_R == sequence)) & (
                (token < 0) | (token_R == token)
            )
            for axis in range(outer_count):
                dimension = table + _DIMENSIONS + 3 * axis
                index_R = inner_R // tl.load(dimension + 1).to(tl.int32)
                index_R = index_R % tl.load(dimension).to(tl.int32)
                index = tl.load(point + 3 + axis)
                here_R = here_R & ((index < 0) | (index_R == index))
            index = tl.load(point + 3 + outer_count)
            here_W = (index < 0) | (i_W == index)
            value_RW = tl.where(here_R[:, None] & here_W[None, :], number_at(point), value_RW)
        value_RW = value_RW * scale
        value_RW = tl.where(value_RW > largest, largest, value_RW)
        value_RW = tl.where(value_RW < 0 - largest, 0 - largest, value_RW)
        put(out, value_RW, 1.0, slice_R, member_R, i_W, width)


@triton.jit
def expand_short(
    out, own, word_R, salt, scale, slice_R, member_R, width, CODE: tl.constexpr, W: tl.constexpr
):
    """Expand slices that have no room for a design of ties."""
    for start in range(0, width, W):
        i_W = start + tl.arange(0, W)
        word_RW = words_in(word_R, i_W, salt)
        if CODE == _TIES_SQUARES_SHORT:
            word_RW = (word_RW & 0x407F0000) | 0x10000
            value_RW = float_of(tl.zeros_like(word_RW).to(tl.int32), word_RW) * number_at(own)
        else:
            value_RW = (0 - (word_RW & 0xFF).to(tl.int32)).to(tl.float32) * 2.0**-4
        put(out, value_RW, scale, slice_R, member_R, i_W, width)

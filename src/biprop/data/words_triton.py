"""The words of slices and elements in Triton: hashing, pairing, and how values are stored.

The same arithmetic as `biprop.data.counter`, `biprop.data.matching` and `biprop.data.block`, in
32-bit integers that wrap. What a table's numbers mean is said in `biprop.data.plan`; the values are
made of the words by `biprop.data.device_triton`.

Shapes: R slices along the last axis, W elements of each.
"""

import triton
import triton.language as tl

from biprop.data.plan import PARAMETERS, Field, Header, Matching

__all__ = [
    "added",
    "drawn_of",
    "draws",
    "float_of",
    "folded",
    "masks_of",
    "mixed",
    "number_at",
    "put",
    "sides",
    "times",
    "words_in",
    "words_of",
]

_MIX_BASE, _MIX_AXIS = map(tl.constexpr, range(len(Header)))
_DIMENSIONS = tl.constexpr(len(Header))
_CODE, _BASE, _MIXED_BASE, _HOLES, _AT_TARGET, _SCALE = map(tl.constexpr, range(len(Field)))
_MATCHINGS = tl.constexpr(len(Field) + PARAMETERS)
_MATCHING_SIZE = tl.constexpr(len(Matching))
_MASK, _DIFFERENCE, _ONE, _OTHER, _KEEP, _SIGNED, _OWN = map(tl.constexpr, range(len(Matching)))

# As in biprop.data.words.
_FACTOR_FIRST = tl.constexpr(0x21F0AAAD)
_FACTOR_SECOND = tl.constexpr(0xD35A2D97)
_SALT_SEQUENCE = tl.constexpr(0x9E3779B1)
_SALT_TOKEN = tl.constexpr(0x85EBCA6B)


@triton.jit
def number_at(place):
    """Load the float32 whose bits lie in a table."""
    return tl.load(place).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def put(out, values_RW, scale, slice_R, member_R, i_W, width):
    """Scale float32 values, round them to the dtype of `out`, and store them."""
    values_RW = values_RW * scale
    here_RW = (slice_R.to(tl.int64) * width)[:, None] + i_W[None, :]
    live_RW = member_R[:, None] & (i_W < width)[None, :]
    if out.dtype.element_ty == tl.bfloat16:
        # To nearest even by hand: the interpreter cuts off. All values are finite and fit.
        bits_RW = values_RW.to(tl.uint32, bitcast=True)
        bits_RW = (bits_RW + 0x7FFF + ((bits_RW >> 16) & 1)) >> 16
        narrow_RW = bits_RW.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        narrow_RW = values_RW.to(out.dtype.element_ty)
    tl.store(out + here_RW, narrow_RW, mask=live_RW)


@triton.jit
def added(one, other):
    """Add, and wrap."""
    return tl.add(one, other, sanitize_overflow=False)


@triton.jit
def times(one, other):
    """Multiply, and wrap."""
    return tl.mul(one, other, sanitize_overflow=False)


@triton.jit
def mixed(words):
    """Scramble uint32 words, as `mix_` does."""
    words ^= words >> 16
    words = times(words, _FACTOR_FIRST)
    words ^= words >> 15
    words = times(words, _FACTOR_SECOND)
    return words ^ (words >> 15)


@triton.jit
def hashed(sequence_R, token_R):
    """Hash sequence id and token into uint32."""
    word_R = mixed(times(sequence_R.to(tl.uint32), _SALT_SEQUENCE))
    return added(word_R, times(token_R.to(tl.uint32), _SALT_TOKEN))


@triton.jit
def words_in(word_R, i_W, salt):
    """Return the words of elements of slices, without pairing."""
    return mixed(added(word_R[:, None], times(i_W.to(tl.uint32), salt)[None, :]))


@triton.jit
def draws(table, sequence_R, token_R, inner_R, outer_count):
    """Return int32, 0 or more: the draw of each slice's token, or of a parameter's first index."""
    base = tl.load(table + _MIX_BASE).to(tl.uint32)
    word_R = mixed(added(hashed(sequence_R, token_R), base))
    if outer_count > 0:
        # A parameter of several dimensions draws by the first.
        axis_R = inner_R // tl.load(table + _DIMENSIONS + 1).to(tl.int32)
        again_R = mixed(added(word_R, times(axis_R.to(tl.uint32), _SALT_SEQUENCE)))
        word_R = tl.where(tl.load(table + _MIX_AXIS) > 0, again_R, word_R)
    return (word_R & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def words_of(table, record, sequence_R, token_R, length_R, inner_R, outer_count):
    """Fold partners; return the word of each slice, its sign, whether its partner lies outside.

    The last is the sum of its coordinates. Sign and outside are 0 or 1.
    """
    matching = record + _MATCHINGS
    mask = tl.load(matching + _MASK).to(tl.int32)
    sequence_R, flip_R, other_R = folded(matching, sequence_R, mask)
    matching += _MATCHING_SIZE
    base = tl.load(record + _MIXED_BASE).to(tl.uint32)
    own_R = mixed(added(times(sequence_R.to(tl.uint32), _SALT_SEQUENCE), base)) & 7
    own_R = tl.maximum(own_R.to(tl.int32), 1)
    mask_R = tl.load(matching + _MASK).to(tl.int32) ^ (
        sides(matching, token_R) * tl.load(matching + _DIFFERENCE).to(tl.int32)
    )
    mask_R = tl.where(tl.load(matching + _OWN) > 0, own_R, mask_R)
    token_R, turn_R, other_R = folded(matching, token_R, mask_R)
    flip_R ^= turn_R
    far_R = (other_R >= length_R).to(tl.int32) * tl.load(matching + _SIGNED).to(tl.int32)
    base = tl.load(record + _BASE).to(tl.uint32)
    word_R = mixed(added(hashed(sequence_R, token_R), base))
    sum_R = inner_R * 0
    for axis in range(outer_count):
        dimension = table + _DIMENSIONS + 3 * axis
        size = tl.load(dimension).to(tl.int32)
        index_R = (inner_R // tl.load(dimension + 1).to(tl.int32)) % size
        sum_R += index_R
        matching += _MATCHING_SIZE
        mask_R, difference_R = masks_of(matching, word_R)
        mask_R ^= sides(matching, index_R) * difference_R
        index_R, turn_R, other_R = folded(matching, index_R, mask_R)
        flip_R ^= turn_R
        far_R |= (other_R >= size).to(tl.int32) * tl.load(matching + _SIGNED).to(tl.int32)
        salt = tl.load(dimension + 2).to(tl.uint32)
        word_R = added(word_R, times(index_R.to(tl.uint32), salt))
    return word_R, flip_R, far_R, sum_R


@triton.jit
def sides(matching, index):
    """Return 0 or 1: which of two masks a position follows."""
    one = tl.load(matching + _ONE).to(tl.int32)
    other = tl.load(matching + _OTHER).to(tl.int32)
    return ((index >> one) ^ (index >> other)) & 1


@triton.jit
def folded(matching, index, mask):
    """Fold partners onto the lower index; return it, where the sign changes, and the partner."""
    partner = index ^ mask
    turn = (index > partner).to(tl.int32) * tl.load(matching + _SIGNED).to(tl.int32)
    lower = tl.minimum(index, partner) * tl.load(matching + _KEEP).to(tl.int32)
    return lower, turn, partner


@triton.jit
def masks_of(matching, word_R):
    """Return the mask of a dimension for each slice, and what is on top for the other side."""
    own = tl.load(matching + _OWN) > 0
    top = tl.load(matching + _ONE).to(tl.int32)
    inside = (2 << top) - 1
    # As in torch, the shift copies the sign down.
    drawn_R = mixed(added(times(word_R, _SALT_SEQUENCE), 77)).to(tl.int32, bitcast=True)
    one_R = even(drawn_R & inside, top)
    other_R = even((drawn_R >> 9) & inside, top)
    # Two bits leave no second mask of one parity.
    few = top < 2
    one_R = tl.where(few, tl.maximum(drawn_R & inside, 1), one_R)
    difference_R = tl.where(few, 0, one_R ^ other_R)
    return (
        tl.where(own, one_R, tl.load(matching + _MASK).to(tl.int32)),
        tl.where(own, difference_R, tl.load(matching + _DIFFERENCE).to(tl.int32)),
    )


@triton.jit
def even(mask_R, top):
    """Let the lowest and the highest bit of masks change together or not at all."""
    mask_R ^= (((mask_R >> top) ^ mask_R) & 1) << top
    return tl.where(mask_R == 0, 1 | (1 << top), mask_R)


@triton.jit
def drawn_of(word_R):
    """Return int32, 0 or more: the draw of each slice."""
    return (mixed(added(times(word_R, _SALT_SEQUENCE), 991)) & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def float_of(exponent_RW, word_RW):
    """Build float32: fraction from the low 23 bits of a word, sign from bit 30."""
    bits_RW = ((exponent_RW + 127) << 23).to(tl.uint32)
    bits_RW |= (word_RW & 0x7FFFFF) | ((word_RW << 1) & 0x80000000)
    return bits_RW.to(tl.float32, bitcast=True)

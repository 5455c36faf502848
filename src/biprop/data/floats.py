"""Floats built from bits, and the range that each dtype leaves to the kinds.

Everything here is exact, or rounds once to nearest even, which treats +x and -x alike: so partners
stay exact partners in every dtype. Which bits are wanted is said in `biprop.data.kinds`.
"""

from fractions import Fraction

import attrs
import torch
from torch import Tensor

from biprop.data.counter import word
from biprop.errors import CaseError

__all__ = ["NumberFormat", "float_of_bits", "format_of", "round_to", "scaled"]


@attrs.frozen(kw_only=True)
class NumberFormat:
    """What the kinds must know about the dtype that they end in.

    Attributes:
        dtype: The dtype.
        exponent_top: Exponent of the largest magnitudes of kinds that spread over many binades. 0
            but in float16, whose range 2**-14 to 2**15 holds 25 binades only from 2**13 down.
        exponent_limit: No value reaches 2**exponent_limit.
        precision: Significant bits of the outputs whose ties are aimed at. A float32 input is given
            the ties of bfloat16: its own rounding shows without them.
        ties_exponent: log2 of the root mean square of `ties_squares`: large, so that no epsilon of
            a norm moves it, and as small as float16 needs.
    """

    dtype: torch.dtype
    exponent_top: int
    exponent_limit: int
    precision: int
    ties_exponent: int


_FORMATS = {
    dtype: NumberFormat(
        dtype=dtype, exponent_top=0, exponent_limit=127, precision=8, ties_exponent=12
    )
    for dtype in (torch.float32, torch.bfloat16)
} | {
    torch.float16: NumberFormat(
        dtype=torch.float16, exponent_top=13, exponent_limit=15, precision=11, ties_exponent=6
    )
}


def format_of(dtype: torch.dtype) -> NumberFormat:
    """Return the format of float32, bfloat16 or float16.

    Raises:
        CaseError: Any other dtype.
    """
    if dtype not in _FORMATS:
        raise CaseError(
            f"No data is defined for dtype={str(dtype).removeprefix('torch.')}: "
            "use float32, bfloat16 or float16."
        )
    return _FORMATS[dtype]


def float_of_bits(exponents: Tensor, words: Tensor) -> Tensor:
    """Build float32 values from int32 words: fraction from the low 23 bits, sign from bit 30.

    Args:
        exponents: int32, -126 to 127, of the shape of `words`; overwritten.
        words: int32 of any shape.

    Returns:
        float32 of the same shape: +-2**exponent times a number in [1, 2).
    """
    bits = exponents.add_(word(127)).bitwise_left_shift_(word(23))
    bits |= words & word(0x7FFFFF)
    bits |= (words << word(1)).bitwise_and_(word(1 << 31))
    return bits.view(torch.float32)


def scaled(values: Tensor, exponent: int) -> Tensor:
    """Multiply float32 `values` in place by 2**exponent, exactly while nothing leaves the range."""
    return values.mul_(float(Fraction(2) ** exponent)) if exponent else values


def round_to(values: Tensor, dtype: torch.dtype, *, bounded: bool) -> Tensor:
    """Round float32 `values` to `dtype`, to nearest even.

    Args:
        values: Any shape; may be overwritten.
        dtype: float32, bfloat16 or float16.
        bounded: The values are known to fit; otherwise what is too large becomes the largest finite
            value of its sign.
    """
    if not bounded:
        largest = torch.finfo(dtype).max
        values.clamp_(-largest, largest)
    return values.to(dtype)

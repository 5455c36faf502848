"""The counter-based hash behind every value, for tensors; for single words see `biprop.data.words`.

A word depends on what it was made from and on nothing else: no state, no order, no size of a
tensor. What the words become is said in `biprop.data.floats` and `biprop.data.kinds`; which
coordinates go in is said in `biprop.data.block`. Only integer operations that wrap are used, so
Python, CPU and GPU agree.
"""

import functools

import torch
from torch import Tensor

from biprop.data.words import FACTOR_FIRST, FACTOR_SECOND, signed

__all__ = ["mix_", "word"]


@functools.cache
def word(number: int) -> Tensor:
    """Return the int32 of the low 32 bits of `number`, as a tensor without axes; never write it.

    An operation of a tensor with a Python number first makes an int64 of it and converts that: two
    to three times the time of a small operation. One without axes goes with tensors of any device.
    """
    return torch.tensor(signed(number), dtype=torch.int32, device="cpu")


def mix_(words: Tensor) -> Tensor:
    """Scramble int32 words of any shape in place, and return them."""
    # int32 shifts copy the sign down; the masks make them logical.
    words ^= (words >> word(16)).bitwise_and_(word(0xFFFF))
    words *= word(FACTOR_FIRST)
    words ^= (words >> word(15)).bitwise_and_(word(0x1FFFF))
    words *= word(FACTOR_SECOND)
    words ^= (words >> word(15)).bitwise_and_(word(0x1FFFF))
    return words

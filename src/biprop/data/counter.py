"""The counter-based hash behind every value: 32-bit words from names, seeds and coordinates.

A word depends on what it was made from and on nothing else: no state, no order, no size of a
tensor. What the words become is said in `biprop.data.floats` and `biprop.data.kinds`; which
coordinates go in is said in `biprop.data.block`. Only integer operations that wrap are used, so
Python, CPU and GPU agree.
"""

import functools
import zlib

import torch
from torch import Tensor

__all__ = [
    "SALT_SEQUENCE",
    "SALT_TOKEN",
    "hash_words",
    "mix_",
    "mix_word",
    "salt_of_axis",
    "signed",
    "word",
]

_WORD = 0xFFFFFFFF
# The finaliser "lowbias32" of Chris Wellons' hash prospector: any bit reaches every other.
_FACTOR_FIRST = 0x21F0AAAD
_FACTOR_SECOND = 0xD35A2D97

# Odd constants without small multiples in common (golden ratio, MurmurHash3, xxHash).
SALT_SEQUENCE = 0x9E3779B1
SALT_TOKEN = 0x85EBCA6B
_SALT_AXIS = 0xC2B2AE35
_SALT_AXIS_STEP = 0x3E247E6A


def signed(number: int) -> int:
    """Return the int32 that has the low 32 bits of `number`."""
    number &= _WORD
    return number - (1 << 32) if number >> 31 else number


@functools.cache
def word(number: int) -> Tensor:
    """Return the int32 of the low 32 bits of `number`, as a tensor without axes; never write it.

    An operation of a tensor with a Python number first makes an int64 of it and converts that: two
    to three times the time of a small operation. One without axes goes with tensors of any device.
    """
    return torch.tensor(signed(number), dtype=torch.int32, device="cpu")


def mix_word(number: int) -> int:
    """Scramble the low 32 bits of a number, as `mix_` does to each element of a tensor."""
    number &= _WORD
    number ^= number >> 16
    number = number * _FACTOR_FIRST & _WORD
    number ^= number >> 15
    number = number * _FACTOR_SECOND & _WORD
    return number ^ number >> 15


def mix_(words: Tensor) -> Tensor:
    """Scramble int32 words of any shape in place, and return them."""
    # int32 shifts copy the sign down; the masks make them logical.
    words ^= (words >> word(16)).bitwise_and_(word(0xFFFF))
    words *= word(_FACTOR_FIRST)
    words ^= (words >> word(15)).bitwise_and_(word(0x1FFFF))
    words *= word(_FACTOR_SECOND)
    words ^= (words >> word(15)).bitwise_and_(word(0x1FFFF))
    return words


def hash_words(*parts: int | str) -> int:
    """Return a 32-bit word, 0 or more, that depends on every part and on their order.

    Strings count by their UTF-8 bytes, integers by their low 32 bits.
    """
    total = 0x243F6A88
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        total = mix_word(total * 31 + number)
    return total


def salt_of_axis(axis: int) -> int:
    """Return the odd word by which the coordinates of the `axis`-th dimension are multiplied."""
    return _SALT_AXIS + axis * _SALT_AXIS_STEP | 1

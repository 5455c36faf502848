"""32-bit words from names, seeds and coordinates: the counter-based hash without tensors.

A word depends on what it was made from and on nothing else. What tensors of words become is said in
`biprop.data.counter`. Nothing here imports torch, so that whoever only draws cases need not.
"""

import zlib

__all__ = [
    "FACTOR_FIRST",
    "FACTOR_SECOND",
    "SALT_SEQUENCE",
    "SALT_TOKEN",
    "hash_words",
    "mix_word",
    "salt_of_axis",
    "signed",
]

_WORD = 0xFFFFFFFF
# The finaliser "lowbias32" of Chris Wellons' hash prospector: any bit reaches every other.
FACTOR_FIRST = 0x21F0AAAD
FACTOR_SECOND = 0xD35A2D97

# Odd constants without small multiples in common (golden ratio, MurmurHash3, xxHash).
SALT_SEQUENCE = 0x9E3779B1
SALT_TOKEN = 0x85EBCA6B
_SALT_AXIS = 0xC2B2AE35
_SALT_AXIS_STEP = 0x3E247E6A


def signed(number: int) -> int:
    """Return the int32 that has the low 32 bits of `number`."""
    number &= _WORD
    return number - (1 << 32) if number >> 31 else number


def mix_word(number: int) -> int:
    """Scramble the low 32 bits of a number, as `mix_` does to each element of a tensor."""
    number &= _WORD
    number ^= number >> 16
    number = number * FACTOR_FIRST & _WORD
    number ^= number >> 15
    number = number * FACTOR_SECOND & _WORD
    return number ^ number >> 15


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

"""Matching: who is whose partner along one axis, by XOR, with neither a sort nor a size.

One mask for all positions would not do. In a tree that adds halves, partial sums over partners are
exact negatives of each other, so every such tree gives exactly zero, whatever it adds first. So a
position follows one of two masks, by the parity of two of its bits, which neither mask changes: a
partner follows the same mask, and no tree sees two mirrored halves.

Which axes are matched, and what partners share, is said in `biprop.data.block`.
"""

import functools

import torch
from torch import Tensor

from biprop.data.counter import mix_, word
from biprop.data.recipe import Role
from biprop.data.words import SALT_SEQUENCE, hash_words

__all__ = ["fold", "joined", "narrowed", "own_masks", "second_mask", "shared_masks"]


def shared_masks(index: Tensor, mask: int) -> Tensor:
    """Return the XOR mask of every position under a mask that all slices share."""
    found = second_mask(mask)
    if found is None:
        return word(mask)
    second, one, other = found
    parity = ((index >> word(one)) ^ (index >> word(other))).bitwise_and_(word(1))
    return parity.mul_(word(mask ^ second)).bitwise_xor_(word(mask))


def own_masks(words: Tensor, coordinate: Tensor, size: int) -> Tensor:
    """Return the XOR mask of every position: each slice draws two masks and who follows which."""
    top = (size - 1).bit_length() - 1
    inside = (2 << top) - 1
    drawn = mix_(words * word(SALT_SEQUENCE) + word(77))
    if top < 2:
        # Two bits leave no second mask of one parity.
        return drawn.bitwise_and_(word(inside)).clamp_min_(1)
    masks = []
    for source in (drawn, drawn >> word(9)):
        mask = source & word(inside)
        # The lowest and the highest bit change together or not at all: the parity stays.
        mask ^= ((mask >> word(top)) ^ mask).bitwise_and_(word(1)) << word(top)
        masks.append(torch.where(mask == word(0), word(1 | 1 << top), mask))
    parity = ((coordinate >> word(top)) ^ coordinate).bitwise_and_(word(1))
    return (parity * (masks[0] ^ masks[1])).bitwise_xor_(masks[0])


def fold(index: Tensor, role: Role, mask: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Fold partners onto the lower index; return it, where the sign changes, and the partner."""
    if role == "flat":
        return torch.zeros_like(index), None, None
    partner = index ^ mask
    lower = torch.minimum(index, partner)
    if role == "symmetric":
        return lower, None, partner
    return lower, (index > partner).to(torch.int32).bitwise_left_shift_(word(31)), partner


def joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sign changes of two axes together; None stands for no change."""
    if one is None or other is None:
        return other if one is None else one
    return one ^ other


def narrowed(mask: int, size: int) -> int:
    """Return a mask cut to the bits that a size has, 1 where none is left.

    A mask wider than the size would leave every position without a partner.
    """
    return mask & ((1 << (size - 1).bit_length()) - 1) or 1


@functools.cache
def second_mask(mask: int) -> tuple[int, int, int] | None:
    """Return a second mask and the two bits that decide; None where there is no other.

    All three lie within the bits of `mask`, so that no size enters.
    """
    length = mask.bit_length()
    values = [mask >> bit & 1 for bit in range(length)]
    choices = [
        (one, other)
        for one in range(length)
        for other in range(length - 1, one, -1)
        if values[one] == values[other]
    ]
    if length < 3 or not choices:
        return None
    # A low and a high bit: trees mix both masks early, whether they add neighbours or halves first.
    one, other = choices[0]
    for attempt in range(64):
        second = hash_words(mask, attempt) & ((1 << length) - 1)
        even = (second >> one & 1) == (second >> other & 1)
        if even and second not in {0, mask}:
            return second, one, other
    return None

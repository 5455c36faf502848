"""Keys of which one is the peak of a softmax, for attention and its log-sum-exp.

`biprop.data.kinds.peaks` has the same design along a dimension; here it lies along the tokens of a
sequence, as softmax does in attention. Beside queries of ones, the score of a key is its first
element, and kernels divide it by the root of the size of that dimension.
"""

import math

import torch
from torch import Tensor

from biprop.data.block import Block, slice_words
from biprop.data.counter import mix_, word
from biprop.data.recipe import Recipe
from biprop.data.words import SALT_SEQUENCE, hash_words

__all__ = ["peak_keys", "root_of"]

# 14.5 in steps of 1 / 256; three times 8 bits of a hash reach 17.49.
_CROWD_FIRST = 3712
_CROWD_STEP = 3
# The peak lies among the first tokens, so that most queries see it in a causal mask too.
_PEAK_TOKENS = 16


def root_of(size: int) -> int:
    """Return the root of a size in 1 / 1024, whole, at most 256 of 1."""
    return min(math.isqrt(size << 20), 1 << 18)


def peak_keys(recipe: Recipe, block: Block) -> Tensor:
    """Return keys whose scores, divided by the root of their size, are one 0 beside -14.5 to -17.5.

    Only element 0 of the last axis is not zero. With `D` the size of that axis, all in int32:

    - `w` is the hash word of the slice along the last axis (`slice_words`); element 0 is
      `-(3712 + 3 * (w & 255)) * root_of(D)`, converted to float32 and multiplied by `2**-18`.
    - `s` is `mix(sequence_id * SALT_SEQUENCE + base)`, with `base` as in the slice's word. The
      sequence's peak is token 0 where `s` is even, else token `(s >> 1 & 15) % length`; element 0
      is 0 there. All heads of a sequence have their peak at one token.

    A parameter has no tokens and is zero.
    """
    values = torch.zeros(block.shape, dtype=torch.float32, device=block.device)
    if block.tokens is None:
        return values
    scores = slice_words(block, recipe.kind).bitwise_and_(word(0xFF))
    scores = scores.mul_(word(_CROWD_STEP)).add_(word(_CROWD_FIRST))
    # A product of whole numbers: its conversion is the one rounding.
    scores = scores.mul_(word(root_of(block.sizes[-1]))).neg_().float().mul_(2.0**-18)
    rows = (-1,) + (1,) * (len(block.shape) - 2)
    scores = scores.reshape(block.shape[:-1]).masked_fill_(_is_peak(recipe, block).reshape(rows), 0)
    values[..., 0] = scores
    return values


def _is_peak(recipe: Recipe, block: Block) -> Tensor:
    """Return bool `[rows]`: whether the token is the peak of its sequence."""
    assert block.tokens is not None, "a parameter has no peak"
    tokens = block.tokens
    base = hash_words(block.seed, block.name, recipe.kind)
    drawn = mix_(tokens.sequence_id * word(SALT_SEQUENCE) + word(base))
    later = (drawn >> word(1)).bitwise_and_(word(_PEAK_TOKENS - 1)) % tokens.length
    return tokens.token == later.masked_fill_((drawn & word(1)) == word(0), 0)

"""Blocks: which coordinates are expanded at once, and the hash word of each.

A word depends on the seed, the tensor's name, the kind, the sequence id, the token and the
element's coordinates. No size goes in, so removing a sequence or resizing a dimension changes no
other word. Pairing folds partners onto one word and says which of them changes sign; what words
become is said in `biprop.data.kinds`, and the cutting into blocks is done by `biprop.data.expand`.
"""

from collections.abc import Mapping
from functools import cached_property

import attrs
import torch
from torch import Tensor

from biprop.data.counter import mix_, word
from biprop.data.floats import NumberFormat
from biprop.data.matching import fold, joined, narrowed, own_masks, shared_masks
from biprop.data.recipe import SEQUENCES, TOKENS, Pairing
from biprop.data.words import SALT_SEQUENCE, SALT_TOKEN, hash_words, mix_word, salt_of_axis, signed

__all__ = [
    "Block",
    "Tokens",
    "Words",
    "element_words",
    "own_sequence_mask",
    "slice_words",
    "token_words",
]

# Far enough below the largest of 24 binades that a tail without partner does not hide the rounding.
_UNPAIRED_FACTOR = 2.0**-24
# `own` over tokens draws its mask from 1 to 7, whatever the length: a prefix keeps its pairs.
_OWN_TOKEN_MASK = 7
# `own` over sequences: partners must agree on the mask, so the tensor draws one, from 1 to 3.
_OWN_SEQUENCE_MASK = 3


@attrs.frozen(eq=False, kw_only=True)
class Tokens:
    """Which tokens of which sequences the rows of a tensor belong to.

    Attributes:
        sequence_id: int32 `[n]`.
        token: int32 `[n]`, index of the token in its sequence.
        length: int32 `[n]`, tokens of that sequence: pairs over tokens stay below it.
    """

    sequence_id: Tensor
    token: Tensor
    length: Tensor

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.token.shape[0])

    @cached_property
    def words(self) -> Tensor:
        """int32 `[n]`, the hash of sequence id and token: every tensor of a case begins with it."""
        return _hashed(self.sequence_id, self.token)

    def at(self, rows: Tensor | slice) -> "Tokens":
        """Return the tokens of some rows."""
        return Tokens(
            sequence_id=self.sequence_id[rows], token=self.token[rows], length=self.length[rows]
        )


@attrs.frozen(eq=False, kw_only=True)
class Block:
    """A part of one tensor that is expanded at once.

    Attributes:
        seed: Seed of the case.
        name: Name of the tensor.
        number_format: Format of its dtype.
        device: Where it is built.
        tokens: Tokens of the first axis; None for a parameter, whose first axis then has size 1.
        target: int `[n]`, target token of each row, if there is one.
        dims: Texts of the other axes, at least one.
        sizes: Sizes of those axes in the whole tensor.
        coordinates: int32, ascending: the coordinates of each of those axes that lie in the block.
            Those of the last axis are complete.
    """

    seed: int
    name: str
    number_format: NumberFormat
    device: torch.device
    tokens: Tokens | None
    target: Tensor | None
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinates: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block: rows, then the part of each axis."""
        rows = 1 if self.tokens is None else self.tokens.count
        return (rows, *(int(part.shape[0]) for part in self.coordinates))

    @property
    def slice_count(self) -> int:
        """Number of slices along the last axis."""
        count = 1
        for size in self.shape[:-1]:
            count *= size
        return count

    def at(self, rows: Tensor) -> "Block":
        """Return the block of some rows only."""
        assert self.tokens is not None, "a parameter has no rows"
        target = None if self.target is None else self.target[rows]
        return self.holding(self.tokens.at(rows), target)

    def holding(self, tokens: Tokens | None, target: Tensor | None) -> "Block":
        """Return the block with other tokens and targets: some of them, or on another device."""
        # Written out: for every tensor of a case `attrs.evolve` takes longer than all the rest.
        return Block(
            seed=self.seed,
            name=self.name,
            number_format=self.number_format,
            device=self.device,
            tokens=tokens,
            target=target,
            dims=self.dims,
            sizes=self.sizes,
            coordinates=self.coordinates,
        )

    def at_first_axis(self, index: Tensor) -> "Block":
        """Return the block of some coordinates of the first dimension only."""
        first, *others = self.coordinates
        return attrs.evolve(self, coordinates=(first[index], *others))


@attrs.frozen(eq=False, kw_only=True)
class Words:
    """The hash words of a block under a pairing.

    Attributes:
        words: int32, of the block's shape; partners have the same word.
        flip: int32, broadcastable: the sign bit where a partner changes sign; None if none does.
        unpaired: bool, broadcastable: True where the partner lies outside; None if nowhere.
    """

    words: Tensor
    flip: Tensor | None
    unpaired: Tensor | None

    def pair_(self, values: Tensor) -> Tensor:
        """Give float32 `values` of the block, in place, the signs and sizes of the pairing."""
        if self.flip is not None:
            values.view(torch.int32).bitwise_xor_(self.flip)
        if self.unpaired is not None:
            values *= torch.where(self.unpaired, _UNPAIRED_FACTOR, 1.0)
        return values


def token_words(
    block: Block, kind: str, pairing: Mapping[str, Pairing]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return int32 words `[n]` of the rows of a block, and flip and unpaired over its rows."""
    base = hash_words(block.seed, block.name, kind)
    if block.tokens is None:
        # The word of token 0 of sequence 0, made without a launch for each step.
        number = signed(mix_word(base))
        return torch.full((1,), number, dtype=torch.int32, device=block.device), None, None
    over_sequences, over_tokens = pairing.get(SEQUENCES), pairing.get(TOKENS)
    if over_sequences is None and over_tokens is None:
        return mix_(block.tokens.words + word(base)), None, None
    sequence_id, token = block.tokens.sequence_id, block.tokens.token
    flip: Tensor | None = None
    unpaired: Tensor | None = None
    if over_sequences is not None:
        own = own_sequence_mask(base)
        mask = word(own if over_sequences.role == "own" else over_sequences.mask)
        sequence_id, flip, _ = fold(sequence_id, over_sequences.role, mask)
    if over_tokens is not None:
        mask = shared_masks(token, over_tokens.mask)
        if over_tokens.role == "own":
            drawn = mix_(sequence_id * word(SALT_SEQUENCE) + word(mix_word(base)))
            mask = drawn.bitwise_and_(word(_OWN_TOKEN_MASK)).clamp_min_(1)
        token, flip_token, partner = fold(token, over_tokens.role, mask)
        flip = joined(flip, flip_token)
        if flip_token is not None and partner is not None:
            unpaired = partner >= block.tokens.length
    return mix_(_hashed(sequence_id, token) + word(base)), flip, unpaired


def own_sequence_mask(base: int) -> int:
    """Return the mask of `own` over sequences, given the word of seed, tensor and kind."""
    return max(1, base & _OWN_SEQUENCE_MASK)


def element_words(block: Block, kind: str, pairing: Mapping[str, Pairing]) -> Words:
    """Return the word of every element of a block, partners folded onto one word."""
    words, flip, unpaired = token_words(block, kind, pairing)
    axis_count = len(block.dims)
    rows = (-1,) + (1,) * axis_count
    words = words.reshape(rows)
    flip = None if flip is None else flip.reshape(rows)
    unpaired = None if unpaired is None else unpaired.reshape(rows)
    for axis, (dim, size) in enumerate(zip(block.dims, block.sizes, strict=True)):
        coordinate = _along(block.coordinates[axis], axis, axis_count)
        over = pairing.get(dim)
        if over is not None and size > 1:
            if over.role == "own":
                mask = own_masks(words, coordinate, size)
            else:
                mask = shared_masks(coordinate, narrowed(over.mask, size))
            coordinate, flip_axis, partner = fold(coordinate, over.role, mask)
            flip = joined(flip, flip_axis)
            if flip_axis is not None and partner is not None and size & (size - 1):
                outside = partner >= size
                unpaired = outside if unpaired is None else unpaired | outside
        words = words + coordinate * word(salt_of_axis(axis))
    if tuple(words.shape) != block.shape:
        words = words.expand(block.shape).contiguous()
    return Words(words=mix_(words), flip=flip, unpaired=unpaired)


def slice_words(block: Block, kind: str) -> Tensor:
    """Return int32 words `[slices, 1]`, one for each slice along the last axis, without pairing.

    The word of an element of the slice is `mix_(word + coordinate * word(salt_of_axis(last)))`, as
    in `element_words`.
    """
    words, _, _ = token_words(block, kind, {})
    axis_count = len(block.dims)
    words = words.reshape((-1,) + (1,) * axis_count)
    for axis in range(axis_count - 1):
        part = _along(block.coordinates[axis], axis, axis_count)
        words = words + part * word(salt_of_axis(axis))
    return words.reshape(-1, 1)


def _hashed(sequence_id: Tensor, token: Tensor) -> Tensor:
    # A round between the two, so that no two pairs of small numbers meet in one sum.
    return mix_(sequence_id * word(SALT_SEQUENCE)) + token * word(SALT_TOKEN)


def _along(coordinate: Tensor, axis: int, axis_count: int) -> Tensor:
    shape = [1] * (axis_count + 1)
    shape[axis + 1] = -1
    return coordinate.reshape(shape)

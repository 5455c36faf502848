"""Expansion: from a recipe to the values of a tensor, the same bits everywhere.

The same recipe, seed, name and tokens give the same bits on every device, with every number of
threads and in every part: asking for fewer rows changes none of the others. What a kind looks like
is said in `biprop.data.kinds`; where the values come to lie is said in `biprop.layout`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from biprop.bits import digest_bits
from biprop.data.block import Block, Tokens, token_words
from biprop.data.counter import SALT_SEQUENCE, mix_, word
from biprop.data.floats import NumberFormat, format_of, round_to, scaled
from biprop.data.kinds import MAKERS
from biprop.data.recipe import Pairing, Recipe
from biprop.errors import CaseError

__all__ = ["Tokens", "digest", "expand", "expand_tokens"]

# Elements of a block: its few temporaries stay in a processor's cache, and memory stays bounded.
_BLOCK_ELEMENTS = 1 << 17
_CONSTANTS = ("zeros", "ones")


def expand(
    recipe: Recipe,
    *,
    seed: int,
    name: str,
    tokens: Tokens | None,
    dims: Sequence[str],
    sizes: Sequence[int],
    dtype: torch.dtype,
    target: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the values of one tensor, or of some of its rows.

    Args:
        recipe: What it holds.
        seed: Seed of the case, 0 to 2**32 - 1.
        name: Name of the tensor in its signature.
        tokens: The tokens that its first axis stands for; None for a parameter.
        dims: Texts of its other dimensions, as `recipe.pairing` and points name them.
        sizes: Their sizes.
        dtype: float32, bfloat16 or float16. Nothing overflows: a range too wide for float16 is
            moved, and an exponent too large for it is reduced, alike for all values of the tensor.
        target: int `[n]`, the target token of each row, for recipes with `at_target`.
        device: Where the tensor is built; the tokens' device, else the CPU, by default.

    Returns:
        `[n, *sizes]` (a parameter: `[*sizes]`) of `dtype`, contiguous.

    Raises:
        CaseError: The dtype has no data, or a point names an axis that the tensor does not have.
    """
    place = _device_of(tokens, device)
    number_format = format_of(dtype)
    rows = () if tokens is None else (tokens.count,)
    shape = (*rows, *sizes)
    if recipe.kind in _CONSTANTS or not math.prod(shape):
        return _constant(recipe, shape, number_format, place)
    # A tensor without other dimensions has one element in each slice.
    inner_dims, inner_sizes = (tuple(dims), tuple(sizes)) if sizes else (("",), (1,))
    whole = Block(
        seed=seed,
        name=name,
        number_format=number_format,
        device=place,
        tokens=tokens,
        target=target,
        dims=inner_dims,
        sizes=inner_sizes,
        coordinates=tuple(
            torch.arange(size, dtype=torch.int32, device=place) for size in inner_sizes
        ),
    )
    if math.prod(whole.shape) <= _BLOCK_ELEMENTS:
        return _rounded(recipe, whole).reshape(shape)
    values = torch.empty(whole.shape, dtype=dtype, device=place)
    for part in _parts(whole.shape):
        values[part] = _rounded(recipe, _cut(whole, part))
    return values.reshape(shape)


def expand_tokens(
    *,
    seed: int,
    name: str,
    tokens: Tokens,
    vocabulary: int,
    pairing: Mapping[str, Pairing] | None = None,
) -> Tensor:
    """Return int64 `[n]` token indices in [0, vocabulary).

    Args:
        seed: Seed of the case.
        name: Name of the tensor in its signature.
        tokens: The tokens that its axis stands for.
        vocabulary: At least 1.
        pairing: Partners over tokens (`@`) or sequences (`#`) get one index.

    Raises:
        CaseError: `vocabulary` is below 1.
    """
    if vocabulary < 1:
        raise CaseError(f"The tokens of {name} have vocabulary={vocabulary}: it must be 1 or more.")
    block = Block(
        seed=seed,
        name=name,
        number_format=format_of(torch.float32),
        device=tokens.token.device,
        tokens=tokens,
        target=None,
        dims=(),
        sizes=(),
        coordinates=(),
    )
    words, _, _ = token_words(block, "token", pairing or {})
    return words.bitwise_and_(word(0x7FFFFFFF)).long() % vocabulary


def digest(values: Tensor) -> str:
    """Return 32 hexadecimal digits over dtype, shape and bits, as the golden table holds them."""
    return digest_bits(values)


def _device_of(tokens: Tokens | None, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return torch.device("cpu") if tokens is None else tokens.token.device


def _parts(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into parts of at most `_BLOCK_ELEMENTS`, never along the last axis."""
    first, *others = shape
    inner = math.prod(others)
    if first * inner <= _BLOCK_ELEMENTS or not others:
        yield (slice(0, first),)
        return
    step = max(1, _BLOCK_ELEMENTS // inner)
    for start in range(0, first, step):
        here = slice(start, min(first, start + step))
        if inner <= _BLOCK_ELEMENTS:
            yield (here,)
        else:
            yield from ((here, *rest) for rest in _parts(tuple(others)))


def _cut(whole: Block, part: tuple[slice, ...]) -> Block:
    rows, *axes = part
    axes += [slice(None)] * (len(whole.dims) - len(axes))
    return attrs.evolve(
        whole,
        tokens=None if whole.tokens is None else whole.tokens.at(rows),
        target=None if whole.target is None else whole.target[rows],
        coordinates=tuple(c[axis] for c, axis in zip(whole.coordinates, axes, strict=True)),
    )


def _rounded(recipe: Recipe, block: Block) -> Tensor:
    """Return a block's values, `[rows, ...]` of the dtype wanted."""
    if recipe.kind == "mix":
        return _mixture(recipe, block)
    number_format = block.number_format
    if recipe.kind in _CONSTANTS:
        return _constant(recipe, block.shape, number_format, block.device)
    maker = MAKERS[recipe.kind]
    exponent = recipe.exponent
    if maker.reach is not None:
        # Reduced for all values alike: clamping each would make a crowd of equal values.
        reach = maker.reach(number_format, block.sizes[-1])
        exponent = min(exponent, number_format.exponent_limit - reach)
    values = scaled(maker.make(recipe, block), exponent)
    return round_to(values, number_format.dtype, bounded=maker.reach is not None)


def _constant(
    recipe: Recipe, shape: tuple[int, ...], number_format: NumberFormat, device: torch.device
) -> Tensor:
    """Return zeros, or ones times 2**exponent; zeros too where there is no element."""
    fill = 2.0 ** min(recipe.exponent, number_format.exponent_limit)
    value = fill if recipe.kind == "ones" else 0.0
    return torch.full(shape, value, dtype=number_format.dtype, device=device)


def _mixture(recipe: Recipe, block: Block) -> Tensor:
    """Let every token draw a recipe; a parameter draws one for each index of its first axis."""
    count = len(recipe.rows)
    drawn = _draws(block) % count
    values = torch.empty(block.shape, dtype=block.number_format.dtype, device=block.device)
    for which, inner in enumerate(recipe.rows):
        chosen = attrs.evolve(inner, exponent=inner.exponent + recipe.exponent)
        index = (drawn == which).nonzero()[:, 0]
        if len(index) == len(drawn):
            return _rounded(chosen, block)
        if not len(index):
            continue
        if block.tokens is not None:
            values[index] = _rounded(chosen, block.at(index))
        else:
            values[:, index] = _rounded(chosen, block.at_first_axis(index))
    return values


def _draws(block: Block) -> Tensor:
    """Return int32, 0 or more: one word a token, or a coordinate of a parameter's first axis."""
    words, _, _ = token_words(block, "mix", {})
    if block.tokens is None and len(block.dims) > 1:
        words = mix_(words + block.coordinates[0] * word(SALT_SEQUENCE))
    return words.bitwise_and_(word(0x7FFFFFFF))

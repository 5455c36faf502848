"""Expansion: from a recipe to the values of a tensor, the same bits everywhere.

The same recipe, seed, name and tokens give the same bits on every device, with every number of
threads and in every part: asking for fewer rows changes none of the others. What a kind looks like
is said in `biprop.data.kinds`, which defines it by torch operations; on a GPU one kernel does their
work (`biprop.data.device`). Where the values come to lie is said in `biprop.layout`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from biprop.bits import digest_bits
from biprop.data.block import Block, Tokens, token_words
from biprop.data.counter import mix_, word
from biprop.data.device import expand_plan, takes_kernel
from biprop.data.floats import NumberFormat, format_of, round_to, scaled
from biprop.data.kinds import CONSTANTS, MAKERS, exponent_of
from biprop.data.plan import Plan, plan_of
from biprop.data.recipe import Pairing, Recipe
from biprop.data.words import SALT_SEQUENCE
from biprop.errors import CaseError

__all__ = ["Expansion", "Tokens", "digest", "expand", "expand_tokens", "expansion_of"]

# Elements of a block: its few temporaries stay in a processor's cache, and memory stays bounded.
_BLOCK_ELEMENTS = 1 << 17


@attrs.frozen(kw_only=True, eq=False)
class Expansion:
    """A tensor that is worked out on the host, and not yet expanded.

    Attributes:
        recipe: What it holds.
        whole: The tensor.
        shape: Of the result.
        plan: What a kernel expands it by; None where torch does.
    """

    recipe: Recipe
    whole: Block
    shape: tuple[int, ...]
    plan: Plan | None = None

    def values(
        self, *, tokens: Tokens | None, target: Tensor | None, table: Tensor | None = None
    ) -> Tensor:
        """Return what `expand` returns.

        Args:
            tokens: Those of `whole`, on the device.
            target: Likewise.
            table: That of `plan`, if it is there already.
        """
        whole = self.whole
        if self.recipe.kind in CONSTANTS or not math.prod(self.shape):
            return _constant(self.recipe, self.shape, whole.number_format, whole.device)
        if tokens is not whole.tokens or target is not whole.target:
            whole = whole.holding(tokens, target)
        if self.plan is not None:
            return expand_plan(self.plan, whole, table=table).reshape(self.shape)
        return _by_torch(self.recipe, whole).reshape(self.shape)


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
    return expansion_of(
        recipe,
        seed=seed,
        name=name,
        tokens=tokens,
        dims=dims,
        sizes=sizes,
        dtype=dtype,
        target=target,
        device=_device_of(tokens, device),
    ).values(tokens=tokens, target=target)


def expansion_of(
    recipe: Recipe,
    *,
    seed: int,
    name: str,
    tokens: Tokens | None,
    dims: Sequence[str],
    sizes: Sequence[int],
    dtype: torch.dtype,
    target: Tensor | None,
    device: torch.device,
) -> Expansion:
    """Work out a tensor on the host, so that what several of them need is moved together.

    Args and errors are those of `expand`; tokens and target may lie on the CPU, and are moved then.
    """
    rows = () if tokens is None else (tokens.count,)
    shape = (*rows, *sizes)
    # A tensor without other dimensions has one element in each slice.
    inner_dims, inner_sizes = (tuple(dims), tuple(sizes)) if sizes else (("",), (1,))
    whole = Block(
        seed=seed,
        name=name,
        number_format=format_of(dtype),
        device=device,
        tokens=tokens,
        target=target,
        dims=inner_dims,
        sizes=inner_sizes,
        coordinates=(),
    )
    is_constant = recipe.kind in CONSTANTS or not math.prod(shape)
    plan = None if is_constant or not takes_kernel(recipe, whole) else plan_of(recipe, whole)
    return Expansion(recipe=recipe, whole=whole, shape=shape, plan=plan)


def _by_torch(recipe: Recipe, whole: Block) -> Tensor:
    """Return the values of a whole tensor, block by block."""
    coordinates = tuple(
        torch.arange(size, dtype=torch.int32, device=whole.device) for size in whole.sizes
    )
    whole = attrs.evolve(whole, coordinates=coordinates)
    if math.prod(whole.shape) <= _BLOCK_ELEMENTS:
        return _rounded(recipe, whole)
    values = torch.empty(whole.shape, dtype=whole.number_format.dtype, device=whole.device)
    for part in _parts(whole.shape):
        values[part] = _rounded(recipe, _cut(whole, part))
    return values


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
    if recipe.kind in CONSTANTS:
        return _constant(recipe, block.shape, number_format, block.device)
    maker = MAKERS[recipe.kind]
    exponent = exponent_of(recipe, number_format, block.sizes[-1])
    values = scaled(maker.make(recipe, block), exponent)
    return round_to(values, number_format.dtype, bounded=maker.reach is not None)


def _constant(
    recipe: Recipe, shape: tuple[int, ...], number_format: NumberFormat, device: torch.device
) -> Tensor:
    """Return zeros, or ones times 2**exponent; zeros too where there is no element."""
    value = 0.0
    if recipe.kind == "ones":
        value = 2.0 ** exponent_of(recipe, number_format, 1)
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

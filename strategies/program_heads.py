"""What is drawn before the first operation of a program: sizes of the cache, data, how long it is.

Operations are drawn by `biprop.strategies.program_ops` from the model of what a cache holds.
Hypothesis is not known here: it draws seeds, which stand behind `Draw`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from biprop.case import Dtype
from biprop.data.recipe import KINDS_CONDITIONED, Recipe
from biprop.generation import Draw, Lane
from biprop.generation.attention_data import attention_recipes
from biprop.kvcache.records import Program
from biprop.kvcache.shape import CacheLayout, CacheShape
from biprop.signature import parse_signature
from biprop.signature.roles import roles_of

__all__ = ["PROGRAM_LIMITS", "ProgramLimits", "draw_head", "storages_of"]

# As an attention operator names the sides, so that its families of data apply.
_ATTENTION = (
    "q[TQ,HQ,D], k[TC,HK,D], v[TC,HK,D], query_offsets: offsets(Q)[B+1], "
    "context_offsets: offsets(C)[B+1] -> out[TQ,HQ,D], lse: float32[TQ,HQ]"
)
_BITS: Mapping[Dtype, int] = MappingProxyType({"float32": 32, "bfloat16": 16, "float16": 16})
# One in so many programs has a vocabulary, and one in so many data that accuracy is judged on.
_VOCABULARY_EVERY = 4
_CONDITIONED_EVERY = 5
# Ones show no order of keys at all.
_CONDITIONED = tuple(kind for kind in KINDS_CONDITIONED if kind != "ones")
_DRAWS_NARROW = 3
# Pages of a pool that is nearly full all the time.
_TIGHT = (2, 3, 4, 6)
_EMBEDDINGS = ("normal", "normal", "uniform", "wide", "pairs")


@attrs.frozen(kw_only=True)
class ProgramLimits:
    """How large the programs of a lane may be.

    Attributes:
        steps: Operations of the longest one.
        tokens_max: Of one sequence.
        chunk_max: Tokens that one append gives a sequence at most, but for a few long ones.
        sequences_max: That live at a time.
        block_sizes: Simplest first; repeats are weights.
        heads: HK, likewise.
        groups: HQ / HK, likewise.
        widths: D, likewise.
        pages: Of the pool, likewise, but for tight pools and those that three long sequences need.
        pool_max: Tokens that a pool holds at most, beyond those three.
        vocabularies: Of programs that have one, likewise.
    """

    steps: int
    tokens_max: int
    chunk_max: int
    sequences_max: int = 4
    block_sizes: tuple[int, ...] = (4, 4, 2, 8, 1, 16)
    heads: tuple[int, ...] = (1, 1, 2)
    groups: tuple[int, ...] = (1, 2, 3)
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    pages: tuple[int, ...] = (8, 12, 16, 24, 48)
    pool_max: int = 1 << 14
    vocabularies: tuple[int, ...] = (7, 16)


# The longest sequences have more than two tiles of keys of torch's backend, and one of Triton's.
PROGRAM_LIMITS: Mapping[Lane, ProgramLimits] = MappingProxyType(
    {
        "cpu": ProgramLimits(steps=24, tokens_max=72, chunk_max=20),
        "interpreter": ProgramLimits(
            steps=12,
            tokens_max=70,
            chunk_max=6,
            sequences_max=3,
            block_sizes=(4, 4, 2, 8),
            groups=(1, 2),
            widths=(1, 4, 16),
            pages=(8, 12),
        ),
        "gpu": ProgramLimits(
            steps=40,
            tokens_max=600,
            chunk_max=160,
            sequences_max=6,
            block_sizes=(16, 4, 64, 16, 256),
            heads=(1, 2, 8),
            groups=(1, 4),
            widths=(16, 64, 128),
            pages=(64, 128, 256),
            vocabularies=(64,),
        ),
    }
)


def draw_head(
    draw: Draw,
    *,
    layout: CacheLayout,
    dtype: Dtype,
    storage: Dtype | None = None,
    limits: ProgramLimits,
) -> Program:
    """Draw a program without operations.

    Args:
        draw: Source of choices.
        layout: Of the pages.
        dtype: Of queries, keys and values.
        storage: Of what is stored; None: drawn too.
        limits: How large it may be.
    """
    block_size = draw.choice(limits.block_sizes)
    heads = draw.choice(limits.heads)
    # In most pools a sequence as long as they get fits, and others beside it. The others are
    # nearly full all the time, so that a page that is lost is missed.
    is_tight = draw.choice((False, False, True))
    least = 3 * -(-limits.tokens_max // (2 * block_size))
    most = max(least, limits.pool_max // block_size)
    roomy = min(most, max(least, draw.choice(limits.pages)))
    block_count = draw.choice(_TIGHT) if is_tight else roomy
    shape = CacheShape(
        layout=layout,
        dtype=dtype,
        storage=draw.choice(storages_of(dtype)) if storage is None else storage,
        block_size=block_size,
        block_count=block_count,
        query_heads=heads * draw.choice(limits.groups),
        heads=heads,
        width=draw.choice(limits.widths),
    )
    has_vocabulary = draw.integer(1, _VOCABULARY_EVERY) == _VOCABULARY_EVERY
    return Program(
        shape=shape,
        seed=draw.integer(0, 2**32 - 1),
        data=_weights(draw) if has_vocabulary else _data(draw, shape, limits),
        vocabulary=draw.choice(limits.vocabularies) if has_vocabulary else None,
    )


def storages_of(dtype: Dtype) -> tuple[Dtype, ...]:
    """Return the dtypes that may store what comes in `dtype`: itself twice, then narrower ones."""
    narrower = tuple(other for other, bits in _BITS.items() if bits < _BITS[dtype])
    return (dtype, dtype, *narrower)


def _data(draw: Draw, shape: CacheShape, limits: ProgramLimits) -> dict[str, Recipe]:
    """Draw recipes of queries, keys and values."""
    if draw.integer(1, _CONDITIONED_EVERY) == _CONDITIONED_EVERY:
        return dict.fromkeys(("q", "k", "v"), Recipe(kind=draw.choice(_CONDITIONED)))
    signature = parse_signature(_ATTENTION)
    recipes: dict[str, Recipe] = {}
    for _ in range(1 if shape.dtype == "float32" else _DRAWS_NARROW):
        recipes = attention_recipes(
            draw,
            roles_of(signature),
            {"HQ": shape.query_heads, "HK": shape.heads, "D": shape.width},
            outputs=signature.outputs,
            upstream={},
            parameters=(),
            length=limits.tokens_max // 2,
        )
        if recipes["v"].pairing:
            # Values that cancel: what is left is rounding, which narrow results show too.
            break
    return recipes


def _weights(draw: Draw) -> dict[str, Recipe]:
    """Draw the recipe of the embedding; the other weights are scaled as a model's are."""
    kind = draw.choice(_EMBEDDINGS)
    return {} if kind == "normal" else {"embedding": Recipe(kind=kind)}

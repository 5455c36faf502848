"""Which data programs draw: recipes that let another order of keys, or another token, show.

The families of `biprop.generation.attention_data`, weighted for sequences that begin with one token
and end with some dozens, and that are compared on the way. Of results over 12 to 48 keys in
bfloat16, other orders of the sums changed 0.35 to 0.65 with values of kind `swamp` and near
partners, 0.05 to 0.3 with kind `pairs`, and 0.02 with normal values. These stay a part: each token
differs from all others, so that one that is read in the place of another shows.
"""

from collections.abc import Callable

from biprop.data.recipe import KINDS_CONDITIONED, TOKENS, Pairing, Recipe
from biprop.generation import Draw

__all__ = ["draw_program_data"]

# Near partners, as a prefix holds few whole pairs of far ones. Adjacent ones (1) are worse.
_NEAR_MASKS = (2, 3, 3, 6, 2, 7)
_NORMAL, _ZEROS, _ONES = Recipe(kind="normal"), Recipe(kind="zeros"), Recipe(kind="ones")
# Kinds of accuracy: whole numbers are halved, as the contract's data are.
_EXPONENTS = {"integers": -1}


def draw_program_data(draw: Draw, *, length: int) -> dict[str, Recipe]:
    """Draw recipes of queries, keys and values, the simplest first.

    Args:
        draw: Source of choices.
        length: Tokens of a long sequence.
    """
    return draw.choice(_FAMILIES)(draw, length)


def _conditioned(draw: Draw, _: int) -> dict[str, Recipe]:
    """One kind on which accuracy can be judged."""
    kind = draw.choice((*("normal",) * 3, *KINDS_CONDITIONED))
    return dict.fromkeys(("q", "k", "v"), Recipe(kind=kind, exponent=_EXPONENTS.get(kind, 0)))


def _twin(draw: Draw, length: int) -> dict[str, Recipe]:
    """Partners have equal scores and opposite values."""
    mask = _mask(draw, length)
    queries = draw.choice((_NORMAL, Recipe(kind="mix", rows=(_ZEROS, _NORMAL, _ONES))))
    return {
        "q": queries,
        "k": _over("normal", Pairing(role="symmetric", mask=mask)),
        "v": _over(_kind(draw), Pairing(role="antisymmetric", mask=mask)),
    }


def _equal(draw: Draw, length: int) -> dict[str, Recipe]:
    """All scores are equal, and partners have opposite values."""
    signed = Pairing(role="antisymmetric", mask=_mask(draw, length))
    over = draw.choice((signed, signed, Pairing(role="own")))
    return {"q": _ZEROS, "k": _NORMAL, "v": _over(_kind(draw), over)}


def _peak(_: Draw, __: int) -> dict[str, Recipe]:
    """One score is far above the others, so that the log-sum-exp is its own rounding."""
    return {"q": _ONES, "k": Recipe(kind="peak_keys"), "v": _NORMAL}


def _mask(draw: Draw, length: int) -> int:
    # Partners in one block cancel before blocks are added: far ones tell in which order these are.
    if draw.choice((False, False, False, True)):
        return draw.integer(1, max(1, (1 << max(1, length - 1).bit_length()) - 1))
    return draw.choice(_NEAR_MASKS)


def _kind(draw: Draw) -> str:
    return draw.choice(("swamp", "swamp", "swamp", "pairs"))


def _over(kind: str, pairing: Pairing) -> Recipe:
    return Recipe(kind=kind, pairing={TOKENS: pairing})


# Weights, simplest first.
_FAMILIES: tuple[Callable[[Draw, int], dict[str, Recipe]], ...] = (
    *(_conditioned,) * 3,
    *(_equal,) * 3,
    *(_twin,) * 6,
    *(_peak,) * 2,
)

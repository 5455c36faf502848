"""Recipes: what a tensor of a case holds, said without a tensor.

A recipe is data for `biprop.data.expand`, which turns it into values; this module imports no torch.
"""

from typing import Literal

import attrs

__all__ = [
    "KINDS",
    "KINDS_CONDITIONED",
    "SEQUENCES",
    "TOKENS",
    "Pairing",
    "Point",
    "Recipe",
    "Role",
]

# Simplest first: the minimiser tries them in this order. What stands behind `explicit` is drawn by
# no mixture and reached by no minimiser: it is for the methods of others (`biprop.power.methods`).
KINDS = (
    "zeros",
    "ones",
    "integers",
    "iota",
    "normal",
    "uniform",
    "wide",
    "pairs",
    "swamp",
    "peak_squares",
    "ties_squares",
    "peak_exponentials",
    "ties_exponentials",
    "peak_keys",
    "mix",
    "explicit",
    "linspace",
)
# Kinds on which a healthy kernel meets a relative tolerance (relations A and P).
KINDS_CONDITIONED = ("ones", "integers", "normal", "uniform")

# Axes of a pairing or a point that are no dimension of the signature.
TOKENS = "@"
SEQUENCES = "#"

Role = Literal["antisymmetric", "symmetric", "flat", "own"]


@attrs.frozen(kw_only=True)
class Pairing:
    """How the positions of one axis are matched in pairs: k with k XOR a mask.

    Attributes:
        role: `antisymmetric` (partners differ in sign), `symmetric` (partners are equal), `flat`
            (all positions are equal) or `own` (antisymmetric, and every slice draws a matching of
            its own: two masks over a dimension, so that no tree of halves cancels exactly; one
            over tokens or sequences).
        mask: XOR mask of the matching, at least 1 for `antisymmetric` and `symmetric`, else 0. From
            4 up a second mask below the same power of two follows from it, and half of the
            positions are matched by that one (but for sequences).
    """

    role: Role
    mask: int = 0


@attrs.frozen(kw_only=True)
class Point:
    """One value of an explicit recipe.

    Attributes:
        at: Index by axis: a dimension of the signature, `@` (token of its sequence) or `#`
            (sequence id). An axis that is not named is broadcast.
        value: The value, as `float.hex()` writes it.
    """

    at: dict[str, int]
    value: str


@attrs.frozen(kw_only=True)
class Recipe:
    """How the values of one tensor are made.

    Attributes:
        kind: One of `KINDS`.
        pairing: Matching by axis (a dimension's text, `@` for tokens, `#` for sequences). The kinds
            from `integers` to `swamp` but `iota` follow it; the others have a design of their own.
        exponent: All values are multiplied by 2**exponent, or what the dtype allows of it.
        at_target: Peaks lie at the row's target token, where the signature has a `token(V)` over
            the last dimension.
        holes: A quarter of the pairs are zero, in the kinds that follow a pairing.
        rows: Kind `mix`: every token draws one of these recipes, and a parameter one for each index
            of its first dimension. Of the mixture's own fields only `exponent` is added to theirs.
        points: Kind `explicit`: the values that are not zero; a later point overrides an earlier
            one.
    """

    kind: str
    pairing: dict[str, Pairing] = attrs.field(factory=dict)
    exponent: int = 0
    at_target: bool = False
    holes: bool = False
    rows: "tuple[Recipe, ...]" = ()
    points: tuple[Point, ...] = ()

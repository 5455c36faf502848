"""The mixture of data for queries and contexts: recipes that let a changed order show in attention.

Softmax turns scores into positive weights, so keys decide what may cancel: partners with equal
scores and opposite values sum to zero, and the output is the rounding of that sum. Families:

- `plain`: one kind for all tensors.
- `equal`: all scores of a query are equal, and values cancel: blind to nothing but rescaling.
- `twin`: scores differ, partners have equal ones, and values cancel: rescaling takes part.
- `peak`: one score far above the others (`peak_keys`), so that a log-sum-exp is its own rounding.
  In gradients every query then has the same weights, and upstream gradients cancel over queries.
- `scores`: the sum behind a score cancels over its dimension; scaled up, its rounding moves the
  weights. In gradients the product of upstream gradient and values cancels likewise.
- `steep`: the gradient of the log-sum-exp alone, as a sum of keys that cancel.

Signatures without contexts are the part of `biprop.generation.data_mixture`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs

from biprop.data.recipe import TOKENS, Pairing, Recipe
from biprop.generation.draw import Draw
from biprop.signature import Argument
from biprop.signature.roles import Roles

__all__ = ["PLAIN_KINDS", "Family", "attention_recipes"]

Family = Literal["plain", "equal", "twin", "peak", "scores", "steep"]

# Kinds of the plain family, in data_mixture too: one question, whose simplest answer is zeros.
PLAIN_KINDS = ("zeros", "ones", "integers", "iota", "wide", *("normal",) * 5)
# Near partners: under a causal mask a query sees a prefix, which holds few whole pairs of far ones.
# Adjacent ones (1) are worse: a sum from first to last is exactly zero after each of their pairs.
_NEAR_MASKS = (2, 3, 4, 6, 7)
# Powers of two of the queries: the rounding of a score that cancels is 2**-24 of its terms.
_STEEPNESS = (0, 12, 16, 20, 20, 24)


@attrs.frozen(kw_only=True)
class _Subject:
    """What the families look at.

    Attributes:
        roles: Queries, keys and values.
        upstream: Outputs by name of their upstream gradient.
        sizes: Of the free dimensions.
        length: Tokens of the longest watched sequence.
    """

    roles: Roles
    upstream: Mapping[str, Argument]
    sizes: Mapping[str, int]
    length: int

    @property
    def value_upstream(self) -> tuple[str, ...]:
        """Upstream gradients of outputs that carry the dimension of the values."""
        return tuple(name for name, output in self.upstream.items() if self._is_value(output))

    @property
    def other_upstream(self) -> tuple[str, ...]:
        """Upstream gradients of the other outputs, as the log-sum-exp."""
        return tuple(name for name, output in self.upstream.items() if not self._is_value(output))

    def _is_value(self, output: Argument) -> bool:
        return self.roles.value_dim in {dim.text for dim in output.free_dims}

    def token_mask(self, draw: Draw) -> int:
        """Draw a matching of the tokens: near partners, or any.

        Partners in one tile of a kernel cancel before tiles are added, so that only far ones tell
        in which order tiles are.
        """
        wide = (1 << (self.length - 1).bit_length()) - 1
        far = draw.choice((False, True))
        return draw.integer(1, max(1, wide)) if far else draw.choice(_NEAR_MASKS)

    def mask(self, draw: Draw, axis: str) -> int:
        """Draw a matching of the positions of a free dimension."""
        items = (*self.roles.queries, *self.roles.keys, *self.roles.values)
        size = next(
            dim.size(self.sizes) for item in items for dim in item.free_dims if dim.text == axis
        )
        return draw.integer(1, max(1, (1 << (size - 1).bit_length()) - 1))


def attention_recipes(
    draw: Draw,
    roles: Roles,
    sizes: Mapping[str, int],
    *,
    outputs: Sequence[Argument],
    upstream: Mapping[str, Argument],
    parameters: Sequence[str],
    length: int,
) -> dict[str, Recipe]:
    """Draw a recipe for every tensor of a signature with contexts.

    Args:
        draw: Source of choices.
        roles: Queries, keys and values; there is a key.
        sizes: Of the free dimensions.
        outputs: Judged outputs of the forward.
        upstream: Outputs by name of their upstream gradient; none where outputs are judged.
        parameters: Names of the float parameters.
        length: Tokens of the longest watched sequence.
    """
    subject = _Subject(roles=roles, upstream=upstream, sizes=sizes, length=length)
    family = draw.choice(_families(subject, outputs))
    items = (*roles.queries, *roles.keys, *roles.values, *roles.others)
    tensors = {**{item.name: item for item in items}, **upstream}
    names = (*tensors, *parameters)
    if family == "plain":
        return dict.fromkeys(names, Recipe(kind=draw.choice(PLAIN_KINDS)))
    # These may be anything, as a bias of scores: zeros leave the design as it is.
    beside = (*parameters, *(item.name for item in roles.others))
    shared = {name: Recipe(kind=draw.choice(("zeros", "ones", "normal"))) for name in beside}
    recipes = dict.fromkeys(names, Recipe(kind="normal")) | shared
    designed = _FAMILIES[family](draw, subject)
    return recipes | {name: _fitted(recipe, tensors[name]) for name, recipe in designed.items()}


def _fitted(recipe: Recipe, item: Argument) -> Recipe:
    """Return a recipe without what the tensor cannot have: roles are guesses, and may be wrong."""
    axes = {TOKENS, *(dim.text for dim in item.free_dims)}
    if recipe.kind == "peak_keys" and not item.free_dims:
        return Recipe(kind="normal")
    pairing = {axis: how for axis, how in recipe.pairing.items() if axis in axes}
    if len(pairing) == len(recipe.pairing):
        return recipe
    # Without its partners, a term of large magnitude would only drown the others.
    return attrs.evolve(recipe, pairing=pairing) if pairing else Recipe(kind="normal")


def _families(subject: _Subject, outputs: Sequence[Argument]) -> tuple[Family, ...]:
    """Return the families, weighted; simplest first (measured by the power of their cases)."""
    value_dim = subject.roles.value_dim
    beside = any(value_dim not in {dim.text for dim in item.free_dims} for item in outputs)
    weights: dict[Family, int] = {"plain": 2, "equal": 4, "twin": 4, "peak": 4 if beside else 1}
    weights["scores"] = 2
    if subject.upstream:
        # Gradients of keys and values are sums over queries, which cancel beside a peak only.
        weights = {"plain": 2, "equal": 1, "twin": 3, "peak": 6, "scores": 3}
        weights["steep"] = 2 if subject.other_upstream else 0
    if subject.roles.score_dim is None:
        weights["scores"] = 0
    return tuple(family for family, weight in weights.items() for _ in range(weight))


def _equal(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    roles = subject.roles
    recipes: dict[str, Recipe] = {}
    if draw.choice((False, True)):
        recipes |= _all(roles.queries, Recipe(kind="zeros"))
    else:
        flat = Recipe(kind="normal", pairing={TOKENS: Pairing(role="flat")})
        recipes |= _all(roles.keys, flat)
    own = draw.choice((False, True))
    pairing = (
        Pairing(role="own") if own else Pairing(role="antisymmetric", mask=subject.token_mask(draw))
    )
    kind = draw.choice(("pairs", "swamp"))
    recipes |= _all(roles.values, Recipe(kind=kind, pairing={TOKENS: pairing}))
    return recipes | _plain_upstream(draw, subject)


def _twin(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    roles, mask = subject.roles, subject.token_mask(draw)
    kind = draw.choice(("pairs", "swamp"))
    recipes = _all(roles.queries, _queries(draw))
    recipes |= _all(roles.keys, _over(TOKENS, "normal", "symmetric", mask))
    recipes |= _all(roles.values, _over(TOKENS, kind, "antisymmetric", mask))
    return recipes | _plain_upstream(draw, subject)


def _queries(draw: Draw) -> Recipe:
    """Queries beside twin keys: normal ones, or every token draws equal scores or others."""
    if draw.choice((False, True)):
        return Recipe(kind="normal")
    rows = (Recipe(kind="zeros"), Recipe(kind="normal"), Recipe(kind="ones"))
    return Recipe(kind="mix", rows=rows)


def _peak(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    roles, mask = subject.roles, subject.token_mask(draw)
    recipes = _all(roles.queries, Recipe(kind="ones"))
    recipes |= _all(roles.keys[1:], Recipe(kind="zeros"))
    recipes |= _all(roles.keys[:1], Recipe(kind="peak_keys"))
    if roles.values != roles.keys:
        recipes |= _all(roles.values, Recipe(kind=draw.choice(("normal", "normal", "ones"))))
    kind = draw.choice(("pairs", "swamp"))
    # All queries have the same weights but for their rounding, so sums over queries cancel.
    signed = _over(TOKENS, kind, "antisymmetric", mask)
    return recipes | dict.fromkeys(subject.upstream, signed)


def _scores(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    roles = subject.roles
    kind, axis = draw.choice(("pairs", "swamp")), roles.score_dim
    assert axis is not None, "the family is drawn where there is one"
    mask = subject.mask(draw, axis)
    queries_are_odd = draw.choice((False, True))
    steep = draw.choice(_STEEPNESS)
    odd = attrs.evolve(_over(axis, kind, "antisymmetric", mask), exponent=steep)
    even = _over(axis, "normal", "symmetric", mask)
    of_queries, of_keys = (odd, even) if queries_are_odd else (even, odd)
    if subject.upstream:
        recipes = _all(roles.queries, of_queries) | _all(roles.keys, of_keys)
        return recipes | _signed_upstream(draw, subject, axis, mask)
    if draw.choice((False, True)) and roles.values != roles.keys:
        # Twins besides: the output is a rounding, which weights of another rounding change.
        over_tokens = subject.token_mask(draw)
        twins = {**of_keys.pairing, TOKENS: Pairing(role="symmetric", mask=over_tokens)}
        of_keys = attrs.evolve(of_keys, pairing=twins)
        values = _over(TOKENS, kind, "antisymmetric", over_tokens)
        return (
            _all(roles.queries, of_queries) | _all(roles.keys, of_keys) | _all(roles.values, values)
        )
    return _all(roles.queries, of_queries) | _all(roles.keys, of_keys)


def _signed_upstream(draw: Draw, subject: _Subject, axis: str, mask: int) -> dict[str, Recipe]:
    """Upstream gradients that cancel with the values over their last dimension."""
    value_dim = subject.roles.value_dim
    if value_dim is None:
        return {}
    # Values may have the scores' own dimension, as in torch: one matching then serves both.
    over = mask if value_dim == axis else subject.mask(draw, value_dim)
    kind = draw.choice(("pairs", "swamp"))
    signed = _over(value_dim, kind, "antisymmetric", over)
    recipes = dict.fromkeys(subject.value_upstream, signed)
    recipes |= dict.fromkeys(subject.other_upstream, Recipe(kind="zeros"))
    if subject.roles.values != subject.roles.keys:
        recipes |= _all(subject.roles.values, _over(value_dim, "normal", "symmetric", over))
    return recipes


def _steep(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    roles, mask = subject.roles, subject.token_mask(draw)
    kind = draw.choice(("pairs", "swamp"))
    recipes = _all(roles.queries, Recipe(kind="zeros"))
    recipes |= _all(roles.values, Recipe(kind=draw.choice(("ones", "normal"))))
    recipes |= _all(roles.keys, _over(TOKENS, kind, "antisymmetric", mask))
    recipes |= dict.fromkeys(subject.value_upstream, Recipe(kind="zeros"))
    return recipes | dict.fromkeys(subject.other_upstream, Recipe(kind="normal"))


def _plain_upstream(draw: Draw, subject: _Subject) -> dict[str, Recipe]:
    """Upstream gradients beside values that cancel over keys: the gradient of queries cancels.

    A gradient of the log-sum-exp would add what does not cancel, so it is mostly zero.
    """
    if not subject.upstream:
        return {}
    value = Recipe(kind=draw.choice(("normal", "normal", "ones")))
    other = Recipe(kind=draw.choice(("zeros", "zeros", "normal")))
    recipes = dict.fromkeys(subject.value_upstream, value)
    return recipes | dict.fromkeys(subject.other_upstream, other)


def _all(items: Sequence[Argument], recipe: Recipe) -> dict[str, Recipe]:
    return {item.name: recipe for item in items}


def _over(axis: str, kind: str, role: Literal["antisymmetric", "symmetric"], mask: int) -> Recipe:
    return Recipe(kind=kind, pairing={axis: Pairing(role=role, mask=mask)})


_FAMILIES: dict[Family, Callable[[Draw, _Subject], dict[str, Recipe]]] = {
    "equal": _equal,
    "twin": _twin,
    "peak": _peak,
    "scores": _scores,
    "steep": _steep,
}

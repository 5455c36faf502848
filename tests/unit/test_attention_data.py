"""The mixture of data for queries and contexts, and what its families promise."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from biprop.case import Judged
from biprop.data.expand import Tokens, expand
from biprop.data.recipe import TOKENS, Recipe
from biprop.generation.attention_data import attention_recipes
from biprop.generation.data_mixture import draw_data
from biprop.generation.draw import Draw, Option, RandomDraw
from biprop.generation.legal import recipes_needed
from biprop.signature import Argument, Signature, parse_backward, parse_signature
from biprop.signature.roles import roles_of

MASKED = parse_signature(
    "q[B,HQ,Q,D], k[B,HK,C,D], v[B,HK,C,D], mask: causal_mask[B,1,Q,C] -> out[B,HQ,Q,D]"
)
WITH_LSE = parse_signature(
    "q[TQ,H,D], k[TC,H,D], v[TC,H,E], a: offsets(Q)[B+1], b: offsets(C)[B+1] "
    "-> out[TQ,H,E], lse: float32[TQ,H]"
)
ONE_QUERY = parse_signature("q[B,H,1,D], k[B,H,C,D], v[B,H,C,D], sinks[H] -> out[B,H,1,D]")
SHARED = parse_signature("q[B,Q,D], kv[B,C,D], m: mask[B,C] -> out[B,Q,D]")
ALL = (MASKED, WITH_LSE, ONE_QUERY, SHARED)
SIZES = {"H": 2, "HQ": 4, "HK": 2, "D": 16, "E": 8}


class Simplest:
    """The simplest answer to every question."""

    def integer(self, low: int, high: int) -> int:
        """Return the lower end."""
        del high
        return low

    def choice(self, options: Sequence[Option]) -> Option:
        """Return the first option."""
        return options[0]


def drawn(
    signature: Signature, seed: int, *, judged: Judged = "outputs", length: int = 64
) -> dict[str, Recipe]:
    """Draw recipes of one case."""
    sizes = {name: SIZES[name] for name in signature.free_dims}
    made = draw_data(RandomDraw(seed), signature, sizes, judged=judged, length=length)
    return {**made.data, **made.policy_state}


def values_of(recipe: Recipe, name: str, *, length: int) -> torch.Tensor:
    """Expand `[length, 2, 16]` of one sequence, in float64."""
    token = torch.arange(length, dtype=torch.int32)
    tokens = Tokens(
        sequence_id=torch.zeros_like(token), token=token, length=torch.full_like(token, length)
    )
    dims, sizes = (("H", "D"), (2, 16))
    values = expand(
        recipe, seed=5, name=name, tokens=tokens, dims=dims, sizes=sizes, dtype=torch.bfloat16
    )
    return values.double()


def families(signature: Signature, judged: Judged = "outputs") -> Counter[str]:
    """Count what 300 draws made of keys and values."""
    roles = roles_of(signature)
    found: Counter[str] = Counter()
    for seed in range(300):
        recipes = drawn(signature, seed, judged=judged)
        key, value = recipes[roles.keys[0].name], recipes[roles.values[0].name]
        over_tokens = value.pairing.get(TOKENS)
        if key.kind == "peak_keys":
            found["peak"] += 1
        elif "D" in key.pairing:
            found["scores"] += 1
        elif over_tokens is not None and key.pairing.get(TOKENS, over_tokens).role == "symmetric":
            found["twin"] += 1
        elif over_tokens is not None:
            found["equal"] += 1
        elif TOKENS in key.pairing:
            found["steep"] += 1
        else:
            found["plain"] += 1
    return found


class TestMixture:
    """Which families are drawn."""

    @pytest.mark.parametrize("signature", ALL, ids=lambda item: item.text[:12])
    @pytest.mark.parametrize("judged", ["outputs", "token_gradients"])
    def test_every_tensor_has_a_recipe(self, signature: Signature, judged: Judged) -> None:
        """No tensor is left out, and none is named that the case does not have."""
        data, parameters = recipes_needed(signature, judged)

        for seed in range(60):
            assert set(drawn(signature, seed, judged=judged)) == {*data, *parameters}

    def test_simplest_answers_give_zeros(self) -> None:
        """A shrinker that takes every first option ends in zeros."""
        made = draw_data(Simplest(), MASKED, SIZES)

        assert {recipe.kind for recipe in made.data.values()} == {"zeros"}

    def test_peaks_are_frequent_beside_a_log_sum_exp_only(self) -> None:
        """Peaks make the log-sum-exp its own rounding; an output of values is hardly moved."""
        with_lse, without = families(WITH_LSE), families(MASKED)

        assert set(with_lse) == set(without) == {"plain", "equal", "twin", "peak", "scores"}
        assert with_lse["peak"] > 50
        assert without["peak"] < 35
        assert min(without["equal"], without["twin"]) > 60

    def test_gradients_have_a_family_for_that_of_the_log_sum_exp(self) -> None:
        """Its sum of keys cancels alone, where there is such an output."""
        with_lse = families(WITH_LSE, "token_gradients")

        assert with_lse["steep"] > 10
        assert with_lse["peak"] > 60
        assert "steep" not in families(MASKED, "token_gradients")

    def test_partners_are_near_or_as_far_as_the_sequence(self) -> None:
        """Half of the matchings reach beyond every tile of a long sequence, none beyond its end."""
        masks = {
            length: [
                pairing.mask
                for seed in range(300)
                for recipe in drawn(MASKED, seed, length=length).values()
                for axis, pairing in recipe.pairing.items()
                if axis == TOKENS and pairing.role == "antisymmetric"
            ]
            for length in (1, 8, 600)
        }

        assert max(masks[1]) <= 7
        assert max(masks[8]) == 7
        assert 1023 >= max(masks[600]) > 512
        assert 0.3 < sum(mask > 64 for mask in masks[600]) / len(masks[600]) < 0.6

    def test_parameter_gradients_keep_the_other_mixture(self) -> None:
        """Gradients of parameters sum over sequences, as everywhere."""
        found = {
            axis
            for seed in range(60)
            for recipe in drawn(ONE_QUERY, seed, judged="parameter_gradients").values()
            for axis in recipe.pairing
        }

        assert "#" in found

    def test_registered_backward_names_the_upstream_gradients(self) -> None:
        """Only outputs that the backward takes get a recipe."""
        backward = parse_backward(
            "dout[TQ,H,E], q[TQ,H,D], k[TC,H,D], v[TC,H,E], a: offsets(Q)[B+1], "
            "b: offsets(C)[B+1] -> dq[TQ,H,D], dk[TC,H,D], dv[TC,H,E]",
            WITH_LSE,
        )
        made = draw_data(
            RandomDraw(1), WITH_LSE, SIZES, judged="token_gradients", backward_signature=backward
        )

        assert set(made.data) == {"q", "k", "v", "dout"}


class TestFamilies:
    """What cancels."""

    def _cases(self, wanted: str, *, length: int = 64) -> list[dict[str, Recipe]]:
        found = [drawn(MASKED, seed, length=length) for seed in range(200)]
        twin = [recipes for recipes in found if set(recipes["k"].pairing) == {TOKENS}]
        if wanted == "twin":
            return [r for r in twin if r["k"].pairing[TOKENS].role == "symmetric"]
        flat = [r for r in twin if r["k"].pairing[TOKENS].role == "flat"]
        blank = [r for r in found if r["q"].kind == "zeros" and r["v"].pairing]
        return flat + blank

    def test_equal_scores_meet_values_that_sum_to_zero(self) -> None:
        """Keys are all alike, or queries zero, and the values of each feature sum to nothing."""
        cases = self._cases("equal")

        assert len(cases) > 30
        for recipes in cases:
            keys = values_of(recipes["k"], "k", length=64)
            queries = values_of(recipes["q"], "q", length=64)
            assert not queries.any() or not (keys - keys[:1]).any()
            assert not values_of(recipes["v"], "v", length=64).sum(dim=0).any()

    def test_twins_share_a_key_and_have_opposite_values(self) -> None:
        """Weighted by any function of its key, the values of each feature sum to nothing."""
        cases = self._cases("twin")

        assert len(cases) > 30
        for recipes in cases:
            keys = values_of(recipes["k"], "k", length=64)
            values = values_of(recipes["v"], "v", length=64)
            # Whole numbers keep the sum exact.
            weights = (keys.sum(dim=-1, keepdim=True) * 16).round() + 100
            assert len(set(weights.flatten().tolist())) > 8
            assert not (weights * values).sum(dim=0).any()

    def test_scores_cancel_over_their_dimension(self) -> None:
        """Queries times keys are exactly zero, whatever their scale."""
        cases = [
            recipes
            for recipes in (drawn(MASKED, seed) for seed in range(200))
            if "D" in recipes["k"].pairing and recipes["k"].kind != "peak_keys"
        ]

        assert len(cases) > 15
        # Half of them have twin keys besides, so that an output of values shows it too.
        assert 0.2 < sum(TOKENS in recipes["k"].pairing for recipes in cases) / len(cases) < 0.8
        assert len({recipes["q"].exponent + recipes["k"].exponent for recipes in cases}) > 2
        for recipes in cases:
            queries = values_of(recipes["q"], "q", length=8)
            keys = values_of(recipes["k"], "k", length=8)
            assert queries.any()
            assert not torch.einsum("qhd,khd->qhk", queries, keys).any()


def test_one_tensor_may_be_keys_and_values() -> None:
    """A lone tensor of contexts has one recipe, and a signature without one is told apart."""
    roles = roles_of(SHARED)

    assert roles.keys == roles.values
    assert (roles.score_dim, roles.value_dim) == ("D", "D")
    assert not roles_of(parse_signature("x[T,H] -> y[T,H]")).keys
    draw: Draw = RandomDraw(3)
    upstream: dict[str, Argument] = {}
    recipes = attention_recipes(
        draw,
        roles,
        {"D": 8},
        outputs=SHARED.judged_outputs,
        upstream=upstream,
        parameters=(),
        length=9,
    )
    assert set(recipes) == {"q", "kv"}

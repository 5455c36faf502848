"""The kernels of one number a token, `grpo_loss` and `ratio_kl`: numbers, ties, and the impossible.

Bounds are units of float32 (or of the output's dtype) times the terms that were added, computed
beside each comparison. Batch invariance is run by tests/props.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import pytest
import torch
from tests.unit.kernel_trials import (
    BACKENDS,
    DEVICE,
    STORAGES,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    normal,
    tensors_of,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.kernels import grpo_loss, ratio_kl, tiles
from biprop.operators import KernelFunction, Operator

UNIT = torch.finfo(torch.float32).eps
INF, NAN = torch.inf, torch.nan
COUNT = 1100  # past one tile of the torch backend, and one block of the Triton backend
OPERATORS = {"grpo_loss": grpo_loss.OPERATOR, "ratio_kl": ratio_kl.OPERATOR}

each_candidate = pytest.mark.parametrize("backend", ["reference", *BACKENDS])
each_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


def forward_of(operator: Operator, backend: str) -> KernelFunction:
    """Return a forward, or the reference with a reducer that must not be called."""
    if backend != "reference":
        return backend_of(operator, backend).forward
    reference = operator.forms[0].reference
    assert reference is not None
    kept = reference

    def forward(*arguments: Tensor, **call: float) -> object:
        return kept(*arguments, reduce=None, **call)

    return forward


def backward_of(operator: Operator, backend: str) -> KernelFunction:
    """Return a backward."""
    backward = backend_of(operator, backend).backward
    assert backward is not None
    return backward


def policies(*, dtype: torch.dtype = torch.float32, count: int = COUNT) -> tuple[Tensor, ...]:
    """Return log probabilities under three policies near one another, old and reference last."""
    logp = -2 * normal(count, dtype=torch.float32, seed=1).abs()
    shifts = (normal(count, dtype=torch.float32, seed=seed) / 4 for seed in (2, 3))
    return tuple(values.to(dtype) for values in (logp, *(logp + shift for shift in shifts)))


def numbers(*values: float) -> Tensor:
    """Return float32 numbers, one a token."""
    return torch.tensor(values, dtype=torch.float32, device=DEVICE)


def is_within(actual: Tensor, exact: Tensor, terms: Tensor, units: float = 8) -> bool:
    """Whether the error is some units of float32 of the terms, and the rounding to the dtype."""
    rounding = torch.finfo(actual.dtype).eps * exact.abs()
    return bool(((actual.double() - exact).abs() <= units * UNIT * terms + rounding).all())


def exact_grpo_loss(
    arguments: Sequence[Tensor], call: Mapping[str, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute in float64 as the papers write it."""
    logp, old_logp, ref_logp, advantage = arguments
    ratio = (logp - old_logp).exp()
    clipped = ratio.clamp(1 - call["clip_low"], 1 + call["clip_high"])
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    kl = (ref_logp - logp).exp() - (ref_logp - logp) - 1
    return (call["beta"] * kl - surrogate) / call["denominator"], ratio, kl


class TestRatioKl:
    """`ratio_kl`, whose formulas are short enough to stand in the tests."""

    @each_dtype
    @each_candidate
    def test_forward_is_what_the_formulas_say(self, backend: str, dtype: torch.dtype) -> None:
        """All four are float32, and those of float64 up to a few units of what was added."""

        logp, old_logp, _ = policies(dtype=dtype)
        outputs = tensors_of(forward_of(ratio_kl.OPERATOR, backend)(logp, old_logp))
        d = logp.double() - old_logp.double()
        ratio = d.exp()
        exact = (d, ratio, d.square() / 2, ratio - 1 - d)
        terms = (d.abs(), ratio * (1 + d.abs()), d.square(), d.abs() + (ratio - 1).abs())
        assert all(output.dtype == torch.float32 for output in outputs)
        for output, value, term in zip(outputs, exact, terms, strict=True):
            assert is_within(output, value, term)

    @each_candidate
    def test_k3_keeps_its_digits_near_a_ratio_of_one(self, backend: str) -> None:
        """Where exp(d) - 1 holds a unit of d at best, k3 is still d^2 / 2, and never negative."""

        d = torch.exp2(-torch.arange(4.0, 22.0, device=DEVICE))
        d = torch.cat([d, -d, torch.zeros(1, device=DEVICE)])
        k3 = tensors_of(forward_of(ratio_kl.OPERATOR, backend)(d, torch.zeros_like(d)))[3]
        wide = d.double()
        exact = wide.square() / 2 + wide**3 / 6 + wide**4 / 24 + wide**5 / 120
        assert bool((k3 >= 0).all())
        assert bool(((k3 - exact).abs() <= UNIT * wide.abs()).all())

    @each_dtype
    @each_backend
    def test_backward_is_that_of_the_formulas(self, backend: str, dtype: torch.dtype) -> None:
        """The four upstream gradients add up, each times its derivative."""

        logp, old_logp, _ = policies(dtype=dtype)
        upstream = [normal(COUNT, dtype=torch.float32, seed=seed) for seed in range(4, 8)]
        dlogp = backward_of(ratio_kl.OPERATOR, backend)(*upstream, logp, old_logp)
        d = logp.double() - old_logp.double()
        factors = (torch.ones_like(d), d.exp(), d, d.exp() - 1)
        products = torch.stack(upstream).double() * torch.stack(factors)
        (actual,) = tensors_of(dlogp)
        assert actual.dtype == dtype
        # The rounding of d itself moves the ratio by as much again.
        terms = products.abs().sum(0) * (1 + d.abs())
        assert is_within(actual, products.sum(0), terms)

    @each_candidate
    def test_impossible_tokens_are_what_the_formulas_say(self, backend: str) -> None:
        """-Inf under one policy or both: no clamp, no exception, and the next token is a number."""

        logp, old_logp = numbers(-INF, -1, -INF, NAN, -1), numbers(-1, -INF, -INF, -1, -1)
        outputs = tensors_of(forward_of(ratio_kl.OPERATOR, backend)(logp, old_logp))
        expected = (
            numbers(-INF, INF, NAN, NAN, 0),
            numbers(0, INF, NAN, NAN, 1),
            numbers(INF, INF, NAN, NAN, 0),
            numbers(INF, NAN, NAN, NAN, 0),
        )
        for output, values in zip(outputs, expected, strict=True):
            assert all_same(output, values)


class TestGrpoLoss:
    """`grpo_loss` against the papers' formulas."""

    CALL: ClassVar = {"clip_low": 0.2, "clip_high": 0.28, "beta": 0.04, "denominator": 3.0}

    @each_dtype
    @each_candidate
    def test_forward_is_what_the_formulas_say(self, backend: str, dtype: torch.dtype) -> None:
        """Loss, ratio and KL are float32, and those of float64 up to units of what was added."""

        arguments = (*policies(), normal(COUNT, dtype=dtype, seed=4))
        outputs = tensors_of(forward_of(grpo_loss.OPERATOR, backend)(*arguments, **self.CALL))
        wide = [value.double() for value in arguments]
        exact = exact_grpo_loss(wide, self.CALL)
        to_old, to_ref = (wide[0] - wide[1]).abs(), (wide[2] - wide[0]).abs()
        kl_terms = to_ref.exp() * (1 + to_ref)
        terms = (
            (to_old.exp() * (1 + to_old) * wide[3].abs() + kl_terms) / 3,
            to_old.exp(),
            kl_terms,
        )
        assert all(output.dtype == torch.float32 for output in outputs)
        for output, value, term in zip(outputs, exact, terms, strict=True):
            assert is_within(output, value, term)

    @each_dtype
    @each_backend
    def test_backward_is_that_of_the_formulas(self, backend: str, dtype: torch.dtype) -> None:
        """`dlogp` is that of autograd in float64, clipped tokens and free ones."""

        arguments = (*policies(), normal(COUNT, dtype=dtype, seed=4))
        dloss = normal(COUNT, dtype=torch.float32, seed=5)
        (actual,) = tensors_of(
            backward_of(grpo_loss.OPERATOR, backend)(dloss, *arguments, **self.CALL)
        )
        wide = [value.double() for value in arguments]
        leaf = wide[0].requires_grad_()
        loss, ratio, _ = exact_grpo_loss((leaf, *wide[1:]), self.CALL)
        (exact,) = torch.autograd.grad(loss, leaf, dloss.double())
        is_clipped = (ratio < 0.8) | (ratio > 1.28)
        assert 0 < int(is_clipped.sum()) < COUNT
        terms = ratio * wide[3].abs() + (wide[2] - wide[0]).exp() + 1
        assert actual.dtype == torch.float32
        assert is_within(actual, exact, dloss.double().abs() * terms)

    @each_backend
    def test_only_what_the_clip_takes_away_has_no_gradient(self, backend: str) -> None:
        """Ratios outside, advantages of both signs: two of four go through, with no KL."""

        logp = numbers(1, 1, -1, -1, 0)
        advantage = numbers(2, -2, 2, -2, 0)
        zeros, ones = torch.zeros_like(logp), torch.ones_like(logp)
        (dlogp,) = tensors_of(
            backward_of(grpo_loss.OPERATOR, backend)(ones, logp, zeros, zeros, advantage, beta=0.0)
        )
        assert (dlogp != 0).tolist() == [False, True, True, False, False]

    @each_backend
    def test_the_two_sides_of_the_clip_are_their_own(self, backend: str) -> None:
        """A ratio of 1.25 is clipped at 1.2 and free at 1.28, one of 0.75 likewise below."""

        logp, advantage = numbers(1.25, 0.75).log(), numbers(1, -1)
        zeros, ones = torch.zeros_like(logp), torch.ones_like(logp)
        arguments = (ones, logp, zeros, zeros, advantage)
        backward = backward_of(grpo_loss.OPERATOR, backend)
        (high,) = tensors_of(backward(*arguments, beta=0.0, clip_high=0.28))
        (low,) = tensors_of(backward(*arguments, beta=0.0, clip_low=0.28))
        assert (high != 0).tolist() == [True, False]
        assert (low != 0).tolist() == [False, True]

    @each_backend
    def test_a_ratio_on_the_bound_keeps_its_gradient(self, backend: str) -> None:
        """As torch.clamp does: the bounds belong to what passes."""

        zeros, ones = torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE)
        arguments = (ones, zeros, zeros, zeros, numbers(3, -3))
        backward = backward_of(grpo_loss.OPERATOR, backend)
        (dlogp,) = tensors_of(backward(*arguments, beta=0.0, clip_low=0.0, clip_high=0.0))
        assert dlogp.tolist() == [-3.0, 3.0]

    @each_backend
    def test_products_that_round_to_the_same_share_the_gradient(self, backend: str) -> None:
        """As torch.minimum does: half goes to the ratio, and the clip stops the other half."""

        call = {"beta": 0.0, "clip_low": 0.2, "denominator": 1.0}
        logp, zeros = torch.full((400,), 0.2, device=DEVICE), torch.zeros(400, device=DEVICE)
        advantage = torch.linspace(1.7, 1.9, 400, device=DEVICE)
        forward = forward_of(grpo_loss.OPERATOR, backend)
        ratio = tensors_of(forward(logp, zeros, zeros, advantage, **call, clip_high=1.0))[1]
        bound = ratio.nextafter(torch.zeros_like(ratio))
        is_tie = ratio * advantage == bound * advantage
        assert 0 < int(is_tie.sum()) < len(ratio)
        (dlogp,) = tensors_of(
            backward_of(grpo_loss.OPERATOR, backend)(
                *(torch.ones_like(logp), logp, zeros, zeros, advantage),
                **call, clip_high=bound[0].item() - 1.0,
            )
        )  # fmt: skip
        assert all_same(dlogp.abs(), torch.where(is_tie, ratio * advantage / 2, 0.0))

    @each_candidate
    def test_impossible_tokens_are_what_the_formulas_say(self, backend: str) -> None:
        """-Inf under the policy, the old one, the reference: each spoils its own token at most."""

        logp, old_logp = numbers(-INF, 0, 0, 0), numbers(0, -INF, 0, 0)
        ref_logp, ones = numbers(0, 0, -INF, 0), torch.ones(4, device=DEVICE)
        forward = forward_of(grpo_loss.OPERATOR, backend)
        loss, ratio, kl = tensors_of(forward(logp, old_logp, ref_logp, ones, beta=0.5))
        assert all_same(loss, numbers(NAN, -1.0 - 0.2, INF, -1))
        assert all_same(ratio, numbers(0, INF, 1, 1))
        assert all_same(kl, numbers(NAN, 0, INF, 0))

    @each_candidate
    def test_without_beta_the_loss_holds_no_kl(self, backend: str) -> None:
        """Not even zero times an infinite one."""

        zeros, ones = torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE)
        forward = forward_of(grpo_loss.OPERATOR, backend)
        loss, _, kl = tensors_of(forward(zeros, zeros, numbers(-INF, 0), ones, beta=0.0))
        assert loss.tolist() == [-1.0, -1.0]
        assert kl.tolist() == [INF, 0.0]

    @each_backend
    def test_the_clip_stops_an_infinite_ratio(self, backend: str) -> None:
        """A token that the old policy held to be impossible is clipped, and its gradient is 0."""

        zeros, ones = torch.zeros(1, device=DEVICE), torch.ones(1, device=DEVICE)
        backward = backward_of(grpo_loss.OPERATOR, backend)
        (dlogp,) = tensors_of(backward(ones, zeros, numbers(-INF), zeros, ones))
        assert dlogp.tolist() == [0.0]

    @each_backend
    def test_a_nan_advantage_is_seen_in_the_gradient(self, backend: str) -> None:
        """No comparison hides it."""

        zeros, ones = torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE)
        backward = backward_of(grpo_loss.OPERATOR, backend)
        (dlogp,) = tensors_of(backward(ones, zeros, zeros, zeros, numbers(NAN, 1)))
        assert dlogp.isnan().tolist() == [True, False]


def arguments_of(operator: Operator, count: int) -> tuple[Tensor, ...]:
    """Return the arguments of a forward."""
    given = policies(count=count)
    if operator is grpo_loss.OPERATOR:
        return (*given, normal(count, dtype=torch.float32, seed=4))
    return given[:2]


def upstream_of(operator: Operator, count: int) -> tuple[Tensor, ...]:
    """Return upstream gradients."""
    number = 1 if operator is grpo_loss.OPERATOR else 4
    return tuple(normal(count, dtype=torch.float32, seed=seed + 5) for seed in range(number))


class TestBoth:
    """What holds for both operators."""

    @each_backend
    @each_operator
    def test_no_upstream_gradient_gives_none(self, operator: Operator, backend: str) -> None:
        """A loss that leaves an impossible token out gets 0 from it, not zero times infinity."""

        given = list(arguments_of(operator, 3))
        given[0], given[1] = numbers(-INF, -1, -INF), numbers(-1, -INF, -INF)
        nothing = [torch.zeros_like(values) for values in upstream_of(operator, 3)]
        (dlogp,) = tensors_of(backward_of(operator, backend)(*nothing, *given))
        assert dlogp.tolist() == [0.0] * 3

    @each_backend
    @each_operator
    def test_an_empty_launch_gives_empty_results(self, operator: Operator, backend: str) -> None:
        """A cut may leave a launch without tokens."""

        given, upstream = arguments_of(operator, 0), upstream_of(operator, 0)
        outputs = tensors_of(forward_of(operator, backend)(*given))
        gradients = tensors_of(backward_of(operator, backend)(*upstream, *given))
        assert all(values.shape == (0,) for values in outputs + gradients)

    @each_backend
    @each_operator
    @pytest.mark.parametrize("store", [STORAGES["every_second"], STORAGES["offset_1"]])
    def test_storage_changes_no_bit(
        self, operator: Operator, backend: str, store: Callable[[Tensor], Tensor]
    ) -> None:
        """Every argument may be a view, and what is returned is contiguous."""

        given, upstream = arguments_of(operator, 70), upstream_of(operator, 70)
        forward, backward = forward_of(operator, backend), backward_of(operator, backend)
        plain = tensors_of(forward(*given)) + tensors_of(backward(*upstream, *given))
        stored = [store(values) for values in (*upstream, *given)]
        moved = tensors_of(forward(*stored[len(upstream) :])) + tensors_of(backward(*stored))
        assert all(all_same(left, right) for left, right in zip(plain, moved, strict=True))
        assert all(values.is_contiguous() for values in moved)

    @each_operator
    def test_the_size_of_a_tile_changes_no_bit(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The torch backend on tiles of 64 tokens gives what it gives on one tile."""

        given, upstream = arguments_of(operator, 200), upstream_of(operator, 200)
        forward, backward = forward_of(operator, "torch"), backward_of(operator, "torch")
        whole = tensors_of(forward(*given)) + tensors_of(backward(*upstream, *given))
        for module in (grpo_loss, ratio_kl):
            monkeypatch.setattr(module, "token_count", lambda _: 64)
        cut = tensors_of(forward(*given)) + tensors_of(backward(*upstream, *given))
        assert all(all_same(left, right) for left, right in zip(whole, cut, strict=True))

    def test_a_tile_of_tokens_is_whole_vectors(self) -> None:
        """It is contiguous float32, its size is a multiple of 64, and zeros follow the last."""

        count = tiles.token_count(torch.device("cpu"))
        values = torch.arange(5, dtype=torch.bfloat16, device=DEVICE)
        tile, other = tiles.tiles_of_tokens(values, -values, start=2, count=count)
        assert count % 64 == 0
        assert (tile.shape, tile.dtype, tile.stride()) == ((count,), torch.float32, (1,))
        assert tile[:4].tolist() == [2.0, 3.0, 4.0, 0.0]
        assert other[:4].tolist() == [-2.0, -3.0, -4.0, 0.0]

    @each_dtype
    @each_backend
    def test_a_narrow_advantage_is_widened_before_anything_else(
        self, backend: str, dtype: torch.dtype
    ) -> None:
        """The loss has the bits that the same advantage gives in float32."""

        given, advantage = policies(count=50), normal(50, dtype=dtype, seed=4)
        forward = forward_of(grpo_loss.OPERATOR, backend)
        (narrow, *_), (wide, *_) = (
            tensors_of(forward(*given, value)) for value in (advantage, advantage.float())
        )
        assert bool(same_bits(narrow, wide).all())

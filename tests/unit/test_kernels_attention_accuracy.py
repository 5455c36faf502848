"""Accuracy of attention: the references against float64, both backends against the references.

That a token keeps its bits is another fact, and has its own tests (test_kernels_attention.py).
"""

import pytest
import torch
from tests.unit.attention_trials import (
    OPERATOR,
    Launch,
    Lay,
    Part,
    Tokens,
    arguments_of,
    attend,
    drawn,
    each_form,
    each_kernel,
    packed,
    whole,
)
from tests.unit.kernel_trials import (
    DEVICE,
    backend_of,
    each_backend,
    plain_sum,
    tensors_of,
)
from torch import Tensor
from torch.nn import functional

from biprop.kernels.attention import reference_packed, reference_padded

REFERENCES = {"packed": reference_packed, "padded": reference_padded}
# Absolute and relative bounds: the rows "attention" of the contract's table, forward and gradient.
BOUNDS = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (5e-2, 2e-2)}
NAMES = ("out", "lse", "dq", "dk", "dv")
# Heads of queries and contexts, and features: alike, grouped, and past each padded size.
SIZES = (((1, 1), 1), ((4, 4), 16), ((4, 2), 20), ((6, 2), 33), ((5, 1), 130))


def excess(actual: Tensor, exact: Tensor, bound: tuple[float, float]) -> float:
    """Return by how much the worst element leaves its bound; at most 0 if none does."""
    actual, exact = actual.detach().double(), exact.detach().double()
    error = (actual - exact).abs() - (bound[0] + bound[1] * exact.abs())
    return float(error.max())


def exactly(tokens: Tokens) -> dict[str, Tensor]:
    """Attend in float64 as PyTorch does, and let autograd differentiate."""
    leaves = [values.double().requires_grad_() for values in (tokens.q, tokens.k, tokens.v)]
    length, heads, width = tokens.q.shape
    group = heads // tokens.k.shape[1]
    q_HQD, k_HCD, v_HCD = (leaf.transpose(0, 1) for leaf in leaves)
    k_HCD, v_HCD = (side.repeat_interleave(group, 0) for side in (k_HCD, v_HCD))
    keep = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()
    scores = (q_HQD @ k_HCD.transpose(1, 2)) / width**0.5
    lse = scores.masked_fill(~keep, -torch.inf).logsumexp(-1).t()
    out = functional.scaled_dot_product_attention(q_HQD, k_HCD, v_HCD, keep).transpose(0, 1)
    upstream = [tokens.dout.double(), tokens.dlse.double()]
    gradients = torch.autograd.grad([out, lse], leaves, upstream)
    return dict(zip(NAMES, (out, lse, *gradients), strict=True))


def by_reference(launch: Launch, sequences: list[Tokens]) -> dict[str, Tensor]:
    """Attend by a form's reference, and let autograd differentiate; all slots of the launch."""
    upstream, inputs, ends = arguments_of(launch, sequences)
    leaves = [values.float().clone().requires_grad_() for values in inputs]
    out, lse = REFERENCES[launch.form](*leaves, *ends, reduce=plain_sum)
    has_key = lse.isfinite()
    gradients = torch.autograd.grad(
        [out, lse[has_key]], leaves, [upstream[0].float(), upstream[1][has_key]]
    )
    return dict(zip(NAMES, (out, lse, *gradients), strict=True))


class TestReferences:
    """What the backends are measured by."""

    @each_form
    @pytest.mark.parametrize(("heads", "width"), SIZES, ids=str)
    def test_results_and_gradients_are_those_of_float64(
        self, lay: Lay, heads: tuple[int, int], width: int
    ) -> None:
        """A sequence alone, against PyTorch's attention in float64."""

        tokens = drawn(19, heads=heads, width=width, dtype=torch.float32)
        found = by_reference(lay([Part(stop=19)]), [tokens])
        exact = exactly(tokens)
        for name in NAMES:
            found_flat = found[name].reshape(exact[name].shape)
            assert excess(found_flat, exact[name], BOUNDS[torch.float32]) <= 0, name

    @each_form
    def test_every_sum_is_the_reducers(self, lay: Lay) -> None:
        """A reducer that returns ones decides the result."""

        tokens = drawn(5, heads=(4, 2), width=3, dtype=torch.float32)

        def one(values: Tensor, dim: int) -> Tensor:
            return torch.ones_like(values.select(dim, 0))

        launch = lay([Part(stop=5)])
        _, inputs, ends = arguments_of(launch, [tokens])
        out, lse = REFERENCES[launch.form](*inputs, *ends, reduce=one)
        assert torch.unique(out).tolist() == [1.0]
        assert torch.unique(lse).tolist() == [pytest.approx(3**-0.5)]

    def test_queries_taken_a_few_at_a_time_change_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A large launch is the launch of its parts."""

        sequences = [drawn(23, heads=(4, 2), width=8, dtype=torch.float32)]
        launch = packed(whole(sequences))
        at_once = by_reference(launch, sequences)
        monkeypatch.setattr("biprop.kernels.attention.REFERENCE_ELEMENTS_MAX", 2000)
        apart = by_reference(launch, sequences)
        assert max(excess(apart[name], at_once[name], (1e-6, 1e-6)) for name in NAMES) <= 0


class TestBackends:
    """Both backends against the references, all sequences of a launch at once."""

    @each_kernel
    @pytest.mark.parametrize(("heads", "width"), SIZES, ids=str)
    def test_results_and_gradients_are_within_the_contract(
        self,
        backend: str,
        dtype: torch.dtype,
        lay: Lay,
        heads: tuple[int, int],
        width: int,
    ) -> None:
        """Ragged chunks, one of them a decoding step, and their upstream gradients of both."""

        sequences = [
            drawn(length, heads=heads, width=width, dtype=dtype, seed=index)
            for index, length in enumerate((40, 3, 23))
        ]
        parts = (
            Part(sequence=0, stop=40),
            Part(),
            Part(sequence=1, start=2, stop=3),
            Part(sequence=2, start=5, stop=23),
        )
        launch = lay(parts)
        expected = by_reference(launch, sequences)
        axes = len(launch.query_shape)
        slots = {"dk": launch.context_slots, "dv": launch.context_slots}
        for index, result in enumerate(attend(backend, launch, sequences)):
            for name in NAMES:
                places = list(slots.get(name, launch.query_slots)[index])
                if not places:
                    continue
                actual: Tensor = getattr(result, name)
                assert actual.dtype == (torch.float32 if name == "lse" else dtype)
                exact = expected[name].flatten(0, axes - 1)[places]
                bound = BOUNDS[torch.float32 if name == "lse" else dtype]
                assert excess(actual, exact, bound) <= 0, (index, name)

    @each_form
    @each_backend
    def test_the_gradient_of_lse_is_not_dropped(self, backend: str, lay: Lay) -> None:
        """With nothing else upstream, it is what dq and dk are made of."""

        tokens = drawn(9, heads=(4, 2), width=16, dtype=torch.float32)
        silent = [Tokens(q=tokens.q, k=tokens.k, v=tokens.v, dlse=tokens.dlse,
                         dout=torch.zeros_like(tokens.dout))]  # fmt: skip
        launch = lay(whole(silent))
        expected = by_reference(launch, silent)
        (result,) = attend(backend, launch, silent)
        for name in ("dq", "dk", "dv"):
            exact = expected[name].flatten(0, len(launch.query_shape) - 1)
            assert excess(getattr(result, name), exact, BOUNDS[torch.float32]) <= 0
        assert float(result.dq.abs().max()) > 1e-2
        assert float(result.dk.abs().max()) > 1e-2

    @pytest.mark.parametrize("form", ["packed", "padded"])
    @pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
    def test_a_query_without_a_key_gives_nothing(self, backend: str, form: str) -> None:
        """More queries than contexts, none included: out 0, lse -Inf, and gradients of zero."""

        counts, contexts = (3, 2, 1), (1, 0, 1)
        q, dout = (torch.ones(6, 2, 4, device=DEVICE) for _ in range(2))
        k = v = torch.ones(2, 1, 4, device=DEVICE)
        dlse = torch.ones(6, 2, device=DEVICE)
        ends = tuple(
            torch.tensor([0, *torch.tensor(side).cumsum(0).tolist()], dtype=torch.int32,
                device=DEVICE)
            for side in (counts, contexts)
        )  # fmt: skip
        if form == "padded":
            slots = torch.arange(3, device=DEVICE)
            ends = tuple(
                slots[:size] < torch.tensor(side, device=DEVICE)[:, None]
                for side, size in ((counts, 3), (contexts, 1))
            )
            q, dout, dlse = (
                torch.ones(3, 3, *side.shape[1:], device=DEVICE) for side in (q, dout, dlse)
            )
            k = v = torch.ones(3, 1, 1, 4, device=DEVICE)
        if backend == "reference":
            out, lse = REFERENCES[form](q, k, v, *ends, reduce=plain_sum)
        else:
            kernel = backend_of(OPERATOR, backend, form=form)
            assert kernel.backward is not None
            out, lse = tensors_of(kernel.forward(q, k, v, *ends))
            dq, dk, dv = tensors_of(kernel.backward(dout, dlse, q, k, v, out, lse, *ends))
            assert bool(dq.isfinite().all() & dk.isfinite().all() & dv.isfinite().all())
        has_key = (
            torch.tensor([0, 0, 1, 0, 0, 1])
            if form == "packed"
            else torch.tensor([[0, 0, 1], [0, 0, 0], [1, 0, 0]])
        ).to(device=DEVICE, dtype=torch.bool)
        assert bool((lse == -torch.inf).eq(~has_key[..., None]).all())
        assert bool((out == 0).eq(~has_key[..., None, None]).all())

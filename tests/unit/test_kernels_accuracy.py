"""Accuracy of the kernels against float64, within the bounds of the contract.

That a token keeps its bits is another fact, and has its own tests (test_kernels.py).
"""

import pytest
import torch
from tests.unit.kernel_trials import (
    BACKENDS,
    DET_GEMM,
    DEVICE,
    EPS,
    LOGP,
    RMS_NORM,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    in_order,
    normal,
    plain_sum,
    run_rms_norm,
    tensors_of,
    wide,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.kernels import tiles
from biprop.kernels.det_gemm import reference as det_gemm_reference
from biprop.kernels.logp import reference as logp_reference
from biprop.kernels.rms_norm import reference as rms_norm_reference

# Absolute and relative bounds against a float64 result from the same rounded inputs: the rows
# "reduction" and "logprob" of the contract's table, forward and gradient.
BOUNDS = {
    ("reduction", "forward", torch.float32): (1e-4, 1e-4),
    ("reduction", "forward", torch.bfloat16): (5e-2, 2e-2),
    ("reduction", "gradient", torch.float32): (1e-4, 1e-4),
    ("reduction", "gradient", torch.bfloat16): (1e-1, 2e-2),
    ("logprob", "forward", torch.float32): (1e-5, 0.0),
    ("logprob", "forward", torch.bfloat16): (6e-2, 0.0),
    ("logprob", "gradient", torch.float32): (1e-5, 0.0),
    ("logprob", "gradient", torch.bfloat16): (5e-2, 0.0),
}
# Rows of a tile are 16 (32 in one kernel), panels 64, blocks of width up to 512: one, odd, and past
# each.
SIZES = ((1, 1, 1), (3, 17, 5), (16, 64, 64), (35, 130, 67), (17, 600, 129))

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
each_candidate = pytest.mark.parametrize("backend", ["reference", *BACKENDS])


def excess(actual: Tensor, exact: Tensor, bound: tuple[float, float]) -> float:
    """Return by how much the worst element leaves its bound; at most 0 if none does."""
    error = (actual.double() - exact).abs() - (bound[0] + bound[1] * exact.abs())
    return float(error.max())


class TestRmsNormAccuracy:
    """Against float64, inputs as rounded."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """The norm and its rstd are those of float64 up to the contract's bound."""

        x, weight = normal(*sizes[:2], dtype=dtype), normal(sizes[1], dtype=dtype, seed=1)
        exact_rstd = (x.double().square().mean(-1) + EPS).rsqrt()
        exact_y = x.double() * exact_rstd[:, None] * weight.double()
        if backend == "reference":
            y, rstd = rms_norm_reference(x, weight, reduce=plain_sum, eps=EPS)
        else:
            y, rstd = tensors_of(backend_of(RMS_NORM, backend).forward(x, weight, eps=EPS))
        assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
        assert excess(y, exact_y, BOUNDS["reduction", "forward", dtype]) <= 0
        assert excess(rstd, exact_rstd, BOUNDS["reduction", "forward", torch.float32]) <= 0

    @each_size
    @each_dtype
    @each_backend
    def test_backward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Both gradients are those of autograd in float64 up to the contract's bound."""

        tokens, width, _ = sizes
        x, weight = normal(tokens, width, dtype=dtype), normal(width, dtype=dtype, seed=7)
        dy = normal(tokens, width, dtype=dtype, seed=2)
        leaves = (x.double().requires_grad_(), weight.double().requires_grad_())
        rstd = (leaves[0].square().mean(-1, keepdim=True) + EPS).rsqrt()
        exact = torch.autograd.grad(leaves[0] * rstd * leaves[1], leaves, dy.double())
        trial = run_rms_norm(backend, x, dy, in_order([1] * (tokens // 2) + [tokens - tokens // 2]))
        bound = BOUNDS["reduction", "gradient", dtype]
        assert excess(trial.token_gradients, exact[0], bound) <= 0
        assert excess(trial.dweight, exact[1], bound) <= 0

    @each_backend
    def test_a_negative_eps_gives_nan_where_the_root_is_imaginary(self, backend: str) -> None:
        """A row whose mean square stays positive is a number, another is NaN."""

        x = torch.tensor([[2.0, 2.0], [0.5, 0.5]], device=DEVICE)
        ones = torch.ones(2, device=DEVICE)
        y, _ = tensors_of(backend_of(RMS_NORM, backend).forward(x, ones, eps=-1))
        assert y.isnan().tolist() == [[False, False], [True, True]]


class TestDetGemmAccuracy:
    """Against float64, inputs as rounded."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """The product is that of float64 up to the contract's bound."""

        tokens, inputs, outputs = sizes
        x = normal(tokens, inputs, dtype=dtype)
        weight = normal(outputs, inputs, dtype=dtype, seed=1) / inputs**0.5
        if backend == "reference":
            y = det_gemm_reference(x, weight, reduce=plain_sum)
        else:
            (y,) = tensors_of(backend_of(DET_GEMM, backend).forward(x, weight))
        assert y.dtype == dtype
        exact = x.double() @ weight.double().t()
        assert excess(y, exact, BOUNDS["reduction", "forward", dtype]) <= 0

    @each_size
    @each_dtype
    @each_backend
    def test_backward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Both gradients are those of float64 up to the contract's bound."""

        tokens, inputs, outputs = sizes
        x, dy = normal(tokens, inputs, dtype=dtype), normal(tokens, outputs, dtype=dtype, seed=2)
        weight = normal(outputs, inputs, dtype=dtype, seed=1) / outputs**0.5
        layout = in_order([tokens])
        dweight = torch.zeros(outputs, inputs, device=DEVICE)
        kernel = backend_of(DET_GEMM, backend)
        assert kernel.backward is not None
        arguments = (dy, x, weight, layout.offsets, layout.order, layout.position, dweight)
        (dx,) = tensors_of(kernel.backward(*arguments))
        bound = BOUNDS["reduction", "gradient", dtype]
        assert excess(dx, dy.double() @ weight.double(), bound) <= 0
        assert excess(dweight, dy.double().t() @ x.double(), bound) <= 0

    @each_backend
    def test_bfloat16_is_rounded_once_to_nearest_even(self, backend: str) -> None:
        """Halves of a unit go to the even neighbour, as torch rounds a float32."""

        upper = torch.arange(256, device=DEVICE).float() / 128 + 1
        units = torch.tensor([0.0, 0.25, 0.5, 0.75], device=DEVICE) / 128
        x = torch.stack(torch.meshgrid(upper, units, indexing="ij"), -1).reshape(-1, 2).bfloat16()
        weight = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], device=DEVICE).bfloat16()
        (y,) = tensors_of(backend_of(DET_GEMM, backend).forward(x, weight))
        exact = x.float().sum(1)
        assert all_same(y, torch.stack([exact, -exact], 1).bfloat16())


class TestLogpAccuracy:
    """Against float64, inputs as rounded."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Both results are float32 and those of float64 up to the contract's bound."""

        logits = normal(*sizes[:2], dtype=dtype)
        target = torch.arange(sizes[0], device=DEVICE) % sizes[1]
        if backend == "reference":
            logp, lse = logp_reference(logits, target, reduce=plain_sum)
        else:
            logp, lse = tensors_of(backend_of(LOGP, backend).forward(logits, target))
        exact = logits.double().log_softmax(-1).gather(1, target[:, None])[:, 0]
        bound = BOUNDS["logprob", "forward", dtype]
        assert (logp.dtype, lse.dtype) == (torch.float32, torch.float32)
        assert excess(logp, exact, bound) <= 0
        assert excess(lse, logits.double().logsumexp(-1), bound) <= 0

    @each_size
    @each_dtype
    @each_backend
    def test_backward_is_within_the_contract(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """The gradient is that of autograd in float64 up to the contract's bound."""

        logits, dlogp = normal(*sizes[:2], dtype=dtype), normal(sizes[0], dtype=torch.float32)
        target = torch.arange(sizes[0], device=DEVICE) % sizes[1]
        leaf = logits.double().requires_grad_()
        exact_logp = leaf.log_softmax(-1).gather(1, target[:, None])[:, 0]
        (exact,) = torch.autograd.grad(exact_logp, leaf, dlogp.double())
        kernel = backend_of(LOGP, backend)
        assert kernel.backward is not None
        _, lse = tensors_of(kernel.forward(logits, target))
        (dlogits,) = tensors_of(kernel.backward(dlogp, logits, target, lse))
        assert dlogits.dtype == dtype
        assert excess(dlogits, exact, BOUNDS["logprob", "gradient", dtype]) <= 0

    @each_candidate
    def test_infinite_logits_mean_what_they_say(self, backend: str) -> None:
        """-Inf is impossible, +Inf swallows the sum, and NaN spreads over its row alone."""

        inf, nan = torch.inf, torch.nan
        rows = [
            [0, -inf, 0],
            [-inf, 0, -inf],
            [-inf] * 3,
            [0, inf, 0],
            [0, nan, 0],
            [nan] * 3,
            [0, 0, 0],
        ]
        logits = torch.tensor(rows, device=DEVICE, dtype=torch.float32)
        target = torch.zeros(len(rows), dtype=torch.int64, device=DEVICE)
        if backend == "reference":
            logp, lse = logp_reference(logits, target, reduce=plain_sum)
        else:
            logp, lse = tensors_of(backend_of(LOGP, backend).forward(logits, target))
        log2, log3 = (torch.tensor(float(n)).log().item() for n in (2, 3))
        expected_lse = torch.tensor([log2, 0, -inf, inf, nan, nan, log3], device=DEVICE)
        expected_logp = torch.tensor([-log2, -inf, nan, -inf, nan, nan, -log3], device=DEVICE)
        for actual, expected in ((lse, expected_lse), (logp, expected_logp)):
            close = (actual - expected).abs() <= BOUNDS["logprob", "forward", torch.float32][0]
            assert bool((close | same_bits(actual, expected)).all())


class TestReferences:
    """The references, whose only sums are the reducer's."""

    def test_every_reference_sums_by_the_reducer_alone(self) -> None:
        """A reducer that returns ones decides the result."""

        def one(values: Tensor, dim: int) -> Tensor:
            return torch.ones_like(values.select(dim, 0))

        x = normal(3, 5, dtype=torch.float32)
        _, rstd = rms_norm_reference(x, torch.ones(5, device=DEVICE), reduce=one, eps=0.0)
        y = det_gemm_reference(x, torch.zeros(4, 5, device=DEVICE), reduce=one)
        target = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        _, lse = logp_reference(x - x.amax(1, keepdim=True), target, reduce=one)
        assert rstd.tolist() == pytest.approx([5**0.5] * 3)
        assert y.tolist() == [[1.0] * 4] * 3
        assert lse.tolist() == [0.0] * 3

    def test_chunks_of_the_matrix_reference_change_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows taken a few at a time give the bits of all at once."""

        x, weight = wide(9, 33, dtype=torch.float32), wide(5, 33, dtype=torch.float32, seed=1)
        whole = det_gemm_reference(x, weight, reduce=tiles.halving_sum)
        monkeypatch.setattr("biprop.kernels.det_gemm.REFERENCE_ELEMENTS_MAX", 400)
        assert all_same(det_gemm_reference(x, weight, reduce=tiles.halving_sum), whole)

"""The chain's elementwise operators: embedding, rope, silu and swiglu, against float64.

That a token keeps its bits is run by tests/props.
"""

import math

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
    in_order,
    normal,
    place,
    plain_sum,
    tensors_of,
)
from torch import Tensor
from torch.nn.functional import silu

from biprop.bits import same_bits
from biprop.execution import prepare, run_canonical
from biprop.execution.power import measure_power
from biprop.generation import LIMITS, RandomDraw, Space, draw_case
from biprop.kernels.embedding import OPERATOR as EMBEDDING
from biprop.kernels.embedding import reference as embedding_reference
from biprop.kernels.rope import OPERATOR as ROPE
from biprop.kernels.rope import THETA
from biprop.kernels.rope import reference as rope_reference
from biprop.kernels.silu import OPERATOR as SILU
from biprop.kernels.silu import reference as silu_reference
from biprop.kernels.swiglu import OPERATOR as SWIGLU
from biprop.kernels.swiglu import reference as swiglu_reference
from biprop.operators import Kernel
from biprop.signature import parse_signature

# Tokens and features: one, odd, and past the tiles of 16 and 32 rows, and of 64 and 128 features.
SIZES = ((1, 1), (3, 17), (35, 130))
# Heads, and features of each: one pair, odd numbers of pairs, and past the tiles of 4 and 32.
HEADS = ((1, 2), (3, 10), (5, 70))
SPECIAL = (math.inf, -math.inf, math.nan, 0.0, -0.0, 1e38, -1e38, 88.0, -88.0, -104.0)

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
each_heads = pytest.mark.parametrize("heads", HEADS, ids=str)
each_candidate = pytest.mark.parametrize("candidate", ["reference", *BACKENDS])


def is_near(actual: Tensor, exact: Tensor, scale: Tensor | float = 1.0) -> bool:
    """Return whether a result is a rounding of `exact`, after some roundings of `scale` in float32.

    Args:
        actual: What a kernel returned, in its own dtype.
        exact: float64, from the same rounded inputs.
        scale: How large the numbers are that were added up.
    """
    rounded = torch.finfo(actual.dtype).eps * exact.abs()
    computed = 4 * torch.finfo(torch.float32).eps * (exact.abs() + scale)
    return bool(((actual.double() - exact).abs() <= rounded + computed).all())


def has_same_values(actual: Tensor, expected: Tensor) -> bool:
    """Return whether infinities and NaN stand in the same places, and the rest is near."""
    finite = expected.isfinite()
    near = (actual - expected).abs() <= 4 * torch.finfo(torch.float32).eps * expected.abs()
    return bool(torch.where(finite, near, same_bits(actual, expected)).all())


def run_forward(candidate: str, *arguments: Tensor) -> Tensor:
    """Return silu of one argument, swiglu of two, by the reference or a backend."""
    operator = SILU if len(arguments) == 1 else SWIGLU
    if candidate != "reference":
        return tensors_of(backend_of(operator, candidate).forward(*arguments))[0]
    if operator is SILU:
        return silu_reference(*arguments, reduce=plain_sum)
    return swiglu_reference(*arguments, reduce=plain_sum)


def run_backward(backend: str, dy: Tensor, *arguments: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of silu of one argument, of swiglu of two."""
    kernel = backend_of(SILU if len(arguments) == 1 else SWIGLU, backend)
    assert kernel.backward is not None
    return tensors_of(kernel.backward(dy, *arguments))


class TestSilu:
    """Against float64 and `torch.nn.functional.silu`."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_near_float64(
        self, candidate: str, dtype: torch.dtype, sizes: tuple[int, int]
    ) -> None:
        """The gate is that of float64 but for roundings, in the dtype of x."""

        x = normal(*sizes, dtype=dtype) * 4
        y = run_forward(candidate, x)

        assert y.dtype == dtype
        assert is_near(y, silu(x.double()), x.abs())

    @each_size
    @each_dtype
    @each_backend
    def test_gradient_is_near_float64(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int]
    ) -> None:
        """The gradient is that of autograd in float64 but for roundings."""

        x, dy = normal(*sizes, dtype=dtype) * 4, normal(*sizes, dtype=dtype, seed=1)
        leaf = x.double().requires_grad_()
        (exact,) = torch.autograd.grad(silu(leaf), leaf, dy.double())
        (dx,) = run_backward(backend, dy, x)

        assert dx.dtype == dtype
        assert is_near(dx, exact, (dy * x).abs() + 1)

    @each_candidate
    def test_forward_of_infinities_is_that_of_torch(self, candidate: str) -> None:
        """+Inf stays, -Inf and NaN give NaN, large numbers neither overflow nor become NaN."""

        x = torch.tensor([SPECIAL], device=DEVICE)
        expected = silu(x)
        if candidate == "reference":
            # It multiplies where torch divides: the same but for the sign of a zero.
            assert has_same_values(run_forward(candidate, x) + 0.0, expected + 0.0)
        else:
            assert has_same_values(run_forward(candidate, x), expected)

    @each_backend
    def test_gradient_of_infinities_is_that_of_torch(self, backend: str) -> None:
        """Both infinities and NaN give NaN; the gradient of a large number is 1 or nothing."""

        x = torch.tensor([SPECIAL], device=DEVICE, requires_grad=True)
        ones = torch.ones_like(x)
        (expected,) = torch.autograd.grad(silu(x), x, ones)
        (dx,) = run_backward(backend, ones, x.detach())

        assert has_same_values(dx + 0.0, expected + 0.0)


class TestSwiglu:
    """Against float64 and `torch.nn.functional.silu` times the other factor."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_near_float64(
        self, candidate: str, dtype: torch.dtype, sizes: tuple[int, int]
    ) -> None:
        """The product is rounded once, from float32."""

        gate, up = normal(*sizes, dtype=dtype) * 4, normal(*sizes, dtype=dtype, seed=1)
        y = run_forward(candidate, gate, up)

        assert y.dtype == dtype
        assert is_near(y, silu(gate.double()) * up.double(), (gate * up).abs())

    @each_size
    @each_dtype
    @each_backend
    def test_gradients_are_near_float64(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int]
    ) -> None:
        """Both gradients are those of autograd in float64 but for roundings."""

        gate, up = normal(*sizes, dtype=dtype) * 4, normal(*sizes, dtype=dtype, seed=1)
        dy = normal(*sizes, dtype=dtype, seed=2)
        leaves = (gate.double().requires_grad_(), up.double().requires_grad_())
        exact = torch.autograd.grad(silu(leaves[0]) * leaves[1], leaves, dy.double())
        found = run_backward(backend, dy, gate, up)
        scale = (dy * gate).abs().double() * (1 + up.abs()) + 1

        assert [gradient.dtype for gradient in found] == [dtype, dtype]
        assert all(is_near(*pair, scale) for pair in zip(found, exact, strict=True))

    @each_candidate
    def test_infinities_are_those_of_torch(self, candidate: str) -> None:
        """Every special gate times every special factor gives what torch gives."""

        special = torch.tensor(SPECIAL, device=DEVICE)
        gate, up = (grid.contiguous() for grid in torch.meshgrid(special, special, indexing="ij"))
        y = run_forward(candidate, gate, up)

        assert has_same_values(y + 0.0, silu(gate) * up + 0.0)


class TestFeatureStorage:
    """Memory of silu and swiglu: any strides, and no tokens at all."""

    @each_backend
    @pytest.mark.parametrize("storage", STORAGES)
    def test_storage_changes_nothing(self, backend: str, storage: str) -> None:
        """Inputs that start anywhere, with gaps or transposed, give the same bits."""

        store = STORAGES[storage]
        gate, up, dy = (normal(5, 19, dtype=torch.float32, seed=seed) for seed in range(3))
        plain = (run_forward(backend, gate, up), *run_backward(backend, dy, gate, up))
        plain += (run_forward(backend, gate), *run_backward(backend, dy, gate))
        gate, up, dy = store(gate), store(up), store(dy)
        stored = (run_forward(backend, gate, up), *run_backward(backend, dy, gate, up))
        stored += (run_forward(backend, gate), *run_backward(backend, dy, gate))

        assert all(all_same(*pair) for pair in zip(plain, stored, strict=True))

    @each_backend
    def test_no_tokens_are_legal(self, backend: str) -> None:
        """A launch without tokens returns tensors without tokens."""

        empty = normal(0, 7, dtype=torch.bfloat16)
        found = [run_forward(backend, empty), run_forward(backend, empty, empty)]
        found += [*run_backward(backend, empty, empty), *run_backward(backend, empty, empty, empty)]

        assert {(tuple(item.shape), item.dtype) for item in found} == {((0, 7), torch.bfloat16)}


def rotate(backend: str, x: Tensor, position: Tensor, *, theta: float = THETA) -> Tensor:
    """Rotate by the reference or a backend; of a padded tensor by the padded form."""
    if backend == "reference":
        return rope_reference(x, position, reduce=plain_sum, theta=theta)
    form = "packed" if x.dim() == 3 else "padded"
    return tensors_of(backend_of(ROPE, backend, form=form).forward(x, position, theta=theta))[0]


def rotate_back(backend: str, dy: Tensor, position: Tensor) -> Tensor:
    """Return the gradient of x."""
    kernel = backend_of(ROPE, backend)
    assert kernel.backward is not None
    return tensors_of(kernel.backward(dy, position, theta=THETA))[0]


def exact_rotation(x: Tensor, position: Tensor) -> Tensor:
    """Rotate in float64 as complex numbers: the first half is real, the second imaginary."""
    first, second = x.double().chunk(2, dim=-1)
    half = first.shape[-1]
    exponent = torch.arange(half, dtype=torch.float64, device=x.device) / half
    angle = position.double()[:, None, None] / THETA**exponent
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def lengths_of_pairs(x: Tensor) -> Tensor:
    """Return for each feature what it and its partner add up to, without their signs."""
    return x.double().abs() + x.double().roll(x.shape[-1] // 2, dims=-1).abs()


def positions(*numbers: int) -> Tensor:
    """Return positions on the device."""
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


class TestRope:
    """Against complex numbers of float64."""

    @each_heads
    @each_dtype
    @each_candidate
    def test_rotation_is_near_float64(
        self, candidate: str, dtype: torch.dtype, heads: tuple[int, int]
    ) -> None:
        """All three are exact but for roundings, whatever the position, in any order."""

        position = positions(0, 1, 2, 131_072, 131_071, 99_999, 7, 64, 4_095, 12_345)
        x = normal(len(position), *heads, dtype=dtype)
        y = rotate(candidate, x, position)

        assert y.dtype == dtype
        assert is_near(y, exact_rotation(x, position), lengths_of_pairs(x))

    @each_heads
    @each_dtype
    @each_backend
    def test_gradient_is_near_float64(
        self, backend: str, dtype: torch.dtype, heads: tuple[int, int]
    ) -> None:
        """The gradient is that of autograd in float64 but for roundings."""

        position = positions(0, 131_072, 3, 4_095)
        dy = normal(len(position), *heads, dtype=dtype)
        leaf = torch.zeros_like(dy, dtype=torch.float64).requires_grad_()
        (exact,) = torch.autograd.grad(exact_rotation(leaf, position), leaf, dy.double())
        dx = rotate_back(backend, dy, position)

        assert dx.dtype == dtype
        assert is_near(dx, exact, lengths_of_pairs(dy))

    @each_candidate
    def test_a_feature_is_turned_towards_the_other_half(self, candidate: str) -> None:
        """Feature j goes to itself by the cosine, and to j + D/2 by the sine, of its angle."""

        x = torch.eye(4, device=DEVICE)[:2, None, :].contiguous()
        y = rotate(candidate, x, positions(1, 1), theta=100.0)
        slow = 100.0**-0.5
        expected = [
            [math.cos(1), 0, math.sin(1), 0],
            [0, math.cos(slow), 0, math.sin(slow)],
        ]
        assert y[:, 0].tolist() == [pytest.approx(row, abs=1e-6) for row in expected]

    @each_candidate
    def test_position_zero_changes_no_bit(self, candidate: str) -> None:
        """Where the position is 0, in whatever slot, x comes out as it is."""

        x = normal(40, 2, 6, dtype=torch.float32)

        assert all_same(rotate(candidate, x, torch.zeros(40, dtype=torch.int64, device=DEVICE)), x)

    @each_dtype
    @each_backend
    def test_padded_form_is_the_packed_one(self, backend: str, dtype: torch.dtype) -> None:
        """Rows of slots give the bits of the same tokens packed."""

        x = normal(21, 3, 8, dtype=dtype)
        position = torch.arange(21, device=DEVICE) * 37 % 50
        padded = rotate(backend, x.view(3, 7, 3, 8), position.view(3, 7))

        assert all_same(padded.view(x.shape), rotate(backend, x, position))

    @each_backend
    @pytest.mark.parametrize("storage", STORAGES)
    def test_storage_changes_nothing(self, backend: str, storage: str) -> None:
        """Inputs that start anywhere, with gaps or transposed, give the same bits."""

        store = STORAGES[storage]
        x, position = normal(5, 3, 6, dtype=torch.float32), positions(3, 1, 4, 1, 5)
        stored = (store(x), STORAGES["every_second"](position))

        assert all_same(rotate(backend, *stored), rotate(backend, x, position))
        assert all_same(rotate_back(backend, *stored), rotate_back(backend, x, position))

    @each_backend
    def test_no_tokens_are_legal(self, backend: str) -> None:
        """A launch without tokens returns a tensor without tokens."""

        empty, none = normal(0, 2, 4, dtype=torch.float32), positions()

        assert rotate(backend, empty, none).shape == (0, 2, 4)
        assert rotate(backend, empty.view(0, 3, 2, 4), none.view(0, 3)).shape == (0, 3, 2, 4)


def read_rows(candidate: str, ids: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of a table, by the reference or a backend."""
    if candidate == "reference":
        return embedding_reference(ids, weight, reduce=plain_sum)
    return tensors_of(backend_of(EMBEDDING, candidate).forward(ids, weight))[0]


def table_gradient(
    backend: str,
    dy: Tensor,
    ids: Tensor,
    lengths: list[int],
    *,
    dweight: Tensor,
    starts: list[int] | None = None,
) -> Tensor:
    """Add to `dweight` the gradient of sequences that lie one after the other, and return it."""
    kernel = backend_of(EMBEDDING, backend)
    assert kernel.backward is not None
    layout = in_order(lengths, starts=starts)
    sequences = (layout.offsets, layout.order, layout.position)
    assert kernel.backward(dy, ids, *sequences, dweight) is None
    return dweight


def numbers(*values: int) -> Tensor:
    """Return ids on the device."""
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


class TestEmbedding:
    """Rows are copied, and their gradients are sums in blocks of positions."""

    @each_dtype
    @each_candidate
    def test_rows_are_copied_bit_for_bit(self, candidate: str, dtype: torch.dtype) -> None:
        """NaN, infinities and -0 come out as they lie in the table, which may have any strides."""

        weight = torch.tensor([SPECIAL, SPECIAL[::-1], SPECIAL], device=DEVICE).to(dtype)
        weight = STORAGES["transposed"](weight)
        ids = STORAGES["every_second"](numbers(2, 0, 1, 1, *[2] * 40))

        assert all_same(read_rows(candidate, ids, weight), weight[ids])

    @each_dtype
    @each_backend
    @pytest.mark.parametrize(
        ("vocabulary", "lengths"),
        [(3, [5, 0, 37, 1, 16]), (100, [140])],
        ids=["long_sums", "many_tokens"],
    )
    def test_gradient_is_near_float64(
        self, backend: str, dtype: torch.dtype, vocabulary: int, lengths: list[int]
    ) -> None:
        """Every row holds the sum of what its tokens got, of several sequences and blocks."""

        width = 20
        starts = [7 * index % 16 for index in range(len(lengths))]
        ids = torch.arange(sum(lengths), device=DEVICE) ** 2 % vocabulary
        dy = normal(len(ids), width, dtype=dtype)
        reads = (ids[:, None] == torch.arange(vocabulary, device=DEVICE)).double()
        dweight = torch.zeros(vocabulary, width, device=DEVICE)
        table_gradient(backend, dy, ids, lengths, dweight=dweight, starts=starts)

        assert is_near(dweight, reads.t() @ dy.double(), reads.t() @ dy.double().abs())

    @each_backend
    def test_a_row_of_many_features_is_cut_in_tiles(self, backend: str) -> None:
        """Of 130 features each is copied, and gets its own gradient."""

        dy, ids = normal(2, 130, dtype=torch.float32), numbers(1, 0)
        dweight = table_gradient(backend, dy, ids, [2], dweight=torch.zeros(2, 130, device=DEVICE))

        assert all_same(dweight, dy[ids])
        assert all_same(read_rows(backend, ids, dy), dy[ids])

    @each_backend
    def test_a_block_is_summed_before_it_joins(self, backend: str) -> None:
        """Two ones of a block survive beside 2^24, two ones of neighbouring blocks do not."""

        ones = torch.ones(2, 1, device=DEVICE)
        large = torch.full((1, 1), 2.0**24, device=DEVICE)
        within = table_gradient(
            backend, ones, numbers(0, 0), [2], dweight=large.clone(), starts=[14]
        )
        across = table_gradient(
            backend, ones, numbers(0, 0), [2], dweight=large.clone(), starts=[15]
        )

        assert within.tolist() == [[2.0**24 + 2]]
        assert across.tolist() == [[2.0**24]]

    @each_backend
    def test_sequences_that_touch_share_no_block(self, backend: str) -> None:
        """One that goes on where another one ended is another block all the same, of many too."""

        count = 140
        ones, ids = torch.ones(count, 1, device=DEVICE), numbers(*[0] * count)
        dweight = torch.full((1, 1), 2.0**24, device=DEVICE)
        starts = list(range(count))
        table_gradient(backend, ones, ids, [1] * count, dweight=dweight, starts=starts)

        assert dweight.tolist() == [[2.0**24]]

    @each_dtype
    @each_backend
    def test_launches_of_whole_sequences_carry_on(self, backend: str, dtype: torch.dtype) -> None:
        """Two launches one after the other give the bits of one."""

        ids = torch.arange(30, device=DEVICE) % 4
        dy = normal(30, 5, dtype=dtype) * torch.arange(1, 31, device=DEVICE)[:, None].to(dtype)
        once = table_gradient(backend, dy, ids, [11, 19], dweight=torch.zeros(4, 5, device=DEVICE))
        twice = torch.zeros(4, 5, device=DEVICE)
        table_gradient(backend, dy[:11], ids[:11], [11], dweight=twice)
        table_gradient(backend, dy[11:], ids[11:], [19], dweight=twice)

        assert all_same(once, twice)

    @each_backend
    def test_dead_slots_and_unread_rows_are_left_alone(self, backend: str) -> None:
        """What no sequence owns adds nothing, and a row that nobody reads keeps its NaN."""

        layout = place([2], [3, 1], starts=[0], slot_count=5)
        dy = torch.full((5, 2), torch.nan, device=DEVICE)
        dy[layout.live_slots] = 1.0
        dweight = torch.tensor([[0.5, 0.5], [torch.nan] * 2, [torch.nan] * 2], device=DEVICE)
        kernel = backend_of(EMBEDDING, backend)
        assert kernel.backward is not None
        sequences = (layout.offsets, layout.order, layout.position)
        kernel.backward(dy, numbers(1, 0, 2, 0, 1), *sequences, dweight)

        assert dweight[0].tolist() == [2.5, 2.5]
        assert bool(dweight[1:].isnan().all())

    @each_backend
    @pytest.mark.parametrize("storage", STORAGES)
    def test_storage_changes_nothing(self, backend: str, storage: str) -> None:
        """Gradients and accumulators that lie anywhere give the same bits."""

        store = STORAGES[storage]
        ids, dy = numbers(1, 0, 1, 1, 0, 2), normal(6, 7, dtype=torch.float32)
        zeros = torch.zeros(3, 7, device=DEVICE)
        plain = table_gradient(backend, dy, ids, [6], dweight=zeros.clone())
        strided = STORAGES["every_second"](ids)
        stored = table_gradient(backend, store(dy), strided, [6], dweight=store(zeros))

        assert all_same(stored, plain)

    @each_backend
    def test_no_tokens_are_legal(self, backend: str) -> None:
        """A launch without tokens reads nothing, and leaves the accumulator as it was."""

        none, weight = numbers(), normal(3, 4, dtype=torch.float32)
        empty = normal(0, 4, dtype=torch.float32)

        assert read_rows(backend, none, weight).shape == (0, 4)
        assert all_same(table_gradient(backend, empty, none, [0], dweight=weight.clone()), weight)

    @each_backend
    def test_a_vocabulary_of_a_real_model_is_no_obstacle(self, backend: str) -> None:
        """Of 151,936 rows the ones that are read get their gradient."""

        vocabulary = 151_936
        ids = numbers(vocabulary - 1, 0, vocabulary - 1, 77_777)
        dy = torch.tensor([[1.0], [2.0], [4.0], [8.0]], device=DEVICE)
        dweight = torch.zeros(vocabulary, 1, device=DEVICE)
        table_gradient(backend, dy, ids, [4], dweight=dweight)

        assert dweight[[0, 77_777, vocabulary - 1], 0].tolist() == [2.0, 8.0, 5.0]
        assert float(dweight.abs().sum()) == 15.0

    def test_parts_in_groups_are_the_parts_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However few parts the torch backend holds at once, the bits are the same."""

        ids = torch.arange(50, device=DEVICE) ** 2 % 7
        dy = normal(50, 3, dtype=torch.float32)
        zeros = torch.zeros(7, 3, device=DEVICE)
        whole = table_gradient("torch", dy, ids, [20, 30], dweight=zeros.clone())
        monkeypatch.setattr("biprop.kernels.embedding._ELEMENTS_MAX", 6)

        assert all_same(table_gradient("torch", dy, ids, [20, 30], dweight=zeros.clone()), whole)


def embedding_kernel() -> Kernel:
    """Return the torch backend."""
    return next(kernel for kernel in EMBEDDING.kernels() if kernel.backend == "torch")


class TestTables:
    """Cases of a table's gradient: rows are read often enough to be sums."""

    def test_dimensions_that_ids_range_over_are_known(self) -> None:
        """A table is a parameter; logits are none, and an output layer sums its rows."""

        table = parse_signature("ids: token(V)[T], weight[V,H] -> y[T,H]")
        logits = parse_signature("logits[T,V], target: token(V)[T] -> logp: float32[T]")
        layer = parse_signature("x[T,H], weight[V,H], target: token(V)[T] -> logp: float32[T]")

        assert table.table_dims == ("V",)
        assert logits.table_dims == layer.table_dims == ()

    def test_a_quarter_of_the_cases_shows_a_changed_order(self) -> None:
        """In bfloat16 too, whose sums are float32: at least 7 of 28 cases have power."""

        kernel = embedding_kernel()
        space = Space(
            signature=kernel.signature,
            dtype="bfloat16",
            direction="backward",
            backward_signature=kernel.backward_signature,
            registered=True,
            declaration=kernel.declaration,
            op_class=kernel.op_class,
            limits=LIMITS["interpreter"],
        )
        powers = []
        for seed in range(28):
            prepared = prepare(kernel, draw_case(RandomDraw(seed), space), device="cpu")
            powers.append(measure_power(prepared, run_canonical(prepared)))

        assert {power.kind for power in powers} == {"order"}
        assert sum(power.share > 0 for power in powers) >= 7

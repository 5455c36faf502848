"""The kernel `qk_norm`: its numbers, its two sides, and where its weights' gradients come from.

Bounds are units of float32 (or of the output's dtype) times the terms that were added, computed
beside each comparison. Batch invariance is run by tests/props.
"""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.kernel_trials import (
    BACKENDS,
    DEVICE,
    EPS,
    STORAGES,
    Sequences,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    in_order,
    normal,
    place,
    plain_sum,
    tensors_of,
    wide,
)
from torch import Tensor

from biprop.kernels import qk_norm, tiles
from biprop.kernels.qk_norm import OPERATOR
from biprop.operators import KernelFunction

UNIT = torch.finfo(torch.float32).eps
# Query heads, key heads and features: one of each; odd ones; more heads than a tile of the weights'
# gradient has, and more columns.
SIZES = ((1, 1, 1), (6, 3, 19), (20, 5, 40), (2, 1, 200))

VIEWS = {name: STORAGES[name] for name in ("offset_1", "transposed", "every_second")}

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
each_candidate = pytest.mark.parametrize("backend", ["reference", *BACKENDS])


@attrs.frozen(kw_only=True, eq=False)
class Given:
    """Queries, keys, and their upstream gradients and weights.

    Attributes:
        rows: `q` and `k`, `[T, heads, D]`.
        upstream: Gradients of both.
        weights: Of both, `[D]`.
    """

    rows: tuple[Tensor, ...]
    upstream: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]


def given(
    sizes: tuple[int, int, int],
    *,
    dtype: torch.dtype,
    count: int = 5,
    draw: Callable[..., Tensor] = normal,
) -> Given:
    """Draw arguments for some tokens."""
    heads, width = sizes[:2], sizes[2]
    q, k = (draw(count, heads[side], width, dtype=dtype, seed=side) for side in (0, 1))
    dq, dk = (draw(count, heads[side], width, dtype=dtype, seed=2 + side) for side in (0, 1))
    weights = (normal(width, dtype=dtype, seed=4), normal(width, dtype=dtype, seed=5))
    return Given(rows=(q, k), upstream=(dq, dk), weights=weights)


def backward_of(backend: str, *, form: str = "packed") -> KernelFunction:
    """Return a backward."""
    backward = backend_of(OPERATOR, backend, form=form).backward
    assert backward is not None
    return backward


def run(
    backend: str,
    data: Given,
    layout: Sequences,
    *,
    totals: tuple[Tensor, ...] | None = None,
    form: str = "packed",
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return outputs, gradients of both sides, and accumulated gradients of both weights."""
    width = data.weights[0].shape[0]
    accumulated = totals or (torch.zeros(width, device=DEVICE), torch.zeros(width, device=DEVICE))
    forward = backend_of(OPERATOR, backend, form=form).forward
    outputs = tensors_of(forward(*data.rows, *data.weights, eps=EPS))
    slots = data.rows[0].shape[:-2]
    gradients = backward_of(backend, form=form)(
        *(*data.upstream, *data.rows, *data.weights, *outputs[2:], layout.offsets),
        *(layout.order.view(slots), layout.position.view(slots), *accumulated),
        eps=EPS,
    )
    return outputs, tensors_of(gradients), accumulated


def is_within(actual: Tensor, exact: Tensor, terms: Tensor, units: float) -> bool:
    """Whether the error is some units of float32 of the terms, and the rounding to the dtype."""
    rounding = torch.finfo(actual.dtype).eps * exact.abs()
    return bool(((actual.double() - exact).abs() <= units * UNIT * terms + rounding).all())


class TestNumbers:
    """Against float64, inputs as rounded."""

    @each_size
    @each_dtype
    @each_candidate
    def test_forward_is_the_norm_of_every_head(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Each side by its own weight; both rstds are float32."""

        data = given(sizes, dtype=dtype)
        if backend == "reference":
            outputs = tensors_of(qk_norm.reference(*data.rows, *data.weights, reduce=plain_sum))
        else:
            forward = backend_of(OPERATOR, backend).forward
            outputs = tensors_of(forward(*data.rows, *data.weights, eps=EPS))
        units = 8 + sizes[2] ** 0.5
        for side in (0, 1):
            x, out, rstd = data.rows[side].double(), outputs[side], outputs[2 + side]
            exact_rstd = (x.square().mean(-1) + EPS).rsqrt()
            exact = x * exact_rstd[..., None] * data.weights[side].double()
            assert (out.dtype, rstd.dtype) == (dtype, torch.float32)
            assert is_within(rstd, exact_rstd, exact_rstd, units)
            assert is_within(out, exact, exact.abs(), units)

    @each_size
    @each_dtype
    @each_backend
    def test_backward_is_that_of_autograd(
        self, backend: str, dtype: torch.dtype, sizes: tuple[int, int, int]
    ) -> None:
        """Gradients of both sides and both weights, which all heads of a side share."""

        data = given(sizes, dtype=dtype)
        _, gradients, accumulated = run(backend, data, in_order([1, 3, 1], starts=[0, 15, 30]))
        units = 16 + sizes[2] ** 0.5
        for side in (0, 1):
            x = data.rows[side].double().requires_grad_()
            weight = data.weights[side].double().requires_grad_()
            dy = data.upstream[side].double()
            rstd = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
            exact, exact_weight = torch.autograd.grad(x * rstd * weight, (x, weight), dy)
            xhat, scaled = (x * rstd).detach().abs(), (dy * weight).detach().abs()
            terms = rstd.detach() * (scaled + xhat * (scaled * xhat).mean(-1, keepdim=True))
            assert gradients[side].dtype == dtype
            assert accumulated[side].dtype == torch.float32
            assert is_within(gradients[side], exact, terms, units)
            assert is_within(accumulated[side], exact_weight, (dy.abs() * xhat).sum((0, 1)), units)

    @each_backend
    def test_a_head_knows_of_no_other(self, backend: str) -> None:
        """A head of NaN and one of Inf leave the bits of the others as they are."""

        data = given((4, 2, 24), dtype=torch.float32)
        forward = backend_of(OPERATOR, backend).forward
        clean = tensors_of(forward(*data.rows, *data.weights))
        spoilt = tuple(rows.clone() for rows in data.rows)
        spoilt[0][3, 1], spoilt[1][2, 0] = torch.nan, torch.inf
        outputs = tensors_of(forward(*spoilt, *data.weights))
        for side, (token, head) in ((0, (3, 1)), (1, (2, 0))):
            assert bool(outputs[side][token, head].isnan().all())
            mended = outputs[side].clone()
            mended[token, head] = clean[side][token, head]
            assert all_same(mended, clean[side])

    def test_the_reference_sums_by_the_reducer_alone(self) -> None:
        """A reducer that returns ones decides the result."""

        def one(values: Tensor, dim: int) -> Tensor:
            return torch.ones_like(values.select(dim, 0))

        data = given((2, 1, 4), dtype=torch.float32)
        outputs = qk_norm.reference(*data.rows, *data.weights, reduce=one, eps=0.0)
        assert all(set(rstd.flatten().tolist()) == {2.0} for rstd in outputs[2:])


class TestParameterGradients:
    """Where the gradients of the weights come from: live tokens, in blocks of 16 positions."""

    LENGTHS = (1, 20, 0, 7)
    STARTS = (0, 5, 0, 30)
    SIZES = (6, 2, 16)

    def data(self) -> Given:
        """Return data whose sums show any change of order."""
        return given(self.SIZES, dtype=torch.float32, count=sum(self.LENGTHS), draw=wide)

    def canonical(self, backend: str) -> tuple[Tensor, ...]:
        """Return the gradients of the weights from all sequences in one launch."""
        layout = in_order(list(self.LENGTHS), starts=list(self.STARTS))
        return run(backend, self.data(), layout)[2]

    @each_backend
    def test_positions_and_not_slots_cut_the_blocks(self, backend: str) -> None:
        """The same tokens from other first positions give other bits, somewhere."""

        layout = in_order(list(self.LENGTHS))
        _, _, accumulated = run(backend, self.data(), layout)
        pairs = zip(accumulated, self.canonical(backend), strict=True)
        assert not all(all_same(left, right) for left, right in pairs)

    @each_backend
    def test_a_cut_at_a_block_of_positions_changes_no_bit(self, backend: str) -> None:
        """A sequence that starts at 5 may be cut after 11 tokens, one accumulator for both."""

        data = given(self.SIZES, dtype=torch.float32, count=20, draw=wide)
        _, _, whole = run(backend, data, in_order([20], starts=[5]))
        halves = [
            attrs.evolve(
                data,
                rows=tuple(rows[part] for rows in data.rows),
                upstream=tuple(rows[part] for rows in data.upstream),
            )
            for part in (slice(0, 11), slice(11, 20))
        ]
        _, _, totals = run(backend, halves[0], in_order([11], starts=[5]))
        _, _, totals = run(backend, halves[1], in_order([9], starts=[16]), totals=totals)
        assert all(all_same(left, right) for left, right in zip(totals, whole, strict=True))

    @each_backend
    def test_dead_slots_are_not_read(self, backend: str) -> None:
        """NaN between scattered tokens reaches neither weight."""

        count, slot_count = sum(self.LENGTHS), 40
        slots = torch.randperm(slot_count, generator=torch.Generator().manual_seed(3))[:count]
        layout = place(
            list(self.LENGTHS), slots.tolist(), starts=list(self.STARTS), slot_count=slot_count
        )
        data = self.data()

        def scattered(values: Tensor) -> Tensor:
            spread = torch.full((slot_count, *values.shape[1:]), torch.nan, device=DEVICE)
            spread[layout.live_slots] = values
            return spread

        moved = attrs.evolve(
            data,
            rows=tuple(scattered(rows) for rows in data.rows),
            upstream=tuple(scattered(rows) for rows in data.upstream),
        )
        _, _, accumulated = run(backend, moved, layout)
        pairs = zip(accumulated, self.canonical(backend), strict=True)
        assert all(all_same(left, right) for left, right in pairs)

    @each_backend
    def test_the_padded_form_has_the_bits_of_the_packed_one(self, backend: str) -> None:
        """Two rows of slots, the second from a slot in its middle on."""

        data = given(self.SIZES, dtype=torch.float32, count=12, draw=wide)
        packed = run(backend, data, in_order([8, 4], starts=[3, 0]))
        order = [*range(8), *range(16, 20)]
        layout = place([8, 4], order, starts=[3, 0], slot_count=24)

        def in_rows(values: Tensor) -> Tensor:
            slots = torch.full((24, *values.shape[1:]), torch.nan, device=DEVICE)
            slots[layout.live_slots] = values
            return slots.view(2, 12, *values.shape[1:])

        padded = attrs.evolve(
            data,
            rows=tuple(in_rows(rows) for rows in data.rows),
            upstream=tuple(in_rows(rows) for rows in data.upstream),
        )
        outputs, gradients, accumulated = run(backend, padded, layout, form="padded")
        by_token = zip(outputs + gradients, packed[0] + packed[1], strict=True)
        assert all(
            all_same(rows.flatten(0, 1)[layout.live_slots], tokens) for rows, tokens in by_token
        )
        assert all(
            all_same(left, right) for left, right in zip(accumulated, packed[2], strict=True)
        )


class TestLaunches:
    """Empty launches, views, and the tiles of a GPU."""

    @each_backend
    @pytest.mark.parametrize(("form", "slots"), [("packed", (0,)), ("padded", (2, 0))])
    def test_an_empty_launch_leaves_the_accumulators(
        self, backend: str, form: str, slots: tuple[int, ...]
    ) -> None:
        """Outputs have no tokens, and what was accumulated keeps its bits."""

        q, k = (torch.zeros(*slots, heads, 8, device=DEVICE) for heads in (4, 2))
        ones = torch.ones(8, device=DEVICE)
        data = Given(rows=(q, k), upstream=(q, k), weights=(ones, ones))
        before = torch.full((8,), -0.0, device=DEVICE)
        layout = in_order([0] * len(slots))
        outputs, gradients, accumulated = run(
            backend, data, layout, totals=(before.clone(), before.clone()), form=form
        )
        shapes = [(*slots, 4, 8), (*slots, 2, 8), (*slots, 4), (*slots, 2)]
        assert [tuple(output.shape) for output in outputs] == shapes
        assert [tuple(gradient.shape) for gradient in gradients] == shapes[:2]
        assert all(all_same(total, before) for total in accumulated)

    @each_backend
    @pytest.mark.parametrize("store", VIEWS.values(), ids=VIEWS)
    def test_storage_changes_no_bit(self, backend: str, store: Callable[[Tensor], Tensor]) -> None:
        """Every argument, accumulators and integers included, may be a view of anything."""

        data = given((4, 2, 19), dtype=torch.float32, count=9, draw=wide)
        layout = in_order([4, 5], starts=[3, 0])
        plain = run(backend, data, layout)
        moved = run(
            backend,
            Given(
                rows=tuple(store(rows) for rows in data.rows),
                upstream=tuple(store(rows) for rows in data.upstream),
                weights=tuple(store(weight) for weight in data.weights),
            ),
            Sequences(
                offsets=store(layout.offsets),
                order=store(layout.order),
                position=store(layout.position),
            ),
            totals=tuple(store(torch.zeros(19, device=DEVICE)) for _ in range(2)),
        )
        for left, right in zip(plain, moved, strict=True):
            assert all(all_same(one, other) for one, other in zip(left, right, strict=True))
        assert all(values.is_contiguous() for values in moved[0] + moved[1])

    def test_the_tiles_of_a_gpu_give_what_those_of_a_cpu_give(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each row keeps its order in a tile of other size, and each block in a smaller group."""

        data = given((6, 3, 19), dtype=torch.float32, count=112, draw=wide)
        layout = in_order([70, 1, 0, 41], starts=[3, 0, 5, 16])
        small = run("torch", data, layout)
        monkeypatch.setattr(tiles, "_ELEMENTS_CPU_MAX", 19 * 16)
        monkeypatch.setattr(tiles, "_ELEMENTS_MAX", 3 * tiles.BLOCK_COUNT * 6 * 19)
        for left, right in zip(small, run("torch", data, layout), strict=True):
            assert all(all_same(one, other) for one, other in zip(left, right, strict=True))

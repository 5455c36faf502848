"""The facts that the invariance of the kernels rests on, each alone, so that a failure names it.

Whole cases with transforms are run by tests/props; accuracy is in test_kernels_accuracy.py.
"""

from collections.abc import Callable, Iterator

import attrs
import pytest
import torch
from tests.unit import kernel_trials
from tests.unit.kernel_trials import (
    BACKENDS,
    DET_GEMM,
    DEVICE,
    EPS,
    LOGP,
    RMS_NORM,
    STORAGES,
    Run,
    Trial,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    each_run,
    each_run_with_weight,
    in_order,
    normal,
    place,
    run_det_gemm,
    run_logp,
    run_rms_norm,
    tensors_of,
    wide,
)
from torch import Tensor

from biprop.kernels import OPERATORS, det_gemm, logp, rms_norm, tiles
from biprop.kernels.native_linear import OPERATOR as NATIVE_LINEAR
from biprop.kernels.native_sdpa import OPERATOR as NATIVE_SDPA
from biprop.operators import Operator, Registry


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run torch on a number of threads, and give back what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class TestRowPlace:
    """A row's bits do not depend on where it lies, nor beside what."""

    @each_dtype
    @pytest.mark.parametrize(
        # The interpreter computes with numpy, which torch's threads do not touch.
        ("backend", "threads"),
        [("torch", 1), ("torch", 2), ("triton", 1)],
        indirect=["threads"],
    )
    @each_run
    @pytest.mark.parametrize("width", [1, 19, 64, 300])
    def test_a_row_has_one_result_in_every_place(
        self, run: Run, backend: str, dtype: torch.dtype, width: int, threads: int
    ) -> None:
        """The row alone, in each of 35 places, and among loud strangers: the same bits."""

        assert torch.get_num_threads() == threads
        row, dy = wide(1, width, dtype=dtype), wide(1, width, dtype=dtype, seed=1)
        alone = run(backend, row, dy, in_order([1]))
        count = 35
        everywhere = run(
            backend, row.expand(count, -1), dy.expand(count, -1), in_order([1] * count)
        )
        strangers, loud = wide(count, width, dtype=dtype, seed=2) * 16, dy.expand(count, -1).clone()
        strangers[20] = row
        among = run(backend, strangers, loud, in_order([1] * count))
        first = torch.tensor([0], device=DEVICE)
        for slot in range(count):
            there = everywhere.at(first + slot)
            assert attrs.evolve(there, dweight=alone.dweight).same_as(alone), slot
        assert attrs.evolve(among.at(first + 20), dweight=alone.dweight).same_as(alone)

    def test_panels_hold_for_more_threads_than_rows(self) -> None:
        """A product of one panel gives each row the same bits on 1 to 33 threads."""

        row = wide(1, tiles.PANEL_WIDTH, dtype=torch.float32)
        panel = wide(tiles.PANEL_WIDTH, tiles.PANEL_WIDTH, dtype=torch.float32, seed=1)
        tile = row.expand(tiles.ROW_COUNT, -1).contiguous()
        before = torch.get_num_threads()
        try:
            products = []
            for count in (1, 2, 5, 16, 33):
                torch.set_num_threads(count)
                products.append(tile @ panel)
        finally:
            torch.set_num_threads(before)
        assert all(all_same(product, products[0][:1].expand_as(product)) for product in products)


class TestDeadRows:
    """What no sequence owns reaches nothing."""

    @each_dtype
    @each_backend
    @each_run
    @pytest.mark.parametrize("fill", [0.0, torch.nan, torch.inf, 3e4], ids=str)
    def test_dead_rows_change_no_live_bit(
        self, run: Run, backend: str, dtype: torch.dtype, fill: float
    ) -> None:
        """Outputs and gradients, of tokens and of the weight, are those of the live rows alone."""

        lengths, width = [5, 0, 18, 1], 33
        rows, dy = wide(24, width, dtype=dtype), wide(24, width, dtype=dtype, seed=1)
        alone = run(backend, rows, dy, in_order(lengths))
        slots = [*range(3, 20), *range(25, 32)]
        spread = place(lengths, slots, starts=[0] * 4, slot_count=40)
        padded, padded_dy = (
            torch.full((40, width), fill, dtype=dtype, device=DEVICE) for _ in range(2)
        )
        padded[spread.live_slots], padded_dy[spread.live_slots] = rows, dy
        assert run(backend, padded, padded_dy, spread).at(spread.live_slots).same_as(alone)


class TestParameterGradients:
    """The gradient of a weight follows the logical order, and nothing else."""

    LENGTHS = (1, 40, 0, 7, 16, 3)
    STARTS = (0, 5, 0, 30, 16, 15)
    WIDTH = 37

    def rows(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return rows and upstream gradients whose sums show any change of order."""
        count = sum(self.LENGTHS)
        return wide(count, self.WIDTH, dtype=dtype), wide(count, self.WIDTH, dtype=dtype, seed=1)

    def canonical(self, run: Run, backend: str, dtype: torch.dtype) -> Trial:
        """Run all sequences in logical order in one launch."""
        layout = in_order(list(self.LENGTHS), starts=list(self.STARTS))
        return run(backend, *self.rows(dtype), layout)

    @each_dtype
    @each_backend
    @each_run_with_weight
    def test_where_the_tokens_lie_does_not_matter(
        self, run: Run, backend: str, dtype: torch.dtype
    ) -> None:
        """Scattering every token over a launch keeps the bits of the gradient."""

        rows, dy = self.rows(dtype)
        count = len(rows)
        slots = torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist()
        layout = place(list(self.LENGTHS), slots, starts=list(self.STARTS), slot_count=count)
        moved, moved_dy = torch.empty_like(rows), torch.empty_like(dy)
        moved[layout.live_slots], moved_dy[layout.live_slots] = rows, dy
        trial = run(backend, moved, moved_dy, layout)
        assert trial.at(layout.live_slots).same_as(self.canonical(run, backend, dtype))

    @each_dtype
    @each_backend
    @each_run_with_weight
    @pytest.mark.parametrize("cut", [1, 2, 3, 5])
    def test_micro_batches_do_not_matter(
        self, run: Run, backend: str, dtype: torch.dtype, cut: int
    ) -> None:
        """Cutting between sequences, one accumulator for both launches, keeps its bits."""

        rows, dy = self.rows(dtype)
        token = sum(self.LENGTHS[:cut])
        first = in_order(list(self.LENGTHS[:cut]), starts=list(self.STARTS[:cut]))
        second = in_order(list(self.LENGTHS[cut:]), starts=list(self.STARTS[cut:]))
        half = run(backend, rows[:token], dy[:token], first)
        whole = run(backend, rows[token:], dy[token:], second, dweight=half.dweight)
        assert all_same(whole.dweight, self.canonical(run, backend, dtype).dweight)

    @each_backend
    @each_run_with_weight
    def test_a_cut_at_a_block_of_positions_does_not_matter(self, run: Run, backend: str) -> None:
        """A sequence may be cut where its position is a multiple of 16, since blocks are."""

        rows, dy = (
            wide(40, self.WIDTH, dtype=torch.float32),
            wide(40, self.WIDTH, dtype=torch.float32),
        )
        whole = run(backend, rows, dy, in_order([40], starts=[5]))
        half = run(backend, rows[:27], dy[:27], in_order([27], starts=[5]))
        rest = run(backend, rows[27:], dy[27:], in_order([13], starts=[32]), dweight=half.dweight)
        assert all_same(rest.dweight, whole.dweight)

    @each_backend
    @each_run_with_weight
    def test_the_order_of_sequences_is_seen(self, run: Run, backend: str) -> None:
        """The data would show a changed order: adding the sequences backwards gives other bits."""

        rows, dy = self.rows(torch.float32)
        count = len(rows)
        bounds = [sum(self.LENGTHS[:index]) for index in range(len(self.LENGTHS) + 1)]
        order = [
            token
            for index in reversed(range(len(self.LENGTHS)))
            for token in range(bounds[index], bounds[index + 1])
        ]
        lengths, starts = list(reversed(self.LENGTHS)), list(reversed(self.STARTS))
        trial = run(backend, rows, dy, place(lengths, order, starts=starts, slot_count=count))
        assert not all_same(trial.dweight, self.canonical(run, backend, torch.float32).dweight)

    @each_dtype
    @each_backend
    def test_padded_rms_norm_has_the_bits_of_the_packed_one(
        self, backend: str, dtype: torch.dtype
    ) -> None:
        """Rows of padded slots, NaN between them, give what packed tokens give."""

        rows, dy = self.rows(dtype)
        packed = self.canonical(run_rms_norm, backend, dtype)
        row_slots = 48
        slots = [
            row * row_slots + (row_slots - length if row % 2 else 0) + token
            for row, length in enumerate(self.LENGTHS)
            for token in range(length)
        ]
        count = row_slots * len(self.LENGTHS)
        layout = place(list(self.LENGTHS), slots, starts=list(self.STARTS), slot_count=count)
        nan = torch.full((count, self.WIDTH), torch.nan, dtype=dtype, device=DEVICE)
        x, upstream = nan.clone(), nan.clone()
        x[layout.live_slots], upstream[layout.live_slots] = rows, dy
        shape = (len(self.LENGTHS), row_slots)
        kernel = backend_of(RMS_NORM, backend, form="padded")
        assert kernel.backward is not None
        weight = normal(self.WIDTH, dtype=dtype, seed=7)
        y, rstd = tensors_of(kernel.forward(x.view(*shape, -1), weight, eps=EPS))
        dweight = torch.zeros(self.WIDTH, device=DEVICE)
        (dx,) = tensors_of(
            kernel.backward(
                *(upstream.view(*shape, -1), x.view(*shape, -1), weight, rstd, layout.offsets),
                *(layout.order.view(shape), layout.position.view(shape), dweight),
                eps=EPS,
            )
        )
        assert (y.shape, rstd.shape, dx.shape) == (
            (*shape, self.WIDTH),
            shape,
            (*shape, self.WIDTH),
        )
        trial = Trial(
            outputs=(y.flatten(0, 1), rstd.flatten()),
            token_gradients=dx.flatten(0, 1),
            dweight=dweight,
        )
        assert trial.at(layout.live_slots).same_as(packed)


class TestStorage:
    """Where and how the arguments are stored changes nothing."""

    @each_dtype
    @each_backend
    @pytest.mark.parametrize("operator", [RMS_NORM, DET_GEMM, LOGP], ids=lambda entry: entry.name)
    @pytest.mark.parametrize("store", STORAGES.values(), ids=STORAGES)
    def test_storage_changes_no_bit(
        self,
        operator: Operator,
        backend: str,
        dtype: torch.dtype,
        store: Callable[[Tensor], Tensor],
    ) -> None:
        """Every argument, accumulator and integers included, may be a view of anything."""

        kernel = backend_of(operator, backend)
        assert kernel.backward is not None
        tokens, width = 20, 37
        x, dy = wide(tokens, width, dtype=dtype), wide(tokens, width, dtype=dtype, seed=1)
        layout = in_order([12, 8], starts=[3, 0])
        integers = (layout.offsets, layout.order, layout.position)
        weight = (
            wide(width, dtype=dtype) if operator is RMS_NORM else wide(width, width, dtype=dtype)
        )
        dweight = torch.zeros(weight.shape, device=DEVICE)
        target = torch.arange(tokens, device=DEVICE)
        forward_arguments = (x, target) if operator is LOGP else (x, weight)
        outputs = tensors_of(kernel.forward(*forward_arguments))
        arguments = {
            "rms_norm": (dy, x, weight, outputs[-1], *integers, dweight),
            "det_gemm": (dy, x, weight, *integers, dweight),
            "logp": (dy[:, 0].float(), x, target, outputs[-1]),
        }[operator.name]
        moved = tuple(store(argument) for argument in arguments)
        gradients = tensors_of(kernel.backward(*arguments))
        moved_gradients = tensors_of(kernel.backward(*moved))
        moved_outputs = tensors_of(kernel.forward(*(store(value) for value in forward_arguments)))
        pairs = (
            *zip(outputs, moved_outputs, strict=True),
            *zip(gradients, moved_gradients, strict=True),
        )
        assert all(all_same(plain, view) for plain, view in pairs)
        assert all_same(arguments[-1], moved[-1])
        assert all(value.is_contiguous() for value in moved_outputs + moved_gradients)


class TestEmptyLaunches:
    """A launch without tokens is legal: a cut may leave one."""

    @each_dtype
    @each_backend
    @each_run
    def test_no_tokens_give_no_rows_and_leave_the_accumulator(
        self, run: Run, backend: str, dtype: torch.dtype
    ) -> None:
        """Outputs have no rows, and what was accumulated keeps its bits."""

        nothing = torch.zeros(0, 5, dtype=dtype, device=DEVICE)
        shape = (5, 5) if run is run_det_gemm else (5,)
        before = torch.full(shape, -0.0, device=DEVICE)
        trial = run(backend, nothing, nothing, in_order([0, 0]), dweight=before.clone())
        assert all(len(output) == 0 for output in trial.outputs)
        assert trial.token_gradients.shape == (0, 5)
        assert all_same(trial.dweight, before)

    @each_backend
    def test_rows_without_slots_are_no_error(self, backend: str) -> None:
        """The padded form takes two rows of no slots."""

        x = torch.zeros(2, 0, 3, device=DEVICE)
        kernel = backend_of(RMS_NORM, backend, form="padded")
        y, rstd = tensors_of(kernel.forward(x, torch.ones(3, device=DEVICE)))
        assert (y.shape, rstd.shape) == ((2, 0, 3), (2, 0))


class TestTiles:
    """The tools of the torch backends."""

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100])
    def test_a_halving_sum_adds_every_element_once(self, size: int) -> None:
        """Sums of distinct powers of two show which elements were taken."""

        values = torch.exp2(torch.arange(size, dtype=torch.float64) % 40).repeat(3, 1)
        assert tiles.halving_sum(values, 1).tolist() == values.sum(1).tolist()
        assert tiles.halving_sum(values.t(), 0).tolist() == values.sum(1).tolist()

    def test_blocks_end_where_a_position_is_a_multiple_of_their_size(self) -> None:
        """A sequence that starts inside a block fills its rest first; an empty one has none."""

        layout = place([20, 0, 3], [*range(1, 24)], starts=[10, 0, 15], slot_count=30)
        slots, blocks = tiles.token_blocks(layout.offsets, layout.order, layout.position)
        assert slots.tolist() == list(range(1, 24))
        assert [(block.start, block.stop, block.place) for block in blocks] == [
            (0, 6, 10), (6, 20, 0), (20, 21, 15), (21, 23, 0),
        ]  # fmt: skip

    def test_panels_hold_the_matrix_and_zeros(self) -> None:
        """Panels laid out again are the matrix, padded with zeros."""

        weight = normal(70, 130, dtype=torch.float32)
        panels = tiles.weight_panels(weight, tiles.PANEL_WIDTH)
        assert panels.shape == (2, 3, 64, 64)
        whole = panels.transpose(1, 2).reshape(128, 192)
        assert all_same(whole[:70, :130], weight)
        assert not whole[70:].any()
        assert not whole[:, 130:].any()
        (wide_panels,) = tiles.weight_panels(weight, tiles.padded(130)).unbind(1)
        assert all_same(wide_panels.reshape(128, 192), whole)

    @pytest.mark.parametrize("run", [run_rms_norm, run_det_gemm, run_logp])
    def test_the_tiles_of_a_gpu_give_what_those_of_a_cpu_give(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whole numbers add up exactly, or each row keeps its order, so every bit is the same."""

        def whole(*sizes: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
            return normal(*sizes, dtype=dtype, seed=seed).round()

        monkeypatch.setattr(kernel_trials, "wide", whole)
        layout = in_order([70, 1, 0, 41], starts=[3, 0, 5, 16])
        x, dy = (whole(112, 150, dtype=torch.float32, seed=seed) for seed in (0, 1))
        small = run("torch", x, dy, layout)
        monkeypatch.setattr(det_gemm, "row_count", lambda *_: 64)
        for module in (logp, rms_norm):
            monkeypatch.setattr(module, "elementwise_row_count", lambda *_: 64)
        monkeypatch.setattr(det_gemm, "panel_across", lambda _, width: tiles.padded(width))
        monkeypatch.setattr(tiles, "_ELEMENTS_MAX", 3 * tiles.BLOCK_COUNT * 150)

        assert run("torch", x, dy, layout).same_as(small)


class TestRecords:
    """What biprop.kernels exports."""

    def test_each_operator_is_declared_or_says_why_not(self) -> None:
        """Only what is PyTorch's own is exempt; the others have a reference and both backends."""

        declared = [operator for operator in OPERATORS if operator.declaration]
        exempt = [operator for operator in OPERATORS if operator.exempt_reason]
        assert exempt == [NATIVE_LINEAR, NATIVE_SDPA]
        for form in (form for operator in declared for form in operator.forms):
            assert form.reference is not None
            assert form.backward_signature is not None
            assert [entry.backend for entry in form.implementations] == list(BACKENDS)
            assert all(entry.backward is not None for entry in form.implementations)

    def test_a_bare_name_means_the_first_form(self) -> None:
        """As it is typed at the command line; the others are named in full."""
        registry = Registry(operators=OPERATORS)

        for operator in OPERATORS:
            found = registry.find(target=operator.name, backend="torch")
            assert (found.operator, found.form) == (operator.name, operator.forms[0].name)
        assert registry.find(target="attention/padded", backend="torch").form == "padded"

"""Power: whether the data of a case could have shown a defect."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from biprop.bits import same_bits
from biprop.case import Case, Dtype, Judged, TransformData
from biprop.data.recipe import Pairing, Recipe
from biprop.execution import prepare, run_canonical
from biprop.execution.orders import ORDERS, sum_in_blocks
from biprop.execution.power import measure_power
from biprop.execution.proxies import spread
from biprop.generation.draw import RandomDraw
from biprop.generation.generator import draw_case
from biprop.generation.space import Space
from biprop.judgment import Power, Verdict
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.operators import Form, Implementation, InvarianceDeclaration, Kernel, Operator
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature

NORMAL, ONES, ZEROS = (Recipe(kind=kind) for kind in ("normal", "ones", "zeros"))
PAIRS = {
    "x": Recipe(kind="pairs", pairing={"K": Pairing(role="antisymmetric", mask=37)}),
    "w": Recipe(kind="pairs", pairing={"K": Pairing(role="symmetric", mask=37)}),
}


def linear(x: Tensor, w: Tensor) -> Tensor:
    """Return `x @ w^T`."""
    return torch.nn.functional.linear(x, w)


def kernel_of(function: Callable[..., object], signature: str) -> Kernel:
    """Return an unregistered kernel."""
    return Kernel(
        operator="test",
        target="test:test",
        signature=parse_signature(signature),
        function=function,
    )


LINEAR = kernel_of(linear, "x[T,K], w[N,K] -> y[T,N]")
SCALE = kernel_of(lambda x: x * 2, "x[T,H] -> y[T,H]")


def power_of(
    kernel: Kernel,
    dims: dict[str, int],
    *,
    dtype: Dtype = "float32",
    judged: Judged = "outputs",
    data: dict[str, Recipe] | None = None,
    policy_state: dict[str, Recipe] | None = None,
    transforms: tuple[TransformData, ...] = (),
    lengths: tuple[int, ...] = (8,),
    shared_prefix: int = 0,
) -> Power:
    """Measure the power of a case."""
    case = Case(
        dtype=dtype,
        judged=judged,
        dims=dims,
        sequences=tuple(LogicalSequence(id=at, length=length) for at, length in enumerate(lengths)),
        shared_prefix=shared_prefix,
        data=data or {},
        policy_state=policy_state or {},
        transforms=transforms,
    )
    prepared = prepare(kernel, case, device="cpu")
    return measure_power(prepared, run_canonical(prepared))


class TestOrders:
    """The orders that stand for what kernels do."""

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100])
    @pytest.mark.parametrize("order", ORDERS)
    def test_order_sums_each_term_once(
        self, order: Callable[[Tensor, int], Tensor], count: int
    ) -> None:
        """Every order gives the exact sum where the sum is exact, over any dimension."""
        values = torch.arange(5 * count * 2, dtype=torch.float32).reshape(5, count, 2) - count

        assert bool(same_bits(order(values, 1), values.sum(dim=1)).all())
        assert bool(same_bits(order(values.movedim(1, 2), -1), values.sum(dim=1)).all())

    @pytest.mark.parametrize("count", [3, 4, 16, 64])
    def test_orders_differ_where_bits_can(self, count: int) -> None:
        """No two orders are the same tree from four terms on, and three terms tell two apart."""
        torch.manual_seed(1)
        values = torch.randn(2000, count) * torch.randn(2000, count).exp2()
        results = [order(values, -1) for order in ORDERS]
        differ = [
            not bool(same_bits(one, other).all())
            for place, one in enumerate(results)
            for other in results[place + 1 :]
        ]

        assert all(differ) if count > 3 else any(differ)

    def test_two_terms_have_one_order(self) -> None:
        """Addition commutes bit for bit, so that two terms show nothing."""
        torch.manual_seed(1)
        values = torch.randn(1000, 2)

        assert all(
            bool(same_bits(order(values, -1), sum_in_blocks(values, -1)).all()) for order in ORDERS
        )


class TestUnregistered:
    """Sums guessed from a signature."""

    def test_zeros_and_ones_have_none(self) -> None:
        """Exact sums have the same bits in every order."""
        dims = {"K": 64, "N": 3}

        for recipe in (ZEROS, ONES):
            power = power_of(LINEAR, dims, data={"x": recipe}, policy_state={"w": recipe})
            assert power == Power(kind="order", share=0.0)

    def test_normal_data_shows_in_float32_and_not_in_bfloat16(self) -> None:
        """Rounding to bfloat16 hides what normal data shows in float32."""
        dims = {"K": 64, "N": 16}
        given = {"data": {"x": NORMAL}, "policy_state": {"w": NORMAL}}

        assert power_of(LINEAR, dims, **given).share > 0.5  # type: ignore[arg-type]  # spelt out
        assert power_of(LINEAR, dims, dtype="bfloat16", **given).share < 0.05  # type: ignore[arg-type]

    def test_cancelling_pairs_show_in_bfloat16(self) -> None:
        """Where the exact sum is zero the output is the rounding, in every dtype."""
        power = power_of(
            LINEAR,
            {"K": 64, "N": 16},
            dtype="bfloat16",
            data={"x": PAIRS["x"]},
            policy_state={"w": PAIRS["w"]},
        )

        assert power.kind == "order"
        assert power.share > 0.6

    def test_sum_of_one_or_two_terms_has_none(self) -> None:
        """A contracted dimension of two terms has one order only."""

        for count in (1, 2):
            dims = {"K": count, "N": 16}
            power = power_of(LINEAR, dims, data={"x": NORMAL}, policy_state={"w": NORMAL})
            assert power.share == 0

    @pytest.mark.parametrize("kind", ["ties_squares", "ties_exponentials", "pairs"])
    def test_each_design_of_a_kept_dimension_counts(self, kind: str) -> None:
        """Squares, exponentials and plain sums are all tried where a dimension is kept."""
        recipe = Recipe(kind=kind, pairing={"H": Pairing(role="own")} if kind == "pairs" else {})
        power = power_of(SCALE, {"H": 256}, dtype="bfloat16", data={"x": recipe})

        assert power.kind == "order"
        assert power.share > 0

    def test_large_dimension_is_sampled(self) -> None:
        """A case of a hundred million products is measured on a bounded sample."""
        power = power_of(
            LINEAR,
            {"K": 4096, "N": 512},
            data={"x": NORMAL},
            policy_state={"w": NORMAL},
            lengths=(64,),
        )

        assert power.share > 0.5

    def test_power_is_there_where_a_drift_is(self) -> None:
        """Nearly no case in which torch's own linear drifts is called powerless."""
        space = Space(signature=LINEAR.signature, dtype="bfloat16")
        drifting = []
        for seed in range(80):
            case = draw_case(RandomDraw(seed), space)
            outcome = judge_invariance(LINEAR, case, options=JudgeOptions(measure=False))
            if outcome.verdict is Verdict.DRIFTS:
                prepared = prepare(LINEAR, case, device="cpu")
                drifting.append(measure_power(prepared, run_canonical(prepared)).share > 0)

        assert len(drifting) >= 5
        assert sum(drifting) >= 0.8 * len(drifting)


class TestValue:
    """Operators that sum nothing."""

    PLAIN = kernel_of(lambda x: x + 1, "x[T] -> y[T]")

    def test_target_without_free_dimension_has_value_power(self) -> None:
        """Rows that all differ could not stand in for each other; equal rows could."""

        assert power_of(self.PLAIN, {}, data={"x": NORMAL}) == Power(kind="value", share=1.0)
        assert power_of(self.PLAIN, {}, data={"x": ONES}) == Power(kind="value", share=0.0)

    def test_rows_that_neighbours_share_do_not_count(self) -> None:
        """A row that lies in the launch twice could be misread unseen."""
        shared = power_of(self.PLAIN, {}, data={"x": NORMAL}, lengths=(4, 4), shared_prefix=2)

        assert shared == Power(kind="value", share=0.5)

    def test_rows_that_equal_the_fill_do_not_count(self) -> None:
        """One row of ones shows a misread slot of zeros, and none of ones."""
        padding = TransformData(name="PadSlots", values={"fill": "one"})
        one = power_of(self.PLAIN, {}, data={"x": ONES}, lengths=(1,))
        beside_ones = power_of(
            self.PLAIN, {}, data={"x": ONES}, lengths=(1,), transforms=(padding,)
        )

        assert (one.share, beside_ones.share) == (1.0, 0.0)

    def test_elementwise_operator_has_value_power(self) -> None:
        """A registered elementwise operator is measured by its rows whatever its dimensions."""
        operator = Operator(
            name="double",
            op_class="elementwise",
            forms=(
                Form(
                    name="packed",
                    signature=SCALE.signature,
                    implementations=(Implementation(backend="torch", forward=SCALE.function),),
                ),
            ),
            declaration=InvarianceDeclaration(transforms=("T1",)),
        )
        (kernel,) = operator.kernels()

        assert power_of(kernel, {"H": 64}, data={"x": NORMAL}) == Power(kind="value", share=1.0)

    def test_lookup_has_value_power(self) -> None:
        """A target that takes ids alone is measured by its ids."""
        lookup = kernel_of(lambda ids, table: table[ids], "ids: token(V)[T], table[V,H] -> y[T,H]")
        power = power_of(lookup, {"V": 1 << 16, "H": 8}, policy_state={"table": NORMAL})

        assert power == Power(kind="value", share=1.0)


class TestRegistered:
    """Operators whose reference says where their sums are."""

    def test_reference_is_asked(self) -> None:
        """Ties of squares show in a norm and not in a product, pairs the other way round."""
        norm, product = RMS_NORM.kernels()[0], DET_GEMM.kernels()[0]
        ties = Recipe(kind="ties_squares")
        tied = power_of(
            norm,
            {"H": 1024},
            dtype="bfloat16",
            data={"x": ties},
            policy_state={"weight": ONES},
        )
        normal = power_of(
            norm, {"H": 4}, dtype="bfloat16", data={"x": ONES}, policy_state={"weight": ONES}
        )
        cancelled = power_of(
            product,
            {"K": 64, "N": 5},
            dtype="bfloat16",
            data={"x": PAIRS["x"]},
            policy_state={"weight": PAIRS["w"]},
        )

        assert tied.share > 0.02
        assert normal.share == 0
        assert cancelled.share > 0.6

    def test_padded_form_is_asked_too(self) -> None:
        """A padded form of independent tokens is sampled token by token."""
        padded = next(kernel for kernel in RMS_NORM.kernels() if kernel.form == "padded")
        power = power_of(
            padded,
            {"H": 96},
            data={"x": NORMAL},
            policy_state={"weight": NORMAL},
            lengths=(5, 9, 1),
        )

        assert power.share > 0.1

    def test_log_probability_shows_peaks(self) -> None:
        """A peak at the target leaves the rounding of a sum of exponentials, in float32 outputs."""
        kernel = LOGP.kernels()[0]
        peak = Recipe(kind="peak_exponentials", at_target=True)
        power = power_of(kernel, {"V": 256}, dtype="bfloat16", data={"logits": peak})

        assert power.share > 0.1


class TestGradients:
    """Sums weighted by the upstream gradient."""

    def _power(self, judged: Judged, upstream: Recipe, weight: Recipe) -> Power:
        return power_of(
            LINEAR,
            {"K": 12, "N": 48},
            judged=judged,
            data={"x": NORMAL, "dy": upstream},
            policy_state={"w": weight},
            lengths=(20, 30),
        )

    def test_token_gradient_sums_over_the_outputs(self) -> None:
        """`dx` of a linear layer is a sum over its outputs, of upstream gradient times weight."""

        assert self._power("token_gradients", NORMAL, NORMAL).share > 0.5
        assert self._power("token_gradients", ONES, ONES).share == 0
        assert self._power("token_gradients", ZEROS, NORMAL).share == 0

    def test_parameter_gradient_sums_over_all_tokens(self) -> None:
        """`dw` is a sum over the tokens of all sequences, and does not know the weight."""

        assert self._power("parameter_gradients", NORMAL, ZEROS).share > 0.5
        assert self._power("parameter_gradients", ZEROS, NORMAL).share == 0

    def test_accumulator_keeps_its_own_dtype(self) -> None:
        """Gradients that are accumulated in float32 show what bfloat16 ones would hide."""
        registered = DET_GEMM.kernels()[0]
        given = {"data": {"x": NORMAL, "dy": NORMAL}, "lengths": (40, 60)}
        accumulated = power_of(
            registered,
            {"K": 4, "N": 4},
            dtype="bfloat16",
            judged="parameter_gradients",
            policy_state={"weight": NORMAL},
            **given,  # type: ignore[arg-type]  # spelt out above
        )
        rounded = power_of(
            LINEAR,
            {"K": 4, "N": 4},
            dtype="bfloat16",
            judged="parameter_gradients",
            policy_state={"w": NORMAL},
            **given,  # type: ignore[arg-type]  # likewise
        )

        assert accumulated.share > 0.2
        assert rounded.share < 0.1

    def test_gradient_of_a_table_sums_over_the_tokens_that_read_a_row(self) -> None:
        """`dtable` has power where a row is read often, and none where no row is read twice."""
        kernel = kernel_of(lambda ids, table: table[ids], "ids: token(V)[T], table[V,D] -> y[T,D]")

        def power(vocabulary: int) -> float:
            return power_of(
                kernel,
                {"V": vocabulary, "D": 8},
                judged="parameter_gradients",
                data={"dy": NORMAL},
                policy_state={"table": ONES},
                lengths=(40,) if vocabulary < 8 else (4,),
            ).share

        assert power(2) > 0.5
        assert power(4096) == 0

    def test_gradient_of_a_norm_shows_sums_of_the_forward(self) -> None:
        """The gradient of a norm depends on its sum of squares, also where dy is exact."""
        kernel = RMS_NORM.kernels()[0]
        power = power_of(
            kernel,
            {"H": 96},
            judged="token_gradients",
            data={"x": NORMAL, "dy": ZEROS},
            policy_state={"weight": ONES},
        )

        assert power.share > 0


@pytest.mark.parametrize(("count", "wanted"), [(1, 4), (4, 4), (5, 4), (100, 7), (10, 1)])
def test_spread_takes_both_ends(count: int, wanted: int) -> None:
    """A sample is ascending, without repeats, from the first index to the last."""
    chosen = spread(count, wanted).tolist()

    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, wanted)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1 or wanted == 1

"""Power of attention: guessed from queries, keys and values, or asked of a reference."""

import pytest
import torch
from torch import Tensor

from biprop.bits import same_bits
from biprop.case import Case, Dtype, Judged
from biprop.data.recipe import TOKENS, Pairing, Point, Recipe
from biprop.execution import Prepared, Run, prepare
from biprop.execution.arguments import Materialiser
from biprop.execution.attention_proxies import (
    attention_gradient_shares,
    attention_shares,
    can_guess,
)
from biprop.execution.attention_samples import attention_frames, fewer_heads
from biprop.execution.frame import Frame
from biprop.execution.orders import ORDERS
from biprop.execution.power import measure_power
from biprop.generation.data_mixture import draw_data
from biprop.generation.draw import RandomDraw
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.layout import CANONICAL
from biprop.operators import Kernel
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature
from biprop.transforms import AddNeighbours, transform_to_data

HEADS = "q[B,HQ,Q,D], k[B,HK,C,D], v[B,HK,C,D]"
CAUSAL = f"{HEADS}, mask: causal_mask[B,1,Q,C] -> out[B,HQ,Q,D]"
FULL = f"{HEADS}, mask: mask[B,C] -> out[B,HQ,Q,D]"
ONE_QUERY = "q[B,H,1,D], k[B,H,C,D], v[B,H,C,D] -> out[B,H,1,D]"
WITH_LSE = (
    "q[TQ,H,D], k[TC,H,D], v[TC,H,E], a: offsets(Q)[B+1], b: offsets(C)[B+1] "
    "-> out[TQ,H,E], lse: float32[TQ,H]"
)
NORMAL, ONES, ZEROS = (Recipe(kind=kind) for kind in ("normal", "ones", "zeros"))
PAIRS = Recipe(kind="pairs", pairing={TOKENS: Pairing(role="antisymmetric", mask=3)})
TWINS = Recipe(kind="normal", pairing={TOKENS: Pairing(role="symmetric", mask=3)})
NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def kernel_of(signature: str) -> Kernel:
    """Return a kernel that is never launched."""

    def never(*_: object, **__: object) -> object:
        raise AssertionError("power needs no launch")

    return Kernel(
        operator="test", target="test:t", signature=parse_signature(signature), function=never
    )


def prepared_of(
    signature: str,
    data: dict[str, Recipe],
    *,
    dtype: Dtype = "bfloat16",
    judged: Judged = "outputs",
    lengths: tuple[int, ...] = (16, 12),
    neighbours: int = 0,
    dims: dict[str, int] | None = None,
) -> Prepared:
    """Return a case on the CPU."""
    kernel = kernel_of(signature)
    sizes = dims or dict.fromkeys(kernel.signature.free_dims, 4)
    case = Case(
        dtype=dtype,
        judged=judged,
        dims=sizes,
        sequences=tuple(LogicalSequence(id=at, length=n) for at, n in enumerate(lengths)),
        data=data,
        transforms=(transform_to_data(AddNeighbours(count=neighbours)),) * bool(neighbours),
        seed=3,
    )
    return prepare(kernel, case, device="cpu")


def forward(prepared: Prepared) -> list[float]:
    """Return the shares of the outputs."""
    own = NAMES[prepared.case.dtype]
    dtypes = {
        item.name: own if item.kind == "float" else NAMES[item.kind]
        for item in prepared.kernel.signature.judged_outputs
    }
    return attention_shares(prepared, dtypes)


def backward(prepared: Prepared) -> dict[str, float]:
    """Return the shares of the gradients of queries, keys and values."""
    dtypes = dict.fromkeys(("dq", "dk", "dv"), NAMES[prepared.case.dtype])
    return dict(zip(dtypes, attention_gradient_shares(prepared, dtypes), strict=True))


def given(q: Recipe, k: Recipe, v: Recipe, **upstream: Recipe) -> dict[str, Recipe]:
    """Return recipes by name."""
    return {"q": q, "k": k, "v": v, **upstream}


class TestForward:
    """Shares of outputs, guessed."""

    def test_exact_sums_have_none(self) -> None:
        """Equal weights and values of one sign and size give the same bits in every order."""
        for values in (ZEROS, ONES):
            assert forward(prepared_of(CAUSAL, given(ZEROS, ONES, values))) == [0.0]

    def test_normal_data_shows_in_float32_and_not_in_bfloat16(self) -> None:
        """Rounding to bfloat16 hides what normal data shows in float32."""
        data = given(NORMAL, NORMAL, NORMAL)

        assert forward(prepared_of(CAUSAL, data, dtype="float32"))[0] > 0.3
        assert forward(prepared_of(CAUSAL, data))[0] < 0.05

    @pytest.mark.parametrize("signature", [CAUSAL, FULL, ONE_QUERY])
    @pytest.mark.parametrize("data", [(ZEROS, NORMAL, PAIRS), (NORMAL, TWINS, PAIRS)])
    def test_values_that_cancel_show_in_bfloat16(
        self, signature: str, data: tuple[Recipe, Recipe, Recipe]
    ) -> None:
        """Equal scores, and keys that partners share, leave the rounding of a sum over keys."""
        prepared = prepared_of(signature, given(*data))

        assert forward(prepared)[0] > 0.15

    def test_peak_shows_in_the_log_sum_exp(self) -> None:
        """Beside a peak the log-sum-exp is its own rounding, and nothing shows in the values."""
        data = given(ONES, Recipe(kind="peak_keys"), NORMAL)
        dims = {"H": 2, "D": 9, "E": 4}
        out, lse = forward(prepared_of(WITH_LSE, data, lengths=(40, 50, 60), dims=dims))

        assert out == 0
        assert lse > 0.3

    def test_scores_show_if_they_are_steep(self) -> None:
        """The rounding of a score that cancels over its dimension moves the weights if scaled."""
        symmetric = Recipe(kind="normal", pairing={"D": Pairing(role="symmetric", mask=5)})
        shares = {}
        for exponent in (0, 20):
            odd = Recipe(
                kind="pairs",
                pairing={"D": Pairing(role="antisymmetric", mask=5)},
                exponent=exponent,
            )
            prepared = prepared_of(
                CAUSAL, given(odd, symmetric, NORMAL), dims={"HQ": 2, "HK": 1, "D": 32}
            )
            shares[exponent] = forward(prepared)[0]

        assert shares[0] < 0.1
        assert shares[20] > 0.4

    def test_causal_queries_see_no_later_key(self) -> None:
        """Three values that cancel show to every query of a full attention, to one of a causal."""
        points = zip((1, 2, 3), (-4096.0, 4096.0, 2.0**-12), strict=True)
        values = Recipe(
            kind="explicit",
            points=tuple(Point(at={TOKENS: token}, value=value.hex()) for token, value in points),
        )
        data = given(ZEROS, ZEROS, values)
        full, causal = (
            forward(prepared_of(signature, data, lengths=(4,)))[0] for signature in (FULL, CAUSAL)
        )

        assert (full, causal) == (1.0, 0.25)

    def test_other_sequences_do_not_matter(self) -> None:
        """Nothing of a neighbour goes in, and nothing of another watched sequence."""
        data = given(NORMAL, NORMAL, NORMAL, dout=NORMAL)
        for judged in ("outputs", "token_gradients"):
            plain = prepared_of(CAUSAL, data, dtype="float32", judged=judged, neighbours=2)
            spoilt = prepared_of(CAUSAL, data, dtype="float32", judged=judged, neighbours=2)
            for values in spoilt.values.tokens.values():
                values[spoilt.pool.watched_token_count :] = torch.nan
            shares = [
                forward(one) if judged == "outputs" else list(backward(one).values())
                for one in (plain, spoilt)
            ]

            assert shares[0] == shares[1]
            assert min(shares[0]) > 0

    def test_heads_read_their_own_head_of_keys(self) -> None:
        """Neighbouring heads of queries share a head of keys; the other one may hold anything."""
        points = zip((0, 1, 2), (-4096.0, 4096.0, 2.0**-12), strict=True)
        values = Recipe(
            kind="explicit",
            points=tuple(
                Point(at={TOKENS: token, "HK": 1}, value=value.hex()) for token, value in points
            ),
        )
        prepared = prepared_of(
            FULL, given(ZEROS, ZEROS, values), lengths=(3,), dims={"HQ": 4, "HK": 2, "D": 3}
        )

        assert forward(prepared)[0] == 0.5

    def test_long_contexts_are_bounded(self) -> None:
        """A context of four thousand keys is looked at with one query, and still shows."""
        prepared = prepared_of(
            CAUSAL,
            given(ZEROS, ZEROS, PAIRS, dout=PAIRS),
            lengths=(4096,),
            judged="token_gradients",
            dims={"HQ": 2, "HK": 1, "D": 128},
        )

        assert forward(prepared)[0] > 0.5
        assert set(backward(prepared)) == {"dq", "dk", "dv"}


class TestBackward:
    """Shares of gradients, guessed."""

    def test_gradient_of_queries_sums_over_keys(self) -> None:
        """Twin keys with opposite values make it the rounding of a sum over keys."""
        data = given(NORMAL, TWINS, PAIRS, dout=NORMAL)

        assert backward(prepared_of(CAUSAL, data, judged="token_gradients"))["dq"] > 0.1

    def test_gradients_of_keys_and_values_sum_over_queries(self) -> None:
        """Beside a peak all queries weigh alike, so that upstream gradients cancel over them."""
        peak = Recipe(kind="peak_keys")
        shares = backward(
            prepared_of(
                CAUSAL,
                given(ONES, peak, NORMAL, dout=PAIRS),
                judged="token_gradients",
                lengths=(32, 24),
            )
        )
        exact = backward(
            prepared_of(CAUSAL, given(ONES, peak, NORMAL, dout=ZEROS), judged="token_gradients")
        )

        assert shares["dv"] > 0.1
        assert set(exact.values()) == {0.0}

    def test_one_query_has_nothing_to_sum_over(self) -> None:
        """Keys and values of a single query have gradients of one term."""
        data = given(NORMAL, NORMAL, NORMAL, dout=NORMAL)
        shares = backward(prepared_of(ONE_QUERY, data, dtype="float32", judged="token_gradients"))

        assert shares["dq"] > 0.3
        assert (shares["dk"], shares["dv"]) == (0.0, 0.0)

    def test_gradient_of_the_log_sum_exp_counts(self) -> None:
        """Keys that cancel show in the gradient of queries through the log-sum-exp alone."""
        data = given(ZEROS, PAIRS, ONES, dout=ZEROS, dlse=NORMAL)
        silent = {**data, "dlse": ZEROS}
        shares = [
            backward(prepared_of(WITH_LSE, recipes, judged="token_gradients"))["dq"]
            for recipes in (data, silent)
        ]

        assert shares[0] > 0.2
        assert shares[1] == 0


class TestMixture:
    """How often the mixture has power."""

    @pytest.mark.parametrize(
        ("signature", "judged", "dtype", "least"),
        [
            (CAUSAL, "outputs", "float32", 0.8),
            (CAUSAL, "outputs", "bfloat16", 0.45),
            (WITH_LSE, "outputs", "bfloat16", 0.7),
            (ONE_QUERY, "outputs", "bfloat16", 0.45),
            (WITH_LSE, "token_gradients", "float32", 0.85),
            (WITH_LSE, "token_gradients", "bfloat16", 0.4),
        ],
    )
    def test_most_cases_have_power(
        self, signature: str, judged: Judged, dtype: Dtype, least: float
    ) -> None:
        """Also where the output is narrow, which normal data never shows in."""
        parsed = parse_signature(signature)
        dims = dict.fromkeys(parsed.free_dims, 2) | {"D": 16, "E": 8}
        dims = {name: dims[name] for name in parsed.free_dims}
        powered = 0
        for seed in range(60):
            recipes = draw_data(RandomDraw(seed), parsed, dims, judged=judged, length=24)
            prepared = prepared_of(
                signature, recipes.data, dtype=dtype, judged=judged, lengths=(24,), dims=dims
            )
            shares = forward(prepared) if judged == "outputs" else backward(prepared).values()
            powered += max(shares) > 0

        assert powered / 60 > least


class TestReference:
    """What the registered operator's reference is asked."""

    KERNELS = tuple(kernel for kernel in ATTENTION.kernels() if kernel.backend == "torch")

    def _prepared(self, kernel: Kernel, lengths: tuple[int, ...], width: int) -> Prepared:
        case = Case(
            dtype="float32",
            dims={"HQ": 6, "HK": 2, "D": width},
            sequences=tuple(LogicalSequence(id=at, length=n) for at, n in enumerate(lengths)),
            data=dict.fromkeys("qkv", NORMAL),
        )
        return prepare(kernel, case, device="cpu")

    def _outputs(self, prepared: Prepared, frame: Frame, *, few: bool) -> list[Tensor]:
        """Return out `[queries, heads, D]` and lse `[queries, heads]` of the reference."""
        kernel = prepared.kernel
        assert kernel.reference is not None
        materialiser = Materialiser(
            case=prepared.case, values=prepared.values, layout=CANONICAL, align=1, poison="nan"
        )
        arguments = materialiser.arguments(kernel.signature, frame)
        if few:
            arguments = fewer_heads(prepared, arguments)
        returned = kernel.reference(*arguments, reduce=ORDERS[0], **kernel.call)
        assert isinstance(returned, tuple)
        return [item if kernel.form == "packed" else item[0] for item in returned]

    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.form)
    def test_sample_has_the_bits_of_the_whole_sequence(self, kernel: Kernel) -> None:
        """The last queries and two heads of one group are computed as among all the others."""
        prepared = self._prepared(kernel, (9, 5, 70), width=64)
        frames = attention_frames(prepared)
        assert frames is not None
        assert [frame.launch.lengths for frame in frames] == [(9,), (3,)]

        for frame in frames:
            (index,) = frame.launch.sequences
            (count,) = frame.launch.lengths
            whole = self._outputs(prepared, prepared.canonical_frames()[index], few=False)
            sample = self._outputs(prepared, frame, few=True)
            for one, other in zip(whole, sample, strict=True):
                assert len(other) == count
                assert other.shape[1] == 2
                assert bool(same_bits(one[-count:, :2], other).all())

    def test_reference_is_asked_and_long_contexts_are_guessed(self) -> None:
        """Either way normal data has power, and no reference is asked of a long context."""
        for lengths, asked in (((40,), True), ((4096,), False)):
            prepared = self._prepared(self.KERNELS[0], lengths, width=64 if asked else 128)
            assert (attention_frames(prepared) is not None) == asked
            run = Run(
                outputs={"out": torch.empty(0), "lse": torch.empty(0)},
                expected={},
                index={},
                rows={},
                launches=1,
                facts=(),
                poisons=(),
                actual_backend="torch",
            )
            power = measure_power(prepared, run)

            assert power.kind == "order"
            assert power.share > 0.3


def test_signatures_that_cannot_be_guessed_are_told() -> None:
    """One tensor of each role and a common dimension are needed."""
    answers = {
        CAUSAL: True,
        "q[B,Q,D], kv[B,C,D], m: mask[B,C] -> out[B,Q,D]": True,
        "q[B,Q,D], r[B,Q,E], k[B,C,D], l[B,C,E], v[B,C,F], m: mask[B,C] -> out[B,Q,F]": False,
        "q[B,Q,D], k[B,C,E], v[B,C,F], m: mask[B,C] -> out[B,Q,F]": False,
        "x[T,H] -> y[T,H]": False,
    }

    assert {text: can_guess(parse_signature(text)) for text in answers} == answers

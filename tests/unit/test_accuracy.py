"""Relations A and P in one process: a kernel against its reference, and against another backend."""

import math
from collections.abc import Callable

import attrs
import pytest
import torch
from torch import Tensor

from biprop.bits import Agreement, compare_within
from biprop.case import Against, Case
from biprop.contract import load_contract
from biprop.contract.probes import ACCUMULATION, probes_for
from biprop.data.recipe import Recipe
from biprop.errors import CaseError, OutputError, TargetError
from biprop.execution import prepare, run_canonical
from biprop.execution.reference import run_reference
from biprop.fixtures.load import fixture_from_data
from biprop.fixtures.parse import parse_json
from biprop.fixtures.records import fixture_text
from biprop.fixtures.replay import replay
from biprop.generation import rescaled
from biprop.judgment import Outcome, Verdict, outcome_from_data, outcome_to_data
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.kernels.rms_norm import backward as norm_backward
from biprop.kernels.rms_norm import forward as norm_forward
from biprop.operators import Kernel
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.relations.judging import judge_case
from biprop.sequence import LogicalSequence
from biprop.strategies.search import search
from biprop.strategies.spaces import space_for
from biprop.supervision.in_process import InProcessJudge

NORM = RMS_NORM.kernels()[0]
GEMM = DET_GEMM.kernels()[0]
ACCURACY = Against(relation="A", atol=1e-4, rtol=1e-4)
# The other backend is a second torch one, so that no interpreter is needed.
PARITY = Against(relation="P", backend="other", atol=1e-4, rtol=1e-4)
SEQUENCES = (LogicalSequence(id=0, length=5, prompt_length=2), LogicalSequence(id=1, length=3))


def norm_case(against: Against | None = ACCURACY, **changes: object) -> Case:
    """Return a case of rms_norm: two sequences with 6 active tokens."""
    case = Case(
        dtype="float32",
        dims={"H": 24},
        sequences=SEQUENCES,
        data={"x": Recipe(kind="normal"), "dy": Recipe(kind="normal")},
        policy_state={"weight": Recipe(kind="normal")},
        against=against,
    )
    case = attrs.evolve(case, **changes)  # type: ignore[arg-type]  # fields of a case
    if case.judged == "outputs":
        case = attrs.evolve(case, data={"x": case.data["x"]})
    return rescaled(NORM.signature, case, backward_signature=NORM.backward_signature)


def scaled(factor: float) -> Kernel:
    """Return rms_norm whose result is off by a factor, whatever the batch."""

    def function(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        y, rstd = norm_forward(x, weight, eps=eps)
        return (y.float() * factor).to(y.dtype), rstd

    return attrs.evolve(NORM, function=function)


def with_other(function: Callable[..., object]) -> Kernel:
    """Return rms_norm beside a backend `other`."""
    return attrs.evolve(NORM, relatives=(attrs.evolve(NORM, backend="other", function=function),))


class TestTolerance:
    """What lies within a tolerance, and what does not."""

    def agreement(
        self, own: list[float], other: list[float], *, atol: float = 0.1, rtol: float = 0.0
    ) -> Agreement:
        """Compare two lists."""
        pair = torch.tensor(own), torch.tensor(other)
        (found,), _ = compare_within([pair], atol=atol, rtol=rtol)
        return found

    def test_both_parts_of_a_tolerance_count(self) -> None:
        """The relative part is of the other side's magnitude, and the bound itself agrees."""
        found = self.agreement([1.0, 1.75, 11.0, -9.0], [1.0, 1.5, 8.0, -8.0], atol=0.25, rtol=0.25)

        assert (found.elements_beyond, found.first) == (1, (2,))
        assert found.share == pytest.approx(3.0 / 2.25)
        assert (found.max_abs_error, found.max_rel_error) == (3.0, 0.375)

    @pytest.mark.parametrize(
        ("own", "other", "beyond"),
        [
            (math.nan, math.nan, 0),
            (math.nan, 1.0, 1),
            (1.0, math.nan, 1),
            (math.inf, math.inf, 0),
            (math.inf, -math.inf, 1),
            (1.0, math.inf, 1),
            (math.inf, 1.0, 1),
            (0.0, -0.0, 0),
        ],
    )
    def test_what_is_not_finite_agrees_with_itself_alone(
        self, own: float, other: float, beyond: int
    ) -> None:
        """A NaN agrees with a NaN, an infinity with the same one, and with nothing else."""

        assert self.agreement([own], [other], rtol=0.5).elements_beyond == beyond

    def test_telling_elements_are_finite_and_not_zero(self) -> None:
        """Zeros and what is not finite could show no error."""

        assert self.agreement([0.0, 1.0, math.nan], [0.0, 1.0, math.nan]).elements_telling == 1

    def test_dtypes_may_differ_and_shapes_may_not(self) -> None:
        """A narrow side is compared as the number that it is."""
        narrow, wide = torch.tensor([0.1], dtype=torch.bfloat16), torch.tensor([0.1])
        (found,), flags = compare_within(
            [(narrow, wide)], atol=0.0, rtol=0.0, flags=[torch.tensor(True)]
        )

        assert (found.elements_beyond, flags) == (1, (True,))
        with pytest.raises(OutputError, match="the same shape"):
            compare_within([(narrow, wide[0])], atol=1.0, rtol=0.0)


class TestReference:
    """The other side of relation A."""

    def test_values_are_widened_and_results_are_float32(self) -> None:
        """A bfloat16 case is computed from its bfloat16 values, in float32 throughout."""
        prepared = prepare(NORM, norm_case(dtype="bfloat16"), device="cpu")
        run, own = run_reference(prepared), run_canonical(prepared)
        x = prepared.values.tokens["x"][prepared.pool.compared].double()
        weight = prepared.values.parameters["weight"].double()
        exact = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

        assert {values.dtype for values in run.outputs.values()} == {torch.float32}
        assert own.outputs["y"].dtype == torch.bfloat16
        assert float((run.outputs["y"] - exact).abs().max()) < 1e-6

    @pytest.mark.parametrize("judged", ["token_gradients", "parameter_gradients"])
    def test_gradients_come_through_the_reference(self, judged: str) -> None:
        """Autograd through the reference gives the gradients that float64 gives."""
        prepared = prepare(NORM, norm_case(judged=judged), device="cpu")
        run = run_reference(prepared)
        leaves = [
            prepared.values.tokens["x"].double().requires_grad_(),
            prepared.values.parameters["weight"].double().requires_grad_(),
        ]
        rstd = (leaves[0].square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        upstream = prepared.values.tokens["dy"].double()
        dx, dweight = torch.autograd.grad(leaves[0] * rstd * leaves[1], leaves, upstream)
        name = "dx" if judged == "token_gradients" else "dweight"
        exact = dx[prepared.pool.compared] if name == "dx" else dweight

        assert tuple(run.outputs) == (name,)
        assert float((run.outputs[name] - exact).abs().max()) < 1e-5

    def test_fault_of_the_reference_is_an_error(self) -> None:
        """A reference that raises condemns no kernel: it is wrong use, with its own sentence."""

        def broken(*_: object, **__: object) -> object:
            raise ValueError("no such axis")

        with pytest.raises(TargetError, match=r"reference of operator 'rms_norm' raised ValueErr"):
            judge_case(attrs.evolve(NORM, reference=broken), norm_case())


class TestAccuracy:
    """Verdicts of relation A."""

    @pytest.mark.parametrize("judged", ["outputs", "token_gradients", "parameter_gradients"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_healthy_kernel_holds(self, dtype: str, judged: str) -> None:
        """An accurate kernel holds with power, in every dtype and direction."""
        wide = ACCURACY if dtype == "float32" else attrs.evolve(ACCURACY, atol=0.05, rtol=0.02)
        outcome = judge_case(NORM, norm_case(wide, dtype=dtype, judged=judged))

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.classes == {"A": "powered"}
        assert outcome.tolerance_share is not None
        assert outcome.tolerance_share < 0.5
        assert outcome.power is not None
        assert (outcome.power.kind, outcome.power.share) == ("magnitude", 1.0)

    def test_inaccurate_kernel_is_inaccurate(self) -> None:
        """What is off beyond the tolerance fails with its output, and only active tokens count."""
        outcome = judge_case(scaled(1.001), norm_case())
        (mismatch,) = outcome.mismatches

        assert outcome.verdict is Verdict.INACCURATE
        assert outcome.cause is not None
        assert outcome.cause.key == "A-INACCURATE-forward-y-finite"
        assert outcome.repeats == JudgeOptions().repeats
        assert (mismatch.output, mismatch.tokens_compared) == ("y", 6)
        assert mismatch.first.token == 2
        assert mismatch.max_rel_error == pytest.approx(1e-3, rel=1e-2)
        assert outcome_from_data(outcome_to_data(outcome)) == outcome

    def test_inaccurate_kernel_does_not_drift(self) -> None:
        """Relation I of the same kernel holds: its bits do not depend on the batch."""
        case = attrs.evolve(norm_case(None), transforms=())

        assert (
            judge_invariance(scaled(1.001), case, options=JudgeOptions(measure=False)).verdict
            is Verdict.HOLDS
        )

    def test_gradients_are_judged_by_name(self) -> None:
        """A wrong gradient of a parameter leaves those of tokens alone."""

        def wrong(*arguments: Tensor, eps: float) -> Tensor:
            dx = norm_backward(*arguments, eps=eps)
            arguments[-1].mul_(1.01)
            return dx

        kernel = attrs.evolve(NORM, backward=wrong)
        tokens = judge_case(kernel, norm_case(judged="token_gradients"))
        parameters = judge_case(kernel, norm_case(judged="parameter_gradients"))

        assert tokens.verdict is Verdict.HOLDS
        assert parameters.cause is not None
        assert parameters.cause.key == "A-INACCURATE-backward-dweight-finite"

    def test_both_dtypes_are_told(self) -> None:
        """A narrow result keeps its own bits beside those of the float32 reference."""
        wide = attrs.evolve(ACCURACY, atol=0.05, rtol=0.02)
        (mismatch,) = judge_case(scaled(1.5), norm_case(wide, dtype="bfloat16")).mismatches

        assert (mismatch.dtype, mismatch.other_dtype) == ("bfloat16", "float32")
        assert (len(mismatch.first.canonical_bits), len(mismatch.first.transformed_bits)) == (6, 10)

    def test_nan_against_a_number_is_inaccurate(self) -> None:
        """Errors that JSON has not are left out of the record."""
        outcome = judge_case(scaled(math.nan), norm_case())

        assert outcome.verdict is Verdict.INACCURATE
        assert outcome.mismatches[0].max_abs_error is None
        assert outcome_from_data(outcome_to_data(outcome)) == outcome

    def test_kernel_that_differs_from_itself_is_nondeterministic(self) -> None:
        """A kernel that gives another result each time is no matter of accuracy."""
        runs: list[int] = []

        def flipping(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
            runs.append(len(x))
            y, rstd = norm_forward(x, weight, eps=eps)
            return y + len(runs), rstd

        outcome = judge_case(attrs.evolve(NORM, function=flipping), norm_case())

        assert outcome.cause is not None
        assert outcome.cause.key == "A-NONDETERMINISTIC-forward-y-finite"

    def test_kernel_that_raises_alone_is_rejected(self) -> None:
        """As in relation I, a run that raises alone condemns nobody."""

        def picky(*_: object, **__: object) -> object:
            raise ValueError("needs four tokens")

        outcome = judge_case(attrs.evolve(NORM, function=picky), norm_case())

        assert outcome.verdict is Verdict.VACUOUS
        assert outcome.rejected == "ValueError: needs four tokens"

    def test_zeros_show_nothing(self) -> None:
        """Where all that is compared is zero, no error could have shown."""
        case = Case(
            dtype="float32",
            dims={"K": 3, "N": 2},
            sequences=SEQUENCES,
            data={"x": Recipe(kind="zeros")},
            policy_state={"weight": Recipe(kind="normal", exponent=-1)},
            against=ACCURACY,
        )
        outcome = judge_case(GEMM, case)

        assert (outcome.verdict, outcome.classes) == (Verdict.VACUOUS, {"A": "unpowered"})
        assert "no error could have shown" in outcome.message

    def test_attention_is_judged_by_its_own_gradients(self) -> None:
        """Token gradients of attention, whose contexts are fed once, agree with the reference."""
        kernel = ATTENTION.kernels()[0]
        names = ("q", "k", "v", "dout", "dlse")
        case = Case(
            dtype="float32",
            dims={"HQ": 2, "HK": 1, "D": 8},
            judged="token_gradients",
            sequences=SEQUENCES,
            data={name: Recipe(kind="normal") for name in names},
            against=ACCURACY,
        )
        outcome = judge_case(kernel, case)

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.power is not None
        assert outcome.power.share == 1.0


class TestParity:
    """Verdicts of relation P."""

    def test_backends_that_agree_hold(self) -> None:
        """Two backends within the tolerance hold under the name of the pair."""
        outcome = judge_case(with_other(norm_forward), norm_case(PARITY))

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.classes == {"P other": "powered"}
        assert {fact.role for fact in outcome.facts} == {"canonical", "other"}

    def test_backends_apart_are_inaccurate(self) -> None:
        """The cause names the relation and the other backend."""
        outcome = judge_case(with_other(scaled(1.001).function), norm_case(PARITY))

        assert outcome.cause is not None
        assert outcome.cause.key == "P-other-INACCURATE-forward-y-finite"
        assert outcome.mismatches[0].other_dtype == ""
        assert outcome.mismatches[0].first.transformed_row == 2

    def test_other_backend_that_flips_or_raises_condemns_nobody(self) -> None:
        """A backend that is no yardstick makes the case vacuous."""
        runs: list[int] = []

        def flipping(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
            runs.append(len(x))
            y, rstd = norm_forward(x, weight, eps=eps)
            return y + len(runs), rstd

        def raising(*_: object, **__: object) -> object:
            raise ValueError("too small")

        flips = judge_case(with_other(flipping), norm_case(PARITY))
        raises = judge_case(with_other(raising), norm_case(PARITY))

        assert (flips.verdict, flips.cause) == (Verdict.VACUOUS, None)
        assert "no yardstick" in flips.message
        assert (raises.verdict, raises.rejected) == (
            Verdict.VACUOUS,
            "ValueError: too small (in the parity run)",
        )

    def test_judge_opens_the_other_backend_and_back(self) -> None:
        """Whether a backend is a yardstick is asked of a judge of its own, with its relatives."""
        other = InProcessJudge(with_other(norm_forward)).relative("other")

        assert other.reference.backend == "other"
        assert other.relative("torch").reference.backend == "torch"

    def test_unknown_backend_is_refused(self) -> None:
        """A case that names no relative of the kernel is illegal."""

        with pytest.raises(CaseError, match="another backend"):
            judge_case(attrs.evolve(NORM, relatives=()), norm_case(PARITY))


def probe_case(name: str) -> Case:
    """Return a probe of det_gemm."""
    plan = probes_for(GEMM.signature, op_class="reduction", restrictions=GEMM.restrictions)
    (probe,) = (probe for probe in plan.probes if probe.name == name)
    return attrs.evolve(probe.case, against=attrs.evolve(ACCURACY, probe=name))


class TestProbes:
    """Cases whose results are known."""

    def test_healthy_kernel_meets_a_probe(self) -> None:
        """A float32 sum of bfloat16 numbers is exact."""
        outcome = judge_case(GEMM, probe_case(ACCUMULATION))

        assert (outcome.verdict, outcome.classes) == (Verdict.HOLDS, {"probes": "powered"})

    def test_narrow_sum_is_inaccurate_and_named(self) -> None:
        """The cause says which probe failed, whatever a tolerance would leave room for."""

        def narrow(x: Tensor, weight: Tensor) -> Tensor:
            total = torch.zeros(len(x), len(weight), dtype=x.dtype)
            for start in range(0, x.shape[1], 64):
                total = total + x[:, start : start + 64] @ weight[:, start : start + 64].t()
            return total

        outcome = judge_case(attrs.evolve(GEMM, function=narrow), probe_case(ACCUMULATION))

        assert outcome.cause is not None
        assert outcome.cause.key == "A-INACCURATE-forward-y (bf16_accumulation)-finite"

    def test_reference_that_expects_otherwise_says_nothing(self) -> None:
        """A guess that the reference does not share condemns nobody."""

        def other(x: Tensor, weight: Tensor, *, reduce: object) -> Tensor:
            del reduce
            return (x.float() @ weight.float().t() * 2).to(x.dtype)

        outcome = judge_case(attrs.evolve(GEMM, reference=other), probe_case(ACCUMULATION))

        assert outcome.verdict is Verdict.VACUOUS
        assert "says nothing" in outcome.message

    def test_changed_probe_is_refused(self) -> None:
        """What is expected is known of the contract's own case only."""
        case = probe_case(ACCUMULATION)

        with pytest.raises(CaseError, match="is no probe 'bf16_accumulation'"):
            judge_case(GEMM, attrs.evolve(case, seed=7))


def searched(kernel: Kernel) -> tuple[Outcome, InProcessJudge, str]:
    """Search a cell of rms_norm; the outcome and the fixture of its only finding."""
    judge = InProcessJudge(kernel)
    space = space_for(
        judge.reference,
        judge.description,
        dtype="float32",
        direction="forward",
        contract=load_contract(),
    )
    report = search(judge, attrs.evolve(space, classes=("T1",)), max_examples=6)
    (finding,) = report.findings
    assert report.verdict is finding.outcome.verdict
    assert report.classes["T1"].powered
    assert report.classes["A"].examples == 6
    return finding.outcome, judge, fixture_text(finding.fixture)


def test_inaccurate_kernel_is_found_shrunk_and_replayed() -> None:
    """Found after invariance held, the smallest case replays, and is fixed by a healthy kernel."""
    outcome, judge, text = searched(scaled(1.001))
    fixture = fixture_from_data(parse_json(text))
    case = fixture.case

    assert outcome.verdict is Verdict.INACCURATE
    assert (case.dims, len(case.sequences), case.sequences[0].length) == ({"H": 1}, 1, 1)
    assert {recipe.kind for recipe in (*case.data.values(), *case.policy_state.values())} == {
        "ones"
    }
    assert case.against == ACCURACY
    assert fixture.proof.complete
    assert replay(fixture, lambda _: judge).status == "FAILED"
    assert replay(fixture, lambda _: InProcessJudge(NORM)).status == "FIXED"

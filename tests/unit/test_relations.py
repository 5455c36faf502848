"""Relation I in one process: verdicts, causes, first differences and repeats."""

import gc
import json
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from biprop.case import Case, TransformData, canonical_json
from biprop.data.recipe import Recipe
from biprop.errors import CaseError, OutputError, UnsupportedError
from biprop.judgment import Outcome, Verdict, outcome_from_data, outcome_to_data
from biprop.operators import Kernel
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.relations.messages import message_of
from biprop.relations.sharpening import has_nonfinite_fill, with_finite_fill
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature

ROW_WISE = "x[T,H] -> y[T,H]"
NEIGHBOURS = TransformData(name="AddNeighbours", values={"count": 3})


class _MuteError(Exception):
    """An exception that cannot say what it is about."""

    def __str__(self) -> str:
        """Say nothing."""
        raise RuntimeError("no text")


def kernel_of(function: Callable[..., object], signature: str = ROW_WISE) -> Kernel:
    """Return an unregistered kernel."""
    return Kernel(
        operator="test",
        target="test:test",
        signature=parse_signature(signature),
        function=function,
    )


def case_of(
    *transforms: TransformData,
    kind: str = "normal",
    lengths: tuple[int, ...] = (2, 1),
    width: int = 8,
) -> Case:
    """Return a float32 case of `x[T,H]`."""
    return Case(
        dtype="float32",
        dims={"H": width},
        sequences=tuple(
            LogicalSequence(id=place, length=length) for place, length in enumerate(lengths)
        ),
        data={"x": Recipe(kind=kind)},
        transforms=transforms,
    )


def judged(
    function: Callable[..., object],
    *transforms: TransformData,
    signature: str = ROW_WISE,
    options: JudgeOptions | None = None,
    kind: str = "normal",
) -> Outcome:
    """Judge a function on a case."""
    case = case_of(*transforms, kind=kind)
    return judge_invariance(kernel_of(function, signature), case, options=options or JudgeOptions())


def plus_one(x: Tensor) -> Tensor:
    """Return a healthy result."""
    return x + 1


def by_population(x: Tensor) -> Tensor:
    """Return another last column where more than two tokens share the launch."""
    y = x + 1
    if len(x) > 2:
        y[:, -1] += 0.5
    return y


def flipping(rate: float, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a kernel whose result is off by one bit in a share of its launches."""
    source = random.Random(seed)

    def kernel(x: Tensor) -> Tensor:
        y = x + 1
        if source.random() < rate:
            y[0, 0] += 1.0
        return y

    return kernel


class TestVerdicts:
    """What one case amounts to."""

    def test_healthy_kernel_holds(self) -> None:
        """A kernel that treats every token alike holds, and the outcome tells its evidence."""
        outcome = judged(plus_one, NEIGHBOURS)

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.cause is None
        assert outcome.classes == {"T1": "powered"}
        assert outcome.power is not None
        assert outcome.power.share > 0
        assert outcome.launches == 3
        assert set(outcome.seconds) == {"prepare", "launch", "compare", "power"}

    def test_kernel_that_depends_on_its_batch_drifts(self) -> None:
        """A difference between the configurations that both repeat is a drift of that output."""
        outcome = judged(by_population, NEIGHBOURS)

        assert outcome.verdict is Verdict.DRIFTS
        assert outcome.cause is not None
        assert outcome.cause.key == "I-DRIFTS-forward-y-finite"
        assert outcome.repeats == JudgeOptions().repeats
        assert outcome.classes == {"T1": "powered"}

    def test_first_difference_is_told_exactly(self) -> None:
        """The first difference in logical order has its token, rows, values and bits."""
        front = TransformData(name="PlaceWatched", values={"before": 3})
        outcome = judged(by_population, NEIGHBOURS, front, kind="zeros")
        (mismatch,) = outcome.mismatches
        first = mismatch.first

        assert (mismatch.elements, mismatch.elements_compared) == (3, 24)
        assert (mismatch.tokens, mismatch.tokens_compared) == (3, 3)
        assert mismatch.max_abs_error == 0.5
        assert (first.sequence_id, first.token, first.coordinate) == (0, 0, (7,))
        assert first.canonical_row == 0
        # Neighbours repeat the lengths 2, 1, 2 and lie before the watched tokens.
        assert (first.transformed_row, first.transformed_launch) == (5, 0)
        assert (first.canonical_bits, first.transformed_bits) == ("0x3f800000", "0x3fc00000")
        assert (first.canonical_value, first.transformed_value) == ("1.0", "1.5")

    @pytest.mark.parametrize("shift", [1.0, float("nan"), float("inf")])
    def test_errors_that_json_has_not_are_left_out(self, shift: float) -> None:
        """Beside a canonical zero, and against NaN or infinity, the record stays JSON."""

        def shifted(x: Tensor) -> Tensor:
            return x * 0 + (shift if len(x) > 5 else 0.0)

        outcome = judged(shifted, NEIGHBOURS, kind="zeros")
        (mismatch,) = outcome.mismatches

        assert mismatch.max_rel_error is None
        assert mismatch.max_abs_error == (1.0 if shift == 1.0 else None)
        assert outcome_from_data(json.loads(canonical_json(outcome_to_data(outcome)))) == outcome

    def test_changed_dead_slots_drift_under_their_own_name(self) -> None:
        """A kernel that writes into dead slots of its argument drifts although its tokens hold."""

        def in_place(x: Tensor, _: Tensor) -> None:
            x += 1

        padding = TransformData(name="PadSlots", values={"amount": 2, "side": "right"})
        outcome = judged(in_place, padding, signature="x![T,H], offsets: offsets[B+1] ->")

        assert outcome.cause is not None
        assert outcome.cause.output == "x (dead slots)"

    def test_rejected_where_the_canonical_run_raises(self) -> None:
        """A canonical run that raises condemns nobody: the case is rejected with the message."""

        def picky(x: Tensor) -> Tensor:
            if len(x) < 3:
                raise ValueError("needs three\ntokens.")
            return x + 1

        outcome = judged(picky, NEIGHBOURS)

        assert outcome.verdict is Verdict.VACUOUS
        assert outcome.rejected == "ValueError: needs three tokens"

    @pytest.mark.parametrize(
        "error", [RuntimeError("unsupported"), SystemExit(3), MemoryError(), _MuteError()]
    )
    def test_transformed_run_that_raises_crashes(self, error: BaseException) -> None:
        """Whatever only the transformed run raises is a crash; no text of it means unsupported."""

        def fragile(x: Tensor) -> Tensor:
            if len(x) > 2:
                raise error
            return x + 1

        outcome = judged(fragile, NEIGHBOURS)

        assert outcome.verdict is Verdict.CRASHES
        assert outcome.cause is not None
        assert outcome.cause.key == "I-CRASHES-forward-launch-finite"
        assert outcome.message == message_of(error)

    def test_wrong_output_of_the_transformed_run_alone_crashes(self) -> None:
        """A target whose output is wrong only in the transformed configuration crashes there."""
        outcome = judged(lambda x: (x + 1)[:2], NEIGHBOURS)

        assert outcome.verdict is Verdict.CRASHES
        assert "Output 'y' has shape [2, 8]" in outcome.message

    def test_wrong_output_of_the_canonical_run_is_an_error(self) -> None:
        """A target that never returns what its signature says is wrong use, not a verdict."""

        with pytest.raises(OutputError, match="Output 'y' has dtype float64"):
            judged(lambda x: x.double(), NEIGHBOURS)

    def test_unsupported_is_what_the_operator_says(self) -> None:
        """Only the operator's own declaration makes a case unsupported, on either side."""

        def declines(x: Tensor) -> Tensor:
            if len(x) > 2:
                raise UnsupportedError("At most two tokens.")
            return x + 1

        outcome = judged(declines, NEIGHBOURS)

        assert outcome.verdict is Verdict.UNSUPPORTED
        assert outcome.message == "At most two tokens."

    def test_illegal_case_is_refused(self) -> None:
        """A case that is illegal for the kernel is not run."""
        rows = TransformData(name="AddDeadRows", values={"count": 1})

        with pytest.raises(CaseError, match="AddDeadRows"):
            judged(plus_one, rows)

    def test_stages_are_told_before_they_begin(self) -> None:
        """Whoever supervises knows what was running when nothing came back."""
        stages: list[str] = []
        judge_invariance(
            kernel_of(plus_one),
            case_of(NEIGHBOURS),
            on_stage=lambda stage, _: stages.append(stage),
        )

        assert stages == ["prepare", "canonical", "transformed", "power"]


class TestEvidence:
    """When equal bits are no evidence."""

    def test_no_transform_is_vacuous(self) -> None:
        """A case without transforms changes nothing."""
        outcome = judged(plus_one)

        assert outcome.verdict is Verdict.VACUOUS
        assert "unchanged" in outcome.message

    def test_transform_without_effect_is_vacuous(self) -> None:
        """A class whose removal leaves the call as it is counts as vacuous beside others."""
        content = TransformData(name="ReplaceNeighbours", values={"loudness": 3})
        alone = TransformData(name="AddNeighbours", values={"count": 0})

        assert judged(plus_one, alone, content).classes == {"T1": "powered", "T3": "vacuous"}
        assert judged(plus_one, content).verdict is Verdict.VACUOUS

    def test_data_without_power_is_vacuous(self) -> None:
        """Zeros would show no defect, so that equal bits of zeros show nothing."""
        outcome = judged(plus_one, NEIGHBOURS, kind="zeros")

        assert outcome.verdict is Verdict.VACUOUS
        assert "no order power" in outcome.message
        assert outcome.classes == {"T1": "unpowered"}

    def test_without_measuring_equal_bits_hold(self) -> None:
        """Shrinking asks for no evidence, and gets none."""
        outcome = judged(plus_one, NEIGHBOURS, kind="zeros", options=JudgeOptions(measure=False))

        assert outcome.verdict is Verdict.HOLDS
        assert outcome.power is None
        assert outcome.classes == {}


class TestFiniteness:
    """Non-finite fills as a cause of their own."""

    NAN = TransformData(name="PadSlots", values={"amount": 2, "side": "right", "fill": "nan"})

    def test_masking_by_multiplication_is_a_nonfinite_cause(self) -> None:
        """What fails with NaN in dead slots, and holds with numbers there, is non-finite."""
        outcome = judged(lambda x: x + 0.0 * x.sum(dim=0), self.NAN)

        assert outcome.cause is not None
        assert outcome.cause.key == "I-DRIFTS-forward-y-nonfinite"

    def test_what_fails_with_numbers_too_is_finite(self) -> None:
        """A kernel that drifts whatever the fill has a finite cause."""
        outcome = judged(by_population, self.NAN, kind="normal")

        assert outcome.cause is not None
        assert outcome.cause.finite

    def test_crash_on_nan_alone_is_nonfinite(self) -> None:
        """An exception that only NaN provokes is a non-finite cause as well."""

        def refuses_nan(x: Tensor) -> Tensor:
            if bool(x.isnan().any()):
                raise ValueError("NaN")
            return x + 1

        outcome = judged(refuses_nan, self.NAN)

        assert outcome.cause is not None
        assert outcome.cause.key == "I-CRASHES-forward-launch-nonfinite"

    def test_crash_whatever_the_fill_is_finite(self) -> None:
        """An exception that numbers provoke as well is a finite cause."""

        def refuses_four(x: Tensor) -> Tensor:
            if len(x) > 3:
                raise ValueError("four")
            return x + 1

        outcome = judged(refuses_four, self.NAN)

        assert outcome.cause is not None
        assert outcome.cause.key == "I-CRASHES-forward-launch-finite"

    def test_milder_case_differs_in_its_fills_alone(self) -> None:
        """Only fills that are not finite are replaced."""
        case = case_of(NEIGHBOURS, self.NAN)
        milder = with_finite_fill(case, "large")

        assert has_nonfinite_fill(case)
        assert not has_nonfinite_fill(milder)
        assert milder.transforms[0] == NEIGHBOURS
        assert milder.transforms[1].values == {**self.NAN.values, "fill": "large"}


class TestRepeats:
    """Kernels that differ from run to run."""

    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
    def test_flipping_kernel_never_drifts(self, rate: float) -> None:
        """A kernel that flips at random is found to be nondeterministic, never to drift."""
        outcomes = [judged(flipping(rate, seed), NEIGHBOURS) for seed in range(60)]
        verdicts = {outcome.verdict for outcome in outcomes}
        rates = [outcome.rate for outcome in outcomes if outcome.rate is not None]

        assert verdicts <= {Verdict.HOLDS, Verdict.NONDETERMINISTIC}
        assert Verdict.NONDETERMINISTIC in verdicts
        # A canonical run has two launches, either of which may flip.
        assert rate / 4 < sum(rates) / len(rates) < min(1.0, 4 * rate)
        assert all(
            outcome.cause.key == "I-NONDETERMINISTIC-forward-y-finite"
            for outcome in outcomes
            if outcome.cause is not None
        )

    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
    def test_known_rate_finds_what_one_run_misses(self, rate: float) -> None:
        """With the rate at hand a case is repeated until a flip would have shown, equal or not."""
        options = JudgeOptions(rate=rate)
        found = [
            judged(flipping(rate, seed), NEIGHBOURS, options=options).verdict for seed in range(20)
        ]

        assert found.count(Verdict.NONDETERMINISTIC) >= 19

    def test_canonical_side_is_run_twice_when_asked(self) -> None:
        """A kernel that flips only where nothing is compared is found by running it twice."""

        def make() -> Callable[[Tensor], Tensor]:
            seen = []

            def warming_up(x: Tensor) -> Tensor:
                seen.append(len(x))
                # The second canonical pair of launches differs from the first.
                return x + (1.0 if len(seen) <= 3 else 2.0)

            return warming_up

        twice = JudgeOptions(repeat_canonical=True)

        assert judged(make(), NEIGHBOURS).verdict is Verdict.HOLDS
        outcome = judged(make(), NEIGHBOURS, options=twice)
        assert outcome.verdict is Verdict.NONDETERMINISTIC
        assert "canonical" in outcome.message

    def test_raise_in_a_repeat_crashes(self) -> None:
        """A side that raises when it is run again has crashed, and the message says where."""
        seen = []

        def tired(x: Tensor) -> Tensor:
            seen.append(len(x))
            if len(seen) > 3:
                raise RuntimeError("tired")
            return by_population(x)

        outcome = judged(tired, NEIGHBOURS)

        assert outcome.verdict is Verdict.CRASHES
        assert outcome.message == "RuntimeError: tired (in a repeat of the canonical run)"

    @pytest.mark.parametrize(
        ("rate", "repeats"), [(None, 5), (1.0, 5), (0.9, 5), (0.5, 7), (0.1, 44), (0.02, 200)]
    )
    def test_repeats_follow_the_rate(self, rate: float | None, repeats: int) -> None:
        """As many runs as leave one chance in a hundred, between the limits."""

        assert JudgeOptions(rate=rate).repeats == repeats

    def test_options_cover_what_asks_for_less(self) -> None:
        """An outcome answers options that ask for no more than it rests on."""
        plain, thorough = JudgeOptions(), JudgeOptions(repeat_canonical=True, rate=0.1)

        assert thorough.covers(plain)
        assert not plain.covers(thorough)
        assert not JudgeOptions(measure=False).covers(plain)
        assert not JudgeOptions(rate=0.5).covers(JudgeOptions(rate=0.1))


class TestMemory:
    """What stays alive after a judgement."""

    def test_raising_frames_hold_no_tensors(self) -> None:
        """An error that is kept, as Hypothesis keeps it, keeps no tensor of the case alive."""
        kernel, case = kernel_of(lambda x: x.double()), case_of(NEIGHBOURS)
        gc.collect()
        before = _tensor_count()
        with pytest.raises(OutputError) as caught:
            judge_invariance(kernel, case)
        gc.collect()

        assert caught.value.__traceback__ is not None
        assert caught.value.__context__ is None
        assert _tensor_count() == before


def _tensor_count() -> int:
    # By type: isinstance would wake lazy objects of other libraries.
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

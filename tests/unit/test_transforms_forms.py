"""UseForm: the same tokens through another form of an operator, and what only that shows."""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.execution_cases import SEQUENCES, Recorder, both, case_of, differing, tensors
from tests.unit.kernel_trials import BACKENDS, DEVICE, RMS_NORM
from tests.unit.registered_trials import kernel_of, replayed, searched, space_of
from torch import Tensor

from biprop.case import Case, Dtype, Judged
from biprop.errors import TargetError
from biprop.generation import RandomDraw, applicability, draw_case, illegal, illegal_in
from biprop.generation.forms import fault_of_form, shared_outputs
from biprop.generation.legal import legal_for
from biprop.generation.space import Direction
from biprop.judgment import Verdict
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.minimize.cost import cost
from biprop.operators import Form, Implementation, InvarianceDeclaration, Operator
from biprop.relations.evidence import class_evidence
from biprop.sequence import LogicalSequence
from biprop.signature import parse_backward, parse_signature
from biprop.signature.forms import FormSignatures
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PadSlots,
    SplitBatch,
    Transform,
    UseForm,
    transforms_of,
)

PACKED = "x[T,H], weight[H] -> y[T,H], rest: float32[T]"
PADDED = "x[B,S,H], mask: mask[B,S], weight[H] -> y[B,S,H]"
RAGGED = "x[T,H], offsets: offsets[B+1], weight[H] -> y[T,H]"
BLIND = "x[B,S,H], weight[H] -> y[B,S,H]"
PACKED_BACKWARD = (
    "dy[T,H], x[T,H], weight[H], offsets: offsets[B+1], order: order[T], "
    "dweight!: float32[H] -> dx[T,H]"
)
PADDED_BACKWARD = (
    "dy[B,S,H], x[B,S,H], weight[H], offsets: offsets[B+1], order: order[B,S], "
    "dweight!: float32[H] -> dx[B,S,H]"
)


def scaled(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scale packed tokens."""
    return x * weight, x[:, 0].float()


def scaled_rows(x: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Scale padded rows; the mask is not needed."""
    del mask
    return x * weight


def scaled_wrongly(x: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Scale padded rows, the first slot of each by the weight's magnitude."""
    y = scaled_rows(x, mask, weight)
    y[:, 0] = x[:, 0] * weight.abs()
    return y


def gradients(dy: Tensor, x: Tensor, weight: Tensor, *sequences: Tensor) -> Tensor:
    """Differentiate in either form, tokens in logical order."""
    offsets, order, dweight = sequences
    width = x.shape[-1]
    live = order.flatten()[: int(offsets[-1])].long()
    for slot in live.tolist():
        dweight += dy.reshape(-1, width)[slot].float() * x.reshape(-1, width)[slot].float()
    return dy * weight


def form_of(
    name: str,
    text: str,
    function: Callable[..., object],
    *,
    backward_text: str = "",
) -> Form:
    """Return a form with one backend."""
    signature = parse_signature(text)
    has_backward = bool(backward_text)
    return Form(
        name=name,
        signature=signature,
        backward_signature=parse_backward(backward_text, signature) if has_backward else None,
        implementations=(
            Implementation(
                backend="torch",
                forward=function,
                backward=gradients if has_backward else None,
            ),
        ),
    )


def operator_of(*forms: Form) -> Operator:
    """Return an operator that promises all classes."""
    classes = ("T1", "T2", "T3", "T4", "T5", "T6", "T8")
    return Operator(
        name="scale",
        op_class="elementwise",
        forms=forms,
        declaration=InvarianceDeclaration(transforms=classes, parameter_gradients=classes),
    )


SCALE = operator_of(
    form_of("packed", PACKED, scaled, backward_text=PACKED_BACKWARD),
    form_of("padded", PADDED, scaled_rows, backward_text=PADDED_BACKWARD),
)
USE = UseForm(form="padded")


def with_padded(function: Callable[..., object]) -> Operator:
    """Return the operator with another function in its padded form."""
    padded = form_of("padded", PADDED, function, backward_text=PADDED_BACKWARD)
    return operator_of(SCALE.forms[0], padded)


class TestRun:
    """The transformed run calls the other form with the same values."""

    def test_only_the_transformed_run_calls_the_other_form(self) -> None:
        """It is handed the same tokens, laid out as its own signature says."""

        own, other = Recorder(scaled), Recorder(scaled_rows)
        operator = operator_of(form_of("packed", PACKED, own), form_of("padded", PADDED, other))
        both(kernel_of(operator), AddNeighbours(), USE, PadSlots(side="left", amount=1))
        assert (len(own.calls), len(other.calls)) == (2, 1)
        (first, weight), (second, _) = (tensors(call) for call in own.calls)
        rows, mask, same_weight = tensors(other.calls[0])
        assert mask.tolist() == [[False, True, True, True], [False, False, True, True]]
        assert torch.cat([first, second]).tolist() == rows[mask].tolist()
        assert same_weight.tolist() == weight.tolist()

    def test_outputs_that_only_one_form_has_are_not_compared(self) -> None:
        """What both have is, by name; the canonical run keeps what is its own."""

        canonical, transformed = both(kernel_of(SCALE), AddNeighbours(count=2), USE)
        assert set(canonical.outputs) == {"y", "rest"}
        assert differing(canonical, transformed) == {"y": 0}

    def test_an_output_over_sequences_is_no_output_over_tokens(self) -> None:
        """The same name is not enough: rows of another kind cannot be compared."""

        whole = FormSignatures(signature=parse_signature("x[T,H] -> y[T,H], total[T]"))
        apart = FormSignatures(
            signature=parse_signature("x[B,S,H], mask: mask[B,S] -> y[B,S,H], total[B]")
        )
        assert shared_outputs(whole, apart, "outputs") == ("y",)

    @pytest.mark.parametrize("judged", ["token_gradients", "parameter_gradients"])
    @pytest.mark.parametrize("form", ["packed", "padded"])
    def test_gradients_go_through_the_other_backward(self, form: str, judged: Judged) -> None:
        """Token gradients by token, those of parameters through the same accumulator."""

        (other,) = {"packed", "padded"} - {form}
        runs = both(
            kernel_of(SCALE, form=form),
            *(UseForm(form=other), SplitBatch(cuts=(1,)), PadSlots(amount=2, fill="nan")),
            judged=judged,
        )
        name = "dx" if judged == "token_gradients" else "dweight"
        assert differing(*runs) == {name: 0}
        assert bool(runs[0].outputs[name].abs().min() > 0)

    def test_attention_is_cut_as_the_other_form_is(self) -> None:
        """Queries and contexts of both forms, each chunk a launch, give the same bits."""

        for form, other in (("packed", "padded"), ("padded", "packed")):
            runs = both(
                kernel_of(ATTENTION, form=form),
                *(AddNeighbours(count=1), UseForm(form=other), SplitBatch(cuts=(2,))),
                judged="token_gradients",
            )
            assert differing(*runs) == {"dq": 0, "dk": 0, "dv": 0}

    def test_an_unknown_form_is_refused(self) -> None:
        """Whoever runs such a case all the same is told what there is."""

        with pytest.raises(TargetError, match="has no form 'indexed' with backend 'torch'"):
            both(kernel_of(SCALE), UseForm(form="indexed"))

    def test_a_form_has_a_name(self) -> None:
        """A stranger's word ends up in messages."""

        with pytest.raises(ValueError, match="is no name"):
            UseForm(form="../x")


class TestLegal:
    """What a case with another form may be."""

    @pytest.mark.parametrize(
        ("transforms", "reason"),
        [
            ((USE,), ""),
            ((USE, AddNeighbours(count=2), AddDeadRows(fill="nan")), ""),
            ((USE, PadSlots(side="left", fill="inf"), MoveStorage(offset=1)), ""),
            ((USE, GatherActive()), "a launch needs every token of its sequences"),
            ((AddDeadRows(),), "nothing makes rows of tokens"),
            ((UseForm(form="indexed"),), "no other form 'indexed' under its backend"),
        ],
    )
    def test_the_other_form_decides(self, transforms: tuple[Transform, ...], reason: str) -> None:
        """Dead rows are legal in padded rows and no gathering is, whatever the case's own form."""

        kernel = kernel_of(SCALE)
        found = legal_for(kernel)(case_of(kernel, *transforms))
        assert reason in found if reason else found == ""

    def test_rows_that_nothing_tells_must_be_equally_long(self) -> None:
        """Else a healthy kernel would be condemned for dead slots that it cannot see."""

        operator = operator_of(
            form_of("packed", PACKED, scaled), form_of("blind", BLIND, lambda x, w: x * w)
        )
        kernel, use = kernel_of(operator), UseForm(form="blind")
        ragged = case_of(kernel, AddNeighbours(), use)
        even = case_of(kernel, AddNeighbours(), use, sequences=_even())
        legal = legal_for(kernel)
        assert "Sequences differ in length" in legal(ragged)
        assert legal(even) == ""

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("x[B,S,H], mask: mask[B,S], bias[H] -> y[B,S,H]", "its argument 'bias' has no values"),
            ("x[B,S,2*H], mask: mask[B,S] -> y[B,S,H]", "its argument 'x' has no values"),
            ("x[B,S,H], mask: mask[B,S] -> z[B,S,H]", "nothing that could be compared"),
            ("x[B,Q,H], m: causal_mask[B,Q,C], k[B,C,H] -> y[B,Q,H]", "queries and contexts"),
        ],
    )
    def test_forms_of_other_values_or_outputs_cannot_stand_in(self, text: str, reason: str) -> None:
        """The reason is said."""

        own, other = (
            FormSignatures(signature=parse_signature(item.replace("2*H", "H*2")))
            for item in (PACKED, text)
        )
        assert reason in fault_of_form(own, other, "outputs")

    def test_both_forms_have_a_backward_of_one_kind(self) -> None:
        """Autograd beside a registered backward would compare gradients of other dtypes."""

        kernel = kernel_of(SCALE)
        own = FormSignatures(
            signature=kernel.signature, backward_signature=kernel.backward_signature
        )
        bare = FormSignatures(signature=parse_signature(PADDED))
        assert fault_of_form(own, bare, "outputs") == ""
        assert "a backward of its own" in fault_of_form(own, bare, "token_gradients")

    def test_upstream_gradients_are_the_same_ones(self) -> None:
        """A gradient that flows into one form only would make the other one wrong."""

        own, other = (
            FormSignatures(
                signature=parse_signature(text),
                backward_signature=parse_backward(backward, parse_signature(text)),
            )
            for text, backward in (
                ("x[T,H] -> y[T,H], rest[T]", "dy[T,H], drest[T], x[T,H] -> dx[T,H]"),
                ("x[T,H], m: mask[T] -> y[T,H], rest[T]", "dy[T,H], x[T,H] -> dx[T,H]"),
            )
        )
        assert "'drest' is taken by only one" in fault_of_form(own, other, "token_gradients")

    def test_only_registered_operators_have_forms(self) -> None:
        """A stranger's case cannot name what nobody registered."""

        kernel = kernel_of(SCALE)
        case = case_of(kernel, USE)
        found = illegal(kernel.signature, case)
        assert "only a registered operator has other forms" in found
        # Before the registry is asked, the form is taken for what the case says.
        assert illegal(kernel.signature, case, registered=True) == ""

    def test_a_form_is_declared_as_its_class_is(self) -> None:
        """An operator that does not promise T6 promises no form."""

        declaration = InvarianceDeclaration(transforms=("T1",))
        kernel = kernel_of(attrs.evolve(SCALE, declaration=declaration))
        found = legal_for(kernel)(case_of(kernel, USE))
        assert "the operator does not declare it" in found

    def test_t6_applies_through_a_form_alone(self) -> None:
        """Whole rows cannot be gathered, and can be packed."""

        kernel = kernel_of(SCALE, form="padded")
        bare = applicability(kernel.signature, registered=True)
        helped = applicability(kernel.signature, registered=True, forms=kernel.forms)
        assert bare["T6"] == "a launch needs every token of its sequences"
        assert helped["T6"] == ""


class TestEvidence:
    """What such a case shows."""

    def test_another_form_is_another_call(self) -> None:
        """Even where slots lie as before, and where the own form could not be launched so."""

        kernel = kernel_of(SCALE)
        for transforms in ((USE,), (USE, AddDeadRows())):
            shown = class_evidence(kernel, case_of(kernel, *transforms), powered=True)
            assert set(shown.values()) == {"powered"}

    def test_slots_are_those_of_the_form(self) -> None:
        """The declared cost counts dead slots that only padded rows have."""

        kernel = kernel_of(SCALE)
        case = case_of(kernel, AddNeighbours(), USE)
        found = cost(kernel.signature, case, forms=kernel.forms)
        assert (found.slots, found.dead_slots, found.transforms) == (6, 1, 1)


class TestGeneration:
    """Cases that are drawn."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("form", ["packed", "padded"])
    @pytest.mark.parametrize("operator", [RMS_NORM, ATTENTION], ids=lambda entry: entry.name)
    def test_drawn_cases_are_legal(
        self, operator: Operator, form: str, direction: Direction
    ) -> None:
        """Every one of them, and many use the other form beside other transforms."""

        space = space_of(kernel_of(operator, form=form), direction=direction)
        cases = [draw_case(RandomDraw(seed), space) for seed in range(120)]
        assert {illegal_in(space, case) for case in cases} == {""}
        used = [case for case in cases if _uses_form(case)]
        assert len(used) > 8
        assert {item.transform_class for case in used for item in transforms_of(case)} >= {
            *("T1", "T2", "T3", "T4", "T5", "T6", "T8")
        } - ({"T1", "T3"} if direction == "backward" and operator is RMS_NORM else set())

    def test_a_form_that_cannot_take_the_tokens_is_not_drawn(self) -> None:
        """Ragged sequences go to no rows that nothing tells dead slots of."""

        operator = operator_of(
            form_of("packed", PACKED, scaled), form_of("blind", BLIND, lambda x, w: x * w)
        )
        space = space_of(kernel_of(operator))
        cases = [draw_case(RandomDraw(seed), space) for seed in range(150)]
        assert {illegal_in(space, case) for case in cases} == {""}
        assert any(map(_uses_form, cases))


class TestSearch:
    """Cells of kernels with several forms."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_form_that_disagrees_is_found_by_it_alone(self, dtype: Dtype) -> None:
        """No other class fails; the fixture is one token in the other form, and replays."""

        kernel = kernel_of(with_padded(scaled_wrongly))
        report = searched(kernel, dtype=dtype, examples=24)
        (finding,) = report.findings
        fixture = finding.fixture
        assert report.verdict is Verdict.DRIFTS
        assert fixture.expect.cause.transforms == ("T6",)
        assert transforms_of(fixture.case) == (USE,)
        assert [sequence.length for sequence in fixture.case.sequences] == [1]
        assert fixture.case.dims == {"H": 1}
        again = replayed(kernel, fixture)
        assert (again.status, again.refuted) == ("FAILED", 0)
        assert replayed(kernel_of(SCALE), fixture).status == "FIXED"

    def test_a_fixture_of_another_form_needs_it(self) -> None:
        """An operator that has lost the form says so."""

        kernel = kernel_of(with_padded(scaled_wrongly))
        (finding,) = searched(kernel, transforms=["T6"], examples=10).findings
        lonely = kernel_of(operator_of(SCALE.forms[0]))
        again = replayed(lonely, finding.fixture)
        assert (again.status, "no other form 'padded'" in again.message) == ("ERROR", True)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("form", ["packed", "padded"])
    def test_a_healthy_operator_holds_in_every_form(
        self, form: str, backend: str, dtype: Dtype
    ) -> None:
        """Attention, with powered examples of T6, which only its forms can show."""

        kernel = kernel_of(ATTENTION, form=form, backend=backend)
        examples = 2 if backend == "triton" and DEVICE.type == "cpu" else 8
        report = searched(kernel, dtype=dtype, transforms=["T6"], examples=examples)
        assert (report.verdict, report.findings) == (Verdict.HOLDS, ())
        assert report.classes["T6"].powered


def _even() -> tuple[LogicalSequence, ...]:
    return tuple(attrs.evolve(sequence, length=3, prompt_length=0) for sequence in SEQUENCES)


def _uses_form(case: Case) -> bool:
    return any(isinstance(item, UseForm) for item in transforms_of(case))

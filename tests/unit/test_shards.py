"""Shards: a product of 2, 4 or 8 ranks has the bits of one, and is found out where it has not."""

import json

import attrs
import jsonschema
import pytest
import torch
from tests.unit.execution_cases import both, case_of, differing
from tests.unit.execution_cases import kernel_of as plain_kernel
from tests.unit.kernel_trials import (
    BACKENDS,
    DET_GEMM,
    DEVICE,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    tensors_of,
    wide,
)
from tests.unit.registered_trials import kernel_of, replayed, searched
from torch import Tensor

from biprop.case import Dtype, Judged
from biprop.errors import UsageError
from biprop.generation import CLASSES, applicability, wanted_classes
from biprop.generation.legal import legal_for
from biprop.judgment import Verdict
from biprop.kernels import det_gemm
from biprop.kernels.lm_head import OPERATOR as LM_HEAD
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.operators import Implementation, Operator
from biprop.reports.drift import drift_lines, drift_records, drift_schema
from biprop.signature import parse_signature
from biprop.transforms import AddNeighbours, Shards, transforms_of

RANKS = (2, 4, 8)
each_depth = pytest.mark.parametrize("depth", [1, 3, 8, 37, 130])


def product(backend: str, x: Tensor, weight: Tensor, *, shards: int) -> Tensor:
    """Multiply with some ranks."""
    (y,) = tensors_of(backend_of(DET_GEMM, backend).forward(x, weight, shards=shards))
    return y


def operands(depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows and a weight whose sums show any change of order."""
    return wide(19, depth, dtype=dtype), wide(21, depth, dtype=dtype, seed=1)


class TestTree:
    """The sum over K is one tree, whoever adds it."""

    @each_depth
    @each_dtype
    @each_backend
    def test_ranks_change_no_bit(self, backend: str, dtype: torch.dtype, depth: int) -> None:
        """Two, four and eight ranks give what one gives, with pieces that lack terms too."""

        x, weight = operands(depth, dtype)
        whole = product(backend, x, weight, shards=1)
        for count in RANKS:
            assert all_same(product(backend, x, weight, shards=count), whole), count

    @each_backend
    def test_another_order_of_ranks_is_seen(self, backend: str) -> None:
        """The data would show it: partial products added in turn give other bits."""

        x, weight = operands(130, torch.float32)
        depth = -(-130 // 8)
        partials = [
            # What one rank computes, since one rank alone has no other to be added to.
            product(backend, _only(x, start, start + depth), weight, shards=1)
            for start in range(0, 130, depth)
        ]
        in_turn = partials[0]
        for partial in partials[1:]:
            in_turn = in_turn + partial
        whole = product(backend, x, weight, shards=1)
        pairs = [low + high for low, high in zip(partials[::2], partials[1::2], strict=True)]
        assert all_same((pairs[0] + pairs[1]) + (pairs[2] + pairs[3]), whole)
        assert not all_same(in_turn, whole)

    @each_backend
    def test_storage_of_a_shard_changes_no_bit(self, backend: str) -> None:
        """Ranks may cut their parts out of views of anything."""

        x, weight = operands(37, torch.float32)
        whole = product(backend, x, weight, shards=4)
        spread = torch.full((*x.shape, 2), 3.0, device=DEVICE)
        spread[..., 0] = x
        assert all_same(
            product(backend, spread[..., 0], weight.t().contiguous().t(), shards=4), whole
        )

    @each_backend
    def test_a_launch_without_tokens_has_no_rows(self, backend: str) -> None:
        """Whatever the ranks, and without an error."""

        empty = torch.zeros(0, 5, device=DEVICE)
        assert product(backend, empty, torch.ones(3, 5, device=DEVICE), shards=2).shape == (0, 3)

    @each_backend
    @pytest.mark.parametrize("count", [0, 3, 16])
    def test_ranks_that_hold_no_subtree_are_refused(self, backend: str, count: int) -> None:
        """Their sums would meet in another order, or not at all."""

        with pytest.raises(UsageError, match=f"shards={count}: give 1, 2, 4 or 8 ranks"):
            product(backend, *operands(8, torch.float32), shards=count)

    @each_dtype
    def test_a_compiled_program_adds_the_same_tree(
        self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One piece after the other, as on a GPU, gives the bits of all pieces at once."""

        # Both read TRITON_INTERPRET, or import what does.
        from biprop.kernels import det_gemm_triton  # noqa: PLC0415
        from biprop.kernels.interpreting import launch  # noqa: PLC0415

        x, weight = operands(130, dtype)

        def one_by_one(kernel: object, *arguments: object, **options: object) -> None:
            constants = options["constants"]
            assert isinstance(constants, dict)
            told = constants | ({"L": 1} if "L" in constants else {})
            launch(kernel, *arguments, **{**options, "constants": told})  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(det_gemm_triton, "launch", one_by_one)
        found = [det_gemm_triton.forward(x, weight, shards=count) for count in (1, 4)]
        monkeypatch.undo()
        at_once = det_gemm_triton.forward(x, weight)
        assert [all_same(item, at_once) for item in found] == [True, True]

    @each_dtype
    @each_backend
    def test_the_output_layer_is_the_same_product(self, backend: str, dtype: torch.dtype) -> None:
        """Its logits have the bits of det_gemm, in shards too."""

        hidden, weight = operands(37, dtype)
        forward = backend_of(LM_HEAD, backend).forward
        for count in (1, 4):
            (logits,) = tensors_of(forward(hidden, weight, shards=count))
            assert all_same(logits, product(backend, hidden, weight, shards=1))


class TestTransform:
    """What the transform does to a run, and to nothing else."""

    def test_the_transformed_run_is_told_the_ranks(self) -> None:
        """By keyword, beside the fixed ones; the canonical run hears nothing."""

        told: list[dict[str, object]] = []

        def scaled(x: Tensor, weight: Tensor, **call: object) -> Tensor:
            told.append(call)
            return x * weight

        kernel = plain_kernel(
            scaled, "x[T,H], weight[H] -> y[T,H]", takes_shards=True, call={"eps": 0.5}
        )
        runs = both(kernel, AddNeighbours(), Shards(count=4))
        assert told == [{"eps": 0.5}, {"eps": 0.5}, {"eps": 0.5, "shards": 4}]
        assert differing(*runs) == {"y": 0}

    @pytest.mark.parametrize(
        ("judged", "takes", "reason"),
        [
            ("outputs", True, ""),
            ("outputs", False, "the kernel takes no shards"),
            ("token_gradients", True, "only the forward is computed in shards"),
            ("parameter_gradients", True, "only the forward is computed in shards"),
        ],
    )
    def test_it_applies_where_a_forward_takes_it(
        self, judged: Judged, *, takes: bool, reason: str
    ) -> None:
        """Everywhere else the reason is said, and a case with it is refused."""

        signature = parse_signature("x[T,H], weight[H] -> y[T,H]")
        assert applicability(signature, judged=judged, takes_shards=takes)["shards"] == reason
        kernel = plain_kernel(lambda x, _: x, signature.text, takes_shards=takes)
        found = legal_for(kernel)(case_of(kernel, Shards(), judged=judged))
        assert found == (f"Shards (shards) is not possible: {reason}." if reason else "")

    def test_what_is_not_declared_does_not_apply(self) -> None:
        """As any other class."""

        kernel = kernel_of(DET_GEMM)
        assert kernel.declaration is not None
        classes = tuple(name for name in kernel.declaration.transforms if name != "shards")
        less = attrs.evolve(
            kernel, declaration=attrs.evolve(kernel.declaration, transforms=classes)
        )
        case = case_of(kernel, Shards())
        assert legal_for(kernel)(case) == ""
        assert "the operator does not declare it" in legal_for(less)(case)

    def test_its_class_is_the_last_one(self) -> None:
        """It is asked for by its name, and stands after T8 wherever classes stand."""

        assert CLASSES[-2:] == ("T8", "shards")
        assert wanted_classes(["shards"]) == ("shards",)


def in_turn(x: Tensor, weight: Tensor, *, shards: int = 1) -> Tensor:
    """Add the partial products of ranks from the first to the last."""
    cut = det_gemm._Cut.of(x.device, x.shape[1], len(weight), shards=shards)
    held = cut.pieces * cut.piece
    total = torch.zeros((), device=x.device)
    for start in range(0, shards * held, held):
        own = slice(start, start + held)
        partial = det_gemm._partial(x[:, own], weight.t()[own], cut, dtype=torch.float32)
        total = total + partial
    return total.to(x.dtype)


def _only(x: Tensor, start: int, stop: int) -> Tensor:
    """Return rows that hold nothing outside of some terms."""
    kept = torch.zeros_like(x)
    kept[:, start:stop] = x[:, start:stop]
    return kept


def planted() -> Operator:
    """Return det_gemm with its ranks added in turn."""
    (form,) = DET_GEMM.forms
    implementation = Implementation(backend="torch", forward=in_turn, backward=det_gemm.backward)
    return attrs.evolve(DET_GEMM, forms=(attrs.evolve(form, implementations=(implementation,)),))


class TestSearch:
    """Cells of kernels that take shards."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_ranks_added_in_turn_are_found_by_shards_alone(self, dtype: Dtype) -> None:
        """No other class fails, before or after it, and the fixture is the smallest and replays."""

        kernel = kernel_of(planted())
        report = searched(kernel, dtype=dtype, examples=24)
        (finding,) = report.findings
        fixture = finding.fixture
        assert report.verdict is Verdict.DRIFTS
        assert fixture.expect.cause.transforms == ("shards",)
        # Four terms in four ranks; of four ranks the last one would hold none below seven.
        assert transforms_of(fixture.case) == (Shards(count=8),)
        assert fixture.case.dims == {"K": 4, "N": 1}
        assert [sequence.length for sequence in fixture.case.sequences] == [1]
        again = replayed(kernel, fixture)
        assert (again.status, again.refuted) == ("FAILED", 0)
        for line in drift_lines(drift_records(fixture)).splitlines():
            jsonschema.validate(json.loads(line), drift_schema())

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_healthy_product_holds_with_powered_examples(
        self, backend: str, dtype: Dtype
    ) -> None:
        """Ranks are counted as a class of their own."""

        kernel = kernel_of(DET_GEMM, backend=backend)
        examples = 2 if backend == "triton" and DEVICE.type == "cpu" else 8
        report = searched(kernel, dtype=dtype, transforms=["shards"], examples=examples)
        assert (report.verdict, report.findings) == (Verdict.HOLDS, ())
        assert report.classes["shards"].powered

    def test_other_operators_say_why_not(self) -> None:
        """Their cells hold without it."""

        report = searched(kernel_of(RMS_NORM), examples=1)
        assert report.classes["shards"].reason == "the kernel takes no shards"

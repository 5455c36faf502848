"""Runs: healthy kernels keep their bits in every configuration, planted defects do not."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.preloaded import Preloaded
from tests.unit.execution_cases import (
    PACKED,
    ROW_WISE,
    Recorder,
    both,
    case_of,
    differing,
    kernel_of,
    prepared_of,
    scaled,
    tensors,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.errors import BipropError, CaseError, OutputError, UnsupportedError
from biprop.execution import (
    prepare,
    reference_outputs,
    run_canonical,
    run_transformed,
)
from biprop.layout import Layout, Neighbours
from biprop.operators import Kernel, Reducer
from biprop.signature import parse_backward, parse_signature
from biprop.transforms import (
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    SplitBatch,
    Transform,
)


class TestHealthyAndPlanted:
    """Row-wise kernels keep their bits; kernels that look around do not."""

    @pytest.mark.parametrize("transforms", ROW_WISE, ids=range(len(ROW_WISE)))
    def test_a_row_wise_kernel_keeps_its_bits(self, transforms: tuple[Transform, ...]) -> None:
        """Under every transform."""
        canonical, transformed = both(kernel_of(scaled, PACKED), *transforms)

        assert differing(canonical, transformed) == {"y": 0}
        assert canonical.outputs["y"].shape == (4, 4)

    @pytest.mark.parametrize(
        ("defect", "transforms"),
        [
            (lambda x, w: x * w * len(x), (AddNeighbours(),)),
            (lambda x, w: x * w + x[:1] * 0.5, (AddNeighbours(count=1), PlaceWatched())),
            (lambda x, w: x * w + x.abs().max(), (PadSlots(fill="large"),)),
            (lambda x, w: x * w + x.sum() * 0, (PadSlots(fill="nan"),)),
            (lambda x, w: x * w + x.stride(0), (MoveStorage(gap=1),)),
            (lambda x, w: x * w + x.data_ptr() % 256, (MoveStorage(offset=1),)),
            (lambda x, w: x * w + w.data_ptr() % 256, (MoveStorage(offset=1, parameters=True),)),
            (lambda x, w: x * w + (len(x) > 1), (SplitBatch(cuts=(2,)),)),
            (lambda x, w: x * w + torch.empty_like(x), (MoveStorage(dirty=True),)),
        ],
        ids=["count", "first", "longest", "nan", "stride", "pointer", "weight", "cut", "dirty"],
    )
    def test_a_planted_defect_differs(
        self, defect: Callable[..., object], transforms: tuple[Transform, ...]
    ) -> None:
        """Each under the transform that exposes it, and not without."""
        kernel = kernel_of(defect, PACKED)

        canonical, plain = both(kernel)
        assert differing(canonical, plain) == {"y": 0}
        canonical, transformed = both(kernel, *transforms)
        assert differing(canonical, transformed)["y"] > 0

    def test_another_layout_can_be_run_on_the_same_case(self) -> None:
        """With other neighbours than the case's own, the watched values stay."""
        prepared = prepared_of(kernel_of(scaled, PACKED))
        run = run_transformed(prepared, Layout(neighbours=Neighbours(together=True, count=3)))

        assert run.launches == 1
        assert differing(run_canonical(prepared), run) == {"y": 0}


def _blocked(*arguments: Tensor) -> Tensor:
    """Add each sequence's tokens one by one, in logical order, to the accumulator."""
    dy, x, weight, offsets, order, dweight = arguments
    for slot in order[: int(offsets[-1])].tolist():
        dweight += dy[slot] * x[slot]
    return dy * weight


BACKWARD = (
    "dy[T,H], x[T,H], weight[H], offsets: offsets[B+1], order: order[T], dweight!: float32[H] "
    "-> dx[T,H]"
)


def registered() -> Kernel:
    """Return a kernel with a backward of its own."""
    signature = parse_signature(PACKED)
    return kernel_of(
        scaled,
        PACKED,
        backward=_blocked,
        backward_signature=parse_backward(BACKWARD, signature),
    )


class TestGradients:
    """Gradients of tokens and of parameters, by autograd and by a registered backward."""

    @pytest.mark.parametrize("transforms", ROW_WISE, ids=range(len(ROW_WISE)))
    @pytest.mark.parametrize("own", [False, True], ids=["autograd", "registered"])
    def test_token_gradients_of_a_row_wise_kernel_keep_their_bits(
        self, transforms: tuple[Transform, ...], *, own: bool
    ) -> None:
        """Under every transform; parameters are not judged with them."""
        kernel = registered() if own else kernel_of(scaled, PACKED)
        prepared = prepared_of(kernel, *transforms, judged="token_gradients")
        canonical, transformed = run_canonical(prepared), run_transformed(prepared)

        assert differing(canonical, transformed) == {"dx": 0}
        expected = prepared.values.tokens["dy"] * prepared.values.parameters["weight"]
        assert same_bits(canonical.outputs["dx"], expected[[1, 2, 3, 4]]).all()

    @pytest.mark.parametrize(
        "transforms",
        [
            (PermuteRows(seed=4),),
            (SplitBatch(cuts=(1,)),),
            (PadSlots(side="left", amount=2, fill="nan"),),
            (GatherActive(scatter=3),),
            (MoveStorage(offset=1, gap=2, parameters=True, dirty=True),),
            (PermuteRows(seed=2), SplitBatch(cuts=(1,)), PadSlots(amount=1, fill="inf")),
        ],
        ids=range(6),
    )
    def test_accumulators_are_carried_across_launches(
        self, transforms: tuple[Transform, ...]
    ) -> None:
        """The gradient of a parameter is the same however the set was launched."""
        canonical, transformed = both(registered(), *transforms, judged="parameter_gradients")

        assert differing(canonical, transformed) == {"dweight": 0}
        assert canonical.index["dweight"] is None
        assert canonical.launches == 1
        assert (canonical.outputs["dweight"] != 0).all()

    def test_an_accumulator_that_starts_over_differs(self) -> None:
        """A backward that forgets the earlier micro-batches is found."""

        def forgetful(*arguments: Tensor) -> Tensor:
            arguments[-1].zero_()
            return _blocked(*arguments)

        kernel = kernel_of(
            scaled,
            PACKED,
            backward=forgetful,
            backward_signature=parse_backward(BACKWARD, parse_signature(PACKED)),
        )
        canonical, transformed = both(kernel, SplitBatch(cuts=(1,)), judged="parameter_gradients")

        assert differing(canonical, transformed)["dweight"] > 0

    def test_autograd_gives_gradients_of_parameters(self) -> None:
        """All sequences in one launch; trailing dead slots add zeros."""
        canonical, transformed = both(
            kernel_of(scaled, PACKED), PadSlots(amount=2), judged="parameter_gradients"
        )

        assert list(canonical.outputs) == ["dweight"]
        assert differing(canonical, transformed) == {"dweight": 0}

    def test_several_launches_without_an_accumulator_are_refused(self) -> None:
        """Only the harness could add them up."""
        with pytest.raises(CaseError, match="'weight' comes from several launches"):
            both(kernel_of(scaled, PACKED), SplitBatch(cuts=(1,)), judged="parameter_gradients")

    def test_inactive_and_dead_tokens_get_no_gradient(self) -> None:
        """The upstream gradient is zero on prompt tokens and in dead slots, whatever the fill."""
        seen: list[Tensor] = []

        def backward(*arguments: Tensor) -> Tensor:
            seen.append(arguments[0].clone())
            return _blocked(*arguments)

        kernel = kernel_of(
            scaled,
            PACKED,
            backward=backward,
            backward_signature=parse_backward(BACKWARD, parse_signature(PACKED)),
        )
        transforms = (AddNeighbours(), PadSlots(amount=1, fill="nan"))
        run_transformed(prepared_of(kernel, *transforms, judged="token_gradients"))

        assert (seen[0] == 0).all(dim=1).tolist() == [True, False, False, False, False, True]

    def test_the_backward_gets_the_forwards_own_state_and_arguments(self) -> None:
        """By name: the same physical argument, and what this launch's forward returned."""
        forward_saw: list[Tensor] = []
        backward_saw: list[Tensor] = []

        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            forward_saw.append(x)
            return x * 2, x[:, 0].float() * 3

        def backward(dy: Tensor, x: Tensor, state: Tensor) -> Tensor:
            backward_saw.extend((x, state))
            return dy * state[:, None]

        signature = "x[T,H] -> y[T,H], state: float32[T]"
        kernel = kernel_of(
            forward,
            signature,
            backward=backward,
            backward_signature=parse_backward(
                "dy[T,H], x[T,H], state: float32[T] -> dx[T,H]", parse_signature(signature)
            ),
        )
        case = case_of(kernel, judged="token_gradients")
        run_transformed(prepare(kernel, case, device="cpu"))

        assert backward_saw[0] is forward_saw[0]
        assert same_bits(backward_saw[1], forward_saw[0][:, 0] * 3).all()

    def test_moved_leaves_keep_their_storage_under_autograd(self) -> None:
        """T8 reaches the forward that autograd differentiates."""
        kept = Recorder(scaled)
        run_transformed(
            prepared_of(
                kernel_of(kept, PACKED), MoveStorage(offset=1, gap=2), judged="token_gradients"
            )
        )
        x, weight = tensors(kept.calls[0])

        assert (x.data_ptr() % 256, x.stride(), x.is_leaf) == (4, (6, 1), True)
        assert x.requires_grad
        assert not weight.requires_grad

    @pytest.mark.parametrize(
        ("function", "signature", "error", "words"),
        [
            (lambda x: x.detach() * 2, "x[T,H] -> y[T,H]", OutputError, "carry no gradient"),
            (lambda x: x.mul_(2), "x![T,H] -> y[T,H]", UnsupportedError, "written in place"),
            (lambda x: x, "x[T,H], z[T,H] -> y[T,H]", TypeError, "positional"),
        ],
        ids=["detached", "in_place", "raises"],
    )
    def test_what_autograd_cannot_differentiate_is_refused(
        self, function: Callable[..., object], signature: str, error: type[Exception], words: str
    ) -> None:
        """One sentence; errors of the target itself come through."""
        with pytest.raises(error, match=words):
            run_canonical(prepared_of(kernel_of(function, signature), judged="token_gradients"))

    def test_a_defect_of_the_backward_alone_differs(self) -> None:
        """The forward is healthy, the gradient depends on the number of rows."""

        class Planted(torch.autograd.Function):
            @staticmethod
            def forward(_: object, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(_: object, *upstream: Tensor) -> Tensor:
                return upstream[0] * len(upstream[0])

        kernel = kernel_of(Planted.apply, "x[T,H] -> y[T,H]")

        canonical, transformed = both(kernel, AddNeighbours())
        assert differing(canonical, transformed) == {"y": 0}
        canonical, transformed = both(kernel, AddNeighbours(), judged="token_gradients")
        assert differing(canonical, transformed)["dx"] > 0


class TestFacts:
    """What a run says about itself."""

    def test_the_kernel_is_named(self) -> None:
        """By module and qualified name."""
        canonical, transformed = both(kernel_of(scaled, PACKED))

        assert canonical.facts[0].role == "canonical"
        assert transformed.facts[0].role == "transformed"
        assert canonical.facts[0].kernel == "tests.unit.execution_cases.scaled"

    def test_a_torch_function_runs_on_torch(self) -> None:
        """Built-in functions have no module of their own to look into."""
        kernel = kernel_of(torch.nn.functional.linear, "x[T,K], w[N,K] -> y[T,N]")

        assert run_canonical(prepared_of(kernel)).actual_backend == "torch"

    def test_the_interpreter_is_told_from_the_compiler(self, preloaded: Preloaded) -> None:
        """By what the kernel's own module holds, once its first launch has imported it."""
        script = (
            "from biprop.case import Case\n"
            "from biprop.data import Recipe\n"
            "from biprop.execution import prepare, run_canonical\n"
            "from biprop.kernels.rms_norm import OPERATOR\n"
            "from biprop.sequence import LogicalSequence\n"
            "normal = Recipe(kind='normal')\n"
            "kernels = {k.backend: k for k in OPERATOR.kernels() if k.form == 'packed'}\n"
            "case = Case(dtype='float32', dims={'H': 4}, data={'x': normal},\n"
            "    policy_state={'weight': normal}, sequences=(LogicalSequence(id=0, length=1),))\n"
            "for name in ('torch', 'triton'):\n"
            "    run = run_canonical(prepare(kernels[name], case, device='cpu'))\n"
            "    print(run.actual_backend)\n"
        )
        variables = os.environ | {"TRITON_INTERPRET": "1"}
        done = preloaded.run("-c", script, cwd=Path.cwd(), env=variables)

        assert done.stdout.split() == ["torch", "triton-interpreter"], done.stderr


class TestReference:
    """The reference on the watched tokens, for power."""

    def test_the_reference_sums_through_the_reducer(self) -> None:
        """Its outputs are those of the watched active tokens."""

        def reference(x: Tensor, *, reduce: Reducer) -> Tensor:
            return reduce(x.float(), 1).to(x.dtype)

        kernel = kernel_of(lambda x: x.sum(1), "x[T,H] -> y[T]", reference=reference)
        prepared = prepared_of(kernel, AddNeighbours(count=2))
        found = reference_outputs(prepared, lambda values, dim: values.sum(dim) * 2)

        expected = prepared.values.tokens["x"][[1, 2, 3, 4]].sum(1) * 2
        assert same_bits(found["y"], expected).all()

    def test_without_a_reference_there_is_nothing_to_evaluate(self) -> None:
        """One sentence says so."""
        with pytest.raises(BipropError, match="has no reference"):
            reference_outputs(prepared_of(kernel_of(scaled, PACKED)), lambda values, _: values)

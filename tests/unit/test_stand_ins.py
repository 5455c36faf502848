"""A Triton backend computes in its kernels: what torch computes in their place is red."""

import os
from collections.abc import Callable

import pytest
import torch
from tests.unit.execution_cases import case_of
from torch import Tensor

from biprop.errors import BackendError
from biprop.execution import Run, prepare, run_canonical, run_transformed
from biprop.execution.stand_ins import no_stand_ins
from biprop.judgment import Verdict
from biprop.kernels.deferred import deferred
from biprop.launch_log import LaunchLog, interpreted_launch, listening, tell_launch
from biprop.operators import Form, Implementation, InvarianceDeclaration, Kernel, Operator
from biprop.reports.records import CellReport
from biprop.reports.text import render_check
from biprop.sequence import LogicalSequence
from biprop.signature import parse_backward, parse_restrictions, parse_signature
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import AddNeighbours, MoveStorage

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    # Without a GPU Triton's interpreter runs; it reads this when a kernel is defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")

SIGNATURE = parse_signature("x[T,H] -> y: float32[T]")
# Real device code that sums rows: of all Triton in the tree, the quickest to interpret.
row_sums = deferred("biprop.kernels.planted.tiles_triton", "sum_in_tiles")
KERNELS = ("row_sums",)


def quiet_fallback(x: Tensor) -> object:
    """Sum rows by torch where there are more than eight, and say nothing of it."""
    return row_sums(x) if len(x) <= 8 else x.float().sum(1)


def gradient_by_torch(dy: Tensor, x: Tensor) -> Tensor:
    """Differentiate row sums without a kernel."""
    return dy[:, None] * torch.ones_like(x)


def registered(
    forward: Callable[..., object],
    *,
    backward: Callable[..., object] | None = None,
    backend: str = "triton",
    kernels: tuple[str, ...] = KERNELS,
) -> Kernel:
    """Return the kernel of a registered operator that sums rows."""
    gradient = parse_backward("dy: float32[T], x[T,H] -> dx[T,H]", SIGNATURE)
    form = Form(
        name="packed",
        signature=SIGNATURE,
        backward_signature=None if backward is None else gradient,
        implementations=(
            Implementation(backend=backend, forward=forward, backward=backward, kernels=kernels),
        ),
        reference=lambda x, *, reduce: reduce(x.float(), -1),
    )
    operator = Operator(
        name="row_sum",
        op_class="reduction",
        forms=(form,),
        declaration=InvarianceDeclaration(transforms=("T1", "T2", "T8")),
        # Each step along a row costs the interpreter milliseconds.
        restrictions=parse_restrictions("H=1..8"),
    )
    return operator.kernels()[0]


def run(kernel: Kernel, *, tokens: int = 4, judged: str = "outputs") -> Run:
    """Run one sequence alone."""
    sequences = (LogicalSequence(id=0, length=tokens),)
    case = case_of(kernel, sequences=sequences, judged=judged)  # type: ignore[arg-type]  # one of them
    return run_canonical(prepare(kernel, case, device=DEVICE))


def searched(kernel: Kernel) -> CellReport:
    """Search a cell."""
    judge = InProcessJudge(kernel, device=DEVICE)
    space = space_for(
        judge.reference,
        judge.description,
        dtype="float32",
        direction="forward",
        transforms=("T1", "T2"),
    )
    lane = lane_of(judge.description)
    return search(judge, space, device=DEVICE, lane=lane, max_examples=8, seed=1)


class TestNoStandIns:
    """`no_stand_ins`, around every call of a registered Triton backend."""

    def test_a_backend_of_kernels_passes(self) -> None:
        """It is called over poisoned memory as any other, and filling that is no operator of it."""
        done = run(registered(row_sums))

        assert done.poisons == ("nan",)
        assert done.actual_backend == ("triton-interpreter" if DEVICE == "cpu" else "triton")

    def test_a_constant_made_with_the_call_is_no_stand_in(self) -> None:
        """As of a module that is imported with the first call of a backend."""

        def with_constant(x: Tensor) -> object:
            torch.tensor([1.0, 0.5])
            return row_sums(x)

        assert run(registered(with_constant)).outputs["y"].shape == (4,)

    def test_a_quiet_fallback_is_named_at_the_size_that_takes_it(self) -> None:
        """Eight rows are summed by the kernel, nine by torch."""
        kernel = registered(quiet_fallback)

        assert run(kernel, tokens=8).outputs["y"].shape == (8,)
        with pytest.raises(BackendError) as raised:
            run(kernel, tokens=9)
        assert str(raised.value).startswith(
            "The forward of row_sum with backend='triton' lets torch compute: "
            "aten.sum.dim_IntList, called with tensors of [9, 4]: "
        )

    def test_a_gradient_by_torch_is_told_from_a_forward_of_kernels(self) -> None:
        """Each of a backend's functions is watched on its own."""
        kernel = registered(row_sums, backward=gradient_by_torch)

        run(kernel)
        with pytest.raises(BackendError, match=r"backward of row_sum .* aten\.mul\.Tensor"):
            run(kernel, judged="token_gradients")

    def test_a_copy_that_only_some_layouts_need_is_seen_there(self) -> None:
        """Making rows contiguous copies nothing until they are not."""
        kernel = registered(lambda x: row_sums(x.contiguous()))
        case = case_of(kernel, MoveStorage(transposed=True))
        prepared = prepare(kernel, case, device=DEVICE)

        run_canonical(prepared)
        with pytest.raises(BackendError, match=r"aten\.clone\.default"):
            run_transformed(prepared)

    def test_views_and_allocations_are_no_stand_ins(self) -> None:
        """Nor is a view of the bits under another dtype."""

        def forward(x: Tensor) -> object:
            rows = x.view(torch.int32).view(torch.float32).unsqueeze(0).transpose(0, 1).squeeze(1)
            x.new_empty(3, 2).t()[1:].unbind(0)
            return row_sums(rows)

        assert run(registered(forward)).outputs["y"].shape == (4,)

    def test_a_backend_that_launches_nothing_is_red(self) -> None:
        """Memory that nobody wrote would pass for a result."""
        kernel = registered(lambda x: torch.empty(len(x), device=x.device))

        with pytest.raises(BackendError, match=r"launches none of its kernels \(row_sums\)"):
            run(kernel)

    @pytest.mark.parametrize("kernels", [(), ("column_sums",)], ids=["none", "another"])
    def test_a_kernel_that_is_not_declared_is_red(self, kernels: tuple[str, ...]) -> None:
        """What a backend launches is what it says."""
        with pytest.raises(BackendError, match="launches row_sums, which it does not declare"):
            run(registered(row_sums, kernels=kernels))

    def test_a_launch_without_tokens_needs_no_kernel(self) -> None:
        """There is nothing to compute, and CUDA would refuse the grid."""
        with no_stand_ins(registered(row_sums), [torch.empty(0, 4)], role="forward") as observer:
            assert observer is not None

    @pytest.mark.parametrize("backend", ["torch", "other"])
    def test_other_backends_may_compute_as_they_like(self, backend: str) -> None:
        """Only a Triton backend says how it computes."""
        run(registered(lambda x: x.float().sum(1), backend=backend, kernels=()))

    def test_an_error_of_the_kernel_stays_its_own(self) -> None:
        """A call that raises has computed nothing."""

        def forward(x: Tensor) -> Tensor:
            raise ZeroDivisionError(str(x.sum()))

        with pytest.raises(ZeroDivisionError):
            run(registered(forward))


class TestVerdict:
    """A cell whose backend falls back is FALLBACK, whatever else it shows."""

    def test_a_search_reports_the_fallback(self) -> None:
        """Red, with exit code 1 and a sentence, and no case is drawn after it."""
        report = searched(registered(quiet_fallback))

        assert (report.verdict, report.exit_code) == (Verdict.FALLBACK, 1)
        assert "lets torch compute: aten.sum.dim_IntList" in report.message
        assert report.examples < 8

    def test_a_check_prints_the_sentence_and_the_verdict(self) -> None:
        """The verdict comes last, as of every check."""
        lines = render_check(searched(registered(quiet_fallback))).splitlines()

        assert lines[-1].startswith("FALLBACK  row_sum ")
        assert lines[-2].startswith("The forward of row_sum with backend='triton' lets torch ")

    def test_a_backend_that_never_launches_is_no_error_of_its_opening(self) -> None:
        """The simplest case is left to the search, which reports it as any other fallback."""
        report = searched(registered(lambda x: x.float().sum(1)))

        assert (report.verdict, report.examples) == (Verdict.FALLBACK, 0)

    def test_the_healthy_twin_holds(self) -> None:
        """The same backend without its fallback has nothing to hide."""
        assert searched(registered(row_sums)).verdict is Verdict.HOLDS


class TestLaunchLog:
    """`listening`: launches of a block, and whether an interpreter is at work."""

    def test_the_innermost_block_hears(self) -> None:
        """And nothing is kept where nobody listens."""
        tell_launch("before")
        with listening() as outer:
            tell_launch("first")
            with listening() as inner:
                tell_launch("second")
                tell_launch("second")
            tell_launch("third")

        assert list(outer.names) == ["first", "third"]
        assert list(inner.names) == ["second"]

    def test_an_interpreter_that_raises_is_at_work_no_more(self) -> None:
        """What comes after it is the caller's own again."""
        seen: list[bool] = []

        def interpreted(log: LaunchLog) -> None:
            with interpreted_launch("kernel"):
                seen.append(log.is_interpreting)
                raise ZeroDivisionError

        with listening() as log:
            with pytest.raises(ZeroDivisionError):
                interpreted(log)
            seen.append(log.is_interpreting)

        assert (list(log.names), seen) == (["kernel"], [True, False])


def test_neighbours_are_watched_as_well() -> None:
    """A fallback that only the transformed configuration takes is red there."""
    kernel = registered(quiet_fallback)
    prepared = prepare(kernel, case_of(kernel, AddNeighbours(count=9)), device=DEVICE)

    run_canonical(prepared)
    with pytest.raises(BackendError, match=r"aten\.sum"):
        run_transformed(prepared)

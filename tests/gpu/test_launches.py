"""Launches on a device: what is told of them, where their tensors lie, how they are waited for."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.unit.execution_cases import PACKED, Recorder, case_of, kernel_of, scaled, tensors
from torch import Tensor

from biprop.execution import prepare, run_canonical, run_transformed
from biprop.judgment import Verdict
from biprop.kernels import OPERATORS
from biprop.operators import Kernel, Registry
from biprop.relations import JudgeOptions
from biprop.relations.comparison import compare_runs
from biprop.relations.invariance import judge_invariance
from biprop.transforms import AddNeighbours, MoveStorage

SYNCHRONISED = "called a synchronizing CUDA operation"


def registered(target: str) -> Kernel:
    """Return a registered Triton kernel."""
    return Registry(operators=OPERATORS).find(target=target, backend="triton")


class TestFacts:
    """What was launched."""

    @pytest.mark.parametrize("judged", ["outputs", "token_gradients"])
    def test_triton_kernels_are_told_with_grid_and_configuration(
        self, judged: str, device: torch.device
    ) -> None:
        """Each kernel that ran, with its compile-time values and warps."""
        kernel = registered("rms_norm/packed")
        case = case_of(kernel, AddNeighbours(count=20), judged=judged)  # type: ignore[arg-type]  # one of them
        run = run_transformed(prepare(kernel, case, device=device))
        told = [fact for fact in run.facts if fact.grid]

        assert run.actual_backend == "triton"
        assert told
        assert all("num_warps=" in fact.configuration for fact in told)
        assert all(min(fact.grid) >= 1 for fact in told)
        assert run.facts[0].kernel == "biprop.kernels.rms_norm_triton.forward"

    def test_outcome_names_both_sides(self, device: torch.device) -> None:
        """An outcome holds the launches of either configuration."""
        kernel = registered("rms_norm/packed")
        case = case_of(kernel, AddNeighbours(count=40))
        options = JudgeOptions(measure=False)
        outcome = judge_invariance(kernel, case, device=str(device), options=options)

        assert outcome.verdict is Verdict.HOLDS
        assert {fact.role for fact in outcome.facts if fact.grid} == {"canonical", "transformed"}


class TestStorage:
    """T8 on a device."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_plain_tensors_start_at_a_boundary(self, dtype: str, device: torch.device) -> None:
        """The caching allocator gives multiples of 512 bytes."""
        kept = Recorder(lambda x, weight: x * weight)
        kernel = kernel_of(kept, PACKED)
        run_canonical(prepare(kernel, case_of(kernel, dtype=dtype), device=device))

        for call in kept.calls:
            assert [value.data_ptr() % 512 for value in tensors(call)] == [0, 0]

    @pytest.mark.parametrize(("align", "offset"), [(1, 1), (16, 1), (16, 5), (64, 3)])
    def test_moved_tensors_keep_to_the_alignment(
        self, align: int, offset: int, device: torch.device
    ) -> None:
        """Off the boundary by whole elements, and never off what the target demands."""
        kept = Recorder(lambda x, weight: x * weight)
        kernel = kernel_of(kept, PACKED, align=align)
        case = case_of(kernel, MoveStorage(offset=offset, parameters=True))
        run_transformed(prepare(kernel, case, device=device))
        places = [value.data_ptr() % 256 for call in kept.calls for value in tensors(call)]

        assert all(place % max(4, align) == 0 for place in places)
        assert any(places)


class TestWaiting:
    """How often the process waits for the device."""

    def test_comparing_waits_once(self, device: torch.device) -> None:
        """However many outputs there are."""
        kernel = kernel_of(lambda x: (x + 1, x * 2, x - 3), "x[T,H] -> a[T,H], b[T,H], c[T,H]")
        prepared = prepare(kernel, case_of(kernel, AddNeighbours(count=3)), device=device)
        canonical, transformed = run_canonical(prepared), run_transformed(prepared)
        with waits_told() as places:
            found = compare_runs(canonical, transformed)

        assert found.mismatches == ()
        assert len(places) == 1, places

    def test_an_example_waits_once(self, device: torch.device) -> None:
        """From its values to its verdict, where nothing is measured beside it."""
        kernel = kernel_of(scaled, PACKED)
        case = case_of(kernel, AddNeighbours(count=3))
        options = JudgeOptions(measure=False)
        judge_invariance(kernel, case, device=str(device), options=options)
        with waits_told() as places:
            judge_invariance(kernel, case, device=str(device), options=options)

        assert len(places) == 1, places

    def test_write_without_a_mark_is_seen_late(self, device: torch.device) -> None:
        """A kernel that torch does not see writing is refused when both runs are read."""

        def writing(x: Tensor, weight: Tensor) -> Tensor:
            # No write that torch counts: the memory is another tensor's.
            torch.as_tensor(_Alias(x), device=x.device).zero_()
            return x * weight

        kernel = kernel_of(writing, PACKED)
        run = run_canonical(prepare(kernel, case_of(kernel), device=device))
        found = compare_runs(run, run, repeated=True)

        assert "writes into argument 'x'" in found.first_wrote


class _Alias:
    """The memory of a tensor, as another library would take it."""

    def __init__(self, values: Tensor) -> None:
        self.__cuda_array_interface__ = values.__cuda_array_interface__


@contextmanager
def waits_told() -> Iterator[list[str]]:
    """Yield what fills with the places at which the process waits for the device."""
    places: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)
            places += [
                f"{item.filename}:{item.lineno}"
                for item in caught
                if SYNCHRONISED in str(item.message)
            ]

"""Memory that kernels are handed on a device holds the poison, wherever it comes from."""

from collections.abc import Callable

import pytest
import torch
from tests.unit.execution_cases import PACKED, case_of, kernel_of, scaled
from torch import Tensor

from biprop.bits import Poison
from biprop.execution import prepare, run_canonical
from biprop.execution.blocks import dirty_all, dirty_sizes

ROW_WISE = "x[T,H] -> y[T,H]"
# What memory of no dtype yet holds, as int32.
NAN = 0x7FFD7FFD
# Bytes of workspaces, one in each size class and between them.
WORKSPACES = (4, 300, 512, 3000, 700_000, 1 << 20, (1 << 20) + 512, 3 << 20, 30 << 20)


class Raw:
    """Memory of the caching allocator that no factory handed out."""

    def __init__(self, size: int) -> None:
        """Take `size` bytes of the current device."""
        self.address = torch.cuda.caching_allocator_alloc(size)
        self.__cuda_array_interface__ = {
            "shape": (size // 4,),
            "typestr": "<i4",
            "data": (self.address, False),
            "version": 3,
        }

    def values(self, device: torch.device) -> Tensor:
        """Return what it holds as int32."""
        return torch.as_tensor(self, device=device)

    def free(self) -> None:
        """Give it back."""
        torch.cuda.caching_allocator_delete(self.address)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class TestFactories:
    """Memory that Python or an operator asks for."""

    @pytest.mark.parametrize(
        "factory",
        [
            torch.empty_like,
            lambda x: torch.empty(x.shape, device=x.device),
            lambda x: torch.empty_strided(x.shape, (8, 2), device=x.device),
            lambda x: x.new_empty(x.shape),
            lambda x: x.new_empty_strided(x.shape, (4, 1)),
        ],
        ids=["like", "empty", "strided", "new", "new_strided"],
    )
    def test_every_factory_without_values_is_reached(
        self, factory: Callable[[Tensor], Tensor], device: torch.device
    ) -> None:
        """A kernel that returns what it was handed returns the poison."""
        kernel = kernel_of(factory, ROW_WISE)
        prepared = prepare(kernel, case_of(kernel), device=device)
        nan, large = run_canonical(prepared), run_canonical(prepared, poison="large")

        assert nan.outputs["y"].isnan().all()
        assert (large.outputs["y"] > 1e30).all()
        assert (nan.poisons, large.poisons) == (("nan",), ("large",))


class TestUnseen:
    """Memory that operators take where nothing of Python is asked."""

    def test_output_of_an_operator_lies_on_poison(self, device: torch.device) -> None:
        """The run says that poison reached it; a kernel that returns its argument was not."""
        for function, poisons in ((scaled, ("nan",)), (lambda x, _: x, ())):
            kernel = kernel_of(function, PACKED)
            run = run_canonical(prepare(kernel, case_of(kernel), device=device))

            assert run.poisons == poisons

    def test_workspaces_of_every_size_hold_poison(self, device: torch.device) -> None:
        """Where all free memory is dirtied, and none must be asked from the driver any more."""
        held: list[list[bool]] = []

        def taking(x: Tensor) -> Tensor:
            taken = [Raw(size) for size in WORKSPACES]
            values = [raw.values(device) for raw in taken]
            held.append([bool((value == NAN).all()) for value in values])
            for raw in taken:
                raw.free()
            return x + 1

        kernel = kernel_of(taking, ROW_WISE)
        prepared = prepare(kernel, case_of(kernel), device=device)
        run_canonical(prepared, everywhere=True)
        held.clear()
        run_canonical(prepared, everywhere=True)

        assert held[0] == [True] * len(WORKSPACES)

    @pytest.mark.parametrize("poison", ["nan", "large"])
    def test_next_blocks_of_a_size_are_the_poisoned_ones(
        self, poison: Poison, device: torch.device
    ) -> None:
        """What is asked for after it, in the same sizes, lies where poison was laid."""
        sizes = [
            (3, torch.float32),
            (1000, torch.bfloat16),
            (70_000, torch.float32),
            (1 << 20, torch.bfloat16),
            (5 << 20, torch.float32),
        ]
        spans = dirty_sizes(sizes, device, poison)
        fresh = [torch.empty(count, dtype=dtype, device=device) for count, dtype in sizes]

        for values in fresh:
            start = values.data_ptr()
            assert any(span.start <= start < span.end for span in spans)
            assert bool(values.isnan().all() if poison == "nan" else (values > 1e30).all())

    def test_dirtying_takes_no_memory(self, device: torch.device) -> None:
        """All free blocks are filled in place: nothing more is reserved, and nothing kept."""
        torch.empty(40 << 20, dtype=torch.uint8, device=device)
        before = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        spans = dirty_all(device, "nan")

        assert (torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)) == before
        assert sum(span.end - span.start for span in spans) == before[0] - before[1]

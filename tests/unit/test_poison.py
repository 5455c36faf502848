"""Memory without values is poisoned, and the process is left as it was."""

from collections.abc import Callable

import pytest
import torch
from tests.unit.execution_cases import (
    PACKED,
    both,
    differing,
    kernel_of,
    prepared_of,
    scaled,
)
from torch import Tensor
from torch._C import _len_torch_dispatch_stack

from biprop.execution import run_canonical
from biprop.execution.poison import Poisoner
from biprop.transforms import (
    AddNeighbours,
    PadSlots,
)


class TestPoison:
    """Memory that a kernel asks for holds something recognisable."""

    @pytest.mark.parametrize(
        "factory",
        [
            torch.empty_like,
            lambda x: torch.empty(x.shape),
            lambda x: torch.empty_strided(x.shape, (8, 2)),
            lambda x: x.new_empty(x.shape),
            lambda x: x.new_empty_strided(x.shape, (4, 1)),
            lambda x: torch.empty_permuted(x.shape, (1, 0)),
        ],
        ids=["like", "empty", "strided", "new", "new_strided", "permuted"],
    )
    def test_every_factory_without_values_is_reached(
        self, factory: Callable[[Tensor], Tensor]
    ) -> None:
        """A kernel that returns what it was handed returns the poison."""
        prepared = prepared_of(kernel_of(factory, "x[T,H] -> y[T,H]"))

        nan = run_canonical(prepared)
        large = run_canonical(prepared, poison="large")
        assert nan.outputs["y"].isnan().all()
        assert (large.outputs["y"] > 1e30).all()
        assert (nan.poisons, large.poisons) == (("nan",), ("large",))

    def test_a_kernel_without_workspaces_is_not_reached(self) -> None:
        """And the run says so."""
        assert run_canonical(prepared_of(kernel_of(scaled, PACKED))).poisons == ()

    def test_whole_numbers_are_poisoned_too(self) -> None:
        """An index buffer that is read before it is written shows."""
        with Poisoner("nan").watching("forward"):
            values = torch.empty(3, dtype=torch.int32)

        assert (values > 1 << 24).all()

    def test_memory_of_the_harness_is_left_alone(self) -> None:
        """Outside of the mode nothing is filled, and inside only what has no values."""
        poisoner = Poisoner("nan")
        functions = torch.empty, torch.empty_like
        with poisoner.watching("forward"):
            values = torch.zeros(3) + torch.ones(3)

        assert values.tolist() == [1.0, 1.0, 1.0]
        assert not poisoner.reached
        assert (torch.empty, torch.empty_like) == functions

    def test_compiled_targets_stay_compiled(self) -> None:
        """Dynamo compiles as ever, once, and what it compiles holds no filling."""
        compiled: list[str] = []

        def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
            compiled.append(graph.code)
            return graph.forward

        def target(x: Tensor, weight: Tensor) -> Tensor:
            return torch.empty_like(x).copy_(x * weight)

        kernel = kernel_of(torch.compile(target, backend=backend, dynamic=True), PACKED)
        canonical, transformed = both(kernel, AddNeighbours(count=2), PadSlots(amount=2))

        assert differing(canonical, transformed) == {"y": 0}
        assert len(compiled) == 1
        assert "empty_like" in compiled[0]
        assert "fill" not in compiled[0]

    def test_a_known_kernel_leaves_the_mode_after_its_first_launch(self) -> None:
        """The mode makes every operator dear, and is not needed for `torch.empty`."""
        stacks: list[int] = []

        def plain(x: Tensor) -> Tensor:
            stacks.append(_len_torch_dispatch_stack())
            return torch.empty_like(x).copy_(x)

        run_canonical(prepared_of(kernel_of(plain, "x[T,H] -> y[T,H]")))
        assert stacks == [1, 0]

    def test_a_kernel_with_other_sources_of_memory_stays_under_the_mode(self) -> None:
        """What the watched functions do not see is seen at every launch."""
        stacks: list[int] = []

        def hidden(x: Tensor) -> Tensor:
            stacks.append(_len_torch_dispatch_stack())
            return x.new_empty(x.shape).copy_(torch.empty_like(x))

        run_canonical(prepared_of(kernel_of(hidden, "x[T,H] -> y[T,H]")))
        assert stacks == [1, 1]

    def test_a_raising_kernel_leaves_nothing_behind(self) -> None:
        """Functions and modes of the process are as they were."""
        functions = torch.empty, torch.empty_like

        with pytest.raises(ZeroDivisionError):
            run_canonical(prepared_of(kernel_of(lambda _: 1 / 0, "x[T,H] -> y[T,H]")))
        assert (torch.empty, torch.empty_like) == functions
        assert _len_torch_dispatch_stack() == 0

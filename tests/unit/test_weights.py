"""Weights are expanded once, kept within bounds, and never handed to a kernel themselves."""

from collections.abc import Iterator

import attrs
import pytest
import torch
from tests.unit.execution_cases import case_of, kernel_of
from torch import Tensor

from biprop.bits import same_bits
from biprop.data import Recipe
from biprop.errors import OutputError
from biprop.execution import prepare, run_canonical
from biprop.execution.weights import WEIGHTS, Weights, free_memory, weight_digest
from biprop.relations.invariance import judge_invariance
from biprop.transforms import AddNeighbours, MoveStorage

SIGNATURE = "x[T,H], weight[H] -> y[T,H]"
# Enough elements to be kept on a CPU.
DIMS = {"H": 5000}


@pytest.fixture(autouse=True)
def no_weights() -> Iterator[None]:
    """Begin and end without any."""
    free_memory()
    yield
    free_memory()


class TestBounds:
    """What is kept, and how long."""

    def test_least_recently_used_is_forgotten_first(self) -> None:
        """Bytes stay within the limit; what was asked for last stays longest."""
        weights = Weights(bytes_max=80)
        for name in ("a", "b"):
            weights.keep(name, torch.zeros(10))
        assert weights.find("a") is not None
        weights.keep("c", torch.zeros(10))

        assert weights.find("b") is None
        assert weights.find("a") is not None
        assert weights.find("c") is not None
        assert weights.bytes_held == 80

    def test_what_is_too_large_is_not_kept(self) -> None:
        """Nor does it push out anything."""
        weights = Weights(bytes_max=80)
        weights.keep("small", torch.zeros(10))
        weights.keep("large", torch.zeros(21))

        assert weights.find("large") is None
        assert weights.find("small") is not None

    def test_what_was_written_into_is_dropped(self) -> None:
        """Whoever did it: the next one gets it expanded anew."""
        weights = Weights(bytes_max=80)
        values = torch.zeros(10)
        weights.keep("a", values)
        values.add_(1)

        assert weights.find("a") is None
        assert weights.bytes_held == 0

    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 1},
            {"name": "other"},
            {"sizes": (8, 1024)},
            {"dims": ("H", "K")},
            {"dtype": torch.bfloat16},
            {"device": torch.device("meta")},
            {"recipe": Recipe(kind="ones")},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_digest_tells_weights_apart(self, change: dict[str, object]) -> None:
        """By everything that values depend on."""
        told: dict[str, object] = {
            "recipe": Recipe(kind="normal"),
            "seed": 0,
            "name": "weight",
            "dims": ("K", "H"),
            "sizes": (1024, 8),
            "dtype": torch.float32,
            "device": torch.device("cpu"),
        }
        first, again, other = (
            weight_digest(**words)  # type: ignore[arg-type]  # as written above
            for words in (told, told, {**told, **change})
        )

        assert first == again != other


class TestKernels:
    """What kernels get of them."""

    def test_weights_are_expanded_once(self) -> None:
        """Cases of one seed share them, whatever surrounds their sequences."""
        kernel = kernel_of(lambda x, weight: x * weight, SIGNATURE)
        cases = [case_of(kernel, AddNeighbours(count=count), dims=DIMS) for count in (1, 2)]
        first, second = (prepare(kernel, case, device="cpu") for case in cases)
        fresh = prepare(kernel, attrs.evolve(cases[0], seed=9), device="cpu")

        assert first.values.parameters["weight"] is second.values.parameters["weight"]
        assert first.values.parameters["weight"] is not fresh.values.parameters["weight"]

    def test_kept_weights_are_those_that_are_expanded(self) -> None:
        """The same bits, in a run of the kernel too."""
        kernel = kernel_of(lambda x, weight: x * weight, SIGNATURE)
        case = case_of(kernel, MoveStorage(offset=1, parameters=True), dims=DIMS)
        runs = [run_canonical(prepare(kernel, case, device="cpu")) for _ in range(2)]
        free_memory()
        runs.append(run_canonical(prepare(kernel, case, device="cpu")))

        for run in runs[1:]:
            assert bool(same_bits(runs[0].outputs["y"], run.outputs["y"]).all())

    def test_a_kernel_that_writes_into_its_weight_is_reported(self) -> None:
        """As ever, every time; what is kept stays as it was."""

        def writing(x: Tensor, weight: Tensor) -> Tensor:
            y = x * weight
            weight.add_(1)
            return y

        kernel = kernel_of(writing, SIGNATURE)
        case = case_of(kernel, AddNeighbours(), dims=DIMS)
        kept = prepare(kernel, case, device="cpu").values.parameters["weight"]
        before = kept.clone()
        for _ in range(2):
            with pytest.raises(OutputError, match="writes into argument 'weight'"):
                judge_invariance(kernel, case)

        assert prepare(kernel, case, device="cpu").values.parameters["weight"] is kept
        assert bool(same_bits(kept, before).all())

    def test_small_weights_are_not_kept_on_a_cpu(self) -> None:
        """They are expanded in the time that it takes to tell them apart."""
        kernel = kernel_of(lambda x, weight: x * weight, SIGNATURE)
        prepare(kernel, case_of(kernel, AddNeighbours(), dims={"H": 8}), device="cpu")

        assert WEIGHTS.bytes_held == 0

"""Small kernels and cases that the tests of `biprop.execution` share."""

from collections.abc import Callable

from torch import Tensor

from biprop.bits import compare
from biprop.case import Case, Judged
from biprop.data import Recipe
from biprop.execution import (
    Prepared,
    Run,
    prepare,
    run_canonical,
    run_transformed,
)
from biprop.operators import Kernel
from biprop.sequence import LogicalSequence
from biprop.signature import parse_signature
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    transform_to_data,
)

SEQUENCES = (
    LogicalSequence(id=3, length=3, prompt_length=1),
    LogicalSequence(id=7, length=2, position_start=5),
)
NORMAL = Recipe(kind="normal")

PACKED = "x[T,H], weight[H] -> y[T,H]"
ROW_WISE: tuple[tuple[Transform, ...], ...] = (
    (AddNeighbours(),),
    (AddNeighbours(count=3), PlaceWatched(before=2), PermuteRows(seed=4)),
    (AddNeighbours(count=2), ReplaceNeighbours(length=2, spread=3, loudness=8)),
    (PadSlots(side="left", amount=3, fill="nan"),),
    (AddNeighbours(count=1), PadSlots(amount=2, fill="inf"), SplitBatch(cuts=(1, 4, 7))),
    (AddNeighbours(count=1), GatherActive(scatter=5), SplitBatch(cuts=(2,))),
    (MoveStorage(offset=1, gap=3, parameters=True, dirty=True),),
    (AddNeighbours(), MoveStorage(transposed=True, offset=5)),
)
PADDED: tuple[tuple[Transform, ...], ...] = (
    (AddNeighbours(count=2), PermuteRows(seed=4), PadSlots(side="left", amount=2, fill="nan")),
    (AddNeighbours(count=1), AddDeadRows(count=2, fill="-inf"), SplitBatch(cuts=(1,))),
    (PadSlots(amount=1, fill="large"), MoveStorage(transposed=True, gap=1)),
)


def kernel_of(function: Callable[..., object], signature: str, **fields: object) -> Kernel:
    """Return an unregistered kernel."""
    return Kernel(
        target="test:kernel",
        operator="test:kernel",
        signature=parse_signature(signature),
        function=function,
        **fields,  # type: ignore[arg-type]  # fields of the record
    )


def case_of(
    kernel: Kernel,
    *transforms: Transform,
    judged: Judged = "outputs",
    sequences: tuple[LogicalSequence, ...] = SEQUENCES,
    dims: dict[str, int] | None = None,
    dtype: str = "float32",
) -> Case:
    """Return a case with normal data for every tensor of a kernel."""
    signature = kernel.signature
    data = {item.name: NORMAL for item in signature.token_arguments}
    if judged != "outputs":
        data |= {f"d{item.name}": NORMAL for item in signature.judged_outputs if item.is_float}
    return Case(
        dtype=dtype,  # type: ignore[arg-type]  # parametrised text
        dims=dims or dict.fromkeys(signature.free_dims, 4),
        sequences=sequences,
        judged=judged,
        data=data,
        policy_state={item.name: NORMAL for item in signature.parameters},
        scalars={item.name: 0.5 for item in signature.scalars},
        transforms=tuple(transform_to_data(transform) for transform in transforms),
    )


def prepared_of(kernel: Kernel, *transforms: Transform, **fields: object) -> Prepared:
    """Return a case ready on the CPU."""
    return prepare(kernel, case_of(kernel, *transforms, **fields), device="cpu")  # type: ignore[arg-type]  # of case_of


def both(kernel: Kernel, *transforms: Transform, **fields: object) -> tuple[Run, Run]:
    """Run both configurations of a case."""
    prepared = prepared_of(kernel, *transforms, **fields)
    return run_canonical(prepared), run_transformed(prepared)


def differing(canonical: Run, transformed: Run) -> dict[str, int]:
    """Return how many elements of each output differ."""
    return {
        name: compare(
            transformed.expected.get(name, canonical.outputs.get(name, values)), values
        ).elements_differing
        for name, values in transformed.outputs.items()
    }


class Recorder:
    """A kernel that keeps what it was called with."""

    def __init__(self, result: Callable[..., object]) -> None:
        """Answer with what `result` makes of the arguments."""
        self.calls: list[tuple[object, ...]] = []
        self.result = result

    def __call__(self, *arguments: object, **_: object) -> object:
        """Keep the arguments."""
        self.calls.append(arguments)
        return self.result(*arguments)


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply every row by a weight."""
    return x * weight


def recorded(signature: str, *transforms: Transform, **fields: object) -> tuple[object, ...]:
    """Return what the first transformed launch hands to a kernel."""
    kept = Recorder(lambda x, *_: x * 1)
    run_transformed(prepared_of(kernel_of(kept, signature), *transforms, **fields))
    return kept.calls[0]


def tensors(arguments: tuple[object, ...]) -> list[Tensor]:
    """Return the arguments that are tensors."""
    return [value for value in arguments if isinstance(value, Tensor)]

"""Trials of registered operators with planted parts, shared by unit tests; no test stands here."""

from collections.abc import Sequence

from tests.unit.kernel_trials import DEVICE

from biprop.case import Dtype
from biprop.fixtures.load import fixture_from_data
from biprop.fixtures.records import Fixture, fixture_to_data
from biprop.fixtures.replay import Replayed, replay
from biprop.generation import Space
from biprop.generation.space import Direction
from biprop.operators import Kernel, Operator, Registry
from biprop.reports.records import CellReport
from biprop.strategies.profiles import PROFILES
from biprop.strategies.search import search
from biprop.strategies.spaces import lane_of, space_for
from biprop.supervision.in_process import InProcessJudge

__all__ = ["kernel_of", "replayed", "searched", "space_of"]


def kernel_of(operator: Operator, *, form: str = "packed", backend: str = "torch") -> Kernel:
    """Return one kernel of an operator, with its relatives."""
    registry = Registry(operators=(operator,))
    return registry.find(target=f"{operator.name}/{form}", backend=backend)


def space_of(
    kernel: Kernel,
    *,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    transforms: Sequence[str] = (),
) -> Space:
    """Return what a search draws for a kernel."""
    judge = InProcessJudge(kernel, device=str(DEVICE), dtype=dtype, direction=direction)
    return space_for(
        judge.reference,
        judge.description,
        dtype=dtype,
        direction=direction,
        transforms=transforms,
    )


def searched(
    kernel: Kernel,
    *,
    dtype: Dtype = "float32",
    direction: Direction = "forward",
    transforms: Sequence[str] = (),
    examples: int,
) -> CellReport:
    """Search a cell of a kernel in this process."""
    judge = InProcessJudge(kernel, device=str(DEVICE), dtype=dtype, direction=direction)
    space = space_for(
        judge.reference,
        judge.description,
        dtype=dtype,
        direction=direction,
        transforms=transforms,
    )
    return search(
        judge,
        space,
        device=str(DEVICE),
        lane=lane_of(judge.description),
        profile=PROFILES["pr"],
        max_examples=examples,
    )


def replayed(kernel: Kernel, fixture: Fixture) -> Replayed:
    """Replay a fixture, read from its own text, and judge the claims of its proof."""
    read = fixture_from_data(fixture_to_data(fixture))

    def opened(_: Fixture) -> InProcessJudge:
        case = fixture.case
        return InProcessJudge(
            kernel, device=str(DEVICE), dtype=case.dtype, direction=case.direction
        )

    return replay(read, opened, verify=True)

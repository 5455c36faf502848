"""Sets on a device: waited for once, judged as each of their cases alone, and lost with nothing."""

from pathlib import Path

import attrs
import pytest
import torch
from tests.gpu.test_launches import registered, waits_told
from tests.unit.execution_cases import PACKED, case_of, kernel_of, scaled

from biprop.case import Judged
from biprop.execution.weights import WEIGHTS, free_memory
from biprop.operators import KernelReference
from biprop.relations import JudgeOptions
from biprop.relations.invariance import judge_invariance
from biprop.relations.sets import judge_set
from biprop.supervision import SupervisedJudge
from biprop.transforms import AddNeighbours, MoveStorage, PlaceWatched

LAYOUTS = (
    (AddNeighbours(count=3),),
    (AddNeighbours(count=1), PlaceWatched(before=1)),
    (AddNeighbours(count=9), MoveStorage(offset=1)),
    (MoveStorage(offset=4),),
)
BREAKING = """
import torch

def breaking(x):
    if len(x) == 8:
        index = torch.full((1,), 1 << 20, device=x.device)
        return x + x[index]
    return x + 1
"""


def test_a_set_waits_once(device: torch.device) -> None:
    """However many layouts and outputs there are, where nothing is measured beside them."""
    kernel = kernel_of(scaled, PACKED)
    cases = [case_of(kernel, *layout) for layout in LAYOUTS]
    options = [JudgeOptions(measure=False)] * len(cases)
    judge_set(kernel, cases, device=str(device), options=options)
    with waits_told() as places:
        outcomes = judge_set(kernel, cases, device=str(device), options=options)

    assert outcomes is not None
    assert len(places) == 1, places


@pytest.mark.parametrize("judged", ["outputs", "token_gradients"])
def test_outcomes_are_those_of_each_case_alone(judged: Judged, device: torch.device) -> None:
    """Of compiled kernels too, with what was launched and what the poisons reached."""
    kernel = registered("rms_norm/packed")
    cases = [case_of(kernel, *layout, judged=judged) for layout in (LAYOUTS[2], LAYOUTS[3])]
    options = [JudgeOptions(repeat_canonical=True)] * len(cases)
    together = judge_set(kernel, cases, device=str(device), options=options)
    alone = [
        judge_invariance(kernel, case, device=str(device), options=options[0]) for case in cases
    ]

    assert together is not None
    assert [attrs.evolve(each, launches=0, seconds={}) for each in together] == [
        attrs.evolve(each, launches=0, seconds={}) for each in alone
    ]


def test_nothing_but_weights_stays_on_the_device(device: torch.device) -> None:
    """And they are given back where memory is asked for."""
    kernel = kernel_of(scaled, PACKED)
    cases = [case_of(kernel, *layout, dims={"H": 4096}) for layout in LAYOUTS]
    options = [JudgeOptions()] * len(cases)
    judge_set(kernel, cases, device=str(device), options=options)
    free_memory()
    before = torch.cuda.memory_allocated(device)
    judge_set(kernel, cases, device=str(device), options=options)

    assert WEIGHTS.bytes_held == 4 * 4096
    assert torch.cuda.memory_allocated(device) - before <= 2 * WEIGHTS.bytes_held
    free_memory()
    assert torch.cuda.memory_allocated(device) == before


def test_a_set_that_costs_the_device_is_judged_case_by_case(
    device: torch.device, tmp_path: Path
) -> None:
    """The case that does it crashes in its transformed run; the others hold."""
    path = tmp_path / "set_targets.py"
    path.write_text(BREAKING, encoding="utf-8")
    target = f"{path}:breaking"
    reference = KernelReference(operator=target, target=target, signature="x[T,H] -> y[T,H]")
    kernel = kernel_of(lambda x: x + 1, reference.signature)
    # Sequences of 3 and 2 tokens; one neighbour makes a launch of 8 rows.
    cases = [case_of(kernel, AddNeighbours(count=count)) for count in (3, 1, 5)]
    with SupervisedJudge(reference=reference, device=str(device)) as judge:
        found = judge.judge_set(cases, [JudgeOptions()] * len(cases))

    assert [outcome.verdict.value for outcome in found] == ["HOLDS", "CRASHES", "HOLDS"]
    assert "transformed run" in found[1].message

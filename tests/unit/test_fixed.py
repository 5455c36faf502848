"""The thirteen fixed configurations: what they are for each kind of signature, and in a search."""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.suite_targets import made
from torch import Tensor

from biprop.case import Case
from biprop.generation import LIMITS, Space, illegal_in
from biprop.generation.fixed import (
    CONFIGURATIONS,
    FixedConfiguration,
    fixed_cases,
    fixed_configurations,
    is_composed,
)
from biprop.judgment import Verdict
from biprop.kernels import OPERATORS
from biprop.layout.launches import launches
from biprop.layout.pool import token_pool
from biprop.operators import Kernel
from biprop.reports.records import CellReport
from biprop.reports.text import render_check
from biprop.signature import parse_signature
from biprop.strategies.search import Event, search
from biprop.strategies.spaces import space_for
from biprop.supervision.in_process import InProcessJudge
from biprop.transforms import apply_all, transforms_of

TOKENS = Space(signature=parse_signature("x[T,K], weight[N,K] -> y[T,N]"))
ROWS = Space(signature=parse_signature("x[B,S,H], live: mask[B,S] -> y[B,S,H]"))
KERNELS = [
    kernel
    for operator in OPERATORS
    for kernel in operator.kernels()
    if kernel.declaration is not None and kernel.backend == "torch"
]


def space_of(kernel: Kernel, direction: str) -> Space:
    """Return the space of a registered kernel on a CPU."""
    return Space(
        signature=kernel.signature,
        direction="forward" if direction == "forward" else "backward",
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        registered=True,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        align=kernel.align,
    )


def named(space: Space, name: str) -> FixedConfiguration:
    """Return one configuration of the outputs."""
    (found,) = [item for item in fixed_configurations(space) if item.name == name]
    return found


def case_of(space: Space, name: str) -> Case:
    """Return the case of a configuration that a signature can take."""
    found = named(space, name)
    assert found.case is not None, found.reason
    return found.case


def launches_of(space: Space, name: str) -> list[list[int]]:
    """Return the ids of the sequences in the slots of each launch, -1 where a slot is dead."""
    case = case_of(space, name)
    layout = apply_all(transforms_of(case))
    pool = token_pool(case, layout)
    found = launches(space.signature, pool, case, layout)
    ids = [*pool.sequence_id.tolist(), -1]
    maps = [next(iter(launch.maps.values())) for launch in found]
    return [[ids[slot] for slot in slots.reshape(-1).tolist()] for slots in maps]


class TestConfigurations:
    """What the configurations are."""

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
    def test_each_is_legal_or_said(self, kernel: Kernel, direction: str) -> None:
        """Of all thirteen, a kernel gets a legal case or a reason, for all that is judged."""
        space = space_of(kernel, direction)
        found = fixed_configurations(space)
        kinds = {item.judged for item in found}

        assert len(found) == len(kinds) * len(CONFIGURATIONS)
        for item in found:
            assert (item.case is None) == bool(item.reason)
            assert item.case is None or illegal_in(space, item.case) == ""
        assert any(item.case is not None for item in found)

    def test_there_are_thirteen(self) -> None:
        """The configurations have thirteen names."""

        assert len(set(CONFIGURATIONS)) == 13

    def test_samples_are_those_of_the_harness(self) -> None:
        """Four samples of 11, 16, 13 and 19 tokens with prompts of 8 are watched."""
        samples = case_of(TOKENS, "batch").sequences

        assert [sample.length for sample in samples] == [11, 16, 13, 19]
        assert [sample.active_count for sample in samples] == [3, 8, 5, 11]

    def test_batch_is_one_launch(self) -> None:
        """The batch lies in one launch, in order."""

        assert launches_of(TOKENS, "batch") == [[0] * 11 + [1] * 16 + [2] * 13 + [3] * 19]

    def test_single_samples_are_the_canonical_side_of_the_batch(self) -> None:
        """Each sample alone is what the batch is compared with, so that it has the same case."""
        batch = case_of(TOKENS, "batch")

        assert [case_of(TOKENS, f"sample {index}") for index in range(4)] == [batch] * 4

    def test_chunks_have_seven_tokens(self) -> None:
        """A sample alone is cut after every seventh token; so is each sample of the batch."""
        alone = launches_of(TOKENS, "sample 3, chunked")
        batch = launches_of(TOKENS, "batch, chunked")

        assert [len(slots) for slots in alone] == [7, 4, 7, 7, 2, 7, 6, 7, 7, 5]
        assert batch == alone
        assert len(transforms_of(case_of(TOKENS, "batch, chunked"))) == 2

    def test_permutation_is_that_of_the_harness(self) -> None:
        """The permuted batch has its samples in the order 2, 0, 3, 1."""
        (slots,) = launches_of(TOKENS, "batch, permuted")

        assert list(dict.fromkeys(slots)) == [2, 0, 3, 1]

    @pytest.mark.parametrize(("side", "place"), [("right", -1), ("left", 0)])
    def test_rows_are_padded_to_twenty(self, side: str, place: int) -> None:
        """Rows have twenty slots, and the longest one a dead slot on the side that is named."""
        (slots,) = launches_of(ROWS, f"batch, padded {side}")
        rows = [slots[start : start + 20] for start in range(0, len(slots), 20)]

        assert [len(row) for row in rows] == [20] * 4
        assert [row.count(-1) for row in rows] == [9, 4, 7, 1]
        assert rows[3][place] == -1

    def test_packed_tokens_have_as_many_dead_slots(self) -> None:
        """Without rows, the dead slots of all samples lie at one end of the launch."""
        (right,) = launches_of(TOKENS, "batch, padded right")
        (left,) = launches_of(TOKENS, "batch, padded left")

        assert right[59:] == left[:21] == [-1] * 21

    def test_rows_have_no_chunks(self) -> None:
        """A launch of whole rows cannot be cut into chunks of tokens, which is said."""
        found = named(ROWS, "batch, chunked")

        assert found.case is None
        assert "not cut into chunks" in found.reason

    def test_class_that_is_not_wanted_is_left_out(self) -> None:
        """Where only some classes are wanted, the other configurations are not run."""
        found = named(attrs.evolve(TOKENS, classes=("T1",)), "batch, padded left")

        assert found.case is None
        assert found.reason == "T4.finite was not asked for."

    def test_same_space_gives_same_cases(self) -> None:
        """Nothing is drawn anew: the cases of a space are always the same."""

        assert fixed_cases(TOKENS) == fixed_cases(attrs.evolve(TOKENS))

    def test_configurations_differ(self) -> None:
        """Each case has data and seed of its own."""
        cases = fixed_cases(TOKENS)

        assert len({case.seed for case in cases}) == len(cases) == 6

    def test_interpreter_composes_them(self) -> None:
        """Where cases are dear, all configurations share two of them, without losing one."""
        space = attrs.evolve(TOKENS, limits=LIMITS["interpreter"])
        found = fixed_configurations(space)

        assert is_composed(space)
        assert not is_composed(TOKENS)
        assert len(fixed_cases(space)) == 2
        assert sorted(item.name for item in found if item.case) == sorted(CONFIGURATIONS)
        names = [[data.name for data in case.transforms] for case in fixed_cases(space)]
        assert names == [
            ["AddNeighbours", "PermuteRows", "PadSlots"],
            ["AddNeighbours", "SplitBatch", "PadSlots"],
        ]


def halved_in_the_batch(x: Tensor) -> Tensor:
    """Return `x`, halved in launches of more rows than the longest sample has."""
    return x / 2 if len(x) > 19 else x.clone()


def refusing_the_batch(x: Tensor) -> Tensor:
    """Return `x`, but raise on the eleven rows of the first sample."""
    if len(x) == 11:
        raise ValueError("eleven rows are too many")
    return x.clone()


def searched(
    forward: object,
    *,
    transforms: tuple[str, ...],
    on_event: Callable[[Event], None] | None = None,
) -> CellReport:
    """Search a declared operator of one function in this process, for one example."""
    assert callable(forward)
    operator = made("one", forward, chain_index=0, transforms=transforms)
    judge = InProcessJudge(operator.kernels()[0])
    space = space_for(judge.reference, judge.description, dtype="float32", direction="forward")
    return search(judge, space, max_examples=1, on_event=on_event)


class TestSearch:
    """The configurations in a search."""

    def test_they_are_judged_before_anything_is_drawn(self) -> None:
        """A defect of a batch is found, minimised and told before the first example."""
        events: list[Event] = []
        report = searched(halved_in_the_batch, transforms=("T1",), on_event=events.append)

        assert report.verdict is Verdict.DRIFTS
        assert [(event.kind, event.examples) for event in events[:2]] == [
            ("failure", 0),
            ("finding", 0),
        ]

    def test_they_are_counted_apart(self) -> None:
        """All thirteen are counted, and none of them is an example or evidence of a class."""
        classes = ("T1", "T2", "T4", "T5")
        report = searched(torch.clone, transforms=classes)

        assert report.fixed is not None
        assert (report.fixed.configurations, report.fixed.judged) == (13, 13)
        assert report.fixed.powered == 13
        # One, and as always eight more where evidence lacks.
        assert report.examples == 9
        assert report.verdict is Verdict.VACUOUS
        assert "fixed        13 of 13 configurations, 13 with power" in render_check(report)

    def test_what_is_not_declared_is_said(self) -> None:
        """Configurations of classes that an operator does not declare are named with the reason."""
        report = searched(torch.clone, transforms=("T1",))

        assert report.fixed is not None
        assert report.fixed.judged == 5
        assert len(report.fixed.not_applicable) == 8
        assert "does not declare" in report.fixed.not_applicable["batch, permuted"]

    def test_rejected_ones_are_said(self) -> None:
        """A configuration whose canonical run raises was not judged, and its message is kept."""
        report = searched(refusing_the_batch, transforms=("T1",))

        assert report.fixed is not None
        assert report.fixed.judged == 0
        assert "eleven rows are too many" in report.fixed.not_applicable["sample 0"]

    def test_undeclared_target_has_none(self) -> None:
        """A kernel for which nothing is declared is not run in them."""
        kernel = Kernel(
            operator="own",
            target="own",
            signature=parse_signature("x[T,H] -> y[T,H]"),
            function=torch.clone,
        )
        judge = InProcessJudge(kernel)
        space = space_for(judge.reference, judge.description, dtype="float32", direction="forward")

        assert search(judge, space, max_examples=1).fixed is None

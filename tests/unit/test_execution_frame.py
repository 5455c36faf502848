"""Runs of slots are copied as they lie, others by an index: both give the same bits."""

from collections.abc import Callable

import pytest
import torch
from tests.unit.execution_cases import (
    PACKED,
    PADDED,
    ROW_WISE,
    Recorder,
    both,
    differing,
    kernel_of,
    prepared_of,
    scaled,
    tensors,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.execution import Run, run_transformed
from biprop.execution.storage import copy_runs
from biprop.layout.launch import DEAD
from biprop.operators import Kernel
from biprop.sequence import LogicalSequence
from biprop.transforms import AddNeighbours, GatherActive, PadSlots, PermuteRows, Transform

ROWS = "x[H,B,S], id: token(H)[B,S], last[B,H], mask: mask[B,S] -> y[H,B,S], z[B,H]"
MUTATED = "x![T,H], mask: mask[T] -> _"
CASES = [
    *((PACKED, transforms) for transforms in ROW_WISE),
    *((ROWS, transforms) for transforms in PADDED),
    (PACKED, (AddNeighbours(count=9), PermuteRows(seed=3), PadSlots(amount=2, fill="one"))),
    (MUTATED, (AddNeighbours(count=1), PadSlots(amount=2, side="left", fill="large"))),
]


def kernel_keeping(signature: str) -> tuple[Kernel, Recorder]:
    """Return a kernel that keeps what it is called with, and that."""
    results: dict[str, Callable[..., object]] = {PACKED: scaled, ROWS: doubled}
    kept = Recorder(results.get(signature, nothing))
    return kernel_of(kept, signature), kept


def doubled(x: Tensor, _: Tensor, last: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
    """Return multiples of two arguments."""
    return x * 2, last * 3


def nothing(*_: object) -> None:
    """Leave all as it is."""


def is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bits, whatever they are."""
    return bool(same_bits(one, other, nan_payload="exact").all())


def taken(signature: str, transforms: tuple[Transform, ...]) -> tuple[list[Tensor], Run]:
    """Return what all launches are handed, and the run."""
    kernel, kept = kernel_keeping(signature)
    run = run_transformed(prepared_of(kernel, *transforms))
    return [value for call in kept.calls for value in tensors(call)], run


class TestRuns:
    """An axis of few runs, and the same one by its index."""

    @pytest.mark.parametrize(("signature", "transforms"), CASES, ids=range(len(CASES)))
    def test_an_index_gives_the_same(
        self,
        signature: str,
        transforms: tuple[Transform, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Arguments, outputs, dead slots, and the slot that each row came from."""
        handed, run = taken(signature, transforms)
        monkeypatch.setattr("biprop.execution.frame._RUNS_MAX", 0)
        other_handed, other = taken(signature, transforms)

        assert len(handed) == len(other_handed)
        assert all(map(is_same, handed, other_handed))
        assert run.outputs.keys() == other.outputs.keys()
        for found in ("outputs", "expected", "rows"):
            for name, values in getattr(run, found).items():
                assert is_same(values, getattr(other, found)[name])

    def test_sequences_in_order_are_one_run_however_many(self) -> None:
        """They lie in the pool as they do in the launch, so that none of them needs an index."""
        many = tuple(LogicalSequence(id=number, length=2) for number in range(40))
        kernel = kernel_of(scaled, PACKED)
        (frame,) = prepared_of(kernel, AddNeighbours(count=3), sequences=many).transformed_frames()

        assert frame.launch.runs == ((0, len(frame.launch.slots)),)
        assert frame.slots(kernel.signature, "T").index is None
        assert frame.kept(kernel.signature, "T").device_slots is None

    def test_what_a_target_writes_may_be_part_of_a_graph(self) -> None:
        """A weight of its own is trainable, and rows come from several runs."""
        weight = torch.nn.Parameter(torch.full((4,), 2.0))

        def scaling(x: Tensor) -> None:
            x.mul_(weight)

        kernel = kernel_of(scaling, "x![T,H] -> _")
        canonical, transformed = both(kernel, AddNeighbours(count=2), PermuteRows(seed=3))

        assert differing(canonical, transformed) == {"x": 0}
        assert not transformed.outputs["x"].requires_grad

    @pytest.mark.parametrize("transforms", ROW_WISE, ids=range(len(ROW_WISE)))
    def test_a_launch_tells_the_runs_of_its_map(self, transforms: tuple[Transform, ...]) -> None:
        """Where it tells them they are all of the map; a permuted one tells none."""
        for frame in prepared_of(kernel_of(scaled, PACKED), *transforms).transformed_frames():
            runs = frame.launch.runs
            if runs is None:
                assert any(isinstance(item, GatherActive) for item in transforms) or any(
                    item.transform_class == "T5" for item in transforms
                )
                continue
            slots = [
                place
                for first, count in runs
                for place in ([DEAD] * count if first < 0 else range(first, first + count))
            ]
            assert slots == frame.launch.slots.tolist()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_nothing_becomes_of_bits(self, dtype: torch.dtype) -> None:
        """NaNs of any payload and sign, and zeros of both signs, are copied as they are."""
        width = dtype.itemsize * 8
        words = torch.arange(1 << 16) * ((1 << width) // (1 << 16)) - (1 << (width - 1))
        integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
        source = words.to(integer).view(dtype).view(-1, 16)
        rows = torch.empty_like(source)
        copy_runs(rows, source, [(2048, 2048), (0, 1024), (1024, 1024)])
        expected = words.to(integer).view(-1, 16).roll(2048, 0).view(dtype)

        assert bool(source.isnan().any())
        assert is_same(rows, expected)

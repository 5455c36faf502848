"""Free blocks of CUDA's allocator: which sizes take all of them, without a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from biprop.execution.blocks import Span, _requests, _spans, dirty_sizes
from biprop.execution.poison import Poisoner

MIB = 1 << 20


def segment(
    kind: str,
    blocks: Sequence[tuple[int, str]],
    *,
    device: int = 0,
    stream: int = 0,
    pool: tuple[int, int] = (0, 0),
) -> Mapping[str, Any]:
    """Return a segment as a snapshot of the allocator has it."""
    return {
        "device": device,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": pool,
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


class Allocator:
    """What CUDA's caching allocator does with free blocks: best fit, split, join.

    Attributes:
        free: Start and size of each free block, by pool.
    """

    def __init__(self, **pools: list[tuple[int, int]]) -> None:
        """Start with free blocks."""
        self.free = pools

    def take(self, size: int) -> tuple[int, int]:
        """Return the block that a request is met with."""
        pool = self.free["small" if size <= MIB else "large"]
        size = -(-size // 512) * 512
        fitting = [(block[1], block[0]) for block in pool if block[1] >= size]
        assert fitting, "more memory would be asked for"
        found, start = min(fitting)
        pool.remove((start, found))
        rest = found - size
        # A rest too small to be worth it stays with the block, in the pool of large ones.
        if rest >= 512 and (size <= MIB or rest > MIB):
            pool.append((start + size, rest))
            return start, size
        return start, found


class TestRequests:
    """Sizes that take every free block."""

    @pytest.mark.parametrize(
        "small",
        [
            [512],
            [2 * MIB],
            [2 * MIB, 1536, MIB, 512, 512],
            [MIB + 512, 2 * MIB - 1024, 3 * 512],
        ],
    )
    def test_they_fill_all_of_it(self, small: list[int]) -> None:
        """Requests that are met one after the other leave nothing free."""
        large = [20 * MIB, 3 * MIB, 3 * MIB, MIB + 512]
        places = {"small": small, "large": large}
        snapshot = [
            segment(kind, [(size, "inactive"), (512, "active_allocated")])
            for kind, sizes in places.items()
            for size in sizes
        ]
        allocator = Allocator(
            **{
                kind: [(index * 100 * MIB, size) for index, size in enumerate(sizes)]
                for kind, sizes in places.items()
            }
        )
        for size in list(_requests(snapshot, index=0, stream=0)):
            allocator.take(size)

        assert allocator.free == {"small": [], "large": []}

    def test_others_memory_is_left_alone(self) -> None:
        """Of other devices, streams and captured graphs, and what is in use, nothing is taken."""
        blocks = [(512, "inactive"), (1024, "active_allocated"), (2048, "active_awaiting_free")]
        snapshot = [
            segment("small", blocks, device=1),
            segment("small", blocks, stream=7),
            segment("small", blocks, pool=(0, 1)),
            segment("small", blocks),
        ]

        assert list(_requests(snapshot, index=0, stream=0)) == [512]


class TestReached:
    """Whether poison reached an output is seen from where the output lies."""

    def test_output_in_a_poisoned_block_was_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An output elsewhere was not, nor is a later launch judged by an earlier one's blocks."""
        inside, outside = torch.zeros(8), torch.zeros(8)
        monkeypatch.setattr("biprop.execution.poison.dirty_sizes", lambda *_: _spans([inside]))
        device = torch.device("cuda")
        reached = []
        for outputs in ([(outside,)], [inside[2:]], [(outside, None, inside)]):
            poisoner = Poisoner("nan")
            poisoner.dirty([(8, torch.float32)], device)
            for returned in outputs:
                poisoner.look_at(returned)
            reached.append(poisoner.reached)
        poisoner = Poisoner("nan")
        poisoner.dirty([(8, torch.float32)], device)
        poisoner.look_at(outside)
        poisoner.look_at(inside)

        assert reached == [False, True, True]
        assert not poisoner.reached

    def test_a_span_is_the_memory_of_its_tensor(self) -> None:
        """From the first byte to past the last."""
        values: Tensor = torch.zeros(6, dtype=torch.int16)

        assert _spans([values]) == (Span(start=values.data_ptr(), end=values.data_ptr() + 12),)

    def test_a_processor_keeps_no_free_blocks(self) -> None:
        """On the CPU nothing is filled but what the factories hand out."""
        poisoner = Poisoner("nan")
        poisoner.dirty([(8, torch.float32)], torch.device("cpu"), everywhere=True)
        poisoner.look_at(torch.zeros(8))

        assert not poisoner.reached


def test_no_gap_is_left_between_blocks_that_join() -> None:
    """Each block is filled up to the step that the allocator rounds sizes to."""
    sizes = [(3, torch.float32), (1000, torch.bfloat16), (128, torch.float32), (0, torch.float32)]
    spans = dirty_sizes(sizes, torch.device("cpu"), "nan")

    filled = [span.end - span.start for span in spans]
    assert filled == [512, 512, 2048, 2048, 512, 512]

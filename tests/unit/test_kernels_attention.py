"""The facts that the invariance of attention rests on, each alone, by direct calls.

Whole cases with transforms are run by tests/props; accuracy is in
test_kernels_attention_accuracy.py.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import pytest
import torch
from tests.unit.attention_trials import (
    OPERATOR,
    Launch,
    Lay,
    Part,
    Results,
    Tokens,
    arguments_of,
    attend,
    each_form,
    each_kernel,
    packed,
    padded,
    revealing,
    whole,
)
from tests.unit.kernel_trials import (
    DEVICE,
    STORAGES,
    all_same,
    backend_of,
    each_backend,
    each_dtype,
    tensors_of,
    wide,
)
from torch import Tensor

from biprop.kernels import attention_torch

# A tile of the torch backend holds 32 positions; one of the Triton backend 8, and a block of its
# contexts 16, in the interpreter, where `small_tiles` makes them so.
IS_CPU = DEVICE.type == "cpu"
LENGTHS = {"torch": (1, 100, 5, 33), "triton": (1, 19, 5) if IS_CPU else (1, 200, 5)}
HEADS, WIDTH = (2, 1), 40
SMALL, LARGE = {64: (16, 16)}, {64: (32, 32)}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few tokens fill several tiles of the Triton backend where each costs milliseconds."""
    if IS_CPU:
        monkeypatch.setattr("biprop.kernels.attention_triton.SIZES_WIDE", SMALL)
        monkeypatch.setattr("biprop.kernels.attention_triton.SIZES_NARROW", SMALL)


@cache
def drawn_for(backend: str, dtype: torch.dtype) -> list[Tokens]:
    """Draw the sequences of a backend."""
    return [
        revealing(length, heads=HEADS, width=WIDTH, dtype=dtype, seed=index)
        for index, length in enumerate(LENGTHS[backend])
    ]


@cache
def alone(backend: str, dtype: torch.dtype, lay: Lay = packed) -> list[Results]:
    """Run every sequence alone: one launch each, without padding."""
    sequences = drawn_for(backend, dtype)
    return [attend(backend, lay([part]), sequences)[0] for part in whole(sequences)]


def differing(
    results: Sequence[Results], canonical: Sequence[Results], parts: Sequence[Part]
) -> list[tuple[int, list[str]]]:
    """List the parts that differ from their sequences alone, with what differs."""
    found = [
        (part.sequence, result.same_as(canonical[part.sequence], part))
        for result, part in zip(results, parts, strict=True)
    ]
    return [(sequence, names) for sequence, names in found if names]


class TestNeighbours:
    """What else is in the launch changes nothing."""

    @each_kernel
    def test_number_order_and_lengths_of_the_others_do_not_matter(
        self, backend: str, dtype: torch.dtype, lay: Lay
    ) -> None:
        """All together, backwards, and beside twins of one of them: the bits of each alone."""

        sequences, canonical = drawn_for(backend, dtype), alone(backend, dtype)
        parts = whole(sequences)
        for chosen in (parts, parts[::-1], (parts[2], parts[0], parts[2])):
            results = attend(backend, lay(chosen), sequences)
            assert differing(results, canonical, chosen) == []

    @each_dtype
    @each_backend
    def test_both_forms_give_the_same_bits(self, backend: str, dtype: torch.dtype) -> None:
        """A sequence alone in a row and alone in a segment."""

        rows, parts = alone(backend, dtype, padded), whole(drawn_for(backend, dtype))
        assert differing(rows, alone(backend, dtype), parts) == []


class TestDeadSlots:
    """What no sequence owns reaches nothing, and holds what a token without keys gives."""

    @each_dtype
    @each_backend
    @pytest.mark.parametrize(
        ("before", "after", "fill"),
        [((0, 0), 3, torch.nan), ((2, 7), 0, torch.inf), ((11, 1), 2, torch.nan)],
        ids=["right", "left", "both"],
    )
    def test_padding_changes_no_bit(
        self,
        backend: str,
        dtype: torch.dtype,
        before: tuple[int, int],
        after: int,
        fill: float,
    ) -> None:
        """Dead slots on either side, and rows of nothing else, filled with what spreads."""

        sequences = drawn_for(backend, dtype)
        parts = (Part(), *whole(sequences)[1:3], Part())
        launch = padded(parts, before=before, after=after)
        results = attend(backend, launch, sequences, fill=fill)
        assert differing(results, alone(backend, dtype), parts) == []

    @each_dtype
    @each_backend
    def test_dead_tokens_and_empty_segments_change_no_bit(
        self, backend: str, dtype: torch.dtype
    ) -> None:
        """Segments without tokens anywhere, and dead tokens past the last one."""

        sequences = drawn_for(backend, dtype)
        first, second = whole(sequences)[1:3]
        parts = (Part(), first, Part(), Part(), second, Part())
        results = attend(backend, packed(parts, dead=(5, 20)), sequences, fill=torch.nan)
        assert differing(results, alone(backend, dtype), parts) == []

    @each_backend
    @each_form
    def test_dead_slots_are_written_with_zeros(
        self, backend: str, lay: Callable[..., Launch]
    ) -> None:
        """Out and gradients are 0 there and lse is -Inf, whatever the dead slots held."""

        sequences = drawn_for(backend, torch.float32)
        dead = {"dead": (5, 40)} if lay is packed else {"before": (2, 50), "after": 3}
        launch = lay((Part(), whole(sequences)[2], Part()), **dead)
        upstream, inputs, ends = arguments_of(launch, sequences, fill=torch.nan)
        kernel = backend_of(OPERATOR, backend, form=launch.form)
        assert kernel.backward is not None
        out, lse = tensors_of(kernel.forward(*inputs, *ends))
        dq, dk, dv = tensors_of(kernel.backward(*upstream, *inputs, out, lse, *ends))
        axes = len(launch.query_shape)
        sides = ((launch.query_slots, (out, lse, dq)), (launch.context_slots, (dk, dv)))
        for slots, tensors in sides:
            live = [slot for places in slots for slot in places]
            for values in tensors:
                flat = values.flatten(0, axes - 1)
                is_dead = torch.ones(len(flat), dtype=torch.bool, device=DEVICE)
                is_dead[live] = False
                expected = torch.full_like(flat, -torch.inf if values is lse else 0.0)
                assert all_same(flat[is_dead], expected[is_dead])
                assert bool(flat[~is_dead].isfinite().all())


class TestSchedule:
    """How a sequence is spread over launches changes nothing."""

    @each_kernel
    @pytest.mark.parametrize("shares", [(0.16,), (0.5,), (0.4, 0.45, 0.9)], ids=str)
    def test_chunks_give_the_bits_of_the_whole(
        self, backend: str, dtype: torch.dtype, lay: Lay, shares: tuple[float, ...]
    ) -> None:
        """Queries of a chunk, with all contexts before; keys that are fed once have gradients."""

        sequences, canonical = drawn_for(backend, dtype), alone(backend, dtype)
        length = len(sequences[1].q)
        bounds = [0, *(int(share * length) for share in shares), length]
        for start, stop in pairwise(bounds):
            part = Part(sequence=1, start=start, stop=stop)
            # The neighbour ends within the first chunk.
            neighbour = Part() if start else Part(sequence=0, stop=1)
            results = attend(backend, lay((neighbour, part)), sequences)
            first_key = start if stop == length else stop
            assert results[1].same_as(canonical[1], part, first_key=first_key) == []

    @each_kernel
    def test_decoding_gives_the_bits_of_the_prefill(
        self, backend: str, dtype: torch.dtype, lay: Lay
    ) -> None:
        """One query at a time, beside a neighbour that decodes elsewhere."""

        sequences, canonical = drawn_for(backend, dtype), alone(backend, dtype)
        for position in (0, 9, 15, 16, len(sequences[1].q) - 1):
            parts = (
                Part(sequence=2, start=position % 5, stop=position % 5 + 1),
                Part(sequence=1, start=position, stop=position + 1),
            )
            results = attend(backend, lay(parts), sequences)
            for result, part in zip(results, parts, strict=True):
                is_last = part.stop == len(sequences[part.sequence].q)
                first_key = part.start if is_last else part.stop
                names = result.same_as(canonical[part.sequence], part, first_key=first_key)
                assert names == [], part


class TestStorage:
    """Where and how the arguments are stored changes nothing."""

    @each_kernel
    def test_storage_changes_no_bit(self, backend: str, dtype: torch.dtype, lay: Lay) -> None:
        """Every argument, offsets and masks included, may be a view of anything."""

        sequences = drawn_for(backend, dtype)
        launch = lay(whole(sequences)[1:3])
        upstream, inputs, ends = arguments_of(launch, sequences)
        kernel = backend_of(OPERATOR, backend, form=launch.form)
        assert kernel.backward is not None
        outputs = tensors_of(kernel.forward(*inputs, *ends))
        arguments = (*upstream, *inputs, *outputs, *ends)
        gradients = tensors_of(kernel.backward(*arguments))
        for store in STORAGES.values():
            moved_outputs = tensors_of(kernel.forward(*map(store, inputs), *map(store, ends)))
            moved_gradients = tensors_of(kernel.backward(*map(store, arguments)))
            pairs = (
                *zip(outputs, moved_outputs, strict=True),
                *zip(gradients, moved_gradients, strict=True),
            )
            assert all(all_same(plain, view) for plain, view in pairs)
            assert all(value.is_contiguous() for value in moved_outputs + moved_gradients)


class TestPower:
    """Data of the kind of this file shows a changed order."""

    @each_dtype
    @each_backend
    def test_other_tiles_are_seen(
        self, backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tiles of another size change every result."""

        sequences = [revealing(61, heads=HEADS, width=WIDTH, dtype=dtype, first=1)]
        (part,) = whole(sequences)
        (canonical,) = attend(backend, packed([part]), sequences)
        monkeypatch.setattr(attention_torch, "tile_of", lambda _: 16)
        for sizes in ("SIZES_WIDE", "SIZES_NARROW"):
            other = LARGE if IS_CPU else SMALL
            monkeypatch.setattr(f"biprop.kernels.attention_triton.{sizes}", other)
        (moved,) = attend(backend, packed([part]), sequences)
        assert moved.same_as(canonical, part) == ["out", "lse", "dq", "dk", "dv"]


class TestProducts:
    """The one assumption of the torch backend: a product's place in its call changes nothing."""

    @pytest.mark.parametrize("width", [16, 80, 256])
    def test_a_pair_of_tiles_has_one_product_in_every_place(self, width: int) -> None:
        """Each shape that is used, in each of the lanes, on 1 to 33 threads."""

        lanes, tile = attention_torch.lane_count(DEVICE), attention_torch.tile_of(DEVICE)
        shapes = ((tile, width, tile), (tile, tile, width))
        before = torch.get_num_threads()
        try:
            for rows, contracted, columns in shapes:
                left = wide(1, rows, contracted, dtype=torch.float32)
                right = wide(1, columns, contracted, dtype=torch.float32, seed=1)
                for sides in self.operands(left, right, lanes):
                    products: list[Tensor] = []
                    for count in (1, 2, 5, 16, 33):
                        torch.set_num_threads(count)
                        products.append(torch.bmm(*sides))
                    first = products[0][:1]
                    assert all(all_same(each, first.expand_as(each)) for each in products)
        finally:
            torch.set_num_threads(before)

    @staticmethod
    def operands(left: Tensor, right: Tensor, lanes: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return the same pair in every lane, one side transposed as the kernel has it."""
        lefts = left.expand(lanes, -1, -1).contiguous()
        rights = right.expand(lanes, -1, -1).contiguous()
        turned = lefts.transpose(1, 2).contiguous().transpose(1, 2)
        return (lefts, rights.transpose(1, 2)), (turned, rights.transpose(1, 2).contiguous())


class TestEmptyLaunches:
    """A launch without queries or contexts is legal: a cut may leave one."""

    @each_form
    @each_backend
    def test_nothing_gives_nothing(self, backend: str, lay: Lay) -> None:
        """Two parts without tokens."""

        sequences = drawn_for(backend, torch.float32)
        results = attend(backend, lay((Part(), Part())), sequences)
        assert all(len(result.out) == len(result.dk) == 0 for result in results)

    @each_form
    @each_backend
    def test_contexts_without_queries_have_gradients_of_zero(self, backend: str, lay: Lay) -> None:
        """A part that is not asked for anything, alone in its launch."""

        sequences = drawn_for(backend, torch.float32)
        (result,) = attend(backend, lay([Part(sequence=2, start=5, stop=5)]), sequences)
        assert len(result.out) == 0
        assert all_same(result.dk, torch.zeros_like(result.dk))
        assert all_same(result.dv, torch.zeros_like(result.dv))

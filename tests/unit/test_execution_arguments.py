"""Arguments are what the signature says, and lie in memory where the layout says."""

import itertools

import pytest
import torch
from tests.unit.execution_cases import (
    NORMAL,
    PACKED,
    SEQUENCES,
    Recorder,
    both,
    differing,
    kernel_of,
    prepared_of,
    recorded,
    scaled,
    tensors,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.case import Case
from biprop.errors import CaseError
from biprop.execution import (
    prepare,
    run_canonical,
    run_transformed,
)
from biprop.execution.arguments import Materialiser
from biprop.execution.frame import Frame
from biprop.execution.outputs import Collector
from biprop.execution.storage import allocate
from biprop.layout import CANONICAL
from biprop.layout.launch import Launch
from biprop.layout.physical import Placement
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PadSlots,
    PermuteRows,
    ReplaceNeighbours,
)


class TestArguments:
    """Every kind of argument is what the signature says."""

    def test_floats_are_gathered_and_filled(self) -> None:
        """Live slots hold the tokens' values in the order of the launch, dead ones the fill."""
        kernel = kernel_of(scaled, PACKED)
        prepared = prepared_of(kernel)
        x, _ = tensors(recorded(PACKED, AddNeighbours(), PadSlots(amount=2, fill="large")))

        assert same_bits(x[:5], prepared.values.tokens["x"]).all()
        assert x[5:].tolist() == [[30000.0] * 4] * 2

    @pytest.mark.parametrize(
        "order", [(0, 1, 2, 3, 4), (1, 2, 3), (0, 2, 1, 3, 4), (0, 2, 2, 3), (4, 3, 2, 1, 0), (3,)]
    )
    def test_tokens_are_taken_and_given_back_in_any_order(self, order: tuple[int, ...]) -> None:
        """As they follow each other in the pool, which is copied in one piece, or otherwise."""
        kernel = kernel_of(scaled, PACKED)
        prepared = prepared_of(kernel)
        signature, slots = kernel.signature, torch.tensor(order)
        launch = Launch(maps={"T": slots, "B": slots[-1:]}, lengths=(len(order),), sequences=(0,))
        frame = Frame(launch=launch, compared=prepared.compared, device=torch.device("cpu"))
        materialiser = Materialiser(
            case=prepared.case, values=prepared.values, layout=CANONICAL, align=1, poison="nan"
        )
        x = materialiser.arguments(signature, frame)[0]
        assert isinstance(x, Tensor)
        collector = Collector(compared=prepared.compared)
        collector.add(signature, signature.outputs[0], x, frame, launch=0)
        values = prepared.values.tokens["x"]
        # Of tokens that are not compared nothing comes back.
        places = prepared.pool.compared.tolist()
        back = collector.outputs[signature.outputs[0].name]

        assert same_bits(x, values[slots]).all()
        for place, token in enumerate(places):
            if token in order:
                assert same_bits(back[place], values[token]).all()

    def test_dead_rows_have_a_fill_of_their_own(self) -> None:
        """Dead slots of live rows and slots of dead rows are filled apart."""
        signature = "x[B,S,H], mask: mask[B,S] -> y[B,S,H]"
        x, mask = tensors(
            recorded(
                signature,
                AddNeighbours(),
                PadSlots(amount=0, fill="one"),
                AddDeadRows(count=1, fill="nan"),
            )
        )

        assert mask.tolist() == [[True] * 3, [True, True, False], [False] * 3]
        assert x[1, 2].tolist() == [1.0] * 4
        assert x[2].isnan().all()
        assert not x[:2].isnan().any()

    def test_axes_come_in_the_declared_order(self) -> None:
        """A signature may put its token axis anywhere; the values stay with their tokens."""
        straight = recorded("x[B,S,H], lengths: lengths[B] -> y[B,S,H]", AddNeighbours())[0]
        turned = recorded("x[H,S,B], lengths: lengths[B] -> y[H,S,B]", AddNeighbours())[0]

        assert isinstance(straight, Tensor)
        assert isinstance(turned, Tensor)
        assert turned.is_contiguous()
        assert same_bits(turned.permute(2, 1, 0), straight).all()

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [
            ("float64", torch.float64),
            ("float16", torch.float16),
            ("int64", torch.int64),
            ("int32", torch.int32),
            ("uint8", torch.uint8),
            ("bool", torch.bool),
        ],
    )
    def test_a_named_dtype_is_kept(self, kind: str, dtype: torch.dtype) -> None:
        """Whatever the dtype of the case."""
        (_, extra) = tensors(recorded(f"x[T,H], extra: {kind}[T,H] -> y[T,H]", dtype="bfloat16"))

        assert extra.dtype == dtype
        assert tuple(extra.shape) == (3, 4)

    def test_ids_are_below_their_range(self) -> None:
        """And dead slots hold 0 under a zero fill, else the largest."""
        signature = "x[T,V], target: token(V)[T] -> y[T,V]"
        dims = {"V": 3}
        zero = tensors(recorded(signature, AddNeighbours(), PadSlots(amount=1), dims=dims))[1]
        large = tensors(
            recorded(signature, AddNeighbours(), PadSlots(amount=1, fill="nan"), dims=dims)
        )[1]

        assert zero.dtype == torch.int64
        assert 0 <= int(zero.min()) <= int(zero.max()) < 3
        assert zero[:5].tolist() == large[:5].tolist()
        assert (int(zero[5]), int(large[5])) == (0, 2)

    def test_positions_follow_the_token(self) -> None:
        """Not the slot; dead slots hold 0 or the largest legal position."""
        signature = "x[B,S,H], mask: mask[B,S], position: position[B,S] -> y[B,S,H]"
        left = PadSlots(side="left", amount=1, fill="zero")
        position = tensors(recorded(signature, AddNeighbours(), left))[2]
        filled = tensors(
            recorded(signature, AddNeighbours(), PadSlots(side="left", amount=1, fill="inf"))
        )[2]

        assert position.tolist() == [[0, 0, 1, 2], [0, 0, 5, 6]]
        assert filled.tolist() == [[6, 0, 1, 2], [6, 6, 5, 6]]

    def test_masks_may_be_broadcast(self) -> None:
        """Dimensions of size 1 lie where the signature has them."""
        mask = tensors(recorded("x[B,S,H], mask: mask[B,1,S,1] -> y[B,S,H]", AddNeighbours()))[1]

        assert tuple(mask.shape) == (2, 1, 3, 1)
        assert mask.flatten().tolist() == [True] * 5 + [False]

    def test_lengths_offsets_and_the_longest_count_live_tokens(self) -> None:
        """In the order of the launch, with empty segments last."""
        signature = (
            "x[T,H], offsets: offsets[B+1], lengths: lengths[B], longest: max_length -> y[T,H]"
        )
        _, offsets, lengths, longest = recorded(
            signature, AddNeighbours(), PadSlots(amount=2), AddDeadRows(count=2)
        )

        assert isinstance(offsets, Tensor)
        assert isinstance(lengths, Tensor)
        assert (offsets.dtype, lengths.dtype) == (torch.int32, torch.int32)
        assert offsets.tolist() == [0, 3, 5, 5, 5]
        assert lengths.tolist() == [3, 2, 0, 0]
        assert longest == 3

    def test_an_order_finds_every_token_in_logical_order(self) -> None:
        """Then come the dead slots; offsets follow the logical order too."""
        signature = "x[T,H], offsets: offsets[B+1], order: order[T] -> y[T,H]"
        for seed in range(1, 5):
            x, offsets, order = tensors(
                recorded(
                    signature, AddNeighbours(count=1), PermuteRows(seed=seed), PadSlots(amount=1)
                )
            )
            values = prepared_of(
                kernel_of(scaled, signature), AddNeighbours(count=1)
            ).values.tokens["x"]

            assert order.dtype == torch.int32
            assert sorted(order.tolist()) == list(range(9))
            assert same_bits(x[order[:8].long()], values).all()
            assert offsets.tolist() == [0, 3, 5, 8]

    def test_one_value_a_sequence_is_its_last_tokens(self) -> None:
        """A float over B alone; empty segments hold the fill of dead rows."""
        signature = "x[T,H], bias[B,H], offsets: offsets[B+1] -> y[T,H]"
        kernel = kernel_of(scaled, signature)
        values = prepared_of(kernel).values.tokens["bias"]
        _, bias, _ = tensors(recorded(signature, AddNeighbours(), AddDeadRows(count=1, fill="one")))

        assert same_bits(bias[:2], values[[2, 4]]).all()
        assert bias[2].tolist() == [1.0] * 4

    def test_scalars_come_as_numbers(self) -> None:
        """As the case says."""
        assert recorded("x[T,H], eps: scalar -> y[T,H]")[1] == 0.5

    def test_loud_neighbours_change_no_watched_token(self) -> None:
        """Neighbours' floats are multiplied; watched tokens and parameters are not."""
        quiet = tensors(recorded(PACKED, AddNeighbours(count=1)))
        loud = tensors(recorded(PACKED, AddNeighbours(count=1), ReplaceNeighbours(loudness=3)))

        assert same_bits(quiet[0][:5], loud[0][:5]).all()
        assert same_bits(quiet[0][5:] * 8, loud[0][5:]).all()
        assert same_bits(quiet[1], loud[1]).all()

    def test_loud_neighbours_stay_finite_in_float16(self) -> None:
        """An infinite neighbour would be another transform."""
        x, _ = tensors(
            recorded(
                PACKED, AddNeighbours(count=3), ReplaceNeighbours(loudness=16), dtype="float16"
            )
        )

        assert x.isfinite().all()

    def test_every_call_gets_tensors_of_its_own(self) -> None:
        """A kernel that writes into its arguments cannot reach the next launch."""

        def destructive(x: Tensor, weight: Tensor) -> Tensor:
            y = x * weight
            x.fill_(7)
            return y

        kernel = kernel_of(destructive, "x![T,H], weight[H] -> y[T,H]")
        canonical, transformed = both(kernel, AddNeighbours(count=2))

        assert differing(canonical, transformed) == {"y": 0, "x": 0}
        assert not (canonical.outputs["y"] == 49).any()

    def test_a_tensor_without_a_recipe_is_refused(self) -> None:
        """One sentence names it."""
        kernel = kernel_of(scaled, PACKED)
        case = Case(dtype="float32", dims={"H": 2}, sequences=SEQUENCES, data={"x": NORMAL})

        with pytest.raises(CaseError, match="'weight' has no recipe: give one in policy_state"):
            prepare(kernel, case, device="cpu")


class TestStorage:
    """T8 moves tensors in memory and changes no value."""

    def test_canonical_tensors_lie_at_a_boundary(self) -> None:
        """Contiguous, 256-byte aligned, and no view of anything."""
        kept = Recorder(scaled)
        run_canonical(prepared_of(kernel_of(kept, PACKED)))

        for value in tensors(kept.calls[0]):
            assert value.data_ptr() % 256 == 0
            assert value.is_contiguous()
            assert not value._is_view()
            assert value.storage_offset() == 0
            assert value.untyped_storage().nbytes() == value.nbytes

    def test_offset_gap_and_swap_are_seen_by_the_kernel(self) -> None:
        """The base pointer, the row stride and the order of axes are what the layout says."""
        offset, _ = tensors(recorded(PACKED, AddNeighbours(), MoveStorage(offset=3)))
        gap, weight = tensors(
            recorded(PACKED, AddNeighbours(), MoveStorage(gap=2, offset=1, parameters=True))
        )
        swapped, plain = tensors(recorded(PACKED, AddNeighbours(), MoveStorage(transposed=True)))

        assert (offset.data_ptr() % 256, offset.stride()) == (12, (4, 1))
        assert (gap.data_ptr() % 256, gap.stride()) == (4, (6, 1))
        assert weight.data_ptr() % 256 == 4
        assert swapped.stride() == (1, 5)
        assert plain.data_ptr() % 256 == 0
        for moved in (offset, gap, swapped):
            assert same_bits(moved, recorded(PACKED, AddNeighbours())[0]).all()  # type: ignore[arg-type]  # a tensor

    def test_the_alignment_of_the_target_is_kept(self) -> None:
        """An offset is rounded up to `align` bytes."""
        kept = Recorder(scaled)
        kernel = kernel_of(kept, PACKED, align=16)
        run_transformed(prepared_of(kernel, MoveStorage(offset=1)))

        assert tensors(kept.calls[0])[0].data_ptr() % 256 == 16

    def test_integers_do_not_move(self) -> None:
        """T8 is about float tensors."""
        signature = "x[T,V], target: token(V)[T] -> y[T,V]"
        x, target = tensors(recorded(signature, MoveStorage(offset=1)))

        assert x.data_ptr() % 256 == 4
        assert target.data_ptr() % 256 == 0

    def test_around_a_moved_tensor_lies_nan(self) -> None:
        """So that a kernel that reads past its rows meets something that shows."""
        moved = allocate((2, 3), torch.float32, torch.device("cpu"), Placement(offset=2, gap=1))
        moved.fill_(1)
        whole = torch.empty(0).set_(moved.untyped_storage())

        assert whole[moved.storage_offset() - 1].isnan()
        assert whole[moved.storage_offset() + 3].isnan()
        assert moved.isfinite().all()

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (1, 5), (5, 1), (0, 3)])
    def test_no_two_elements_share_memory(self, shape: tuple[int, ...]) -> None:
        """Under every placement each element has a place of its own."""
        for offset, gap, transposed in itertools.product((0, 3), (0, 2), (False, True)):
            placement = Placement(offset=offset, gap=gap, transposed=transposed)
            tensor = allocate(shape, torch.float32, torch.device("cpu"), placement)
            numbers = torch.arange(tensor.numel(), dtype=torch.float32).reshape(shape)
            tensor.copy_(numbers)

            assert tensor.data_ptr() % 256 == offset * 4 or not tensor.numel()
            assert same_bits(tensor, numbers).all()

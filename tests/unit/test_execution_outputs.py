"""Outputs come back in logical order, every bit kept, whatever the launches were."""

import itertools
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
from biprop.errors import OutputError
from biprop.execution import (
    run_canonical,
    run_transformed,
)
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PadSlots,
    PermuteRows,
    PlaceWatched,
    SplitBatch,
    Transform,
)


class TestExtraction:
    """Outputs come back by token, whatever the launches were."""

    @pytest.mark.parametrize("transforms", ROW_WISE, ids=range(len(ROW_WISE)))
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_reading_back_undoes_gathering(
        self, transforms: tuple[Transform, ...], dtype: str
    ) -> None:
        """A kernel that copies returns the values of the watched active tokens."""
        kernel = kernel_of(lambda x: x.clone(), "x[T,H] -> y[T,H]")
        prepared = prepared_of(kernel, *transforms, dtype=dtype)
        run = run_transformed(prepared)
        expected = prepared.values.tokens["x"][[1, 2, 3, 4]]

        assert same_bits(run.outputs["y"], expected).all()

    @pytest.mark.parametrize("transforms", PADDED, ids=range(len(PADDED)))
    def test_reading_back_undoes_padding(self, transforms: tuple[Transform, ...]) -> None:
        """The same for rows, with axes in any order."""
        kernel = kernel_of(lambda x, _: x.clone(), "x[H,B,S], mask: mask[B,S] -> y[H,B,S]")
        prepared = prepared_of(kernel, *transforms)
        run = run_transformed(prepared)

        assert same_bits(run.outputs["y"], prepared.values.tokens["x"][[1, 2, 3, 4]]).all()

    def test_every_row_knows_its_token_and_its_slot(self) -> None:
        """`index` names sequence and token, `rows` the flat slot and the launch."""
        run = run_transformed(
            prepared_of(
                kernel_of(scaled, PACKED),
                AddNeighbours(count=1),
                PlaceWatched(before=1),
                SplitBatch(cuts=(5,)),
            )
        )
        index = run.index["y"]

        assert index is not None
        assert index.sequence_id.tolist() == [3, 3, 7, 7]
        assert index.token.tolist() == [1, 2, 0, 1]
        assert run.rows["y"].tolist() == [[4, 0], [0, 1], [1, 1], [2, 1]]
        assert run.launches == 2

    def test_one_value_a_sequence_is_compared_once(self) -> None:
        """Pooled outputs have one row a watched sequence, known by its last token."""

        def pooled(x: Tensor, offsets: Tensor) -> Tensor:
            bounds = itertools.pairwise(offsets.tolist())
            return torch.stack([x[low:high].double().sum(0).float() for low, high in bounds])

        canonical, transformed = both(
            kernel_of(pooled, "x[T,H], offsets: offsets[B+1] -> y[B,H]"),
            AddNeighbours(count=2),
            PermuteRows(seed=4),
            AddDeadRows(count=2),
        )
        index = transformed.index["y"]

        assert index is not None
        assert (index.sequence_id.tolist(), index.token.tolist()) == ([3, 7], [2, 1])
        assert differing(canonical, transformed) == {"y": 0}

    def test_an_output_may_be_an_argument_or_a_reused_buffer(self) -> None:
        """Rows are copied before the next launch can overwrite them."""
        buffer = torch.empty(64, 4)

        def reusing(x: Tensor) -> tuple[Tensor, Tensor]:
            buffer[: len(x)] = x
            return buffer[: len(x)], x

        prepared = prepared_of(kernel_of(reusing, "x[T,H] -> y[T,H], z[T,H]"))
        run = run_canonical(prepared)

        expected = prepared.values.tokens["x"][[1, 2, 3, 4]]
        assert same_bits(run.outputs["y"], expected).all()
        assert same_bits(run.outputs["z"], expected).all()

    def test_ignored_outputs_are_not_looked_at(self) -> None:
        """`_` takes anything."""
        run = run_canonical(
            prepared_of(kernel_of(lambda x: (None, x, "note"), "x[T,H] -> _, y[T,H], _"))
        )

        assert list(run.outputs) == ["y"]

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (lambda x: x[:, :2], "has shape [3, 2], and the signature says y[T,H], here [3, 4]"),
            (lambda x: x.double(), "has dtype float64, and the signature says float32"),
            (lambda x: x.to("meta"), "lies on meta, and the arguments on cpu"),
            (lambda _: None, "is None, and the signature says y[T,H]"),
            (lambda _: 3.0, "is a float, and the signature says y[T,H]"),
            (lambda x: (x, x), "returned 2 values, and the signature says 1 (y[T,H])"),
            (lambda x: x.to_sparse(), "is a tensor of layout torch.sparse_coo"),
        ],
        ids=["shape", "dtype", "device", "none", "number", "count", "layout"],
    )
    def test_other_outputs_than_declared_are_refused(
        self, result: Callable[[Tensor], object], words: str
    ) -> None:
        """One sentence names the output, what was found and what the signature says."""
        with pytest.raises(OutputError) as caught:
            run_canonical(prepared_of(kernel_of(result, "x[T,H] -> y[T,H]")))

        assert words in str(caught.value)
        assert str(caught.value).count(".") <= 1 + words.count(".")

    def test_named_dtypes_of_outputs_are_exact(self) -> None:
        """float32 is wanted of a bfloat16 case where the signature says so."""
        kernel = kernel_of(lambda x: x.float(), "x[T,H] -> y: float32[T,H]")

        run = run_canonical(prepared_of(kernel, dtype="bfloat16"))
        assert run.outputs["y"].dtype == torch.float32


class TestMarks:
    """Arguments that a kernel writes into."""

    def test_a_mutated_argument_is_judged(self) -> None:
        """Its live part is compared, and its dead part must keep its bits."""

        def doubled(x: Tensor, mask: Tensor) -> None:
            x[mask] *= 2

        canonical, transformed = both(
            kernel_of(doubled, "x![B,S,H], mask: mask[B,S] ->"),
            AddNeighbours(count=1),
            PadSlots(side="left", amount=1, fill="nan"),
            AddDeadRows(fill="one"),
        )

        assert differing(canonical, transformed) == {"x": 0, "x (dead slots)": 0}
        assert transformed.outputs["x (dead slots)"].shape == (8, 4)
        assert transformed.index["x (dead slots)"] is None

    def test_writing_into_dead_slots_is_seen(self) -> None:
        """A kernel that doubles padding too changes what is not its own."""

        def doubled(x: Tensor, _: Tensor) -> None:
            x *= 2

        canonical, transformed = both(
            kernel_of(doubled, "x![B,S,H], mask: mask[B,S] ->"), PadSlots(amount=1, fill="one")
        )

        assert differing(canonical, transformed) == {"x": 0, "x (dead slots)": 8}

    def test_dead_slots_that_nothing_tells_may_be_written(self) -> None:
        """A kernel that sees tokens alone cannot know which of them are dead."""

        def doubled(x: Tensor) -> None:
            x *= 2

        canonical, transformed = both(
            kernel_of(doubled, "x![T,H] ->"), PadSlots(amount=1, fill="one")
        )

        assert differing(canonical, transformed) == {"x": 0}

    def test_writing_into_an_unmarked_argument_is_refused(self) -> None:
        """One sentence names the argument, be it written by torch or behind its back."""

        def by_torch(x: Tensor, weight: Tensor) -> Tensor:
            y = x * weight
            weight.add_(1)
            return y

        def by_address(x: Tensor, weight: Tensor) -> Tensor:
            y = x * weight
            weight.numpy()[0] = 7
            return y

        for kernel in (by_torch, by_address):
            with pytest.raises(OutputError, match="writes into argument 'weight'") as caught:
                run_canonical(prepared_of(kernel_of(kernel, "x[T,H], weight[H] -> y[T,H]")))
            # The batch shares it, so no mark is offered.
            assert "!" not in str(caught.value)

    def test_a_mark_is_offered_where_one_may_stand(self) -> None:
        """The sentence spells out the argument as it would be written."""
        kernel = kernel_of(lambda x: x.mul_(2), "x[T,H] -> y[T,H]")

        with pytest.raises(OutputError, match=r"write 'x!\[T,H\]' if that is meant"):
            run_canonical(prepared_of(kernel))

    def test_a_supplied_output_is_poisoned_and_judged(self) -> None:
        """What the kernel leaves out of it keeps the poison."""
        seen: list[bool] = []

        def partial(x: Tensor, out: Tensor) -> None:
            seen.append(bool(out.isnan().all()))
            out[:, :2] = x[:, :2]

        kernel = kernel_of(partial, "x[T,H], out![T,H] ->")
        run = run_canonical(prepared_of(kernel))

        assert all(seen)
        assert run.poisons == ("nan",)
        assert run.outputs["out"][:, 2:].isnan().all()
        assert run.outputs["out"][:, :2].isfinite().all()

    def test_a_supplied_output_is_moved_too(self) -> None:
        """T8 concerns what the kernel writes as well as what it reads."""
        kept = Recorder(lambda x, out: out.copy_(x))
        run_transformed(
            prepared_of(kernel_of(kept, "x[T,H], out![T,H] ->"), MoveStorage(offset=2, dirty=True))
        )

        assert [value.data_ptr() % 256 for value in tensors(kept.calls[0])] == [8, 8]

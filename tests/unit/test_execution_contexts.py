"""Queries and contexts: what a launch is told, what it is given, and what is read back from it."""

import pytest
import torch
from tests.unit.execution_cases import (
    Recorder,
    both,
    differing,
    kernel_of,
    prepared_of,
    recorded,
    tensors,
)
from torch import Tensor

from biprop.bits import same_bits
from biprop.errors import UnsupportedError
from biprop.execution import Run, reference_outputs, run_canonical, run_transformed
from biprop.sequence import LogicalSequence
from biprop.signature import parse_backward
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PackRows,
    PadSlots,
    PermuteRows,
    SplitBatch,
    Transform,
)

Q, K = "q[B,Q,H]", "k[B,C,H]"
TQ, TK = "q[TQ,H]", "k[TC,H]"
OFFSETS = "oq: offsets(Q)[B+1], oc: offsets(C)[B+1]"
LENGTHS = "lq: lengths(Q)[B], lc: lengths(C)[B]"
EQUAL = (LogicalSequence(id=3, length=3), LogicalSequence(id=7, length=3, prompt_length=1))
# Two sequences of three and two tokens, in rows of three slots each.
TOGETHER = AddNeighbours()
# The second chunk: one query of the first sequence alone.
LAST = (TOGETHER, SplitBatch(cuts=(2,)))


def told(argument: str, *transforms: Transform, packed: bool = False, **fields: object) -> object:
    """Return what the first transformed launch is told, beside its queries and contexts."""
    signature = (
        f"{TQ}, {TK}, {argument} -> o[TQ,H]" if packed else f"{Q}, {K}, {argument} -> o[B,Q,H]"
    )
    return recorded(signature, *transforms, **fields)[2]


def launched(signature: str, *transforms: Transform, **fields: object) -> list[tuple[object, ...]]:
    """Return the arguments of all transformed launches."""
    kept = Recorder(lambda q, *_: q * 1)
    run_transformed(prepared_of(kernel_of(kept, signature), *transforms, **fields))
    return kept.calls


def drawn(words: list[str]) -> list[list[bool]]:
    """Return a mask that was drawn with `x` for what is attended."""
    return [[letter == "x" for letter in word] for word in words]


CAUSAL = [drawn(["x..", "xx.", "xxx"]), drawn(["x..", "xx.", "x.."])]


class TestMasks:
    """Who attends whom, in every shape that a signature may ask for."""

    def test_live_queries_attend_their_sequence_up_to_themselves(self) -> None:
        """A dead query attends the first live key of its row."""
        mask = told("m: causal_mask[B,Q,C]", TOGETHER)

        assert isinstance(mask, Tensor)
        assert mask.dtype == torch.bool
        assert mask.tolist() == CAUSAL

    @pytest.mark.parametrize(
        ("dims", "shape"),
        [
            ("[B,1,Q,C]", (2, 1, 3, 3)),
            ("[1,B,1,Q,C]", (1, 2, 1, 3, 3)),
            ("[B,H,Q,C]", (2, 4, 3, 3)),
            ("[H,B,2,Q,C]", (4, 2, 2, 3, 3)),
        ],
    )
    def test_leading_dimensions_repeat_it(self, dims: str, shape: tuple[int, ...]) -> None:
        """Only B matters; the copy is contiguous and may be written to."""
        mask = told(f"m: causal_mask{dims}", TOGETHER)

        assert isinstance(mask, Tensor)
        assert tuple(mask.shape) == shape
        assert mask.is_contiguous()
        rows = mask.movedim(shape.index(2), 0).reshape(2, -1, 3, 3)
        assert rows.tolist() == [[row] * rows.shape[1] for row in CAUSAL]

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [("float", torch.bfloat16), ("float32", torch.float32), ("float16", torch.float16)],
    )
    def test_an_additive_mask_is_zero_or_minus_infinity(
        self, kind: str, dtype: torch.dtype
    ) -> None:
        """In the dtype of the case, or in its own."""
        mask = told(f"m: causal_mask({kind})[B,Q,C]", TOGETHER, dtype="bfloat16")

        assert isinstance(mask, Tensor)
        assert mask.dtype == dtype
        assert set(mask.flatten().tolist()) == {0.0, float("-inf")}
        assert (mask == 0).tolist() == CAUSAL

    def test_one_mask_serves_equal_rows(self) -> None:
        """Without B it is that of a live row, also where a dead row follows."""
        mask = told("m: causal_mask[1,Q,C]", TOGETHER, AddDeadRows(), sequences=EQUAL)

        assert isinstance(mask, Tensor)
        assert mask.tolist() == [drawn(["x..", "xx.", "xxx"])]

    def test_a_mask_without_queries_hides_padding_alone(self) -> None:
        """In a dead row the first slot is attended, so that no softmax is empty."""
        mask = told("m: causal_mask[B,1,1,C]", TOGETHER, AddDeadRows())

        assert isinstance(mask, Tensor)
        assert mask[:, 0, 0].tolist() == drawn(["xxx", "xx.", "x.."])

    def test_padding_on_the_left_moves_keys_and_queries(self) -> None:
        """Or keys alone."""
        left = PadSlots(side="left", amount=1)
        both_sides = told("m: causal_mask[B,Q,C]", TOGETHER, left)
        keys = told("m: causal_mask[B,Q,C]", TOGETHER, PadSlots(side="left", contexts_only=True))

        assert isinstance(both_sides, Tensor)
        assert isinstance(keys, Tensor)
        assert both_sides[1].tolist() == drawn(["..x.", "..x.", "..x.", "..xx"])
        assert keys[1].tolist() == drawn(["..x.", "..x.", "..xx"])

    def test_a_chunk_attends_what_lies_before_it(self) -> None:
        """Its queries are the last contexts; a sequence that ended is not there any more."""
        first, last = (
            call[2] for call in launched(f"{Q}, {K}, m: causal_mask[B,Q,C] -> o[B,Q,H]", *LAST)
        )

        assert isinstance(first, Tensor)
        assert isinstance(last, Tensor)
        assert first.tolist() == [drawn(["x.", "xx"])] * 2
        assert last.tolist() == [drawn(["xxx"])]

    def test_packed_segments_do_not_attend_each_other(self) -> None:
        """And dead slots at the end attend the first key."""
        mask = told("m: causal_mask[1,TQ,TC]", TOGETHER, PadSlots(amount=1), packed=True)

        assert isinstance(mask, Tensor)
        assert mask[0].tolist() == drawn(
            ["x.....", "xx....", "xxx...", "...x..", "...xx.", "x....."]
        )

    def test_sequences_in_one_row_do_not_attend_each_other(self) -> None:
        """Each begins anew."""
        mask = told("m: causal_mask[B,1,Q,C]", TOGETHER, PackRows())

        assert isinstance(mask, Tensor)
        assert mask[0, 0].tolist() == drawn(["x....", "xx...", "xxx..", "...x.", "...xx"])

    @pytest.mark.parametrize(
        ("argument", "shape", "live"),
        [
            ("m: mask[B,Q]", (2, 1), ["x", "x"]),
            ("m: mask[B,1,C]", (2, 1, 2), ["xx", "xx"]),
            ("m: mask[B,C,1]", (2, 2, 1), ["xx", "xx"]),
        ],
    )
    def test_live_slots_of_one_side(
        self, argument: str, shape: tuple[int, ...], live: list[str]
    ) -> None:
        """True where a token lies, whichever the axis, with dimensions 1 where they are wanted."""
        other = "n: mask[B,C]" if "Q" in argument else "n: mask[B,Q]"
        calls = launched(
            f"{Q}, {K}, {argument}, {other} -> o[B,Q,H]", TOGETHER, SplitBatch(cuts=(1, 2))
        )
        mask = calls[1][2]

        assert isinstance(mask, Tensor)
        assert tuple(mask.shape) == shape
        assert mask.reshape(2, -1).tolist() == drawn(live)


class TestCounts:
    """Lengths, offsets and their like count queries and contexts apart."""

    CHUNK = (TOGETHER, SplitBatch(cuts=(1,)), AddDeadRows())

    def test_lengths(self) -> None:
        """Of live tokens, in the order of the rows; none in dead rows."""
        queries, contexts = launched(f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]", *self.CHUNK)[1][2:]

        assert isinstance(queries, Tensor)
        assert isinstance(contexts, Tensor)
        assert (queries.tolist(), contexts.tolist()) == ([2, 1, 0], [3, 2, 0])

    def test_offsets(self) -> None:
        """Of segments one after the other."""
        queries, contexts = launched(f"{TQ}, {TK}, {OFFSETS} -> o[TQ,H]", *self.CHUNK)[1][2:]

        assert isinstance(queries, Tensor)
        assert isinstance(contexts, Tensor)
        assert queries.dtype == torch.int32
        assert (queries.tolist(), contexts.tolist()) == ([0, 2, 3, 3], [0, 3, 5, 5])

    def test_the_longest(self) -> None:
        """As a number for each side."""
        signature = f"{TQ}, {TK}, {OFFSETS}, most: max_length(Q), longest: max_length(C) -> o[TQ,H]"

        assert launched(signature, *self.CHUNK)[1][4:] == (2, 3)

    def test_positions_restart_in_a_shared_row(self) -> None:
        """They belong to the token, on either side."""
        signature = (
            f"{Q}, {K}, m: causal_mask[B,Q,C], a: position[B,Q], b: position[B,1,C] -> o[B,Q,H]"
        )
        _, _, _, queries, contexts = tensors(recorded(signature, TOGETHER, PackRows()))

        assert queries.tolist() == [[0, 1, 2, 5, 6]]
        assert contexts.tolist() == [[[0, 1, 2, 5, 6]]]


class TestFlag:
    """A kernel may be told whether it is causal, as one bool."""

    SIGNATURE = f"{Q}, {K}, causal: is_causal -> o[B,Q,H]"
    PACKED = f"{TQ}, {TK}, {OFFSETS}, causal: is_causal -> o[TQ,H]"

    def test_prefill_is_and_decode_is_not(self) -> None:
        """As all queries of a sequence, or one."""
        decode = (TOGETHER, SplitBatch(cuts=(1, 2)))

        assert [call[2] for call in launched(self.SIGNATURE, TOGETHER, sequences=EQUAL)] == [True]
        assert [call[2] for call in launched(self.SIGNATURE, *decode, sequences=EQUAL)] == [
            True,
            False,
            False,
        ]

    def test_segments_are_looked_at_one_by_one(self) -> None:
        """Empty ones say nothing."""
        decode = (TOGETHER, SplitBatch(cuts=(1, 2)), AddDeadRows())

        assert [call[4] for call in launched(self.PACKED, *decode)] == [True, False, False]

    @pytest.mark.parametrize("signature", [SIGNATURE, PACKED])
    def test_other_cuts_have_no_value(self, signature: str) -> None:
        """Which is said, and never guessed."""
        with pytest.raises(UnsupportedError, match="no value for the last 2 of 3"):
            launched(signature, TOGETHER, SplitBatch(cuts=(1,)), sequences=EQUAL)


class TestValues:
    """Queries and contexts are tensors of their own, gathered each through its map."""

    def test_each_side_has_its_tokens_and_fills(self) -> None:
        """A chunk holds its own queries and all contexts before them."""
        signature = f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]"
        transforms = (*self.chunk(), PadSlots(amount=1, fill="one"), AddDeadRows(fill="large"))
        q, k = tensors(launched(signature, *transforms)[1])[:2]
        values = prepared_of(kernel_of(lambda q, *_: q, signature)).values.tokens

        assert same_bits(q[0, :2], values["q"][1:3]).all()
        assert same_bits(q[1, :1], values["q"][4:5]).all()
        assert same_bits(k[0, :3], values["k"][:3]).all()
        assert same_bits(k[1, :2], values["k"][3:]).all()
        assert {*q[1, 1:].flatten().tolist(), *k[1, 2:].flatten().tolist()} == {1.0}
        assert {*q[2].flatten().tolist(), *k[2].flatten().tolist()} == {30000.0}

    def test_contexts_alone_may_be_padded(self) -> None:
        """Queries keep their slots."""
        signature = f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]"
        q, k = tensors(recorded(signature, TOGETHER, PadSlots(amount=2, contexts_only=True)))[:2]

        assert (tuple(q.shape), tuple(k.shape)) == ((2, 3, 4), (2, 5, 4))

    def test_one_value_a_sequence_is_the_same_in_every_chunk(self) -> None:
        """That of its last token, although most chunks do not hold it."""
        signature = f"{Q}, {K}, {LENGTHS}, slope[B,H] -> o[B,Q,H]"
        first, second = launched(signature, *self.chunk())
        values = prepared_of(kernel_of(lambda q, *_: q, signature)).values.tokens["slope"]

        for call in (first, second):
            assert isinstance(call[4], Tensor)
            assert same_bits(call[4], values[[2, 4]]).all()

    def test_the_one_query_is_the_last_token(self) -> None:
        """Of a signature without an axis of queries; its contexts are the whole sequence."""
        signature = "q[B,H,1,D], k[B,H,C,D] -> o[B,H,1,D]"
        q, k = tensors(recorded(signature, TOGETHER, sequences=EQUAL))
        values = prepared_of(kernel_of(lambda q, *_: q, signature), sequences=EQUAL).values.tokens

        assert same_bits(q, values["q"][[2, 5]]).all()
        assert same_bits(k.transpose(1, 2).reshape(6, 4, 4), values["k"]).all()

    def test_storage_moves_both_sides(self) -> None:
        """T8 has no eye for axes."""
        signature = f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]"
        q, k = tensors(recorded(signature, TOGETHER, MoveStorage(offset=1, gap=2)))[:2]

        assert (q.stride(), k.stride()) == ((18, 6, 1), (18, 6, 1))
        assert (q.data_ptr() % 256, k.data_ptr() % 256) == (4, 4)

    @staticmethod
    def chunk() -> tuple[Transform, ...]:
        """Cut before the second token of each sequence."""
        return (TOGETHER, SplitBatch(cuts=(1,)))


LAYOUTS: tuple[tuple[str, tuple[Transform, ...]], ...] = (
    (
        f"{Q}, {K}, m: causal_mask[B,Q,C] -> o[B,Q,H]",
        (PadSlots(side="left", amount=2, fill="nan"),),
    ),
    (f"{Q}, {K}, m: causal_mask[B,Q,C] -> o[B,Q,H]", (AddNeighbours(count=3), PackRows(per_row=3))),
    (f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]", (TOGETHER, SplitBatch(cuts=(1, 2)), AddDeadRows())),
    (f"{TQ}, {TK}, {OFFSETS} -> o[TQ,H]", (AddNeighbours(count=2), PermuteRows(seed=4))),
    (f"{TQ}, {TK}, {OFFSETS} -> o[TQ,H]", (TOGETHER, SplitBatch(cuts=(2,)), PadSlots(fill="inf"))),
    ("q[H,Q,B], k[B,C,H], a: mask[B,Q], b: mask[B,C] -> o[H,Q,B]", (TOGETHER, SplitBatch())),
)


def rows_of(run: Run, name: str) -> list[list[int]]:
    """Return flat slot and launch of each compared row."""
    return run.rows[name].tolist()


class TestOutputs:
    """Rows come back by token, on the axis that they lie on."""

    @pytest.mark.parametrize(("signature", "transforms"), LAYOUTS, ids=range(len(LAYOUTS)))
    def test_reading_back_undoes_gathering(
        self, signature: str, transforms: tuple[Transform, ...]
    ) -> None:
        """A kernel that copies its queries returns those of the watched active tokens."""
        prepared = prepared_of(kernel_of(lambda q, *_: q.clone(), signature), *transforms)
        expected = prepared.values.tokens["q"][[1, 2, 3, 4]]

        for run in (run_canonical(prepared), run_transformed(prepared)):
            assert same_bits(run.outputs["o"], expected).all()
            index = run.index["o"]
            assert index is not None
            assert index.token.tolist() == [1, 2, 0, 1]

    def test_contexts_come_back_too(self) -> None:
        """An output may lie on their axis."""
        kernel = kernel_of(
            lambda q, k, *_: (q * 1, k * 1), f"{Q}, {K}, {LENGTHS} -> o[B,Q,H], p[B,C,H]"
        )
        prepared = prepared_of(kernel, AddNeighbours(count=1), PadSlots(contexts_only=True))
        run = run_transformed(prepared)

        assert same_bits(run.outputs["p"], prepared.values.tokens["k"][1:5]).all()
        assert rows_of(run, "o") == [[1, 0], [2, 0], [3, 0], [4, 0]]
        assert rows_of(run, "p") == [[1, 0], [2, 0], [4, 0], [5, 0]]

    def test_contexts_of_several_launches_are_not_compared(self) -> None:
        """On neither side; the last chunk's own are fed once."""
        kernel = kernel_of(
            lambda q, k, *_: (q * 1, k * 1), f"{Q}, {K}, {LENGTHS} -> o[B,Q,H], p[B,C,H]"
        )
        canonical, transformed = both(kernel, *LAST)

        for run in (canonical, transformed):
            index = run.index["p"]
            assert index is not None
            assert (index.sequence_id.tolist(), index.token.tolist()) == ([3, 7, 7], [2, 0, 1])
        assert rows_of(canonical, "p") == [[2, 0], [0, 1], [1, 1]]
        assert rows_of(transformed, "p") == [[2, 1], [2, 0], [3, 0]]
        assert differing(canonical, transformed) == {"o": 0, "p": 0}

    def test_no_context_may_be_left_to_compare(self) -> None:
        """Where every launch reads all contexts."""
        kernel = kernel_of(lambda q, k: (q * 1, k * 1), f"{Q}, {K} -> o[B,Q,H], p[B,C,H]")
        canonical, transformed = both(kernel, *LAST, sequences=EQUAL)

        assert len(canonical.outputs["p"]) == len(transformed.outputs["p"]) == 0
        assert differing(canonical, transformed) == {"o": 0, "p": 0}

    def test_one_value_a_sequence_comes_with_its_last_query(self) -> None:
        """Earlier chunks return one too, which is no value of the sequence."""
        kernel = kernel_of(
            lambda q, _, __, lc: (q * 1, lc.float()[:, None].expand(-1, q.shape[2]) * 1),
            f"{Q}, {K}, {LENGTHS} -> o[B,Q,H], n[B,H]",
        )
        canonical, transformed = both(kernel, *LAST)

        assert canonical.outputs["n"][:, 0].tolist() == [3.0, 2.0]
        assert rows_of(transformed, "n") == [[0, 1], [1, 0]]
        assert differing(canonical, transformed) == {"o": 0, "n": 0}

    def test_supplied_outputs_have_the_slots_of_the_launch(self) -> None:
        """Poisoned, in the declared order."""

        def kernel(q: Tensor, _: Tensor, __: Tensor, ___: Tensor, out: Tensor) -> None:
            assert out.isnan().all()
            out.copy_(q)

        found = kernel_of(kernel, f"{Q}, {K}, {LENGTHS}, out![B,Q,H] ->")
        canonical, transformed = both(found, *LAST)

        assert differing(canonical, transformed) == {"out": 0}

    @pytest.mark.parametrize(
        ("argument", "mutated", "watched"),
        [
            (LENGTHS, "k![B,C,H]", True),
            (LENGTHS, "p![B,Q,H]", True),
            ("m: causal_mask[B,Q,C]", "p![B,Q,H]", False),
            ("m: causal_mask[B,Q,C], lq: mask[B,Q]", "p![B,Q,H]", True),
            ("m: causal_mask[B,Q,C], lq: mask[B,Q]", "p![B,C,H]", False),
        ],
    )
    def test_dead_slots_are_watched_where_they_are_told(
        self, argument: str, mutated: str, *, watched: bool
    ) -> None:
        """Whoever cannot know which slots are dead may write there: a dead query attends a key."""

        def scale_all(q: Tensor, _: Tensor, changed: Tensor, *__: Tensor) -> Tensor:
            changed.mul_(2)
            return q * 1

        found = kernel_of(scale_all, f"{Q}, n[B,C,H], {mutated}, {argument} -> o[B,Q,H]")
        name = mutated.split("!", maxsplit=1)[0]
        canonical, transformed = both(found, TOGETHER, PadSlots(amount=1, fill="one"))
        # Two slots beside the second sequence, one beside the first, of four elements each.
        dead = {f"{name} (dead slots)": 12} if watched else {}

        assert differing(canonical, transformed) == {"o": 0, name: 0, **dead}

    def test_a_reference_is_read_back_alike(self) -> None:
        """In one launch of all watched sequences where that is legal."""

        def attend(q: Tensor, k: Tensor, *_: object, **__: object) -> Tensor:
            return q + k.sum() * 0

        kernel = kernel_of(attend, f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]", reference=attend)
        prepared = prepared_of(kernel, TOGETHER)
        found = reference_outputs(prepared, torch.sum)  # type: ignore[arg-type]  # sums, as a Reducer

        assert same_bits(found["o"], prepared.values.tokens["q"][1:5]).all()


def attend(q: Tensor, k: Tensor, lq: Tensor, lc: Tensor) -> Tensor:
    """Add to each query of a row its keys up to its own, by autograd's own means."""
    rows = []
    for row in range(len(q)):
        before = int(lc[row] - lq[row])
        terms = [
            q[row, slot] * k[row, : before + slot + 1].cumsum(0)[-1] for slot in range(int(lq[row]))
        ]
        rest = q.new_zeros((q.shape[1] - len(terms), q.shape[2]))
        rows.append(torch.cat([torch.stack(terms), rest]) if terms else rest)
    return torch.stack(rows)


def gradients(do: Tensor, q: Tensor, k: Tensor, lq: Tensor, lc: Tensor) -> tuple[Tensor, Tensor]:
    """Return what autograd makes of `attend`."""
    with torch.enable_grad():
        queries, keys = q.detach().requires_grad_(), k.detach().requires_grad_()
        of_q, of_k = torch.autograd.grad(attend(queries, keys, lq, lc), [queries, keys], do)
        return of_q, of_k


class TestGradients:
    """Gradients of queries lie on their axis, those of contexts on the other."""

    SIGNATURE = f"{Q}, {K}, {LENGTHS} -> o[B,Q,H]"
    TRANSFORMS: tuple[tuple[Transform, ...], ...] = (
        (TOGETHER, PadSlots(amount=1, fill="nan")),
        (AddNeighbours(count=2), PermuteRows(seed=3), AddDeadRows(fill="nan")),
        LAST,
        (SplitBatch(cuts=(1, 2)), PadSlots(contexts_only=True, fill="nan")),
    )

    @pytest.mark.parametrize("transforms", TRANSFORMS, ids=range(len(TRANSFORMS)))
    @pytest.mark.parametrize("is_registered", [False, True])
    def test_both_ways_agree(
        self, transforms: tuple[Transform, ...], *, is_registered: bool
    ) -> None:
        """By autograd, or by a backward of the kernel's own."""
        kernel = kernel_of(attend, self.SIGNATURE)
        if is_registered:
            text = f"do[B,Q,H], {Q}, {K}, {LENGTHS} -> dq[B,Q,H], dk[B,C,H]"
            backward = parse_backward(text, kernel.signature)
            kernel = kernel_of(
                attend, self.SIGNATURE, backward=gradients, backward_signature=backward
            )
        canonical, transformed = both(kernel, *transforms, judged="token_gradients")

        assert list(transformed.outputs) == ["dq", "dk"]
        assert len(transformed.outputs["dq"]) == 4
        assert differing(canonical, transformed) == {"dq": 0, "dk": 0}
        assert transformed.outputs["dk"].abs().sum() > 0

    def test_only_contexts_fed_once_have_a_gradient(self) -> None:
        """Those of the last chunk; all queries have one."""
        _, transformed = both(kernel_of(attend, self.SIGNATURE), *LAST, judged="token_gradients")

        assert (len(transformed.outputs["dq"]), len(transformed.outputs["dk"])) == (4, 3)
        assert rows_of(transformed, "dk") == [[2, 1], [2, 0], [3, 0]]

    def test_upstream_gradients_are_zero_in_dead_slots(self) -> None:
        """And each chunk gets those of its own queries."""
        kept = Recorder(lambda _, q, k, *__: (q * 1, k * 1))
        kernel = kernel_of(
            lambda q, *_: q * 1,
            self.SIGNATURE,
            backward=kept,
            backward_signature=parse_backward(
                f"do[B,Q,H], {Q}, {K}, {LENGTHS} -> dq[B,Q,H], dk[B,C,H]",
                kernel_of(attend, self.SIGNATURE).signature,
            ),
        )
        transforms = (TOGETHER, SplitBatch(cuts=(1,)), PadSlots(amount=1, fill="nan"))
        prepared = prepared_of(kernel, *transforms, judged="token_gradients")
        run_transformed(prepared)
        upstream = kept.calls[1][0]

        assert isinstance(upstream, Tensor)
        assert same_bits(upstream[0, :2], prepared.values.tokens["do"][1:3]).all()
        assert upstream[0, 2].tolist() == [0.0] * 4
        assert upstream[1, 1:].abs().sum() == 0

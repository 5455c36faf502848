"""Queries and contexts: what a signature says, where tokens lie, and who attends whom."""

from collections.abc import Sequence
from itertools import pairwise

import attrs
import pytest
import torch
from tests.unit.query_context_signatures import CONTEXT_SIGNATURES

from biprop.case import Case
from biprop.errors import CaseError, SignatureError
from biprop.layout import CANONICAL, Padding
from biprop.layout.launches import Launch, canonical_launches, joint_launch, launches
from biprop.layout.pool import TokenPool, token_pool
from biprop.layout.query_context import attends, attends_keys, fed_once
from biprop.sequence import LogicalSequence
from biprop.signature import Signature, parse_signature
from biprop.signature.query_context import (
    chunks_of,
    cutting_of,
    is_even,
    pads_contexts_alone,
    pads_queries,
    sides_of,
    takes_packed_rows,
    tells_queries,
    told_axes,
)
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    MoveStorage,
    PackRows,
    PadSlots,
    PermuteRows,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    apply_all,
    transform_from_data,
    transform_to_data,
)
from biprop.transforms.effect import changed_classes

SEQUENCES = (
    LogicalSequence(id=3, length=3, prompt_length=1),
    LogicalSequence(id=7, length=2),
    LogicalSequence(id=9, length=5, prompt_length=4),
)
EQUAL = (LogicalSequence(id=0, length=3), LogicalSequence(id=1, length=3))
Rows = list[list[int]]
# By signature: what a launch of some queries holds, which sides are told, whether sequences must be
# equally long, where dead slots may lie, and where queries may be cut.
TOLD: dict[str, tuple[str, str, bool, tuple[str, ...], str]] = {
    "causal_mask": ("prefix", "CQ", False, ("right", "left"), "any"),
    "additive": ("prefix", "CQ", False, ("right", "left"), "any"),
    "shared_mask": ("prefix", "", True, (), "any"),
    "masks": ("prefix", "CQ", False, ("right", "left"), "any"),
    "lengths": ("prefix", "CQ", False, ("right",), "any"),
    "context_lengths": ("prefix", "C", True, ("right",), "any"),
    "is_causal": ("prefix", "", True, (), "decode"),
    "masked_is_causal": ("prefix", "C", False, ("right", "left"), "decode"),
    "full": ("queries", "", True, (), "any"),
    "masked_full": ("queries", "C", False, ("right", "left"), "any"),
    "queries": ("queries", "CQ", False, ("right", "left"), "none"),
    "pooled": ("prefix", "CQ", True, ("right", "left"), "any"),
    "one_query": ("none", "CQ", False, ("right",), "none"),
    "one_masked": ("none", "CQ", False, ("right", "left"), "none"),
    "one_blind": ("none", "", True, (), "none"),
    "one_packed": ("none", "CQ", False, ("right",), "none"),
    "offsets": ("prefix", "CQ", False, ("right",), "any"),
    "query_offsets": ("prefix", "Q", False, ("right",), "none"),
    "packed_mask": ("prefix", "CQ", False, ("right", "left"), "any"),
}


def case_of(*transforms: Transform, sequences: tuple[LogicalSequence, ...] = SEQUENCES) -> Case:
    """Return a case of three sequences, two of them with a prompt."""
    return Case(
        dtype="float32",
        dims={"HQ": 2, "HK": 1, "D": 4},
        sequences=sequences,
        transforms=tuple(transform_to_data(transform) for transform in transforms),
    )


def launched(
    name: str, *transforms: Transform, sequences: tuple[LogicalSequence, ...] = SEQUENCES
) -> tuple[tuple[Launch, ...], TokenPool]:
    """Return the launches of a composition, and their pool."""
    case, layout = case_of(*transforms, sequences=sequences), apply_all(transforms)
    pool = token_pool(case, layout)
    return launches(CONTEXT_SIGNATURES[name], pool, case, layout), pool


def facts_of(launch: Launch) -> dict[str, object]:
    """Return all that a launch says, as plain values."""
    return {
        **{axis: found.tolist() for axis, found in launch.maps.items()},
        "lengths": list(launch.lengths),
        "contexts": list(launch.lengths_of("C")),
        "sequences": list(launch.sequences),
    }


def oracle(
    signature: Signature, runs: list[tuple[int, range, range]], padding: Padding
) -> dict[str, object]:
    """Return what `facts_of` a launch must be, by lists alone; nothing without a query."""
    if not runs:
        return {}
    nothing = padding.dead_rows
    queries, contexts = [list(run) for _, run, _ in runs], [list(run) for _, _, run in runs]
    facts: dict[str, object] = {
        "B": [*(run[-1] for run in queries), *[-2] * nothing],
        "lengths": [*map(len, queries), *[0] * nothing],
        "contexts": [*map(len, contexts), *[0] * nothing],
        "sequences": [*(index for index, _, _ in runs), *[-1] * nothing],
    }
    amount = padding.amount
    beside = 0 if padding.contexts_only or cutting_of(signature) == "none" else amount
    if signature.layout == "query_context":
        facts["Q"] = oracle_rows(queries, padding.side, beside) + dead_rows(
            queries, beside, nothing
        )
        dead = dead_rows(contexts, amount, nothing)
        facts["C"] = oracle_rows(contexts, padding.side, amount) + dead
    else:
        facts["TQ"] = oracle_rows([[token for run in queries for token in run]], "right", beside)[0]
        facts["TC"] = oracle_rows([[token for run in contexts for token in run]], "right", amount)[
            0
        ]
    return facts


def oracle_rows(rows: Rows, side: str, amount: int) -> Rows:
    """Return rows as wide as the longest and `amount` dead slots."""
    width = max(map(len, rows)) + amount
    dead = [[-1] * (width - len(row)) for row in rows]
    pairs = zip(rows, dead, strict=True)
    return [more + row if side == "left" else row + more for row, more in pairs]


def dead_rows(rows: Rows, amount: int, count: int) -> Rows:
    """Return wholly dead rows of the same width."""
    return [[-2] * (max(map(len, rows)) + amount) for _ in range(count)]


def oracle_runs(
    signature: Signature, pool: TokenPool, members: Sequence[int], low: int, high: int
) -> list[tuple[int, range, range]]:
    """Return sequence, queries and contexts of each that has a query in the launch."""
    found = []
    for index in members:
        start, stop = pool.start[index], pool.start[index + 1]
        end = min(stop, start + high)
        queries, contexts = range(start + low, end), range(start, end)
        if cutting_of(signature) == "queries":
            contexts = range(start, stop)
        if cutting_of(signature) == "none":
            queries, contexts = range(stop - 1, stop), range(start, stop)
        if queries:
            found.append((index, queries, contexts))
    return found


class TestSignature:
    """What a signature says of its sequences."""

    @pytest.mark.parametrize("name", TOLD)
    def test_what_is_told_decides(self, name: str) -> None:
        """Causality, raggedness, sides and chunks follow from what the kernel is told."""
        item = CONTEXT_SIGNATURES[name]
        told = "".join(sorted(told_axes(item)))

        found = (cutting_of(item), told, is_even(item), sides_of(item), chunks_of(item))
        assert found == TOLD[name]

    def test_only_contexts_are_padded_where_queries_are_the_last_ones(self) -> None:
        """A kernel that is told its contexts alone has no dead query."""
        told_contexts = CONTEXT_SIGNATURES["context_lengths"]

        assert (pads_queries(told_contexts), pads_contexts_alone(told_contexts)) == (False, True)
        by_slot = CONTEXT_SIGNATURES["masked_is_causal"]
        assert (pads_queries(by_slot), pads_contexts_alone(by_slot)) == (True, False)

    def test_rows_are_packed_where_a_mask_alone_tells(self) -> None:
        """Anything else that says where sequences are would contradict a shared row."""
        found = {name for name, item in CONTEXT_SIGNATURES.items() if takes_packed_rows(item)}

        assert found == {"causal_mask", "additive"}

    def test_a_causal_mask_does_not_tell_dead_queries(self) -> None:
        """They attend a live key, so that their gradient reaches it."""
        found = {name for name, item in CONTEXT_SIGNATURES.items() if tells_queries(item)}

        assert found == {"masks", "lengths", "queries", "offsets", "query_offsets"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("q[TQ,D], k[TC,D], x: mask[TQ], y: mask[TC] -> o[TQ,D]", "where sequences end"),
            ("q[B,D], k[TC,D], m: causal_mask[TQ,TC] -> o[B,D]", "'q' has one value a sequence"),
            (
                "q[TQ,D], k[TC,D], n: order[TQ], e: offsets(Q)[B+1] -> o[TQ,D]",
                r"'n' is the order of TQ alone, .*: add an argument of kind order\[TC\]",
            ),
            (
                "q[TQ,D], k[TC,D], n: order[TC], e: lengths(Q)[B] -> o[TQ,D]",
                r"'n' is the order of TC alone, .*: add an argument of kind order\[TQ\]",
            ),
            (
                "q[B,Q,D], k[B,C,D], n: order[B,Q], e: offsets(C)[B+1] -> o[B,Q,D]",
                r"'n' is the order of Q alone, .*: add an argument of kind order\[B,C\]",
            ),
        ],
    )
    def test_what_no_kernel_could_read_is_refused(self, text: str, message: str) -> None:
        """A signature that leaves out where sequences are is refused in one sentence."""
        with pytest.raises(SignatureError, match=message):
            parse_signature(text)


class TestMaps:
    """Where tokens lie."""

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    @pytest.mark.parametrize(
        "surroundings",
        [
            (),
            (PadSlots(amount=2), AddDeadRows()),
            (PadSlots(side="left", amount=1, contexts_only=True), AddDeadRows(count=2)),
        ],
        ids=["bare", "right", "left"],
    )
    def test_maps_are_those_of_plain_lists(
        self, name: str, surroundings: tuple[Transform, ...]
    ) -> None:
        """Every layout, cut and padding agrees with an oracle of lists."""
        signature = CONTEXT_SIGNATURES[name]
        packed = signature.layout == "packed_query_context"
        if packed and (name == "packed_mask" or "left" not in sides_of(signature)):
            surroundings = tuple(
                attrs.evolve(item, side="right")
                for item in surroundings
                if isinstance(item, PadSlots)
            )
        for cuts in ((1,), (2, 3), (4, 9), (99,)):
            found, pool = launched(
                name, AddNeighbours(count=1), *surroundings, SplitBatch(cuts=cuts)
            )
            bounds = [0, *(() if cutting_of(signature) == "none" else cuts), 999]
            runs = [oracle_runs(signature, pool, range(4), *pair) for pair in pairwise(bounds)]
            expected = [oracle(signature, item, apply_all(surroundings).padding) for item in runs]

            assert [facts_of(launch) for launch in found] == [item for item in expected if item]

    @pytest.mark.parametrize("per_row", [2, 3, 9])
    def test_sequences_share_rows(self, per_row: int) -> None:
        """PackRows lays sequences of one row end to end, whatever their lengths."""
        (found,), pool = launched("causal_mask", AddNeighbours(count=2), PackRows(per_row=per_row))
        bounds = [*pool.start[:-1:per_row], pool.start[-1]]
        rows = [list(range(low, high)) for low, high in pairwise(bounds)]
        expected = oracle_rows(rows, "right", 0)

        assert found.maps["Q"].tolist() == found.maps["C"].tolist() == expected
        assert found.sequences == tuple(range(0, 5, per_row))
        assert sum(found.lengths) == sum(found.context_lengths) == len(pool.token)

    def test_packed_sequences_share_a_launch(self) -> None:
        """Without T1 too, since there is no row of two sequences else."""
        (found,), _ = launched("causal_mask", PackRows(per_row=3), sequences=EQUAL)

        assert found.maps["Q"].tolist() == [[0, 1, 2, 3, 4, 5]]

    def test_packed_rows_decode_too(self) -> None:
        """A chunk of each sequence, and the contexts before it, lie end to end."""
        found, _ = launched("causal_mask", AddNeighbours(), PackRows(), SplitBatch(cuts=(2, 3)))

        assert [launch.maps["Q"].tolist() for launch in found] == [
            [[0, 1, 3, 4], [5, 6, -1, -1]],
            [[2, 7]],
            [[8, 9]],
        ]
        assert found[1].maps["C"].tolist() == [[0, 1, 2, 5, 6, 7]]

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_alone_is_canonical(self, name: str) -> None:
        """Each sequence alone, queries and contexts both the whole of it, and no dead slot."""
        case = case_of()
        pool = token_pool(case, CANONICAL)
        found = canonical_launches(CONTEXT_SIGNATURES[name], pool, case)
        one = cutting_of(CONTEXT_SIGNATURES[name]) == "none"

        assert [launch.span for launch in found] == [(0, 3), (3, 5), (5, 10)]
        for launch, (start, stop) in zip(found, pairwise(pool.start), strict=True):
            first = stop - 1 if one else start
            assert launch.slots.flatten().tolist() == list(range(first, stop))
            assert launch.context_lengths == (stop - start,)

    def test_a_part_of_a_sequence_has_no_span(self) -> None:
        """A span means one whole sequence: neither a chunk nor a padded row has one."""
        for transform in (SplitBatch(cuts=(2,)), PadSlots(), AddDeadRows()):
            found, _ = launched("causal_mask", transform)
            long = [launch for launch in found if launch.sequences[0] != 1]

            assert {launch.span for launch in long} == {None}

    def test_rows_that_cannot_be_padded_are_not_joined(self) -> None:
        """Sequences of unequal length have no joint launch where dead slots are not told."""
        pool = token_pool(case_of(), CANONICAL)
        joined = {
            name
            for name, signature in CONTEXT_SIGNATURES.items()
            if joint_launch(signature, pool) is not None
        }

        assert set(CONTEXT_SIGNATURES) - joined == {
            "shared_mask",
            "context_lengths",
            "is_causal",
            "full",
            "pooled",
            "one_blind",
        }

    def test_sizes_name_every_axis(self) -> None:
        """Queries and contexts have sizes of their own."""
        (found, _), _ = launched("full", SplitBatch(cuts=(2,)), sequences=EQUAL[:1])
        (packed,), _ = launched("offsets", AddNeighbours(), PadSlots(amount=2, contexts_only=True))

        assert found.sizes == {"B": 1, "Q": 2, "C": 3}
        assert packed.sizes == {"B": 3, "TQ": 10, "TC": 12}

    @pytest.mark.parametrize(
        ("name", "transforms", "message"),
        [
            ("offsets", (PadSlots(side="left"),), "PadSlots side=left moves the first segment"),
            ("packed_mask", (AddDeadRows(),), "AddDeadRows needs rows or segments"),
            ("lengths", (PackRows(),), "PackRows needs a signature over B,Q,C"),
        ],
    )
    def test_what_cannot_be_laid_out_is_refused(
        self, name: str, transforms: tuple[Transform, ...], message: str
    ) -> None:
        """A layout without meaning for its signature is refused in one sentence."""
        with pytest.raises(CaseError, match=message):
            launched(name, *transforms)


class TestAttends:
    """Who attends whom."""

    @pytest.mark.parametrize("name", ["causal_mask", "packed_mask"])
    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("cuts", [(9,), (2,), (1, 4)])
    def test_queries_attend_their_past(self, name: str, side: str, cuts: tuple[int, ...]) -> None:
        """A live query its own sequence up to itself; a dead one the first live context."""
        padded = name == "causal_mask"
        extra = (AddDeadRows(), PackRows()) if padded else ()
        found, pool = launched(
            name,
            AddNeighbours(count=1),
            PadSlots(side=side, amount=2),  # type: ignore[arg-type]  # parametrised text
            SplitBatch(cuts=cuts),
            *extra,
        )
        for launch in found:
            mask = attends(launch, pool).tolist()
            queries = launch.maps["Q" if padded else "TQ"].tolist()
            contexts = launch.maps["C" if padded else "TC"].tolist()
            if not padded:
                mask, queries, contexts = [mask], [queries], [contexts]
            for row, query_row in enumerate(queries):
                live = [slot for slot, key in enumerate(contexts[row]) if key >= 0]
                for at, query in enumerate(query_row):
                    if query < 0:
                        expected = live[:1] or [0]
                    else:
                        start = pool.start[int(pool.sequence_of[query])]
                        own = range(start, query + 1)
                        expected = [slot for slot in live if contexts[row][slot] in own]
                    seen = [slot for slot, flag in enumerate(mask[row][at]) if flag]
                    assert seen == expected

    def test_keys_of_a_row_hide_its_padding_alone(self) -> None:
        """A mask over contexts alone shows all live ones, and the first slot of a dead row."""
        (found,), _ = launched("one_masked", AddNeighbours(), PadSlots(side="left"), AddDeadRows())

        assert attends_keys(found).int().tolist() == [
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 0, 1, 1],
            [0, 1, 1, 1, 1, 1],
            [1, 0, 0, 0, 0, 0],
        ]


class TestFedOnce:
    """Contexts whose gradient one launch alone makes."""

    @pytest.mark.parametrize("name", CONTEXT_SIGNATURES)
    def test_it_counts_the_launches(self, name: str) -> None:
        """A token is fed once where exactly one launch has it among its contexts."""
        for cuts in ((1,), (2, 3), (4,), (3, 5), (9,)):
            found, pool = launched(name, AddNeighbours(count=1), SplitBatch(cuts=cuts))
            count = torch.zeros(len(pool.token), dtype=torch.int64)
            for launch in found:
                contexts = launch.maps["C" if "C" in launch.maps else "TC"].flatten()
                count += torch.bincount(contexts[contexts >= 0], minlength=len(count))

            assert fed_once(CONTEXT_SIGNATURES[name], pool, cuts).tolist() == (count == 1).tolist()

    def test_without_cuts_every_context_is(self) -> None:
        """One launch a sequence."""
        pool = token_pool(case_of(), CANONICAL)

        assert fed_once(CONTEXT_SIGNATURES["full"], pool, ()).all()


def test_a_later_field_is_written_where_it_says_something() -> None:
    """Cases from before there were contexts keep their text, and thereby their ids."""
    padding = PadSlots(contexts_only=True)

    assert "contexts_only" not in transform_to_data(PadSlots()).values
    assert transform_from_data(transform_to_data(padding)) == padding


class TestChangedClasses:
    """What counts as a change of the call."""

    def test_a_full_composition_changes_in_every_class(self) -> None:
        """Each class that takes effect is said to."""
        case = case_of(
            AddNeighbours(count=2),
            PermuteRows(seed=1),
            ReplaceNeighbours(length=4),
            PadSlots(fill="nan", contexts_only=True),
            AddDeadRows(fill="large"),
            SplitBatch(cuts=(2,)),
            PackRows(),
            MoveStorage(offset=1),
        )

        assert changed_classes(CONTEXT_SIGNATURES["causal_mask"], case) == dict.fromkeys(
            ("T1", "T2", "T3", "T4.nonfinite", "T4.finite", "T5", "T6", "T8"), True
        )

    @pytest.mark.parametrize(
        ("name", "transforms", "kind"),
        [
            ("causal_mask", (SplitBatch(cuts=(5,)),), "T5"),
            ("causal_mask", (AddNeighbours(), PackRows()), "T1"),
            ("causal_mask", (AddNeighbours(), PackRows(), SplitBatch(cuts=(9,))), "T5"),
            ("queries", (PadSlots(contexts_only=True),), "T4.finite"),
            ("one_query", (SplitBatch(cuts=(1,)),), "T5"),
        ],
    )
    def test_what_the_kernel_cannot_see_is_vacuous(
        self, name: str, transforms: tuple[Transform, ...], kind: str
    ) -> None:
        """A cut past the end, rows of one sequence, and slots of an axis that nobody has."""
        case = case_of(*transforms)

        assert changed_classes(CONTEXT_SIGNATURES[name], case)[kind] is False

    def test_contexts_count_as_well_as_queries(self) -> None:
        """Dead contexts alone are a change, as is their fill."""
        finite = case_of(PadSlots(contexts_only=True))
        ragged = case_of(AddNeighbours(), PadSlots(amount=0, fill="nan"))
        signature = CONTEXT_SIGNATURES["masks"]

        assert changed_classes(signature, finite) == {"T4.finite": True}
        assert changed_classes(signature, ragged)["T4.nonfinite"]

    def test_empty_segments_are_seen_through_their_lengths(self) -> None:
        """They have no slot, so that only offsets tell."""
        case = case_of(AddDeadRows())

        assert changed_classes(CONTEXT_SIGNATURES["offsets"], case) == {"T4.finite": True}
